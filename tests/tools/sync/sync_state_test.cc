// The text of state.json stays short enough to be read.
#include "tools/sync/sync_state.h"

#include <cerrno>
#include <chrono>
#include <filesystem>
#include <set>
#include <string>
#include <utility>

#include "tests/support/catch.h"
#include "tests/support/temporary_directory.h"

namespace stfs::sync {
namespace {

const VersionNumber kVersionOne{"000001", 1};

SyncState locked(const test::TemporaryDirectory& directory) {
  auto state = SyncState::lock(SyncPlace(directory.path()), std::chrono::milliseconds(0));
  REQUIRE(state);
  return std::move(*state);
}

}  // namespace

TEST_CASE("a state of too many changed tensors does not name them", "[tools][sync]") {
  const test::TemporaryDirectory directory;
  SyncState state = locked(directory);
  SyncChanges changes{.since = "000000", .tensors = {"a"}, .from = {}};
  CHECK(state.text_with(kVersionOne, changes).value().find("changed_since") != std::string::npos);
  changes.tensors.assign(100'000, std::string(60, 'x'));
  const std::string text = state.text_with(kVersionOne, changes).value();
  CHECK(text == "{\"version\":\"000001\"}\n");
  REQUIRE(state.write_text(text, Durability::Process));
  CHECK(state.version()->number == 1);
}

TEST_CASE("a state that is too long is neither written nor read", "[tools][sync]") {
  const test::TemporaryDirectory directory;
  SyncState state = locked(directory);
  std::set<std::string> brought;
  for (int at = 0; at < 100'000; ++at) brought.insert(std::to_string(at) + std::string(60, 'x'));
  const auto text = state.text_with(kVersionOne, {}, {}, brought);
  REQUIRE_FALSE(text);
  CHECK(text.error().errno_value == EFBIG);
  directory.write(".weight_sync/state.json", std::string(5 << 20, ' ') + R"({"version":"000001"})");
  const auto read = state.read();
  REQUIRE_FALSE(read);
  CHECK(read.error().errno_value == EINVAL);
}

}  // namespace stfs::sync
