// A switch of a model's files stays in the directory that was opened, whatever another user puts at its path.
#include "tools/sync/file_switch.h"

#include <filesystem>
#include <string>

#include "tests/support/catch.h"
#include "tests/support/temporary_directory.h"

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

TEST_CASE("after the step the former state is not the state of the model", "[tools][sync]") {
  const ExchangedModel model;
  const fs::path taken_name = model.directory.path() / "pm/config.json";
  fs::remove(taken_name);
  fs::create_directory(taken_name);  // no file can get the name of a directory
  const auto taken = take_switch(system_storage(), model.place, kSwitch);
  REQUIRE_FALSE(taken);
  CHECK(taken.error().errno_value == EISDIR);
  CHECK(present_sync_state(system_storage(), model.place) == next_sync_state(model.place));

  fs::remove(taken_name);
  REQUIRE(recover_switch(system_storage(), model.place));
  const fs::path state = present_sync_state(system_storage(), model.place);
  CHECK(state == model.place.state_file());
  CHECK(test::content_of(state) == "pm.weight_sync/state.after");
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
