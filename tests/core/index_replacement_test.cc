// core/journal/index_replacement.h: the directory of a sync state may be planted by another user.
#include "core/journal/index_replacement.h"

#include <filesystem>
#include <string>

#include "core/base/xxh3.h"
#include "tests/support/archive_bytes.h"
#include "tests/support/catch.h"
#include "tests/support/temporary_directory.h"

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
    return replace_index(system_storage(), path, *journal, index, Durability::Power);
  }
  [[nodiscard]] bool is_elsewhere_empty() const { return std::filesystem::is_empty(elsewhere); }

  TemporaryDirectory directory;
  std::filesystem::path path;
  std::filesystem::path state = directory.path() / kSyncStateName;
  std::filesystem::path elsewhere = directory.path() / "elsewhere";
  IndexReplacement index;
};

}  // namespace

TEST_CASE("a journal gives a model its sync state, and may do so twice", "[core][index_replacement]") {
  const Promise promise;
  std::filesystem::create_directories(promise.state.parent_path());
  REQUIRE(promise.keep());
  CHECK(content_of(promise.state.string()) == R"({"version":"000001"})");
  REQUIRE(promise.keep());
}

TEST_CASE("a sync state is not written through a link in place of its directory",
          "[core][index_replacement]") {
  const Promise promise;
  std::filesystem::create_directory_symlink(promise.elsewhere, promise.state.parent_path());
  REQUIRE(promise.keep());
  CHECK(promise.is_elsewhere_empty());
  const auto journal = system_storage().open(promise.path, Access::ReadOnly).value();
  const auto archive = promise.directory.path() / "m.safetensors";
  CHECK(prepare_index(system_storage(), archive, *journal, promise.index).error().errno_value == ENOTDIR);
}

TEST_CASE("a sync state whose directory is gone is not wanted any more", "[core][index_replacement]") {
  const Promise promise;
  REQUIRE(promise.keep());
  CHECK_FALSE(std::filesystem::exists(promise.state.parent_path()));
}
