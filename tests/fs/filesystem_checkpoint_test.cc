// A program writes a whole checkpoint to archive.safetensors: only the differences are stored, all of them or
// none.
#include <fmt/format.h>

#include "core/journal/file_lock.h"
#include "core/journal/journal_format.h"
#include "tests/fs/driven_filesystem.h"
#include "tests/fs/opened_or_made.h"
#include "tests/fs/stored_tensors.h"
#include "tests/support/catch.h"

using namespace stfs;
using namespace stfs::test;

namespace {

const std::string kLong(20'000, 'L');
const Tensors kModel = {{"a", kOld}, {"b", kLong}, {"c", kSecond}};

/// A program that saves a checkpoint.
class Saver {
 public:
  explicit Saver(const DrivenFilesystem& mount)
      : filesystem_(*mount),
        ino_(mount.ino("archive.safetensors", mount.ino(".safetensors"))),
        file_(filesystem_.open(ino_, O_WRONLY, ::getpid()).value()) {
    REQUIRE(filesystem_.resize_by_name(ino_, 0, ::getpid()));
  }
  /// A checkpoint under another name.
  Saver(const DrivenFilesystem& mount, std::string_view name)
      : Saver(mount, name, mount.ino(".safetensors")) {}
  Saver(const DrivenFilesystem& mount, std::string_view name, Ino directory) : filesystem_(*mount) {
    const auto made = opened_or_made(filesystem_, directory, name, O_RDWR);
    ino_ = made.status.st_ino;
    file_ = made.file;
  }
  ~Saver() {
    if (file_ != nullptr) filesystem_.release(file_);
  }
  Saver(const Saver&) = delete;
  Saver& operator=(const Saver&) = delete;

  /// @param piece_bytes  with the default, no piece ends at the end of a tensor.
  int write(std::string_view bytes, std::uint64_t offset = 0, std::size_t piece_bytes = 7001) {
    for (std::size_t done = 0; done < bytes.size(); done += piece_bytes) {
      const int why = errno_of(filesystem_.write(*file_, bytes_of(bytes.substr(done, piece_bytes)),
                                                 offset + done, Caller(1, ::getpid())));
      if (why != 0) return why;
    }
    return 0;
  }
  [[nodiscard]] PendingFile& content() const { return *file_->content; }
  int resize(std::uint64_t size) { return errno_of(filesystem_.resize(*file_, size, Caller(1, ::getpid()))); }
  int close() {
    const int verdict = errno_of(filesystem_.flush(*file_, 1, ::getpid()));
    filesystem_.release(std::exchange(file_, nullptr));
    return verdict;
  }

 private:
  MountedModel& filesystem_;
  Ino ino_ = 0;
  OpenFile* file_ = nullptr;
};

std::uint64_t inode_of(const std::string& path) {
  struct stat status {};
  REQUIRE(::stat(path.c_str(), &status) == 0);
  return status.st_ino;
}

std::map<std::string, std::string> map_of(const Tensors& tensors) {
  return {tensors.begin(), tensors.end()};
}

}  // namespace

TEST_CASE("a generation that is asked for during another process's commit changes nothing for a checkpoint",
          "[fs][checkpoint]") {
  const DrivenFilesystem mount(kModel);
  Tensors wanted = kModel;
  wanted[2].second = kNew;
  Saver saver(mount);
  REQUIRE(saver.write(archive_of(wanted)) == 0);
  {
    auto file = system_storage().open(mount.path(), Access::ReadWrite);
    REQUIRE(file);
    // This process takes the locks and changes nothing.
    auto locks = ArchiveLocks::for_patch(**file, mount.path(), {{0, 1}}, std::chrono::milliseconds(0));
    REQUIRE(locks);
    const std::uint64_t before = mount.generation("a");
    CHECK(mount.generation("a") > before);
  }
  CHECK(saver.close() == 0);
  CHECK(mount.stored("c") == kNew);
}

TEST_CASE("a checkpoint with other bytes patches the tensors that differ", "[fs][checkpoint]") {
  const DrivenFilesystem mount(kModel);
  const std::uint64_t file = inode_of(mount.path());
  const auto a = mount.generation("a");
  Tensors wanted = kModel;
  wanted[1].second[9000] = 'x';
  wanted[2].second = kNew;
  Saver saver(mount);
  CHECK(saver.write(archive_of(wanted)) == 0);
  CHECK(stored_tensors(mount) == map_of(kModel));
  CHECK(saver.close() == 0);
  CHECK(stored_tensors(mount) == map_of(wanted));
  CHECK(mount.read("b") == wanted[1].second);
  CHECK(inode_of(mount.path()) == file);
  CHECK(mount.generation("a") == a);
}

TEST_CASE(
    "a checkpoint that differs in one byte is saved, whichever byte it is and in whatever pieces it comes",
    "[fs][checkpoint]") {
  constexpr std::size_t kBlock = kBlockBytes;
  Tensors wanted;
  for (const std::size_t size : {std::size_t{1}, kBlock - 1, kBlock, kBlock + 1, 2 * kBlock, 5 * kBlock + 3})
    wanted.emplace_back("of " + std::to_string(size), std::string(size, '.'));
  const DrivenFilesystem mount(wanted);
  for (const std::size_t piece_bytes : {kBlock - 1, kBlock, kBlock + 1, std::size_t{1} << 20}) {
    for (std::size_t tensor = 0; tensor < wanted.size(); ++tensor) {
      std::string& bytes = wanted[tensor].second;
      for (const std::size_t at : {std::size_t{0}, kBlock - 1, kBlock, 2 * kBlock - 1, bytes.size() - 1}) {
        if (at >= bytes.size()) continue;
        INFO(wanted[tensor].first << ", byte " << at << ", in pieces of " << piece_bytes);
        ++bytes[at];
        Saver saver(mount);
        REQUIRE(saver.write(archive_of(wanted), 0, piece_bytes) == 0);
        REQUIRE(saver.close() == 0);
        REQUIRE(stored_tensors(mount) == map_of(wanted));
      }
    }
  }
}

TEST_CASE("a checkpoint with other tensors, forms and metadata is one edit", "[fs][checkpoint]") {
  const DrivenFilesystem mount(kModel, {}, system_storage(), R"({"old":"1","both":"1"})");
  Tensors wanted = {{"b", kLong}, {"a", "short"}, {"new", kNew}};
  wanted[0].second[10] = 'x';
  Saver saver(mount);
  CHECK(saver.write(archive_of(wanted, R"({"both":"2","new":"3"})")) == 0);
  CHECK(saver.close() == 0);
  CHECK(stored_tensors(mount) == map_of(wanted));
  CHECK(mount.read("a") == "short");
  CHECK(mount.read("b") == wanted[0].second);
  CHECK(errno_of(mount->lookup(kRootIno, "c")) == ENOENT);
  const auto archive = Archive::open(mount.path(), Access::ReadOnly).value();
  const Metadata& metadata = archive->metadata();
  CHECK(std::map<std::string, std::string>(metadata.begin(), metadata.end()) ==
        std::map<std::string, std::string>{{"both", "2"}, {"new", "3"}});
}

TEST_CASE("a checkpoint that is cut, too long, out of order or none changes nothing", "[fs][checkpoint]") {
  const DrivenFilesystem mount(kModel);
  const std::string before = stored_tensors(mount).at("b");
  Tensors wanted = kModel;
  wanted[1].second = std::string(20'000, 'M');
  const std::string bytes = archive_of(wanted);
  const auto save = [&](std::string_view what) {
    Saver saver(mount);
    const int why = saver.write(what);
    return why != 0 ? why : saver.close();
  };
  CHECK(save(bytes.substr(0, bytes.size() - 1)) == EINVAL);
  CHECK(save(bytes.substr(0, 20)) == EINVAL);
  CHECK(save(bytes + "x") == EINVAL);
  CHECK(save(std::string(3000, 'g')) == EINVAL);
  CHECK(save("") == 0);
  {
    Saver saver(mount);
    CHECK(saver.write(bytes.substr(0, 5000)) == 0);
    CHECK(saver.write(bytes.substr(6000), 6000) == EINVAL);
    CHECK(saver.close() == EINVAL);
  }
  {
    Saver saver(mount);
    CHECK(saver.resize(bytes.size() + 1) == 0);
    CHECK(saver.write(bytes) == 0);
    CHECK(saver.close() == EINVAL);
  }
  CHECK(stored_tensors(mount) == map_of(kModel));
  CHECK(mount.read("b") == before);
  CHECK(save(bytes) == 0);
  CHECK(stored_tensors(mount) == map_of(wanted));
}

TEST_CASE("a tensor that changes while a checkpoint comes refuses the checkpoint", "[fs][checkpoint]") {
  const DrivenFilesystem mount(kModel);
  Saver saver(mount);
  CHECK(saver.write(archive_of(kModel)) == 0);
  const auto file = mount->open(mount.ino("a"), O_WRONLY, ::getpid()).value();
  REQUIRE(mount->write(*file, bytes_of(kNew), 0, Caller(2, ::getpid())));
  REQUIRE(mount->flush(*file, 2, ::getpid()));
  mount->release(file);
  CHECK(saver.close() == ESTALE);
  CHECK(mount.read("a") == kNew);

  Tensors wanted = kModel;
  wanted[2].second = kNew;
  Saver other(mount);
  CHECK(other.write(archive_of(wanted)) == 0);
  const auto again = mount->open(mount.ino("c"), O_WRONLY, ::getpid()).value();
  REQUIRE(mount->write(*again, bytes_of(kOld), 0, Caller(2, ::getpid())));
  REQUIRE(mount->flush(*again, 2, ::getpid()));
  mount->release(again);
  CHECK(other.close() == ESTALE);
  CHECK(mount.read("c") == kOld);
}

TEST_CASE("a checkpoint that is refused is not counted as a commit", "[fs][checkpoint]") {
  const DrivenFilesystem mount(kModel);
  const auto commits = [&] { return mount->activity()->counts().commits; };
  Tensors wanted = kModel;
  wanted[2].second = kNew;
  Saver refused(mount);
  CHECK(refused.write(archive_of(wanted)) == 0);
  const auto file = mount->open(mount.ino("c"), O_WRONLY, ::getpid()).value();
  REQUIRE(mount->write(*file, bytes_of(kOld), 0, Caller(2, ::getpid())));
  REQUIRE(mount->flush(*file, 2, ::getpid()));
  mount->release(file);
  const std::uint64_t before = commits();
  CHECK(refused.close() == ESTALE);
  CHECK(commits() == before);

  Saver saver(mount);
  CHECK(saver.write(archive_of(wanted)) == 0);
  CHECK(saver.close() == 0);
  CHECK(commits() == before + 1);
}

TEST_CASE("a tensor that changes while the files of a checkpoint come refuses the checkpoint",
          "[fs][checkpoint]") {
  const DrivenFilesystem mount(kModel);
  const Ino directory = mount.ino("pretrained", mount.ino(".safetensors"));
  Tensors wanted = kModel;
  wanted[2].second = kNew;
  const std::string first = "model-00001-of-00002.safetensors";
  const std::string second = "model-00002-of-00002.safetensors";
  const auto save = [&](const std::string& name, const std::string& bytes) {
    Saver saver(mount, name, directory);
    CHECK(saver.write(bytes) == 0);
    return saver.close();
  };
  const auto save_index = [&] {
    const std::string map = fmt::format(R"({{"a":"{}","b":"{}","c":"{}"}})", first, second, second);
    return save("model.safetensors.index.json", fmt::format(R"({{"metadata":{{}},"weight_map":{}}})", map));
  };
  CHECK(save(first, archive_of({wanted[0]})) == 0);
  CHECK(save(second, archive_of({wanted[1], wanted[2]})) == 0);
  const bool changes = GENERATE(false, true);
  if (changes) {
    const auto file = mount->open(mount.ino("a"), O_WRONLY, ::getpid()).value();
    REQUIRE(mount->write(*file, bytes_of(kSecond), 0, Caller(2, ::getpid())));
    REQUIRE(mount->flush(*file, 2, ::getpid()));
    mount->release(file);
  }
  CHECK(save_index() == (changes ? ESTALE : 0));
  CHECK(mount.read("a") == (changes ? kSecond : kOld));
  CHECK(mount.read("c") == (changes ? kSecond : kNew));
}

TEST_CASE("a file of a checkpoint takes the name of one that was not saved, unless that is open",
          "[fs][checkpoint]") {
  const DrivenFilesystem mount(kModel);
  const Ino views = mount.ino(".safetensors");
  Saver open(mount, "x.safetensors");
  CHECK(open.write(archive_of(kModel)) == 0);
  {
    Saver other(mount, ".tmp2");
    CHECK(other.write(archive_of(kModel)) == 0);
    CHECK(other.close() == 0);
  }
  const Ino second = mount.ino(".tmp2", views);
  CHECK(errno_of(mount->rename(views, ".tmp2", views, "x.safetensors")) == EBUSY);
  CHECK(open.close() == 0);
  REQUIRE(mount->rename(views, ".tmp2", views, "x.safetensors"));
  CHECK(mount.ino("x.safetensors", views) == second);
}

TEST_CASE("a checkpoint under a temporary name counts when it is renamed", "[fs][checkpoint]") {
  const DrivenFilesystem mount(kModel);
  const Ino views = mount.ino(".safetensors");
  Tensors wanted = kModel;
  wanted[0].second = kNew;
  const std::string bytes = archive_of(wanted);
  {
    // The reference library sets the size first, and renames the file before the close.
    Saver saver(mount, ".tmpAbc");
    CHECK(saver.resize(bytes.size()) == 0);
    CHECK(saver.write(bytes) == 0);
    CHECK(errno_of(mount->lookup(views, ".tmpAbc")) == 0);
    REQUIRE(mount->rename(views, ".tmpAbc", views, "archive.safetensors"));
    CHECK(stored_tensors(mount) == map_of(wanted));
    CHECK(saver.close() == 0);
  }
  {
    Saver saver(mount, "x.safetensors.tmp");
    CHECK(saver.write(archive_of(kModel)) == 0);
    CHECK(saver.close() == 0);
  }
  CHECK(stored_tensors(mount) == map_of(wanted));
  REQUIRE(mount->rename(views, "x.safetensors.tmp", views, "y.safetensors"));
  REQUIRE(mount->rename(views, "y.safetensors", views, "archive.safetensors"));
  CHECK(stored_tensors(mount) == map_of(kModel));
  {
    Saver saver(mount, ".tmpCut");
    CHECK(saver.write(bytes.substr(0, 9000)) == 0);
    CHECK(errno_of(mount->rename(views, ".tmpCut", views, "archive.safetensors")) == ENODATA);
    {
      const MutexLock at_work(saver.content().mutex);  // as a commit, or a write
      CHECK(errno_of(mount->remove_file(views, ".tmpCut")) == EBUSY);
    }
    REQUIRE(mount->remove_file(views, ".tmpCut"));
    CHECK(errno_of(mount->lookup(views, ".tmpCut")) == ENOENT);
  }
  CHECK(mount->create(views, "notes", O_WRONLY, 1).error().errno_value == EPERM);
  CHECK(stored_tensors(mount) == map_of(kModel));
}

TEST_CASE("one checkpoint at a time, for writing only", "[fs][checkpoint]") {
  const DrivenFilesystem mount(kModel);
  const Ino archive = mount.ino("archive.safetensors", mount.ino(".safetensors"));
  const Saver saver(mount);
  CHECK(errno_of(mount->open(archive, O_WRONLY, 1)) == EBUSY);
  CHECK(errno_of(mount->open(archive, O_RDWR, 1)) == EROFS);
  CHECK(mount->open(archive, O_RDONLY, 1).value() == nullptr);
}

TEST_CASE("the end of the mount names each checkpoint that was not renamed", "[fs][checkpoint]") {
  const CapturedStderr captured;
  const DrivenFilesystem mount(kModel);
  for (const std::string_view name : {".tmp1", ".tmp2"}) {
    Saver saver(mount, name);
    CHECK(saver.write(archive_of(kModel)) == 0);
    CHECK(saver.close() == 0);
  }
  mount->end();
  CHECK(captured.contains("dropped: \".tmp1\" had not got a name"));
  CHECK(captured.contains("dropped: \".tmp2\" had not got a name"));
}
