// Tests whether a mount can be made on a directory: each reason against it has a different message. Nothing
// is mounted here. tests/mount tests a mount that is there already.
#include "fs/mount/mount_point.h"

#include <fstream>

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
  // If the setting does not exist, the function does nothing.
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
