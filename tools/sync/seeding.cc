// Copies, then switches.
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
#include "tools/sync/file_switch.h"
#include "tools/sync/seeding_plan.h"
#include "tools/sync/version_name.h"
#include "tools/text/json_document.h"

namespace stfs::sync {
namespace {

constexpr std::uint64_t kCopiedBytes = 1 << 20;

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
    if (auto known = look_at_present(); !known) return known;
    if (auto noted = note_switch(storage_, state_.place(), plan_.files); !noted) return noted;
    if (auto made = make_files(); !made) {
      static_cast<void>(undo_switch(storage_, state_.place(), plan_.files));  // else the next receiver does
      return made;
    }
    if (auto taken = take_switch(storage_, state_.place(), plan_.files); !taken) return taken;
    return state_.read();
  }

 private:
  static Result<void> interrupted() {
    return fail(ErrorCode::System, EINTR, "interrupted: the model is not whole yet: pull again");
  }

  Result<void> make_files() const {
    work_.begin(copied_bytes());
    const FileSwitch& files = plan_.files;
    for (const auto& [theirs, ours] : plan_.archives) {
      const std::string& as = plan_.has_index ? ours : files.step.from;
      if (auto copied = copy_file(theirs, files.step.from, as, ours, &checked_archive(theirs)); !copied)
        return copied;
    }
    for (const FileSwitch::Move& move : files.after) {
      if (auto copied = copy_file(move.to, move.from, move.from, move.to); !copied) return copied;
    }
    if (plan_.has_index) {
      const auto text = index_text();
      if (!text) return tl::unexpected(text.error());
      if (auto written = write_text(*text, directory_ / files.step.from, directory_ / files.step.to);
          !written)
        return written;
    }
    work_.look();
    if (!work_.goes_on()) return interrupted();
    return write_text(state_.text_with(version_.version(), {}, files.step.to, plan_.brought),
                      next_sync_state(state_.place()), state_.place().state_file());
  }

  /// Of the files that make_files() copies, as far as they are known.
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

  /// The version's archive of that name, as it was checked.
  [[nodiscard]] const ArchiveVersion& checked_archive(const std::string& name) const {
    const auto has_name = [&](const Shard& shard) { return shard.path.filename() == name; };
    return *std::ranges::find_if(version_.shards(), has_name)->version;
  }

  /// Copies a file of the version and syncs it.
  /// @param as    its name when it is whole.
  /// @param over  the name that it gets at last; it takes the mode and attributes of a file of that name.
  /// @param checked  of an archive. A publisher may have exchanged or rewritten the file since: then no copy
  ///                 becomes the model.
  Result<void> copy_file(const std::string& name, const std::string& temporary, const std::string& as,
                         const std::string& over, const ArchiveVersion* checked = nullptr) const {
    auto source = version_.files().open(version_.directory() / name, Access::ReadOnly);
    if (!source) return pass_on(std::move(source));
    auto size_bytes = (*source)->size_bytes();
    if (!size_bytes) return pass_on(std::move(size_bytes));
    auto file = NewFile::create_as(directory_ / temporary, directory_ / over, first_mode(), storage_);
    if (!file) return pass_on(std::move(file));
    if (auto reserved = file->reserve(*size_bytes); !reserved) return reserved;
    std::string header;
    const std::uint64_t header_end = checked != nullptr ? checked->data_offset() : 0;
    std::vector<std::byte> buffer(static_cast<std::size_t>(std::min(kCopiedBytes, *size_bytes)));
    for (std::uint64_t at = 0; at < *size_bytes; at += buffer.size()) {
      const auto piece = std::span(buffer).first(
          static_cast<std::size_t>(std::min<std::uint64_t>(buffer.size(), *size_bytes - at)));
      if (auto read = (*source)->read(piece, at); !read) return read;
      header.append(
          reinterpret_cast<const char*>(piece.data()),
          static_cast<std::size_t>(std::min<std::uint64_t>(header_end - header.size(), piece.size())));
      if (auto appended = file->append(piece); !appended) return appended;
      if (!work_.advance(piece.size())) return interrupted();
    }
    if (checked != nullptr && (*size_bytes != checked->stamp.size_bytes || !has_header(header, *checked)))
      return unfinished(version_.directory() / name, kChangedMeanwhile);
    if (auto settled = settle(*file); !settled) return settled;
    return file->finish_unsynced(directory_ / as);
  }

  [[nodiscard]] Result<void> write_text(const std::string& text, const std::filesystem::path& temporary,
                                        const std::filesystem::path& over) const {
    // Nobody needs to write it in place: the next one takes its name.
    auto file = NewFile::create_as(temporary, over, first_mode() & 0644U, storage_);
    if (!file) return pass_on(std::move(file));
    if (auto appended = file->append(std::as_bytes(std::span(text))); !appended) return appended;
    if (auto settled = settle(*file); !settled) return settled;
    return file->finish_unsynced(temporary);
  }

  /// The access that all archives of the model give that is there. A link, and a file that another user may
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
  /// Of a file that replaces none, before the umask and before settle().
  [[nodiscard]] mode_t first_mode() const { return present_ ? 0600 : 0666; }
  /// Settles a file. One that takes its access from no other file gets that of the model.
  [[nodiscard]] Result<void> settle(NewFile& file) const {
    if (!present_) return file.settle();
    return file.settle([&](File& made) -> Result<void> {
      auto given = give_access(storage_, made, *present_);
      return given ? Result<void>() : pass_on(std::move(given));
    });
  }

  /// The version's index, with the archives' new names.
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
    if (!file) return pass_on(std::move(file));
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
  const SeedingPlan plan_;
  Work& work_;
  std::optional<FileStatus> present_;
};

}  // namespace

Result<void> seed_model(const std::filesystem::path& model, const PublishedVersion& version, SyncState& state,
                        Work& work) {
  auto plan = plan_seeding(model, version, state);
  if (!plan) return pass_on(std::move(plan));
  return Seeding(version, state, std::move(*plan), work).run();
}

}  // namespace stfs::sync
