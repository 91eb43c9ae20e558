// Reopens models whose archives other programs have replaced.
#include <algorithm>
#include <cerrno>
#include <set>
#include <utility>

#include "core/base/absolute_path.h"
#include "core/base/mutex.h"
#include "fs/base/log.h"
#include "fs/model/mount_root.h"
#include "fs/tree/names.h"

namespace stfs {
namespace {

/// True for an error that may pass without any change to the file, so that a retry makes sense.
bool may_pass(const Error& error) {
  return error.code == ErrorCode::Busy || error.errno_value == ENOMEM || error.errno_value == ENFILE ||
         error.errno_value == EMFILE || error.errno_value == EINTR;
}

void take_names(const MountedModel& mounted, std::set<std::string>& names) {
  static_cast<void>(mounted.read_directory(kRootIno, 2, [&](std::string_view name, Ino, std::uint64_t) {
    names.emplace(name);
    return true;
  }));
}

}  // namespace

std::vector<MountRoot::WatchedFile> MountRoot::watched_files() const {
  std::vector<WatchedFile> files;
  if (source_) files.push_back({source_->path() / "", kNoMember, std::nullopt});
  const auto models = slots();
  for (std::size_t at = 0; at < models.size(); ++at) {
    const Pin member = pin_current(*models[at]);
    if (!member) {
      files.push_back({models[at]->path, at, std::nullopt});
      continue;
    }
    const Model& model = member->model();
    if (model.is_sharded()) files.push_back({model.path(), at, std::nullopt});
    for (std::uint32_t shard = 0; shard < model.shards().size(); ++shard) {
      files.push_back({model.shards()[shard].path, at, shard});
    }
  }
  for (const Pin& edition : mounted_models_.all()) {
    if (is_current(edition.number())) continue;
    for (std::uint32_t shard = 0; shard < edition->model().shards().size(); ++shard) {
      if (edition->is_at_path(shard))
        files.push_back({edition->model().shards()[shard].path, kNoMember, shard, edition.number()});
    }
  }
  // A web server tells nothing. Each answer of the server is compared instead.
  std::erase_if(files, [](const WatchedFile& file) { return is_url(file.path); });
  return files;
}

bool MountRoot::has_remote_files() const {
  const auto is_remote = [](const Shard& shard) {
    return shard.archive && !shard.archive->bytes().why_not_mapped().empty();
  };
  return std::ranges::any_of(slots(), [&](const auto& slot) {
    const Pin member = pin_current(*slot);
    return member && std::ranges::any_of(member->model().shards(), is_remote);
  });
}

bool MountRoot::reads_from_web() const {
  const auto is_on_web = [](const Shard& shard) { return is_url(shard.path); };
  return std::ranges::any_of(slots(), [&](const auto& slot) {
    const Pin member = pin_current(*slot);
    return member && std::ranges::any_of(member->model().shards(), is_on_web);
  });
}

MountRoot::Change MountRoot::check_for_change(const WatchedFile& file) {
  // A request is showing a replacement, and this check would open the same archive again.
  if (replacements_ != 0) return {.stale = {}, .entries = {}, .is_due_soon = true};
  // All files are checked again when the mount watches them.
  if (has_replaced_.exchange(false))
    return {.stale = {}, .entries = {}, .is_reopened = true, .has_leftovers = true};
  if (file.replaced) return check_replaced(*file.replaced, *file.shard);
  if (file.member == kNoMember) return check_directory();
  const std::shared_ptr<ModelSlot> checked = slots()[file.member];
  ModelSlot& slot = *checked;
  const Pin member = pin_current(slot);
  if (!member) return open_anew(slot, member);
  const Model& model = member->model();
  ForeignChanges::Change found;
  if (!file.shard) {
    found = member->check_index();
  } else if (*file.shard >= model.shards().size()) {
    return {};  // a file of the model that was here before
  } else if (model.shards()[*file.shard].archive) {
    found = member->check_for_change(*file.shard);
  } else {
    // The shard could not be used. The model is outdated if the shard's file has changed since.
    found.is_outdated = model.is_refused_shard_changed(*file.shard);
  }
  {
    const SharedLock lock(mutex_);
    // The model at the path could not be opened before. The earlier model may be back.
    if (slot.why_absent) found.is_outdated = true;
  }
  Change change = found.is_outdated ? open_anew(slot, member) : Change();
  if (found.stale.what != Stale::What::Nothing) change.stale.push_back(found.stale);
  if (found.has_new_permissions && !is_lone_)
    change.stale.push_back(Stale::one(kRootIno, Stale::What::Attributes));
  change.is_due_again = change.is_due_again || found.is_unknown;
  change.is_due_soon = found.is_unsettled;
  change.is_reopened = change.is_reopened || member->take_new_index();
  return change;
}

Stale MountRoot::check_permissions() {
  bool has_changed = false;
  for (const Pin& edition : mounted_models_.all()) {
    // Another thread may still be connecting a new edition to the mount.
    if (is_current(edition.number()) || edition->is_replaced())
      has_changed = edition->check_permissions() || has_changed;
  }
  return has_changed && !is_lone_ ? Stale::one(kRootIno, Stale::What::Attributes) : Stale();
}

MountRoot::Change MountRoot::check_replaced(Number edition, std::uint32_t shard) {
  const Pin member = mounted_models_.pin(edition);
  if (!member || shard >= member->model().shards().size()) return {};
  const ForeignChanges::Change found = member->check_for_change(shard);
  Change change;
  if (found.stale.what != Stale::What::Nothing) change.stale.push_back(found.stale);
  change.is_due_again = found.is_unknown;
  change.is_due_soon = found.is_unsettled;
  return change;
}

MountRoot::Change MountRoot::open_anew(ModelSlot& slot, const Pin& old) {
  if (!slot.open) return {};
  // Overwriting a large file in place takes minutes. Until it is complete, reopening after each write would
  // only fail again.
  constexpr unsigned kFailuresAtOnce = 3;
  constexpr std::chrono::milliseconds kPause{200};
  const auto now = std::chrono::steady_clock::now();
  if (slot.failures >= kFailuresAtOnce && now - slot.tried_at < kPause)
    return {.stale = {}, .entries = {}, .is_due_again = true};
  slot.tried_at = now;

  const auto number = open_next(slot, old);
  if (!number) {
    ++slot.failures;
    return refuse(slot, old, number.error());
  }
  slot.failures = 0;
  const Pin present = mounted_models_.pin(*number);
  bool is_shown = false;
  try {
    surroundings_.change_root([&] { is_shown = make_current(slot, old, *number); });
  } catch (...) {
    mounted_models_.let_go(*number, 1);
    throw;
  }
  // Listings of the root add no entries to the kernel's caches until an entry of the root was forgotten, so
  // this change has one.
  if (!is_shown) return {.stale = {}, .entries = {slot.name}, .is_due_again = true};
  Change change = entries_of(slot, old, present);
  change.is_reopened = true;
  change.tell = [path = present->model().path().string(), count = present->model().tensors().size(),
                 is_changed = old && old->is_changed()] {
    if (is_changed) {
      log::info("{}: was changed: the mount shows the new version; reads of files that are open give ESTALE",
                path);
    } else {
      log::info("{}: was replaced: the mount shows the new model, {} tensors; open files keep the old model",
                path, count);
    }
  };
  return change;
}

Result<MountRoot::Number> MountRoot::open_next(const ModelSlot& slot, const Pin& old) {
  auto share = share_of_owner(slot.path);
  // The error passes when the user's earlier versions are closed. EDQUOT of the store does not mean this.
  if (!share) return fail(ErrorCode::Busy, share.error().errno_value, share.error().message);
  return open_next(slot, old, std::move(*share));
}

Result<std::unique_ptr<MountedModel>> MountRoot::open_in_place(const ModelSlot& slot,
                                                               const Heritage& heritage) const {
  if (!source_) return slot.open(heritage);
  constexpr int kAttempts = 8;
  for (int attempt = 1;; ++attempt) {
    auto same = source_->check_place();
    if (same) {
      auto opened = slot.open(heritage);
      RETURN_IF_ERROR(opened);
      // Another user may have exchanged the directory before the opening, or a program has replaced the file.
      same = source_->check_archive(slot.path.filename().native(), (*opened)->model().front().identity());
      if (same) return opened;
      if (same.error().errno_value == ESTALE && attempt < kAttempts) continue;
    }
    const Error& why = same.error();
    if (why.errno_value == ENOENT) return tl::unexpected(why);
    // The directory may return to its path.
    return fail(ErrorCode::Busy, why.errno_value, why.message);
  }
}

Result<MountRoot::Number> MountRoot::open_next(const ModelSlot& slot, const Pin& old,
                                               UserCounts::Share share) {
  Heritage heritage{.activity = slot.activity, .is_ending = [this] { return is_ending_.load(); }};
  if (old) heritage.least_generation = old->newest_generation() + 1;
  auto opened = open_in_place(slot, heritage);
  RETURN_IF_ERROR(opened);
  share = with_header(std::move(share), slot.path, (*opened)->model());
  auto number = mounted_models_.add(std::move(*opened), std::move(share));
  if (number) connect(mounted_models_.pin(*number));
  return number;
}

bool MountRoot::make_current(ModelSlot& slot, const Pin& old, Number next) {
  const Number replaced = old ? old.number() : kNone;
  bool is_shown = false;
  {
    const MutexLock lock(mutex_);
    is_shown = slot.current == replaced;
    if (is_shown) {
      // The counts change before the new model becomes visible, so that its stats.json includes the
      // replacement.
      slot.activity->set_problem("");
      slot.activity->note_replacement();
      slot.current = next;
      slot.why_absent.reset();
    }
  }
  if (!is_shown) mounted_models_.let_go(next, 1);
  if (is_shown && old) {
    old->note_replaced();
    mounted_models_.let_go(replaced, 1);
  }
  return is_shown;
}

Outdated MountRoot::show_replacement(Number number) {
  const Pin old = mounted_models_.pin(number);
  const std::shared_ptr<ModelSlot> slot = slot_of(old);
  if (!slot->open) return {};
  ++replacements_;
  const auto shown = guard_memory([&]() -> Result<Outdated> {
    if (is_current(number)) {  // else a check for changes has shown it already
      const auto next = open_next(*slot, old);
      RETURN_IF_ERROR(next);
      make_current(*slot, old, *next);
    }
    const Pin present = pin_current(*slot);
    Outdated outdated{.stale = {Stale::one(kRootIno, Stale::What::Content)}, .entries = {}};
    for (std::string& name : entries_of(*slot, old, present ? present : old).entries)
      outdated.entries.emplace_back(kRootIno, std::move(name));
    if (is_lone_) {
      outdated.stale.push_back(Stale::one(kHiddenIno, Stale::What::Attributes));
      return outdated;
    }
    // The directory of the model may be the working directory of a program.
    std::set<std::string> names;
    take_names(*old.operator->(), names);
    const Ino root = space_of(number).in_mount(kRootIno);
    for (const std::string& name : names) outdated.entries.emplace_back(root, name);
    return outdated;
  });
  has_replaced_ = true;
  --replacements_;
  if (shown) return *shown;
  // The save has succeeded. The next check for changes shows the new archive.
  log::error("{}: saved, but can't be shown yet: {}", slot->path.string(), shown.error().message);
  return {};
}

MountRoot::Change MountRoot::refuse(ModelSlot& slot, const Pin& old, const Error& why) {
  if (may_pass(why)) return {.stale = {}, .entries = {}, .is_due_again = true};
  // A deleted model stays visible as long as the mount has its file open.
  if (why.errno_value == ENOENT) return {};
  bool is_new = false;
  {
    const MutexLock lock(mutex_);
    is_new = !std::exchange(slot.why_absent, why).has_value();
  }
  slot.activity->set_problem(why.message);
  if (old) old->refuse(why.message);
  // While a program overwrites the file, the reason changes with each attempt. Only the first reason is
  // logged; stats.json shows the latest.
  Change change = is_new && old ? entries_of(slot, old, old) : Change();
  // No event reports that the store works again, or has space again, so the check must be repeated.
  change.is_due_again = why.code == ErrorCode::System;
  if (!is_new) return change;
  change.tell = [message = why.message, is_repeated = change.is_due_again] {
    log::error("{}: its tensors give EIO until it {}", message,
               is_repeated ? "can be opened, which is tried each second" : "is replaced by an archive");
  };
  return change;
}

MountRoot::Change MountRoot::entries_of(const ModelSlot& slot, const Pin& old, const Pin& present) const {
  if (!is_lone_) return {.stale = {}, .entries = {slot.name, slot.path.filename().string()}};
  // The kernel may remember other names as missing, which is still right: neither edition has them.
  std::set<std::string> names;
  // `.safetensors` may be the working directory of a program, and a forgotten directory has no path any more.
  if (!is_shared(kHiddenIno)) names.emplace(kViewsDirectory);
  for (const Pin* edition : {&old, &present}) take_names(*edition->operator->(), names);
  return {.stale = {}, .entries = {names.begin(), names.end()}};
}

std::vector<std::pair<Ino, std::string>> MountRoot::leftovers() const {
  std::vector<std::pair<Ino, std::string>> found;
  for (const Pin& edition : mounted_models_.all()) {
    const auto is_its = [&](const auto& slot) { return slot->current == edition.number(); };
    {
      const SharedLock lock(mutex_);
      if (!edition->is_refused() && std::ranges::any_of(slots_, is_its)) continue;
    }
    edition->visit_known([&](Ino directory, std::string_view name) { found.emplace_back(directory, name); });
    if (is_lone_) continue;
    std::set<std::string> names = {std::string(kViewsDirectory)};
    take_names(*edition.operator->(), names);
    const Ino root = space_of(edition.number()).in_mount(kRootIno);
    for (const std::string& name : names) found.emplace_back(root, name);
  }
  return found;
}

}  // namespace stfs
