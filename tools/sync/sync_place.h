// The place of the state of a model's weight sync: a directory beside the model.
//
//   .weight_sync           for the directory's main model: its only index, or else its only archive. SGLang's
//                          receiver uses the same place
//   .NAME.weight_sync      for a model that shares its directory with others: NAME is the archive or the
//                          index
//
// state.json names its model, so that an archive that is put beside the model does not take over the model's
// version. `.weight_sync` is the place of the model that its state names, and of no other model. Without a
// state, a switch of files that was begun there names the model (file_switch.h). If the state names no model,
// as other receivers write it, or names a missing model, the place is for the directory's main model. Once a
// model has a place with its name, it keeps that place. A place that a stranger has made is ignored while the
// state in `.weight_sync` names the model.
//
// Other users may write the model's directory. A place is therefore used only if its directory is no link,
// and its owner may write the model, or the directory that holds both: see journal_access.h of core/journal.
// Then only such users have put files into it. A note that removes and renames files of the directory
// (file_switch.h) is used only if its maker may write the directory: a right to the model gives no right to
// the files beside it. A user who may write a directory above may give the model's directory another name.
// The directory is therefore opened once, and all files are reached through its descriptor. A link in place
// of the model shows nothing about the users who may write the model.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>

#include "core/base/error.h"
#include "core/journal/journal_format.h"
#include "core/storage/file.h"
#include "core/storage/open_directory.h"

namespace stfs::sync {

struct SyncPlace {
  /// The place of the directory's main model.
  SyncPlace(std::filesystem::path its_directory)
      : directory(std::move(its_directory)) {}  // NOLINT: as a path
  SyncPlace(std::filesystem::path its_directory, std::string its_name, std::string its_model)
      : directory(std::move(its_directory)), name(std::move(its_name)), model(std::move(its_model)) {}

  std::filesystem::path directory;    // the model's directory, for messages
  std::string name = ".weight_sync";  // of the place
  std::string model{};                // the file name of the archive or index; empty: not known
  // Set by open_place():
  std::shared_ptr<const OpenDirectory> opened_directory{};  // the model's directory
  std::shared_ptr<const OpenDirectory> opened{};            // the place's directory

  /// Returns the path for messages.
  [[nodiscard]] std::filesystem::path folder() const { return directory / name; }
  [[nodiscard]] std::filesystem::path state() const { return folder() / "state.json"; }
  /// Returns the path by which a file is opened and renamed: through the open directory, if there is one.
  [[nodiscard]] std::filesystem::path file(std::string_view file_name) const {
    return open_folder() / file_name;
  }
  [[nodiscard]] std::filesystem::path open_folder() const { return opened ? opened->path : model_file(name); }
  /// Returns the same for the model's directory.
  [[nodiscard]] std::filesystem::path model_folder() const {
    return opened_directory ? opened_directory->path : directory;
  }
  [[nodiscard]] std::filesystem::path model_file(const std::filesystem::path& file_name) const {
    return model_folder() / file_name;
  }
  [[nodiscard]] std::filesystem::path state_file() const { return file("state.json"); }
  /// Returns the same result. In a message, the path for people replaces a path of file() or model_file().
  template <class T>
  [[nodiscard]] Result<T> told(Result<T> done) const {
    if (done) return done;
    return tl::unexpected(with_shown_paths(std::move(done).error()));
  }
  [[nodiscard]] Error with_shown_paths(Error error) const;
  [[nodiscard]] bool is_shared() const { return name == ".weight_sync"; }
};

/// Finds the place of a model. The place and the model may be missing.
/// @param model  the file name of the model's archive or index.
SyncPlace sync_place_of(const std::filesystem::path& directory, const std::string& model,
                        Storage& storage = system_storage());

/// Returns true if any file has the name of the place. Does not wait for another user's mount there.
bool is_there(const SyncPlace& place, Storage& storage = system_storage());

/// Opens the model's directory, and the place's directory without following a link. If the place does not
/// exist, it is returned unchanged.
/// @return EPERM: its owner may write neither the model nor the model's directory, or another user without
///   these rights may write the place. InvalidArgument (ELOOP): it is a link or a file.
Result<SyncPlace> open_place(const SyncPlace& place, Storage& storage = system_storage());
/// The object that a file of the place changes.
enum class RightTo : std::uint8_t {
  Model,
  Directory,  // any file of the model's directory
};
/// Fails (EPERM) unless the owner of the file may write the object, and no other users may write the file. If
/// only such users may write the place, other names of the file are ignored, because these users have given
/// it this name.
Result<void> check_maker(Storage& storage, const SyncPlace& place, std::string_view name, const File& file,
                         RightTo right = RightTo::Model);
/// Makes the directory if it is missing, and opens it. Only users who may write the model may write the
/// directory.
Result<SyncPlace> make_place(const SyncPlace& place, Storage& storage = system_storage());

}  // namespace stfs::sync
