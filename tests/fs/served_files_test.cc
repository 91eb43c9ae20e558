// Files of a source directory that another user exchanges, without a kernel.
#include "fs/model/served_files.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <iterator>
#include <string>

#include "fs/base/requester.h"
#include "tests/support/catch.h"
#include "tests/support/plain.h"
#include "tests/support/skip.h"
#include "tests/support/temporary_directory.h"

using namespace stfs;
using namespace stfs::test;

namespace {

int errno_of_served(const auto& result) {
  return result ? 0 : result.error().errno_value;
}

/// A source directory without a delta.
struct Beside {
  Node node(const std::string& name) { return tree.node(tree.find(SourceTree::kDirectory, name).value()); }
  [[nodiscard]] std::filesystem::path at(const std::string& name) const { return directory / name; }

  TemporaryDirectory directory;
  const MountedModelOptions options;
  SourceTree tree{directory.path(), {}, [](std::string_view) { return false; }};
  ServedFiles files{tree, options, {}};
  const Maker maker{.uid = ::geteuid(), .gid = ::getegid(), .other_groups = {}};
};

}  // namespace

TEST_CASE("a directory that was exchanged since the kernel's check is not changed", "[fs][served_files]") {
  Beside t;
  for (const char* name : {"shown", "private"}) {
    std::filesystem::create_directories(t.at(name) / "directory");
    t.directory.write(std::string(name) + "/file", name);
  }
  const Node shown = t.node("shown");
  const Node other = t.tree.node(SourceTree::kDirectory);
  REQUIRE(::chmod(t.at("private").c_str(), 0700) == 0);
  REQUIRE(::renameat2(AT_FDCWD, t.at("shown").c_str(), AT_FDCWD, t.at("private").c_str(), RENAME_EXCHANGE) ==
          0);
  CHECK(errno_of_served(t.files.create(shown, "made", 0666, t.maker)) == ESTALE);
  CHECK(errno_of_served(t.files.make_directory(shown, "made", 0777, t.maker)) == ESTALE);
  CHECK(errno_of_served(t.files.remove(shown, "file")) == ESTALE);
  CHECK(errno_of_served(t.files.remove_directory(shown, "directory")) == ESTALE);
  CHECK(errno_of_served(t.files.rename(shown, "file", other, "taken", 0)) == ESTALE);
  CHECK(errno_of_served(t.files.rename(other, "private", shown, "moved", 0)) == ESTALE);
  CHECK(errno_of_served(t.files.change(shown, {.permissions = 0777})) == ESTALE);
  CHECK(errno_of_served(t.files.attributes(shown)) == ESTALE);
  struct stat st {};
  REQUIRE(::stat(t.at("shown").c_str(), &st) == 0);
  CHECK((st.st_mode & 0777) == 0700);
  CHECK(std::distance(std::filesystem::directory_iterator(t.at("shown")), {}) == 2);
  // A look-up shows the directory that has the path now, which has another number.
  const Node now = t.node("shown");
  CHECK(now.ino != shown.ino);
  CHECK(t.files.create(now, "made", 0666, t.maker));
}

TEST_CASE("a directory keeps its number while it is the same", "[fs][served_files]") {
  Beside t;
  const auto made = t.files.make_directory(t.tree.node(SourceTree::kDirectory), "one", 0777, t.maker);
  REQUIRE(made);
  const Node node = t.tree.node(*made);
  REQUIRE(t.files.create(node, "file", 0666, t.maker));
  REQUIRE(t.files.rename(t.tree.node(SourceTree::kDirectory), "one", t.tree.node(SourceTree::kDirectory),
                         "two", 0));
  CHECK(t.node("two").ino == *made);
  CHECK(t.files.remove(node, "file"));
}

namespace {

/// A source directory with a delta, whose private directory gets the changes.
struct Layered {
  Node node(const std::string& name) { return tree.node(tree.find(SourceTree::kDirectory, name).value()); }
  [[nodiscard]] std::filesystem::path at(const std::string& name) const { return directory / name; }
  [[nodiscard]] std::filesystem::path copy_of(const std::string& name) const {
    return at("delta.safetensors.pretrained/" + name);
  }

  TemporaryDirectory directory;
  const MountedModelOptions options;
  SourceTree tree{
      directory.path(), {directory.write("delta.safetensors", "")}, [](std::string_view) { return false; }};
  ServedFiles files{tree, options, {}};
  const Node root = tree.node(SourceTree::kDirectory);
  const Maker maker{.uid = ::geteuid(), .gid = ::getegid(), .other_groups = {}};
};

struct stat status_at(const std::filesystem::path& path) {
  struct stat st {};
  REQUIRE(::stat(path.c_str(), &st) == 0);
  return st;
}

}  // namespace

TEST_CASE("with a delta a file replaces no directory, and a directory nothing", "[fs][served_files]") {
  Layered t;
  t.directory.write("file", "text");
  std::filesystem::create_directory(t.at("directory"));
  const auto refused = t.files.rename(t.root, "file", t.root, "directory", 0);
  REQUIRE_FALSE(refused);
  CHECK(refused.error().errno_value == EISDIR);
  CHECK(contains(refused.error().message, "/directory: replace: "));
  CHECK(errno_of_served(t.files.rename(t.root, "directory", t.root, "file", 0)) == EXDEV);
  CHECK(t.files.rename(t.root, "file", t.root, "new", 0));
  CHECK(content_of(t.copy_of("new")) == "text");
  CHECK(errno_of_served(t.tree.find(SourceTree::kDirectory, "file")) == ENOENT);
  CHECK(content_of(t.at("file")) == "text");
}

TEST_CASE("a private directory has the mode of the directory that it hides", "[fs][served_files]") {
  Layered t;
  std::filesystem::create_directory(t.at("directory"));
  REQUIRE(::chmod(t.at("directory").c_str(), 0751) == 0);
  REQUIRE(t.files.create(t.node("directory"), "made", 0666, t.maker));
  CHECK((status_at(t.copy_of("directory")).st_mode & 0777) == 0751);
  CHECK_FALSE(std::filesystem::exists(t.at("directory") / "made"));
}

TEST_CASE("a private copy keeps the hole at the end of its file", "[fs][served_files]") {
  Layered t;
  constexpr off_t kBytes = off_t{8} << 20U;
  t.directory.write("file", "text");
  REQUIRE(::truncate(t.at("file").c_str(), kBytes) == 0);
  const Node file = t.node("file");
  REQUIRE(t.files.open(file, O_RDWR));
  REQUIRE(t.files.write(file, bytes_of("T"), 0, 0));
  const auto has_hole = [&](const std::filesystem::path& path) {
    return status_at(path).st_blocks * 512 < kBytes / 2;
  };
  if (!has_hole(t.at("file"))) return note_skip("needs a file system with holes");
  CHECK(has_hole(t.copy_of("file")));
  CHECK(status_at(t.copy_of("file")).st_size == kBytes);
  CHECK(content_of(t.copy_of("file")).starts_with("Text"));
  CHECK(content_of(t.at("file")).starts_with("text"));
}

TEST_CASE("a deleted file that gets its name back is another file of the mount", "[fs][served_files]") {
  Beside t;
  t.directory.write("file", "text");
  std::filesystem::create_hard_link(t.at("file"), t.at("other"));
  const Node deleted = t.node("file");
  t.tree.note_lookup(deleted.ino);
  REQUIRE(t.files.remove(t.tree.node(SourceTree::kDirectory), "file"));
  std::filesystem::create_hard_link(t.at("other"), t.at("file"));
  CHECK(t.node("file").ino != deleted.ino);
}

TEST_CASE("without a delta a directory replaces an empty one, and a file gets a new name",
          "[fs][served_files]") {
  Beside t;
  for (const char* name : {"one/inner", "empty"}) std::filesystem::create_directories(t.at(name));
  t.directory.write("file", "text");
  const Node root = t.tree.node(SourceTree::kDirectory);
  CHECK(t.files.rename(root, "one", root, "empty", 0));
  CHECK(std::filesystem::exists(t.at("empty") / "inner"));
  CHECK(t.files.rename(root, "file", root, "new", 0));
  CHECK(content_of(t.at("new")) == "text");
  CHECK(errno_of_served(t.files.rename(root, "new", root, "empty", 0)) == EISDIR);
}

TEST_CASE("the sticky bit counts at the request, not only at the kernel's check", "[fs][served_files]") {
  if (::geteuid() != 0) return note_skip("needs root, to make files of another user");
  Beside t;
  REQUIRE(::chmod(t.directory.path().c_str(), 01777) == 0);
  t.directory.write("roots", "");
  t.directory.write("own", "");
  REQUIRE(::chown(t.at("own").c_str(), 12345, 12345) == 0);
  const Node root = t.tree.node(SourceTree::kDirectory);
  const Requester requester(12345, 1);
  CHECK(errno_of_served(t.files.remove(root, "roots")) == EPERM);
  CHECK(errno_of_served(t.files.rename(root, "own", root, "roots", 0)) == EPERM);
  CHECK(errno_of_served(t.files.rename(root, "roots", root, "taken", 0)) == EPERM);
  CHECK(t.files.rename(root, "own", root, "still", 0));
  CHECK(t.files.remove(root, "still"));
}

TEST_CASE("a user may have so many files of the source directory open for writing", "[fs][served_files]") {
  Beside t;
  const Node root = t.tree.node(SourceTree::kDirectory);
  const std::size_t most = UserLimits().source_files;
  const Maker user{.uid = 12345, .gid = 12345, .other_groups = {}};
  if (::geteuid() != 0) return note_skip("needs root, to make files of another user");
  for (std::size_t number = 0; number < most; ++number)
    REQUIRE(t.files.create(root, std::to_string(number), 0666, user));
  CHECK(errno_of_served(t.files.create(root, "one more", 0666, user)) == EDQUOT);
  CHECK_FALSE(std::filesystem::exists(t.at("one more")));
  {
    const Requester requester(12345, 1);
    t.directory.write("existing", "");
    CHECK(errno_of_served(t.files.open(t.node("existing"), O_WRONLY)) == EDQUOT);
  }
  CHECK(t.files.create(root, "of another user", 0666, {.uid = 23456, .gid = 23456, .other_groups = {}}));
  CHECK(t.files.create(root, "of root", 0666, t.maker));
  CHECK(t.files.close(t.node("0")));  // of one copy of the descriptor
  CHECK(errno_of_served(t.files.create(root, "one more", 0666, user)) == EDQUOT);
  t.files.release(t.node("0"));
  CHECK(t.files.create(root, "one more", 0666, user));
}

TEST_CASE("a change by a path keeps no file of the source directory open", "[fs][served_files]") {
  if (::geteuid() != 0) return note_skip("needs root, because other users have no limit of their own");
  Beside t;
  const Requester requester(12345, 1);
  for (std::size_t number = 0; number <= UserLimits().source_files; ++number) {
    const std::string name = std::to_string(number);
    t.directory.write(name, "text");
    REQUIRE(t.files.resize(t.node(name), 2));
    REQUIRE(t.files.change(t.node(name), {.mtime = timespec{1000, 0}}));
  }
}

TEST_CASE("a close by one program leaves a deleted file open for another that writes", "[fs][served_files]") {
  Beside t;
  const Node root = t.tree.node(SourceTree::kDirectory);
  const Node made = t.tree.node(t.files.create(root, "made", 0666, t.maker).value());
  t.directory.write("opened", "text");
  const Node opened = t.node("opened");
  REQUIRE(t.files.open(opened, O_RDWR));
  for (const Node& file : {made, opened}) t.tree.note_lookup(file.ino);
  for (const Node& file : {made, opened}) {
    REQUIRE(t.files.open(file, O_RDWR));
    REQUIRE(t.files.remove(root, file.ino == made.ino ? "made" : "opened"));
    REQUIRE(t.files.close(file));
    t.files.release(file);
    CHECK(t.files.write(file, bytes_of("more"), 0, 0));
    CHECK(text_of(t.files.read(file, 0, 4)->copy().value()) == "more");
    t.files.release(file);
    CHECK(errno_of_served(t.files.write(file, bytes_of("more"), 0, 0)) != 0);
  }
}
