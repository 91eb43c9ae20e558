// Versions are applied by several threads: the tensors, the state, and refused versions.
#include "tools/sync/version_apply.h"

#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/model/model.h"
#include "tests/support/archive_bytes.h"
#include "tests/support/catch.h"
#include "tests/support/intercepted_storage.h"
#include "tests/support/temporary_directory.h"
#include "tools/compare/model_difference.h"
#include "tools/sync/pull.h"
#include "tools/sync/version_writer.h"

namespace stfs::sync {
namespace {

constexpr std::size_t kAppliedTensors = 24;
constexpr std::size_t kAppliedBytes = 70'001;

/// A model of many tensors, filled with one letter each.
std::string model_of(char first) {
  std::string header = "{";
  std::string data;
  for (std::size_t at = 0; at < kAppliedTensors; ++at) {
    header += "\"t" + std::to_string(at) + R"(":{"dtype":"U8","shape":[)" + std::to_string(kAppliedBytes) +
              R"(],"data_offsets":[)" + std::to_string(data.size()) + "," +
              std::to_string(data.size() + kAppliedBytes) + "]},";
    data += std::string(kAppliedBytes, static_cast<char>(first + static_cast<char>(at)));
  }
  header.back() = '}';
  return test::archive_bytes(header, data);
}

struct Host {
  Host() {
    for (const char* name : {"host", "next", "published"})
      std::filesystem::create_directory(directory.path() / name);
    directory.write("host/model.safetensors", model_of('a'));
    directory.write("next/model.safetensors", model_of('A'));
  }
  [[nodiscard]] std::unique_ptr<Model> open(const char* name, Access access = Access::ReadOnly) const {
    return std::move(*Model::open(directory.path() / name / "model.safetensors", {.access = access}));
  }
  /// Publishes a version that turns the host's model into the next one.
  [[nodiscard]] PublishedVersion publish(DiffEncoding encoding) const {
    const auto before = open("host");
    const auto after = open("next");
    PublishOptions options;
    options.encoding = encoding;
    options.threads = 4;
    REQUIRE(publish_version({*before, *after}, directory.path() / "published", options));
    return std::move(*PublishedVersion::open(directory.path() / "published/weight_v000001"));
  }
  Result<VersionOutcome> apply(const PublishedVersion& version, VersionApplyOptions options) const {
    auto state = SyncState::lock(directory.path() / "host", std::chrono::milliseconds(0));
    REQUIRE(state);
    const auto model = open("host", Access::ReadWrite);
    REQUIRE(state->read());
    options.threads = 4;
    options.commit.durability = Durability::Process;
    return apply_version(*model, version, *state, options);
  }
  [[nodiscard]] std::string content() const {
    return test::content_of(directory.path() / "host/model.safetensors");
  }

  test::TemporaryDirectory directory;
};

TEST_CASE("several threads apply a version, and the state follows", "[tools][sync]") {
  for (const DiffEncoding encoding : {DiffEncoding::Xor, DiffEncoding::Overwrite}) {
    const Host host;
    const PublishedVersion version = host.publish(encoding);
    Work work;
    const auto outcome = host.apply(version, {.work = &work});
    REQUIRE(outcome);
    CHECK(outcome->changed_tensors == kAppliedTensors);
    CHECK(outcome->changed.size() == kAppliedTensors);
    CHECK(work.total_bytes() == kAppliedTensors * kAppliedBytes);
    CHECK(work.done_bytes() == work.total_bytes());
    CHECK(host.content() == model_of('A'));
    const auto state = read_sync_state(host.directory.path() / "host");
    REQUIRE(state);
    REQUIRE(state->has_value());
    CHECK((*state)->number == 1);
    const auto again = host.apply(version, {});
    REQUIRE(again);
    CHECK(again->was_known);
    CHECK(again->done_tensors == 0);  // none was read
  }
}

TEST_CASE("an interrupt before the commit leaves the model and the state", "[tools][sync]") {
  const Host host;
  const PublishedVersion version = host.publish(DiffEncoding::Xor);
  const bool stops_at_begin = GENERATE(true, false);
  CAPTURE(stops_at_begin);
  Work work([&](std::uint64_t done_bytes, std::uint64_t total_bytes) {
    return stops_at_begin ? done_bytes != 0 : done_bytes != total_bytes;
  });
  const auto outcome = host.apply(version, {.work = &work});
  REQUIRE_FALSE(outcome);
  CHECK(outcome.error().errno_value == EINTR);
  CHECK(host.content() == model_of('a'));
  CHECK_FALSE(std::filesystem::exists(host.directory.path() / "host" / ".weight_sync/state.json"));
}

/// Counts the syncs. Any thread may call.
class SyncCounter final : public test::Interceptor {
 public:
  test::Verdict before(const test::SeamCall& call) override {
    if (call.kind == test::FileCall::SyncDirectory) ++syncs;
    if (call.kind != test::FileCall::Sync) return {};
    ++syncs;
    if (call.role == test::FileRole::Archive) ++file_syncs;
    return {};
  }

  std::atomic<int> syncs = 0;
  std::atomic<int> file_syncs = 0;  // of all files that are no journals
};

TEST_CASE("a state on stable storage vouches for tensors on stable storage", "[tools][sync]") {
  const Host host;
  const std::filesystem::path directory = host.directory.path() / "host";
  const PublishedVersion version = host.publish(DiffEncoding::Xor);
  SyncCounter counter;
  test::InterceptedStorage storage(system_storage(), counter);
  const auto apply = [&](Durability durability) {
    counter.syncs = counter.file_syncs = 0;
    auto state = SyncState::lock(directory, std::chrono::milliseconds(0), storage);
    REQUIRE(state);
    const auto model = std::move(
        *Model::open(directory / "model.safetensors", {.access = Access::ReadWrite, .storage = &storage}));
    REQUIRE(state->read());
    const int before = counter.syncs;  // of a new directory
    VersionApplyOptions options;
    options.commit.durability = durability;
    REQUIRE(apply_version(*model, version, *state, options));
    CHECK(host.content() == model_of('A'));
    CHECK(std::filesystem::exists(directory / ".weight_sync/state.json"));
    counter.syncs -= before;
  };
  apply(Durability::Process);
  CHECK(counter.syncs == 0);
  // All tensors are new already, but the archive was not synced.
  std::filesystem::remove(directory / ".weight_sync/state.json");
  apply(Durability::Power);
  CHECK(counter.file_syncs == 2);  // the archive, and the state
}

TEST_CASE("a pull tells each event, and an error of the caller ends it", "[tools][sync]") {
  const Host host;
  static_cast<void>(host.publish(DiffEncoding::Xor));
  std::vector<std::string> versions;
  PullOptions options;
  options.apply.commit.durability = Durability::Process;
  options.on_event = [&](const PullEvent& event) -> Result<void> {
    versions.push_back(event.version);
    return fail(ErrorCode::System, ECANCELED, "no more");
  };
  const auto model = host.directory.path() / "host";
  const auto published = host.directory.path() / "published";
  const auto cancelled = pull(model, published, options);
  REQUIRE_FALSE(cancelled);
  CHECK(cancelled.error().errno_value == ECANCELED);
  CHECK(versions == std::vector<std::string>{"000001"});
  options.on_event = {};
  const auto reached = pull(model, published, options);
  REQUIRE(reached);
  CHECK((*reached)->number == 1);
}

/// Gives the path of a directory to a link to another one, as a user who may write the directory above.
void exchange(const std::filesystem::path& path, const char* other) {
  std::filesystem::rename(path, path.parent_path() / "moved");
  std::filesystem::create_directory_symlink(other, path);
}

TEST_CASE("a pull writes to the directory that it has opened, whatever its path names then",
          "[tools][sync]") {
  const Host host;
  const std::filesystem::path& above = host.directory.path();
  std::filesystem::create_directories(above / "published/weight_v000001");
  std::filesystem::create_directories(above / "private/.weight_sync");
  const std::string other_tensors =
      test::archive_bytes(R"({"x":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}})", "abcd");
  host.directory.write("published/weight_v000001/model.safetensors", other_tensors);
  for (const char* name : {"model.safetensors", "model.safetensors.index.json", ".stfs-seed-0.tmp",
                           ".weight_sync/state.json", ".weight_sync/switch.json"})
    host.directory.write(std::string("private/") + name, "private");
  bool is_exchanged = false;
  Work work([&](std::uint64_t, std::uint64_t) {
    if (!std::exchange(is_exchanged, true)) exchange(above / "host", "private");
    return true;
  });
  PullOptions options;
  options.apply.work = &work;
  REQUIRE(pull(above / "host", above / "published", options));
  CHECK(is_exchanged);
  CHECK(test::content_of(above / "moved/model.safetensors") == other_tensors);
  for (const char* name : {"model.safetensors", "model.safetensors.index.json", ".stfs-seed-0.tmp",
                           ".weight_sync/state.json", ".weight_sync/switch.json"})
    CHECK(test::content_of(above / "private" / name) == "private");
}

TEST_CASE("a pull patches no other model that has got the path meanwhile", "[tools][sync]") {
  const Host host;
  const std::filesystem::path& above = host.directory.path();
  std::filesystem::create_directories(above / "private");
  std::filesystem::copy_file(above / "next/model.safetensors", above / "private/model.safetensors");
  static_cast<void>(host.publish(DiffEncoding::Xor));
  {
    const auto before = host.open("next");
    const auto after = host.open("host");
    PublishOptions second;
    second.version = 2;
    second.base_version = 1;
    REQUIRE(publish_version({*before, *after}, above / "published", second));
  }
  PullOptions options;
  options.on_event = [&](const PullEvent& event) -> Result<void> {
    if (event.version == "000001") exchange(above / "host", "private");
    return {};
  };
  const auto pulled = pull(above / "host", above / "published", options);
  REQUIRE_FALSE(pulled);
  CHECK(pulled.error().errno_value == ESTALE);
  CHECK(pulled.error().message.find("exchanged") != std::string::npos);
  CHECK(test::content_of(above / "private/model.safetensors") == model_of('A'));
  CHECK(test::content_of(above / "moved/model.safetensors") == model_of('A'));
}

}  // namespace
}  // namespace stfs::sync
