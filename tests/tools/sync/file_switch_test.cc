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
  /// As a user who may write the directory above.
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

TEST_CASE("a message names the model's directory as the user does", "[tools][sync]") {
  const ExchangedModel model;
  fs::remove(model.directory.path() / "pm/.step.tmp");
  const auto taken = model.place.told(take_switch(system_storage(), model.place, kSwitch));
  REQUIRE_FALSE(taken);
  CHECK(taken.error().message.find("/proc/self") == std::string::npos);
  CHECK(taken.error().message.find(model.directory.path().string() + "/pm/") != std::string::npos);
}

}  // namespace stfs::sync
