// The source on the command line: it is opened for writing if possible, else read-only, or refused with a
// reason.
#include "fs/mount/source.h"

#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "core/journal/file_lock.h"
#include "tests/fs/driven_filesystem.h"
#include "tests/support/captured_stderr.h"
#include "tests/support/catch.h"
#include "tests/support/plain.h"

using namespace stfs;
using namespace stfs::test;

namespace {

/// A directory with an archive.
struct OneArchive {
  TemporaryDirectory directory;
  std::string path = directory.write("a.safetensors", archive_of(kTwoTensors));
};

/// Acts as a user who owns nothing, if the tests run as root.
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

void check_read_only_for_a_user(const std::string& path) {
  const auto archive = [&] {
    const OrdinaryUser user;
    return open_source(path, {});
  }();
  REQUIRE(archive);
  CHECK(archive->members[0].model->access() == Access::ReadOnly);
}

}  // namespace

TEST_CASE_METHOD(OneArchive, "an archive is opened for writing where that is allowed", "[fs][source]") {
  const auto archive = open_source(path, {});
  REQUIRE(archive);
  CHECK(archive->members[0].model->access() == Access::ReadWrite);
  CHECK(archive->members[0].model->tensors().size() == 2);
}

TEST_CASE_METHOD(OneArchive, "ro opens for reading only", "[fs][source]") {
  const auto archive = open_source(path, {.is_read_only = true});
  REQUIRE(archive);
  CHECK(archive->members[0].model->access() == Access::ReadOnly);
}

TEST_CASE_METHOD(OneArchive, "io decides for each archive whether it is mapped", "[fs][source]") {
  static_cast<void>(directory.write("b.safetensors", archive_of(kTwoTensors)));
  for (const bool is_read_only : {false, true}) {
    for (const Io io : {Io::Mmap, Io::Pread}) {
      const CapturedStderr captured;
      for (const std::string& place : {path, directory.path().string()}) {
        const auto source = open_source(place, {.is_read_only = is_read_only, .io = io});
        REQUIRE(source);
        for (const Source::Member& member : source->members)
          CHECK(member.model->front().bytes().is_mapped() == (io == Io::Mmap));
      }
      CHECK_FALSE(captured.contains("lies on"));
    }
  }
}

TEST_CASE_METHOD(OneArchive, "an archive that may not be written is opened for reading, and the log says why",
                 "[fs][source]") {
  REQUIRE(::chmod(path.c_str(), 0444) == 0);
  REQUIRE(::chmod(directory.path().c_str(), 0755) == 0);
  const CapturedStderr captured;
  check_read_only_for_a_user(path);
  CHECK(captured.contains(path + ": Permission denied: mounted read-only"));
}

TEST_CASE_METHOD(OneArchive, "an archive in a directory that may not be written is opened for reading",
                 "[fs][source]") {
  REQUIRE(::chmod(path.c_str(), 0666) == 0);
  REQUIRE(::chmod(directory.path().c_str(), 0755) == 0);
  const CapturedStderr captured;
  check_read_only_for_a_user(path);
  CHECK(captured.contains(directory.path().string() + ": make a file in it: Permission denied"));
  CHECK(captured.contains("mounted read-only"));
}

TEST_CASE_METHOD(OneArchive, "an archive that may not be read either is refused", "[fs][source]") {
  REQUIRE(::chmod(path.c_str(), 0) == 0);
  REQUIRE(::chmod(directory.path().c_str(), 0755) == 0);
  const OrdinaryUser user;
  const auto archive = open_source(path, {});
  REQUIRE_FALSE(archive);
  CHECK(archive.error().errno_value == EACCES);
}

TEST_CASE("a missing source and one that is no archive say so", "[fs][source]") {
  const TemporaryDirectory directory;
  const auto missing = open_source(directory / "absent.safetensors", {});
  REQUIRE_FALSE(missing);
  CHECK(missing.error().errno_value == ENOENT);
  CHECK(contains(missing.error().message, directory / "absent.safetensors"));
  const auto text = open_source(directory.write("text", "no archive at all, just words"), {});
  REQUIRE_FALSE(text);
  CHECK(text.error().code == ErrorCode::HeaderTooLarge);
  CHECK(contains(text.error().message, directory / "text"));
}

TEST_CASE("a directory without an index shows each of its archives", "[fs][source]") {
  const TemporaryDirectory directory;
  static_cast<void>(directory.write("b.safetensors", archive_of(kTwoTensors)));
  static_cast<void>(directory.write("a.b.safetensors", archive_of(kTwoTensors)));
  static_cast<void>(directory.write("..safetensors", archive_of(kTwoTensors)));  // hidden: no model
  static_cast<void>(directory.write("notes.txt", ""));
  const auto source = open_source(directory.path(), {});
  REQUIRE(source);
  CHECK(source->is_directory_of_models());
  REQUIRE(source->members.size() == 2);
  CHECK(source->members[0].name == "a.b");
  CHECK(source->members[1].name == "b");
  CHECK(source->path == directory.path());
}

TEST_CASE("a bad archive of a directory is left out, with a log line; strict refuses it", "[fs][source]") {
  const TemporaryDirectory directory;
  static_cast<void>(directory.write("b.safetensors", archive_of(kTwoTensors)));
  static_cast<void>(directory.write("bad.safetensors", "words, words, words"));
  const CapturedStderr captured;
  const auto source = open_source(directory.path(), {});
  REQUIRE(source);
  REQUIRE(source->members.size() == 2);
  CHECK(source->members[0].model);
  CHECK(source->members[1].name == "bad");
  CHECK_FALSE(source->members[1].model);
  CHECK(source->members[1].why_absent);
  CHECK(captured.contains(directory / "bad.safetensors"));
  const auto strict = open_source(directory.path(), {.is_strict = true});
  REQUIRE_FALSE(strict);
  CHECK(contains(strict.error().message, directory / "bad.safetensors"));
  std::filesystem::remove(directory / "b.safetensors");
  CHECK(contains(open_source(directory.path(), {}).error().message, "none of its 1 archives"));
}

TEST_CASE("of a directory with too many archives each owner's first ones are mounted", "[fs][source]") {
  const TemporaryDirectory directory;
  const std::string whole = directory.write("whole", archive_of(kTwoTensors));
  std::filesystem::create_directory(directory / "many");
  const auto name = [&](int number) { return directory / fmt::format("many/{:04}.safetensors", number); };
  for (int number = 0; number < 4100; ++number) std::filesystem::create_symlink("nowhere", name(number));
  std::filesystem::remove(name(4099));
  std::filesystem::create_symlink(whole, name(4099));
  // The link of another user is followed, because that user owns the file.
  const bool has_owners = ::geteuid() == 0 && ::chown(whole.c_str(), 12345, 12345) == 0 &&
                          ::lchown(name(4099).c_str(), 12345, 12345) == 0;
  if (!has_owners) std::filesystem::rename(name(4099), name(0));
  const CapturedStderr captured;
  const auto source = open_source(directory / "many", {.is_read_only = true});
  REQUIRE(source);
  CHECK(source->members.size() == 4000);
  CHECK(source->members[has_owners ? 3999 : 0].model != nullptr);
  CHECK(contains(captured.text(), (directory / "many") + ": is a directory of"));
}

TEST_CASE("a directory with an index is that model, and its problems are logged by name", "[fs][source]") {
  const TemporaryDirectory directory;
  static_cast<void>(directory.write("a.safetensors", archive_of(kTwoTensors)));
  const std::string index = directory.write(
      "m.safetensors.index.json",
      R"({"weight_map":{"first":"a.safetensors","second":"a.safetensors","gone":"b.safetensors"}})");
  const CapturedStderr captured;
  const auto source = open_source(directory.path(), {});
  REQUIRE(source);
  CHECK_FALSE(source->is_directory_of_models());
  CHECK(source->path == index);
  CHECK(source->members[0].model->access() == Access::ReadWrite);
  CHECK(captured.contains("b.safetensors"));
  CHECK(captured.contains("1 tensor can't be read (EIO): \"gone\""));
  const auto strict = open_source(directory.path(), {.is_strict = true});
  REQUIRE_FALSE(strict);
  CHECK(contains(strict.error().message, "b.safetensors"));
}

TEST_CASE("of two indexes in a directory both are named", "[fs][source]") {
  const TemporaryDirectory directory;
  static_cast<void>(directory.write("a.safetensors.index.json", ""));
  static_cast<void>(directory.write("b.safetensors.index.json", ""));
  const auto refused = open_source(directory.path(), {});
  REQUIRE_FALSE(refused);
  CHECK(refused.error().errno_value == EINVAL);
  CHECK(contains(refused.error().message, directory / "a.safetensors.index.json"));
  CHECK(contains(refused.error().message, directory / "b.safetensors.index.json"));
}

TEST_CASE("a directory without archives says so", "[fs][source]") {
  const TemporaryDirectory directory;
  const auto refused = open_source(directory.path(), {.is_read_only = true});
  REQUIRE_FALSE(refused);
  CHECK(refused.error().errno_value == ENOENT);
  CHECK(contains(refused.error().message, "is a directory without .safetensors archives"));
}

TEST_CASE("a mount of a directory waits for all its locked archives together, and shows the others",
          "[fs][source]") {
  const TemporaryDirectory directory;
  std::vector<std::unique_ptr<File>> edited;
  for (const char* name : {"a.safetensors", "b.safetensors", "c.safetensors"}) {
    const std::string path = directory.write(name, archive_of(kTwoTensors));
    if (name[0] == 'c') continue;
    edited.push_back(system_storage().open(path, Access::ReadWrite).value());
    REQUIRE(edited.back()->try_lock(kReadersByte, LockKind::Exclusive).value() == std::nullopt);
  }
  constexpr std::chrono::seconds kTogether{1};
  const auto before = std::chrono::steady_clock::now();
  const auto source = open_source(directory.path(), {.wait_until = before + kTogether});
  REQUIRE(source);
  REQUIRE(source->members.size() == 3);
  for (const auto& member : std::span(source->members).first(2))
    CHECK((member.why_absent && member.why_absent->errno_value == EBUSY));
  CHECK(source->members[2].model != nullptr);
  // Each of the two archives alone would need a minute.
  CHECK(std::chrono::steady_clock::now() - before < kEditPatience);
}
