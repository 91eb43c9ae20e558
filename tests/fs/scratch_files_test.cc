// Files that programs make among the tensors are scratch files until they have a form.
#include <fmt/format.h>
#include <linux/fs.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <set>

#include "core/model/scratch_directory.h"
#include "tests/fs/edited.h"
#include "tests/fs/transacted.h"
#include "tests/support/captured_stderr.h"
#include "tests/support/catch.h"

using namespace stfs;
using namespace stfs::test;

namespace {

std::filesystem::path scratch_of(const DrivenFilesystem& mount) {
  return ScratchDirectory::path_of(mount.path());
}

void make(const DrivenFilesystem& mount, std::string_view name, std::string_view bytes) {
  WrittenFile file(mount, name);
  if (!bytes.empty()) REQUIRE(file.write(bytes) == 0);
  REQUIRE(file.close() == 0);
}

int set(const DrivenFilesystem& mount, std::string_view name, std::string_view key,
        const std::string& value) {
  return errno_of(
      mount->set_extended_attribute(mount.ino(name), "user.safetensors." + std::string(key), value));
}

/// A mount of kThree, in which "first" is F32 [2,2].
struct ScratchMount {
  ScratchMount() {
    REQUIRE(set(mount, "first", "dtype", "F32") == 0);
    REQUIRE(set(mount, "first", "shape", "[2,2]") == 0);
  }
  CapturedStderr captured;
  DrivenFilesystem mount{kThree};
};

}  // namespace

TEST_CASE_METHOD(ScratchMount, "a new file is seen and read, is no tensor, and survives the mount",
                 "[fs][scratch]") {
  const std::string before = content_of(mount.path());
  make(mount, "wieght", "typo");
  CHECK(content_of(mount.path()) == before);
  CHECK(list(mount) == Names{"first", "second", "third", "wieght"});
  CHECK(mount.read("wieght") == "typo");
  CHECK(mount->lookup(kRootIno, "wieght")->st_size == 4);
  CHECK(content_of((scratch_of(mount) / "wieght").string()) == "typo");
  CHECK(captured.contains("\"wieght\" is a scratch file"));
  mount->end();
  mount.close();
  mount.open();
  CHECK(captured.contains("scratch files, which are no tensors: \"wieght\""));
  CHECK(mount.read("wieght") == "typo");
  REQUIRE(mount->remove_file(kRootIno, "wieght"));
  CHECK(errno_of(mount->lookup(kRootIno, "wieght")) == ENOENT);
  CHECK_FALSE(std::filesystem::exists(scratch_of(mount)));
}

TEST_CASE_METHOD(ScratchMount, "two mounts show the same scratch files", "[fs][scratch]") {
  const MountedModel other(Archive::open(mount.path(), Access::ReadWrite).value(), {});
  make(mount, "x.lock", "1");
  const auto there = other.lookup(kRootIno, "x.lock");
  REQUIRE(there);
  CHECK(there->st_size == 1);
  {
    WrittenFile again(mount, "x.lock");
    CHECK(again.write("23", 1) == 0);
    CHECK(again.close() == 0);
  }
  CHECK(other.attributes(there->st_ino)->st_size == 3);
  REQUIRE(mount->remove_file(kRootIno, "x.lock"));
  CHECK(errno_of(other.lookup(kRootIno, "x.lock")) == ENOENT);
}

TEST_CASE_METHOD(ScratchMount, "attributes after the close make a tensor, and wrong ones are refused",
                 "[fs][scratch]") {
  make(mount, "w", "12345678");
  CHECK(set(mount, "w", "dtype", "F32") == 0);
  CHECK(stored_tensors(mount).size() == 3);
  CHECK(mount.attribute("w", "dtype") == "F32");
  CHECK(set(mount, "w", "shape", "[3]") == EINVAL);
  CHECK(set(mount, "w", "shape", "[2]") == 0);
  CHECK(form_of(mount, "w") == "F32[2]");
  CHECK(stored_tensors(mount).at("w") == "12345678");
  CHECK_FALSE(std::filesystem::exists(scratch_of(mount)));
}

TEST_CASE_METHOD(ScratchMount, "a file whose form does not fit at its close stays as it is",
                 "[fs][scratch]") {
  WrittenFile file(mount, "w");
  CHECK(file.set("dtype", "F32") == 0);
  CHECK(file.set("shape", "[2]") == 0);
  CHECK(file.write("12345") == 0);
  CHECK(file.close() == EINVAL);
  CHECK(mount.read("w") == "12345");
  CHECK(stored_tensors(mount).size() == 3);
  CHECK(captured.contains("stays a scratch file"));
}

TEST_CASE_METHOD(ScratchMount, "a rename over a tensor of as many bytes keeps its form", "[fs][scratch]") {
  make(mount, "tmp", kNew);
  REQUIRE(mount->rename(kRootIno, "tmp", kRootIno, "first"));
  CHECK(form_of(mount, "first") == "F32[2,2]");
  CHECK(mount.read("first") == kNew);
  make(mount, "tmp", "short");
  CHECK(errno_of(mount->rename(kRootIno, "tmp", kRootIno, "first")) == ENODATA);
  CHECK(mount.read("tmp") == "short");
  REQUIRE(set(mount, "tmp", "dtype", "U8") == 0);
  REQUIRE(set(mount, "tmp", "shape", "[5,1]") == 0);
  REQUIRE(mount->rename(kRootIno, "tmp", kRootIno, "first"));
  CHECK(form_of(mount, "first") == "U8[5,1]");
}

TEST_CASE_METHOD(ScratchMount, "a file with the name and size of a removed tensor has its form",
                 "[fs][scratch]") {
  REQUIRE(mount->remove_file(kRootIno, "first"));
  make(mount, "first", "short");
  CHECK(stored_tensors(mount).size() == 2);
  REQUIRE(mount->remove_file(kRootIno, "first"));
  make(mount, "first", kNew);
  CHECK(form_of(mount, "first") == "F32[2,2]");
  // An editor that keeps the old file under another name does this.
  REQUIRE(mount->rename(kRootIno, "first", kRootIno, "first~"));
  make(mount, "first", kOld);
  CHECK(form_of(mount, "first") == "F32[2,2]");
  CHECK(form_of(mount, "first~") == "F32[2,2]");
  // The same with a rename.
  REQUIRE(mount->remove_file(kRootIno, "first~"));
  REQUIRE(mount->remove_file(kRootIno, "first"));
  make(mount, "tmp", kNew);
  REQUIRE(mount->rename(kRootIno, "tmp", kRootIno, "first"));
  CHECK(form_of(mount, "first") == "F32[2,2]");
}

TEST_CASE_METHOD(ScratchMount, "scratch files are renamed over each other, and tensors over them",
                 "[fs][scratch]") {
  make(mount, "one", "1");
  make(mount, "two", "22");
  CHECK(errno_of(mount->rename(kRootIno, "one", kRootIno, "two", RENAME_NOREPLACE)) == EEXIST);
  CHECK(errno_of(mount->rename(kRootIno, "one", kRootIno, "two", RENAME_EXCHANGE)) == EINVAL);
  CHECK(errno_of(mount->rename(kRootIno, "one", kRootIno, "two", RENAME_WHITEOUT)) == EINVAL);
  REQUIRE(mount->rename(kRootIno, "one", kRootIno, "two"));
  CHECK(mount.read("two") == "1");
  CHECK(list(mount) == Names{"first", "second", "third", "two"});
  REQUIRE(mount->rename(kRootIno, "third", kRootIno, "two"));
  CHECK(mount.read("two") == kThird);
  CHECK_FALSE(std::filesystem::exists(scratch_of(mount)));
}

TEST_CASE_METHOD(ScratchMount, "an open file that was removed is read and written on", "[fs][scratch]") {
  WrittenFile file(mount, "tmp", kRootIno, O_RDWR);
  mount->note_lookup(file.ino());
  REQUIRE(mount->remove_file(kRootIno, "tmp"));
  CHECK(file.write("abc") == 0);
  CHECK(read_ino(mount, file.ino()) == "abc");
  CHECK(mount->attributes(file.ino())->st_size == 3);
  CHECK(file.close() == 0);
  mount->forget(file.ino(), 1);
  CHECK(errno_of(mount->attributes(file.ino())) == ENOENT);
}

TEST_CASE_METHOD(ScratchMount, "attributes that only the mount sets are accepted and ignored",
                 "[fs][scratch]") {
  make(mount, "w", "1234");
  for (const std::string_view name : {"w", "second"}) {
    for (const std::string_view key : {"name", "archive", "offset", "generation"})
      CHECK(set(mount, name, key, "x") == 0);
  }
  CHECK(mount.attribute("second", "name") == "second");
}

TEST_CASE("a mount that makes no files shows none", "[fs][scratch]") {
  DrivenFilesystem mount(kThree);
  make(mount, "w", "1234");
  mount.open(kReadOnly);
  CHECK(errno_of(mount->lookup(kRootIno, "w")) == ENOENT);
  CHECK(errno_of(mount->create(kRootIno, "x", O_WRONLY, ::getpid())) == EROFS);
}

TEST_CASE("with layout=tree scratch files lie in directories, and follow them", "[fs][scratch]") {
  DrivenFilesystem mount({{"l.w", kOld}}, kTreeLayout);
  {
    WrittenFile file(mount, "w.tmp", mount.ino("l"));
    REQUIRE(file.write("abc") == 0);
    REQUIRE(file.close() == 0);
  }
  CHECK(list(mount, mount.ino("l")) == Names{"w", "w.tmp"});
  REQUIRE(mount->rename(kRootIno, "l", kRootIno, "m"));
  CHECK(list(mount, mount.ino("m")) == Names{"w", "w.tmp"});
  CHECK(content_of((scratch_of(mount) / "m%2Fw.tmp").string()) == "abc");
  mount.open();  // flat
  CHECK(list(mount) == Names{"m.w", "m.w.tmp"});
  CHECK(mount.read("m.w.tmp") == "abc");
}

TEST_CASE("a scratch directory of somebody who may not write the archive is refused", "[fs][scratch]") {
  const DrivenFilesystem mount(kThree);
  if (::geteuid() != 0) return;
  REQUIRE(::mkdir(scratch_of(mount).c_str(), 0777) == 0);
  REQUIRE(::chown(scratch_of(mount).c_str(), 12345, 12345) == 0);
  CHECK(errno_of(mount->create(kRootIno, "x", O_WRONLY, ::getpid())) == EACCES);
}

TEST_CASE_METHOD(ScratchMount, "a file that is renamed over a tensor while it is open is written on",
                 "[fs][scratch]") {
  WrittenFile file(mount, "tmp");
  REQUIRE(file.write(kNew) == 0);
  REQUIRE(mount->rename(kRootIno, "tmp", kRootIno, "first"));
  CHECK(stored_tensors(mount).at("first") == kNew);
  CHECK(file.write("X") == 0);
  CHECK(file.close() == 0);
  CHECK(stored_tensors(mount).at("first") == "X" + kNew.substr(1));
  CHECK(form_of(mount, "first") == "F32[2,2]");
  CHECK_FALSE(std::filesystem::exists(scratch_of(mount)));
}

TEST_CASE_METHOD(ScratchMount, "a rename over a tensor that fails leaves a scratch file without a form",
                 "[fs][scratch]") {
  make(mount, "tmp", kNew);
  Member writer(mount, kRootIno, "first");
  REQUIRE(writer.write("n", 0) == 0);
  CHECK(errno_of(mount->rename(kRootIno, "tmp", kRootIno, "first")) == EBUSY);
  make(mount, "tmp", kNew);
  CHECK(stored_tensors(mount).size() == 3);
  CHECK(mount.attribute("tmp", "dtype").value_or("none") == "none");
}

TEST_CASE("files of odd names in the scratch directory are not shown", "[fs][scratch]") {
  const DrivenFilesystem mount(kThree);
  make(mount, "a%b", "1");
  CHECK(content_of((scratch_of(mount) / "a%25b").string()) == "1");
  for (const std::string name : {"%2F", "x%2F", "x%2F..", ".safetensors"})
    std::ofstream(scratch_of(mount) / name) << "1";
  std::filesystem::create_symlink("/etc/passwd", scratch_of(mount) / "link");
  CHECK(list(mount) == Names{"first", "second", "third", "a%b", "x.", "x..."});
  CHECK(errno_of(mount->lookup(kRootIno, "link")) == ENOENT);
}

TEST_CASE("a look-up finds the scratch files that a listing shows, and no links", "[fs][scratch]") {
  const DrivenFilesystem mount(kThree);
  make(mount, "w", "1");
  std::ofstream(scratch_of(mount) / "l%2Fw") << "2";
  std::ofstream(scratch_of(mount) / "a.b%") << "3";
  for (const char* const link : {"m%2Fw", "c.d"})
    std::filesystem::create_symlink("/etc/passwd", scratch_of(mount) / link);
  CHECK(mount.read("l.w") == "2");
  CHECK(mount.read("a.b%") == "3");
  CHECK(errno_of(mount->lookup(kRootIno, "m.w")) == ENOENT);
  CHECK(errno_of(mount->lookup(kRootIno, "c.d")) == ENOENT);
  CHECK(list(mount) == Names{"first", "second", "third", "w", "l.w", "a.b%"});
}

TEST_CASE("an empty scratch directory that a killed mount has left goes with the next mount",
          "[fs][scratch]") {
  DrivenFilesystem mount(kThree);
  std::filesystem::create_directory(scratch_of(mount));
  mount.open(kReadOnly);
  CHECK(std::filesystem::exists(scratch_of(mount)));
  mount.open();
  CHECK_FALSE(std::filesystem::exists(scratch_of(mount)));
}

TEST_CASE("a crash between a commit and the removal of its scratch file leaves none", "[fs][scratch]") {
  const CapturedStderr captured;
  DrivenFilesystem mount(kThree);
  make(mount, "x", "1");
  std::ofstream(scratch_of(mount) / "first") << kOld;
  std::ofstream(scratch_of(mount) / "second") << std::string(kSecond.size(), 'n');
  mount.open();
  CHECK_FALSE(std::filesystem::exists(scratch_of(mount) / "first"));
  CHECK(std::filesystem::exists(scratch_of(mount) / "second"));
  CHECK(captured.contains("scratch files, which are no tensors: \"second\", \"x\""));
  CHECK(mount.read("second") == kSecond);
  CHECK(list(mount) == Names{"first", "second", "third", "x"});
}

TEST_CASE("one page may show hundreds of scratch files, each once", "[fs][scratch]") {
  DrivenFilesystem mount(kThree);
  std::set<std::string> due = {"first", "second", "third"};
  for (int at = 0; at < 600; ++at) make(mount, *due.insert(fmt::format("s{:03}", at)).first, "");
  const auto listed = list(mount);
  CHECK(listed.size() == due.size());
  CHECK(std::set<std::string>(listed.begin(), listed.end()) == due);
}

TEST_CASE("a scratch file that a tensor has hidden goes with the tensor", "[fs][scratch]") {
  DrivenFilesystem mount(kThree);
  make(mount, "x", "1");
  std::ofstream(scratch_of(mount) / "second") << std::string(kSecond.size(), 'n');
  mount.open();
  REQUIRE(mount->remove_file(kRootIno, "second"));
  CHECK_FALSE(std::filesystem::exists(scratch_of(mount) / "second"));
  CHECK(list(mount) == Names{"first", "third", "x"});
}

TEST_CASE_METHOD(ScratchMount, "a file with a form whose name no tensor can have is named in the log",
                 "[fs][scratch]") {
  make(mount, "v%", kNew);
  CHECK(set(mount, "v%", "dtype", "F32") == 0);
  CHECK(set(mount, "v%", "shape", "[4]") == 0);
  CHECK(captured.contains("\"v%\" has a dtype and a shape, and is a scratch file until it is renamed"));
  REQUIRE(mount->rename(kRootIno, "v%", kRootIno, "v"));
  CHECK(stored_tensors(mount).at("v") == kNew);
}

TEST_CASE_METHOD(ScratchMount, "a file that has just become a tensor is not replaced by a rename",
                 "[fs][scratch]") {
  make(mount, "one", "1");
  const auto two = mount->create(kRootIno, "two", O_WRONLY, ::getpid()).value();
  // The commit of a new tensor makes this state just before it removes the scratch file.
  two.file->content->note_committed();
  two.file->content->new_tensor()->leave_scratch();
  CHECK(errno_of(mount->rename(kRootIno, "one", kRootIno, "two")) == EEXIST);
  CHECK(mount.read("one") == "1");
  mount->release(two.file);
}

TEST_CASE_METHOD(ScratchMount, "a rename replaces no open file whose bytes can't be kept", "[fs][scratch]") {
  make(mount, "one", "1");
  const WrittenFile file(mount, "two");
  // A scratch file with a second name can't be opened.
  std::filesystem::create_hard_link(scratch_of(mount) / "two", mount.directory().path() / "link");
  CHECK(errno_of(mount->rename(kRootIno, "one", kRootIno, "two")) == EPERM);
  CHECK(mount.read("one") == "1");
  CHECK(content_of(scratch_of(mount) / "two").empty());
}

TEST_CASE("a file whose directory was renamed becomes a tensor of the directory's new name",
          "[fs][scratch]") {
  const DrivenFilesystem mount({{"l.w", kOld}}, kTreeLayout);
  {
    WrittenFile file(mount, "v", mount.ino("l"));
    REQUIRE(file.write("abc") == 0);
    REQUIRE(file.close() == 0);
  }
  REQUIRE(mount->rename(kRootIno, "l", kRootIno, "m"));
  const Ino file = mount.ino("v", mount.ino("m"));
  REQUIRE(mount->set_extended_attribute(file, "user.safetensors.dtype", "U8"));
  REQUIRE(mount->set_extended_attribute(file, "user.safetensors.shape", "[3]"));
  CHECK(stored_tensors(mount) == std::map<std::string, std::string>{{"m.v", "abc"}, {"m.w", kOld}});
}

TEST_CASE_METHOD(ScratchMount, "an attribute that no other mount will see is told", "[fs][scratch]") {
  make(mount, "w", "1234");
  const Ino file = mount.ino("w");
  REQUIRE(mount->set_extended_attribute(file, "user.safetensors.shape", "[2]"));
  CHECK_FALSE(captured.contains("is forgotten when this mount ends"));
  std::filesystem::remove(scratch_of(mount) / "w");
  static_cast<void>(mount->set_extended_attribute(file, "user.safetensors.shape", "[4]"));
  CHECK(captured.contains("\"w\": its shape is forgotten when this mount ends: "));
}
