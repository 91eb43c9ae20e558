// Tensors are deleted, renamed and retyped through the file system, and everything that is open goes on.
#include <linux/fs.h>
#include <sys/xattr.h>

#include "tests/fs/descriptor.h"
#include "tests/fs/driven_filesystem.h"
#include "tests/fs/stored_tensors.h"
#include "tests/support/catch.h"

using namespace stfs;
using namespace stfs::test;

namespace {

const std::string kThird(5000, 'C');
const Tensors kThree = {{"first", kOld}, {"second", kSecond}, {"third", kThird}};

std::string read_ino(const DrivenFilesystem& mount, Ino ino) {
  return text_of(mount->read(ino, 0, 1 << 20).value().copy().value());
}

std::vector<std::string> list(const DrivenFilesystem& mount, Ino directory = kRootIno) {
  std::vector<std::string> names;
  REQUIRE(mount->read_directory(directory, 2, [&](std::string_view name, Ino, std::uint64_t) {
    names.emplace_back(name);
    return true;
  }));
  return names;
}

/// The first edit moves the first tensors out of the header's way.
void make_room(const DrivenFilesystem& mount) {
  REQUIRE(mount->set_extended_attribute(kRootIno, "user.safetensors.metadata.room", ""));
}

using Names = std::vector<std::string>;

}  // namespace

TEST_CASE("a deleted tensor goes from the tree, and readers keep its bytes", "[fs][edit]") {
  const DrivenFilesystem mount(kThree);
  const Ino second = mount.ino("second");
  mount->note_lookup(second);
  REQUIRE(mount->remove_file(kRootIno, "second"));
  CHECK(errno_of(mount->lookup(kRootIno, "second")) == ENOENT);
  CHECK(list(mount) == Names{"first", "third"});
  CHECK(stored_tensors(mount) == std::map<std::string, std::string>{{"first", kOld}, {"third", kThird}});
  CHECK(read_ino(mount, second) == kSecond);
  CHECK(mount->attributes(second)->st_nlink == 0);
  CHECK(mount->attributes(second)->st_size == 16);
  CHECK(errno_of(mount->extended_attribute(second, "user.safetensors.name")) == 0);

  // Its space is free when the kernel has forgotten it.
  mount->tidy();
  CHECK(mount->model().removed().size() == 1);
  CHECK(read_ino(mount, second) == kSecond);
  mount->forget(second, 1);
  mount->tidy();
  CHECK(mount->model().removed().empty());
  CHECK(errno_of(mount->attributes(second)) == ENOENT);
  CHECK(errno_of(mount->remove_file(kRootIno, "second")) == ENOENT);
  CHECK(mount.read("third") == kThird);
}

TEST_CASE("a renamed tensor keeps its inode, and its views follow", "[fs][edit]") {
  const DrivenFilesystem mount(kThree);
  const Ino first = mount.ino("first");
  const Ino views = mount.ino(".safetensors");
  const Ino npy = mount.ino("npy", views);
  const Ino slices = mount.ino("slice", views);
  static_cast<void>(mount.ino("first[0:4]", slices));
  const auto renamed = mount->rename(kRootIno, "first", kRootIno, "a/b");
  CHECK(errno_of(renamed) == EINVAL);
  REQUIRE(mount->rename(kRootIno, "first", kRootIno, "a%2Fb"));
  CHECK(mount.ino("a%2Fb") == first);
  CHECK(mount->extended_attribute(first, "user.safetensors.name").value() == "a/b");
  CHECK(errno_of(mount->lookup(kRootIno, "first")) == ENOENT);
  CHECK(errno_of(mount->lookup(npy, "first.npy")) == ENOENT);
  CHECK(errno_of(mount->lookup(slices, "first[0:4]")) == ENOENT);
  CHECK(errno_of(mount->lookup(npy, "a%2Fb.npy")) == 0);
  CHECK(stored_tensors(mount).at("a/b") == kOld);
}

TEST_CASE("a rename replaces a tensor, unless the flags forbid it", "[fs][edit]") {
  const DrivenFilesystem mount(kThree);
  CHECK(errno_of(mount->rename(kRootIno, "first", kRootIno, "second", RENAME_NOREPLACE)) == EEXIST);
  CHECK(list(mount).size() == 3);
  const Ino second = mount.ino("second");
  mount->note_lookup(second);
  REQUIRE(mount->rename(kRootIno, "first", kRootIno, "second"));
  CHECK(list(mount).size() == 2);
  CHECK(mount.read("second") == kOld);
  CHECK(read_ino(mount, second) == kSecond);
  REQUIRE(mount->rename(kRootIno, "third", kRootIno, "second", RENAME_EXCHANGE));
  CHECK(stored_tensors(mount) == std::map<std::string, std::string>{{"third", kOld}, {"second", kThird}});
  CHECK(errno_of(mount->rename(kRootIno, "gone", kRootIno, "second")) == ENOENT);
  CHECK(errno_of(mount->rename(kRootIno, "third", kRootIno, "gone", RENAME_EXCHANGE)) == ENOENT);
  CHECK(errno_of(mount->rename(kRootIno, "third", kRootIno, "third")) == 0);
}

TEST_CASE("no tensor is renamed over one that is being written", "[fs][edit]") {
  const DrivenFilesystem mount(kThree);
  make_room(mount);
  Descriptor writer(mount, "second", O_WRONLY);
  REQUIRE(writer.write(kNew, 0));
  CHECK(errno_of(mount->rename(kRootIno, "first", kRootIno, "second")) == EBUSY);
  // A deletion is possible, as on any file system. What was written goes with it.
  REQUIRE(mount->remove_file(kRootIno, "second"));
  CHECK(errno_of(writer.close()) == ESTALE);
  CHECK(stored_tensors(mount).size() == 2);
}

TEST_CASE("what was staged before an edit commits after it", "[fs][edit]") {
  const DrivenFilesystem mount(kThree);
  make_room(mount);
  Descriptor writer(mount, "second", O_WRONLY);
  REQUIRE(writer.write(kNew, 0));
  REQUIRE(mount->remove_file(kRootIno, "first"));
  REQUIRE(mount->rename(kRootIno, "second", kRootIno, "other"));
  CHECK(errno_of(writer.close()) == 0);
  CHECK(stored_tensors(mount).at("other") == kNew);
  CHECK(mount.read("other") == kNew);
}

TEST_CASE("a tensor that is being written is not moved out of the header's way", "[fs][edit]") {
  const DrivenFilesystem mount(kThree);
  Descriptor writer(mount, "second", O_WRONLY);
  REQUIRE(writer.write(kNew, 0));
  CHECK(errno_of(mount->remove_file(kRootIno, "first")) == EBUSY);
  CHECK(errno_of(writer.close()) == 0);
  CHECK(errno_of(mount->remove_file(kRootIno, "first")) == 0);
  CHECK(stored_tensors(mount) == std::map<std::string, std::string>{{"second", kNew}, {"third", kThird}});
}

TEST_CASE("dtype and shape give the bytes another meaning", "[fs][edit]") {
  const DrivenFilesystem mount(kThree);
  const Ino first = mount.ino("first");
  const auto set = [&](std::string_view key, const std::string& value, int flags = 0) {
    return errno_of(
        mount->set_extended_attribute(first, "user.safetensors." + std::string(key), value, flags));
  };
  const auto get = [&](std::string_view key) {
    return mount->extended_attribute(first, "user.safetensors." + std::string(key)).value();
  };
  CHECK(set("shape", "[4, 4]") == 0);
  CHECK(get("shape") == "[4,4]");
  CHECK(set("dtype", "F32") == 0);
  CHECK(get("dtype") == "F32");
  CHECK(get("shape") == "[4,1]");
  CHECK(set("dtype", "F64") == EINVAL);
  CHECK(set("dtype", "F33") == EINVAL);
  CHECK(set("shape", "[5]") == EINVAL);
  CHECK(set("shape", "4x1") == EINVAL);
  CHECK(set("shape", "[18446744073709551615,2]") == EINVAL);
  CHECK(set("shape", "[2,2]", XATTR_CREATE) == EEXIST);
  CHECK(set("name", "x") == EPERM);
  CHECK(set("offset", "0") == EPERM);
  CHECK(get("shape") == "[4,1]");
  CHECK(mount.read("first") == kOld);
  CHECK(Archive::open(mount.path(), Access::ReadOnly).value()->tensors()[0].dtype == Dtype::F32);
}

TEST_CASE("metadata are set and removed on the root", "[fs][edit]") {
  const DrivenFilesystem mount(kThree);
  const auto set = [&](const std::string& key, const std::optional<std::string>& value, int flags = 0) {
    return errno_of(
        mount->set_extended_attribute(kRootIno, "user.safetensors.metadata." + key, value, flags));
  };
  CHECK(set("k", "v") == 0);
  CHECK(mount->extended_attribute(kRootIno, "user.safetensors.metadata.k").value() == "v");
  CHECK(set("k", "w", XATTR_CREATE) == EEXIST);
  CHECK(set("x", "w", XATTR_REPLACE) == ENODATA);
  CHECK(set("x", std::nullopt) == ENODATA);
  CHECK(set("k", "\xff") == EINVAL);
  CHECK(set("k", "") == 0);
  CHECK(Archive::open(mount.path(), Access::ReadOnly).value()->metadata() == Metadata{{"k", ""}});
  CHECK(set("k", std::nullopt) == 0);
  CHECK(Archive::open(mount.path(), Access::ReadOnly).value()->metadata().empty());
  CHECK(errno_of(mount->set_extended_attribute(kRootIno, "user.other", "x")) == EPERM);
}

TEST_CASE("whole views of before an edit stay as they were", "[fs][edit]") {
  const DrivenFilesystem mount(kThree);
  const Ino views = mount.ino(".safetensors");
  const Ino before = mount.ino("archive.safetensors", views);
  const Ino header = mount.ino("header.json", views);
  mount->note_lookup(before);
  mount->note_lookup(header);
  const std::string whole = read_ino(mount, before);
  const std::string json = read_ino(mount, header);
  REQUIRE(mount->remove_file(kRootIno, "first"));
  REQUIRE(mount->rename(kRootIno, "third", kRootIno, "a name that is much longer than the one of before"));
  mount->tidy();
  CHECK(read_ino(mount, before) == whole);
  CHECK(read_ino(mount, header) == json);
  const Ino after = mount.ino("archive.safetensors", views);
  CHECK(after != before);
  CHECK(read_ino(mount, after) != whole);
  CHECK(mount->model().removed().size() == 1);
  mount->forget(before, 1);
  mount->forget(header, 1);
  mount->tidy();
  CHECK(errno_of(mount->attributes(before)) == ENOENT);
  CHECK(mount->model().removed().empty());
}

TEST_CASE("with edit=off bytes can be written and nothing else", "[fs][edit]") {
  FilesystemOptions options;
  options.allows_edits = false;
  const DrivenFilesystem mount(kThree, options);
  CHECK(errno_of(mount->remove_file(kRootIno, "first")) == EPERM);
  CHECK(errno_of(mount->rename(kRootIno, "first", kRootIno, "x")) == EPERM);
  CHECK(errno_of(mount->set_extended_attribute(kRootIno, "user.safetensors.metadata.k", "v")) == EPERM);
  CHECK(errno_of(mount->set_extended_attribute(mount.ino("first"), "user.safetensors.dtype", "I8")) == EPERM);
  CHECK((mount->attributes(kRootIno)->st_mode & 0222) == 0);
  Descriptor writer(mount, "first", O_WRONLY);
  REQUIRE(writer.write(kNew, 0));
  CHECK(errno_of(writer.close()) == 0);
}

TEST_CASE("names, bytes and inodes hold through many edits", "[fs][edit]") {
  const DrivenFilesystem mount(kThree);
  const Ino third = mount.ino("third");
  mount->note_lookup(third);
  for (int round = 0; round < 30; ++round) {
    const std::string name = "n" + std::string(static_cast<std::size_t>(round * 20), 'x').substr(0, 200);
    const std::string now = list(mount).back();
    REQUIRE((now == name || mount->rename(kRootIno, now, kRootIno, name)));
    CHECK(mount.ino(name) == third);
    CHECK(mount.read(name) == kThird);
    REQUIRE(mount->set_extended_attribute(kRootIno, "user.safetensors.metadata.long",
                                          std::string(static_cast<std::size_t>(round * 500), 'm')));
    mount->tidy();
  }
  CHECK(mount.read("first") == kOld);
}

namespace {

/// Makes a file and writes it, as a program does.
class MadeFile {
 public:
  MadeFile(const DrivenFilesystem& mount, std::string_view name, Ino parent = kRootIno, int flags = O_WRONLY)
      : filesystem_(*mount), made_(filesystem_.create(parent, name, flags, ::getpid()).value()) {}
  ~MadeFile() {
    if (made_.file != nullptr) filesystem_.release(made_.file);
  }
  MadeFile(const MadeFile&) = delete;
  MadeFile& operator=(const MadeFile&) = delete;
  /// What O_TRUNC sends.
  void cut() { REQUIRE(filesystem_.resize_by_name(ino(), 0, ::getpid())); }
  [[nodiscard]] Ino ino() const { return made_.status.st_ino; }
  int write(std::string_view bytes, std::uint64_t offset = 0) {
    return errno_of(filesystem_.write(*made_.file, bytes_of(bytes), offset, Caller(1, ::getpid())));
  }
  int close() {
    const int verdict = errno_of(filesystem_.flush(*made_.file, 1, ::getpid()));
    filesystem_.release(std::exchange(made_.file, nullptr));
    return verdict;
  }

 private:
  Filesystem& filesystem_;
  Filesystem::Created made_;
};

std::string npy_of(const std::string& descr, const std::string& shape, const std::string& data) {
  std::string header = "{'descr': '" + descr + "', 'fortran_order': False, 'shape': " + shape + ", }";
  header.resize(117, ' ');
  header += '\n';
  return std::string("\x93NUMPY\x01\x00", 8) + static_cast<char>(header.size()) + std::string(1, '\0') +
         header + data;
}

std::string form_of(const DrivenFilesystem& mount, std::string_view name) {
  const Ino ino = mount.ino(name);
  return mount->extended_attribute(ino, "user.safetensors.dtype").value() +
         mount->extended_attribute(ino, "user.safetensors.shape").value();
}

}  // namespace

TEST_CASE("a new file becomes a tensor of bytes at its close", "[fs][edit]") {
  const DrivenFilesystem mount(kThree);
  MadeFile maker(mount, "new");
  CHECK(mount.ino("new") == maker.ino());
  CHECK(maker.write("abc") == 0);
  CHECK(maker.write("def", 3) == 0);
  CHECK(stored_tensors(mount).size() == 3);
  CHECK(mount->attributes(maker.ino())->st_size == 6);
  CHECK(read_ino(mount, maker.ino()) == "abcdef");
  CHECK(maker.close() == 0);
  CHECK(stored_tensors(mount).at("new") == "abcdef");
  CHECK(mount.ino("new") == maker.ino());
  CHECK(form_of(mount, "new") == "U8[6]");
  CHECK(mount.read("new") == "abcdef");
}

TEST_CASE("a file that was only made is an empty tensor, one that was deleted is none", "[fs][edit]") {
  const DrivenFilesystem mount(kThree);
  CHECK(MadeFile(mount, "empty").close() == 0);
  CHECK(form_of(mount, "empty") == "U8[0]");
  MadeFile gone(mount, "gone");
  CHECK(gone.write("abc") == 0);
  REQUIRE(mount->remove_file(kRootIno, "gone"));
  CHECK(errno_of(mount->lookup(kRootIno, "gone")) == ENOENT);
  CHECK(gone.close() == 0);
  CHECK(stored_tensors(mount).size() == 4);
}

TEST_CASE("a file whose writer was killed, or whose form does not fit, becomes no tensor", "[fs][edit]") {
  const DrivenFilesystem mount(kThree);
  MadeFile maker(mount, "new");
  CHECK(maker.write("abcde") == 0);
  CHECK(errno_of(mount->set_extended_attribute(maker.ino(), "user.safetensors.dtype", "F32")) == 0);
  CHECK(maker.close() == EINVAL);
  CHECK(errno_of(mount->lookup(kRootIno, "new")) == ENOENT);
  MadeFile shaped(mount, "shaped");
  CHECK(errno_of(mount->set_extended_attribute(shaped.ino(), "user.safetensors.shape", "[2,3]")) == 0);
  CHECK(shaped.write("abcdef") == 0);
  CHECK(shaped.close() == 0);
  CHECK(form_of(mount, "shaped") == "U8[2,3]");
  CHECK(stored_tensors(mount).size() == 4);
}

TEST_CASE("a NumPy file in npy/ makes a tensor or replaces one", "[fs][edit]") {
  const DrivenFilesystem mount(kThree);
  const Ino npy = mount.ino("npy", mount.ino(".safetensors"));
  MadeFile made(mount, "new.npy", npy);
  CHECK(made.write(npy_of("<f4", "(2, 1)", "12345678")) == 0);
  CHECK(made.close() == 0);
  CHECK(form_of(mount, "new") == "F32[2,1]");
  CHECK(stored_tensors(mount).at("new") == "12345678");

  // Other dtype, shape and size.
  const Ino before = mount.ino("first");
  mount->note_lookup(before);
  MadeFile other(mount, "first.npy", npy);
  other.cut();
  CHECK(other.write(npy_of("<i2", "(3,)", "abcdef")) == 0);
  CHECK(other.close() == 0);
  CHECK(form_of(mount, "first") == "I16[3]");
  CHECK(stored_tensors(mount).at("first") == "abcdef");
  CHECK(read_ino(mount, before) == kOld);

  // The same: in place.
  const Ino second = mount.ino("second");
  MadeFile same(mount, "second.npy", npy);
  CHECK(same.write(npy_of("|u1", "(16,)", kNew)) == 0);
  CHECK(same.close() == 0);
  CHECK(mount.ino("second") == second);
  CHECK(stored_tensors(mount).at("second") == kNew);
  CHECK(mount.read("second") == kNew);
  CHECK(stored_tensors(mount).size() == 4);

  MadeFile cut(mount, "third.npy", npy);
  CHECK(cut.write(npy_of("|u1", "(16,)", "short")) == 0);
  CHECK(cut.close() == EINVAL);
  MadeFile untold(mount, "untold.npy", npy);
  CHECK(untold.write(npy_of("|V2", "(2,)", "abcd")) == 0);
  CHECK(untold.close() == EINVAL);
  CHECK(mount->create(npy, "x.txt", O_WRONLY, 1).error().errno_value == EINVAL);
  CHECK(mount->create(mount.ino("float32", mount.ino(".safetensors")), "x.npy", O_WRONLY, 1)
            .error()
            .errno_value == EPERM);
  CHECK(stored_tensors(mount).size() == 4);
  CHECK(mount.read("third") == kThird);
}

TEST_CASE("a tensor gets another size if its form is set while it is open", "[fs][edit]") {
  const DrivenFilesystem mount(kThree);
  {
    Descriptor writer(mount, "second", O_WRONLY | O_TRUNC);
    CHECK(errno_of(mount->set_extended_attribute(mount.ino("second"), "user.safetensors.shape", "[2,2]")) ==
          0);
    CHECK(errno_of(writer.write("abcd", 0)) == 0);
    CHECK(errno_of(writer.close()) == 0);
  }
  CHECK(form_of(mount, "second") == "U8[2,2]");
  CHECK(mount.read("second") == "abcd");
  {
    Descriptor writer(mount, "second", O_WRONLY | O_TRUNC);
    CHECK(errno_of(writer.write("ab", 0)) == 0);
    CHECK(errno_of(writer.close()) == EINVAL);
  }
  CHECK(stored_tensors(mount).at("second") == "abcd");
}

TEST_CASE("a plain file that is renamed over a tensor gives it new bytes", "[fs][edit]") {
  const DrivenFilesystem mount(kThree);
  REQUIRE(mount->set_extended_attribute(mount.ino("first"), "user.safetensors.dtype", "F32"));
  MadeFile plain(mount, "tmp");
  CHECK(plain.write(kNew) == 0);
  CHECK(plain.close() == 0);
  REQUIRE(mount->rename(kRootIno, "tmp", kRootIno, "first"));
  CHECK(form_of(mount, "first") == "F32[4]");
  CHECK(mount.read("first") == kNew);
  MadeFile short_one(mount, "tmp");
  CHECK(short_one.write("short") == 0);
  CHECK(short_one.close() == 0);
  CHECK(errno_of(mount->rename(kRootIno, "tmp", kRootIno, "first")) == EINVAL);
  CHECK(mount.read("first") == kNew);
  REQUIRE(mount->set_extended_attribute(mount.ino("tmp"), "user.safetensors.shape", "[5,1]"));
  REQUIRE(mount->rename(kRootIno, "tmp", kRootIno, "first"));
  CHECK(form_of(mount, "first") == "U8[5,1]");
}

TEST_CASE("layout=tree: directories are made, moved with all tensors below, and removed", "[fs][edit]") {
  const DrivenFilesystem mount({{"l.0.a", kOld}, {"l.0.b", kSecond}, {"l.1.a", kThird}}, kTreeLayout);
  const Ino l = mount.ino("l");
  const Ino zero = mount.ino("0", l);
  const Ino a = mount.ino("a", zero);
  REQUIRE(mount->rename(l, "0", l, "9"));
  CHECK(mount.ino("9", l) == zero);
  CHECK(mount.ino("a", zero) == a);
  CHECK(errno_of(mount->lookup(l, "0")) == ENOENT);
  CHECK(stored_tensors(mount).at("l.9.b") == kSecond);

  const Ino made = mount->make_directory(kRootIno, "new").value().st_ino;
  CHECK(errno_of(mount->make_directory(kRootIno, "new")) == EEXIST);
  CHECK(errno_of(mount->make_directory(kRootIno, "a.b")) == EINVAL);
  CHECK(list(mount, made).empty());
  CHECK(errno_of(mount->remove_directory(l, "9")) == ENOTEMPTY);
  CHECK(errno_of(mount->rename(kRootIno, "new", l, "9")) == ENOTEMPTY);
  CHECK(errno_of(mount->rename(l, "9", zero, "below")) == EINVAL);
  REQUIRE(mount->rename(l, "9", kRootIno, "new"));
  CHECK(mount.ino("new") == zero);
  CHECK(errno_of(mount->attributes(made)) == ENOENT);
  CHECK(stored_tensors(mount).at("new.a") == kOld);

  // An empty directory stays until it is removed.
  REQUIRE(mount->remove_file(mount.ino("1", l), "a"));
  CHECK(list(mount, mount.ino("1", l)).empty());
  REQUIRE(mount->remove_directory(l, "1"));
  REQUIRE(mount->remove_directory(kRootIno, "l"));
  CHECK(list(mount) == Names{"new"});

  MadeFile file(mount, "t", zero);
  CHECK(errno_of(mount->remove_directory(kRootIno, "new")) == ENOTEMPTY);
  CHECK(file.write("abc") == 0);
  CHECK(file.close() == 0);
  CHECK(stored_tensors(mount).at("new.t") == "abc");
  CHECK(mount->create(zero, "x.y", O_WRONLY, 1).error().errno_value == EINVAL);
  REQUIRE(mount->rename(zero, "t", kRootIno, "t"));
  CHECK(stored_tensors(mount).at("t") == "abc");
}

TEST_CASE("layout=flat has no directories to make or move", "[fs][edit]") {
  const DrivenFilesystem mount(kThree);
  CHECK(errno_of(mount->make_directory(kRootIno, "x")) == EPERM);
  CHECK(errno_of(mount->remove_directory(kRootIno, ".safetensors")) == EPERM);
  CHECK(errno_of(mount->remove_directory(kRootIno, "first")) == ENOTDIR);
  CHECK(errno_of(mount->remove_file(kRootIno, ".safetensors")) == EISDIR);
  CHECK(errno_of(mount->rename(kRootIno, ".safetensors", kRootIno, "x")) == EPERM);
}

TEST_CASE("a tensor that is staged in a transaction and deleted fails the commit, and can be taken out",
          "[fs][edit]") {
  const DrivenFilesystem mount(kThree);
  make_room(mount);
  const Ino views = mount.ino(".safetensors");
  const Ino transactions = mount.ino("transactions", views);
  const Ino directory = mount->make_directory(transactions, "T").value().st_ino;
  const auto stage = [&](std::string_view name) {
    const auto file = mount->open(mount.ino(name, directory), O_WRONLY, ::getpid()).value();
    REQUIRE(mount->write(*file, bytes_of(kNew), 0, Caller(1, ::getpid())));
    CHECK(errno_of(mount->flush(*file, 1, ::getpid())) == 0);
    mount->release(file);
  };
  stage("first");
  stage("second");
  REQUIRE(mount->remove_file(kRootIno, "second"));
  mount->tidy();
  CHECK(list(mount, directory) == Names{"first", "second"});
  const Ino committed = mount.ino("committed", views);
  CHECK(errno_of(mount->rename(transactions, "T", committed, "T")) == ESTALE);
  CHECK(stored_tensors(mount).at("first") == kOld);
  REQUIRE(mount->remove_file(directory, "second"));
  CHECK(list(mount, directory) == Names{"first"});
  REQUIRE(mount->rename(transactions, "T", committed, "T"));
  CHECK(stored_tensors(mount).at("first") == kNew);
}

TEST_CASE("the end of the mount frees what a deleted tensor takes, although it was open", "[fs][edit]") {
  const std::string large(1 << 20, 'L');
  const DrivenFilesystem mount({{"large", large}, {"last", kOld}});
  const auto blocks = [&] {
    struct stat status {};
    REQUIRE(::stat(mount.path().c_str(), &status) == 0);
    return status.st_blocks;
  };
  mount->note_lookup(mount.ino("large"));
  REQUIRE(mount->remove_file(kRootIno, "large"));
  mount->tidy();
  const auto before = blocks();
  CHECK(mount->model().removed().size() == 1);
  mount->end();
  CHECK(blocks() + 2000 < before);
  CHECK(stored_tensors(mount) == std::map<std::string, std::string>{{"last", kOld}});
}

TEST_CASE("a form that is set after a close or without a write empties no tensor", "[fs][edit]") {
  const DrivenFilesystem mount(kThree);
  make_room(mount);
  const auto set = [&](std::string_view key, const std::string& value) {
    return errno_of(
        mount->set_extended_attribute(mount.ino("second"), "user.safetensors." + std::string(key), value));
  };
  {
    OpenFile* const writer = mount->open(mount.ino("second"), O_WRONLY, ::getpid()).value();
    CHECK(errno_of(mount->write(*writer, bytes_of(kNew), 0, Caller(1, ::getpid()))) == 0);
    CHECK(errno_of(mount->flush(*writer, 1, ::getpid())) == 0);
    CHECK(set("dtype", "I8") == 0);  // before the release
    CHECK(form_of(mount, "second") == "I8[16]");
    mount->release(writer);
  }
  CHECK(form_of(mount, "second") == "I8[16]");
  CHECK(stored_tensors(mount).at("second") == kNew);
  {
    Descriptor idle(mount, "second", O_RDWR);
    CHECK(set("dtype", "U8") == 0);
    CHECK(errno_of(idle.close()) == 0);
  }
  CHECK(stored_tensors(mount).at("second") == kNew);
}

TEST_CASE("the first write to a tensor that was deleted while it was open is refused", "[fs][edit]") {
  const DrivenFilesystem mount(kThree);
  make_room(mount);
  const Ino third = mount.ino("third");
  mount->note_lookup(third);
  for (const int flags : {O_WRONLY, O_RDWR}) {
    OpenFile* const writer =
        mount->open(mount.ino(flags == O_WRONLY ? "third" : "second"), flags, ::getpid()).value();
    REQUIRE(mount->remove_file(kRootIno, flags == O_WRONLY ? "third" : "second"));
    CHECK(errno_of(mount->write(*writer, bytes_of(kNew), 0, Caller(1, ::getpid()))) == ESTALE);
    CHECK(errno_of(mount->flush(*writer, 1, ::getpid())) == ESTALE);
    mount->release(writer);
  }
  CHECK(read_ino(mount, third) == kThird);
  CHECK(stored_tensors(mount) == std::map<std::string, std::string>{{"first", kOld}});
}
