// New files become tensors when they are closed, and tensors get another form.
#include "tests/fs/descriptor.h"
#include "tests/fs/edited.h"
#include "tests/support/catch.h"

using namespace stfs;
using namespace stfs::test;

TEST_CASE("a new file with a dtype and a shape is a tensor when its close returns", "[fs][edit]") {
  const DrivenFilesystem mount(kThree);
  WrittenFile maker(mount, "new");
  CHECK(mount.ino("new") == maker.ino());
  CHECK(maker.write("abc") == 0);
  CHECK(maker.write("def", 3) == 0);
  CHECK(stored_tensors(mount).size() == 3);
  CHECK(mount->attributes(maker.ino())->st_size == 6);
  CHECK(read_ino(mount, maker.ino()) == "abcdef");
  CHECK(maker.set("dtype", "U8") == 0);
  CHECK(maker.set("shape", "[2,3]") == 0);
  CHECK(maker.close() == 0);
  CHECK(stored_tensors(mount).at("new") == "abcdef");
  CHECK(mount.ino("new") == maker.ino());
  CHECK(form_of(mount, "new") == "U8[2,3]");
  CHECK(mount.read("new") == "abcdef");
  CHECK(list(mount) == Names{"first", "second", "third", "new"});
}

TEST_CASE("an empty tensor needs no write: it is there when its close returns", "[fs][edit]") {
  const DrivenFilesystem mount(kThree);
  WrittenFile maker(mount, "empty");
  CHECK(maker.set("shape", "[0,4]") == 0);
  CHECK(maker.set("dtype", "F32") == 0);
  CHECK(maker.close() == 0);
  CHECK(form_of(mount, "empty") == "F32[0,4]");
  CHECK(stored_tensors(mount).at("empty").empty());
}

TEST_CASE("a NumPy file in npy/ makes a tensor or replaces one", "[fs][edit]") {
  const DrivenFilesystem mount(kThree);
  const Ino npy = mount.ino("npy", mount.ino(".safetensors"));
  WrittenFile made(mount, "new.npy", npy);
  CHECK(made.write(npy_of("<f4", "(2, 1)", "12345678")) == 0);
  CHECK(made.close() == 0);
  CHECK(form_of(mount, "new") == "F32[2,1]");
  CHECK(stored_tensors(mount).at("new") == "12345678");

  // Another shape needs -o reshape, or its attribute.
  const Ino before = mount.ino("first");
  mount->note_lookup(before);
  const auto replace_first = [&](bool sets_shape) {
    WrittenFile other(mount, "first.npy", npy);
    other.cut();
    if (sets_shape) CHECK(other.set("shape", "[3]") == 0);
    CHECK(other.write(npy_of("<i2", "(3,)", "abcdef")) == 0);
    return other.close();
  };
  CHECK(replace_first(false) == EINVAL);
  CHECK(mount.read("first") == kOld);
  CHECK(replace_first(true) == 0);
  CHECK(form_of(mount, "first") == "I16[3]");
  CHECK(stored_tensors(mount).at("first") == "abcdef");
  CHECK(read_ino(mount, before) == kOld);

  // With the same shape and dtype the tensor is replaced in place.
  const Ino second = mount.ino("second");
  WrittenFile same(mount, "second.npy", npy);
  CHECK(same.write(npy_of("|u1", "(16,)", kNew)) == 0);
  CHECK(same.close() == 0);
  CHECK(mount.ino("second") == second);
  CHECK(stored_tensors(mount).at("second") == kNew);
  CHECK(mount.read("second") == kNew);
  CHECK(stored_tensors(mount).size() == 4);

  WrittenFile cut(mount, "third.npy", npy);
  CHECK(cut.write(npy_of("|u1", "(16,)", "short")) == 0);
  CHECK(cut.close() == EINVAL);
  WrittenFile header(mount, "third.npy", npy);
  header.cut();
  CHECK(header.write(npy_of("|u1", "(16,)", "")) == 0);
  CHECK(header.close() == EINVAL);
  WrittenFile zeros(mount, "zeros.npy", npy);
  CHECK(zeros.write(npy_of("<f4", "(2,)", "")) == 0);
  CHECK(zeros.close() == 0);
  CHECK(stored_tensors(mount).at("zeros") == std::string(8, '\0'));
  REQUIRE(mount->remove_file(kRootIno, "zeros"));
  WrittenFile untold(mount, "untold.npy", npy);
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
  CHECK(form_of(mount, "second") == "U8[16]");
}

TEST_CASE("a form that was set while a file was open and idle is the tensor's at the last release",
          "[fs][edit]") {
  const DrivenFilesystem mount(kThree);
  make_room(mount);
  const auto set = [&](std::string_view key, const std::string& value) {
    return errno_of(
        mount->set_extended_attribute(mount.ino("second"), "user.safetensors." + std::string(key), value));
  };
  const std::string size = std::to_string(kSecond.size());
  for (const int flags : {O_RDWR, O_WRONLY}) {
    set("shape", "[" + size + "]");
    Descriptor first(mount, "second", flags);
    Descriptor second(mount, "second", flags);
    CHECK(set("dtype", "I8") == 0);
    CHECK(set("shape", "[1," + size + "]") == 0);
    CHECK(errno_of(first.close()) == 0);
    CHECK(errno_of(second.close()) == 0);
    CHECK(form_of(mount, "second") == "I8[1," + size + "]");
    CHECK(stored_tensors(mount).at("second") == kSecond);
    REQUIRE(set("dtype", "U8") == 0);
  }
  {
    Descriptor idle(mount, "second", O_RDWR);
    CHECK(set("shape", "[3]") == 0);
    CHECK(errno_of(idle.close()) == 0);
  }
  CHECK(form_of(mount, "second") == "U8[1," + size + "]");
  CHECK(stored_tensors(mount).at("second") == kSecond);
}
