// The root of a directory of models: what is made there, moved and deleted, without a kernel.
#include <sys/stat.h>

#include <algorithm>
#include <thread>

#include "fs/model/forest.h"
#include "tests/fs/driven_model.h"
#include "tests/support/captured_stderr.h"
#include "tests/support/catch.h"

using namespace stfs;
using namespace stfs::test;

namespace {

using Names = std::vector<std::string>;

/// A directory with the archive one.safetensors, and the forest that shows it.
struct Zoo {
  explicit Zoo(const SourceDirectory::Options& options = {}) {
    const Forest::OpenerOf opener_of = [](const std::filesystem::path& path) -> Forest::Open {
      return [path](const Forest::Heritage& heritage) -> Result<std::unique_ptr<Filesystem>> {
        auto archive = Archive::open(path, Access::ReadWrite);
        if (!archive) return pass_on(std::move(archive));
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

  Result<Forest::Created> create(std::string_view name) const {
    const Maker self{.uid = ::getuid(), .gid = ::getgid()};
    auto made = forest->create(name, O_RDWR, 0640, self, ::getpid());
    if (made) forest->note_lookup(made->status.st_ino);
    return made;
  }
  [[nodiscard]] int write(const Forest::Created& made, std::string_view text, std::uint64_t at = 0) const {
    return errno_of(forest->write_made(*made.file, bytes_of(text), at, Caller(1, ::getpid())));
  }
  [[nodiscard]] int close(const Forest::Created& made) const {
    const int verdict = errno_of(forest->flush_made(*made.file, 1, ::getpid()));
    static_cast<void>(forest->release_made(made.file));
    forest->forget(made.status.st_ino, 1);
    return verdict;
  }
  /// As a program does that writes a file whole.
  [[nodiscard]] int save(std::string_view name, std::string_view text) const {
    const auto made = create(name);
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

  const CapturedStderr captured;
  const TemporaryDirectory directory;
  const std::string first = directory.write("one.safetensors", archive_of(DrivenModel::kOne));
  const std::string two = archive_of(DrivenModel::kTwo);
  std::unique_ptr<Forest> forest;
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
  REQUIRE(zoo.forest->remove("gone.safetensors"));
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
  REQUIRE(zoo.forest->remove("one.safetensors"));
  REQUIRE(zoo.forest->remove("other.safetensors"));
  CHECK(zoo.listed().empty());
  CHECK(zoo.files().empty());
  CHECK(errno_of(zoo.forest->remove("one.safetensors")) == ENOENT);
  zoo.forest->tidy();
  zoo.forest->end();
}

TEST_CASE("a model's name is not given twice", "[fs][forest]") {
  const Zoo zoo;
  const Maker self{.uid = ::getuid(), .gid = ::getgid()};
  CHECK(S_ISDIR(zoo.forest->make_directory("two", 0755, self)->st_mode));
  CHECK(errno_of(zoo.create("two.safetensors")) == EEXIST);
  CHECK(zoo.rename("one.safetensors", "two.safetensors") == EEXIST);
  CHECK(errno_of(zoo.create("one.safetensors")) == EEXIST);
  CHECK(errno_of(zoo.create(".safetensors")) == EPERM);
  CHECK(errno_of(zoo.create(".one.stj.0123456789abcdef0123456789abcdef")) == EPERM);
  CHECK(errno_of(zoo.forest->make_directory("x.safetensors", 0755, self)) == EPERM);
  REQUIRE(zoo.forest->remove("two"));
  CHECK(zoo.files() == Names{"one.safetensors"});
}

TEST_CASE("other entries of the directory are links to it", "[fs][forest]") {
  const Zoo zoo;
  static_cast<void>(zoo.directory.write("config.json", "{}"));
  static_cast<void>(zoo.directory.write(".hidden", "{}"));
  CHECK(zoo.listed() == Names{"config.json", "one"});
  const Ino link = zoo.forest->lookup(kRootIno, "config.json")->st_ino;
  CHECK(zoo.forest->file_type(link) == S_IFLNK);
  CHECK(zoo.forest->read_link(link).value() == zoo.directory / "config.json");
  CHECK(zoo.forest->lookup(kRootIno, ".hidden"));
  CHECK(errno_of(zoo.forest->open_made(link, O_RDONLY)) == ELOOP);
  CHECK(errno_of(zoo.forest->read_link(kRootIno)) == EINVAL);
  CHECK((zoo.forest->attributes(kRootIno)->st_mode & 0777) == 0755);  // one.safetensors is everybody's
}

TEST_CASE("without edits nothing is made, moved or deleted in the root", "[fs][forest]") {
  const Zoo zoo({.allows_new = false});
  const Maker self{.uid = ::getuid(), .gid = ::getgid()};
  CHECK(errno_of(zoo.create("two.safetensors")) == EPERM);
  CHECK(errno_of(zoo.create("x")) == EPERM);
  CHECK(errno_of(zoo.forest->make_directory("x", 0755, self)) == EPERM);
  CHECK(errno_of(zoo.forest->remove("one.safetensors")) == EPERM);
  CHECK(zoo.rename("one.safetensors", "x") == EPERM);
  CHECK(zoo.files() == Names{"one.safetensors"});
}

TEST_CASE("in a shared mount links are for those who may list the directory", "[fs][forest]") {
  const Zoo zoo({.is_shared = true});
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
  REQUIRE(zoo.forest->remove("two.safetensors"));
  CHECK(zoo.forest->file_type(zoo.forest->lookup(kRootIno, "two")->st_ino) == S_IFLNK);
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
