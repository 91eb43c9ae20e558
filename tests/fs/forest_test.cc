// Several models in one mount: every number leads to its own.
#include "fs/forest.h"

#include "tests/fs/driven_model.h"
#include "tests/support/catch.h"

using namespace stfs;
using namespace stfs::test;

namespace {

struct TwoModels {
  TwoModels() {
    std::vector<Forest::Member> members;
    members.push_back({"one", first.take()});
    members.push_back({"two", second.take()});
    forest = std::make_unique<Forest>(
        std::move(members),
        std::vector<Forest::Absent>{{"bad", Error{ErrorCode::System, ENOENT, "bad: gone"}}});
  }
  [[nodiscard]] Ino ino(std::initializer_list<std::string_view> path) const {
    Ino at = kRootIno;
    for (const std::string_view name : path) at = forest->lookup(at, name).value().st_ino;
    return at;
  }
  [[nodiscard]] std::string content(Ino ino) const {
    return text_of(forest->read(ino, 0, 1 << 20).value().span());
  }

  DrivenModel first;
  DrivenModel second;
  std::unique_ptr<Forest> forest;
};

}  // namespace

TEST_CASE("a lone model has the numbers of its file system", "[fs][forest]") {
  DrivenModel model;
  const Ino c = model.ino("c");
  Forest forest(model.take());
  CHECK(forest.lookup(kRootIno, "c")->st_ino == c);
  CHECK(forest.attributes(kRootIno)->st_ino == kRootIno);
  CHECK(errno_of(forest.attributes(Ino{1} << 52U | kRootIno)) == ENOENT);
}

TEST_CASE("each model of a directory has its own tree, views and transactions", "[fs][forest]") {
  const TwoModels mount;
  Forest& forest = *mount.forest;
  CHECK(mount.ino({"one", "c"}) != mount.ino({"two", "c"}));
  CHECK(Forest::local(mount.ino({"one", "c"})) == Forest::local(mount.ino({"two", "c"})));
  const Ino c = mount.ino({"two", "c"});
  const auto file = forest.open(c, O_WRONLY, 1);
  REQUIRE(file);
  REQUIRE(forest.write(c, **file, bytes_of("12345"), 0, 1));
  const auto closed = forest.flush(c, **file, 1, 1);
  REQUIRE(closed);
  CHECK(closed->first == c);
  static_cast<void>(forest.release(c, *file));
  CHECK(mount.content(c) == "12345");
  CHECK(mount.content(mount.ino({"one", "c"})) == "CCCCC");
  CHECK(mount.content(mount.ino({"two", ".safetensors", "slice", "c[4]"})) == "5");

  const Ino begun = forest.make_directory(mount.ino({"one", ".safetensors", "transactions"}), "t")->st_ino;
  CHECK(forest.attributes(begun)->st_ino == begun);
  CHECK(errno_of(forest.lookup(mount.ino({"two", ".safetensors", "transactions"}), "t")) == ENOENT);
  CHECK(errno_of(forest.rename(mount.ino({"one", ".safetensors", "transactions"}), "t",
                               mount.ino({"two", ".safetensors", "committed"}), "t")) == EXDEV);
  const auto npy = mount.ino({"two", ".safetensors", "npy", "c.npy"});
  static_cast<void>(mount.content(npy));
  const auto views = forest.stale_views(Stale::one(c, Stale::What::Content));
  REQUIRE_FALSE(views.empty());
  CHECK(views.front().first == npy);
}

TEST_CASE("the root of a directory of models lists them and does nothing else", "[fs][forest]") {
  const TwoModels mount;
  Forest& forest = *mount.forest;
  std::vector<std::string> names;
  REQUIRE(forest.read_directory(kRootIno, 0, [&](std::string_view name, Ino ino, std::uint64_t) {
    names.emplace_back(name);
    CHECK(forest.is_directory(ino));
    return true;
  }));
  CHECK(names == std::vector<std::string>{".", "..", "one", "two"});
  CHECK(forest.attributes(kRootIno)->st_nlink == 4);
  CHECK(errno_of(forest.lookup(kRootIno, "bad")) == EIO);
  CHECK(errno_of(forest.lookup(kRootIno, ".safetensors")) == ENOENT);
  CHECK(errno_of(forest.make_directory(kRootIno, "x")) == EPERM);
  CHECK(errno_of(forest.remove_directory(kRootIno, "one")) == EPERM);
  CHECK(errno_of(forest.remove_file(kRootIno, "one")) == EPERM);
  CHECK(errno_of(forest.rename(kRootIno, "one", kRootIno, "three")) == EPERM);
  CHECK(errno_of(forest.open(kRootIno, O_RDONLY, 1)) == EISDIR);
  CHECK(errno_of(forest.extended_attribute(kRootIno, "user.safetensors.archive")) == ENODATA);
  CHECK(forest.list_extended_attributes(kRootIno)->empty());
  CHECK(forest.statistics().f_files > 10);
  CHECK_FALSE(forest.is_read_only());
  // `..` of a model is the root, of what lies in it is the model.
  REQUIRE(forest.read_directory(mount.ino({"two"}), 1, [&](std::string_view name, Ino ino, std::uint64_t) {
    CHECK(name == "..");
    CHECK(ino == kRootIno);
    return false;
  }));
  CHECK(forest.watched_files().size() == 6);
  forest.tidy();
  forest.end();
}
