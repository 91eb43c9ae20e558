// core/journal/file_replacement.h: the directory of a sync state may be planted by another user.
#include "core/journal/file_replacement.h"

#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <optional>
#include <string>

#include "core/base/xxh3.h"
#include "tests/core/exchanged_name.h"
#include "tests/support/archive_bytes.h"
#include "tests/support/catch.h"
#include "tests/support/gone_archive.h"
#include "tests/support/plain.h"
#include "tests/support/skip.h"
#include "tests/support/temporary_directory.h"
#include "tests/support/watched_storage.h"

using namespace stfs;
using namespace stfs::test;

namespace {

/// A journal that gives a model its first sync state.
struct Promise {
  Promise() {
    const std::string text = R"({"version":"000001"})";
    path = directory.write(".m.safetensors.stj.1", text);
    index.in_journal = {0, text.size()};
    index.new_hash = XXH3_64bits(text.data(), text.size());
    index.old_hash = 0;
    index.name = kSyncStateName;
    std::filesystem::create_directories(elsewhere);
  }
  [[nodiscard]] Result<void> keep() const {
    const auto journal = system_storage().open(path, Access::ReadOnly).value();
    return replace_index(system_storage(), path, *journal, index, RightOf::JournalMaker, Durability::Power);
  }
  [[nodiscard]] bool is_elsewhere_empty() const { return std::filesystem::is_empty(elsewhere); }

  TemporaryDirectory directory;
  std::filesystem::path path;
  std::filesystem::path state = directory.path() / kSyncStateName;
  std::filesystem::path elsewhere = directory.path() / "elsewhere";
  FileReplacement index;
};

}  // namespace

TEST_CASE("a journal gives a model its sync state, and may do so twice", "[core][file_replacement]") {
  const Promise promise;
  std::filesystem::create_directories(promise.state.parent_path());
  REQUIRE(promise.keep());
  CHECK(content_of(promise.state.string()) == R"({"version":"000001"})");
  REQUIRE(promise.keep());
}

TEST_CASE("names that another user has taken stop no replacement, and left files go",
          "[core][file_replacement]") {
  const Promise promise;
  const std::filesystem::path folder = promise.state.parent_path();
  const std::string journal = promise.path.filename();
  std::filesystem::create_directories(folder / (journal + ".index"));
  std::filesystem::create_directories(folder / (journal + ".0123456789abcdef.index") / "full");
  std::filesystem::create_directories(folder);
  const auto left = [&](const std::string& suffix) {
    return promise.directory.write(".weight_sync/" + journal + suffix, "old");
  };
  const std::string of_dead = left(".00000000000000aa.index");
  const std::string of_others = left(".notes");
  REQUIRE(promise.keep());
  CHECK(content_of(promise.state.string()) == R"({"version":"000001"})");
  CHECK_FALSE(std::filesystem::exists(of_dead));
  CHECK(std::filesystem::exists(of_others));
  const std::string again = left(".00000000000000bb.index");
  REQUIRE(promise.keep());
  CHECK_FALSE(std::filesystem::exists(again));
}

TEST_CASE("a file that is longer than any index is another one, and is not read",
          "[core][file_replacement]") {
  const Promise promise;
  std::filesystem::create_directories(promise.state.parent_path());
  promise.directory.write(std::string(kSyncStateName), "");
  std::filesystem::resize_file(promise.state, kMaxIndexBytes + 1);
  WatchedStorage storage;
  const auto journal = system_storage().open(promise.path, Access::ReadOnly).value();
  REQUIRE(replace_index(storage, promise.path, *journal, promise.index, RightOf::JournalMaker,
                        Durability::Process));
  CHECK(std::filesystem::file_size(promise.state) == kMaxIndexBytes + 1);
  const auto archive = promise.directory.path() / "m.safetensors";
  CHECK(errno_of(prepare_index(storage, archive, gone_archive(), *journal, promise.index)) == ESTALE);
  CHECK(errno_of(hash_of_index(storage, promise.state)) == EFBIG);
  CHECK(storage.count(FileCall::Read) == 0);
}

TEST_CASE("a sync state is not written through a link in place of its directory",
          "[core][file_replacement]") {
  const Promise promise;
  std::filesystem::create_directory_symlink(promise.elsewhere, promise.state.parent_path());
  REQUIRE(promise.keep());
  CHECK(promise.is_elsewhere_empty());
  const auto journal = system_storage().open(promise.path, Access::ReadOnly).value();
  const auto archive = promise.directory.path() / "m.safetensors";
  const auto prepared = prepare_index(system_storage(), archive, gone_archive(), *journal, promise.index);
  CHECK(errno_of(prepared) == ENOTDIR);
}

TEST_CASE("a sync state whose directory is gone is not wanted any more", "[core][file_replacement]") {
  const Promise promise;
  REQUIRE(promise.keep());
  CHECK_FALSE(std::filesystem::exists(promise.state.parent_path()));
}

TEST_CASE("the index that is read tells whether it may be replaced, whatever file has its name then",
          "[core][file_replacement]") {
  if (::geteuid() != 0) {
    note_skip("needs root, to give a journal away");
    return;
  }
  Promise promise;
  const std::string before = R"({"weight_map":{}})";
  const std::filesystem::path path = promise.directory.write("m.safetensors.index.json", before);
  REQUIRE(::chmod(path.c_str(), 0644) == 0);
  REQUIRE(::chown(promise.path.c_str(), kExchanger, kExchanger) == 0);
  promise.index.name = path.filename();
  promise.index.old_hash = XXH3_64bits(before.data(), before.size());
  std::optional<ExchangedName> exchanged;
  WatchedStorage storage([&](const SeamCall& call) {
    if (call.kind == FileCall::Read && call.role == FileRole::Archive && !exchanged) exchanged.emplace(path);
    return Verdict();
  });
  const auto journal = system_storage().open(promise.path, Access::ReadOnly).value();
  REQUIRE(replace_index(storage, promise.path, *journal, promise.index, RightOf::JournalMaker,
                        Durability::Process));
  REQUIRE(exchanged);
  CHECK(content_of(path) == before);
  exchanged.reset();
  CHECK(content_of(path) == before);
}

TEST_CASE("a prepared index has the access of the open archive, whatever file has its name",
          "[core][file_replacement]") {
  Promise promise;
  const std::string path = promise.directory.write("m.safetensors", "");
  REQUIRE(::chmod(path.c_str(), 0600) == 0);
  std::filesystem::create_directories(promise.state.parent_path());
  const auto archive = system_storage().open(path, Access::ReadOnly).value();
  const ExchangedName exchanged(path);
  const auto journal = system_storage().open(promise.path, Access::ReadOnly).value();
  const auto prepared = prepare_index(system_storage(), path, *archive, *journal, promise.index).value();
  const FileStatus status = prepared->status().value();
  CHECK((status.mode & 07777U) == 0600);
  CHECK(status.uid == ::geteuid());
}

TEST_CASE("a found journal replaces a sync state only if its maker may write the state's directory",
          "[core][file_replacement]") {
  if (::geteuid() != 0) {
    note_skip("needs root, to give a journal away");
    return;
  }
  const Promise promise;
  std::filesystem::create_directories(promise.state.parent_path());
  REQUIRE(::chown(promise.path.c_str(), kExchanger, kExchanger) == 0);
  REQUIRE(promise.keep());
  CHECK_FALSE(std::filesystem::exists(promise.state));
  REQUIRE(::chown(promise.state.parent_path().c_str(), kExchanger, kExchanger) == 0);
  REQUIRE(promise.keep());
  CHECK(content_of(promise.state.string()) == R"({"version":"000001"})");
}

TEST_CASE("a found journal replaces another user's sync state, and an index by the right to it",
          "[core][file_replacement]") {
  if (::geteuid() != 0) {
    note_skip("needs root, to give a journal away");
    return;
  }
  const std::string before = R"({"weight_map":{}})";
  for (const bool is_state : {true, false}) {
    Promise promise;
    std::filesystem::create_directories(promise.state.parent_path());
    const std::string name = is_state ? std::string(kSyncStateName) : "m.safetensors.index.json";
    const std::string path = promise.directory.write(name, before);
    const std::string given = is_state ? promise.state.parent_path().string() : path;
    promise.index.name = name;
    promise.index.old_hash = XXH3_64bits(before.data(), before.size());
    REQUIRE(::chmod(path.c_str(), 0644) == 0);
    REQUIRE(::chown(given.c_str(), kExchanger, kExchanger) == 0);
    REQUIRE(::chown(promise.path.c_str(), kExchanger, kExchanger) == 0);
    REQUIRE(promise.keep());
    CHECK(content_of(path) == R"({"version":"000001"})");
  }
}

TEST_CASE("an index that no recovery would replace is not prepared", "[core][file_replacement]") {
  if (::geteuid() != 0) {
    note_skip("needs root, to give an archive away");
    return;
  }
  Promise promise;
  const std::string before = R"({"weight_map":{}})";
  const std::string index = promise.directory.write("m.safetensors.index.json", before);
  promise.index.name = "m.safetensors.index.json";
  promise.index.old_hash = XXH3_64bits(before.data(), before.size());
  const std::string shard = promise.directory.write("m.safetensors", "");
  REQUIRE(::chown(shard.c_str(), kExchanger, kExchanger) == 0);
  REQUIRE(::chown(promise.path.c_str(), kExchanger, kExchanger) == 0);
  const auto archive = system_storage().open(shard, Access::ReadOnly).value();
  const auto journal = system_storage().open(promise.path, Access::ReadOnly).value();
  const auto refused = prepare_index(system_storage(), shard, *archive, *journal, promise.index);
  REQUIRE(errno_of(refused) == EPERM);
  CHECK(refused.error().message.find("chown --reference=" + shard + " " + index) != std::string::npos);
  REQUIRE(::chown(index.c_str(), kExchanger, kExchanger) == 0);
  CHECK(prepare_index(system_storage(), shard, *archive, *journal, promise.index));
}

TEST_CASE("an index that can't be replaced is named by its path", "[core][file_replacement]") {
  Promise promise;
  promise.index.name = "m.safetensors.index.json";
  std::filesystem::create_symlink("elsewhere", promise.directory.path() / promise.index.name);
  const auto kept = promise.keep();
  REQUIRE_FALSE(kept);
  CHECK(kept.error().message.find((promise.directory.path() / promise.index.name).string()) == 0);
  CHECK(kept.error().message.find("/proc/") == std::string::npos);
}
