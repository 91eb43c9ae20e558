// What is named on the command line: opened as well as it can be, or refused with a reason.
#include "fs/source.h"

#include <sys/stat.h>
#include <unistd.h>

#include "tests/fs/driven_filesystem.h"
#include "tests/support/captured_stderr.h"
#include "tests/support/catch.h"

using namespace stfs;
using namespace stfs::test;

namespace {

bool holds(const std::string& text, std::string_view part) {
  return text.find(part) != std::string::npos;
}

/// Acts as a user who owns nothing, where the tests run as root.
class OrdinaryUser {
 public:
  OrdinaryUser() {
    constexpr uid_t kNobody = 65534;
    if (before_ == 0 && ::seteuid(kNobody) != 0) throw std::runtime_error("seteuid");
  }
  ~OrdinaryUser() {
    if (before_ == 0 && ::seteuid(before_) != 0) std::abort();
  }
  OrdinaryUser(const OrdinaryUser&) = delete;
  OrdinaryUser& operator=(const OrdinaryUser&) = delete;

 private:
  uid_t before_ = ::geteuid();
};

}  // namespace

TEST_CASE("an archive is opened for writing where that is allowed", "[fs][source]") {
  const TemporaryDirectory directory;
  const std::string path = directory.write("a.safetensors", archive_of(kTwoTensors));
  const auto archive = open_source(path, false);
  REQUIRE(archive);
  CHECK((*archive)->access() == Access::ReadWrite);
  CHECK((*archive)->tensors().size() == 2);
}

TEST_CASE("ro opens for reading only", "[fs][source]") {
  const TemporaryDirectory directory;
  const std::string path = directory.write("a.safetensors", archive_of(kTwoTensors));
  const auto archive = open_source(path, true);
  REQUIRE(archive);
  CHECK((*archive)->access() == Access::ReadOnly);
}

TEST_CASE("an archive that may not be written is opened for reading, and the log says why", "[fs][source]") {
  const TemporaryDirectory directory;
  const std::string path = directory.write("a.safetensors", archive_of(kTwoTensors));
  REQUIRE(::chmod(path.c_str(), 0444) == 0);
  REQUIRE(::chmod(directory.path().c_str(), 0755) == 0);
  const CapturedStderr captured;
  const auto archive = [&] {
    const OrdinaryUser user;
    return open_source(path, false);
  }();
  REQUIRE(archive);
  CHECK((*archive)->access() == Access::ReadOnly);
  CHECK(captured.contains(path + ": Permission denied: mounted read-only"));
}

TEST_CASE("an archive that may not be read either is refused", "[fs][source]") {
  const TemporaryDirectory directory;
  const std::string path = directory.write("a.safetensors", archive_of(kTwoTensors));
  REQUIRE(::chmod(path.c_str(), 0) == 0);
  REQUIRE(::chmod(directory.path().c_str(), 0755) == 0);
  const OrdinaryUser user;
  const auto archive = open_source(path, false);
  REQUIRE_FALSE(archive);
  CHECK(archive.error().errno_value == EACCES);
}

TEST_CASE("a missing source and one that is no archive say so", "[fs][source]") {
  const TemporaryDirectory directory;
  const auto missing = open_source(directory / "absent.safetensors", false);
  REQUIRE_FALSE(missing);
  CHECK(missing.error().errno_value == ENOENT);
  CHECK(holds(missing.error().message, directory / "absent.safetensors"));
  const auto text = open_source(directory.write("text", "no archive at all, just words"), false);
  REQUIRE_FALSE(text);
  CHECK(text.error().code == ErrorCode::HeaderTooLarge);
  CHECK(holds(text.error().message, directory / "text"));
}

TEST_CASE("a directory is refused with the archives that it holds", "[fs][source]") {
  const TemporaryDirectory directory;
  static_cast<void>(directory.write("b.safetensors", ""));
  static_cast<void>(directory.write("a.safetensors", ""));
  static_cast<void>(directory.write("notes.txt", ""));
  const auto refused = open_source(directory.path(), false);
  REQUIRE_FALSE(refused);
  CHECK(refused.error().errno_value == EISDIR);
  CHECK(holds(refused.error().message,
              "one of its 2:\n  " + (directory / "a.safetensors") + "\n  " + (directory / "b.safetensors")));
  CHECK_FALSE(holds(refused.error().message, "notes.txt"));
  CHECK_FALSE(holds(refused.error().message, "more"));
}

TEST_CASE("of many archives the first five are named", "[fs][source]") {
  const TemporaryDirectory directory;
  for (int at = 0; at < 7; ++at) static_cast<void>(directory.write(fmt::format("{}.safetensors", at), ""));
  const std::string message = open_source(directory.path(), false).error().message;
  CHECK(holds(message, directory / "4.safetensors"));
  CHECK_FALSE(holds(message, directory / "5.safetensors"));
  CHECK(holds(message, "... and 2 more"));
}

TEST_CASE("a directory without archives says so", "[fs][source]") {
  const TemporaryDirectory directory;
  const auto refused = open_source(directory.path(), true);
  REQUIRE_FALSE(refused);
  CHECK(refused.error().errno_value == ENOENT);
  CHECK(holds(refused.error().message, "is a directory without .safetensors archives"));
}
