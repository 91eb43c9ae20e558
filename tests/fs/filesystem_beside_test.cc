// Two mounts of one archive: each follows the other's edit before its next commit, without its watcher.
#include <linux/fs.h>

#include <chrono>

#include "tests/fs/edited.h"
#include "tests/support/captured_stderr.h"

using namespace stfs;
using namespace stfs::test;

namespace {

MountedModelOptions impatient() {
  MountedModelOptions options;
  options.commit.lock_patience = std::chrono::milliseconds(50);
  return options;
}

/// Another mount of the same archive.
struct Beside {
  explicit Beside(const DrivenFilesystem& mount)
      : filesystem(Archive::open(mount.path(), Access::ReadWrite).value(), {}) {}
  [[nodiscard]] Ino ino(std::string_view name) const {
    return filesystem.lookup(kRootIno, name).value().st_ino;
  }
  MountedModel filesystem;
};

/// The header has room. So no edit needs to move tensors, which other mounts would prevent.
struct RoomyMount : DrivenFilesystem {
  RoomyMount() : DrivenFilesystem(kThree) { make_room(*this); }
};

struct TwoMounts {
  RoomyMount mount;
  Beside other{mount};
  CapturedStderr captured;
};

/// Writes a tensor as a program does. Its close comes later.
class Writer {
 public:
  Writer(MountedModel& filesystem, Ino ino, std::string_view bytes)
      : filesystem_(filesystem), file_(filesystem.open(ino, O_WRONLY, ::getpid()).value()) {
    REQUIRE(filesystem_.write(*file_, bytes_of(bytes), 0, Caller(1, ::getpid())));
  }
  int close() {
    const int verdict = errno_of(filesystem_.flush(*file_, 1, ::getpid()));
    filesystem_.release(file_);
    return verdict;
  }

 private:
  MountedModel& filesystem_;
  OpenFile* file_;
};

int set_metadata(MountedModel& filesystem, const std::string& value) {
  return errno_of(filesystem.set_extended_attribute(kRootIno, "user.safetensors.metadata.k", value));
}

int retype(MountedModel& filesystem, Ino ino, const std::string& dtype) {
  return errno_of(filesystem.set_extended_attribute(ino, "user.safetensors.dtype", dtype));
}

}  // namespace

TEST_CASE_METHOD(TwoMounts, "a commit and edits follow an edit of another mount", "[fs][edit][beside]") {
  Writer writer(*mount, mount.ino("first"), kNew);
  const Ino third = mount.ino("third");
  REQUIRE(other.filesystem.remove_file(kRootIno, "second"));
  CHECK(writer.close() == 0);
  CHECK(mount.ino("third") == third);
  CHECK(list(mount) == Names{"first", "third"});

  CHECK(set_metadata(other.filesystem, "v") == 0);
  REQUIRE(mount->rename(kRootIno, "third", kRootIno, "renamed"));
  CHECK(mount.ino("renamed") == third);

  CHECK(retype(other.filesystem, other.ino("first"), "I8") == 0);
  CHECK(set_metadata(*mount, "w") == 0);
  REQUIRE(other.filesystem.rename(kRootIno, "renamed", kRootIno, "again"));
  REQUIRE(mount->remove_file(kRootIno, "first"));
  CHECK(set_metadata(other.filesystem, "x") == 0);
  CHECK(list(mount) == Names{"again"});
  CHECK(mount.read("again") == kThird);
  CHECK(stored_tensors(mount).at("again") == kThird);
}

TEST_CASE_METHOD(TwoMounts, "a name that another mount has changed is looked up again",
                 "[fs][edit][beside]") {
  REQUIRE(other.filesystem.rename(kRootIno, "first", kRootIno, "other"));
  REQUIRE(other.filesystem.rename(kRootIno, "second", kRootIno, "first"));
  REQUIRE(mount->remove_file(kRootIno, "first"));
  CHECK(list(mount) == Names{"other", "third"});
  REQUIRE(other.filesystem.rename(kRootIno, "third", kRootIno, "target"));
  REQUIRE(mount->rename(kRootIno, "other", kRootIno, "target"));
  CHECK(list(mount) == Names{"target"});
  CHECK(mount.read("target") == kOld);
  CHECK(errno_of(mount->rename(kRootIno, "other", kRootIno, "x")) == ENOENT);
  REQUIRE(other.filesystem.rename(kRootIno, "target", kRootIno, "x"));
  CHECK(errno_of(mount->remove_file(kRootIno, "target")) == ENOENT);
}

TEST_CASE_METHOD(TwoMounts, "a tensor is not exchanged with one that another mount has renamed",
                 "[fs][edit][beside]") {
  REQUIRE(other.filesystem.rename(kRootIno, "second", kRootIno, "x"));
  CHECK(errno_of(mount->rename(kRootIno, "first", kRootIno, "second", RENAME_EXCHANGE)) == ENOENT);
  CHECK(list(mount) == Names{"first", "x", "third"});
  CHECK(mount.read("first") == kOld);
  CHECK(mount.read("x") == kSecond);
}

TEST_CASE_METHOD(TwoMounts, "bytes for a tensor that another mount has deleted or retyped are refused",
                 "[fs][edit][beside]") {
  Writer deleted(*mount, mount.ino("first"), kNew);
  Writer retyped(*mount, mount.ino("second"), kNew);
  REQUIRE(other.filesystem.remove_file(kRootIno, "first"));
  CHECK(retype(other.filesystem, other.ino("second"), "I8") == 0);
  CHECK(deleted.close() == ESTALE);
  CHECK(captured.contains("tensor \"first\": was deleted since its new bytes were written"));
  CHECK(retyped.close() == ESTALE);
  CHECK(captured.contains("another program has given it another dtype or shape, I8 [16]"));
  CHECK(mount.read("second") == kSecond);
}

TEST_CASE_METHOD(TwoMounts, "bytes for a tensor that another mount has made again go to its new place",
                 "[fs][edit][beside]") {
  const std::uint64_t old_place = std::stoull(mount.attribute("first", "offset").value());
  Writer writer(*mount, mount.ino("first"), kNew);
  REQUIRE(other.filesystem.remove_file(kRootIno, "first"));
  auto made = other.filesystem.create(kRootIno, "first", O_WRONLY, ::getpid()).value();
  REQUIRE(other.filesystem.write(*made.file, bytes_of(kSecond), 0, Caller(1, ::getpid())));
  REQUIRE(other.filesystem.flush(*made.file, 1, ::getpid()));
  other.filesystem.release(made.file);
  CHECK(writer.close() == 0);
  CHECK(mount.read("first") == kNew);
  CHECK(stored_tensors(mount).at("first") == kNew);
  CHECK(content_of(mount.path()).substr(old_place, kOld.size()) == kOld);
}

TEST_CASE_METHOD(TwoMounts,
                 "who wants to make a file opens none that is there: nobody has checked the rights to it",
                 "[fs][edit][beside]") {
  CHECK(errno_of(mount->create(kRootIno, "first", O_RDWR, ::getpid())) == ESTALE);
  CHECK(errno_of(mount->create(kRootIno, "first", O_RDWR | O_EXCL, ::getpid())) == EEXIST);
  CHECK(errno_of(mount->create(mount.ino(".safetensors"), "archive.safetensors", O_WRONLY, ::getpid())) ==
        ESTALE);
}

TEST_CASE_METHOD(TwoMounts,
                 "a transaction commits after an edit of another mount, unless its tensor was retyped",
                 "[fs][edit][beside]") {
  const Ino transactions = mount.ino("transactions", mount.ino(".safetensors"));
  const Ino committed = mount.ino("committed", mount.ino(".safetensors"));
  for (const std::string name : {"one", "two"}) {
    const Ino directory = mount->make_directory(transactions, name).value().st_ino;
    WrittenFile file(mount, "first", directory);
    CHECK(file.write(kNew) == 0);
    CHECK(file.close() == 0);
  }
  CHECK(set_metadata(other.filesystem, "v") == 0);
  REQUIRE(mount->rename(transactions, "one", committed, "one"));
  CHECK(mount.read("first") == kNew);
  CHECK(retype(other.filesystem, other.ino("first"), "I8") == 0);
  CHECK(errno_of(mount->rename(transactions, "two", committed, "two")) == ESTALE);
}

TEST_CASE_METHOD(TwoMounts,
                 "a form that was set while a file was open stays with the tensor that another mount renames",
                 "[fs][edit][beside]") {
  OpenFile* const file = mount->open(mount.ino("first"), O_WRONLY, ::getpid()).value();
  CHECK(retype(*mount, mount.ino("first"), "I8") == 0);
  REQUIRE(other.filesystem.rename(kRootIno, "first", kRootIno, "renamed"));
  REQUIRE(other.filesystem.rename(kRootIno, "second", kRootIno, "first"));
  REQUIRE(mount->flush(*file, 1, ::getpid()));
  mount->release(file);
  mount->check_for_change();
  CHECK(form_of(mount, "renamed") == "I8[16]");
  CHECK(form_of(mount, "first") == "U8[16]");
}

TEST_CASE_METHOD(TwoMounts, "a NumPy file of another shape replaces the tensor that another mount renames",
                 "[fs][edit][beside]") {
  const Ino npy = mount.ino("first.npy", mount.ino("npy", mount.ino(".safetensors")));
  OpenFile* const file = mount->open(npy, O_WRONLY, ::getpid()).value();
  REQUIRE(mount->resize_by_name(npy, 0, ::getpid()));
  REQUIRE(mount->set_extended_attribute(npy, "user.safetensors.shape", "[3]"));
  REQUIRE(mount->write(*file, bytes_of(npy_of("<i2", "(3,)", "abcdef")), 0, Caller(1, ::getpid())));
  REQUIRE(other.filesystem.rename(kRootIno, "first", kRootIno, "renamed"));
  CHECK(errno_of(mount->flush(*file, 1, ::getpid())) == 0);
  mount->release(file);
  CHECK(list(mount) == Names{"second", "third", "renamed"});
  CHECK(form_of(mount, "renamed") == "I16[3]");
  CHECK(mount.read("renamed") == "abcdef");
}

TEST_CASE_METHOD(TwoMounts, "a look follows an edit of another mount", "[fs][edit][beside]") {
  REQUIRE(other.filesystem.rename(kRootIno, "first", kRootIno, "renamed"));
  const auto change = mount->check_for_change();
  CHECK_FALSE(change.is_outdated);
  CHECK(change.stale.what == Stale::What::Content);
  CHECK(list(mount) == Names{"renamed", "second", "third"});
  CHECK(mount->check_for_change().stale.what == Stale::What::Nothing);
}

TEST_CASE("an edit takes the bytes of a deleted tensor that no program has open", "[fs][edit]") {
  const DrivenFilesystem mount(kThree);
  make_room(mount);
  const auto waiting = mount->pin();  // a request that has begun before the deletion
  REQUIRE(mount->remove_file(kRootIno, "first"));
  CHECK(set_metadata(*mount, std::string(100'000, 'm')) == 0);
  CHECK(mount.read("second") == kSecond);
  CHECK(mount.read("third") == kThird);
}

TEST_CASE("an edit waits for a deleted tensor that a program has open, and says so", "[fs][edit]") {
  const DrivenFilesystem mount(kThree, impatient());
  make_room(mount);
  const Ino first = mount.ino("first");
  mount->note_lookup(first);
  REQUIRE(mount->remove_file(kRootIno, "first"));
  const auto refused =
      mount->set_extended_attribute(kRootIno, "user.safetensors.metadata.k", std::string(100'000, 'm'));
  CHECK(errno_of(refused) == EBUSY);
  CHECK(refused.error().message.find("a program still has a deleted tensor open") != std::string::npos);
  CHECK(read_ino(mount, first) == kOld);
  mount->forget(first, 1);
  CHECK(set_metadata(*mount, std::string(100'000, 'm')) == 0);
  CHECK(errno_of(mount->read(first, 0, 16)) != 0);
}

TEST_CASE("an edit of an archive with two names says that, also after a deletion", "[fs][edit]") {
  const DrivenFilesystem mount(kThree, impatient());
  make_room(mount);
  REQUIRE(mount->remove_file(kRootIno, "first"));
  mount->tidy();
  std::filesystem::create_hard_link(mount.path(), mount.path() + ".link");
  mount->tidy();
  const auto refused =
      mount->set_extended_attribute(kRootIno, "user.safetensors.metadata.k", std::string(100'000, 'm'));
  CHECK(errno_of(refused) == EMLINK);
  std::filesystem::remove(mount.path() + ".link");
  CHECK(set_metadata(*mount, std::string(100'000, 'm')) == 0);
}
