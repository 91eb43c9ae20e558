// The root of a directory of models, without a kernel: the entries that it shows, and that no request changes
// it.
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <functional>
#include <thread>
#include <utility>

#include "fs/base/user_counts.h"
#include "fs/model/mount_root.h"
#include "tests/fs/driven_model.h"
#include "tests/support/captured_stderr.h"
#include "tests/support/catch.h"
#include "tests/support/few_descriptors.h"
#include "tests/support/skip.h"

using namespace stfs;
using namespace stfs::test;

namespace {

using Names = std::vector<std::string>;

/// A directory with the archive one.safetensors, and the mount root that shows it.
struct Zoo {
  explicit Zoo(const MountedModelOptions& options = {}, Access access = Access::ReadWrite) {
    const MountRoot::OpenerOf opener_of = [this,
                                           access](const std::filesystem::path& path) -> MountRoot::Open {
      return
          [this, path, access](const MountRoot::Heritage& heritage) -> Result<std::unique_ptr<MountedModel>> {
            auto archive = Archive::open(path, access);
            if (!archive) return pass_on(std::move(archive));
            at_open(path.filename().string());
            MountedModelOptions its;
            its.is_read_only = access == Access::ReadOnly;
            its.activity = heritage.activity;
            its.least_generation = heritage.least_generation;
            return std::make_unique<MountedModel>(std::move(*archive), its);
          };
    };
    std::vector<MountRoot::Member> members;
    members.push_back({.name = "one",
                       .path = directory.path() / "one.safetensors",
                       .mounted = opener_of(first)({}).value(),
                       .open = opener_of(first)});
    mount_root = std::make_unique<MountRoot>(std::move(members));
    mount_root->show_source(std::make_unique<SourceDirectory>(directory.path(), options), opener_of);
  }

  [[nodiscard]] std::string text(Ino ino) const {
    return text_of(mount_root->read(ino, 0, 100)->copy().value());
  }
  /// Looks the name up as the kernel does.
  [[nodiscard]] Ino ino(std::string_view name, Ino parent = kRootIno) const {
    return mount_root->lookup(parent, name)->st_ino;
  }
  /// Checks the directory for new archives.
  MountRoot::Change look() const { return mount_root->check_for_change(mount_root->watched_files().front()); }
  [[nodiscard]] Names listed() const {
    Names names;
    static_cast<void>(mount_root->read_directory(kRootIno, 2, [&](std::string_view name, Ino, std::uint64_t) {
      names.emplace_back(name);
      return true;
    }));
    std::ranges::sort(names);
    return names;
  }
  [[nodiscard]] std::string content(std::string_view model, std::string_view tensor) const {
    const auto ino = mount_root->lookup(mount_root->lookup(kRootIno, model)->st_ino, tensor)->st_ino;
    return text_of(mount_root->model_of(ino)->read(ino, 0, 1 << 20).value().copy().value());
  }

  /// Called when the archive of that name has been opened, and before its model is shown.
  std::function<void(const std::string& file_name)> at_open = [](const std::string&) {};
  const CapturedStderr captured;
  const TemporaryDirectory directory;
  const std::string first = directory.write("one.safetensors", archive_of(DrivenModel::kOne));
  const std::string two = archive_of(DrivenModel::kTwo);
  std::unique_ptr<MountRoot> mount_root;
};

}  // namespace

TEST_CASE("a user may have so many models, and stops no other user", "[fs][mount_root]") {
  if (::geteuid() != 0) return note_skip("needs root, to make files of another user");
  const Zoo zoo;
  const auto add_as = [&](uid_t uid, const std::string& name) {
    REQUIRE(::chown(zoo.directory.write(name + ".safetensors", zoo.two).c_str(), uid, uid) == 0);
  };
  const std::size_t most = UserLimits().models;
  for (std::size_t number = 0; number < most + 1; ++number) add_as(12345, std::to_string(number));
  add_as(23456, "other");
  add_as(0, "roots");
  static_cast<void>(zoo.look());
  CHECK(zoo.listed().size() == most + 3);
  CHECK(zoo.content("other", "c") == "CCCCC");
  CHECK(zoo.content("roots", "c") == "CCCCC");
  CHECK(zoo.captured.text().find("not shown") != std::string::npos);
}

TEST_CASE("other entries of the directory are files of the mount", "[fs][mount_root]") {
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
  CHECK(zoo.mount_root->file_type(file) == S_IFREG);
  CHECK(zoo.text(file) == "{}");
  CHECK(zoo.mount_root->label_of(file, "") == zoo.directory / "config.json");
  const Ino sub = zoo.ino("sub");
  CHECK(zoo.mount_root->file_type(sub) == S_IFDIR);
  CHECK(zoo.text(zoo.ino("x", sub)) == "sub");
  CHECK(zoo.mount_root->label_of(sub, "y") == zoo.directory / "sub/y");
  std::map<std::string, Ino> entries;
  REQUIRE(zoo.mount_root->read_directory(sub, 0, [&](std::string_view name, Ino ino, std::uint64_t) {
    return entries.emplace(name, ino).second;
  }));
  CHECK(entries.at("..") == kRootIno);
  CHECK(entries.at("x") == zoo.ino("x", sub));
  CHECK(S_ISDIR(zoo.mount_root->lookup(kRootIno, ".safetensors")->st_mode));
  CHECK((zoo.mount_root->attributes(kRootIno)->st_mode & 0777) == 0755);  // all may read one.safetensors
}

TEST_CASE("no request moves a file to the root, from it, or beside the models", "[fs][mount_root]") {
  const bool is_read_only = GENERATE(false, true);
  const Zoo zoo({}, is_read_only ? Access::ReadOnly : Access::ReadWrite);
  static_cast<void>(zoo.directory.write("notes.txt", "kept"));
  std::filesystem::create_directories(zoo.directory / "sub");
  const Ino one = zoo.ino("one");
  const Ino sub = zoo.ino("sub");
  const auto rename = [&](Ino from, const char* name, Ino to, const char* new_name) {
    return errno_of(zoo.mount_root->rename(from, name, to, new_name));
  };
  const int refused = is_read_only ? EROFS : EPERM;
  CHECK(zoo.mount_root->changes_no_files().errno_value == refused);
  CHECK(rename(kRootIno, "notes.txt", kRootIno, "x") == refused);
  CHECK(rename(kRootIno, "one.safetensors", kRootIno, "two.safetensors") == refused);
  CHECK(rename(kRootIno, "one", kRootIno, "two") == refused);
  CHECK(rename(kRootIno, "notes.txt", sub, "notes.txt") == refused);
  CHECK(rename(kRootIno, "notes.txt", one, "notes.txt") == refused);
  CHECK(rename(one, "b", kRootIno, "b") == refused);
  CHECK(rename(one, "b", sub, "b") == refused);
  CHECK(zoo.listed() == Names{"notes.txt", "one", "sub"});
  const std::string why = zoo.mount_root->changes_no_files().message;
  CHECK((is_read_only ||
         why.find("make and save files in " + zoo.directory.path().string()) != std::string::npos));
}

TEST_CASE("in a shared mount other entries are for those who may list the directory", "[fs][mount_root]") {
  MountedModelOptions shared;
  shared.is_shared = true;
  const Zoo zoo(shared);
  static_cast<void>(zoo.directory.write("config.json", "{}"));
  ::chmod(zoo.first.c_str(), 0644);
  for (const mode_t mode : {0700U, 0755U}) {
    ::chmod(zoo.directory.path().c_str(), mode);
    static_cast<void>(zoo.mount_root->check_for_change(zoo.mount_root->watched_files().back()));
    static_cast<void>(zoo.mount_root->lookup(kRootIno, "other"));
    CHECK(zoo.listed() == (mode == 0700 ? Names{"one"} : Names{"config.json", "one"}));
    CHECK(errno_of(zoo.mount_root->lookup(kRootIno, "config.json")) == (mode == 0700 ? ENOENT : 0));
    CHECK((zoo.mount_root->attributes(kRootIno)->st_mode & 0777) == 0755);
  }
}

TEST_CASE("archives that others put into the directory are shown", "[fs][mount_root]") {
  const Zoo zoo;
  const auto watched = zoo.mount_root->watched_files();
  const auto& directory = watched.front();
  CHECK_FALSE(directory.path.has_filename());
  static_cast<void>(zoo.directory.write("two.safetensors", zoo.two.substr(0, 100)));
  CHECK_FALSE(zoo.mount_root->check_for_change(directory).is_reopened);
  CHECK(zoo.listed() == Names{"one"});
  static_cast<void>(zoo.directory.write("two.safetensors", zoo.two));
  const auto change = zoo.mount_root->check_for_change(directory);
  CHECK(change.is_reopened);
  CHECK(change.entries == Names{"two", "two.safetensors"});
  CHECK(zoo.content("two", "c") == "CCCCC");
  CHECK_FALSE(zoo.mount_root->check_for_change(directory).is_reopened);
}

TEST_CASE("a program whose working directory is a replaced model sees the new model", "[fs][mount_root]") {
  const Zoo zoo;
  static_cast<void>(zoo.directory.write("two.safetensors", zoo.two));
  static_cast<void>(zoo.look());
  const Ino two = zoo.ino("two");
  std::filesystem::rename(zoo.directory.write("x.tmp", archive_of({{"added", "new"}})),
                          zoo.directory / "two.safetensors");
  for (const auto& file : zoo.mount_root->watched_files())
    static_cast<void>(zoo.mount_root->check_for_change(file));
  REQUIRE(zoo.ino("two") != two);
  const auto sees = [&](const char* name) { return errno_of(zoo.mount_root->lookup(two, name)); };
  CHECK(sees("added") == 0);
  CHECK(sees("c") == ENOENT);
  CHECK(sees("b") == ENOENT);  // of the other model
}

TEST_CASE("a model hides an entry of its name, as it does at the mount", "[fs][mount_root]") {
  const Zoo zoo;
  std::filesystem::create_directory(zoo.directory.path() / "one");
  std::filesystem::create_directory(zoo.directory.path() / "two");
  CHECK(zoo.listed() == Names{"one", "two"});
  CHECK(zoo.content("one", "b").starts_with('B'));
  static_cast<void>(zoo.directory.write("two.safetensors", zoo.two));
  static_cast<void>(zoo.look());
  CHECK(zoo.listed() == Names{"one", "two"});
  CHECK(zoo.content("two", "c") == "CCCCC");
}

TEST_CASE("models may come while the root is listed and looked up", "[fs][mount_root]") {
  const Zoo zoo;
  std::thread maker([&] {
    for (int number = 0; number < 20; ++number) {
      const std::string name = "m" + std::to_string(number % 5) + ".safetensors";
      std::filesystem::rename(zoo.directory.write("x.tmp", zoo.two), zoo.directory / name);
      static_cast<void>(zoo.look());
    }
  });
  for (std::size_t seen = 0; seen < 6;) {
    seen = zoo.listed().size();
    static_cast<void>(zoo.mount_root->lookup(kRootIno, "m4"));
  }
  maker.join();
  CHECK(zoo.content("m4", "c") == "CCCCC");
}

TEST_CASE("a root without descriptors says so", "[fs][mount_root]") {
  const Zoo zoo;
  const FewDescriptors none(0);
  const int attributes = errno_of(zoo.mount_root->attributes(kRootIno));
  const int found = errno_of(zoo.mount_root->lookup(kRootIno, "x"));
  const int listed = errno_of(
      zoo.mount_root->read_directory(kRootIno, 2, [](std::string_view, Ino, std::uint64_t) { return true; }));
  CHECK(attributes == EMFILE);
  CHECK(found == EMFILE);
  CHECK(listed == EMFILE);
}

TEST_CASE("another directory at the path shows nothing", "[fs][mount_root]") {
  const Zoo zoo;
  const TemporaryDirectory other;
  static_cast<void>(other.write("one.safetensors", zoo.two));
  static_cast<void>(other.write("secret.safetensors", zoo.two));
  const std::filesystem::path path = zoo.directory.path();
  const std::filesystem::path moved = path.string() + ".moved";
  const auto watched = zoo.mount_root->watched_files();
  REQUIRE(watched.size() == 2);
  const std::string before = zoo.content("one", "b");
  std::filesystem::rename(path, moved);
  std::filesystem::rename(other.path(), path);
  for (const auto& file : watched) {
    const auto change = zoo.mount_root->check_for_change(file);
    CHECK_FALSE(change.is_reopened);
    CHECK(change.is_due_again);
  }
  CHECK(zoo.listed() == Names{"one"});
  CHECK(zoo.content("one", "b") == before);
  CHECK(zoo.captured.text().find("another directory than the one that is mounted") != std::string::npos);
  std::filesystem::rename(path, other.path());
  std::filesystem::rename(moved, path);
  static_cast<void>(zoo.directory.write("third.safetensors", zoo.two));
  for (const auto& file : watched) CHECK_FALSE(zoo.mount_root->check_for_change(file).is_due_again);
  CHECK(zoo.listed() == Names{"one", "third"});
}

TEST_CASE("what a name no longer leads to after the opening is not shown", "[fs][mount_root]") {
  Zoo zoo;
  const std::string other = zoo.directory.write("other.tmp", zoo.two);
  static_cast<void>(zoo.directory.write("new.safetensors", archive_of(DrivenModel::kOne)));
  zoo.at_open = [&](const std::string& name) {
    if (name == "new.safetensors" && std::filesystem::exists(other))
      std::filesystem::rename(other, zoo.directory.path() / name);
  };
  static_cast<void>(zoo.look());
  CHECK(zoo.listed() == Names{"new", "one"});
  CHECK(zoo.content("new", "c") == "CCCCC");
}
