// Is a directory fit to be mounted on: each reason why not has its own message. Nothing is mounted here;
// a mount in the way is the business of tests/mount.
#include "fs/mount/mount_point.h"

#include <sys/stat.h>
#include <sys/sysmacros.h>

#include <fstream>
#include <map>
#include <sstream>

#include "tests/support/catch.h"
#include "tests/support/plain.h"
#include "tests/support/temporary_directory.h"

using namespace stfs;
using stfs::test::contains;
using stfs::test::TemporaryDirectory;

namespace {

std::string message_of(const Result<MountPoint>& result) {
  return result ? "" : result.error().message;
}

}  // namespace

TEST_CASE("an empty directory may be mounted on", "[fs][mount_point]") {
  const TemporaryDirectory directory;
  const auto checked = check_mount_point(directory.path(), false);
  REQUIRE(checked);
  CHECK(checked->path == std::filesystem::canonical(directory.path()));
}

TEST_CASE("a mount point is given back absolute, its links resolved", "[fs][mount_point]") {
  const TemporaryDirectory directory;
  std::filesystem::create_directory(directory / "real");
  std::filesystem::create_directory_symlink("real", directory / "link");
  const auto real = std::filesystem::canonical(directory / "real");
  CHECK(check_mount_point(directory / "link", false)->path == real);
  CHECK(check_mount_point(directory / "real/../link/.", false)->path == real);
  const auto before = std::filesystem::current_path();
  std::filesystem::current_path(directory.path());
  const auto relative = check_mount_point("link", false);
  std::filesystem::current_path(before);
  CHECK(relative->path == real);
}

TEST_CASE("a mount point that does not exist says how to create it", "[fs][mount_point]") {
  const TemporaryDirectory directory;
  const auto checked = check_mount_point(directory / "absent", false);
  REQUIRE_FALSE(checked);
  CHECK(checked.error().errno_value == ENOENT);
  CHECK(contains(message_of(checked), directory / "absent"));
  CHECK(contains(message_of(checked), "mkdir -p"));
}

TEST_CASE("a file is no mount point", "[fs][mount_point]") {
  const TemporaryDirectory directory;
  const std::string file = directory.write("file", "x");
  const auto checked = check_mount_point(file, false);
  REQUIRE_FALSE(checked);
  CHECK(checked.error().errno_value == ENOTDIR);
  CHECK(contains(message_of(checked), file + ": the mount point is not a directory"));
  CHECK_FALSE(check_mount_point(file, true));
  CHECK_FALSE(check_mount_point(file + "/below", true));
}

TEST_CASE("a link that leads nowhere is no mount point", "[fs][mount_point]") {
  const TemporaryDirectory directory;
  std::filesystem::create_symlink("absent", directory / "dangling");
  std::filesystem::create_symlink("loop", directory / "loop");
  CHECK_FALSE(check_mount_point(directory / "dangling", false));
  const auto loop = check_mount_point(directory / "loop", false);
  REQUIRE_FALSE(loop);
  CHECK(loop.error().errno_value == ELOOP);
}

TEST_CASE("a directory that holds files is refused unless nonempty says so", "[fs][mount_point]") {
  const TemporaryDirectory directory;
  static_cast<void>(directory.write(".hidden", ""));
  const auto checked = check_mount_point(directory.path(), false);
  REQUIRE_FALSE(checked);
  CHECK(checked.error().errno_value == ENOTEMPTY);
  CHECK(contains(message_of(checked), "nonempty"));
  CHECK(check_mount_point(directory.path(), true));
}

TEST_CASE("every mount of this system is found at its path, the uppermost one", "[fs][mount_point]") {
  // Read anew, by position of the separator instead of by word.
  std::ifstream table("/proc/self/mountinfo");
  std::map<std::string, std::pair<std::string, std::string>> uppermost;
  for (std::string line; std::getline(table, line);) {
    std::istringstream words(line);
    std::string id, parent, device, root, at;
    words >> id >> parent >> device >> root >> at;
    if (at.find('\\') != std::string::npos) continue;
    const std::string after = line.substr(line.find(" - ") + 3);
    uppermost[at] = {device, after.substr(0, after.find(' '))};
  }
  REQUIRE_FALSE(uppermost.empty());
  for (const auto& [at, entry] : uppermost) {
    const auto mount = mounted_at(at);
    CAPTURE(at);
    if (!mount) continue;  // unmounted by somebody in between
    CHECK(mount->device == entry.first);
    CHECK(mount->type == entry.second);
  }
}

TEST_CASE("the mount at /proc is proc's", "[fs][mount_point]") {
  const auto mount = mounted_at("/proc");
  REQUIRE(mount);
  CHECK(mount->type == "proc");
  struct stat st {};
  REQUIRE(::stat("/proc", &st) == 0);
  CHECK(mount->device == std::to_string(major(st.st_dev)) + ":" + std::to_string(minor(st.st_dev)));
}

TEST_CASE("a directory below a mount is not a mount", "[fs][mount_point]") {
  const TemporaryDirectory directory;
  CHECK_FALSE(mounted_at(directory.path()));
  CHECK_FALSE(mounted_at("/proc/self"));
  CHECK_FALSE(mounted_at("/proc/"));
  CHECK_FALSE(mounted_at(""));
}

TEST_CASE("read-ahead is raised for a device of ours and nothing else", "[fs][mount_point]") {
  const TemporaryDirectory directory;
  const std::filesystem::path setting = directory.path() / "0:77" / "read_ahead_kb";
  std::filesystem::create_directories(setting.parent_path());
  const auto set = [&](const std::string& device) {
    std::ofstream(setting) << "128";
    raise_readahead(device, directory.path());
    std::string text;
    std::ifstream(setting) >> text;
    return text;
  };
  CHECK(set("0:78") == "128");
  CHECK(set("0:77") == "1024");
  // Where the setting is not ours to make, nothing comes of it.
  std::filesystem::remove_all(setting.parent_path());
  raise_readahead("0:77", directory.path());
  CHECK_FALSE(std::filesystem::exists(setting.parent_path()));
}

TEST_CASE("a mount point is the directory that was checked, whatever its path leads to later",
          "[fs][mount_point]") {
  const TemporaryDirectory directory;
  std::filesystem::create_directory(directory / "checked");
  const auto point = check_mount_point(directory / "checked", false);
  REQUIRE(point);
  const auto moved = std::filesystem::canonical(directory.path()) / "moved";
  std::filesystem::rename(directory / "checked", moved);
  directory.write("in the way", "");
  std::filesystem::create_directory_symlink("/", directory / "checked");
  CHECK(present_path(point->directory) == moved);
  CHECK(std::filesystem::equivalent(path_of_descriptor(point->directory), moved));
}
