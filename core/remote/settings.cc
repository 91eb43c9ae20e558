#include "core/remote/settings.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <utility>

#include "core/base/unique_fd.h"
#include "core/storage/mount_record.h"

namespace stfs {

std::string variable(const char* name) {
  const char* text = std::getenv(name);
  return text == nullptr ? std::string() : std::string(text);
}

bool is_set(const char* name) {
  std::string value = variable(name);
  std::ranges::transform(value, value.begin(), [](unsigned char c) { return std::toupper(c); });
  return value == "1" || value == "ON" || value == "YES" || value == "TRUE";
}

std::string trimmed_text(std::string_view text) {
  constexpr std::string_view kSpaces = " \t\r\n";
  const std::size_t first = text.find_first_not_of(kSpaces);
  if (first == text.npos) return {};
  return std::string(text.substr(first, text.find_last_not_of(kSpaces) - first + 1));
}

std::optional<SmallFile> small_file(const std::filesystem::path& path, std::size_t most_bytes) {
  const UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
  struct stat status {};
  if (!file || ::fstat(file.get(), &status) != 0 || !S_ISREG(status.st_mode)) return std::nullopt;
  SmallFile found{.text = {}, .is_own = is_own(file.get(), status)};
  found.text.resize(most_bytes);
  std::size_t done_bytes = 0;
  while (done_bytes < most_bytes) {
    const ssize_t size_bytes = ::read(file.get(), found.text.data() + done_bytes, most_bytes - done_bytes);
    if (size_bytes < 0) return std::nullopt;
    if (size_bytes == 0) break;
    done_bytes += static_cast<std::size_t>(size_bytes);
  }
  found.text.resize(done_bytes);
  return found;
}

bool is_own(int descriptor, const struct stat& status) {
  const auto owner = owner_of(descriptor, status.st_uid);
  if (!owner || (*owner != ::geteuid() && *owner != 0)) return false;
  const bool is_own_group = status.st_gid == status.st_uid;
  return (status.st_mode & (S_IWOTH | (is_own_group ? 0U : S_IWGRP))) == 0;
}

}  // namespace stfs
