// Requests that make files, with names of every kind, in every kind of directory.
#include <linux/fs.h>

#include <array>
#include <random>
#include <string>
#include <string_view>

#include "fs/read/pretrained_directory.h"
#include "tests/fs/descriptor.h"
#include "tests/fs/edited.h"
#include "tests/fs/transacted.h"
#include "tests/support/catch.h"

using namespace stfs;
using namespace stfs::test;

namespace {

const Tensors kDotted = {{"a.x", "1111"}, {"a.b.y", "2222"}, {"c", "3333"}};

/// Names that are hard to encode, that lead nowhere, or that the mount uses itself.
const std::array<std::string, 30> kOddNames = {"a%",
                                               "a%0ab",
                                               "%",
                                               "%%",
                                               "%2",
                                               "%2F",
                                               "%00",
                                               "%zz",
                                               "a%0ab.npy",
                                               "a%.npy",
                                               ".npy",
                                               "..npy",
                                               "%.npy",
                                               "a/b",
                                               "",
                                               ".",
                                               "..",
                                               "a.",
                                               ".a",
                                               "a..b",
                                               "~",
                                               "\xff\xfe",
                                               "\xc3(",
                                               "c[0:1]",
                                               "c[0:1].npy",
                                               "c[9:,:",
                                               "new",
                                               ".safetensors",
                                               std::string(255, 'n'),
                                               std::string(256, '%')};

/// Pieces of random names.
const std::array<std::string, 14> kPieces = {"%", "%2", "%2E", "%0A", ".",        "..",   "a",
                                             "c", "/",  "[",   "~",   "\xf0\x9f", ".npy", ".safetensors"};

class Fuzzed {
 public:
  Fuzzed(Layout layout, std::uint64_t seed) : mount_(kDotted, options(layout)), random_(seed) {
    directories_ = {kRootIno,
                    kHiddenIno,
                    Views::kNpy,
                    Views::kSlice,
                    Views::kFloat32,
                    TransactionDirectory::kTransactions,
                    TransactionDirectory::kCommitted,
                    PretrainedDirectory::kDirectory};
    const Ino begun = mount_->make_directory(kTransactions, "T")->st_ino;
    const Ino in_begun = mount_.ino(".safetensors", begun);
    directories_.insert(directories_.end(), {begun, in_begun, mount_.ino("npy", in_begun)});
    if (layout == Layout::Tree) {
      directories_.push_back(mount_.ino("a"));
      directories_.push_back(mount_.ino("b", mount_.ino("a")));
      directories_.push_back(mount_->make_directory(kRootIno, "empty")->st_ino);
    }
    // Files and unused inode numbers, which a request may also name as its directory.
    directories_.insert(directories_.end(), {mount_.ino("c"), Ino{0}, Ino{999}, Ino{1} << 33U,
                                             kFirstDirectoryIno + 99, Views::kNpyFiles + 77});
  }

  void send_all_with(const std::string& name) {
    for (const Ino directory : directories_) {
      for (int request = 0; request < kRequests; ++request) send(request, directory, name);
    }
  }
  void send_some() { send(number(kRequests), directory(), random_name()); }

  [[nodiscard]] const DrivenFilesystem& mount() const { return mount_; }

 private:
  static constexpr int kRequests = 7;

  static MountedModelOptions options(Layout layout) {
    MountedModelOptions options;
    options.layout = layout;
    return options;
  }
  int number(std::size_t below) { return static_cast<int>(random_() % below); }
  Ino directory() { return directories_[static_cast<std::size_t>(number(directories_.size()))]; }
  std::string random_name() {
    std::string name;
    for (int left = number(6); left >= 0; --left)
      name += kPieces[static_cast<std::size_t>(number(kPieces.size()))];
    return name;
  }

  void send(int request, Ino directory, const std::string& name) {
    CAPTURE(request, directory, name);
    MountedModel& filesystem = *mount_;
    switch (request) {
      case 0: create(directory, name); return;
      case 1: check(errno_of(filesystem.make_directory(directory, name))); return;
      case 2: check(errno_of(filesystem.rename(kRootIno, "c", directory, name, RENAME_NOREPLACE))); break;
      case 3: check(errno_of(filesystem.rename(directory, name, this->directory(), random_name()))); break;
      case 4:
        check(errno_of(filesystem.set_extended_attribute(directory, "user.safetensors." + name, "1")));
        return;
      case 5: check(errno_of(filesystem.lookup(directory, name))); return;
      default: check(errno_of(filesystem.remove_directory(directory, name))); return;
    }
  }
  void create(Ino directory, const std::string& name) {
    auto made = mount_->create(directory, name, O_RDWR | O_EXCL, ::getpid());
    check(errno_of(made));
    // A file of the source directory has no open state in the driver.
    if (!made || made->file == nullptr) return;
    check(errno_of(mount_->write(*made->file, bytes_of("x"), 0, Caller(1, ::getpid()))));
    check(errno_of(mount_->flush(*made->file, 1, ::getpid())));
    mount_->release(made->file);
  }
  /// Fails if the errno means that the mount is at fault.
  static void check(int errno_value) {
    CHECK(errno_value != EIO);
    CHECK(errno_value != ENOSYS);
  }

  DrivenFilesystem mount_;
  std::mt19937_64 random_;
  std::vector<Ino> directories_;
};

void check_sound(const DrivenFilesystem& mount) {
  const auto archive = Archive::open(mount.path(), Access::ReadOnly);
  REQUIRE(archive);
  const auto listed = list(mount);
  for (const std::string& name : listed) CHECK(mount->lookup(kRootIno, name));
}

}  // namespace

TEST_CASE("a NumPy file whose name no tensor can have is EILSEQ", "[fs][edit]") {
  for (const Layout layout : {Layout::Flat, Layout::Tree}) {
    MountedModelOptions options;
    options.layout = layout;
    const DrivenFilesystem mount(kThree, options);
    for (const std::string name : {"a%.npy", "a%0ab.npy", "%2.npy", "\xff.npy"}) {
      CAPTURE(name);
      CHECK(errno_of(mount->create(Views::kNpy, name, O_WRONLY, 1)) == EILSEQ);
    }
  }
}

TEST_CASE("no name harms the mount, whichever request and directory it comes with", "[fs][edit]") {
  const CapturedStderr captured;
  for (const Layout layout : {Layout::Flat, Layout::Tree}) {
    Fuzzed fuzzed(layout, 1);
    for (const std::string& name : kOddNames) fuzzed.send_all_with(name);
    check_sound(fuzzed.mount());
  }
}

TEST_CASE("random names do not harm the mount", "[fs][edit]") {
  const CapturedStderr captured;
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    CAPTURE(seed);
    Fuzzed fuzzed(seed % 2 == 0 ? Layout::Flat : Layout::Tree, seed);
    for (int left = 150; left > 0; --left) fuzzed.send_some();
    check_sound(fuzzed.mount());
  }
}

TEST_CASE("a name that no tensor can have is refused with the reason", "[fs][filesystem]") {
  const auto refusal = [](const MountedModelOptions& options, std::string_view name) {
    const DrivenFilesystem mount(kTwoTensors, options);
    const auto renamed = mount->rename(kRootIno, "first", kRootIno, name);
    return renamed ? "" : renamed.error().message;
  };
  const std::string of_dots = "a dot stands between two directories";
  CHECK(refusal(kTreeLayout, "a.b").find(of_dots) != std::string::npos);
  for (const MountedModelOptions& options : {kTreeLayout, MountedModelOptions{}})
    CHECK(refusal(options, "a%zz").find("% is written as %25") != std::string::npos);
  CHECK(refusal({}, "a.%zz").find("% is written as %25") != std::string::npos);
}

TEST_CASE("a deleted tensor that is open gets no other dtype", "[fs][filesystem]") {
  const DrivenFilesystem mount;
  const Descriptor reader(mount, "first", O_RDONLY);
  const Ino ino = mount.ino("first");
  REQUIRE(mount->remove_file(kRootIno, "first"));
  const auto typed = mount->set_extended_attribute(ino, "user.safetensors.dtype", "I8");
  REQUIRE_FALSE(typed);
  CHECK(typed.error().message.find("was deleted") != std::string::npos);
}
