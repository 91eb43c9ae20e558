// `.safetensors/pretrained/` without a kernel: the entries of the source directory beside the model.
#include "fs/read/pretrained_directory.h"

#include <fcntl.h>
#include <limits.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <set>
#include <sstream>

#include "tests/fs/driven_filesystem.h"
#include "tests/fs/driven_model.h"
#include "tests/support/catch.h"
#include "tests/support/skip.h"

using namespace stfs;
using namespace stfs::test;

namespace {

using Names = std::vector<std::string>;

/// Returns the entries behind `.` and `..`.
template <class ReadDirectory>
std::map<std::string, Ino> listed(const ReadDirectory& read_directory) {
  std::map<std::string, Ino> entries;
  read_directory(0, [&](std::string_view name, Ino ino, std::uint64_t) {
    CHECK(entries.emplace(name, ino).second);
    return true;
  });
  CHECK(entries.erase(".") == 1);
  CHECK(entries.erase("..") == 1);
  return entries;
}

Names names_of(const std::map<std::string, Ino>& entries) {
  Names names;
  for (const auto& [name, ino] : entries) names.push_back(name);
  return names;
}

Names names_in(const PretrainedDirectory& directory) {
  return names_of(listed([&](std::uint64_t position, const Directory::VisitEntry& visit) {
    directory.list(PretrainedDirectory::kDirectory, position, visit);
  }));
}

std::string text_read(const Result<Bytes>& bytes) {
  REQUIRE(bytes);
  return text_of(bytes->copy().value());
}

std::string text_in(const std::filesystem::path& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return std::move(text).str();
}

/// A mount of an archive that has some files beside it.
struct Pretrained {
  explicit Pretrained(const MountedModelOptions& options = {}) : mount(kTwoTensors, options) {
    for (const char* name : {"config.json", "tokenizer.json"}) mount.directory().write(name, name);
  }
  [[nodiscard]] Ino directory() const { return mount.ino("pretrained", mount.ino(".safetensors")); }
  /// Looks the name up as the kernel does.
  [[nodiscard]] Ino ino(std::string_view name) const {
    const Ino found = mount.ino(name, directory());
    mount->note_lookup(found);
    return found;
  }
  [[nodiscard]] std::string source(const std::string& name) const {
    return text_in(mount.directory() / name);
  }
  [[nodiscard]] static Maker me() { return {.uid = ::geteuid(), .gid = ::getegid(), .other_groups = {}}; }
  [[nodiscard]] std::map<std::string, Ino> entries() const {
    return listed([&](std::uint64_t position, const Directory::VisitEntry& visit) {
      REQUIRE(mount->read_directory(directory(), position, visit));
    });
  }

  DrivenFilesystem mount;
};

Ino archive() {
  return Views::kArchive;
}

int errno_of(const auto& result) {
  return result ? 0 : result.error().errno_value;
}

}  // namespace

TEST_CASE("pretrained lists the model and what lies beside it", "[fs][pretrained]") {
  const MountedModelOptions& options = GENERATE(MountedModelOptions{}, kTreeLayout, kReadOnly);
  const Pretrained t(options);
  std::filesystem::create_directory(t.mount.directory() / "1_Pooling");
  CHECK(names_of(t.entries()) == Names{"1_Pooling", "config.json", "model.safetensors", "tokenizer.json"});
  for (const auto& [name, ino] : t.entries()) {
    CHECK(t.ino(name) == ino);
    CHECK(t.mount->attributes(ino)->st_ino == ino);
    const mode_t type = name == "1_Pooling" ? S_IFDIR : S_IFREG;
    CHECK(t.mount->file_type(ino) == type);
    CHECK((t.mount->attributes(ino)->st_mode & S_IFMT) == type);
  }
  const Ino above = t.mount.ino(".safetensors");
  std::map<std::string, Ino> all;
  const auto keep = [&](std::string_view name, Ino ino, std::uint64_t) {
    return all.emplace(name, ino).second;
  };
  REQUIRE(t.mount->read_directory(t.directory(), 0, keep));
  CHECK(all.at(".") == t.directory());
  CHECK(all.at("..") == above);
  const auto found = t.mount->lookup(above, "pretrained");
  CHECK(t.mount->file_type(found->st_ino) == S_IFDIR);
  CHECK(((found->st_mode & 0222) == 0) == options.is_read_only);
  CHECK(errno_of(t.mount->lookup(t.directory(), "other.json")) == ENOENT);
  CHECK(errno_of(t.mount->lookup(t.directory(), "../model.safetensors/..")) == ENOENT);
  CHECK(errno_of(t.mount->lookup(t.directory(), "..")) == ENOENT);
}

TEST_CASE("a name whose path is longer than a path may be is not looked up", "[fs][pretrained]") {
  const Pretrained t;
  const std::string name(250, 'd');
  constexpr int kDepth = 20;
  UniqueFd at(::open(t.mount.directory().path().c_str(), O_PATH | O_CLOEXEC));
  for (int depth = 0; depth < kDepth; ++depth) {
    REQUIRE(::mkdirat(at.get(), name.c_str(), 0755) == 0);
    at = UniqueFd(::openat(at.get(), name.c_str(), O_PATH | O_CLOEXEC));
  }
  Ino directory = t.directory();
  for (int depth = 1; depth <= PATH_MAX / 251; ++depth) {
    const auto found = t.mount->lookup(directory, name);
    REQUIRE(found);
    directory = found->st_ino;
  }
  CHECK(errno_of(t.mount->lookup(directory, name)) == ENAMETOOLONG);
}

TEST_CASE("model.safetensors in pretrained is the view of the whole model", "[fs][pretrained]") {
  const DrivenModel sharded;
  const Ino views = sharded.ino(".safetensors");
  const Ino pretrained = sharded.ino("pretrained", views);
  const Ino model = sharded.ino("model.safetensors", pretrained);
  CHECK(model == sharded.ino("archive.safetensors", views));
  CHECK(sharded->attributes(model)->st_nlink == 2);
  CHECK(sharded.content(model)->ends_with("CCCCC"));
  // The index and the shards are not listed.
  CHECK(names_of(listed([&](std::uint64_t position, const Directory::VisitEntry& visit) {
          REQUIRE(sharded->read_directory(pretrained, position, visit));
        })) == Names{"model.safetensors"});
  CHECK(errno_of(sharded->lookup(pretrained, "m.safetensors.index.json")) == ENOENT);
}

TEST_CASE("a refused model refuses pretrained's model and no other file", "[fs][pretrained]") {
  const Pretrained t;
  t.mount->refuse("another base");
  CHECK(errno_of(t.mount->lookup(t.directory(), "model.safetensors")) == EIO);
  CHECK(t.mount->lookup(t.directory(), "config.json"));
}

TEST_CASE("a file of pretrained has the bytes, size and mode of the source's file", "[fs][pretrained]") {
  const Pretrained t;
  const std::string path = t.mount.directory() / "config.json";
  REQUIRE(::chmod(path.c_str(), 0640) == 0);
  const auto shown = t.mount->lookup(t.directory(), "config.json");
  CHECK(shown->st_mode == (S_IFREG | 0640));
  CHECK(shown->st_size == 11);
  CHECK(text_read(t.mount->read(shown->st_ino, 0, 100)) == "config.json");
  CHECK(text_read(t.mount->read(shown->st_ino, 7, 3)) == "jso");
  CHECK(text_read(t.mount->read(shown->st_ino, 11, 3)).empty());
  CHECK(t.mount->open(shown->st_ino, O_RDONLY, 1) == nullptr);
  CHECK(errno_of(t.mount->extended_attribute(shown->st_ino, "user.safetensors.archive")) == ENODATA);
  CHECK(t.mount->list_extended_attributes(shown->st_ino)->empty());
  CHECK(errno_of(t.mount->lookup(shown->st_ino, "x")) == ENOENT);
}

TEST_CASE("a read-only mount changes no file of the source", "[fs][pretrained]") {
  const Pretrained t(kReadOnly);
  const Node file = t.mount->node_of(t.ino("config.json"));
  ServedFiles& files = t.mount->served_files();
  CHECK((t.mount->lookup(t.directory(), "config.json")->st_mode & 0222) == 0);
  CHECK(errno_of(t.mount->open(file.ino, O_RDWR, 1)) == EROFS);
  CHECK(errno_of(files.write(file, bytes_of("x"), 0, 0)) == EROFS);
  CHECK(errno_of(files.resize(file, 0)) == EROFS);
  CHECK(errno_of(files.change(file, {.permissions = 0600})) == EROFS);
  CHECK(errno_of(t.mount->create(t.directory(), "new.json", O_WRONLY, 1)) == EROFS);
  CHECK(errno_of(t.mount->remove_file(t.directory(), "config.json")) == EROFS);
  CHECK(errno_of(t.mount->make_directory(t.directory(), "new")) == EROFS);
  CHECK(errno_of(t.mount->rename(t.directory(), "config.json", t.directory(), "new")) == EROFS);
  CHECK(t.source("config.json") == "config.json");
}

TEST_CASE("a writable mount without a delta changes the source's own files", "[fs][pretrained]") {
  const Pretrained t;
  ServedFiles& files = t.mount->served_files();
  const Node file = t.mount->node_of(t.ino("config.json"));
  REQUIRE(t.mount->open(file.ino, O_WRONLY, 1));
  REQUIRE(files.resize(file, 0));
  REQUIRE(files.write(file, bytes_of("{}"), 0, 0));
  REQUIRE(files.write(file, bytes_of("!"), 0, O_APPEND));
  REQUIRE(files.close(file));
  CHECK(t.source("config.json") == "{}!");
  CHECK(t.ino("config.json") == file.ino);

  const auto made = t.mount->create(t.directory(), "new.json", O_WRONLY, 1, 0604, t.me());
  REQUIRE(made);
  CHECK(made->status.st_mode == (S_IFREG | 0604));
  REQUIRE(t.mount->rename(t.directory(), "new.json", t.directory(), "config.json"));
  CHECK(t.ino("config.json") == made->status.st_ino);
  CHECK(t.source("config.json").empty());
  CHECK(text_read(t.mount->read(file.ino, 0, 10)) == "{}!");  // a reader of the replaced file continues
  REQUIRE(t.mount->make_directory(t.directory(), "sub", t.me()));
  REQUIRE(t.mount->create(t.ino("sub"), "x", O_WRONLY, 1, 0600, t.me()));
  REQUIRE(t.mount->remove_file(t.ino("sub"), "x"));
  REQUIRE(t.mount->remove_directory(t.directory(), "sub"));
  REQUIRE(t.mount->remove_file(t.directory(), "config.json"));
  CHECK_FALSE(std::filesystem::exists(t.mount.directory() / "config.json"));
}

TEST_CASE("names that pretrained leaves out can't be made, moved or removed", "[fs][pretrained]") {
  const Pretrained t;
  for (const std::string& name :
       {std::string("model.safetensors"), ".model.safetensors.stj." + std::string(32, 'a')}) {
    CHECK(errno_of(t.mount->remove_file(t.directory(), name)) == EPERM);
    CHECK(errno_of(t.mount->rename(t.directory(), "config.json", t.directory(), name)) == EPERM);
  }
  CHECK(errno_of(t.mount->rename(t.directory(), "config.json", t.directory(), "x.safetensors")) == EPERM);
  MountedModelOptions without_edits;
  without_edits.allows_edits = false;
  const Pretrained fixed(without_edits);
  CHECK(errno_of(fixed.mount->create(fixed.directory(), "new.json", O_WRONLY, 1)) == EPERM);
  CHECK(errno_of(fixed.mount->remove_file(fixed.directory(), "config.json")) == EPERM);
}

TEST_CASE("a file that is a link is replaced by a copy, and the file behind it stays", "[fs][pretrained]") {
  const Pretrained t;
  const TemporaryDirectory blobs;
  blobs.write("1", "blob");
  std::filesystem::create_symlink(blobs / "1", t.mount.directory() / "linked.json");
  const Node file = t.mount->node_of(t.ino("linked.json"));
  ServedFiles& files = t.mount->served_files();
  CHECK(text_read(t.mount->read(file.ino, 0, 10)) == "blob");
  REQUIRE(t.mount->open(file.ino, O_RDWR, 1));
  REQUIRE(files.close(file));
  CHECK(std::filesystem::is_symlink(t.mount.directory() / "linked.json"));  // nothing was written
  REQUIRE(files.write(file, bytes_of("B"), 0, 0));
  REQUIRE(files.close(file));
  CHECK(text_read(t.mount->read(file.ino, 0, 10)) == "Blob");
  CHECK(t.ino("linked.json") == file.ino);
  CHECK(t.source("linked.json") == "Blob");
  CHECK_FALSE(std::filesystem::is_symlink(t.mount.directory() / "linked.json"));
  CHECK(text_in(blobs / "1") == "blob");
}

TEST_CASE("nothing is made or written behind a link to a directory", "[fs][pretrained]") {
  const Pretrained t;
  const TemporaryDirectory other;
  other.write("x", "kept");
  std::filesystem::create_directory_symlink(other.path(), t.mount.directory() / "linked");
  const Ino linked = t.ino("linked");
  const Node file = t.mount->node_of(t.mount.ino("x", linked));
  CHECK(text_read(t.mount->read(file.ino, 0, 10)) == "kept");
  CHECK(errno_of(t.mount->served_files().write(file, bytes_of("y"), 0, 0)) == EPERM);
  CHECK(errno_of(t.mount->create(linked, "new", O_WRONLY, 1, 0600, t.me())) == EPERM);
  CHECK(errno_of(t.mount->remove_file(linked, "x")) == EPERM);
  CHECK(text_in(other / "x") == "kept");
}

TEST_CASE("a link of another user to a third one's file is not followed", "[fs][pretrained]") {
  if (::geteuid() != 0) return note_skip("needs root, to make a link of another user");
  const Pretrained t;
  const TemporaryDirectory secret;
  secret.write("x", "secret");
  const std::string link = t.mount.directory() / "linked.json";
  std::filesystem::create_symlink(secret / "x", link);
  constexpr uid_t kOther = 4242;
  REQUIRE(::lchown(link.c_str(), kOther, kOther) == 0);
  CHECK(errno_of(t.mount->lookup(t.directory(), "linked.json")) == EACCES);
  CHECK_FALSE(t.entries().contains("linked.json"));
  REQUIRE(::chown((secret / "x").c_str(), kOther, kOther) == 0);  // the link's maker may show its own files
  CHECK(text_read(t.mount->read(t.ino("linked.json"), 0, 10)) == "secret");
}

TEST_CASE("links that lead nowhere, pipes and links to themselves are not shown", "[fs][pretrained]") {
  const Pretrained t;
  std::filesystem::create_symlink("nowhere", t.mount.directory() / "dangling");
  std::filesystem::create_symlink("loop", t.mount.directory() / "loop");
  std::filesystem::create_symlink("/proc/self/status", t.mount.directory() / "elsewhere");
  std::filesystem::create_directory_symlink(".", t.mount.directory() / "endless");
  REQUIRE(::mkfifo((t.mount.directory() / "pipe").c_str(), 0600) == 0);
  CHECK(names_of(t.entries()) == Names{"config.json", "model.safetensors", "tokenizer.json"});
  CHECK(errno_of(t.mount->lookup(t.directory(), "pipe")) == ENOENT);
  CHECK(errno_of(t.mount->lookup(t.directory(), "elsewhere")) == EXDEV);
  CHECK(errno_of(t.mount->lookup(t.directory(), "loop")) == ELOOP);
  CHECK(errno_of(t.mount->lookup(t.directory(), "endless")) == ELOOP);
}

TEST_CASE("the mode and the time of a directory of the source are changed", "[fs][pretrained]") {
  const Pretrained t;
  REQUIRE(t.mount->make_directory(t.directory(), "sub", t.me()));
  ServedFiles& files = t.mount->served_files();
  const Node sub = t.mount->node_of(t.ino("sub"));
  const struct timespec then { 1000, 0 };
  REQUIRE(files.change(sub, {.permissions = 0711, .mtime = then}));
  CHECK(t.mount->attributes(sub.ino)->st_mode == (S_IFDIR | 0711));
  CHECK(t.mount->attributes(sub.ino)->st_mtim.tv_sec == 1000);
  CHECK(errno_of(files.change(t.mount->node_of(t.directory()), {.permissions = 0711})) == EPERM);
}

TEST_CASE("a source directory has more files than are kept open", "[fs][pretrained]") {
  const Pretrained t;
  constexpr int kFiles = 600;
  std::map<std::string, Ino> known;
  for (int number = 0; number < kFiles; ++number) {
    const std::string name = "f" + std::to_string(number);
    t.mount.directory().write(name, name);
    known[name] = t.ino(name);
  }
  for (int round = 0; round < 2; ++round) {
    for (const auto& [name, ino] : known) CHECK(text_read(t.mount->read(ino, 0, 10)) == name);
  }
  for (const auto& [name, ino] : known) t.mount->forget(ino, 1);
  CHECK(t.entries().size() == kFiles + 3);
}

TEST_CASE("pretrained shows what the source directory holds now", "[fs][pretrained]") {
  const Pretrained t;
  const Ino config = t.entries().at("config.json");
  CHECK(errno_of(t.mount->lookup(t.directory(), "late.json")) == ENOENT);
  t.mount.directory().write("late.json", "");
  t.mount.directory().write("a.json", "");
  CHECK(names_of(t.entries()) ==
        Names{"a.json", "config.json", "late.json", "model.safetensors", "tokenizer.json"});
  CHECK(text_read(t.mount->read(config, 0, 100)) == "config.json");
  std::filesystem::remove(t.mount.directory() / "config.json");
  CHECK(errno_of(t.mount->lookup(t.directory(), "config.json")) == ENOENT);
  CHECK_FALSE(t.entries().contains("config.json"));
  CHECK(t.mount->attributes(config));  // a program may still read the file
  t.mount.directory().write("config.json", "another");
  const Ino another = t.ino("config.json");
  CHECK(another != config);
  CHECK(text_read(t.mount->read(config, 0, 100)) == "config.json");
  CHECK(text_read(t.mount->read(another, 0, 100)) == "another");
  CHECK_FALSE(t.mount->is_source_changed(another));
  t.mount.directory().write("config.json", "other bytes");
  static_cast<void>(t.ino("config.json"));
  CHECK(t.mount->is_source_changed(another));
  CHECK_FALSE(t.mount->is_source_changed(another));
}

TEST_CASE("a change during a listing of pretrained hides no entry and shows none twice", "[fs][pretrained]") {
  const Pretrained t;
  Names names;
  std::uint64_t position = 0;
  const auto next = [&] {
    const std::size_t before = names.size();
    REQUIRE(t.mount->read_directory(t.directory(), position,
                                    [&](std::string_view name, Ino, std::uint64_t behind) {
                                      if (names.size() > before) return false;
                                      names.emplace_back(name);
                                      position = behind;
                                      return true;
                                    }));
    return names.size() > before;
  };
  for (int at = 0; at < 4; ++at) REQUIRE(next());
  std::filesystem::remove(t.mount.directory() / names.back());
  for (int number = 0; number < 20; ++number)
    t.mount.directory().write("new." + std::to_string(number) + ".json", "");
  while (next()) {
  }
  for (const char* name : {".", "..", "model.safetensors", "config.json", "tokenizer.json"})
    CHECK(std::ranges::count(names, name) == 1);
  CHECK(std::set(names.begin(), names.end()).size() == names.size());
}

TEST_CASE("pretrained leaves out archives, journals and temporary files", "[fs][pretrained]") {
  const Pretrained t;
  const std::string id(32, 'a');
  const std::string longest(240, 'n');
  for (const std::string& name :
       {std::string("other.safetensors"), std::string("other.safetensors.index.json"),
        ".model.safetensors.stj." + id, ".other.safetensors.stj." + id + ".standing",
        ".model.safetensors.stj." + id + ".staged", ".model.safetensors.stj." + id + ".group",
        ".model.safetensors.stj." + id + ".index", "." + longest.substr(0, 180) + "~0.stj." + id,
        std::string(".stfs-12-0.tmp")}) {
    t.mount.directory().write(name, "");
    CHECK(errno_of(t.mount->lookup(t.directory(), name)) == ENOENT);
  }
  for (const char* name : {".gitattributes", "pytorch_model.bin.index.json", "a.safetensors.txt", "x.tmp"})
    t.mount.directory().write(name, "");
  CHECK(names_of(t.entries()) == Names{".gitattributes", "a.safetensors.txt", "config.json",
                                       "model.safetensors", "pytorch_model.bin.index.json", "tokenizer.json",
                                       "x.tmp"});
}

TEST_CASE("pretrained leaves out the model's own file and its deltas, whatever their names are",
          "[fs][pretrained]") {
  const TemporaryDirectory directory;
  for (const char* name : {"weights.bin", "tuned", "config.json"}) directory.write(name, "");
  const TemporaryDirectory elsewhere;
  const PretrainedDirectory pretrained(
      directory / "weights.bin",
      {elsewhere / "config.json", directory.path() / ".." / directory.path().filename() / "tuned"}, archive);
  CHECK(names_in(pretrained) == Names{"config.json", "model.safetensors"});
}

TEST_CASE("pretrained follows the path that the user has named, not the file behind it", "[fs][pretrained]") {
  const TemporaryDirectory directory;
  std::filesystem::create_directories(directory / "blobs");
  std::filesystem::create_directories(directory / "snapshot");
  directory.write("blobs/1", archive_of(kTwoTensors));
  directory.write("blobs/2", "{}");
  std::filesystem::create_symlink("../blobs/1", directory / "snapshot/model.safetensors");
  std::filesystem::create_symlink("../blobs/2", directory / "snapshot/config.json");
  auto archive = Archive::open(directory / "snapshot/model.safetensors", Access::ReadOnly);
  REQUIRE(archive);
  const MountedModel mount(std::move(*archive), MountedModelOptions{});
  const Ino pretrained = mount.lookup(mount.lookup(kRootIno, ".safetensors")->st_ino, "pretrained")->st_ino;
  const auto entries = listed([&](std::uint64_t position, const Directory::VisitEntry& visit) {
    REQUIRE(mount.read_directory(pretrained, position, visit));
  });
  CHECK(names_of(entries) == Names{"config.json", "model.safetensors"});
  CHECK(text_read(mount.read(entries.at("config.json"), 0, 10)) == "{}");
}

TEST_CASE("pretrained leaves out directories on which something is mounted", "[fs][pretrained]") {
  PretrainedDirectory root("/model.safetensors", {}, archive);
  const Names names = names_in(root);
  CHECK(std::ranges::count(names, "usr") == 1);
  CHECK(std::ranges::count(names, "proc") == 0);
  CHECK(root.find(PretrainedDirectory::kDirectory, "usr"));
  CHECK(errno_of(root.find(PretrainedDirectory::kDirectory, "proc")) == ENOENT);
}

TEST_CASE("a source directory that cannot be read gives the model alone", "[fs][pretrained]") {
  PretrainedDirectory nowhere("/nowhere/at/all/model.safetensors", {"/nowhere/at/all/delta"}, archive);
  CHECK(names_in(nowhere) == Names{"model.safetensors"});
  CHECK(nowhere.find(PretrainedDirectory::kDirectory, "model.safetensors") == Views::kArchive);
  CHECK(errno_of(nowhere.find(PretrainedDirectory::kDirectory, "etc")) == ENOENT);
  CHECK(nowhere.node(PretrainedDirectory::kDirectory).is_directory());
}

TEST_CASE("a source directory stays the same when something covers its path", "[fs][pretrained]") {
  const TemporaryDirectory directory;
  std::filesystem::create_directory(directory / "source");
  directory.write("source/config.json", "");
  const PretrainedDirectory pretrained(directory / "source/model.safetensors", {}, archive);
  // The test covers the directory as a mount does.
  std::filesystem::rename(directory / "source", directory / "covered");
  std::filesystem::create_directory(directory / "source");
  directory.write("source/tensor", "");
  CHECK(names_in(pretrained) == Names{"config.json", "model.safetensors"});
}

TEST_CASE("pretrained has the mode, owner and time of the source directory", "[fs][pretrained]") {
  MountedModelOptions options;
  options.is_shared = true;
  const Pretrained t(options);
  const auto shown = [&] { return t.mount->lookup(t.mount.ino(".safetensors"), "pretrained").value(); };
  const std::string source = t.mount.directory().path();
  REQUIRE(::chmod(source.c_str(), 0751) == 0);
  CHECK(shown().st_mode == (S_IFDIR | 0751));
  CHECK(shown().st_uid == ::getuid());
  const struct timespec then[2] = {{0, UTIME_OMIT}, {1'000'000, 5}};
  REQUIRE(::utimensat(AT_FDCWD, source.c_str(), then, 0) == 0);
  CHECK(shown().st_mtim.tv_sec == 1'000'000);

  options.umask = 0077;
  options.uid = 1234;
  options.gid = 4321;
  options.allows_edits = false;
  const Pretrained masked(options);
  REQUIRE(::chmod(masked.mount.directory().path().c_str(), 0755) == 0);
  const auto found = masked.mount->lookup(masked.mount.ino(".safetensors"), "pretrained").value();
  CHECK(found.st_mode == (S_IFDIR | 0500));
  CHECK((found.st_uid == 1234 && found.st_gid == 4321));
}

TEST_CASE("entries of pretrained that the kernel may have cached are told when a model goes",
          "[fs][pretrained]") {
  const Pretrained t;
  const auto known = [&] {
    std::vector<std::pair<Ino, std::string>> all;
    t.mount->visit_known([&](Ino directory, std::string_view name) { all.emplace_back(directory, name); });
    return all;
  };
  static_cast<void>(t.ino("tokenizer.json"));
  const auto all = known();
  const auto at = [&](Ino directory, const std::string& name) {
    return std::ranges::find(all, std::pair(directory, name));
  };
  CHECK(at(t.directory(), "tokenizer.json") < at(kHiddenIno, "pretrained"));
  CHECK(at(t.directory(), "model.safetensors") < at(kHiddenIno, "pretrained"));
  CHECK(at(kHiddenIno, "pretrained") < all.end());
  CHECK(at(t.directory(), "config.json") == all.end());  // no look-up has found it
}
