// STFS_MUTANT has the number of the fault that is on. Each fault that is passed by marks its byte in the file
// that STFS_MUTANTS_SEEN names. The mark stays however the process ends.
#pragma once

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstddef>
#include <cstdlib>
#include <iterator>
#include <optional>
#include <type_traits>
#include <utility>

namespace stfs_mutation {

inline unsigned number_of_fault() {
  const char* text = std::getenv("STFS_MUTANT");
  return text == nullptr ? 0 : static_cast<unsigned>(std::strtoul(text, nullptr, 10));
}

struct Seen {
  unsigned char* bytes = nullptr;
  std::size_t size_bytes = 0;
};

inline Seen map_seen() {
  const char* path = std::getenv("STFS_MUTANTS_SEEN");
  const int file = path == nullptr ? -1 : ::open(path, O_RDWR | O_CLOEXEC);
  if (file < 0) return {};
  struct stat status = {};
  Seen seen;
  if (::fstat(file, &status) == 0 && status.st_size > 0) {
    const auto size_bytes = static_cast<std::size_t>(status.st_size);
    void* bytes = ::mmap(nullptr, size_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (bytes != MAP_FAILED) seen = {static_cast<unsigned char*>(bytes), size_bytes};
  }
  ::close(file);
  return seen;
}

inline const unsigned the_fault = number_of_fault();
inline const Seen the_seen = map_seen();

/// Returns true if the fault of this number is on.
constexpr bool is(unsigned number) {
  if (std::is_constant_evaluated()) return false;
  if (number < the_seen.size_bytes) __atomic_store_n(the_seen.bytes + number, 1, __ATOMIC_RELAXED);
  return number == the_fault;
}

/// A range, without its last step if the fault is on.
template <class Range>
struct Shortened {
  Range range;
  bool is_on;

  auto begin() { return std::begin(range); }
  auto end() {
    auto last = std::end(range);
    if constexpr (std::forward_iterator<decltype(std::begin(range))>) {
      auto first = std::begin(range);
      if (!is_on || first == last) return last;
      if constexpr (std::is_same_v<decltype(first), decltype(last)>) {
        return std::next(first, std::distance(first, last) - 1);
      }
    }
    return last;
  }
};

template <class Range>
Shortened<Range> shortened(bool is_on, Range&& range) {
  return {std::forward<Range>(range), is_on};
}

}  // namespace stfs_mutation
