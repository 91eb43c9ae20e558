// Detects an emulator of another processor (qemu's user mode) around this program, and its limits.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

namespace stfs::test {

/// Under an emulator, the kernel shows the emulator's name and memory for this process.
inline bool is_emulated() {
  std::ifstream file("/proc/self/comm");
  std::string name;
  std::getline(file, name);
  return !std::filesystem::read_symlink("/proc/self/exe").filename().string().starts_with(name);
}

/// False if the kernel lacks binfmt_misc for the emulator: it starts only programs of the real processor.
inline bool can_start_itself() {
  const std::string program = std::filesystem::read_symlink("/proc/self/exe").string();
  return std::system(("'" + program + "' --help > /dev/null 2>&1").c_str()) == 0;
}

/// The kernel refuses unknown advice, and carries out MADV_POPULATE_READ. An emulator may accept any advice
/// as a hint, and do nothing.
inline bool takes_any_advice_for_a_hint() {
  constexpr int kNoAdvice = 12'345;
  const auto page_bytes = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  void* page = ::mmap(nullptr, page_bytes, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  const bool is_taken = ::madvise(page, page_bytes, kNoAdvice) == 0;
  ::munmap(page, page_bytes);
  return is_taken;
}

}  // namespace stfs::test
