#include "tests/simulation/mount_deeds.h"

namespace stfs::test {

void MountDeeds::write_back(std::uint32_t a) {
  if (now_.depth == 1) kernel_.write_back_some(a);
}

void MountDeeds::release(std::uint32_t a) {
  if (now_.depth > 1) return;
  for (std::uint32_t some = 1 + a % 3; some-- > 0 && kernel_.release_one();) {
  }
}

void MountDeeds::invalidate(std::uint32_t a) {
  for (std::uint32_t some = a % 2 == 0 ? 1 + a / 2 % 3 : ~0U; some-- > 0 && machine_.mount().invalidate();) {
  }
  settle();
}

void MountDeeds::settle() {
  if (now_.depth > 1 || !now_.is_noticed || kernel_.is_aborted()) return;
  while (machine_.mount().invalidate()) {
  }
  truth_.settle();
}

void MountDeeds::look() {
  if (now_.depth > 1) return;
  now_.is_noticed = true;  // unless there is a change during the look
  const bool is_done = machine_.mount().look();
  now_.is_noticed = now_.is_noticed && is_done;
}

void MountDeeds::tidy() {
  if (now_.depth == 1) machine_.mount().tidy();
}

}  // namespace stfs::test
