// Reads the links, descriptors and maps of each process in /proc.
#include "tools/target/mount_users.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <sstream>
#include <string>
#include <string_view>
#include <system_error>

#include "core/base/deadline.h"
#include "core/storage/other_processes.h"
#include "tools/target/question.h"

namespace stfs::tools {
namespace {

namespace fs = std::filesystem;

/// A link of /proc gives the path without a request to the mount.
bool leads_into(const fs::path& link, const std::string& mount_point) {
  std::error_code failed;
  const std::string target = fs::read_symlink(link, failed).native();
  return !failed && (target == mount_point || target.starts_with(mount_point + "/"));
}

std::uint64_t device_of(const MountEntry& mount) {
  std::uint64_t major = 0;
  std::uint64_t minor = 0;
  char colon = 0;
  std::istringstream(mount.device) >> major >> colon >> minor;
  return major << 32U | minor;
}

bool has_open(pid_t process, const MountEntry& mount) {
  const std::string wanted = "mnt_id:\t" + mount.id;
  return any_descriptor(process, [&](const std::string& descriptor, const KnownFile& file) {
    if (file.device != device_of(mount)) return false;
    std::ifstream lines(fmt::format("/proc/{}/fdinfo/{}", process, descriptor));
    for (std::string line; std::getline(lines, line);)
      if (line == wanted) return true;
    return false;
  });
}

/// May wait for ever (other_processes.h).
bool has_mapped(pid_t process, const MountEntry& mount) {
  const std::uint64_t device = device_of(mount);
  const std::string wanted = fmt::format(" {:02x}:{:02x} ", device >> 32U, device & 0xffffffffU);
  std::ifstream lines(fmt::format("/proc/{}/maps", process));
  for (std::string line; std::getline(lines, line);)
    if (line.substr(0, line.find('/')).find(wanted) != line.npos) return true;
  return false;
}

bool uses(pid_t process, const MountEntry& mount) {
  const auto leads = [&](const char* link) {
    return leads_into(fmt::format("/proc/{}/{}", process, link), mount.path.native());
  };
  return leads("cwd") || leads("root") || leads("exe") || has_open(process, mount);
}

/// Returns the processes that pass a test, except this one. Asks in a child process, because a process may
/// not answer, and because a user can hold a listing of /proc up. Then it returns nothing.
std::vector<pid_t> processes_that(const std::function<bool(pid_t)>& passes) {
  constexpr std::chrono::seconds kPatience{1};
  Question question([&passes, own = ::getpid()] {
    std::string found;
    any_process([&](pid_t process) {
      if (process != own && process != ::getpid() && passes(process)) found += fmt::format("{} ", process);
      return false;
    });
    return found;
  });
  std::istringstream words(question.answer_by(deadline_in(kPatience)).value_or(""));
  std::vector<pid_t> found;
  for (pid_t process = 0; words >> process;) found.push_back(process);
  return found;
}

}  // namespace

std::vector<pid_t> users_of(const MountEntry& mount) {
  std::vector<pid_t> users = processes_that([&](pid_t process) { return uses(process, mount); });
  std::ranges::copy(processes_that([&](pid_t process) { return has_mapped(process, mount); }),
                    std::back_inserter(users));
  std::ranges::sort(users);
  users.erase(std::ranges::unique(users).begin(), users.end());
  return users;
}

}  // namespace stfs::tools
