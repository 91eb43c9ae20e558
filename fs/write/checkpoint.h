// A whole model that a program writes to `.safetensors/archive.safetensors`, in the form of a checkpoint.
//
// The bytes are compared with the model as they arrive. If blocks of a tensor differ, they are staged for the
// tensor's place. Tensors that the model does not have in this form are kept in a file without a name beside
// the archive. Therefore a checkpoint may be larger than the memory and than the free disk space. A program
// must write the checkpoint from its beginning to its end, as safetensors does.
//
// After a training, nearly all bytes differ. In-place changes then write these bytes twice, staged and
// applied, and tensors of other sizes leave fillers. In this case the archive is rewritten: the rest of the
// checkpoint is written to a new file without a name. The commit puts this file in the archive's place
// (core/commit/archive_replacement.h). Only the header gets room for later edits, and the data begin at a
// page.
//
//   comparing -> rewriting   at the header, if more than half of the bytes are of tensors that the model does
//                            not have in this form; later, when rewriting is cheaper by the count below
//
// Rewriting costs n bytes, the size of the data. Comparing further costs d + 2 r (n - p) bytes, after p bytes
// of which d differ: the staged bytes are written once more, and a part r of the rest is written twice. The
// estimate of r is d / p. The count begins when d has reached an eighth of n, because the first tensor is
// often the output head, and a training may change only this tensor. The bytes that have arrived until then
// are copied to the new file within one write.
//
// The checkpoint continues to compare if it has fillers, or if its owner or the store has a reason against a
// new file, for example too little space. The reason is logged.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/archive/archive.h"
#include "core/base/error.h"
#include "core/format/header.h"
#include "core/journal/journal_file.h"
#include "core/model/model.h"
#include "core/model/transaction_group.h"
#include "core/storage/writeback.h"
#include "fs/base/user_counts.h"
#include "fs/read/tensor_reader.h"
#include "fs/read/tensor_states.h"
#include "fs/tree/snapshot.h"
#include "fs/write/archive_stream.h"
#include "fs/write/pending_bytes.h"

namespace stfs {

/// Its owner serializes the calls.
class Checkpoint final : public PendingBytes {
 public:
  /// Fails if the archive may not be rewritten now, with the reason for the log.
  using CheckRewriting = std::function<Result<void>(const Checkpoint&)>;
  /// All arguments must outlive this object.
  /// @param beside         the archive that may be rewritten. The bytes are kept in its directory.
  /// @param waits_for_name  true if the file has another name than the archive, and is saved when it is
  ///                        renamed to the archive's name.
  /// @param header_bytes   counts the header for the user who writes it.
  Checkpoint(const Snapshots& snapshots, const TensorReader& reader, const TensorStates& states,
             Archive& beside, bool waits_for_name, UserCounts& header_bytes, CheckRewriting check_rewriting);

  Checkpoint* checkpoint() override { return this; }
  [[nodiscard]] std::string label() const override { return "the checkpoint"; }
  /// EINVAL if the bytes are no archive, or are not written in order.
  Result<void> write(std::span<const std::byte> from, std::uint64_t offset) override;
  Result<void> resize(std::uint64_t size_bytes) override;
  /// EOPNOTSUPP if not all bytes are kept.
  Result<void> read(std::span<std::byte> to, std::uint64_t offset,
                    const Staging::ReadBase& read_base) const override;
  [[nodiscard]] std::uint64_t size_bytes() const override { return stream_.size_bytes(); }
  [[nodiscard]] bool is_dirty() const override { return size_bytes() != 0 && !is_committed_ && !is_kept_; }
  [[nodiscard]] Result<void> check() const override { return stream_.check(); }
  void note_committed() override;
  /// True if a rename commits it, to a name that it can have.
  [[nodiscard]] bool waits_for_name() const { return waits_for_name_; }
  /// Keeps a whole checkpoint until a rename. The checkpoint is not dirty any more.
  void keep();
  [[nodiscard]] bool is_kept() const { return is_kept_; }
  [[nodiscard]] bool is_committed() const { return is_committed_; }
  void drop() override;

  /// A tensor of the checkpoint.
  struct Saved {
    std::optional<TensorId> same;  // the tensor of the model with its name, dtype and shape
    std::uint64_t generation = 0;  // of that tensor, when its bytes were compared
    Staging* stage = nullptr;      // the bytes that differ; null if none differ
  };
  // Valid after all bytes have arrived:
  [[nodiscard]] const Header& header() const { return *stream_.header(); }
  /// By position in the header.
  [[nodiscard]] const Saved& saved(std::uint32_t position) const { return saved_[position]; }
  /// True if a tensor differs from the model, as far as it was compared.
  [[nodiscard]] bool is_changed(std::uint32_t position) const {
    return rewritten_ || !saved_[position].same || saved_[position].stage != nullptr;
  }
  /// The new file while the archive is rewritten; it holds all bytes. Null while the bytes are compared.
  [[nodiscard]] JournalFile* rewritten() { return rewritten_ ? &*rewritten_ : nullptr; }
  /// Call before replace_archive().
  Result<void> sync_rewritten(Durability durability);
  /// The stages of all tensors that differ only in bytes. Null if no tensor does.
  [[nodiscard]] TransactionGroup* group() const { return group_.get(); }
  /// Stages all bytes of a changed tensor for another place.
  Result<void> copy_to(Staging& to, std::uint32_t position) const;

 private:
  Result<void> begin_data(const Header& header, std::string_view text);
  Result<void> take_data(std::span<const std::byte> from, std::uint64_t at);
  Result<void> take_piece(std::uint32_t position, std::span<const std::byte> bytes, std::uint64_t offset);
  Result<void> keep_new(std::uint32_t position, std::span<const std::byte> bytes, std::uint64_t offset);
  Result<void> stage_changed(std::uint32_t position, std::span<const std::byte> bytes, std::uint64_t offset);
  /// Reads bytes of a tensor that have arrived and were compared.
  /// @param begin  where the tensor begins in the data.
  Result<void> read_saved(std::uint32_t position, std::span<std::byte> to, std::uint64_t begin,
                          std::uint64_t offset) const;
  /// Begins to rewrite the archive if that is cheaper.
  /// @param came_bytes  the number of bytes of data that have arrived.
  void consider_rewriting(const Header& header, std::uint64_t came_bytes);
  Result<void> begin_rewriting(const Header& header, std::uint64_t came_bytes);
  /// Writes the bytes that have arrived to the new file.
  Result<void> bring_over(File& to, const Header& header, std::uint64_t came_bytes) const;

  const Snapshots& snapshots_;
  const TensorReader& reader_;
  const TensorStates& states_;
  Archive& beside_;
  const bool waits_for_name_;
  ArchiveStream stream_;
  std::vector<Saved> saved_;
  std::uint32_t next_ = 0;  // the first tensor whose bytes have not all arrived
  std::unique_ptr<TransactionGroup> group_;
  const uid_t user_ = requesting_user();  // the user who began it
  UserCounts& header_bytes_;
  UserCounts::Share header_share_;
  UserCounts::Share share_;     // of file_ or rewritten_
  std::unique_ptr<File> file_;  // bytes of new tensors, at their place in the data
  const CheckRewriting check_rewriting_;
  bool may_rewrite_ = true;
  std::string head_;                 // the bytes before the data, while the archive may be rewritten
  std::uint64_t head_bytes_ = 0;     // the bytes before the data in rewritten_
  std::uint64_t data_bytes_ = 0;     // of all tensors
  std::uint64_t unknown_bytes_ = 0;  // of tensors that the model does not have in this form
  std::uint64_t differing_bytes_ = 0;
  std::optional<JournalFile> rewritten_;
  Writeback writeback_;  // of rewritten_
  bool is_kept_ = false;
  bool is_committed_ = false;
};

}  // namespace stfs
