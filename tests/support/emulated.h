// Whether this program runs under an emulator of another processor (qemu's user mode), and what that can't
// do.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

namespace stfs::test {

/// The kernel knows the process by the emulator's name then. Its memory is the emulator's, too.
inline bool is_emulated() {
  std::ifstream file("/proc/self/comm");
  std::string name;
  std::getline(file, name);
  return !std::filesystem::read_symlink("/proc/self/exe").filename().string().starts_with(name);
}

/// A kernel without binfmt_misc for the emulator starts programs of its own processor only.
inline bool can_start_itself() {
  const std::string program = std::filesystem::read_symlink("/proc/self/exe").string();
  return std::system(("'" + program + "' --help > /dev/null 2>&1").c_str()) == 0;
}

/// The kernel refuses an advice that it does not know, and does what MADV_POPULATE_READ says. An emulator may
/// take each one for a hint, of which nothing has to come.
inline bool takes_any_advice_for_a_hint() {
  constexpr int kNoAdvice = 12'345;
  const auto page_bytes = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  void* page = ::mmap(nullptr, page_bytes, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  const bool is_taken = ::madvise(page, page_bytes, kNoAdvice) == 0;
  ::munmap(page, page_bytes);
  return is_taken;
}

}  // namespace stfs::test
