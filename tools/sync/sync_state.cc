// state.json is one JSON object. Members that this program does not know are kept.
#include "tools/sync/sync_state.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <span>
#include <thread>
#include <utility>

#include "core/journal/journal_format.h"
#include "core/storage/file.h"
#include "tools/sync/file_switch.h"
#include "tools/text/json_document.h"

namespace stfs::sync {
namespace {

constexpr std::uint64_t kMostStateBytes = 64 << 20;
constexpr const char* kSince = "changed_since";
constexpr const char* kChanged = "changed";
constexpr const char* kFrom = "changed_from";
constexpr const char* kLockName = "lock";
constexpr std::chrono::milliseconds kPause{20};

std::filesystem::path state_path(const std::filesystem::path& directory) {
  return directory / kSyncStateName;
}

/// The name of state.json until it is whole.
std::filesystem::path temporary_state(const std::filesystem::path& directory) {
  return state_path(directory).native() + ".tmp";
}

/// Empty if there is no file.
Result<std::string> read_text_at(Storage& storage, const std::filesystem::path& path) {
  auto file = storage.open(path, Access::ReadOnly);
  if (!file && file.error().errno_value == ENOENT) return std::string();
  if (!file) return pass_on(std::move(file));
  return read_text(**file, kMostStateBytes + 1);
}

/// Empty if no version was ever applied.
Result<std::string> read_state_text(Storage& storage, const std::filesystem::path& directory) {
  const std::filesystem::path path = present_sync_state(storage, directory);
  auto text = read_text_at(storage, path);
  // It may have got its own name meanwhile.
  const bool is_moved = text && text->empty() && path != state_path(directory);
  return is_moved ? read_text_at(storage, state_path(directory)) : text;
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

Result<std::optional<VersionNumber>> read_sync_state(const std::filesystem::path& directory,
                                                     Storage& storage) {
  const std::filesystem::path path = state_path(directory);
  auto text = read_state_text(storage, directory);
  if (!text) return pass_on(std::move(text));
  return version_in(*text, path);
}

std::optional<SyncChanges> read_sync_changes(const std::filesystem::path& directory) {
  const auto text = read_state_text(system_storage(), directory);
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

bool is_sync_locked(const std::filesystem::path& directory) {
  const std::filesystem::path path = state_path(directory).parent_path() / kLockName;
  const auto lock = system_storage().try_flock(path, LockKind::Shared);
  return lock && !*lock;
}

Result<SyncState> SyncState::lock(const std::filesystem::path& directory, std::chrono::milliseconds patience,
                                  Storage& storage) {
  SyncState state(state_path(directory).parent_path(), storage);
  auto is_new = storage.make_directory(state.directory_);
  if (!is_new) return pass_on(std::move(is_new));
  const std::filesystem::path path = state.directory_ / kLockName;
  constexpr mode_t kForAll = 0666;  // before the umask
  if (auto made = storage.create(path, kForAll); !made && made.error().errno_value != EEXIST) {
    // Another user's lock file can be locked by whoever may read it.
    if (!storage.status(path)) return pass_on(std::move(made));
  }
  // is_sync_locked() of a follower holds the lock for a moment: not even a caller without patience must fail
  // then.
  const auto deadline = std::chrono::steady_clock::now() + std::max(patience, kPause);
  for (;;) {
    auto lock = storage.try_flock(path, LockKind::Exclusive);
    if (!lock) return pass_on(std::move(lock));
    if (*lock) {
      state.lock_ = std::move(**lock);
      break;
    }
    if (std::chrono::steady_clock::now() >= deadline) {
      return fail(
          ErrorCode::Busy, EBUSY,
          fmt::format("{}: another receiver updates the model: it has held the lock for {} s", path.string(),
                      std::chrono::duration_cast<std::chrono::seconds>(patience).count()));
    }
    std::this_thread::sleep_for(kPause);
  }
  if (auto tidied = state.tidy(); !tidied) return pass_on(std::move(tidied));
  return state;
}

Result<void> SyncState::tidy() const {
  const std::filesystem::path directory = model_directory();
  static_cast<void>(storage_->remove(temporary_state(directory)));  // a failure is that of write()
  if (!storage_->status(state_path(directory))) {
    // The first state must not be lost with its directory, nor with the model's, which may be as new.
    for (const std::filesystem::path& above : {directory, directory / ".."}) {
      auto synced = storage_->sync_directory(above);
      if (!synced && synced.error().errno_value != EACCES) return synced;
    }
  }
  return recover_switch(*storage_, directory);
}

SyncState SyncState::without_lock(const std::filesystem::path& directory) {
  return {state_path(directory).parent_path(), system_storage()};
}

Result<void> SyncState::read() {
  const std::filesystem::path path = state_path(directory_.parent_path());
  auto text = read_state_text(*storage_, directory_.parent_path());
  if (!text) return pass_on(std::move(text));
  auto version = version_in(*text, path);
  if (!version) return pass_on(std::move(version));
  text_ = std::move(*text);
  version_ = std::move(*version);
  return {};
}

std::string SyncState::text_with(const VersionNumber& version,
                                 const std::optional<SyncChanges>& changes) const {
  tools::Json document = text_.empty() ? tools::Json::object() : tools::parse_json(text_);
  document["version"] = version.text;
  document.erase(kSince);
  document.erase(kChanged);
  document.erase(kFrom);
  if (changes) {
    document[kSince] = changes->since;
    document[kChanged] = changes->tensors;
    document[kFrom] = changes->from;
  }
  return tools::json_line(document) + "\n";
}

Result<void> SyncState::write(const VersionNumber& version, Durability durability) {
  const std::string text = text_with(version, {});
  const std::filesystem::path directory = model_directory();
  auto replaced = storage_->replace(state_path(directory), temporary_state(directory),
                                    std::as_bytes(std::span(text)), durability);
  return replaced ? read() : replaced;
}

}  // namespace stfs::sync
