// The kernel's list of mounts, as this process's namespace has it.
#include "core/storage/mount_table.h"

#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <fstream>
#include <map>
#include <sstream>

#include "tests/support/catch.h"
#include "tests/support/temporary_directory.h"

using namespace stfs;
using test::TemporaryDirectory;

TEST_CASE("every mount of this system is found at its path, the uppermost one", "[core][mount_table]") {
  // The test parses the table in another way: by the position of the separator.
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
    if (!mount) continue;  // it was unmounted in between
    CHECK(mount->device == entry.first);
    CHECK(mount->type == entry.second);
  }
}

TEST_CASE("white space in the name of a mount point separates no fields", "[core][mount_table]") {
  const std::string forged = "/m\vrw\v-\vfuse.safetensorsfs\v/etc/FORGED\frw,user_id=0\r,group_id=0";
  const auto mount =
      mount_of_line("36 25 0:32 / " + forged + " rw,nosuid shared:7 - fuse.x a\\040b rw,user_id=1000");
  REQUIRE(mount);
  CHECK(mount->id == "36");
  CHECK(mount->device == "0:32");
  CHECK(mount->path == forged);
  CHECK(mount->flags == "rw,nosuid");
  CHECK(mount->type == "fuse.x");
  CHECK(mount->source == "a b");
  CHECK(mount->user() == 1000U);
}

TEST_CASE("a line of mountinfo may have any number of tags and an empty source", "[core][mount_table]") {
  const auto mount = mount_of_line("1 2 0:3 / /m rw a:1 b:2 - tmpfs  rw");
  REQUIRE(mount);
  CHECK(mount->type == "tmpfs");
  CHECK(mount->source.empty());
  CHECK(mount->options == "rw");
  CHECK(mount_of_line("1 2 0:3 / /m rw - tmpfs none rw")->source == "none");
  for (const char* line :
       {"", "1 2 0:3 / /m rw", "1 2 0:3 / /m rw - tmpfs none", "1 2 0:3 / /m - tmpfs none rw x"}) {
    CAPTURE(line);
    CHECK_FALSE(mount_of_line(line));
  }
}

TEST_CASE("the mount at /proc is proc's", "[core][mount_table]") {
  const auto mount = mounted_at("/proc");
  REQUIRE(mount);
  CHECK(mount->type == "proc");
  struct stat st {};
  REQUIRE(::stat("/proc", &st) == 0);
  CHECK(mount->device == std::to_string(major(st.st_dev)) + ":" + std::to_string(minor(st.st_dev)));
}

TEST_CASE("a directory below a mount is not a mount", "[core][mount_table]") {
  const TemporaryDirectory directory;
  CHECK_FALSE(mounted_at(directory.path()));
  CHECK_FALSE(mounted_at("/proc/self"));
  CHECK_FALSE(mounted_at("/proc/"));
  CHECK_FALSE(mounted_at(""));
}

TEST_CASE("the user of a FUSE mount is known from its options", "[core][mount_table]") {
  const auto user_of = [](const std::string& options) { return MountEntry{.options = options}.user(); };
  CHECK(user_of("rw,user_id=1000,group_id=7,default_permissions") == 1000U);
  CHECK(user_of("rw,user_id=0") == 0U);
  CHECK_FALSE(user_of("rw,group_id=7"));
  CHECK_FALSE(user_of("rw,my_user_id=5"));
  CHECK_FALSE(user_of("rw,user_id=x,group_id=7"));
  CHECK_FALSE(user_of("rw,user_id="));
}
