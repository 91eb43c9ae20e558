#include "tools/sync/seeding.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <map>
#include <optional>
#include <span>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/archive/archive_version.h"
#include "core/base/xxh3.h"
#include "core/format/header.h"
#include "core/journal/journal_access.h"
#include "core/journal/journal_format.h"
#include "core/model/model_index.h"
#include "core/storage/file.h"
#include "core/storage/file_attributes.h"
#include "core/storage/new_file.h"
#include "core/storage/permissions.h"
#include "tools/sync/file_switch.h"
#include "tools/sync/seeding_plan.h"
#include "tools/sync/switch_names.h"
#include "tools/sync/version_format.h"
#include "tools/text/json_document.h"

namespace stfs::sync {
namespace {

constexpr std::uint64_t kCopiedBytes = 1 << 20;
// No user needs to write an index or a state in place: the next version replaces it by a rename.
constexpr mode_t kTextMode = 0644;

constexpr std::string_view kChangedMeanwhile = "it has changed while it was copied";

/// @param start  the bytes of a file before its data: the length of the header, and the header.
bool has_header(std::string_view start, const ArchiveVersion& archive) {
  if (start.size() != archive.data_offset()) return false;
  const std::string_view json = start.substr(kHeaderLengthBytes);
  const auto length = header_length(std::as_bytes(std::span(start)), archive.stamp.size_bytes);
  if (!length || *length != json.size()) return false;
  return XXH3_64bits(json.data(), json.size()) == archive.header->hash;
}

class Seeding {
 public:
  Seeding(const PublishedVersion& version, SyncState& state, SeedingPlan plan, Work& work)
      : version_(version),
        state_(state),
        storage_(state.storage()),
        directory_(state.model_directory()),
        plan_(std::move(plan)),
        work_(work) {}

  Result<void> run() {
    RETURN_IF_ERROR(look_at_present());
    if (!present_) RETURN_IF_ERROR(look_at_version());
    // Before the note of an earlier switch, whose files may still have to be placed, is given up.
    RETURN_IF_ERROR(check_final_name(storage_, state_.place(), plan_.files.step.to));
    for (const FileSwitch::Move& move : plan_.files.after) {
      RETURN_IF_ERROR(check_final_name(storage_, state_.place(), move.to));
    }
    RETURN_IF_ERROR(note_switch(storage_, state_.place(), plan_.files));
    if (auto made = make_files(); !made) {
      static_cast<void>(undo_switch(storage_, state_.place(), plan_.files));  // else the next receiver does
      return made;
    }
    RETURN_IF_ERROR(take_switch(storage_, state_.place(), plan_.files));
    return state_.read();
  }

 private:
  static Result<void> interrupted() {
    return fail(ErrorCode::System, EINTR, "interrupted: the model is not whole yet: pull again");
  }

  Result<void> make_files() {
    work_.begin(copied_bytes());
    FileSwitch& files = plan_.files;
    for (const auto& [theirs, ours] : plan_.archives) {
      RETURN_IF_ERROR(copy_file(theirs, files.step.from, ours, &checked_archive(theirs)));
    }
    for (FileSwitch::Move& move : files.after) {
      RETURN_IF_ERROR(copy_file(move.to, move.from, move.to));
    }
    if (plan_.has_index) {
      const auto text = index_text();
      RETURN_IF_ERROR(text);
      auto file = create(files.step.from, files.step.to, first_mode() & kTextMode, most_);
      RETURN_IF_ERROR(file);
      RETURN_IF_ERROR(write_text(*text, *file, directory_ / files.step.from));
    }
    work_.look();
    if (!work_.goes_on()) return interrupted();
    const auto state = state_.text_with(version_.version(), {}, files.step.to, plan_.brought);
    RETURN_IF_ERROR(state);
    const std::filesystem::path next = next_sync_state(state_.place());
    auto file =
        NewFile::create_as(next, state_.place().state_file(), first_mode() & kTextMode, storage_, most_);
    RETURN_IF_ERROR(file);
    return write_text(*state, *file, next);
  }

  /// Makes a new file under a temporary name of the noted switch. Another user may have read the name in the
  /// note, or in the directory, and made an entry of that name: then the file gets another name, which nobody
  /// knows before the file exists. A kill before that name is noted leaves an empty file.
  /// @param temporary  gets the other name.
  /// @param over       the final name of the file. EEXIST: another user has it.
  /// @param most       limits the file's mode, if the version is a new model.
  Result<NewFile> create(std::string& temporary, const std::string& over, mode_t mode,
                         const NewFileMode& most) {
    const SyncPlace& place = state_.place();
    RETURN_IF_ERROR(check_final_name(storage_, place, over));
    const auto is_free = is_free_name(storage_, place, temporary);
    RETURN_IF_ERROR(is_free);
    const auto make = [&] {
      return NewFile::create_as(directory_ / temporary, directory_ / over, mode, storage_, most);
    };
    if (*is_free) {
      auto file = make();
      if (file || file.error().errno_value != EEXIST) return file;
    }
    temporary = new_temporary_file_name();
    auto file = make();
    RETURN_IF_ERROR(file);
    RETURN_IF_ERROR(note_switch(storage_, place, plan_.files));
    return file;
  }

  /// Returns the size of the files that make_files() copies, as far as it is known.
  [[nodiscard]] std::uint64_t copied_bytes() const {
    std::uint64_t total = 0;
    const auto add = [&](const std::string& name) {
      const auto there = version_.files().status(version_.directory() / name);
      if (there) total += there->identity.size_bytes;
    };
    for (const auto& [theirs, ours] : plan_.archives) add(theirs);
    for (const FileSwitch::Move& move : plan_.files.after) add(move.to);
    return total;
  }

  /// Returns the version's archive of this name, as it was checked.
  [[nodiscard]] const ArchiveVersion& checked_archive(const std::string& name) const {
    const auto has_name = [&](const Shard& shard) { return shard.path.filename() == name; };
    return *std::ranges::find_if(version_.shards(), has_name)->version;
  }

  /// Copies a file of the version and syncs it.
  /// @param over  the final name of the copy. The copy gets the mode and attributes of a file of this name.
  /// @param checked  for an archive. If a publisher has exchanged or rewritten the file since the check, no
  ///                 copy becomes the model. An archive of an index gets its final name at once.
  Result<void> copy_file(const std::string& name, std::string& temporary, const std::string& over,
                         const ArchiveVersion* checked = nullptr) {
    auto source = version_.files().open(version_.directory() / name, Access::ReadOnly);
    RETURN_IF_ERROR(source);
    auto size_bytes = (*source)->size_bytes();
    RETURN_IF_ERROR(size_bytes);
    auto file = create(temporary, over, first_mode(), most_of(**source));
    RETURN_IF_ERROR(file);
    RETURN_IF_ERROR(file->reserve(*size_bytes));
    std::string header;
    const std::uint64_t header_end = checked != nullptr ? checked->data_offset() : 0;
    std::vector<std::byte> buffer(static_cast<std::size_t>(std::min(kCopiedBytes, *size_bytes)));
    for (std::uint64_t at = 0; at < *size_bytes; at += buffer.size()) {
      const auto piece = std::span(buffer).first(
          static_cast<std::size_t>(std::min<std::uint64_t>(buffer.size(), *size_bytes - at)));
      RETURN_IF_ERROR((*source)->read(piece, at));
      header.append(
          reinterpret_cast<const char*>(piece.data()),
          static_cast<std::size_t>(std::min<std::uint64_t>(header_end - header.size(), piece.size())));
      RETURN_IF_ERROR(file->append(piece));
      if (!work_.advance(piece.size())) return interrupted();
    }
    if (checked != nullptr && (*size_bytes != checked->stamp.size_bytes || !has_header(header, *checked)))
      return unfinished(version_.directory() / name, kChangedMeanwhile);
    RETURN_IF_ERROR(settle(*file));
    const bool is_final = checked != nullptr && plan_.has_index;
    if (is_final) {
      RETURN_IF_ERROR(check_final_name(storage_, state_.place(), over));
    }
    return file->finish_unsynced(directory_ / (is_final ? over : temporary));
  }

  /// Writes the whole file and syncs it.
  [[nodiscard]] Result<void> write_text(const std::string& text, NewFile& file,
                                        const std::filesystem::path& temporary) const {
    RETURN_IF_ERROR(file.append(std::as_bytes(std::span(text))));
    RETURN_IF_ERROR(settle(file));
    return file.finish_unsynced(temporary);
  }

  /// Finds the access that all archives of the present model give. A link, and a file that another user may
  /// have planted, give access only to this process's user.
  Result<void> look_at_present() {
    for (const std::string& name : plan_.present) {
      const auto found = look_up_file(storage_, directory_ / name);
      const bool is_link = !found && found.error().errno_value == ELOOP;
      if (!found && found.error().errno_value == ENOENT) continue;
      if (!found && !is_link) return tl::unexpected(found.error());
      FileStatus status = is_link ? FileStatus{.identity = {}, .mode = 0600} : found->status;
      if (is_link || found->may_be_planted) {
        status.uid = storage_.user();
        status.gid = ::getegid();
        status.mode &= ~std::uint32_t{0077};
      }
      if (present_) status.mode &= present_->mode;
      present_ = status;
    }
    return {};
  }
  /// Finds what the archives and the index of the version allow, for a model that is new.
  Result<void> look_at_version() {
    for (const Shard& shard : version_.shards())
      most_ = strictest(most_, mode_of_copy(shard.archive->file()));
    if (!version_.has_index()) return {};
    const auto index = version_.files().open(version_.directory() / kVersionIndex, Access::ReadOnly);
    RETURN_IF_ERROR(index);
    most_ = strictest(most_, mode_of_copy(**index));
    return {};
  }
  /// Returns what the copy of an open file of the version may allow.
  [[nodiscard]] NewFileMode most_of(const File& source) const {
    return present_ ? NewFileMode() : strictest(most_, mode_of_copy(source));
  }
  /// Returns the mode of a file that replaces no other one, before the umask and before settle(). The version
  /// limits it if there is no model yet.
  [[nodiscard]] mode_t first_mode() const { return present_ ? 0600 : 0666; }
  /// Settles a file. A file that takes its access from no other file gets the access of the model.
  [[nodiscard]] Result<void> settle(NewFile& file) const {
    if (!present_) return file.settle();
    return file.settle([&](File& made) -> Result<void> {
      auto given = give_access(storage_, made, *present_);
      return given ? Result<void>() : pass_on(std::move(given));
    });
  }

  /// Returns the version's index, with the archives' new names.
  [[nodiscard]] Result<std::string> index_text() const {
    std::map<std::string_view, std::string> shard_of;
    std::uint64_t total_bytes = 0;
    for (const PublishedTensor& tensor : version_.tensors()) {
      const std::string name = version_.shards()[tensor.shard].path.filename();
      shard_of.emplace(tensor.name, plan_.archives.at(name));
      total_bytes += tensor.file_range.size_bytes;
    }
    if (!version_.has_index()) {
      tools::Json document;
      document["metadata"] = {{"total_size", total_bytes}};
      tools::Json& names = document["weight_map"] = tools::Json::object();
      for (auto& [tensor, name] : shard_of) names[std::string(tensor)] = std::move(name);
      std::ostringstream text;
      tools::write_json(document, text);
      return std::move(text).str();
    }
    auto file = version_.files().open(version_.directory() / kVersionIndex, Access::ReadOnly);
    RETURN_IF_ERROR(file);
    auto text = read_text(**file);
    if (text && XXH3_64bits(text->data(), text->size()) != version_.index_hash())
      return unfinished(version_.directory() / kVersionIndex, kChangedMeanwhile);
    const bool is_same =
        std::ranges::all_of(plan_.archives, [](const auto& entry) { return entry.first == entry.second; });
    return !text || is_same ? text : rewrite_model_index(*text, shard_of, total_bytes);
  }

  const PublishedVersion& version_;
  SyncState& state_;
  Storage& storage_;
  const std::filesystem::path directory_;
  SeedingPlan plan_;
  Work& work_;
  std::optional<FileStatus> present_;  // nothing: there is no model yet
  NewFileMode most_;                   // of new files, without a present model
};

}  // namespace

Result<void> seed_model(const std::filesystem::path& model, const PublishedVersion& version, SyncState& state,
                        Work& work) {
  auto plan = plan_seeding(model, version, state);
  RETURN_IF_ERROR(plan);
  return Seeding(version, state, std::move(*plan), work).run();
}

}  // namespace stfs::sync
