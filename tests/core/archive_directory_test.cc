// An archive reaches its journals and its index through the directory in which it was opened.
#include <cerrno>
#include <filesystem>
#include <memory>
#include <string>

#include "core/archive/archive.h"
#include "core/commit/transaction.h"
#include "core/model/model_edit.h"
#include "core/storage/open_directory.h"
#include "tests/support/catch.h"
#include "tests/support/plain.h"
#include "tests/support/temporary_directory.h"
#include "tests/support/text_archive.h"

using namespace stfs;
using namespace stfs::test;
namespace fs = std::filesystem;

namespace {

const std::string kArchive = archive_of({{"a", std::string(200000, 'a')}, {"b", std::string(100, 'b')}});

/// `cur` leads to `v1`. Another user's directory takes the name `v1` while `cur` leads to the old one.
struct Exchanged {
  Exchanged() {
    for (const char* name : {"v1", "private"}) fs::create_directory(directory / name);
    fs::create_directory_symlink("v1", directory / "cur");
    directory.write("v1/m.safetensors", kArchive);
    directory.write("private/m.safetensors", kArchive);
  }
  void exchange() const {
    fs::rename(directory / "v1", directory / "v1x");
    fs::remove(directory / "cur");
    fs::create_directory_symlink("v1x", directory / "cur");
    fs::create_directory_symlink("private", directory / "v1");
  }
  void check_private() const {
    CHECK(count_files(directory / "private") == 1);
    CHECK(content_of(directory / "private/m.safetensors") == kArchive);
  }
  [[nodiscard]] std::string moved() const { return content_of(directory / "v1x/m.safetensors"); }

  TemporaryDirectory directory;
  fs::path path = directory / "cur/m.safetensors";
};

int commit(Archive& archive, std::uint32_t tensor, const std::string& bytes) {
  Transaction transaction(archive);
  auto stage = transaction.stage(archive.version()->ids.of(tensor));
  if (!stage) return stage.error().errno_value;
  REQUIRE((*stage)->write(bytes_of(bytes), 0));
  ReaderWriterLock lock;
  return errno_of(transaction.commit({}, [&](TensorId) -> ReaderWriterLock& { return lock; }));
}

}  // namespace

TEST_CASE_METHOD(Exchanged, "commits put nothing into a directory that has taken the name of the archive's",
                 "[core][archive_directory]") {
  const auto archive = Archive::open(path, Access::ReadWrite).value();
  exchange();
  CHECK(commit(*archive, 0, std::string(200000, 'x')) == 0);
  for (const char byte : {'y', 'z'})
    CHECK(commit(*archive, 1, std::string(100, byte)) == 0);  // a kept journal
  CHECK(moved().ends_with(std::string(100, 'z')));
  check_private();
}

TEST_CASE_METHOD(Exchanged,
                 "an edit replaces no index in a directory that has taken the name of the archive's",
                 "[core][archive_directory]") {
  const std::string index = R"({"metadata":{},"weight_map":{"a":"m.safetensors","b":"m.safetensors"}})";
  for (const char* name : {"v1", "private"})
    directory.write(std::string(name) + "/m.safetensors.index.json", index);
  const auto model =
      Model::open(directory / "cur/m.safetensors.index.json", {.access = Access::ReadWrite}).value();
  auto edit = ModelEdit::of(*model).value();
  REQUIRE(edit.rename({{{"b", "c"}}}));
  auto begun = edit.begin(true);
  exchange();
  if (begun) static_cast<void>(edit.commit({}));
  CHECK(content_of(directory / "private/m.safetensors.index.json") == index);
  CHECK(count_files(directory / "private") == 2);
  CHECK(content_of(directory / "v1x/m.safetensors.index.json").find("\"c\"") != std::string::npos);
}

TEST_CASE_METHOD(Exchanged, "what is beside a file is reached in the directory in which it was opened",
                 "[core][archive_directory]") {
  const fs::path real = directory / "v1/m.safetensors";
  const auto file = system_storage().open(real, Access::ReadOnly).value();
  const auto beside = storage_beside(system_storage(), real, file.get()).value();
  CHECK(storage_beside(system_storage(), real, file.get()).value() == beside);
  exchange();
  REQUIRE(beside->create(directory / "v1/made", 0600));
  REQUIRE(beside->rename(directory / "v1/made", directory / "v1/renamed", false));
  auto unnamed = beside->create_unnamed(directory / "v1/unnamed").value();
  REQUIRE(beside->publish(*unnamed, directory / "v1/published"));
  CHECK(beside->make_directory(directory / "v1/folder").value());
  CHECK(beside->list(directory / "v1", "")->size() == 6);  // with "." and ".."
  CHECK(beside->status(directory / "v1/renamed"));
  CHECK(beside->sync_directory(directory / "v1"));
  CHECK(beside->check_replaceable(directory / "v1/x"));
  CHECK(fs::exists(directory / "v1x/published"));
  CHECK(beside->remove(directory / "v1/renamed"));
  CHECK(beside->remove_directory(directory / "v1/folder"));
  std::string deep = "v1";
  for (int level = 0; level < 3000; ++level) deep += "/x";
  CHECK(beside->remove(directory / deep).error().errno_value == ENAMETOOLONG);
  check_private();
  // Paths outside of the opened directory lead where they led before.
  CHECK(beside->status(directory / "private/m.safetensors"));
  CHECK_FALSE(beside->status(directory / "v1x2"));
}

TEST_CASE_METHOD(Exchanged, "messages of files beside an archive have the paths for people",
                 "[core][archive_directory]") {
  const fs::path real = directory / "v1/m.safetensors";
  const auto file = system_storage().open(real, Access::ReadOnly).value();
  const auto beside = storage_beside(system_storage(), real, file.get()).value();
  const fs::path missing = directory / "v1/missing";
  for (const Error& error :
       {beside->remove(missing).error(), beside->status(missing).error(),
        beside->open(missing, Access::ReadOnly).error(),
        beside->open_no_link(missing, Access::ReadOnly).error(), beside->status_of_name(missing).error(),
        beside->rename(missing, missing, true).error(), beside->sync_directory(missing).error()}) {
    CHECK(error.message.starts_with(missing.string()));
    CHECK(error.message.find("/proc") == std::string::npos);
  }
}

TEST_CASE_METHOD(Exchanged, "a directory without the file is not the one beside it",
                 "[core][archive_directory]") {
  const fs::path real = directory / "v1/m.safetensors";
  const auto file = system_storage().open(real, Access::ReadOnly).value();
  exchange();
  CHECK(storage_beside(system_storage(), real, file.get()).error().errno_value == ESTALE);
  CHECK(storage_beside(system_storage(), real, nullptr));
  CHECK(storage_beside(system_storage(), directory / "missing/m", nullptr).error().errno_value == ENOENT);
}
