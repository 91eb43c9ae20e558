#include "core/remote/kept_hub_list.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <ctime>
#include <span>

#include "core/base/checksum.h"
#include "core/remote/cache_directory.h"
#include "core/storage/mount_record.h"

namespace stfs {
namespace {

constexpr off_t kMostListFileBytes = 16 << 20;
constexpr const char* kListDirectory = "hub/lists";

/// The file begins with the question: two questions may have one name.
std::string name_of_question(const std::string& question) {
  Checksum sum;
  sum.update(std::as_bytes(std::span(question)));
  return sum.hex();
}

}  // namespace

void keep_hub_list(const std::string& question, std::string_view json) {
  const auto directory = open_own_cache(kListDirectory);
  if (!directory) return;
  const std::string text = question + "\n" + std::string(json);
  (void)put_in_cache(directory->get(), name_of_question(question), std::as_bytes(std::span(text)),
                     S_IRUSR | S_IWUSR);
}

std::optional<KeptHubList> find_hub_list(const std::string& question) {
  const auto directory = open_own_cache(kListDirectory);
  if (!directory) return std::nullopt;
  const std::string name = name_of_question(question);
  const UniqueFd file(
      ::openat(directory->get(), name.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  struct stat status {};
  if (!file || ::fstat(file.get(), &status) != 0 || !S_ISREG(status.st_mode) ||
      owner_of(file.get(), status.st_uid) != ::geteuid() ||
      status.st_size > kMostListFileBytes + static_cast<off_t>(question.size()) + 1)
    return std::nullopt;
  std::string text(static_cast<std::size_t>(status.st_size), '\0');
  if (::pread(file.get(), text.data(), text.size(), 0) != status.st_size) return std::nullopt;
  const std::string head = question + "\n";
  if (!text.starts_with(head)) return std::nullopt;
  std::tm parts{};
  std::array<char, 32> time{};
  ::localtime_r(&status.st_mtime, &parts);
  const std::size_t size = std::strftime(time.data(), time.size(), "%Y-%m-%d %H:%M", &parts);
  return KeptHubList{text.substr(head.size()), std::string(time.data(), size)};
}

}  // namespace stfs
