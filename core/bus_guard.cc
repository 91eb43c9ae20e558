// A handler for all, and for each thread the place to go back to.
#include "core/bus_guard.h"

#include <csetjmp>
#include <csignal>

namespace stfs {
namespace {

struct Guard {
  const std::byte* begin = nullptr;
  const std::byte* end = nullptr;
  sigjmp_buf back;
};
constinit thread_local Guard* present = nullptr;
struct sigaction before {};  // NOLINT: what a handler knows lies where it finds it

void on_bus_error(int, siginfo_t* info, void*) {
  const auto* at = static_cast<const std::byte*>(info->si_addr);
  if (present != nullptr && at >= present->begin && at < present->end) siglongjmp(present->back, 1);
  // The access is repeated, and meets what was there before.
  ::sigaction(SIGBUS, &before, nullptr);
}

bool install() {
  struct sigaction action {};
  action.sa_sigaction = on_bus_error;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK;
  sigemptyset(&action.sa_mask);
  return ::sigaction(SIGBUS, &action, &before) == 0;
}

}  // namespace

bool copy_guarded(std::span<const std::byte> region, const std::function<void()>& copy) {
  static const bool is_installed = install();
  if (!is_installed) return false;
  Guard guard;
  guard.begin = region.data();
  guard.end = region.data() + region.size();
  // With the mask: sanitizers block more in a handler than it asks for.
  if (sigsetjmp(guard.back, 1) != 0) {
    present = nullptr;
    return false;
  }
  present = &guard;
  copy();
  present = nullptr;
  return true;
}

}  // namespace stfs
