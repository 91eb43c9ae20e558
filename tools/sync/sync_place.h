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
// model has a place of its own, it keeps it. One that a stranger has made does not count while the state
// in `.weight_sync` names the model.
//
// Other users may write the model's directory, so a place counts only if its directory is no link, and
// belongs to a user who may write the model, or the directory that holds both: see journal_access.h of
// core/journal. Then only such users have put files into it. A note that removes and renames files of the
// directory (file_switch.h) counts only if its maker may write the directory: a right to the model is none to
// the files beside it. A user who may write a directory above may give
// the model's directory another name: so it is opened once, and all files are reached through it. A link in
// place of the model tells nothing about who may write the model.
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
  /// The place of the directory's own model.
  SyncPlace(std::filesystem::path its_directory)
      : directory(std::move(its_directory)) {}  // NOLINT: as a path
  SyncPlace(std::filesystem::path its_directory, std::string its_name, std::string its_model)
      : directory(std::move(its_directory)), name(std::move(its_name)), model(std::move(its_model)) {}

  std::filesystem::path directory;    // the model's, for messages
  std::string name = ".weight_sync";  // of the place
  std::string model{};                // the file name of the archive or index; empty: not known
  // Of open_place():
  std::shared_ptr<const OpenDirectory> opened_directory{};  // the model's
  std::shared_ptr<const OpenDirectory> opened{};            // the place's

  /// The path for messages.
  [[nodiscard]] std::filesystem::path folder() const { return directory / name; }
  [[nodiscard]] std::filesystem::path state() const { return folder() / "state.json"; }
  /// The path by which a file is opened and renamed: through the open directory, if there is one.
  [[nodiscard]] std::filesystem::path file(std::string_view file_name) const {
    return open_folder() / file_name;
  }
  [[nodiscard]] std::filesystem::path open_folder() const { return opened ? opened->path : model_file(name); }
  /// The same of the model's directory.
  [[nodiscard]] std::filesystem::path model_folder() const {
    return opened_directory ? opened_directory->path : directory;
  }
  [[nodiscard]] std::filesystem::path model_file(const std::filesystem::path& file_name) const {
    return model_folder() / file_name;
  }
  [[nodiscard]] std::filesystem::path state_file() const { return file("state.json"); }
  /// The same result. A message that has a path of file() or model_file() gets the path for people.
  template <class T>
  [[nodiscard]] Result<T> told(Result<T> done) const {
    if (done) return done;
    return tl::unexpected(with_shown_paths(std::move(done).error()));
  }
  [[nodiscard]] Error with_shown_paths(Error error) const;
  [[nodiscard]] bool is_shared() const { return name == ".weight_sync"; }
};

/// Finds the place of a model. It may not exist yet, and neither may the model.
/// @param model  the file name of its archive or index.
SyncPlace sync_place_of(const std::filesystem::path& directory, const std::string& model,
                        Storage& storage = system_storage());

/// Whether something has the name of the place. Waits for no other user's mount there.
bool is_there(const SyncPlace& place, Storage& storage = system_storage());

/// Opens the model's directory, and without following a link that of the place. A place that has none is
/// returned as it is.
/// @return EPERM: it belongs to a user who may write neither the model nor the model's directory, or such a
///   user may write it. InvalidArgument (ELOOP): it is a link or a file.
Result<SyncPlace> open_place(const SyncPlace& place, Storage& storage = system_storage());
/// What a file of the place changes.
enum class RightTo : std::uint8_t {
  Model,
  Directory,  // any file of the model's directory
};
/// Fails (EPERM) unless a file of the place belongs to a user who may write that, and nobody else may write
/// it. Other names of it do not count where only such users may write the place: they have given it this one.
Result<void> check_maker(Storage& storage, const SyncPlace& place, std::string_view name, const File& file,
                         RightTo right = RightTo::Model);
/// Makes the directory if there is none, for nobody to write who may not write the model, and opens it.
Result<SyncPlace> make_place(const SyncPlace& place, Storage& storage = system_storage());

}  // namespace stfs::sync
