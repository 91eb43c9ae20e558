// The root of a directory of models: what is made there, moved and deleted, without a kernel.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <future>
#include <thread>
#include <utility>

#include "fs/base/requester.h"
#include "fs/base/user_counts.h"
#include "fs/model/forest.h"
#include "tests/fs/driven_model.h"
#include "tests/support/captured_stderr.h"
#include "tests/support/catch.h"
#include "tests/support/skip.h"

using namespace stfs;
using namespace stfs::test;

namespace {

using Names = std::vector<std::string>;

FilesystemOptions with(bool FilesystemOptions::*option, bool value) {
  FilesystemOptions options;
  options.*option = value;
  return options;
}

/// A directory with the archive one.safetensors, and the forest that shows it.
struct Zoo {
  explicit Zoo(const FilesystemOptions& options = {}) {
    const Forest::OpenerOf opener_of = [this](const std::filesystem::path& path) -> Forest::Open {
      return [this, path](const Forest::Heritage& heritage) -> Result<std::unique_ptr<Filesystem>> {
        auto archive = Archive::open(path, Access::ReadWrite);
        if (!archive) return pass_on(std::move(archive));
        at_open(path.filename().string());
        FilesystemOptions its;
        its.activity = heritage.activity;
        its.least_generation = heritage.least_generation;
        return std::make_unique<Filesystem>(std::move(*archive), its);
      };
    };
    std::vector<Forest::Member> members;
    members.push_back({.name = "one",
                       .path = directory.path() / "one.safetensors",
                       .filesystem = opener_of(first)({}).value(),
                       .open = opener_of(first)});
    forest = std::make_unique<Forest>(std::move(members));
    forest->show_source(std::make_unique<SourceDirectory>(directory.path(), options), opener_of);
  }

  [[nodiscard]] static Maker self() { return {.uid = ::getuid(), .gid = ::getgid(), .other_groups = {}}; }
  Result<Forest::Created> create(std::string_view name) const { return create(name, self()); }
  Result<Forest::Created> create(std::string_view name, const Maker& maker) const {
    auto made = forest->create(kRootIno, name, O_RDWR, 0640, maker, ::getpid());
    if (made) forest->note_lookup(made->status.st_ino);
    return made;
  }
  [[nodiscard]] int write(const Forest::Created& made, std::string_view text, std::uint64_t at = 0) const {
    if (made.file == nullptr)
      return errno_of(served(made).files.write(served(made).node, bytes_of(text), at, 0));
    return errno_of(forest->write_made(*made.file, bytes_of(text), at, Caller(1, ::getpid())));
  }
  [[nodiscard]] int close(const Forest::Created& made) const {
    const int verdict = made.file == nullptr ? errno_of(served(made).files.close(served(made).node))
                                             : errno_of(forest->flush_made(*made.file, 1, ::getpid()));
    if (made.file != nullptr) static_cast<void>(forest->release_made(made.file));
    forest->forget(made.status.st_ino, 1);
    return verdict;
  }
  [[nodiscard]] Forest::Served served(const Forest::Created& made) const {
    return forest->served(Forest::Pin(), made.status.st_ino);
  }
  [[nodiscard]] std::string text(Ino ino) const { return text_of(forest->read(ino, 0, 100)->copy().value()); }
  /// Looks the name up as the kernel does.
  [[nodiscard]] Ino ino(std::string_view name, Ino parent = kRootIno) const {
    return forest->lookup(parent, name)->st_ino;
  }
  /// As a program does that writes a file whole.
  [[nodiscard]] int save(std::string_view name, std::string_view text) const {
    return save(name, text, self());
  }
  [[nodiscard]] int save(std::string_view name, std::string_view text, const Maker& maker) const {
    const auto made = create(name, maker);
    if (!made) return made.error().errno_value;
    const int written = write(*made, text);
    return std::max(written, close(*made));
  }
  [[nodiscard]] int rename(std::string_view from, std::string_view to, unsigned flags = 0) const {
    return errno_of(forest->rename(kRootIno, from, kRootIno, to, flags));
  }
  [[nodiscard]] Names listed() const {
    Names names;
    static_cast<void>(forest->read_directory(kRootIno, 2, [&](std::string_view name, Ino, std::uint64_t) {
      names.emplace_back(name);
      return true;
    }));
    std::ranges::sort(names);
    return names;
  }
  [[nodiscard]] Names files() const {
    Names names;
    for (const auto& entry : std::filesystem::directory_iterator(directory.path()))
      names.push_back(entry.path().filename());
    std::ranges::sort(names);
    return names;
  }
  [[nodiscard]] std::string content(std::string_view model, std::string_view tensor) const {
    const auto ino = forest->lookup(forest->lookup(kRootIno, model)->st_ino, tensor)->st_ino;
    return text_of(forest->model_of(ino)->read(ino, 0, 1 << 20).value().copy().value());
  }

  /// Called when the archive of that name has been opened, and before its model is shown.
  std::function<void(const std::string& file_name)> at_open = [](const std::string&) {};
  const CapturedStderr captured;
  const TemporaryDirectory directory;
  const std::string first = directory.write("one.safetensors", archive_of(DrivenModel::kOne));
  const std::string two = archive_of(DrivenModel::kTwo);
  std::unique_ptr<Forest> forest;
};

/// Holds up the first opening of one archive.
class Opening {
 public:
  explicit Opening(std::string file_name) : file_name_(std::move(file_name)) {}
  void operator()(const std::string& file_name) {
    if (file_name != file_name_ || has_begun_.exchange(true)) return;
    begun_.set_value();
    may_go_on_.get_future().wait();
  }
  void wait() { begun_.get_future().wait(); }
  void go_on() { may_go_on_.set_value(); }

 private:
  const std::string file_name_;
  std::atomic<bool> has_begun_ = false;
  std::promise<void> begun_;
  std::promise<void> may_go_on_;
};

}  // namespace

TEST_CASE("an archive that is made in the root becomes a model at its close", "[fs][forest]") {
  const Zoo zoo;
  const auto made = zoo.create("two.safetensors");
  REQUIRE(made);
  REQUIRE(zoo.write(*made, zoo.two.substr(0, 100)) == 0);
  CHECK(zoo.files() == Names{"one.safetensors"});
  CHECK(zoo.listed() == Names{"one", "two.safetensors"});
  const Ino ino = zoo.forest->lookup(kRootIno, "two.safetensors")->st_ino;
  CHECK(ino == made->status.st_ino);
  CHECK(zoo.forest->attributes(ino)->st_size == 100);
  CHECK(text_of(zoo.forest->made(ino)->read(90, 100).value()) == zoo.two.substr(90, 10));
  CHECK(errno_of(zoo.forest->open_made(ino, O_WRONLY)) == EBUSY);
  CHECK(errno_of(zoo.create("two.safetensors")) == EEXIST);
  REQUIRE(zoo.write(*made, zoo.two.substr(100), 100) == 0);
  CHECK(zoo.close(*made) == 0);
  CHECK(zoo.files() == Names{"one.safetensors", "two.safetensors"});
  CHECK(zoo.listed() == Names{"one", "two"});
  CHECK(zoo.content("two", "c") == "CCCCC");
  CHECK(zoo.forest->file_type(zoo.forest->lookup(kRootIno, "two.safetensors")->st_ino) == S_IFREG);
  struct stat st {};
  REQUIRE(::stat((zoo.directory / "two.safetensors").c_str(), &st) == 0);
  CHECK((st.st_mode & 0777) == 0640);
  CHECK(zoo.forest->watched_files().size() == 3);
  zoo.forest->forget(ino, 1);
  CHECK(errno_of(zoo.forest->attributes(ino)) == ENOENT);
}

TEST_CASE("a save that was begun before replaces no archive that the sticky bit keeps", "[fs][forest]") {
  if (::geteuid() != 0) return note_skip("needs root, to make files of another user");
  const Zoo zoo;
  REQUIRE(::chmod(zoo.directory.path().c_str(), 01777) == 0);
  const std::string path = zoo.directory.write("own.safetensors", zoo.two);
  REQUIRE(::chown(path.c_str(), 12345, 12345) == 0);
  const auto made = zoo.create("new.safetensors");
  REQUIRE(made);
  REQUIRE(zoo.write(*made, zoo.two.substr(0, 100)) == 0);
  {
    const Requester user(12345, 1);
    REQUIRE(zoo.rename("new.safetensors", "own.safetensors") == 0);
  }
  const bool is_anothers = GENERATE(false, true);
  if (is_anothers) {
    std::filesystem::remove(path);
    zoo.directory.write("own.safetensors", archive_of(DrivenModel::kOne));
  }
  REQUIRE(zoo.write(*made, zoo.two.substr(100), 100) == 0);
  CHECK(zoo.close(*made) == (is_anothers ? EEXIST : 0));
  CHECK(content_of(path) == (is_anothers ? archive_of(DrivenModel::kOne) : zoo.two));
}

TEST_CASE("the places of deleted models are used again", "[fs][forest]") {
  const Zoo zoo;
  for (std::size_t number = 0; number < Forest::kMostMembers + 5; ++number) {
    const std::string name = std::to_string(number) + ".safetensors";
    REQUIRE(zoo.save(name, zoo.two) == 0);
    REQUIRE(zoo.forest->remove(kRootIno, name));
  }
  REQUIRE(zoo.save("last.safetensors", zoo.two) == 0);
  CHECK(zoo.listed() == Names{"last", "one"});
  CHECK(zoo.content("last", "c") == "CCCCC");
}

TEST_CASE("a user may have so many models, and stops no other user", "[fs][forest]") {
  if (::geteuid() != 0) return note_skip("needs root, to make files of another user");
  const Zoo zoo;
  const auto save_as = [&](uid_t uid, const std::string& name) {
    const Requester requester(uid, 1);
    const auto made = zoo.forest->create(kRootIno, name, O_RDWR, 0640,
                                         {.uid = uid, .gid = uid, .other_groups = {}}, ::getpid());
    if (!made) return made.error().errno_value;
    zoo.forest->note_lookup(made->status.st_ino);
    const int written = zoo.write(*made, zoo.two);
    return std::max(written, zoo.close(*made));
  };
  const std::size_t most = UserLimits().models;
  for (std::size_t number = 0; number < most; ++number)
    REQUIRE(save_as(12345, std::to_string(number) + ".safetensors") == 0);
  CHECK(save_as(12345, "more.safetensors") == EDQUOT);
  CHECK(save_as(23456, "other.safetensors") == 0);
  CHECK(save_as(0, "roots.safetensors") == 0);
  REQUIRE(zoo.forest->remove(kRootIno, "0.safetensors"));
  zoo.forest->tidy();
  CHECK(save_as(12345, "more.safetensors") == 0);
}

TEST_CASE("a stream that is no whole archive makes nothing", "[fs][forest]") {
  const Zoo zoo;
  for (const std::string& bad :
       {zoo.two.substr(0, zoo.two.size() - 1), zoo.two + "x", std::string(8, '\xff')}) {
    CHECK(zoo.save("two.safetensors", bad) == EINVAL);
    CHECK(zoo.listed() == Names{"one"});
    CHECK(zoo.files() == Names{"one.safetensors"});
  }
  const auto nothing = zoo.create("two.safetensors");
  REQUIRE(nothing);
  CHECK(zoo.close(*nothing) == 0);
  CHECK(zoo.listed() == Names{"one"});
  // A name that comes meanwhile is not replaced.
  const auto late = zoo.create("two.safetensors");
  REQUIRE(late);
  REQUIRE(zoo.write(*late, zoo.two) == 0);
  static_cast<void>(zoo.directory.write("two.safetensors", "theirs"));
  CHECK(zoo.close(*late) == EEXIST);
  CHECK(content_of(zoo.directory.path() / "two.safetensors") == "theirs");
}

TEST_CASE("a close by others waits for the writer, and the last release names what is whole",
          "[fs][forest]") {
  const Zoo zoo;
  const auto made = zoo.create("two.safetensors");
  REQUIRE(made);
  REQUIRE(zoo.write(*made, zoo.two.substr(0, 50)) == 0);
  constexpr pid_t kInit = 1;
  CHECK(errno_of(zoo.forest->flush_made(*made->file, 2, kInit)) == 0);
  REQUIRE(zoo.write(*made, zoo.two.substr(50), 50) == 0);
  CHECK_FALSE(zoo.forest->release_made(made->file).entries.empty());
  CHECK(zoo.content("two", "c") == "CCCCC");
}

TEST_CASE("a plain file becomes a model by its rename, or replaces one", "[fs][forest]") {
  const Zoo zoo;
  CHECK(zoo.save("x.tmp", zoo.two) == 0);
  CHECK(zoo.files() == Names{"one.safetensors", "x.tmp"});
  CHECK(zoo.listed() == Names{"one", "x.tmp"});
  CHECK(zoo.rename("x.tmp", "two.safetensors", RENAME_NOREPLACE) == 0);
  CHECK(zoo.content("two", "c") == "CCCCC");
  CHECK(zoo.listed() == Names{"one", "two"});

  CHECK(zoo.save("bad.tmp", "no archive") == 0);
  CHECK(zoo.rename("bad.tmp", "three.safetensors") == ENODATA);
  CHECK(zoo.rename("bad.tmp", "one.safetensors", RENAME_NOREPLACE) == EEXIST);
  CHECK(zoo.listed() == Names{"bad.tmp", "one", "two"});

  const Ino old = zoo.forest->lookup(zoo.forest->lookup(kRootIno, "one")->st_ino, "b")->st_ino;
  const auto open = zoo.create("y.tmp");
  REQUIRE(open);
  REQUIRE(zoo.write(*open, zoo.two) == 0);
  CHECK(zoo.rename("y.tmp", "one.safetensors") == 0);
  CHECK(zoo.write(*open, "x") == ESTALE);
  CHECK(zoo.close(*open) == 0);
  CHECK(zoo.content("one", "c") == "CCCCC");
  CHECK(text_of(zoo.forest->model_of(old)->read(old, 0, 1).value().copy().value()) == "B");
}

TEST_CASE("an archive that is arriving may get another name", "[fs][forest]") {
  const Zoo zoo;
  const auto made = zoo.create("tmp.safetensors");
  REQUIRE(made);
  REQUIRE(zoo.write(*made, zoo.two.substr(0, 50)) == 0);
  CHECK(zoo.rename("tmp.safetensors", "x") == EPERM);
  CHECK(zoo.rename("tmp.safetensors", "one.safetensors") == 0);
  CHECK(zoo.content("one", "b").starts_with('B'));
  REQUIRE(zoo.write(*made, zoo.two.substr(50), 50) == 0);
  CHECK(zoo.close(*made) == 0);
  CHECK(zoo.content("one", "c") == "CCCCC");
  CHECK(zoo.files() == Names{"one.safetensors"});

  const auto gone = zoo.create("gone.safetensors");
  REQUIRE(gone);
  REQUIRE(zoo.write(*gone, zoo.two) == 0);
  REQUIRE(zoo.forest->remove(kRootIno, "gone.safetensors"));
  CHECK(zoo.write(*gone, "x", zoo.two.size()) == ESTALE);
  CHECK(zoo.close(*gone) == ESTALE);
  CHECK(zoo.files() == Names{"one.safetensors"});
}

TEST_CASE("models are renamed and deleted by their files", "[fs][forest]") {
  const Zoo zoo;
  CHECK(zoo.rename("one.safetensors", "other.safetensors") == 0);
  CHECK(zoo.listed() == Names{"other"});
  CHECK(zoo.content("other", "b").starts_with('B'));
  CHECK(errno_of(zoo.forest->lookup(kRootIno, "one")) == ENOENT);
  CHECK(errno_of(zoo.forest->lookup(kRootIno, "one.safetensors")) == ENOENT);
  CHECK(zoo.rename("other", "x") == EPERM);
  CHECK(zoo.save("one.safetensors", zoo.two) == 0);
  CHECK(zoo.listed() == Names{"one", "other"});
  REQUIRE(zoo.forest->remove(kRootIno, "one.safetensors"));
  REQUIRE(zoo.forest->remove(kRootIno, "other.safetensors"));
  CHECK(zoo.listed().empty());
  CHECK(zoo.files().empty());
  CHECK(errno_of(zoo.forest->remove(kRootIno, "one.safetensors")) == ENOENT);
  zoo.forest->tidy();
  zoo.forest->end();
}

TEST_CASE("a model's name is not given twice", "[fs][forest]") {
  const Zoo zoo;
  CHECK(S_ISDIR(zoo.forest->make_directory(kRootIno, "two", 0755, zoo.self())->st_mode));
  CHECK(errno_of(zoo.create("two.safetensors")) == EEXIST);
  CHECK(zoo.rename("one.safetensors", "two.safetensors") == EEXIST);
  CHECK(errno_of(zoo.create("one.safetensors")) == EEXIST);
  CHECK(errno_of(zoo.create(".safetensors")) == EPERM);
  CHECK(errno_of(zoo.create(".one.stj.0123456789abcdef0123456789abcdef")) == EPERM);
  CHECK(errno_of(zoo.forest->make_directory(kRootIno, "x.safetensors", 0755, zoo.self())) == EPERM);
  CHECK(errno_of(zoo.forest->make_directory(kRootIno, "one", 0755, zoo.self())) == EEXIST);
  CHECK(errno_of(zoo.create("one")) == EEXIST);
  CHECK(errno_of(zoo.forest->remove(kRootIno, "one")) == EPERM);
  CHECK(errno_of(zoo.forest->remove_directory(kRootIno, "one")) == EPERM);
  REQUIRE(zoo.forest->remove_directory(kRootIno, "two"));
  CHECK(zoo.files() == Names{"one.safetensors"});
}

TEST_CASE("other entries of the directory are files of the mount", "[fs][forest]") {
  const Zoo zoo;
  static_cast<void>(zoo.directory.write("config.json", "{}"));
  static_cast<void>(zoo.directory.write(".hidden", "{}"));
  static_cast<void>(zoo.directory.write(".one.stj.0123456789abcdef0123456789abcdef", ""));
  static_cast<void>(zoo.directory.write(".safetensors", "is another in the mount"));
  std::filesystem::create_directories(zoo.directory / ".one.safetensors.scratch");
  std::filesystem::create_directories(zoo.directory / "sub");
  static_cast<void>(zoo.directory.write("sub/x", "sub"));
  CHECK(zoo.listed() == Names{".hidden", "config.json", "one", "sub"});
  const Ino file = zoo.ino("config.json");
  CHECK(zoo.forest->file_type(file) == S_IFREG);
  CHECK(zoo.text(file) == "{}");
  CHECK(zoo.forest->label_of(file, "") == zoo.directory / "config.json");
  const Ino sub = zoo.ino("sub");
  CHECK(zoo.forest->file_type(sub) == S_IFDIR);
  CHECK(zoo.text(zoo.ino("x", sub)) == "sub");
  CHECK(zoo.forest->label_of(sub, "y") == zoo.directory / "sub/y");
  std::map<std::string, Ino> entries;
  REQUIRE(zoo.forest->read_directory(sub, 0, [&](std::string_view name, Ino ino, std::uint64_t) {
    return entries.emplace(name, ino).second;
  }));
  CHECK(entries.at("..") == kRootIno);
  CHECK(entries.at("x") == zoo.ino("x", sub));
  CHECK(S_ISDIR(zoo.forest->lookup(kRootIno, ".safetensors")->st_mode));
  CHECK((zoo.forest->attributes(kRootIno)->st_mode & 0777) == 0755);  // one.safetensors is everybody's
}

TEST_CASE("files beside the models go to the source, at once", "[fs][forest]") {
  const Zoo zoo;
  const Ino sub = zoo.forest->make_directory(kRootIno, "sub", 0750, zoo.self())->st_ino;
  const auto made = zoo.forest->create(sub, "x", O_RDWR, 0640, zoo.self(), ::getpid());
  REQUIRE(made);
  CHECK(made->file == nullptr);
  CHECK(zoo.write(*made, "text") == 0);
  CHECK(content_of(zoo.directory.path() / "sub/x") == "text");
  CHECK(zoo.close(*made) == 0);
  CHECK(errno_of(zoo.forest->create(sub, "x", O_RDWR | O_EXCL, 0640, zoo.self(), ::getpid())) == EEXIST);
  CHECK(zoo.forest->create(sub, "x", O_RDWR, 0640, zoo.self(), ::getpid()));
  // Archives in another directory are files, and do not move to the root or from it.
  CHECK(errno_of(zoo.forest->create(sub, "m.safetensors", O_RDWR, 0640, zoo.self(), ::getpid())) == 0);
  const auto rename = [&](Ino from, const char* name, Ino to, const char* new_name) {
    return errno_of(zoo.forest->rename(from, name, to, new_name));
  };
  CHECK(rename(sub, "m.safetensors", kRootIno, "m.safetensors") == EXDEV);
  CHECK(rename(kRootIno, "one.safetensors", sub, "one.safetensors") == EXDEV);
  CHECK(rename(kRootIno, "one", sub, "one") == EXDEV);
  CHECK(rename(sub, "x", zoo.ino("one"), "x") == EXDEV);
  CHECK(rename(sub, "x", kRootIno, "x") == 0);
  CHECK(zoo.files() == Names{"one.safetensors", "sub", "x"});
  CHECK(errno_of(zoo.forest->remove_directory(kRootIno, "sub")) == ENOTEMPTY);
  REQUIRE(zoo.forest->remove(sub, "m.safetensors"));
  REQUIRE(zoo.forest->remove_directory(kRootIno, "sub"));
  CHECK(zoo.listed() == Names{"one", "x"});
}

TEST_CASE("a read-only mount changes nothing beside the models", "[fs][forest]") {
  const Zoo zoo(with(&FilesystemOptions::is_read_only, true));
  static_cast<void>(zoo.directory.write("notes.txt", "kept"));
  const auto [files, node] = zoo.forest->served(Forest::Pin(), zoo.ino("notes.txt"));
  CHECK((zoo.forest->attributes(node.ino)->st_mode & 0222) == 0);
  CHECK(errno_of(files.open(node, O_WRONLY)) == EROFS);
  CHECK(errno_of(files.write(node, bytes_of("x"), 0, 0)) == EROFS);
  CHECK(errno_of(files.resize(node, 0)) == EROFS);
  CHECK(errno_of(files.change(node, {.permissions = 0600})) == EROFS);
  CHECK(errno_of(zoo.create("x")) == EROFS);
  CHECK(errno_of(zoo.create("x.safetensors")) == EROFS);
  CHECK(errno_of(zoo.forest->make_directory(kRootIno, "x", 0755, zoo.self())) == EROFS);
  CHECK(errno_of(zoo.forest->remove(kRootIno, "notes.txt")) == EROFS);
  CHECK(errno_of(zoo.forest->remove(kRootIno, "one.safetensors")) == EROFS);
  CHECK(zoo.rename("notes.txt", "x") == EROFS);
  CHECK(zoo.rename("one.safetensors", "x") == EROFS);
  CHECK(zoo.files() == Names{"notes.txt", "one.safetensors"});
  CHECK(content_of(zoo.directory.path() / "notes.txt") == "kept");
}

TEST_CASE("without edits nothing is made, moved or deleted in the root", "[fs][forest]") {
  const Zoo zoo(with(&FilesystemOptions::allows_edits, false));
  CHECK(errno_of(zoo.create("two.safetensors")) == EPERM);
  CHECK(errno_of(zoo.create("x")) == EPERM);
  CHECK(errno_of(zoo.forest->make_directory(kRootIno, "x", 0755, zoo.self())) == EPERM);
  CHECK(errno_of(zoo.forest->remove(kRootIno, "one.safetensors")) == EPERM);
  CHECK(zoo.rename("one.safetensors", "x") == EPERM);
  CHECK(zoo.files() == Names{"one.safetensors"});
}

TEST_CASE("in a shared mount other entries are for those who may list the directory", "[fs][forest]") {
  const Zoo zoo(with(&FilesystemOptions::is_shared, true));
  static_cast<void>(zoo.directory.write("config.json", "{}"));
  ::chmod(zoo.first.c_str(), 0644);
  for (const mode_t mode : {0700U, 0755U}) {
    ::chmod(zoo.directory.path().c_str(), mode);
    static_cast<void>(zoo.forest->check_for_change(zoo.forest->watched_files().back()));
    static_cast<void>(zoo.forest->lookup(kRootIno, "other"));
    CHECK(zoo.listed() == (mode == 0700 ? Names{"one"} : Names{"config.json", "one"}));
    CHECK(errno_of(zoo.forest->lookup(kRootIno, "config.json")) == (mode == 0700 ? ENOENT : 0));
    CHECK((zoo.forest->attributes(kRootIno)->st_mode & 0777) == 0755);
  }
}

TEST_CASE("archives that others put into the directory are shown", "[fs][forest]") {
  const Zoo zoo;
  const auto watched = zoo.forest->watched_files();
  const auto& directory = watched.front();
  CHECK_FALSE(directory.path.has_filename());
  static_cast<void>(zoo.directory.write("two.safetensors", zoo.two.substr(0, 100)));
  CHECK_FALSE(zoo.forest->check_for_change(directory).is_reopened);
  CHECK(zoo.listed() == Names{"one"});
  static_cast<void>(zoo.directory.write("two.safetensors", zoo.two));
  const auto change = zoo.forest->check_for_change(directory);
  CHECK(change.is_reopened);
  CHECK(change.entries == Names{"two", "two.safetensors"});
  CHECK(zoo.content("two", "c") == "CCCCC");
  CHECK_FALSE(zoo.forest->check_for_change(directory).is_reopened);
  // What a program makes through the mount must be watched, too.
  CHECK(zoo.save("three.safetensors", zoo.two) == 0);
  CHECK(zoo.forest->check_for_change(directory).is_reopened);
  CHECK_FALSE(zoo.forest->check_for_change(directory).is_reopened);
}

TEST_CASE("a save waits for no other model that opens", "[fs][forest]") {
  constexpr Maker kMallory{.uid = 12345, .gid = 12345, .other_groups = {}};
  const bool is_saved = GENERATE(false, true);
  if (is_saved && ::geteuid() != 0) return note_skip("needs root, to save as another user");
  Zoo zoo;
  Opening opening("large.safetensors");
  zoo.at_open = std::ref(opening);
  std::thread other([&] {
    if (is_saved) return static_cast<void>(zoo.save("large.safetensors", zoo.two, kMallory));
    static_cast<void>(zoo.directory.write("large.safetensors", zoo.two));
    static_cast<void>(zoo.forest->check_for_change(zoo.forest->watched_files().front()));
  });
  opening.wait();
  auto saving = std::async(std::launch::async, [&] { return zoo.save("own.safetensors", zoo.two); });
  const bool has_ended = saving.wait_for(std::chrono::seconds(60)) == std::future_status::ready;
  CHECK(has_ended);
  if (has_ended) CHECK(zoo.content("own", "c") == "CCCCC");
  opening.go_on();
  other.join();
  CHECK(saving.get() == 0);
  CHECK(zoo.listed() == Names{"large", "one", "own"});
}

TEST_CASE("of an archive that is replaced while it opens the new one is shown", "[fs][forest]") {
  Zoo zoo;
  if (GENERATE(false, true)) {  // there was one of this name
    REQUIRE(zoo.save("two.safetensors", zoo.two) == 0);
    REQUIRE(zoo.forest->remove(kRootIno, "two.safetensors"));
  }
  Opening opening("two.safetensors");
  zoo.at_open = std::ref(opening);
  static_cast<void>(zoo.directory.write("two.safetensors", zoo.two));
  Forest::Change change;
  std::thread follower([&] { change = zoo.forest->check_for_change(zoo.forest->watched_files().front()); });
  opening.wait();
  REQUIRE(zoo.save("x.tmp", archive_of(DrivenModel::kOne)) == 0);
  CHECK(zoo.rename("x.tmp", "two.safetensors") == 0);
  CHECK(zoo.content("two", "b").starts_with('B'));
  opening.go_on();
  follower.join();
  CHECK(zoo.content("two", "b").starts_with('B'));
  CHECK(zoo.listed() == Names{"one", "two"});
  zoo.forest->tidy();
}

TEST_CASE("of one user's saves one opens at a time", "[fs][forest]") {
  Zoo zoo;
  std::atomic<int> opening = 0;
  std::atomic<int> most = 0;
  zoo.at_open = [&](const std::string&) {
    most = std::max(most.load(), ++opening);
    std::this_thread::yield();
    --opening;
  };
  std::vector<std::thread> savers;
  for (int at = 0; at < 8; ++at) {
    savers.emplace_back([&, at] {
      for (int number = 0; number < 5; ++number)
        static_cast<void>(zoo.save(fmt::format("m{}-{}.safetensors", at, number), zoo.two));
    });
  }
  for (std::thread& saver : savers) saver.join();
  CHECK(most == 1);
  CHECK(zoo.listed().size() == 41);
}

TEST_CASE("a model hides an entry of its name, as it does at the mount", "[fs][forest]") {
  const Zoo zoo;
  std::filesystem::create_directory(zoo.directory.path() / "one");
  std::filesystem::create_directory(zoo.directory.path() / "two");
  CHECK(zoo.listed() == Names{"one", "two"});
  CHECK(zoo.content("one", "b").starts_with('B'));
  static_cast<void>(zoo.directory.write("two.safetensors", zoo.two));
  static_cast<void>(zoo.forest->check_for_change(zoo.forest->watched_files().front()));
  CHECK(zoo.listed() == Names{"one", "two"});
  CHECK(zoo.content("two", "c") == "CCCCC");
  REQUIRE(zoo.forest->remove(kRootIno, "two.safetensors"));
  CHECK(zoo.forest->lookup(zoo.ino("two"), "c").error().errno_value == ENOENT);
}

TEST_CASE("models may be made while the root is listed and looked up", "[fs][forest]") {
  const Zoo zoo;
  std::thread maker([&] {
    for (int number = 0; number < 20; ++number) {
      const std::string name = "m" + std::to_string(number % 5) + ".safetensors";
      if (zoo.save("x.tmp", zoo.two) != 0 || zoo.rename("x.tmp", name) != 0) return;
    }
  });
  for (std::size_t seen = 0; seen < 6;) {
    seen = zoo.listed().size();
    static_cast<void>(zoo.forest->lookup(kRootIno, "m4"));
    static_cast<void>(zoo.forest->check_for_change(zoo.forest->watched_files().front()));
  }
  maker.join();
  CHECK(zoo.content("m4", "c") == "CCCCC");
}
