// Tests which users' journals are believed, and who may read new journals.
#include "core/journal/journal_access.h"

#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "core/journal/journal_file.h"
#include "core/storage/permissions.h"
#include "tests/core/access_list.h"
#include "tests/core/planted_scene.h"
#include "tests/support/catch.h"
#include "tests/support/skip.h"

using namespace stfs;
using namespace stfs::test;

namespace {

constexpr std::uint32_t kUser = 1000;
constexpr std::uint32_t kMember = 1001;
constexpr std::uint32_t kStranger = 1002;
constexpr std::uint32_t kOwnUser = 1003;
constexpr std::uint32_t kGroup = 2000;

FileStatus file_of(std::uint32_t uid, std::uint32_t gid, std::uint32_t mode, std::uint32_t links = 1) {
  FileStatus status = status_of(uid, gid, mode | S_IFREG);
  status.links = links;
  return status;
}

/// A host on which kOwnUser runs this process, and kMember is in kGroup.
class KnownUsers final : private Interceptor, public InterceptedStorage {
 public:
  KnownUsers() : InterceptedStorage(system_storage(), static_cast<Interceptor&>(*this)) {}
  [[nodiscard]] std::uint32_t user() const override { return kOwnUser; }
  [[nodiscard]] Membership membership(std::uint32_t user, std::uint32_t group) const override {
    if (user < kUser || user > kOwnUser) return Membership::Unknown;
    return user == kMember && group == kGroup ? Membership::Member : Membership::NoMember;
  }

 private:
  Verdict before(const SeamCall&) override { return {}; }
};

std::optional<Disbelief> doubt_about(const FileStatus& journal, const FileStatus& archive) {
  return why_not_believed(KnownUsers(), journal, -1, archive);
}

bool is_believed(const FileStatus& journal, const FileStatus& archive) {
  return !doubt_about(journal, archive);
}

}  // namespace

TEST_CASE("a journal is believed where its owner may write the archive", "[core][journal_access]") {
  const FileStatus closed = file_of(kUser, kGroup, 0644);
  // Journals of root, of the archive's owner and of this process's user.
  CHECK(is_believed(file_of(0, 0, 0600), closed));
  CHECK(is_believed(file_of(kUser, 7, 0644), closed));
  CHECK(is_believed(file_of(kOwnUser, 7, 0600), closed));
  CHECK_FALSE(is_believed(file_of(kStranger, 7, 0600), closed));
  CHECK_FALSE(is_believed(file_of(kMember, kGroup, 0600), closed));
  // All users may write the archive.
  CHECK(is_believed(file_of(kStranger, 7, 0666), file_of(kUser, kGroup, 0666)));
  // The group may write the archive. The journal's group proves nothing.
  const FileStatus shared = file_of(kUser, kGroup, 0664);
  CHECK(is_believed(file_of(kMember, kGroup, 0664), shared));
  CHECK(is_believed(file_of(kMember, 7, 0644), shared));
  CHECK_FALSE(is_believed(file_of(kStranger, kGroup, 0664), shared));
  CHECK(doubt_about(file_of(kStranger, kGroup, 0664), shared)->is_of_stranger);
  const auto unknown = doubt_about(file_of(4711, kGroup, 0664), shared);
  REQUIRE(unknown);
  CHECK(
      unknown->why ==
      "belongs to user 4711, who may not write the archive: this host does not know whether that user is in "
      "group 2000");
}

TEST_CASE("a journal is not believed if others than the archive's writers may have written it",
          "[core][journal_access]") {
  const FileStatus closed = file_of(kUser, kGroup, 0644);
  const FileStatus shared = file_of(kUser, kGroup, 0664);
  for (const std::uint32_t owner : {0U, kUser, kOwnUser}) {
    CHECK_FALSE(is_believed(file_of(owner, kGroup, 0666), closed));
    CHECK_FALSE(is_believed(file_of(owner, kGroup, 0664), closed));
    CHECK_FALSE(is_believed(file_of(owner, 7, 0664), shared));
    CHECK(is_believed(file_of(owner, kGroup, 0664), shared));
    CHECK(is_believed(file_of(owner, 7, 0666), file_of(kUser, kGroup, 0666)));
    CHECK_FALSE(doubt_about(file_of(owner, kGroup, 0666), closed)->is_of_stranger);
  }
}

TEST_CASE("a mode that takes rights away blocks a commit of before, and no void journal",
          "[core][journal_access]") {
  const Planted planted;
  REQUIRE(::chmod(planted.journal.c_str(), 0666) == 0);
  REQUIRE(::chmod(planted.scene.path.c_str(), 0644) == 0);
  const JournalReport blocked = planted.scene.recover_one();
  CHECK(blocked.state == JournalState::Unknown);
  CHECK(blocked.blocks_commits);
  CHECK(blocked.explanation.find("its mode 0666") != std::string::npos);
  CHECK(planted.scene.is_untouched());
  SECTION("its owner gives it the archive's mode") {
    REQUIRE(::chmod(planted.journal.c_str(), 0644) == 0);
    CHECK(planted.scene.recover_one().action == JournalAction::Applied);
  }
  SECTION("it holds no commit any more") {
    overwrite(planted.journal, 0, std::string(kBlockBytes, '\0'));
    CHECK(planted.scene.recover_one().action == JournalAction::Removed);
    CHECK(planted.scene.is_untouched());
    CHECK_FALSE(std::filesystem::exists(planted.journal));
  }
}

TEST_CASE("a journal with a second name is not believed, a directory with several links is",
          "[core][journal_access]") {
  const FileStatus closed = file_of(kUser, kGroup, 0644);
  const auto doubt = doubt_about(file_of(kUser, kGroup, 0644, 2), closed);
  REQUIRE(doubt);
  CHECK(doubt->why == "belongs to user 1000, and has 2 names: another user may have linked it there");
  FileStatus directory = status_of(kUser, kGroup, 0755 | S_IFDIR);
  directory.links = 3;
  CHECK(is_believed(directory, closed));
}

TEST_CASE("an access control list lets nobody be believed whom an entry forbids to write",
          "[core][journal_access]") {
  const Scene scene;
  const auto archive = [&] { return strict_status_of(*scene.open()).value(); };
  REQUIRE(::chmod(scene.path.c_str(), 0664) == 0);
  CHECK((archive().mode & 0777U) == 0664);
  const std::string list =
      access_list({{kAclUserObject, 6}, {kAclGroupObject, 4}, {kAclMask, 6}, {kAclOther, 4}});
  if (::setxattr(scene.path.c_str(), "system.posix_acl_access", list.data(), list.size(), 0) != 0) {
    test::note_skip("the file system has no access control lists");
    return;
  }
  // The group bits of the mode show the mask. The group itself may only read.
  CHECK((system_storage().status(scene.path).value().mode & 0777U) == 0664);
  CHECK((archive().mode & 0777U) == 0644);
  const auto made = create_journal_file(system_storage(), scene.path, *scene.open());
  REQUIRE(made);
  CHECK((made->file->status().value().mode & 0777U) == 0644);
}

TEST_CASE("a journal keeps no access control list that its directory gives to new files",
          "[core][journal_access]") {
  const Scene scene;
  REQUIRE(::chmod(scene.path.c_str(), 0664) == 0);
  const std::string list = access_list(
      {{kAclUserObject, 7}, {kAclUser, 7, kStranger}, {kAclGroupObject, 7}, {kAclMask, 7}, {kAclOther, 5}});
  const std::string directory = scene.directory.path();
  if (::setxattr(directory.c_str(), "system.posix_acl_default", list.data(), list.size(), 0) != 0) {
    test::note_skip("the file system has no access control lists");
    return;
  }
  const auto made = create_journal_file(system_storage(), scene.path, *scene.open());
  REQUIRE(made);
  CHECK_FALSE(has_access_list(made->file->descriptor()));
  CHECK_FALSE(why_not_believed(system_storage(), made->file->status().value(), made->file->descriptor(),
                               strict_status_of(*scene.open()).value()));
  // The list is on a file that another program made, so the listed user may have written the file.
  const std::string other = scene.directory.write("other", "");
  REQUIRE(::chmod(other.c_str(), 0664) == 0);
  const auto file = system_storage().open(other, Access::ReadOnly).value();
  CHECK(has_access_list(file->descriptor()));
  CHECK(why_not_believed(system_storage(), file->status().value(), file->descriptor(),
                         strict_status_of(*scene.open()).value()));
}

TEST_CASE("advice about a journal fits the user who gets it", "[core][journal_access]") {
  const FileStatus of_root = status_of(0, 0, 0100600);
  const FileStatus of_user = status_of(1000, 1000, 0100600);
  CHECK(settling_advice(of_root, 2000) == "run `stfs recover` as root");
  CHECK(settling_advice(of_user, 2000) == "run `stfs recover` as user 1000 or root");
  // The advice never names the user who reads it.
  CHECK(settling_advice(of_user, 1000).find("as user 1000") == std::string::npos);
  CHECK(settling_advice(of_root, 0).find("as root") == std::string::npos);
  CHECK(settling_advice(of_user, 0).find("or root") == std::string::npos);
  CHECK(disbelief_advice(of_user.uid).find("root") == std::string::npos);
}

TEST_CASE("a new journal has the archive's mode, group and owner, whatever the umask",
          "[core][journal_access]") {
  const Scene scene;
  const bool is_root = ::geteuid() == 0;
  if (is_root) REQUIRE(::chown(scene.path.c_str(), 12345, 23456) == 0);
  for (const mode_t mode : {0600, 0640, 0660, 0664, 0666, 0444}) {
    REQUIRE(::chmod(scene.path.c_str(), mode) == 0);
    const mode_t umask_before = ::umask(0077);
    const auto made = create_journal_file(system_storage(), scene.path, *scene.open());
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
  const auto made = create_journal_file(storage, scene.path, *scene.open());
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
      CHECK(create_journal_file(storage, scene.path, *scene.open()));
      CHECK_FALSE(is_first);
    }
  }
}
