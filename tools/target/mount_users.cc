// Reads the links, descriptors and maps of each process in /proc.
#include "tools/target/mount_users.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <string_view>
#include <system_error>

namespace stfs::tools {
namespace {

namespace fs = std::filesystem;

/// Calls `visit` with each entry until it returns true. @return whether it did.
template <class Visit>
bool any_entry(const fs::path& directory, Visit visit) {
  std::error_code failed;
  for (fs::directory_iterator entry(directory, failed), end; !failed && entry != end;
       entry.increment(failed)) {
    if (visit(entry->path())) return true;
  }
  return false;
}

/// A link of /proc gives the path without a request to the mount.
bool leads_into(const fs::path& link, const std::string& mount_point) {
  std::error_code failed;
  const std::string target = fs::read_symlink(link, failed).native();
  return !failed && (target == mount_point || target.starts_with(mount_point + "/"));
}

bool has_open(const fs::path& process, const MountEntry& mount) {
  const std::string wanted = "mnt_id:\t" + mount.id;
  return any_entry(process / "fdinfo", [&](const fs::path& descriptor) {
    std::ifstream lines(descriptor);
    for (std::string line; std::getline(lines, line);)
      if (line == wanted) return true;
    return false;
  });
}

/// The number of the file system: "MAJOR:MINOR" is decimal in mountinfo, and hexadecimal in maps.
std::string device_in_maps(const std::string& device) {
  unsigned major = 0;
  unsigned minor = 0;
  char colon = 0;
  std::istringstream(device) >> major >> colon >> minor;
  return fmt::format(" {:02x}:{:02x} ", major, minor);
}

bool has_mapped(const fs::path& process, const MountEntry& mount) {
  const std::string wanted = device_in_maps(mount.device);
  std::ifstream lines(process / "maps");
  for (std::string line; std::getline(lines, line);)
    if (line.substr(0, line.find('/')).find(wanted) != line.npos) return true;
  return false;
}

bool uses(const fs::path& process, const MountEntry& mount) {
  const auto leads = [&](const char* link) { return leads_into(process / link, mount.path.native()); };
  return leads("cwd") || leads("root") || leads("exe") || has_open(process, mount) ||
         has_mapped(process, mount);
}

}  // namespace

std::vector<pid_t> users_of(const MountEntry& mount) {
  std::vector<pid_t> users;
  any_entry("/proc", [&](const fs::path& process) {
    const std::string name = process.filename().string();
    pid_t pid = 0;
    const auto [end, failed] = std::from_chars(name.data(), name.data() + name.size(), pid);
    const bool is_process = failed == std::errc() && end == name.data() + name.size();
    if (is_process && pid != ::getpid() && uses(process, mount)) users.push_back(pid);
    return false;
  });
  std::ranges::sort(users);
  return users;
}

}  // namespace stfs::tools
