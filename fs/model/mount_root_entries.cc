// Implements the root of a directory of models: finds models and the entries beside them, and shows new
// archives.
#include <fmt/format.h>

#include <cerrno>
#include <utility>

#include "core/base/mutex.h"
#include "core/model/model_directory.h"
#include "fs/base/log.h"
#include "fs/base/user_counts.h"
#include "fs/model/listed_archive.h"
#include "fs/model/mount_root.h"
#include "fs/tree/names.h"

namespace stfs {
namespace {

std::string model_name_of(std::string_view file_name) {
  return file_name_of(file_name.substr(0, file_name.size() - kArchiveSuffix.size()));
}

}  // namespace

void MountRoot::show_source(std::unique_ptr<SourceDirectory> source, OpenerOf opener_of) {
  source_ = std::move(source);
  opener_of_ = std::move(opener_of);
  source_->leave_out([this](std::string_view name) {
    const auto hides_it = slot_named(name);
    return shown_slot_of_file(name) != nullptr || (hides_it != nullptr && is_shown(*hides_it));
  });
}

bool MountRoot::is_shown(const ModelSlot& slot) const {
  const SharedLock lock(mutex_);
  return slot.current != kNone;
}

std::shared_ptr<MountRoot::ModelSlot> MountRoot::slot_of_file(std::string_view file_name) const {
  const SharedLock lock(mutex_);
  const auto found = by_file_.find(std::string(file_name));
  return found == by_file_.end() ? nullptr : found->second;
}

std::shared_ptr<MountRoot::ModelSlot> MountRoot::slot_named(std::string_view name) const {
  const SharedLock lock(mutex_);
  std::shared_ptr<ModelSlot> found;
  for (const auto& slot : slots_) {
    if (slot->name != name) continue;
    if (slot->current != kNone) return slot;
    if (!found) found = slot;
  }
  return found;
}

std::shared_ptr<MountRoot::ModelSlot> MountRoot::shown_slot_of_file(std::string_view file_name) const {
  if (!is_archive_name(file_name)) return nullptr;
  const auto slot = slot_of_file(file_name);
  return slot != nullptr && is_shown(*slot) ? slot : nullptr;
}

bool MountRoot::reads_source(Ino parent, std::string_view name) const {
  if (!source_ || parent != kRootIno) return false;
  const auto slot = slot_named(name);
  return slot == nullptr || !is_shown(*slot);
}

Result<struct stat> MountRoot::find_in_root(std::string_view name) const {
  const auto shown = [](const Pin& member, Ino ino) {
    auto status = member->attributes(ino);
    if (status) member.note_lookup(status->st_ino);
    return status;
  };
  if (const auto slot = slot_named(name)) {
    std::optional<Error> why;
    {
      const SharedLock lock(mutex_);
      why = slot->why_absent;
    }
    // A refused model is shown. Its MountedModel refuses each look-up in it.
    if (const Pin member = pin_current(*slot)) return shown(member, kRootIno);
    if (why && why->code != ErrorCode::NotFound) return fail(why->code, EIO, why->message);
  }
  if (!source_) return fail(ErrorCode::NotFound, ENOENT, "no such model");
  if (const auto slot = shown_slot_of_file(name)) {
    if (const Pin member = pin_current(*slot)) {
      const auto whole = member->lookup(space_of(member.number()).in_mount(kHiddenIno), Views::kArchiveName);
      if (whole) member.note_lookup(whole->st_ino);
      return whole;
    }
  }
  return find_in_source(kRootIno, name);
}

Result<struct stat> MountRoot::find_in_source(Ino parent, std::string_view name) const {
  const auto shows = parent == kRootIno ? shows_entries() : Result<bool>(true);
  RETURN_IF_ERROR(shows);
  if (!*shows) return fail(ErrorCode::NotFound, ENOENT, "no such model");
  const auto ino = source_->find(parent, name);
  RETURN_IF_ERROR(ino);
  auto status = source_->attributes(*ino);
  if (status) source_->note_lookup(*ino);
  return status;
}

Result<void> MountRoot::check_model_name(std::string_view file_name) const {
  const std::string name = model_name_of(file_name);
  const auto same = slot_named(name);
  if (same != nullptr && is_shown(*same)) {
    return fail(
        ErrorCode::System, EEXIST,
        fmt::format("its model would be shown as {}, and so is that of {}", name, same->path.string()));
  }
  const SharedLock lock(mutex_);
  if (slots_.size() < kMostMembers) return {};
  return fail(ErrorCode::InvalidArgument, ENOSPC,
              fmt::format("at most {} models are mounted together", kMostMembers));
}

Result<UserCounts::Share> MountRoot::share_of_owner(const std::filesystem::path& archive) {
  const auto status = source_ ? source_->status_of(archive.filename()) : std::nullopt;
  if (!status || is_unlimited(status->st_uid)) return UserCounts::Share();
  if (headers_.count(status->st_uid) >= UserLimits().header_bytes)
    return over_user_limit(status->st_uid, UserLimits().header_bytes, "bytes in headers of models",
                           "delete some");
  return models_.take(status->st_uid);
}

UserCounts::Share MountRoot::with_header(UserCounts::Share share, const std::filesystem::path& archive,
                                         const Model& model) {
  const auto status = source_ ? source_->status_of(archive.filename()) : std::nullopt;
  if (!status || is_unlimited(status->st_uid)) return share;
  auto header = headers_.take(status->st_uid, header_bytes_of(model));
  // The user is over the limit, because another thread has just opened a model of this user. The limit
  // applies to the next model.
  if (!header) return share;
  return std::make_shared<std::pair<UserCounts::Share, UserCounts::Share>>(std::move(share),
                                                                           std::move(*header));
}

Result<void> MountRoot::show_model(const std::string& file_name) {
  auto share = share_of_owner(file_name);
  RETURN_IF_ERROR(share);
  std::shared_ptr<ModelSlot> slot = slot_of_file(file_name);
  const bool is_known = slot != nullptr;
  if (!is_known) {
    RETURN_IF_ERROR(check_model_name(file_name));
    slot = std::make_shared<ModelSlot>();
    slot->name = model_name_of(file_name);
    slot->path = source_->path() / file_name;
    slot->open = opener_of_(slot->path);
    slot->activity = std::make_shared<Activity>();
  }
  const auto number = open_next(*slot, Pin(), std::move(*share));
  RETURN_IF_ERROR(number);
  {
    const MutexLock lock(mutex_);
    slot->current = *number;
    slot->why_absent.reset();
  }
  slot->activity->set_problem("");
  if (!is_known) add(slot);
  const Pin present = mounted_models_.pin(*number);
  log::info("{}: new model, {} tensors", present->model().path().string(), present->model().tensors().size());
  return {};
}

MountRoot::Served MountRoot::served(const Pin& model, Ino ino) const {
  if (model) return {model->served_files(), model->node_of(ino)};
  return {source_->files(), source_->node(ino)};
}

bool MountRoot::is_source_changed(const Pin& model, Ino ino) const {
  return model ? model->is_source_changed(ino) : serves(ino) && source_->is_changed(ino);
}

Error MountRoot::changes_no_files() const {
  if (is_read_only_) return {ErrorCode::ReadOnly, EROFS, "mounted read-only"};
  return {
      ErrorCode::InvalidArgument, EPERM,
      fmt::format(
          "the mount of a directory changes no files beside its models: make and save files in {}, "
          "where a new archive is shown at once, or save a model into its .safetensors/archive.safetensors",
          first_slot()->path.parent_path().string())};
}

MountRoot::Change MountRoot::check_directory() {
  Change change;
  NameSet<std::string> unshown;
  const auto place = source_->check_place();
  const bool is_elsewhere = !place && place.error().errno_value != ENOENT;
  if (!std::exchange(is_elsewhere_, is_elsewhere) && is_elsewhere) log::warning("{}", place.error().message);
  if (!place) {
    // No event reports that the directory is back, that another directory is now at the path, or that a
    // file's mode has changed.
    change.is_due_again = true;
    return change;
  }
  const auto found = source_->list_models();
  refused_.begin_pass();
  for (const std::string& file_name : found ? found->archives : std::vector<std::string>()) {
    const auto slot = slot_of_file(file_name);
    if (slot != nullptr && is_shown(*slot)) continue;  // the check of this file handles it
    const auto status = source_->status_of(file_name);
    if (status && refused_.has(*status)) continue;
    if (refused_.has_spent_all()) {
      change.is_due_again = true;
      unshown.merge(unshown_);
      break;
    }
    const auto begin = RefusedHeaders::Clock::now();
    // An archive that another program is still writing is looked at again when the program closes it.
    const auto hides = check_hides_nothing(source_->path() / file_name, model_name_of(file_name));
    const auto shown = hides ? show_model(file_name) : tl::unexpected(hides.error());
    if (!shown) {
      const Error& why = shown.error();
      if (status) refused_.note(*status, why, RefusedHeaders::Clock::now() - begin);
      change.is_due_again = change.is_due_again || why.code == ErrorCode::Busy;
      if (!hides || why.errno_value == EDQUOT || why.errno_value == EXDEV) {
        unshown.insert(file_name);
        if (!unshown_.contains(file_name)) log::warning("{}: not shown: {}", file_name, why.message);
      }
      continue;
    }
    change.entries.push_back(model_name_of(file_name));
    change.entries.push_back(file_name);
    change.is_reopened = true;
  }
  unshown_ = std::move(unshown);
  return change;
}

}  // namespace stfs
