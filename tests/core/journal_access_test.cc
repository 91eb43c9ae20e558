// Whose journals are believed, and who may read new ones.
#include "core/journal/journal_access.h"

#include <sys/stat.h>
#include <unistd.h>

#include "core/journal/journal_file.h"
#include "tests/core/planted_scene.h"
#include "tests/support/catch.h"
#include "tests/support/skip.h"

using namespace stfs;
using namespace stfs::test;

TEST_CASE("a journal is believed where its owner may write the archive", "[core][journal_access]") {
  constexpr std::uint32_t kUser = 1000;
  constexpr std::uint32_t kOther = 1001;
  constexpr std::uint32_t kGroup = 2000;
  const FileStatus closed = status_of(kUser, kGroup, 0100644);
  const FileStatus plain = status_of(0, 0, 040755);
  // Of root, of the archive's owner, of this process's user.
  CHECK(is_believed(status_of(0, 0, 0), closed, plain, 5));
  CHECK(is_believed(status_of(kUser, 7, 0), closed, plain, 5));
  CHECK(is_believed(status_of(5, 7, 0), closed, plain, 5));
  CHECK_FALSE(is_believed(status_of(kOther, 7, 0), closed, plain, 5));
  CHECK_FALSE(is_believed(status_of(kOther, kGroup, 0), closed, plain, 5));
  // Others may write the archive.
  CHECK(is_believed(status_of(kOther, 7, 0), status_of(kUser, kGroup, 0100666), plain, 5));
  // The group may.
  const FileStatus shared = status_of(kUser, kGroup, 0100664);
  CHECK(is_believed(status_of(kOther, kGroup, 0), shared, plain, 5));
  CHECK_FALSE(is_believed(status_of(kOther, 7, 0), shared, plain, 5));
  // Whether a directory has given the group can't be told where anybody may write to it.
  CHECK(is_believed(status_of(kOther, kGroup, 0), shared, status_of(0, kGroup, 042775), 5));
  CHECK_FALSE(is_believed(status_of(kOther, kGroup, 0), shared, status_of(0, kGroup, 042777), 5));
  CHECK(is_believed(status_of(kOther, kGroup, 0), shared, status_of(0, 3000, 042777), 5));
}

TEST_CASE("advice about a journal fits the user who gets it", "[core][journal_access]") {
  const FileStatus of_root = status_of(0, 0, 0100600);
  const FileStatus of_user = status_of(1000, 1000, 0100600);
  CHECK(settling_advice(of_root, 2000) == "run `stfs recover` as root");
  CHECK(settling_advice(of_user, 2000) == "run `stfs recover` as user 1000 or root");
  // Nobody is told to be who they are.
  CHECK(settling_advice(of_user, 1000).find("as user 1000") == std::string::npos);
  CHECK(settling_advice(of_root, 0).find("as root") == std::string::npos);
  CHECK(settling_advice(of_user, 0).find("or root") == std::string::npos);
  CHECK(disbelief_advice(of_user).find("root") == std::string::npos);
}

TEST_CASE("a new journal has the archive's mode, group and owner, whatever the umask",
          "[core][journal_access]") {
  const Scene scene;
  const bool is_root = ::geteuid() == 0;
  if (is_root) REQUIRE(::chown(scene.path.c_str(), 12345, 23456) == 0);
  for (const mode_t mode : {0600, 0640, 0660, 0664, 0666, 0444}) {
    REQUIRE(::chmod(scene.path.c_str(), mode) == 0);
    const mode_t umask_before = ::umask(0077);
    const auto made = create_journal_file(system_storage(), scene.path);
    ::umask(umask_before);
    REQUIRE(made);
    const FileStatus status = made->file->status().value();
    CHECK((status.mode & 07777U) == (mode | 0600U));
    if (is_root) CHECK(status.uid == 12345);
    if (is_root) CHECK(status.gid == 23456);
  }
}

TEST_CASE("where the group can't be given, it has no more than others", "[core][journal_access]") {
  const Scene scene;
  if (::geteuid() != 0) {
    test::note_skip("needs root, to give an archive a group that others are not in");
    return;
  }
  REQUIRE(::chown(scene.path.c_str(), 12345, 23456) == 0);
  REQUIRE(::chmod(scene.path.c_str(), 0664) == 0);
  WatchedStorage storage(fails(FileCall::SetOwner, EPERM));
  const auto made = create_journal_file(storage, scene.path);
  REQUIRE(made);
  CHECK((made->file->status().value().mode & 07777U) == 0644);
}

TEST_CASE("a new journal that another host removes is made again", "[core][journal_access]") {
  const Scene scene;
  if (::geteuid() == 0) REQUIRE(::chown(scene.path.c_str(), 12345, 23456) == 0);
  REQUIRE(::chmod(scene.path.c_str(), 0666) == 0);
  for (const FileCall call : {FileCall::Lock, FileCall::SetMode}) {
    for (const int errno_value : {ENOENT, ESTALE}) {
      CAPTURE(name_of(call), errno_value);
      bool is_first = true;
      WatchedStorage storage([&](const SeamCall& seen) {
        const bool is_hit = seen.kind == call && std::exchange(is_first, false);
        return is_hit ? Verdict{.kind = Verdict::Kind::Fail, .errno_value = errno_value} : Verdict{};
      });
      CHECK(create_journal_file(storage, scene.path));
      CHECK_FALSE(is_first);
    }
  }
}
