#include "core/commit/transaction.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <string>
#include <system_error>
#include <utility>

#include "core/base/mutex.h"
#include "core/commit/commit_locks.h"
#include "core/commit/commit_protocol.h"
#include "core/journal/byte_patch.h"
#include "core/journal/file_replacement.h"
#include "core/storage/trusted_links.h"

namespace stfs {

Result<Staging*> Transaction::stage(TensorId tensor) {
  return guard_memory([&] { return begin_stage(tensor); });
}

Result<Staging*> Transaction::begin_stage(TensorId tensor) {
  // An edit may have deleted the tensor after its writer has opened it.
  if (!version_->ids.position(tensor)) {
    return fail(ErrorCode::ArchiveChanged, ESTALE,
                fmt::format("{}: the tensor was deleted", archive_.path().string()));
  }
  RETURN_IF_ERROR(archive_.open_for_writing());
  if (!journal_) {
    const bool is_kept = archive_.lane_journal().is_ready();
    auto journal = Journal::create(archive_.storage(), archive_.real_path(), archive_.file(),
                                   is_kept ? Journal::Place::Memory : Journal::Place::Disk);
    RETURN_IF_ERROR(journal);
    journal_ = std::move(*journal);
  }
  const auto found = stages_.find(tensor);
  if (found != stages_.end()) return found->second.get();
  auto stage = std::make_unique<Staging>(*journal_, version_->file_range(tensor));
  return stages_.emplace(tensor, std::move(stage)).first->second.get();
}

Result<void> Transaction::edit(ArchiveEdit edit, bool uses_locks) {
  return guard_memory([&] { return begin_edit(std::move(edit), uses_locks); });
}

Result<void> Transaction::edit(ArchiveEdit edit, EditLayout layout) {
  return guard_memory([&]() -> Result<void> {
    RETURN_IF_ERROR(archive_.open_for_writing());
    return begin_edit(std::move(edit), std::move(layout));
  });
}

Result<void> Transaction::begin_edit(ArchiveEdit edit, bool uses_locks) {
  RETURN_IF_ERROR(archive_.open_for_writing());
  auto layout = lay_out(*version_, edit, uses_locks && archive_.has_other_readers());
  if (!layout) return tl::unexpected(std::move(layout).error().within(archive_.path().string()));
  return begin_edit(std::move(edit), std::move(*layout));
}

Result<void> Transaction::begin_edit(ArchiveEdit edit, EditLayout layout) {
  auto journal = Journal::create(archive_.storage(), archive_.real_path(), archive_.file());
  RETURN_IF_ERROR(journal);
  journal_ = std::move(*journal);
  auto pending = std::make_unique<PendingEdit>();
  pending->edit = std::move(edit);
  pending->layout = std::make_shared<EditLayout>(std::move(layout));
  const std::string& header = pending->layout->header;
  pending->header = std::make_unique<Staging>(*journal_, ByteRange{0, header.size()});
  RETURN_IF_ERROR(pending->header->write(std::as_bytes(std::span(header)), 0));
  for (const EditLayout::Placed& placed : pending->layout->placed) {
    auto stage = std::make_unique<Staging>(*journal_, placed.file_range);
    if (placed.moved_from) {
      stage->expect_all();
    } else
      RETURN_IF_ERROR(stage->resize(0));
    pending->placed.push_back(std::move(stage));
  }
  edit_ = std::move(pending);
  return {};
}

Result<void> Transaction::replace_index(const std::filesystem::path& path, std::string_view before,
                                        std::string_view text) {
  return guard_memory([&]() -> Result<void> {
    const std::filesystem::path real_path = stfs::real_path(path);
    if (real_path.parent_path() != archive_.real_path().parent_path()) {
      return fail(ErrorCode::InvalidArgument, EOPNOTSUPP,
                  fmt::format("{} and {} lie in different directories: one transaction cannot change both",
                              real_path.string(), archive_.real_path().string()));
    }
    // A rename would replace a read-only index also, and its owner does not want that.
    RETURN_IF_ERROR(archive_.storage().check_writable(real_path));
    return replace_file(real_path.filename().string(), XXH3_64bits(before.data(), before.size()), text);
  });
}

Result<void> Transaction::replace_file(std::string name, std::uint64_t old_hash, std::string_view text) {
  const std::uint64_t place = journal_->allocate(text.size());
  RETURN_IF_ERROR(journal_->write(std::as_bytes(std::span(text)), place));
  index_ = {.name = std::move(name),
            .in_journal = {place, text.size()},
            .new_hash = XXH3_64bits(text.data(), text.size()),
            .old_hash = old_hash};
  return {};
}

Result<void> Transaction::begin_patches(std::span<const TensorId> tensors, const CommitOptions& options) {
  return guard_memory([&]() -> Result<void> {
    RETURN_IF_ERROR(archive_.open_for_writing());
    RETURN_IF_ERROR(archive_.resume_writing());
    RETURN_IF_ERROR(archive_.check_writable());
    auto journal = Journal::create(archive_.storage(), archive_.real_path(), archive_.file());
    RETURN_IF_ERROR(journal);
    journal_ = std::move(*journal);
    auto pending = std::make_unique<PendingPatches>();
    std::vector<ByteRange> ranges;
    const std::uint64_t data_offset = version_->data_offset();
    if (const std::uint64_t end = version_->stamp.size_bytes; end > data_offset)
      ranges.push_back({data_offset, end - data_offset});
    auto locks = lock_for_commit(archive_, ranges, options);
    RETURN_IF_ERROR(locks);
    pending->locks = std::move(*locks);
    RETURN_IF_ERROR(check_archive(archive_, options));
    pending->tensors.assign(tensors.begin(), tensors.end());
    patches_ = std::move(pending);
    return check_places();
  });
}

Result<void> Transaction::patch(std::uint64_t offset, std::span<const std::byte> before,
                                std::span<const std::byte> after, Patches& patches) {
  // The size is small enough for one read of a patch to stay in the L2 cache.
  constexpr std::size_t kPieceBytes = 1 << 20;
  static_assert(kPieceBytes <= kMostPatchedBytes);
  return guard_memory([&]() -> Result<void> {
    while (!before.empty()) {
      const std::size_t size = std::min(kPieceBytes, before.size());
      std::vector<std::byte>& scratch = patches.scratch;
      if (encode_patch({offset, size}, before.first(size), after.first(size), scratch)) {
        const std::uint64_t place = journal_->allocate(scratch.size());
        RETURN_IF_ERROR(journal_->write(scratch, place));
        patches.ranges.push_back({.type = OperationType::PatchBytes,
                                  .archive = {offset, size},
                                  .journal_offset = place,
                                  .new_hashes = {},
                                  .old_hashes = {},
                                  .patch_size_bytes = scratch.size(),
                                  .patch_hash = XXH3_64bits(scratch.data(), scratch.size())});
      }
      offset += size;
      before = before.subspan(size);
      after = after.subspan(size);
    }
    return {};
  });
}

Result<void> Transaction::keep_patches(Patches& patches) {
  return guard_memory([&]() -> Result<void> {
    const MutexLock lock(patches_->mutex);
    patches_->ranges.insert(patches_->ranges.end(), patches.ranges.begin(), patches.ranges.end());
    patches.ranges.clear();
    return {};
  });
}

bool Transaction::has_patches() const {
  return patches_ && !patches_->ranges.empty();
}

Result<void> Transaction::replace_sync_state(std::string_view text) {
  if (!has_patches()) return {};
  return guard_memory([&]() -> Result<void> {
    auto old_hash = hash_of_index(archive_.storage(), archive_.real_path().parent_path() / kSyncStateName);
    RETURN_IF_ERROR(old_hash);
    return replace_file(std::string(kSyncStateName), *old_hash, text);
  });
}

Staging* Transaction::stage_new(std::uint32_t tensor) const {
  if (!edit_) return nullptr;
  for (std::size_t at = 0; at < edit_->placed.size(); ++at) {
    const EditLayout::Placed& placed = edit_->layout->placed[at];
    if (placed.tensor == tensor && !placed.moved_from) return edit_->placed[at].get();
  }
  return nullptr;
}

void Transaction::clear() {
  stages_.clear();
  edit_.reset();
  patches_.reset();
  index_.reset();
}

void Transaction::drop(TensorId tensor) {
  stages_.erase(tensor);
  // An empty journal is no loss. A journal that a failed sync has spoiled must not outlive its stages.
  if (stages_.empty()) journal_.reset();
}

bool Transaction::is_dirty() const {
  return edit_ || has_patches() ||
         std::ranges::any_of(stages_, [](const auto& entry) { return entry.second->is_dirty(); });
}

Result<void> Transaction::commit(const CommitOptions& options, const LockOf& lock_of) {
  return guard_memory([&] {
    CommitProtocol protocol;
    protocol.add(*this, options, lock_of);
    return protocol.commit();
  });
}

Result<void> Transaction::check_places() const {
  const auto now = archive_.version();
  if (now->header == version_->header) return {};
  if (edit_ || patches_) {
    return fail(ErrorCode::ArchiveChanged, ESTALE,
                archive_.path().string() + ": another edit came between the plan and the commit of this one");
  }
  for (const auto& [id, stage] : stages_) {
    const bool is_there = now->ids.position(id).has_value();
    if (is_there && now->file_range(id) == stage->target()) continue;
    return fail(ErrorCode::ArchiveChanged, ESTALE,
                fmt::format("tensor \"{}\": {} since its new bytes were staged", version_->tensor(id).name,
                            is_there ? "was moved in the archive" : "was deleted"));
  }
  return {};
}

Result<void> Transaction::check_sizes() const {
  for (const auto& [id, stage] : stages_) {
    if (stage->is_whole()) continue;
    const Tensor tensor = version_->tensor(id);
    return fail(
        ErrorCode::WrongSize, EINVAL,
        fmt::format("tensor \"{}\": {} bytes were written, {} {} needs {}", tensor.name, stage->size_bytes(),
                    name_of(tensor.dtype), shape_text(tensor.shape), tensor.data.size_bytes));
  }
  if (!edit_) return {};
  for (std::size_t at = 0; at < edit_->placed.size(); ++at) {
    const Staging& stage = *edit_->placed[at];
    if (stage.is_whole()) continue;
    const EditedTensor& tensor = edit_->edit.tensors[edit_->layout->placed[at].tensor];
    return fail(
        ErrorCode::WrongSize, EINVAL,
        fmt::format("tensor \"{}\": {} bytes were written, {} {} needs {}", tensor.name, stage.size_bytes(),
                    name_of(tensor.dtype), shape_text(tensor.shape), stage.target().size_bytes));
  }
  return {};
}

}  // namespace stfs
