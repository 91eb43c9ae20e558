// A dtype or a shape is set for a tensor while its NumPy file is written. The tensor then has the form and
// the bytes of one of the two changes.
#include "tests/fs/edited.h"
#include "tests/support/captured_stderr.h"
#include "tests/support/watched_storage.h"

using namespace stfs;
using namespace stfs::test;

namespace {

int set_form(const DrivenFilesystem& mount, std::string_view name, std::string_view key,
             const std::string& value) {
  return errno_of(
      mount->set_extended_attribute(mount.ino(name), "user.safetensors." + std::string(key), value));
}

Ino npy_of_mount(const DrivenFilesystem& mount) {
  return mount.ino("npy", mount.ino(".safetensors"));
}

MountedModelOptions reshaping() {
  MountedModelOptions options;
  options.reshapes = true;
  return options;
}

}  // namespace

TEST_CASE("a form that is set while a NumPy file is open is the tensor's at once", "[fs][edit][npy]") {
  const CapturedStderr captured;
  const DrivenFilesystem mount(kThree);
  WrittenFile file(mount, "first.npy", npy_of_mount(mount));
  file.cut();
  CHECK(set_form(mount, "first", "dtype", "I8") == 0);
  CHECK(form_of(mount, "first") == "I8[16]");
  CHECK(file.write(npy_of("|u1", "(16,)", kNew)) == 0);
  CHECK(set_form(mount, "first", "dtype", "F8_E4M3") == 0);
  CHECK(form_of(mount, "first") == "F8_E4M3[16]");
  CHECK(mount.read("first") == kOld);
  // The close comes later, and replaces the form and the bytes.
  CHECK(file.close() == 0);
  CHECK(form_of(mount, "first") == "U8[16]");
  CHECK(mount.read("first") == kNew);
  CHECK(stored_tensors(mount).at("first") == kNew);
}

TEST_CASE("a NumPy file replaces a shape that was set meanwhile with -o reshape alone", "[fs][edit][npy]") {
  const CapturedStderr captured;
  for (const bool reshapes : {false, true}) {
    const DrivenFilesystem mount(kThree, reshapes ? reshaping() : MountedModelOptions{});
    WrittenFile file(mount, "first.npy", npy_of_mount(mount));
    file.cut();
    CHECK(file.write(npy_of("|u1", "(16,)", kNew)) == 0);
    CHECK(set_form(mount, "first", "shape", "[4,4]") == 0);
    CHECK(file.close() == (reshapes ? 0 : EINVAL));
    CHECK(form_of(mount, "first") == (reshapes ? "U8[16]" : "U8[4,4]"));
    CHECK(mount.read("first") == (reshapes ? kNew : kOld));
    CHECK(stored_tensors(mount).at("first") == (reshapes ? kNew : kOld));
  }
}

TEST_CASE("a part of a NumPy file is not written to a tensor that has got another form", "[fs][edit][npy]") {
  const CapturedStderr captured;
  const DrivenFilesystem mount(kThree, GENERATE(MountedModelOptions{}, reshaping()));
  const Ino npy = npy_of_mount(mount);
  const std::uint64_t head = mount->attributes(mount.ino("first.npy", npy))->st_size - kOld.size();
  {
    WrittenFile file(mount, "first.npy", npy);
    CHECK(file.write("x", head + 3) == 0);
    CHECK(set_form(mount, "first", "dtype", "I8") == 0);
    CHECK(file.close() == ESTALE);
  }
  CHECK(form_of(mount, "first") == "I8[16]");
  CHECK(mount.read("first") == kOld);
  {
    WrittenFile again(mount, "first.npy", npy);
    CHECK(again.write("x", head + 3) == 0);
    CHECK(again.close() == 0);
  }
  CHECK(form_of(mount, "first") == "I8[16]");
  CHECK(mount.read("first") == "AAAx" + kOld.substr(4));
  // After a cut all content is new.
  const Caller self(1, ::getpid());
  OpenFile* const whole = mount->open(mount.ino("first.npy", npy), O_WRONLY, ::getpid()).value();
  CHECK(mount->write(*whole, bytes_of("x"), head + 3, self));
  CHECK(set_form(mount, "first", "dtype", "U8") == 0);
  CHECK(mount->resize(*whole, 0, self));
  CHECK(mount->write(*whole, bytes_of(npy_of("|i1", "(16,)", kNew)), 0, self));
  CHECK(errno_of(mount->flush(*whole, 1, ::getpid())) == 0);
  static_cast<void>(mount->release(whole));
  CHECK(form_of(mount, "first") == "I8[16]");
  CHECK(mount.read("first") == kNew);
}

TEST_CASE("a form that is set during the commit of a NumPy file does not mix with it", "[fs][edit][npy]") {
  const CapturedStderr captured;
  const DrivenFilesystem* present = nullptr;
  WatchedStorage storage([&](const SeamCall& call) {
    // The check of the tensor's form is done before the first write of the commit.
    if (call.kind == FileCall::Write && present != nullptr)
      CHECK(set_form(*std::exchange(present, nullptr), "new", "dtype", "I8") == 0);
    return Verdict{};
  });
  const DrivenFilesystem mount(kThree, {}, storage);
  make_room(mount);
  WrittenFile file(mount, "new.npy", npy_of_mount(mount));
  CHECK(file.write(npy_of("|u1", "(16,)", kNew)) == 0);
  REQUIRE(mount->rename(kRootIno, "first", kRootIno, "new"));
  present = &mount;
  CHECK(file.close() == 0);
  CHECK(present == nullptr);
  CHECK(form_of(mount, "new") == "U8[16]");
  CHECK(mount.read("new") == kNew);
  CHECK(stored_tensors(mount).at("new") == kNew);
}
