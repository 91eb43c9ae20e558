// Resolves paths that a user names. Each wrong kind of path has its own message.
#include "tools/target/target.h"

#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <array>
#include <map>
#include <string>
#include <vector>

#include "core/model/model_directory.h"
#include "core/storage/lock_holder.h"
#include "tests/support/archive_bytes.h"
#include "tests/support/catch.h"
#include "tests/support/silent_mount.h"
#include "tests/support/skip.h"
#include "tests/support/temporary_directory.h"
#include "tests/support/text_archive.h"
#include "tools/cli/version_change.h"
#include "tools/device/device_rules.h"
#include "tools/target/mounted_path.h"

using namespace stfs;
using tools::Use;

namespace {

const std::string kArchive = test::archive_of({{"a", "x"}, {"b", "y"}});

/// A fake mount that has only attributes.
struct FakeMount {
  std::map<std::string, std::map<std::string, std::string>> attributes;

  std::optional<std::string> operator()(const std::filesystem::path& path, const char* name) const {
    const auto file = attributes.find(path.string());
    if (file == attributes.end() || file->second.count(name) == 0) return std::nullopt;
    return file->second.at(name);
  }
};

std::string failure(const std::string& path) {
  const auto target = tools::open_target(path, Use::Tensors);
  return target ? "no failure" : target.error().message;
}

}  // namespace

TEST_CASE("target opens an archive", "[tools][target]") {
  const test::TemporaryDirectory directory;
  const auto target = tools::open_target(directory.write("m.safetensors", kArchive), Use::Tensors);
  REQUIRE(target);
  CHECK(target->model->tensors().size() == 2);
  CHECK_FALSE(target->tensor);
}

TEST_CASE("target finds the archive behind a mount's root and the tensor behind a file of it",
          "[tools][target]") {
  const test::TemporaryDirectory directory;
  const std::string archive = directory.write("m.safetensors", kArchive);
  const FakeMount mount{
      {{"/mnt/m", {{"user.safetensors.archive", archive}}},
       {"/mnt/m/b", {{"user.safetensors.archive", archive}, {"user.safetensors.name", "b"}}},
       {"/mnt/m/c", {{"user.safetensors.archive", archive}, {"user.safetensors.name", "c"}}}}};
  const auto root = tools::open_target("/mnt/m", Use::Tensors, {}, mount);
  REQUIRE(root);
  CHECK_FALSE(root->tensor);
  const auto file = tools::open_target("/mnt/m/b", Use::Tensors, {}, mount);
  REQUIRE(file);
  REQUIRE(file->tensor);
  CHECK(file->model->tensors()[*file->tensor].name == "b");
  const auto gone = tools::open_target("/mnt/m/c", Use::Tensors, {}, mount);
  REQUIRE_FALSE(gone);
  CHECK(gone.error().message == "/mnt/m/c: its archive " + archive + ": has no tensor c any more");
}

TEST_CASE("target opens the variant behind a mount of a delta", "[tools][target][delta]") {
  const test::TemporaryDirectory directory;
  const std::string base = directory.write("b.safetensors", kArchive);
  const std::string delta = directory.write("d.safetensors", test::archive_of({{"b", "z"}}));
  const FakeMount mount{
      {{"/mnt/v", {{"user.safetensors.archive", base}, {"user.safetensors.delta", delta}}},
       {"/mnt/v/b", {{"user.safetensors.archive", delta}, {"user.safetensors.name", "b"}}}}};
  const auto path = tools::locate_target("/mnt/v", Use::Tensors, mount);
  REQUIRE(path);
  CHECK(path->archive == base);
  CHECK(path->deltas == std::vector<std::filesystem::path>{delta});
  // The file is no delta. The refusal gives that reason, because it shows that the file was opened as a
  // delta.
  const auto refused = tools::open_target("/mnt/v", Use::Tensors, {}, mount);
  REQUIRE_FALSE(refused);
  CHECK(refused.error().message.find("/mnt/v: its archive " + base + ": ") == 0);
  CHECK(refused.error().message.find("not usable as a delta") != std::string::npos);
  // A tensor is in one of the two files. Only both files together give its name and say whether it may be
  // changed.
  const auto tensor = tools::locate_target("/mnt/v/b", Use::Change, mount);
  REQUIRE(tensor);
  CHECK(tensor->archive == base);
  CHECK(tensor->deltas == std::vector<std::filesystem::path>{delta});
  CHECK(tensor->tensor == "b");
}

TEST_CASE("target says which archive of a mount is gone", "[tools][target]") {
  const test::TemporaryDirectory directory;
  const std::string archive = directory / "gone.safetensors";
  const FakeMount mount{{{"/mnt/m", {{"user.safetensors.archive", archive}}}}};
  const auto target = tools::open_target("/mnt/m", Use::Tensors, {}, mount);
  REQUIRE_FALSE(target);
  CHECK(target.error().message.find("/mnt/m: its archive " + archive + ": ") == 0);
  CHECK(target.error().message.find("No such file or directory") != std::string::npos);
  const std::string index = directory / "gone.safetensors.index.json";
  const FakeMount sharded{{{"/mnt/m", {{"user.safetensors.archive", index}}}}};
  CHECK(
      tools::open_target("/mnt/m", Use::Tensors, {}, sharded).error().message.find(": its index " + index) ==
      6);
}

TEST_CASE("target sends from a directory of a mount to the mount", "[tools][target]") {
  const test::TemporaryDirectory directory;
  std::filesystem::create_directories(directory.path() / "mnt/model/layers");
  const std::string root = std::filesystem::canonical(directory.path() / "mnt").string();
  const FakeMount mount{{{root, {{"user.safetensors.archive", "/m"}}}}};
  const auto target = tools::open_target(directory / "mnt/model/layers", Use::Tensors, {}, mount);
  REQUIRE_FALSE(target);
  CHECK(target.error().message == (directory / "mnt/model/layers") +
                                      ": is a directory of a mount: name the mount, " + root +
                                      ", or the file of a tensor");
}

TEST_CASE("target does not follow attributes that were copied out of a mount", "[tools][target]") {
  const test::TemporaryDirectory directory;
  const std::string copy = directory.write("copy", kArchive);
  const std::string other = "/somewhere/else";
  if (::setxattr(copy.c_str(), "user.safetensors.archive", other.data(), other.size(), 0) != 0) {
    test::note_skip("the file system of the temporary directory has no user attributes");
    return;
  }
  const auto target = tools::open_target(copy, Use::Tensors);
  REQUIRE(target);
  CHECK(target->model->path() == copy);
}

TEST_CASE("target tells a missing file, a special file and an empty name apart", "[tools][target]") {
  const test::TemporaryDirectory directory;
  CHECK(failure(directory / "none") == (directory / "none") + ": No such file or directory");
  CHECK(failure("") == "the name of the target is empty");
  const std::string fifo = directory / "fifo";
  REQUIRE(::mkfifo(fifo.c_str(), 0600) == 0);
  CHECK(failure(fifo) == fifo + ": is not a regular file, so it cannot be mapped");
  const std::string file = directory.write("file", "");
  CHECK(failure(file + "/x") == file + "/x: Not a directory");
}

TEST_CASE("target names the archives of a directory that is no mount", "[tools][target]") {
  const test::TemporaryDirectory directory;
  const std::string path = directory.path().string();
  CHECK(failure(path) == path + ": is a directory, not a mount of safetensorsfs, and holds no archive");
  for (const char* name : {"c.safetensors", "a.safetensors", "notes.txt"}) directory.write(name, "");
  CHECK(failure(path) == path + ": is a directory: name an archive in it: a.safetensors, c.safetensors");
  for (const char* name : {"b.safetensors", "d.safetensors", "e.safetensors"}) directory.write(name, "");
  CHECK(
      failure(path) ==
      path +
          ": is a directory: name an archive in it: a.safetensors, b.safetensors, c.safetensors and 2 more");
}

TEST_CASE("target takes a directory with one archive for the archive, with every use", "[tools][target]") {
  const test::TemporaryDirectory directory;
  const std::string archive = directory.write("m.safetensors", kArchive);
  directory.write("notes.txt", "");
  std::filesystem::create_directory(directory.path() / "sub.safetensors");  // is none
  for (const Use use : {Use::Model, Use::Bytes, Use::Tensors, Use::Change}) {
    const auto target = tools::open_target(directory.path(), use);
    REQUIRE(target);
    CHECK(target->model->path() == archive);
    CHECK_FALSE(target->tensor);
  }
  directory.write("m.safetensors", "short");
  CHECK(failure(directory.path().string())
            .starts_with(directory.path().string() + ": its archive " + archive +
                         ": not a safetensors archive: "));
}

TEST_CASE("target takes no hidden file for an archive", "[tools][target]") {
  const test::TemporaryDirectory directory;
  directory.write("._m.safetensors", std::string("\x00\x05\x16\x07 macOS", 10));
  directory.write(".m.safetensors.index.json", "{}");
  CHECK(failure(directory.path().string()).ends_with("and holds no archive"));
  const std::string archive = directory.write("m.safetensors", kArchive);
  const auto target = tools::open_target(directory.path(), Use::Tensors);
  REQUIRE(target);
  CHECK(target->model->path() == archive);
}

TEST_CASE("target calls a file of another kind by its name", "[tools][target]") {
  const test::TemporaryDirectory directory;
  const std::string path = directory.write(
      "m.safetensors", "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 12345\n");
  CHECK(failure(path) == path +
                             ": not a safetensors archive: is a Git LFS pointer, not the file itself: fetch "
                             "it with `git lfs pull`");
}

TEST_CASE("each use of each file of a mount means what the table says", "[tools][target]") {
  const test::TemporaryDirectory directory;
  const std::string archive = directory.write("m.safetensors", kArchive);
  const auto attributes = [&](const std::string& view, const std::string& name) {
    std::map<std::string, std::string> found = {{"user.safetensors.archive", archive}};
    if (!view.empty()) found["user.safetensors.view"] = view;
    if (name.empty()) return found;
    found["user.safetensors.name"] = name;
    if (!view.empty()) found["user.safetensors.file"] = "dir/" + name;
    return found;
  };
  const std::string views = "/mnt/m/.safetensors/";
  const FakeMount mount{{{"/mnt/m", attributes("", "")},
                         {"/mnt/m/b", attributes("", "b")},
                         {views + "archive.safetensors", attributes("archive", "")},
                         {views + "npy/b.npy", attributes("npy", "b")},
                         {views + "float32/b.npy", attributes("float32", "b")},
                         {views + "slice/b[0]", attributes("slice", "b")},
                         {views + "transactions/t/b", attributes("transaction", "b")},
                         {views + "header.json", attributes("document", "")},
                         {views + "older/b", attributes("", "b")},  // a daemon that tells no kind
                         {views + "newer/b", attributes("what comes", "b")}}};
  const std::string model = "model", tensor = "tensor", file = "file", own = "/mnt/m/dir/b", root = "/mnt/m";
  struct Row {
    std::string named;
    std::array<std::string, 4> meant;  // a path: the message says to name it
  };
  const std::array rows = {
      // Use::               Model  Bytes   Tensors Change
      Row{"/mnt/m", {model, model, model, model}},
      Row{"/mnt/m/b", {model, tensor, tensor, tensor}},
      Row{views + "archive.safetensors", {model, model, model, root}},
      Row{views + "npy/b.npy", {model, file, own, own}},
      Row{views + "float32/b.npy", {model, file, own, own}},
      Row{views + "slice/b[0]", {model, file, own, own}},
      Row{views + "transactions/t/b", {model, file, own, own}},
      Row{views + "header.json", {model, file, root, root}},
      Row{views + "older/b", {model, file, "the tensor's own file", "the tensor's own file"}},
      Row{views + "newer/b", {model, file, own, own}}};
  const auto meaning = [&](const std::string& named, Use use) -> std::string {
    const auto target = tools::open_target(named, use, {}, mount);
    if (!target) {
      CHECK(target.error().errno_value == (use == Use::Change ? EROFS : EINVAL));
      CHECK(target.error().message.starts_with(named + ": is "));
      const std::string& message = target.error().message;
      const std::size_t comma = message.rfind(", ");
      const std::size_t name = message.rfind(": name ");
      return comma != message.npos && comma > name ? message.substr(comma + 2) : message.substr(name + 7);
    }
    if (target->view) return *target->view == named ? file : "another file";
    if (!target->tensor) return model;
    return target->model->tensors()[*target->tensor].name == "b" ? tensor : "another tensor";
  };
  for (const Row& row : rows) {
    for (const Use use : {Use::Model, Use::Bytes, Use::Tensors, Use::Change}) {
      CAPTURE(row.named, static_cast<int>(use));
      CHECK(meaning(row.named, use) == row.meant[static_cast<std::size_t>(use)]);
    }
  }
}

TEST_CASE("target says why a file is no archive", "[tools][target]") {
  const test::TemporaryDirectory directory;
  for (const std::string& content : {std::string(), std::string("short"),
                                     std::string("\x7f"
                                                 "ELF and so on"),
                                     test::archive_bytes("{", ""), test::archive_bytes("{}", "x")}) {
    const std::string path = directory.write("model.bin", content);
    CAPTURE(content);
    const std::string message = failure(path);
    CAPTURE(message);
    const std::string start = path + ": not a safetensors archive: ";
    CHECK(message.substr(0, start.size()) == start);
    CHECK(message.size() > start.size());
    CHECK(message.find(path, 1) == std::string::npos);  // named once
  }
}

TEST_CASE("a tensor that the index names and no shard has is told apart from a wrong name",
          "[tools][target]") {
  const test::TemporaryDirectory directory;
  directory.write("one.safetensors", kArchive);
  const std::string index = directory.write(
      "model.safetensors.index.json", R"({"weight_map":{"b":"one.safetensors","z":"two.safetensors"}})");
  const auto target = tools::open_target(index, Use::Tensors);
  REQUIRE(target);
  const auto lost = tools::find_tensor(*target->model, index, "z");
  REQUIRE_FALSE(lost);
  CHECK(lost.error().message.starts_with(index + ": tensor \"z\": " + (directory / "two.safetensors")));
  CHECK(tools::find_tensor(*target->model, index, "y").error().message.find("no such tensor") !=
        std::string::npos);
}

TEST_CASE("target takes an index, and a directory that holds one, for the model", "[tools][target]") {
  const test::TemporaryDirectory directory;
  directory.write("one.safetensors", kArchive);
  const std::string index =
      directory.write("model.safetensors.index.json", R"({"weight_map":{"b":"one.safetensors"}})");
  for (const std::string& named : {index, directory.path().string()}) {
    const auto target = tools::open_target(named, Use::Tensors);
    REQUIRE(target);
    CHECK(target->model->is_sharded());
    CHECK(target->model->tensors().find("b"));
  }
  const std::string empty = directory.write("empty.safetensors.index.json", "{}");
  CHECK(failure(empty) == empty + ": byte 0: the index has no weight_map");
  // The directory has two models, so the message names them.
  CHECK(failure(directory.path().string()).find("empty.safetensors.index.json") != std::string::npos);
}

TEST_CASE("an archive that another user may have planted is none beside others", "[tools][target]") {
  if (::geteuid() != 0) return test::note_skip("needs root, to give files away");
  constexpr uid_t kMallory = 4242;
  const test::TemporaryDirectory directory;
  const std::string own = directory.write("m.safetensors", kArchive);
  const std::string planted = directory.write("a.safetensors", "x\n");
  REQUIRE(::chown(planted.c_str(), kMallory, kMallory) == 0);
  const auto names = [&](mode_t mode) {
    REQUIRE(::chmod(directory.path().c_str(), mode) == 0);
    std::vector<std::string> found;
    const auto located = tools::locate_targets(directory.path(), Use::Tensors);
    REQUIRE(located);
    for (const auto& path : *located) found.push_back(path.archive);
    return found;
  };
  CHECK(names(0755) == std::vector{planted, own});
  for (const mode_t open_to : {0775U, 0777U, 01777U}) CHECK(names(open_to) == std::vector{own});
  CHECK(tools::open_target(directory.path(), Use::Tensors)->model->tensors().size() == 2);
  REQUIRE(::chown(own.c_str(), kMallory, kMallory) == 0);
  CHECK(names(01777) == std::vector{planted, own});
}

TEST_CASE("what asks a name's file system enters no mount of another user's", "[tools][target]") {
  constexpr uid_t kMallory = 4242;
  const test::TemporaryDirectory directory;
  const std::filesystem::path archive = directory.write("m.safetensors", "");
  const std::filesystem::path folder = directory / "l.safetensors";
  std::filesystem::create_directory(folder);
  const test::SilentMount of_file(archive, kMallory);
  if (!of_file.is_made()) return test::note_skip("needs root, to mount as another user");
  const test::SilentMount of_directory(folder, kMallory);
  REQUIRE(of_directory.is_made());
  // A link of another user is refused under any name.
  const std::filesystem::path sub = directory / "sub";
  std::filesystem::create_directory(sub);
  const test::SilentMount behind(sub, kMallory);
  REQUIRE(behind.is_made());
  const std::filesystem::path link = directory / "l.bin";
  std::filesystem::create_symlink("sub", link);
  REQUIRE(::lchown(link.c_str(), kMallory, kMallory) == 0);
  // A user who may write a directory on a named path exchanges it for such a link after the path was checked.
  const std::filesystem::path exchanged = directory / "exchanged";
  std::filesystem::create_symlink("sub/x", exchanged);
  REQUIRE(::lchown(exchanged.c_str(), kMallory, kMallory) == 0);
  for (const auto& path : {exchanged, exchanged / "model"})
    CHECK_FALSE(tools::mount_above(path, tools::read_mount_attribute));
  CHECK_FALSE(find_flock_holder(exchanged / "lock"));
  for (const auto& path : {archive, folder, link}) {
    CAPTURE(path);
    CHECK(follow_named_path(path).error().errno_value == EXDEV);
    CHECK_FALSE(is_directory_of_models(path));
    CHECK_FALSE(tools::read_mount_attribute(path, "user.safetensors.archive"));
    CHECK(tools::locate_target(path, Use::Model).error().errno_value == EXDEV);
    CHECK(tools::check_naming_mount({.archive = archive, .is_mounted = true}, path, {}).error().errno_value ==
          EXDEV);
    CHECK(device::DeviceRules::read_file(path).error().errno_value == EXDEV);
    CHECK_FALSE(tools::is_version_directory(path));
  }
}
