#include "tools/sync/sync_place.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <xxhash.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <optional>
#include <utility>

#include "core/journal/journal_access.h"
#include "core/model/model_directory.h"
#include "core/storage/file_attributes.h"
#include "core/storage/foreign_mount.h"
#include "core/storage/permissions.h"
#include "tools/sync/file_switch.h"
#include "tools/sync/sync_state.h"

namespace stfs::sync {
namespace {

constexpr std::size_t kMostNameBytes = 180;  // a file name has at most 255

std::string own_name(const std::string& model) {
  if (model.size() <= kMostNameBytes) return fmt::format(".{}.weight_sync", model);
  return fmt::format(".{}~{:016x}.weight_sync", model.substr(0, kMostNameBytes),
                     XXH3_64bits(model.data(), model.size()));
}

/// Returns true if the model is the directory's only index, or its only archive. Also true for a model that
/// does not exist yet, if the directory has no other model.
bool is_of_directory(const std::filesystem::path& directory, const std::string& model, Storage& storage) {
  auto listed = list_model_directory(directory, storage);
  if (!listed) return true;
  leave_out_planted(storage, directory, listed->archives);
  const auto& names = listed->indexes.empty() ? listed->archives : listed->indexes;
  return names.empty() || (names.size() == 1 && names.front() == model);
}

Result<FileStatus> status_of_model_folder(Storage& storage, const SyncPlace& place) {
  // The path of an open directory leads to that directory.
  auto status = storage.status(place.model_folder());
  if (!status || !place.opened_directory) return status;
  return strict_status_of(*status, place.opened_directory->fd.get());
}

/// Returns nothing if the owner of the file or directory may replace any file in the model's directory: the
/// directory's owner, or a member of its group. If every user may write the directory, any user may put a new
/// file there, but that gives no right to the files of others.
Result<std::optional<Disbelief>> doubt_in_directory(Storage& storage, const FileStatus& found, int descriptor,
                                                    const SyncPlace& place, std::string_view noun) {
  auto directory = status_of_model_folder(storage, place);
  RETURN_IF_ERROR(directory);
  directory->mode &= ~std::uint32_t{S_IWOTH};
  // There, users other than the owner remove only their files.
  if ((directory->mode & S_ISVTX) != 0) directory->mode &= ~std::uint32_t{S_IWGRP};
  return why_not_believed(storage, found, descriptor, *directory, noun);
}

/// Returns nothing if the owner of the file or directory may write the model.
Result<std::optional<Disbelief>> doubt_about(Storage& storage, const FileStatus& found, int descriptor,
                                             const SyncPlace& place) {
  constexpr std::string_view kNoun = "the model";
  std::optional<Disbelief> doubt;
  if (!place.model.empty()) {
    const auto model = look_up_file(storage, place.model_file(place.model));
    // A model that any user may have put there gives no right.
    const bool is_there = model && !model->may_be_planted;
    if (is_there) doubt = why_not_believed(storage, found, descriptor, model->status, kNoun);
    if (is_there && !doubt) return doubt;
    // A link has no access bits.
    const int why = model ? ENOENT : model.error().errno_value;
    if (why != ENOENT && why != ELOOP) return tl::unexpected(model.error());
  }
  auto still = doubt_in_directory(storage, found, descriptor, place, kNoun);
  RETURN_IF_ERROR(still);
  return *still && doubt ? doubt : still;
}

/// Returns true if the entry with the place's name has an owner who may write neither the model nor its
/// directory. False after a failed call.
bool is_of_stranger(Storage& storage, const SyncPlace& place) {
  if (!storage.is_system()) return false;
  const auto named = open_entry(place.folder(), O_PATH);
  if (!named) return named.error().errno_value == EXDEV;  // another user's mount, which is not asked
  struct stat st {};
  if (::fstat(named->get(), &st) != 0) return false;
  FileStatus found;
  found.mode = st.st_mode;
  found.uid = st.st_uid;
  found.gid = st.st_gid;
  const auto doubt = doubt_about(storage, found, named->get(), place);
  return doubt && *doubt && (*doubt)->is_of_stranger;
}

Result<SyncPlace> with_model_directory(const SyncPlace& place, Storage& storage) {
  if (place.opened_directory) return place;
  auto opened = open_directory(storage, place.directory, LastLink::Followed);
  RETURN_IF_ERROR(opened);
  SyncPlace begun = place;
  begun.opened_directory = std::make_shared<OpenDirectory>(std::move(*opened));
  return begun;
}

/// @param place  a result of with_model_directory().
Result<SyncPlace> open_checked(const SyncPlace& place, Storage& storage, bool is_new) {
  auto opened = open_directory(storage, place.model_file(place.name));
  if (!opened && opened.error().errno_value == ENOENT) return place;
  if (!opened && opened.error().errno_value == ENOTDIR) {
    return fail(ErrorCode::InvalidArgument, ELOOP,
                place.folder().string() + ": is a symbolic link or a file: expected a directory of its own");
  }
  RETURN_IF_ERROR(opened);
  auto doubt = doubt_about(storage, opened->status, opened->fd.get(), place);
  if (doubt && *doubt && is_new && !(*doubt)->is_of_stranger && opened->fd) {
    // The umask, or a default list of the directory above, lets others write the new directory.
    drop_access_list(opened->fd.get());
    opened->status.mode &= ~std::uint32_t{S_IWGRP | S_IWOTH};
    if (::fchmod(opened->fd.get(), opened->status.mode & 07777U) == 0)
      doubt = doubt_about(storage, opened->status, opened->fd.get(), place);
  }
  RETURN_IF_ERROR(doubt);
  if (*doubt) {
    return fail(ErrorCode::System, EPERM,
                fmt::format("{}: {}: the weight sync does not use it: remove it, if the model is whole",
                            place.folder().string(), (*doubt)->why));
  }
  SyncPlace checked = place;
  checked.opened = std::make_shared<OpenDirectory>(std::move(*opened));
  return checked;
}

}  // namespace

Error SyncPlace::with_shown_paths(Error error) const {
  if (opened) error = opened->with_shown_paths(std::move(error), folder());
  return opened_directory ? opened_directory->with_shown_paths(std::move(error), directory) : error;
}

Result<void> check_maker(Storage& storage, const SyncPlace& place, std::string_view name, const File& file,
                         RightTo right) {
  auto status = file.status();
  RETURN_IF_ERROR(status);
  const auto doubt_of = [&](const FileStatus& found, int descriptor) {
    return right == RightTo::Model
               ? doubt_about(storage, found, descriptor, place)
               : doubt_in_directory(storage, found, descriptor, place, "the model's directory");
  };
  // A user who may write the place may give this name to any file of the file's owner.
  const auto may_name = place.opened ? doubt_of(place.opened->status, place.opened->fd.get())
                                     : Result<std::optional<Disbelief>>();
  RETURN_IF_ERROR(may_name);
  if (!*may_name) status->links = 1;
  const auto doubt = doubt_of(*status, file.descriptor());
  RETURN_IF_ERROR(doubt);
  if (!*doubt) return {};
  return fail(ErrorCode::System, EPERM,
              fmt::format("{}: {}: the weight sync does not use it: remove it, if the model is whole",
                          (place.folder() / name).string(), (*doubt)->why));
}

Result<SyncPlace> open_place(const SyncPlace& place, Storage& storage) {
  if (place.opened) return place;
  const auto begun = with_model_directory(place, storage);
  if (!begun && begun.error().errno_value == ENOENT) return place;
  return begun ? begun->told(open_checked(*begun, storage, false)) : begun;
}

Result<SyncPlace> make_place(const SyncPlace& place, Storage& storage) {
  const auto begun = with_model_directory(place, storage);
  RETURN_IF_ERROR(begun);
  auto there = begun->told(open_checked(*begun, storage, false));
  if (!there || there->opened) return there;
  const auto is_new = begun->told(storage.make_directory(begun->model_file(place.name)));
  // EEXIST: a link or a file has got the name. open_checked() reports it.
  if (!is_new && is_new.error().errno_value != EEXIST) return tl::unexpected(is_new.error());
  return begun->told(open_checked(*begun, storage, is_new && *is_new));
}

bool is_there(const SyncPlace& place, Storage& storage) {
  const auto opened = open_directory(storage, place.folder());
  if (opened) return true;
  // A link, a file, another user's mount. A failed call proves nothing: the model's state may be elsewhere.
  constexpr std::array kOthers{ELOOP, ENOTDIR, EACCES, EPERM};
  return std::ranges::find(kOthers, opened.error().errno_value) != kOthers.end();
}

SyncPlace sync_place_of(const std::filesystem::path& directory, const std::string& model, Storage& storage) {
  SyncPlace own(directory, own_name(model), model);
  const bool has_own = is_there(own, storage);
  if (has_own && !is_of_stranger(storage, own)) return own;
  SyncPlace shared(directory);
  shared.model = model;  // any user who may write the model may say so
  std::optional<std::string> named = model_in_sync_state(shared, storage);
  // A first pull that was killed has left archives of the model, but no index and no state.
  if (!named) named = model_in_switch(storage, shared);
  if (has_own) return named && *named == model ? shared : own;
  // A model that was renamed has left its state to the model of the new name.
  const bool is_left = !named || !storage.status(directory / *named);
  const bool is_its = (named && *named == model) || (is_left && is_of_directory(directory, model, storage));
  return is_its ? shared : own;
}

}  // namespace stfs::sync
