// Where the state of a model's weight sync lies: in a directory beside the model.
//
//   .weight_sync           of the directory's own model: its only index, or else its only archive. SGLang's
//                          receiver uses the same place
//   .NAME.weight_sync      of a model that shares its directory with others: NAME is the archive or the index
//
// state.json names its model, so that an archive that is put beside another one does not take that one's
// version: `.weight_sync` stays the place of the model that its state names, and belongs to no other. Without
// a state, a switch of files that was begun there names the model (file_switch.h). A state that names none,
// as other receivers write it, or that names one that is gone, is that of the directory's own model. Once a
// model has a place of its own, it keeps it.
#pragma once

#include <filesystem>
#include <string>

#include "core/journal/journal_format.h"
#include "core/storage/file.h"

namespace stfs::sync {

struct SyncPlace {
  /// The place of the directory's own model.
  SyncPlace(std::filesystem::path its_directory)
      : directory(std::move(its_directory)) {}  // NOLINT: as a path
  SyncPlace(std::filesystem::path its_directory, std::string its_name, std::string its_model)
      : directory(std::move(its_directory)), name(std::move(its_name)), model(std::move(its_model)) {}

  std::filesystem::path directory;    // the model's
  std::string name = ".weight_sync";  // of the place
  std::string model{};                // the file name of the archive or index; empty: not known

  [[nodiscard]] std::filesystem::path folder() const { return directory / name; }
  [[nodiscard]] std::filesystem::path file(std::string_view file_name) const { return folder() / file_name; }
  /// Relative to the model's directory.
  [[nodiscard]] std::string state_name() const { return name + "/state.json"; }
  [[nodiscard]] std::filesystem::path state() const { return directory / state_name(); }
  [[nodiscard]] bool is_shared() const { return name == ".weight_sync"; }
};

/// Finds the place of a model. It may not exist yet, and neither may the model.
/// @param model  the file name of its archive or index.
SyncPlace sync_place_of(const std::filesystem::path& directory, const std::string& model,
                        Storage& storage = system_storage());

}  // namespace stfs::sync
