// state.json is one JSON object. Members that this program does not know are kept.
#include "tools/sync/sync_state.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <iterator>
#include <span>
#include <thread>
#include <utility>

#include "core/base/utf8.h"
#include "core/journal/journal_access.h"
#include "core/storage/file.h"
#include "core/storage/file_attributes.h"
#include "core/storage/lock_holder.h"
#include "tools/sync/file_switch.h"
#include "tools/text/json_document.h"

namespace stfs::sync {
namespace {

// The size of about 100,000 names. Another user may have written the text, and its JSON tree takes 25 times
// as much memory.
constexpr std::uint64_t kMostStateBytes = 4 << 20;
constexpr const char* kSince = "changed_since";
constexpr const char* kChanged = "changed";
constexpr const char* kFrom = "changed_from";
constexpr const char* kModel = "model";
constexpr const char* kBrought = "brought";
constexpr const char* kLockName = "lock";
constexpr std::chrono::milliseconds kPause{20};

/// Returns the name of state.json until it is whole.
std::filesystem::path temporary_state(const SyncPlace& place) {
  return place.state_file().native() + ".tmp";
}

/// Returns an empty text if there is no file.
Result<std::string> read_text_at(Storage& storage, const SyncPlace& place,
                                 const std::filesystem::path& path) {
  auto file = storage.open_no_link(path, Access::ReadOnly);
  if (!file && file.error().errno_value == ENOENT) return std::string();
  RETURN_IF_ERROR(file);
  RETURN_IF_ERROR(check_maker(storage, place, path.filename().native(), **file));
  return read_text(**file, kMostStateBytes + 1);
}

/// Returns an empty text if no version was ever applied.
Result<std::string> read_state_text(Storage& storage, const SyncPlace& named) {
  const auto place = open_place(named, storage);
  RETURN_IF_ERROR(place);
  const std::filesystem::path path = present_sync_state(storage, *place);
  auto text = place->told(read_text_at(storage, *place, path));
  RETURN_IF_ERROR(text);
  if (!text->empty()) return text;
  // The file may have got its final name after present_sync_state().
  return place->told(read_text_at(storage, *place, place->state_file()));
}

tl::unexpected<Error> damaged_state(const std::filesystem::path& path, std::string_view what) {
  return fail(ErrorCode::InvalidArgument, EINVAL,
              fmt::format("{}: {}, expected {{\"version\": \"000041\"}}: if you know which version the model "
                          "has, write that; otherwise pull a full version",
                          path.string(), what));
}

Result<std::optional<VersionNumber>> version_in(const std::string& text, const std::filesystem::path& path) {
  std::optional<VersionNumber> version;
  if (text.empty()) return version;
  const tools::Json document = tools::parse_json(text);
  if (!document.is_object()) return damaged_state(path, "it is no JSON object");
  const auto found = document.find("version");
  if (found == document.end()) return damaged_state(path, "it has no version");
  version = parse_version(found->is_string() ? found->get<std::string>() : tools::json_line(*found));
  if (!version) return damaged_state(path, fmt::format("its version is {}", tools::json_line(*found)));
  return version;
}

}  // namespace

Result<std::optional<VersionNumber>> read_sync_state(const SyncPlace& place, Storage& storage) {
  auto text = read_state_text(storage, place);
  RETURN_IF_ERROR(text);
  return version_in(*text, place.state());
}

std::optional<std::string> model_in_sync_state(const SyncPlace& place, Storage& storage) {
  const auto text = read_state_text(storage, place);
  if (!text || text->empty()) return std::nullopt;
  const tools::Json document = tools::parse_json(*text);
  if (!document.is_object() || !document.contains(kModel) || !document[kModel].is_string())
    return std::nullopt;
  return document[kModel].get<std::string>();
}

std::optional<SyncChanges> read_sync_changes(const SyncPlace& place) {
  const auto text = read_state_text(system_storage(), place);
  if (!text || text->empty()) return std::nullopt;
  const tools::Json document = tools::parse_json(*text);
  if (!document.is_object() || !document.contains(kSince) || !document.contains(kChanged))
    return std::nullopt;
  const tools::Json& since = document[kSince];
  const tools::Json& names = document[kChanged];
  const auto is_text = [](const tools::Json& name) { return name.is_string(); };
  if (!since.is_string() || !names.is_array() || !std::ranges::all_of(names, is_text)) return std::nullopt;
  SyncChanges changes{since.get<std::string>(), names.get<std::vector<std::string>>(), {}};
  const tools::Json from = document.value(kFrom, tools::Json());
  if (!from.is_object() || !std::ranges::all_of(from, is_text)) return changes;
  for (const auto& [file, stamp] : from.items()) changes.from.emplace(file, stamp.get<std::string>());
  return changes;
}

std::string stamp_of(const ArchiveReader& archive) {
  const FileIdentity is = archive.identity();
  return fmt::format("{}-{}-{}", is.inode, is.size_bytes, is.mtime_ns);
}

bool is_sync_locked(const SyncPlace& place) {
  const auto opened = open_place(place);
  if (!opened) return false;
  const std::filesystem::path path = opened->file(kLockName);
  const auto lock = system_storage().try_flock(path, LockKind::Shared);
  if (!lock && is_forbidden(lock.error())) return find_flock_holder(path).has_value();
  return lock && !*lock;
}

void SyncState::keep_private(File& lock) const {
  // Users who may write the model, or give its name to another file, may update it. No other user may hold
  // the lock.
  const auto model = look_up_file(*storage_, place_.model_file(place_.model));
  const auto directory = storage_->status(place_.model_folder());
  const bool is_sticky = directory && (directory->mode & S_ISVTX) != 0;
  FileStatus writers = directory.value_or(FileStatus{});
  if (is_sticky) writers.mode &= ~std::uint32_t{0022};  // each user gives names only to own files there
  if (model && !place_.model.empty()) writers = model->status;
  if (directory && !is_sticky && directory->gid == writers.gid) writers.mode |= directory->mode & 0222U;
  static_cast<void>(give_access(*storage_, lock, writers));
  const auto given = lock.status();
  if (!given) return;
  const std::uint32_t may_write = given->mode & 0222U;
  static_cast<void>(lock.set_mode(may_write | may_write << 1U));
}

Result<bool> SyncState::try_lock() {
  constexpr mode_t kOwnerOnly = 0600;  // until keep_private()
  place_.opened = nullptr;             // another receiver may have removed the directory
  auto opened = make_place(place_, *storage_);
  RETURN_IF_ERROR(opened);
  if (!opened->opened) return false;  // just removed
  place_ = std::move(*opened);
  const std::filesystem::path path = place_.file(kLockName);
  auto made = storage_->create(path, kOwnerOnly);
  if (made) keep_private(**made);
  if (!made && made.error().errno_value != EEXIST) {
    if (made.error().errno_value == ENOENT) return false;  // the place has just been removed
    // Users who may read another user's lock file can lock it.
    if (!storage_->status_of_name(path)) return pass_on(std::move(made));
  }
  const auto before = storage_->status_of_name(path);
  auto lock = storage_->try_flock(path, LockKind::Exclusive);
  if (!lock && lock.error().errno_value == ENOENT) return false;
  RETURN_IF_ERROR(lock);
  if (!*lock) return false;
  // The previous holder may have removed the place, because nothing was applied.
  const auto now = storage_->status_of_name(path);
  if (!before || !now || !now->identity.same_file(before->identity)) return false;
  lock_ = std::move(**lock);
  return true;
}

Result<SyncState> SyncState::lock(const SyncPlace& place, std::chrono::milliseconds patience,
                                  Storage& storage, Work* work) {
  SyncState state(place, storage);
  const std::filesystem::path path = place.folder() / kLockName;
  // A follower's is_sync_locked() holds the lock for a moment. Even a caller without patience must not fail
  // then.
  const auto deadline = std::chrono::steady_clock::now() + std::max(patience, kPause);
  for (;;) {
    auto is_locked = state.place_.told(state.try_lock());
    RETURN_IF_ERROR(is_locked);
    if (*is_locked) break;
    if (std::chrono::steady_clock::now() >= deadline) {
      return fail(ErrorCode::Busy, EBUSY,
                  fmt::format("{}: another receiver updates the model: {} has held the lock for {} s",
                              path.string(), holder_text(find_flock_holder(path)),
                              std::chrono::duration_cast<std::chrono::seconds>(patience).count()));
    }
    if (work != nullptr) work->look();
    if (work != nullptr && work->is_stopped()) {
      return fail(ErrorCode::System, EINTR, path.string() + ": interrupted while another receiver held it");
    }
    std::this_thread::sleep_for(kPause);
  }
  RETURN_IF_ERROR(state.place_.told(state.tidy()));
  return state;
}

void SyncState::leave_nothing() const {
  if (!lock_ || storage_->status(place_.state_file())) return;
  // A note of a switch that could not be undone stays, with the lock file.
  const auto names = storage_->list(place_.open_folder(), "");
  const bool is_bare = names && std::ranges::all_of(*names, [](const std::string& name) {
                         return name == kLockName || name == "." || name == "..";
                       });
  if (!is_bare) return;
  if (storage_->remove(place_.file(kLockName)))
    static_cast<void>(storage_->remove_directory(place_.model_file(place_.name)));
}

Result<void> SyncState::tidy() const {
  const std::filesystem::path directory = model_directory();
  static_cast<void>(storage_->remove(temporary_state(place_)));  // if it stays, write() fails
  if (!storage_->status(place_.state_file())) {
    // The first state must not be lost with its directory, nor with the model's directory, which may be as
    // new.
    for (const std::filesystem::path& above : {directory, directory / ".."}) {
      auto synced = storage_->sync_directory(above);
      if (!synced && synced.error().errno_value != EACCES) return synced;
    }
  }
  return recover_switch(*storage_, place_);
}

SyncState SyncState::without_lock(const SyncPlace& place) {
  return {place, system_storage()};
}

Result<void> SyncState::read() {
  auto text = read_state_text(*storage_, place_);
  RETURN_IF_ERROR(text);
  auto version = version_in(*text, place_.state());
  RETURN_IF_ERROR(version);
  text_ = std::move(*text);
  version_ = std::move(*version);
  return {};
}

std::set<std::string> SyncState::brought() const {
  std::set<std::string> names;
  if (text_.empty()) return names;
  const tools::Json document = tools::parse_json(text_);
  const auto found = document.is_object() ? document.find(kBrought) : document.end();
  if (found == document.end() || !found->is_array()) return names;
  for (const tools::Json& name : *found) {
    if (name.is_string()) names.insert(name.get<std::string>());
  }
  return names;
}

Result<std::string> SyncState::text_with(const VersionNumber& version,
                                         const std::optional<SyncChanges>& changes, const std::string& model,
                                         const std::set<std::string>& brought) const {
  tools::Json document = text_.empty() ? tools::Json::object() : tools::parse_json(text_);
  document["version"] = version.text;
  const std::string& named = model.empty() ? place_.model : model;
  if (is_utf8(named) && !named.empty()) document[kModel] = named;
  if (!brought.empty()) {
    std::set<std::string> all = this->brought();
    std::ranges::copy_if(brought, std::inserter(all, all.end()),
                         [](const std::string& name) { return is_utf8(name); });
    document[kBrought] = all;
  }
  document.erase(kSince);
  document.erase(kChanged);
  document.erase(kFrom);
  if (changes) {
    document[kSince] = changes->since;
    document[kChanged] = changes->tensors;
    document[kFrom] = changes->from;
  }
  std::string text = tools::json_line(document) + "\n";
  if (text.size() > kMostStateBytes && changes) return text_with(version, {}, model, brought);
  if (text.size() <= kMostStateBytes) return text;
  return fail(ErrorCode::InvalidArgument, EFBIG,
              fmt::format("{}: would have {} bytes with the names of this version's files, at most {} are "
                          "allowed: pull into a new directory",
                          place_.state().native(), text.size(), kMostStateBytes));
}

Result<void> SyncState::write(const VersionNumber& version, Durability durability) {
  const auto text = text_with(version, {});
  RETURN_IF_ERROR(text);
  return write_text(*text, durability);
}

Result<void> SyncState::write_text(const std::string& text, Durability durability) {
  auto replaced = place_.told(storage_->replace(place_.state_file(), temporary_state(place_),
                                                std::as_bytes(std::span(text)), durability));
  return replaced ? read() : replaced;
}

}  // namespace stfs::sync
