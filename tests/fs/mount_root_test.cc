// Several models in one mount: each inode number leads to its own model.
#include "fs/model/mount_root.h"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <initializer_list>

#include "tests/fs/driven_model.h"
#include "tests/support/captured_stderr.h"
#include "tests/support/catch.h"
#include "tests/support/faulty_storage.h"

using namespace stfs;
using namespace stfs::test;

namespace {

namespace fs = std::filesystem;

struct TwoModels {
  TwoModels() {
    std::vector<MountRoot::Member> members;
    members.push_back({.name = "one", .mounted = first.take()});
    members.push_back({.name = "two", .mounted = second.take()});
    members.push_back({.name = "bad", .why_absent = Error{ErrorCode::System, ENOENT, "bad: gone"}});
    mount_root = std::make_unique<MountRoot>(std::move(members));
  }
  [[nodiscard]] Ino ino(std::initializer_list<std::string_view> path) const {
    Ino at = kRootIno;
    for (const std::string_view name : path) at = mount_root->lookup(at, name).value().st_ino;
    return at;
  }
  [[nodiscard]] std::string content(Ino ino) const {
    return text_of(mount_root->model_of(ino)->read(ino, 0, 1 << 20).value().copy().value());
  }

  DrivenModel first;
  DrivenModel second;
  std::unique_ptr<MountRoot> mount_root;
};

}  // namespace

TEST_CASE("a lone model has the numbers of its file system", "[fs][mount_root]") {
  DrivenModel model;
  const Ino c = model.ino("c");
  MountRoot mount_root({.name = "", .mounted = model.take()});
  CHECK(mount_root.lookup(kRootIno, "c")->st_ino == c);
  CHECK(mount_root.attributes(kRootIno)->st_ino == kRootIno);
  CHECK(errno_of(mount_root.attributes(Ino{1} << 50U | kRootIno)) == ENOENT);
}

TEST_CASE("each model of a directory has its own tree, views and transactions", "[fs][mount_root]") {
  const TwoModels mount;
  MountRoot& mount_root = *mount.mount_root;
  CHECK(mount.ino({"one", "c"}) != mount.ino({"two", "c"}));
  CHECK(InodeSpace::local(mount.ino({"one", "c"})) == InodeSpace::local(mount.ino({"two", "c"})));
  const Ino c = mount.ino({"two", "c"});
  const MountRoot::Pin two = mount_root.model_of(c);
  const auto file = two->open(c, O_WRONLY, 1);
  REQUIRE(file);
  REQUIRE(two->write(**file, bytes_of("12345"), 0, 1));
  const auto closed = two->flush(**file, 1, 1);
  REQUIRE(closed);
  CHECK(closed->first == c);
  static_cast<void>(two->release(*file));
  CHECK(mount.content(c) == "12345");
  CHECK(mount.content(mount.ino({"one", "c"})) == "CCCCC");
  CHECK(mount.content(mount.ino({"two", ".safetensors", "slice", "c[4]"})) == "5");

  const Ino ones = mount.ino({"one", ".safetensors", "transactions"});
  const Ino begun = mount_root.model_of(ones)->make_directory(ones, "t")->st_ino;
  CHECK(mount_root.attributes(begun)->st_ino == begun);
  CHECK(errno_of(mount_root.lookup(mount.ino({"two", ".safetensors", "transactions"}), "t")) == ENOENT);
  CHECK(errno_of(mount_root.rename(ones, "t", mount.ino({"two", ".safetensors", "committed"}), "t")) ==
        EXDEV);
  const auto npy = mount.ino({"two", ".safetensors", "npy", "c.npy"});
  static_cast<void>(mount.content(npy));
  const auto views = two->stale_views(Stale::one(c, Stale::What::Content));
  REQUIRE_FALSE(views.empty());
  CHECK(views.front().first == npy);
}

TEST_CASE("a name that no file can have is told from one that is not there", "[fs][mount_root]") {
  const TwoModels mount;
  const std::string longest(255, 'x');
  for (const Ino directory :
       {kRootIno, mount.ino({"one"}), mount.ino({"one", ".safetensors", "transactions"})}) {
    CHECK(errno_of(mount.mount_root->lookup(directory, longest)) == ENOENT);
    CHECK(errno_of(mount.mount_root->lookup(directory, longest + "x")) == ENAMETOOLONG);
  }
}

TEST_CASE("the root of a directory of models lists them and does nothing else", "[fs][mount_root]") {
  const TwoModels mount;
  MountRoot& mount_root = *mount.mount_root;
  std::vector<std::string> names;
  REQUIRE(mount_root.read_directory(kRootIno, 0, [&](std::string_view name, Ino ino, std::uint64_t) {
    names.emplace_back(name);
    CHECK(mount_root.file_type(ino) == S_IFDIR);
    return true;
  }));
  CHECK(names == std::vector<std::string>{".", "..", "one", "two"});
  CHECK(mount_root.attributes(kRootIno)->st_nlink == 4);
  CHECK(errno_of(mount_root.lookup(kRootIno, "bad")) == EIO);
  CHECK(mount_root.lookup(kRootIno, ".safetensors")->st_ino == kHiddenIno);  // it contains the log only
  CHECK_FALSE(mount_root.model_of(kRootIno));
  CHECK(errno_of(mount_root.rename(kRootIno, "one", kRootIno, "three")) == EPERM);
  CHECK(mount_root.statistics().f_files > 10);
  CHECK_FALSE(mount_root.is_read_only());
  // The parent of a model is the root. The parent of an entry of a model is the model.
  REQUIRE(
      mount_root.read_directory(mount.ino({"two"}), 1, [&](std::string_view name, Ino ino, std::uint64_t) {
        CHECK(name == "..");
        CHECK(ino == kRootIno);
        return false;
      }));
  CHECK(mount_root.watched_files().size() == 7);
  mount_root.tidy();
  mount_root.end();
}

namespace {

/// A single model that is opened again each time it is replaced.
struct Replaced {
  explicit Replaced(bool is_read_only = false) {
    base_options.is_read_only = is_read_only;
    mount_root = std::make_unique<MountRoot>(
        MountRoot::Member{.name = "", .path = path(), .mounted = filesystem({}).value(), .open = opener()});
    mount_root->connect_to({.note_commit = [this] { ++notes; }});
  }
  [[nodiscard]] std::filesystem::path path() const { return directory.path() / "m.safetensors"; }
  Result<std::unique_ptr<MountedModel>> filesystem(const MountRoot::Heritage& heritage) const {
    auto archive = Archive::open(path(), Access::ReadWrite, storage);
    if (!archive) return pass_on(std::move(archive));
    MountedModelOptions options = base_options;
    options.activity = heritage.activity;
    options.least_generation = heritage.least_generation;
    return std::make_unique<MountedModel>(std::move(*archive), options);
  }
  MountRoot::Open opener() {
    return [this](const MountRoot::Heritage& heritage) { return filesystem(heritage); };
  }
  /// Replaces the archive by a rename, as careful programs do.
  void replace(std::string_view bytes) const {
    std::filesystem::rename(directory.write("new", bytes), path());
  }
  MountRoot::Change look() const {
    MountRoot::Change all;
    for (const auto& file : mount_root->watched_files()) {
      MountRoot::Change change = mount_root->check_for_change(file);
      if (change.is_reopened || !change.entries.empty()) return change;
    }
    return all;
  }
  [[nodiscard]] Result<std::string> content(Ino ino) const {
    const auto bytes = mount_root->model_of(ino)->read(ino, 0, 1 << 20);
    if (!bytes) return tl::unexpected(bytes.error());
    return text_of(bytes->copy().value());
  }
  [[nodiscard]] std::uint64_t generation(Ino ino) const {
    return std::stoull(
        mount_root->model_of(ino)->extended_attribute(ino, "user.safetensors.generation").value());
  }

  const TemporaryDirectory directory;
  const std::string written = directory.write("m.safetensors", archive_of(DrivenModel::kOne));
  MountedModelOptions base_options;
  int notes = 0;
  mutable FaultyStorage storage;
  std::unique_ptr<MountRoot> mount_root;
};

using Names = std::vector<std::string>;

}  // namespace

TEST_CASE("a replaced model is shown; who has the old one open keeps it, to its end", "[fs][mount_root]") {
  Replaced mount;
  MountRoot& mount_root = *mount.mount_root;
  const Ino old = mount_root.lookup(kRootIno, "b")->st_ino;
  const auto generation = mount.generation(old);
  CHECK_FALSE(mount.look().is_reopened);
  mount.replace(archive_of(DrivenModel::kTwo));
  std::filesystem::last_write_time(mount.path(), std::filesystem::file_time_type());
  const auto change = mount.look();
  CHECK(change.is_reopened);
  CHECK(change.entries == Names{"a.x", "a.y", "b", "c", "none"});
  CHECK(mount.notes == 0);
  CHECK_FALSE(mount.look().is_reopened);

  CHECK(errno_of(mount_root.lookup(kRootIno, "b")) == ENOENT);
  const Ino c = mount_root.lookup(kRootIno, "c")->st_ino;
  CHECK(mount.content(c) == "CCCCC");
  CHECK(mount.generation(c) > generation);  // though the new file is older
  CHECK(mount.content(old).value().starts_with('B'));
  mount_root.tidy();
  CHECK(mount.content(old).value().starts_with('B'));

  mount_root.forget(old, 1);
  CHECK(mount.notes == 1);
  CHECK(errno_of(mount_root.attributes(old)) == ENOENT);
  mount_root.tidy();
  CHECK(mount.content(c) == "CCCCC");
}

TEST_CASE("the views' directory of a replaced read-only model is that of the new model", "[fs][mount_root]") {
  Replaced mount(true);
  MountRoot::Member member{.name = "", .path = mount.directory.path()};  // not the name of the model's file
  member.mounted = mount.filesystem({}).value();
  member.open = mount.opener();
  MountRoot& root = *(mount.mount_root = std::make_unique<MountRoot>(std::move(member)));
  const Ino before = root.lookup(kRootIno, ".safetensors")->st_ino;
  mount.replace(archive_of(DrivenModel::kTwo));
  REQUIRE(mount.look().is_reopened);
  const Ino now = root.lookup(kRootIno, ".safetensors")->st_ino;
  REQUIRE(now != before);
  const auto archive_in = [&](Ino views) { return root.lookup(views, "archive.safetensors")->st_ino; };
  CHECK(archive_in(before) == archive_in(now));
}

TEST_CASE("a transaction of a replaced model is no other model's: ESTALE, and `mv` does not copy",
          "[fs][mount_root]") {
  const Replaced mount;
  MountRoot& mount_root = *mount.mount_root;
  const auto directory = [&](std::string_view name) {
    return mount_root.lookup(mount_root.lookup(kRootIno, ".safetensors")->st_ino, name)->st_ino;
  };
  const Ino transactions = directory("transactions");
  const Ino committed = directory("committed");
  REQUIRE(mount_root.model_of(transactions)->make_directory(transactions, "t"));
  mount.replace(archive_of(DrivenModel::kTwo));
  REQUIRE(mount.look().is_reopened);
  CHECK(errno_of(mount_root.rename(transactions, "t", directory("committed"), "t")) == ESTALE);
  CHECK(errno_of(mount_root.rename(directory("transactions"), "t", committed, "t")) == ESTALE);
}

TEST_CASE("a changed mode of any model makes the attributes of the common root stale", "[fs][mount_root]") {
  const TwoModels mount;
  const auto change_modes = [&](std::initializer_list<const DrivenModel*> models, fs::perms mode) {
    for (const DrivenModel* model : models)
      fs::permissions(model->directory().path() / "two.safetensors", mode);
  };
  constexpr fs::perms kPrivate = fs::perms::owner_read;
  constexpr fs::perms kOpen = kPrivate | fs::perms::others_read;
  const auto found = [&] { return mount.mount_root->check_permissions(); };
  change_modes({&mount.first, &mount.second}, kPrivate);
  const Stale both = found();
  CHECK(both.what == Stale::What::Attributes);
  CHECK(both.first == kRootIno);
  CHECK(both.last == kRootIno);
  CHECK(found().what == Stale::What::Nothing);  // all models were looked at
  for (const DrivenModel* model : {&mount.first, &mount.second}) {
    change_modes({model}, kOpen);
    CHECK(found().what == Stale::What::Attributes);
    CHECK(found().what == Stale::What::Nothing);
  }
  // The root of a lone model is the model's, which tells itself.
  DrivenModel lone;
  MountRoot mount_root({.name = "", .mounted = lone.take()});
  change_modes({&lone}, kPrivate);
  CHECK(mount_root.check_permissions().what == Stale::What::Nothing);
}

TEST_CASE("a model that is replaced by something else is refused until it is mended", "[fs][mount_root]") {
  const Replaced mount;
  MountRoot& mount_root = *mount.mount_root;
  const Ino old = mount_root.lookup(kRootIno, "b")->st_ino;
  mount.replace("no archive");
  const CapturedStderr captured;
  const auto change = mount.look();
  CHECK_FALSE(change.is_reopened);
  CHECK_FALSE(change.entries.empty());
  CHECK(std::ranges::count(mount_root.leftovers(), "archive.safetensors",
                           &std::pair<Ino, std::string>::second) == 1);
  CHECK_FALSE(captured.contains("its tensors give EIO"));  // not before the kernel has forgotten it
  change.tell();
  CHECK(captured.contains("its tensors give EIO"));
  CHECK(mount.look().entries.empty());  // said once
  CHECK(errno_of(mount_root.lookup(kRootIno, "b")) == EIO);
  CHECK(mount.content(old).value().starts_with('B'));
  const Ino views = mount_root.lookup(kRootIno, ".safetensors")->st_ino;
  CHECK(errno_of(mount_root.lookup(views, "archive.safetensors")) == EIO);
  CHECK(errno_of(mount_root.lookup(mount_root.lookup(views, "slice")->st_ino, "b[0]")) == EIO);
  const Ino stats = mount_root.lookup(views, "stats.json")->st_ino;
  CHECK(mount.content(stats).value().find("m.safetensors") != std::string::npos);

  mount.replace(archive_of(DrivenModel::kTwo));
  CHECK(mount.look().is_reopened);
  CHECK(mount_root.lookup(kRootIno, "c"));
}

TEST_CASE("a model that the store fails to read when it is opened anew is looked at again",
          "[fs][mount_root]") {
  // Opening may write, because it finishes the commits of dead writers.
  const int failure = GENERATE(EIO, ENOSPC, EDQUOT);
  CAPTURE(failure);
  const Replaced mount;
  mount.replace(archive_of(DrivenModel::kTwo));
  mount.storage.plan().fail_call(FileCall::Read, 1, failure);
  const auto change = mount.look();
  CHECK_FALSE(change.is_reopened);
  CHECK(change.is_due_again);
  CHECK(errno_of(mount.mount_root->lookup(kRootIno, "b")) == EIO);
  CHECK(mount.look().is_reopened);
  CHECK(mount.mount_root->lookup(kRootIno, "c"));
}

TEST_CASE("a model that the store fails to look at is looked at again", "[fs][mount_root]") {
  const Replaced mount;
  const auto is_due_again = [&] {
    return std::ranges::any_of(mount.mount_root->watched_files(), [&](const auto& file) {
      return mount.mount_root->check_for_change(file).is_due_again;
    });
  };
  CHECK_FALSE(is_due_again());
  static_cast<void>(mount.directory.write("m.safetensors", archive_of(DrivenModel::kOne)));
  mount.storage.plan().fail_call(FileCall::Read, 1, EIO);
  CHECK(is_due_again());
  CHECK_FALSE(is_due_again());
  CHECK(mount.mount_root->lookup(kRootIno, "b"));
}

TEST_CASE(
    "who has a model open in a read-only mount whose header was changed in place learns of later changes",
    "[fs][mount_root]") {
  const Replaced mount(true);
  MountRoot& mount_root = *mount.mount_root;
  const Ino old = mount_root.lookup(kRootIno, "b")->st_ino;
  int at = 0;
  const auto write = [&](std::uint64_t offset, std::string_view bytes) {
    std::fstream(mount.path(), std::ios::in | std::ios::out | std::ios::binary)
        .seekp(static_cast<std::streamoff>(offset))
        .write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
    std::filesystem::last_write_time(mount.path(),
                                     std::filesystem::file_time_type() + std::chrono::seconds(++at));
  };
  const std::string bytes = archive_of(DrivenModel::kOne);
  const std::size_t watched = mount_root.watched_files().size();
  write(bytes.find("\"b\"") + 1, "B");
  REQUIRE(mount.look().is_reopened);
  const Ino present = mount_root.lookup(kRootIno, "B")->st_ino;
  CHECK(mount.content(old).value() == mount.content(present).value());
  const auto told = [&] {
    std::vector<Ino> found;
    for (const auto& file : mount_root.watched_files()) {
      for (const Stale& stale : mount_root.check_for_change(file).stale) {
        if (stale.first <= old && old <= stale.last) found.push_back(old);
        if (stale.first <= present && present <= stale.last) found.push_back(present);
      }
    }
    return found;
  };
  told();
  CHECK(told().empty());
  CHECK(mount_root.watched_files().size() == watched + 1);
  write(bytes.find("BBBB"), "xyz");
  CHECK(told() == std::vector<Ino>{present, old});
  CHECK(mount.content(old).value().starts_with("xyzB"));
  CHECK(mount.content(old).value() == mount.content(present).value());
  // Another file at the path does not change the old one. The end of the old one ends its watch.
  mount.replace(bytes);
  REQUIRE(mount.look().is_reopened);
  CHECK(mount_root.watched_files().size() == watched);
  CHECK(mount.content(old).value().starts_with("xyzB"));
}

TEST_CASE("a deleted model is read to its end", "[fs][mount_root]") {
  const Replaced mount;
  std::filesystem::remove(mount.path());
  CHECK(mount.look().entries.empty());
  CHECK(mount.mount_root->lookup(kRootIno, "b"));
}

TEST_CASE("FLUSH is called off only where nothing can ever be written", "[fs][mount_root]") {
  // ENOSYS has effect on the whole connection: one read-only archive must not drop another one's writes.
  struct Row {
    bool first_is_read_only;
    bool second_is_read_only;
    int answer;
  };
  for (const Row& row :
       {Row{false, false, 0}, Row{true, false, 0}, Row{false, true, 0}, Row{true, true, ENOSYS}}) {
    MountedModelOptions first;
    MountedModelOptions second;
    first.is_read_only = row.first_is_read_only;
    second.is_read_only = row.second_is_read_only;
    DrivenModel one(first);
    DrivenModel two(second);
    std::vector<MountRoot::Member> members;
    members.push_back({.name = "one", .mounted = one.take()});
    members.push_back({.name = "two", .mounted = two.take()});
    const MountRoot mount_root(std::move(members));
    CHECK(mount_root.is_read_only(mount_root.model_of(mount_root.lookup(kRootIno, "one")->st_ino)) ==
          row.first_is_read_only);
    CHECK(mount_root.errno_of_readers_flush() == row.answer);
    CHECK(mount_root.is_read_only() == (row.answer == ENOSYS));
  }
}
