#include "core/storage/mount_record.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/magic.h>
#include <sys/vfs.h>

#include <charconv>
#include <fstream>
#include <string_view>

#include "core/base/unique_fd.h"

namespace stfs {
namespace {

/// Returns the part of the line after `text`, up to a separator.
std::string word_behind(std::string_view line, std::string_view text, std::string_view separators) {
  const std::size_t at = line.find(text);
  if (at == line.npos) return {};
  line.remove_prefix(at + text.size());
  return std::string(line.substr(0, line.find_first_of(separators)));
}

/// Returns the file's first line with that beginning; empty without one.
std::string line_of(const std::string& file, std::string_view beginning) {
  std::ifstream lines(file);
  for (std::string line; std::getline(lines, line);)
    if (line.starts_with(beginning)) return line;
  return {};
}

constexpr const char* kMounts = "/proc/self/mountinfo";

/// Returns the number of the file's mount; empty if /proc does not have it.
std::string mount_id_of(int descriptor) {
  const std::string known = line_of(fmt::format("/proc/self/fdinfo/{}", descriptor), "mnt_id:");
  return word_behind(known, "mnt_id:\t", "\n");
}

}  // namespace

bool is_in_this_namespace(int descriptor) {
  const std::string id = mount_id_of(descriptor);
  const bool is_told = !id.empty() && !line_of(kMounts, "").empty();
  if (!is_told || !line_of(kMounts, id + " ").empty()) return true;
  // A chroot does not list the mount of the root itself.
  const UniqueFd root(::open("/", O_PATH | O_CLOEXEC));
  return mount_id_of(root.get()) == id;
}

std::optional<MountRecord> mount_of(int descriptor) {
  const std::string id = mount_id_of(descriptor);
  const std::string line = id.empty() ? id : line_of(kMounts, id + " ");
  const std::size_t details = line.find(" - ");  // spaces of paths are written as \040
  if (details == line.npos) return std::nullopt;
  const std::string_view of_filesystem = std::string_view(line).substr(details);
  MountRecord mount{.type = word_behind(of_filesystem, " - ", " "), .user = std::nullopt};
  // The options are the last field. No other text can put a space or a comma before a false user_id.
  const std::string_view options = of_filesystem.substr(of_filesystem.rfind(' '));
  const std::string text = word_behind(options, ",user_id=", ",");
  std::uint32_t user = 0;
  const auto [end, failed] = std::from_chars(text.data(), text.data() + text.size(), user);
  if (!text.empty() && failed == std::errc() && end == text.data() + text.size()) mount.user = user;
  return mount;
}

std::optional<uid_t> owner_of(int descriptor, uid_t told) {
  struct statfs filesystem {};
  if (::fstatfs(descriptor, &filesystem) == 0 && filesystem.f_type != FUSE_SUPER_MAGIC) return told;
  const auto mount = mount_of(descriptor);
  if (!mount) return std::nullopt;
  return mount->user && *mount->user != 0 ? *mount->user : told;
}

}  // namespace stfs
