// A switch of a model's files stays in the directory that was opened, whatever another user puts at its path,
// and goes past names that another user has taken.
#include "tools/sync/file_switch.h"

#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <string>

#include "tests/support/catch.h"
#include "tests/support/temporary_directory.h"
#include "tests/support/watched_storage.h"
#include "tools/sync/sync_state.h"

namespace stfs::sync {
namespace {

namespace fs = std::filesystem;

const FileSwitch kSwitch{.archives = {"new.safetensors"},
                         .step = {".step.tmp", "model.safetensors.index.json"},
                         .after = {{".after.tmp", "config.json"}},
                         .removed = {"old.safetensors"}};

/// The directory of a model, and a private one with files of the same names.
struct ExchangedModel {
  ExchangedModel() {
    for (const char* of : {"pm", "private"}) {
      fs::create_directories(directory.path() / of / ".weight_sync");
      for (const char* name :
           {"new.safetensors", ".step.tmp", "model.safetensors.index.json", ".after.tmp", "config.json",
            "old.safetensors", ".weight_sync/state.json", ".weight_sync/state.after"})
        directory.write(std::string(of) + "/" + name, of + std::string(name));
    }
    place = make_place(SyncPlace(directory.path() / "pm")).value();
    REQUIRE(note_switch(system_storage(), place, kSwitch));
  }
  /// Exchanges the directory, as a user may do who may write the directory above.
  void exchange() const {
    fs::rename(directory.path() / "pm", directory.path() / "moved");
    fs::create_directory_symlink("private", directory.path() / "pm");
  }
  [[nodiscard]] bool is_private_untouched() const {
    for (const char* name :
         {"new.safetensors", ".step.tmp", "model.safetensors.index.json", ".after.tmp", "config.json",
          "old.safetensors", ".weight_sync/state.json", ".weight_sync/state.after"}) {
      const fs::path path = directory.path() / "private" / name;
      if (!fs::exists(path) || test::content_of(path) != "private" + std::string(name)) return false;
    }
    return true;
  }
  [[nodiscard]] bool has(const char* name) const { return fs::exists(directory.path() / "moved" / name); }

  test::TemporaryDirectory directory;
  SyncPlace place{fs::path()};
};

}  // namespace

TEST_CASE("a switch is undone in the directory that was opened", "[tools][sync]") {
  const ExchangedModel model;
  model.exchange();
  SECTION("by its maker") {
    REQUIRE(undo_switch(system_storage(), model.place, kSwitch));
  }
  SECTION("by the next receiver") {
    REQUIRE(recover_switch(system_storage(), model.place));
  }
  CHECK(model.is_private_untouched());
  CHECK_FALSE(model.has("new.safetensors"));
  CHECK_FALSE(model.has(".step.tmp"));
  CHECK_FALSE(model.has(".after.tmp"));
  CHECK(model.has("old.safetensors"));
}

TEST_CASE("a switch is taken in the directory that was opened", "[tools][sync]") {
  const ExchangedModel model;
  model.exchange();
  REQUIRE(take_switch(system_storage(), model.place, kSwitch));
  CHECK(model.is_private_untouched());
  CHECK_FALSE(model.has("old.safetensors"));
  const auto moved = [&](const char* name) {
    return test::content_of(model.directory.path() / "moved" / name);
  };
  CHECK(moved("model.safetensors.index.json") == "pm.step.tmp");
  CHECK(moved("config.json") == "pm.after.tmp");
  CHECK(moved(".weight_sync/state.json") == "pm.weight_sync/state.after");
}

namespace {

constexpr int kStep = 3;  // the number of the step among the renames of take_switch()

/// Runs `act` directly before a rename of take_switch(). The result of `act` is the verdict.
template <class Act>
auto before_rename(int number, Act act) {
  return [act, number, renames = 0](const test::SeamCall& call) mutable {
    const bool is_due = call.kind == test::FileCall::Rename && ++renames == number;
    return is_due ? act() : test::Verdict{};
  };
}

/// A model in a directory where all users may make entries, each user only own ones.
struct SharedModel : ExchangedModel {
  SharedModel() { fs::permissions(folder, fs::perms(01777)); }
  /// Makes a directory, which no call that removes or replaces a file removes.
  test::Verdict take_name(const char* name) const {
    fs::remove(folder / name);
    fs::create_directory(folder / name);
    give(name);
    return {};
  }
  void give(const char* name) const {
    if (::geteuid() == 0) REQUIRE(::lchown((folder / name).c_str(), kStranger, kStranger) == 0);
  }
  [[nodiscard]] std::string content(const char* name) const { return test::content_of(folder / name); }
  [[nodiscard]] bool has_note() const { return fs::exists(folder / ".weight_sync/switch.json"); }

  static constexpr ::uid_t kStranger = 12345;
  fs::path folder = directory.path() / "pm";
};

}  // namespace

TEST_CASE("after the step the former state is not the state of the model", "[tools][sync]") {
  const ExchangedModel model;
  test::WatchedStorage storage(before_rename(
      kStep + 1, [] { return test::Verdict{.kind = test::Verdict::Kind::Fail, .errno_value = EIO}; }));
  const auto taken = take_switch(storage, model.place, kSwitch);
  REQUIRE_FALSE(taken);
  CHECK(taken.error().errno_value == EIO);
  CHECK(present_sync_state(system_storage(), model.place) == next_sync_state(model.place));

  REQUIRE(recover_switch(system_storage(), model.place));
  const fs::path state = present_sync_state(system_storage(), model.place);
  CHECK(state == model.place.state_file());
  CHECK(test::content_of(state) == "pm.weight_sync/state.after");
}

TEST_CASE("a reader finds a state that gets its final name at any moment of the reading", "[tools][sync]") {
  const std::string next = R"({"version":"000002"})";
  for (std::size_t moment = 0;; ++moment) {
    const ExchangedModel model;
    model.directory.write("pm/.weight_sync/state.after", next);
    test::WatchedStorage broken(before_rename(
        kStep + 1, [] { return test::Verdict{.kind = test::Verdict::Kind::Fail, .errno_value = EIO}; }));
    REQUIRE_FALSE(take_switch(broken, model.place, kSwitch));
    const fs::path state = model.place.state_file();
    REQUIRE_FALSE(fs::exists(state));
    std::size_t calls = 0;
    test::WatchedStorage storage([&](const test::SeamCall&) {
      if (calls++ == moment) fs::rename(next_sync_state(model.place), state);
      return test::Verdict{};
    });
    CAPTURE(moment);
    const auto version = read_sync_state(model.place, storage);
    REQUIRE(version);
    REQUIRE(*version);
    CHECK((*version)->number == 2);
    if (fs::exists(state)) continue;
    CHECK(moment > 3);  // the last round has moved nothing
    break;
  }
}

TEST_CASE("a switch is undone past temporary names that a stranger has taken", "[tools][sync]") {
  const SharedModel model;
  const char* taken = GENERATE("new.safetensors", ".after.tmp", ".step.tmp");
  INFO(taken);
  const bool is_file = GENERATE(false, true);
  if (is_file && ::geteuid() != 0) return;
  static_cast<void>(model.take_name(taken));
  if (is_file) {
    fs::remove(model.folder / taken);
    model.directory.write(std::string("pm/") + taken, "theirs");
    model.give(taken);
  }
  SECTION("by its maker") {
    REQUIRE(undo_switch(system_storage(), model.place, kSwitch));
  }
  SECTION("by the next receiver") {
    REQUIRE(recover_switch(system_storage(), model.place));
  }
  CHECK_FALSE(model.has_note());
  for (const char* name : {"new.safetensors", ".after.tmp", ".step.tmp"})
    CHECK(fs::exists(model.folder / name) == (std::string(name) == taken));
  CHECK(model.content("old.safetensors") == "pmold.safetensors");
  CHECK(model.content(".weight_sync/state.json") == "pm.weight_sync/state.json");
}

TEST_CASE("a temporary name that a stranger takes after the step does not undo the step", "[tools][sync]") {
  const SharedModel model;
  test::WatchedStorage storage(before_rename(
      kStep + 1, [] { return test::Verdict{.kind = test::Verdict::Kind::Fail, .errno_value = EIO}; }));
  REQUIRE_FALSE(take_switch(storage, model.place, kSwitch));
  SECTION("with a directory") {
    static_cast<void>(model.take_name(".step.tmp"));
  }
  SECTION("with a file") {
    if (::geteuid() != 0) return;
    model.directory.write("pm/.step.tmp", "theirs");
    model.give(".step.tmp");
  }
  CHECK(present_sync_state(system_storage(), model.place) == next_sync_state(model.place));
  REQUIRE(recover_switch(system_storage(), model.place));
  CHECK_FALSE(model.has_note());
  CHECK(model.content("model.safetensors.index.json") == "pm.step.tmp");
  CHECK(model.content("new.safetensors") == "pmnew.safetensors");
  CHECK(model.content("config.json") == "pm.after.tmp");
  CHECK(model.content(".weight_sync/state.json") == "pm.weight_sync/state.after");
}

TEST_CASE("a final name that a stranger has taken before the step undoes the switch", "[tools][sync]") {
  const SharedModel model;
  const char* taken_name = GENERATE("config.json", "model.safetensors.index.json");
  // After take_switch() has begun: the name is taken while the note is written.
  test::WatchedStorage storage(before_rename(1, [&] { return model.take_name(taken_name); }));
  const auto taken = take_switch(storage, model.place, kSwitch);
  REQUIRE_FALSE(taken);
  CHECK(taken.error().errno_value == EEXIST);
  const std::string owner = std::to_string(::geteuid() == 0 ? SharedModel::kStranger : ::geteuid());
  CHECK(taken.error().message.find(taken_name + (": a directory of user " + owner)) != std::string::npos);
  CHECK_FALSE(model.has_note());
  for (const char* made : {"new.safetensors", ".after.tmp", ".step.tmp", ".weight_sync/state.after"})
    CHECK_FALSE(fs::exists(model.folder / made));
  CHECK(model.content("old.safetensors") == "pmold.safetensors");
  CHECK(model.content(".weight_sync/state.json") == "pm.weight_sync/state.json");
}

TEST_CASE("a final name that a stranger takes after the step leaves that file for later", "[tools][sync]") {
  const SharedModel model;
  test::WatchedStorage storage(before_rename(kStep + 1, [&] { return model.take_name("config.json"); }));
  REQUIRE(take_switch(storage, model.place, kSwitch));
  const auto is_new = [&] {
    CHECK(model.content("model.safetensors.index.json") == "pm.step.tmp");
    CHECK(model.content(".weight_sync/state.json") == "pm.weight_sync/state.after");
    CHECK_FALSE(fs::exists(model.folder / "old.safetensors"));
    CHECK(present_sync_state(system_storage(), model.place) == model.place.state_file());
  };
  is_new();
  const auto placed = check_placed(system_storage(), model.place);
  REQUIRE_FALSE(placed);
  CHECK(placed.error().errno_value == EAGAIN);
  CHECK(placed.error().message.find((model.folder / "config.json").string() + ": a directory of user ") !=
        std::string::npos);

  // An archive that later gets the name of a removed file stays.
  model.directory.write("pm/old.safetensors", "newer");
  REQUIRE(recover_switch(system_storage(), model.place));
  CHECK(model.content("old.safetensors") == "newer");
  CHECK_FALSE(check_placed(system_storage(), model.place));
  fs::remove(model.folder / "old.safetensors");
  is_new();

  SECTION("and the next receiver places it once the name is free") {
    fs::remove(model.folder / "config.json");
    REQUIRE(recover_switch(system_storage(), model.place));
    CHECK(model.content("config.json") == "pm.after.tmp");
    CHECK(check_placed(system_storage(), model.place));
    CHECK_FALSE(model.has_note());
  }
  SECTION("and the next switch removes it") {
    REQUIRE(note_switch(system_storage(), model.place,
                        {.archives = {}, .step = {"s.tmp", "s"}, .after = {}, .removed = {}}));
    CHECK_FALSE(fs::exists(model.folder / ".after.tmp"));
  }
  is_new();
}

TEST_CASE("a switch stays noted until the former state is removed", "[tools][sync]") {
  const test::TemporaryDirectory directory;
  const fs::path former = directory.path() / ".weight_sync/state.before";
  fs::create_directories(former);  // no call that removes a file removes it
  const fs::path note = directory.write(
      ".weight_sync/switch.json",
      R"({"ready":true,"archives":[],"step":["from","to"],"after":[],"removed":["old.safetensors"]})");
  const auto place = make_place(SyncPlace(directory.path())).value();
  const auto recovered = recover_switch(system_storage(), place);
  REQUIRE_FALSE(recovered);
  CHECK(recovered.error().errno_value == EISDIR);
  CHECK(fs::exists(note));
  fs::remove(former);
  REQUIRE(recover_switch(system_storage(), place));
  CHECK_FALSE(fs::exists(note));
}

TEST_CASE("a message names the model's directory as the user does", "[tools][sync]") {
  const ExchangedModel model;
  fs::remove(model.directory.path() / "pm/.step.tmp");
  const auto taken = model.place.told(take_switch(system_storage(), model.place, kSwitch));
  REQUIRE_FALSE(taken);
  CHECK(taken.error().message.find("/proc/self") == std::string::npos);
  CHECK(taken.error().message.find(model.directory.path().string() + "/pm/") != std::string::npos);
}

TEST_CASE("a note that is too long is neither read nor written", "[tools][sync]") {
  const test::TemporaryDirectory directory;
  std::filesystem::create_directory(directory.path() / ".weight_sync");
  const std::string note =
      R"({"ready":false,"archives":[],"step":["from","to"],"after":[],"removed":["old.safetensors"]})";
  const auto place = make_place(SyncPlace(directory.path())).value();
  directory.write(".weight_sync/switch.json", std::string(4 << 20, ' ') + note);
  const auto read = recover_switch(system_storage(), place);
  REQUIRE_FALSE(read);
  CHECK(read.error().errno_value == EINVAL);
  directory.write(".weight_sync/switch.json", note);
  REQUIRE(recover_switch(system_storage(), place));

  FileSwitch files = kSwitch;
  files.removed.assign(100'000, std::string(50, 'x'));
  const auto noted = note_switch(system_storage(), place, files);
  REQUIRE_FALSE(noted);
  CHECK(noted.error().errno_value == EFBIG);
  CHECK(std::filesystem::is_empty(directory.path() / ".weight_sync"));
}

}  // namespace stfs::sync
