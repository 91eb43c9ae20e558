// Full versions: no host gets a broken model when the publisher exchanges or rewrites a file after the check.
#include "tools/sync/seeding.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <filesystem>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/archive_bytes.h"
#include "tests/support/catch.h"
#include "tests/support/temporary_directory.h"
#include "tests/support/text_archive.h"
#include "tools/sync/pull.h"
#include "tools/text/json_document.h"

namespace stfs::sync {
namespace {

const std::string kFirst = "model-00001-of-00002.safetensors";
const std::string kSecond = "model-00002-of-00002.safetensors";
const std::string kIndexed =
    R"({"metadata":{"version":"000001"},"weight_map":{"a":")" + kFirst + R"(","b":")" + kSecond + R"("}})";

struct Scene {
  Scene() {
    for (const char* name : {"host", "published", "published/weight_v000001"})
      std::filesystem::create_directory(directory.path() / name);
    publish(kFirst, test::archive_of({{"a", "new"}}, "{}"));
    publish(kSecond, test::archive_of({{"b", "newer"}}, "{}"));
    publish(std::string(kVersionIndex), kIndexed);
    publish("config.json", R"({"hidden_size":64})");
  }
  void publish(const std::string& name, const std::string& content) const {
    directory.write("published/weight_v000001/" + name, content);
  }
  /// @param meanwhile  called between the check and the copy.
  [[nodiscard]] Result<void> seed(const std::function<void()>& meanwhile) const {
    const auto version = PublishedVersion::open(directory.path() / "published/weight_v000001");
    REQUIRE(version);
    auto state = SyncState::lock(directory.path() / "host", std::chrono::milliseconds(0));
    REQUIRE(state);
    REQUIRE(state->read());
    meanwhile();
    Work work;
    return seed_model(directory.path() / "host", *version, *state, work);
  }
  [[nodiscard]] bool has_model() const {
    for (const auto& entry : std::filesystem::directory_iterator(directory.path() / "host")) {
      if (entry.path().filename() != ".weight_sync") return true;
    }
    return std::filesystem::exists(directory.path() / "host/.weight_sync/state.json");
  }

  test::TemporaryDirectory directory;
};

}  // namespace

TEST_CASE("a full version is copied as it was checked", "[tools][sync]") {
  const Scene scene;
  REQUIRE(scene.seed([] {}));
  CHECK(test::content_of(scene.directory.path() / "host" / kFirst) == test::archive_of({{"a", "new"}}, "{}"));
  CHECK(test::content_of(scene.directory.path() / "host" / kVersionIndex) == kIndexed);
  CHECK(test::content_of(scene.directory.path() / "host/config.json") == R"({"hidden_size":64})");
}

TEST_CASE("a full version that changes after its check seeds nothing", "[tools][sync]") {
  const std::string second = test::archive_of({{"b", "newer"}}, "{}");
  const auto with_c = [](std::string text) {
    text[text.find("\"b\"") + 1] = 'c';
    return text;
  };
  std::string longer = second;
  ++longer.front();  // the length of the header
  const std::string index_name(kVersionIndex);
  const std::vector<std::pair<std::string, std::string>> changes = {
      {kSecond, longer}, {kSecond, with_c(second)},      {kSecond, second + "more"}, {kSecond, "none"},
      {kSecond, ""},     {index_name, with_c(kIndexed)}, {index_name, "{}"}};
  for (const auto& [name, content] : changes) {
    for (const bool is_exchanged : {false, true}) {
      INFO(name << ": " << content.size() << (is_exchanged ? " exchanged" : " rewritten"));
      const Scene scene;
      const auto seeded = scene.seed([&, &file = name, &text = content] {
        if (is_exchanged) std::filesystem::remove(scene.directory.path() / "published/weight_v000001" / file);
        scene.publish(file, text);
      });
      REQUIRE_FALSE(seeded);
      CHECK(is_unfinished(seeded.error()));
      CHECK(seeded.error().message.find(name + ": unfinished: it has changed while it was copied") !=
            std::string::npos);
      CHECK_FALSE(scene.has_model());
    }
  }
}

namespace {

mode_t mode_of(const std::filesystem::path& path) {
  struct stat st {};
  REQUIRE(::stat(path.c_str(), &st) == 0);
  return st.st_mode & 0777U;
}

/// Sets the umask while it exists.
struct Umask {
  explicit Umask(mode_t mask) : before(::umask(mask)) {}
  ~Umask() { ::umask(before); }
  Umask(const Umask&) = delete;
  Umask& operator=(const Umask&) = delete;
  mode_t before;
};

}  // namespace

TEST_CASE("a new model allows no more than the version's files", "[tools][sync]") {
  const Umask umask(0022);
  const Scene scene;
  const auto host = scene.directory.path() / "host";
  const auto version = scene.directory.path() / "published/weight_v000001";
  const auto set_modes = [&](mode_t of_archive, mode_t of_index, mode_t of_config) {
    for (const std::string& name : {kFirst, kSecond})
      REQUIRE(::chmod((version / name).c_str(), of_archive) == 0);
    REQUIRE(::chmod((version / kVersionIndex).c_str(), of_index) == 0);
    REQUIRE(::chmod((version / "config.json").c_str(), of_config) == 0);
  };
  const auto modes = [&] {
    REQUIRE(scene.seed([] {}));
    return std::vector<mode_t>{mode_of(host / kFirst), mode_of(host / kSecond), mode_of(host / kVersionIndex),
                               mode_of(host / ".weight_sync/state.json"), mode_of(host / "config.json")};
  };
  SECTION("public") {
    set_modes(0664, 0644, 0644);
    CHECK(modes() == std::vector<mode_t>{0644, 0644, 0644, 0644, 0644});
  }
  SECTION("private archives") {
    set_modes(0600, 0644, 0644);
    CHECK(modes() == std::vector<mode_t>(5, 0600));
  }
  SECTION("one private archive") {
    set_modes(0644, 0644, 0644);
    REQUIRE(::chmod((version / kSecond).c_str(), 0600) == 0);
    CHECK(modes() == std::vector<mode_t>(5, 0600));
  }
  SECTION("a private index") {
    set_modes(0644, 0600, 0644);
    CHECK(modes() == std::vector<mode_t>(5, 0600));
  }
  SECTION("a private file beside public archives") {
    set_modes(0644, 0644, 0600);
    CHECK(modes() == std::vector<mode_t>{0644, 0644, 0644, 0644, 0600});
  }
  SECTION("for a group") {
    set_modes(0640, 0640, 0640);
    CHECK(modes() == std::vector<mode_t>(5, 0640));
  }
  SECTION("for another group") {
    if (::geteuid() != 0) return;
    set_modes(0640, 0640, 0640);
    for (const auto& file : std::filesystem::directory_iterator(version))
      REQUIRE(::chown(file.path().c_str(), 0, 12345) == 0);
    CHECK(modes() == std::vector<mode_t>(5, 0600));
  }
  SECTION("a public file that is replaced") {
    set_modes(0600, 0600, 0600);
    scene.directory.write("host/config.json", "{}");
    REQUIRE(::chmod((host / "config.json").c_str(), 0644) == 0);
    CHECK(modes() == std::vector<mode_t>(5, 0600));
  }
}

namespace {

/// An index that another user may have planted.
std::filesystem::path plant(const Scene& scene, const std::string& name, const std::string& content) {
  std::filesystem::path path = scene.directory.write("host/" + name + ".safetensors.index.json", content);
  REQUIRE(::chown(path.c_str(), 12345, 12345) == 0);
  return path;
}

/// A model of two archives, which a full version replaces.
void make_model(const Scene& scene) {
  const std::string index = R"({"metadata":{},"weight_map":{"a":"old1.safetensors","b":"old2.safetensors"}})";
  scene.directory.write("host/" + std::string(kVersionIndex), index);
  for (const std::string name : {"1", "2"})
    scene.directory.write("host/old" + name + ".safetensors", test::archive_of({{"b", "old"}}, "{}"));
  std::filesystem::permissions(scene.directory.path() / "host", std::filesystem::perms(01777));
}

std::size_t old_archives(const Scene& scene) {
  return static_cast<std::size_t>(std::filesystem::exists(scene.directory.path() / "host/old1.safetensors")) +
         static_cast<std::size_t>(std::filesystem::exists(scene.directory.path() / "host/old2.safetensors"));
}

}  // namespace

TEST_CASE("another user's index with many names is read once", "[tools][sync]") {
  if (::geteuid() != 0) return;
  const Scene scene;
  make_model(scene);
  std::string text = R"({"metadata":{},"weight_map":{"t":"old1.safetensors")";
  for (int number = 0; number < 400'000; ++number)
    text += fmt::format(R"(,"{}":"other.safetensors")", number);
  const auto first = plant(scene, "x", text + "}}");
  for (int number = 0; number < 300; ++number) {
    std::filesystem::create_hard_link(
        first, scene.directory / fmt::format("host/{}.safetensors.index.json", number));
  }
  const auto begin = std::chrono::steady_clock::now();
  REQUIRE(scene.seed([] {}));
  CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(10));
  CHECK(old_archives(scene) == 1);
}

TEST_CASE("too many or too long indexes of other users keep all archives of the model before",
          "[tools][sync]") {
  if (::geteuid() != 0) return;
  const Scene scene;
  make_model(scene);
  SECTION("none") {
    REQUIRE(scene.seed([] {}));
    CHECK(old_archives(scene) == 0);
  }
  SECTION("long ones") {
    for (const std::string name : {"x", "y", "z"})
      std::filesystem::resize_file(plant(scene, name, "{}"), 12 << 20);
    REQUIRE(scene.seed([] {}));
    CHECK(old_archives(scene) == 2);
  }
  SECTION("many") {
    for (int number = 0; number < 1001; ++number) plant(scene, fmt::format("n{}", number), "{}");
    REQUIRE(scene.seed([] {}));
    CHECK(old_archives(scene) == 2);
  }
}

namespace {

constexpr ::uid_t kOtherUser = 12345;

/// Makes a directory of another user, as far as this user may.
void take_name(const std::filesystem::path& name) {
  std::filesystem::create_directory(name);
  if (::geteuid() == 0) REQUIRE(::chown(name.c_str(), kOtherUser, kOtherUser) == 0);
}

/// Pulls the version to the host.
/// @param meanwhile  called once, when the switch is noted and no file is made yet.
Result<std::optional<VersionNumber>> pull_and(const Scene& scene, const std::function<void()>& meanwhile) {
  bool is_called = false;
  Work work([&](std::uint64_t, std::uint64_t total) {
    if (total > 0 && !std::exchange(is_called, true)) meanwhile();
    return true;
  });
  PullOptions options;
  options.apply.work = &work;
  auto pulled = pull(scene.directory.path() / "host", scene.directory.path() / "published", options);
  REQUIRE((is_called || !pulled));
  return pulled;
}

std::size_t temporary_files(const Scene& scene) {
  std::size_t found = 0;
  for (const auto& entry : std::filesystem::directory_iterator(scene.directory.path() / "host"))
    found += entry.is_regular_file() && entry.path().extension() == ".tmp";
  return found;
}

}  // namespace

TEST_CASE("a stranger who takes all noted temporary names stops no pull", "[tools][sync]") {
  const Scene scene;
  const std::filesystem::path host = scene.directory.path() / "host";
  std::vector<std::filesystem::path> taken;
  REQUIRE(pull_and(scene, [&] {
    const auto note = tools::parse_json(test::content_of(host / ".weight_sync/switch.json"));
    for (const auto& move : note.at("after")) taken.push_back(host / move.at(0).get<std::string>());
    taken.push_back(host / note.at("step").at(0).get<std::string>());
    for (const auto& name : taken) take_name(name);
  }));
  CHECK(taken.size() == 2);
  for (const auto& name : taken) CHECK(std::filesystem::is_directory(name));
  CHECK(test::content_of(host / "config.json") == R"({"hidden_size":64})");
  CHECK(test::content_of(host / kVersionIndex) == kIndexed);
  CHECK(temporary_files(scene) == 0);
  CHECK_FALSE(std::filesystem::exists(host / ".weight_sync/switch.json"));
}

TEST_CASE("no two pulls use the same temporary names", "[tools][sync]") {
  std::set<std::string> names;
  for (int pulls = 0; pulls < 2; ++pulls) {
    const Scene scene;
    REQUIRE(pull_and(scene, [&] {
      const auto note =
          tools::parse_json(test::content_of(scene.directory.path() / "host/.weight_sync/switch.json"));
      names.insert(note.at("step").at(0).get<std::string>());
      names.insert(note.at("after").at(0).at(0).get<std::string>());
    }));
  }
  CHECK(names.size() == 4);
}

TEST_CASE("a stranger who takes a final name leaves the model as it was, and names the entry",
          "[tools][sync]") {
  const Scene scene;
  const std::filesystem::path host = scene.directory.path() / "host";
  const std::string name = GENERATE(std::string("config.json"), std::string("tokenizer.json"), kSecond);
  scene.publish("tokenizer.json", "{}");
  const auto pulled = pull_and(scene, [&] { take_name(host / name); });
  REQUIRE_FALSE(pulled);
  CHECK(pulled.error().errno_value == EEXIST);
  CHECK(pulled.error().message.find((host / name).string() + ": a directory of user ") != std::string::npos);
  CHECK(pulled.error().message.find("rename or remove it, then pull again") != std::string::npos);
  for (const auto& entry : std::filesystem::directory_iterator(host)) CHECK(entry.path().filename() == name);

  std::filesystem::remove(host / name);
  REQUIRE(pull_and(scene, [] {}));
  CHECK(test::content_of(host / kVersionIndex) == kIndexed);
  CHECK(test::content_of(host / "config.json") == R"({"hidden_size":64})");
}

}  // namespace stfs::sync
