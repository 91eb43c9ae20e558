// `.safetensors/pretrained/` without a kernel: the entries of the source directory as links, beside the
// model.
#include "fs/read/pretrained_directory.h"

#include <sys/stat.h>
#include <sys/xattr.h>

#include <algorithm>
#include <map>

#include "tests/fs/driven_filesystem.h"
#include "tests/fs/driven_model.h"
#include "tests/support/catch.h"

using namespace stfs;
using namespace stfs::test;

namespace {

using Names = std::vector<std::string>;

/// The entries behind `.` and `..`.
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

/// A mount of an archive beside which some files lie.
struct Pretrained {
  explicit Pretrained(const FilesystemOptions& options = {}) : mount(kTwoTensors, options) {
    for (const char* name : {"config.json", "tokenizer.json"}) mount.directory().write(name, name);
  }
  [[nodiscard]] Ino directory() const { return mount.ino("pretrained", mount.ino(".safetensors")); }
  [[nodiscard]] Ino ino(std::string_view name) const { return mount.ino(name, directory()); }
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

TEST_CASE("pretrained lists the model, and links to what lies beside it", "[fs][pretrained]") {
  const FilesystemOptions& options = GENERATE(FilesystemOptions{}, kTreeLayout, kReadOnly);
  const Pretrained t(options);
  std::filesystem::create_directory(t.mount.directory() / "1_Pooling");
  CHECK(names_of(t.entries()) == Names{"1_Pooling", "config.json", "model.safetensors", "tokenizer.json"});
  for (const auto& [name, ino] : t.entries()) {
    CHECK(t.ino(name) == ino);
    CHECK(t.mount->attributes(ino)->st_ino == ino);
    const mode_t type = name == "model.safetensors" ? S_IFREG : S_IFLNK;
    CHECK(t.mount->file_type(ino) == type);
    CHECK((t.mount->attributes(ino)->st_mode & S_IFMT) == type);
    if (type == S_IFLNK) CHECK(t.mount->read_link(ino) == t.mount.directory() / name);
  }
  const auto found = t.mount->lookup(t.mount.ino(".safetensors"), "pretrained");
  CHECK(t.mount->file_type(found->st_ino) == S_IFDIR);
  CHECK((found->st_mode & 0222) == 0);
  CHECK(errno_of(t.mount->lookup(t.directory(), "other.json")) == ENOENT);
  CHECK(errno_of(t.mount->lookup(t.directory(), "../model.safetensors/..")) == ENOENT);
  CHECK(errno_of(t.mount->lookup(t.directory(), "..")) == ENOENT);
}

TEST_CASE("model.safetensors in pretrained is the view of the whole model", "[fs][pretrained]") {
  const DrivenModel sharded;
  const Ino views = sharded.ino(".safetensors");
  const Ino pretrained = sharded.ino("pretrained", views);
  const Ino model = sharded.ino("model.safetensors", pretrained);
  CHECK(model == sharded.ino("archive.safetensors", views));
  CHECK(sharded->attributes(model)->st_nlink == 2);
  CHECK(sharded.content(model)->ends_with("CCCCC"));
  // The index and the shards are left out.
  CHECK(names_of(listed([&](std::uint64_t position, const Directory::VisitEntry& visit) {
          REQUIRE(sharded->read_directory(pretrained, position, visit));
        })) == Names{"model.safetensors"});
  CHECK(errno_of(sharded->lookup(pretrained, "m.safetensors.index.json")) == ENOENT);
}

TEST_CASE("a refused model refuses pretrained's model and no link", "[fs][pretrained]") {
  const Pretrained t;
  t.mount->refuse("another base");
  CHECK(errno_of(t.mount->lookup(t.directory(), "model.safetensors")) == EIO);
  CHECK(t.mount->lookup(t.directory(), "config.json"));
}

TEST_CASE("a link of pretrained is nothing but a link", "[fs][pretrained]") {
  const Pretrained t;
  const auto link = t.mount->lookup(t.directory(), "config.json");
  CHECK(link->st_mode == (S_IFLNK | 0777));
  CHECK(link->st_nlink == 1);
  CHECK(static_cast<std::size_t>(link->st_size) == (t.mount.directory() / "config.json").size());
  CHECK(errno_of(t.mount->read(link->st_ino, 0, 100)) == EINVAL);
  CHECK(errno_of(t.mount->open(link->st_ino, O_RDONLY, 1)) == ELOOP);
  CHECK(errno_of(t.mount->open(link->st_ino, O_RDWR, 1)) == ELOOP);
  CHECK(errno_of(t.mount->check_settable(link->st_ino)) == EPERM);
  CHECK(errno_of(t.mount->resize_by_name(link->st_ino, 0, 1)) == EPERM);
  CHECK(errno_of(t.mount->extended_attribute(link->st_ino, "user.safetensors.archive")) == ENODATA);
  CHECK(t.mount->list_extended_attributes(link->st_ino)->empty());
  CHECK(errno_of(t.mount->lookup(link->st_ino, "x")) == ENOENT);
  CHECK(errno_of(t.mount->remove_file(t.directory(), "config.json")) == EPERM);
  CHECK(errno_of(t.mount->make_directory(t.directory(), "new")) == EPERM);
  for (const Ino other : {t.ino("model.safetensors"), t.directory(), t.mount.ino("first"), Ino{kRootIno}})
    CHECK(errno_of(t.mount->read_link(other)) == EINVAL);
  CHECK(errno_of(t.mount->read_link(link->st_ino + 100)) == ENOENT);
}

TEST_CASE("pretrained shows what the source directory holds now", "[fs][pretrained]") {
  const Pretrained t;
  const Ino config = t.entries().at("config.json");
  CHECK(errno_of(t.mount->lookup(t.directory(), "late.json")) == ENOENT);
  t.mount.directory().write("late.json", "");
  t.mount.directory().write("a.json", "");
  CHECK(names_of(t.entries()) ==
        Names{"a.json", "config.json", "late.json", "model.safetensors", "tokenizer.json"});
  CHECK(t.mount->read_link(t.ino("late.json")) == t.mount.directory() / "late.json");
  std::filesystem::remove(t.mount.directory() / "config.json");
  CHECK(errno_of(t.mount->lookup(t.directory(), "config.json")) == ENOENT);
  CHECK_FALSE(t.entries().contains("config.json"));
  CHECK(t.mount->attributes(config));  // the kernel may still know the link
  t.mount.directory().write("config.json", "another");
  CHECK(t.ino("config.json") == config);
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
  REQUIRE(names.back() == "config.json");
  std::filesystem::remove(t.mount.directory() / "config.json");
  t.mount.directory().write("a.json", "");  // first in the order of names
  while (next()) {
  }
  CHECK(names == Names{".", "..", "model.safetensors", "config.json", "tokenizer.json", "a.json"});
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
  const Filesystem mount(std::move(*archive), FilesystemOptions{});
  const Ino pretrained = mount.lookup(mount.lookup(kRootIno, ".safetensors")->st_ino, "pretrained")->st_ino;
  const auto entries = listed([&](std::uint64_t position, const Directory::VisitEntry& visit) {
    REQUIRE(mount.read_directory(pretrained, position, visit));
  });
  CHECK(names_of(entries) == Names{"config.json", "model.safetensors"});
  CHECK(mount.read_link(entries.at("config.json")) == directory / "snapshot/config.json");
}

TEST_CASE("pretrained leaves out directories on which something is mounted", "[fs][pretrained]") {
  PretrainedDirectory root("/model.safetensors", {}, archive);
  const Names names = names_in(root);
  CHECK(std::ranges::count(names, "usr") == 1);
  CHECK(std::ranges::count(names, "proc") == 0);
  CHECK(root.find(PretrainedDirectory::kDirectory, "usr"));
  CHECK(errno_of(root.find(PretrainedDirectory::kDirectory, "proc")) == ENOENT);
  CHECK(root.target(*root.find(PretrainedDirectory::kDirectory, "usr")) == "/usr");
}

TEST_CASE("a source directory that cannot be read gives the model alone", "[fs][pretrained]") {
  PretrainedDirectory nowhere("/nowhere/at/all/model.safetensors", {"/nowhere/at/all/delta"}, archive);
  CHECK(names_in(nowhere) == Names{"model.safetensors"});
  CHECK(nowhere.find(PretrainedDirectory::kDirectory, "model.safetensors") == Views::kArchive);
  CHECK(errno_of(nowhere.find(PretrainedDirectory::kDirectory, "etc")) == ENOENT);
  CHECK_FALSE(nowhere.source());
  CHECK(nowhere.node(PretrainedDirectory::kDirectory).is_directory());
}

TEST_CASE("a source directory stays the same when something covers its path", "[fs][pretrained]") {
  const TemporaryDirectory directory;
  std::filesystem::create_directory(directory / "source");
  directory.write("source/config.json", "");
  const PretrainedDirectory pretrained(directory / "source/model.safetensors", {}, archive);
  // As a mount does.
  std::filesystem::rename(directory / "source", directory / "covered");
  std::filesystem::create_directory(directory / "source");
  directory.write("source/tensor", "");
  CHECK(names_in(pretrained) == Names{"config.json", "model.safetensors"});
}

TEST_CASE("pretrained has the mode, owner and time of the source directory", "[fs][pretrained]") {
  FilesystemOptions options;
  options.is_shared = true;
  const Pretrained t(options);
  const auto shown = [&] { return t.mount->lookup(t.mount.ino(".safetensors"), "pretrained").value(); };
  const std::string source = t.mount.directory().path();
  REQUIRE(::chmod(source.c_str(), 0751) == 0);
  CHECK(shown().st_mode == (S_IFDIR | 0551));
  CHECK(shown().st_uid == ::getuid());
  const struct timespec then[2] = {{0, UTIME_OMIT}, {1'000'000, 5}};
  REQUIRE(::utimensat(AT_FDCWD, source.c_str(), then, 0) == 0);
  CHECK(shown().st_mtim.tv_sec == 1'000'000);
  CHECK(t.mount->attributes(t.directory())->st_mode == (S_IFDIR | 0551));
  // A listing reads them again, too.
  REQUIRE(::chmod(source.c_str(), 0700) == 0);
  REQUIRE(t.mount->read_directory(t.directory(), 0, [](auto, auto, auto) { return true; }));
  CHECK(t.mount->attributes(t.directory())->st_mode == (S_IFDIR | 0500));

  options.umask = 0077;
  options.uid = 1234;
  options.gid = 4321;
  const Pretrained masked(options);
  REQUIRE(::chmod(masked.mount.directory().path().c_str(), 0755) == 0);
  const auto found = masked.mount->lookup(masked.mount.ino(".safetensors"), "pretrained").value();
  CHECK(found.st_mode == (S_IFDIR | 0500));
  CHECK((found.st_uid == 1234 && found.st_gid == 4321));
  CHECK(masked.mount->attributes(masked.ino("config.json"))->st_mode == (S_IFLNK | 0777));
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
  CHECK(at(t.directory(), "config.json") == all.end());  // nobody has looked it up
}
