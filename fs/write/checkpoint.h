// A whole model that a program writes to `.safetensors/archive.safetensors`, as it would save a checkpoint.
//
// The bytes are compared with the model as they arrive. Blocks of a tensor that differ are staged for its
// place; tensors that the model does not have so are kept in a file without a name beside the archive. So a
// checkpoint may be larger than the memory and than the free disk space. It must come from its beginning to
// its end, as safetensors writes it.
//
// After training nearly all bytes differ. In place they are written twice, staged and applied, and tensors of
// other sizes leave fillers. Then the archive is rewritten: the checkpoint goes on in a new file without a
// name, as it comes. Its commit puts this file in the archive's place (core/commit/archive_replacement.h).
// Only the header gets room for later edits, and the data begin at a page.
//
//   comparing -> rewriting   at the header, if more than half of the bytes belong to tensors that the model
//                            does not have in this form; later, when rewriting is cheaper by this count
//
// Rewriting costs n bytes, the size of the data. Going on in place costs d + 2 r (n - p) bytes, after p bytes
// of which d differ: the staged bytes are written once more, and a part r of the rest is written twice. The
// count takes d / p for r. It begins when d has reached an eighth of n: the first tensor is often the output
// head, which may be all that a training changes. The bytes that have come until then are copied to the new
// file, within one write.
//
// The checkpoint stays with comparing if it has fillers of its own, or if its owner or the store has a reason
// against a new file: there is not enough space for it, say. The log tells the reason.
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
#include "fs/base/versioned.h"
#include "fs/read/tensor_reader.h"
#include "fs/read/tensor_states.h"
#include "fs/write/archive_stream.h"
#include "fs/write/new_content.h"

namespace stfs {

/// Its owner serializes the calls.
class Checkpoint final : public NewContent {
 public:
  /// Fails if the archive may not be rewritten now, with the reason for the log.
  using CheckRewriting = std::function<Result<void>(const Checkpoint&)>;
  /// All must outlive this object.
  /// @param beside         lies in the directory for the bytes. It is the archive that may be rewritten.
  /// @param waits_for_name  the file has another name. It counts when it is renamed to the archive's.
  Checkpoint(const Versioned<Model>& model, const TensorReader& reader, const TensorStates& states,
             Archive& beside, bool waits_for_name, CheckRewriting check_rewriting);

  Checkpoint* checkpoint() override { return this; }
  [[nodiscard]] std::string label() const override { return "the checkpoint"; }
  /// EINVAL: it is no archive, or does not come in order.
  Result<void> write(std::span<const std::byte> from, std::uint64_t offset) override;
  Result<void> resize(std::uint64_t size_bytes) override;
  /// EOPNOTSUPP: the bytes are not all kept.
  Result<void> read(std::span<std::byte> to, std::uint64_t offset) const override;
  [[nodiscard]] std::uint64_t size_bytes() const override { return stream_.size_bytes(); }
  [[nodiscard]] bool is_dirty() const override { return size_bytes() != 0 && !is_committed_ && !is_kept_; }
  [[nodiscard]] Result<void> check() const override { return stream_.check(); }
  void note_committed() override;
  [[nodiscard]] bool is_committed() const { return is_committed_; }
  void forget() override;

  [[nodiscard]] bool waits_for_name() const override { return waits_for_name_; }

  /// A tensor of the checkpoint.
  struct Saved {
    std::optional<TensorId> same;  // the tensor of the model with its name, dtype and shape
    std::uint64_t generation = 0;  // that tensor's, when its bytes were compared
    Staging* stage = nullptr;      // its bytes that differ; null: none do
  };
  // After all bytes have come:
  [[nodiscard]] const Header& header() const { return *stream_.header(); }
  /// By position in the header.
  [[nodiscard]] const Saved& saved(std::uint32_t position) const { return saved_[position]; }
  /// Whether a tensor is not as in the model, as far as that was compared.
  [[nodiscard]] bool is_changed(std::uint32_t position) const {
    return rewritten_ || !saved_[position].same || saved_[position].stage != nullptr;
  }
  /// The new file, while the archive is rewritten: it holds all bytes. Null: the bytes are compared.
  [[nodiscard]] JournalFile* rewritten() { return rewritten_ ? &*rewritten_ : nullptr; }
  /// Call before replace_archive().
  Result<void> sync_rewritten(Durability durability);
  /// The stages of all that only have other bytes. Null: there are none.
  [[nodiscard]] TransactionGroup* group() const { return group_.get(); }
  /// Stages all bytes of a tensor that is changed for another place.
  Result<void> copy_to(Staging& to, std::uint32_t position) const;

 private:
  Result<void> begin_data(const Header& header, std::string_view text);
  Result<void> take_data(std::span<const std::byte> from, std::uint64_t at);
  Result<void> take_piece(std::uint32_t position, std::span<const std::byte> bytes, std::uint64_t offset);
  Result<void> keep_new(std::uint32_t position, std::span<const std::byte> bytes, std::uint64_t offset);
  Result<void> stage_changed(std::uint32_t position, std::span<const std::byte> bytes, std::uint64_t offset);
  /// Reads bytes of a tensor that have come and were compared.
  /// @param begin  of the tensor in the data.
  Result<void> read_saved(std::uint32_t position, std::span<std::byte> to, std::uint64_t begin,
                          std::uint64_t offset) const;
  /// Begins to rewrite the archive if that is cheaper.
  /// @param came_bytes  of the data.
  void consider_rewriting(const Header& header, std::uint64_t came_bytes);
  Result<void> begin_rewriting(const Header& header, std::uint64_t came_bytes);
  /// Writes to the new file what has come.
  Result<void> bring_over(File& to, const Header& header, std::uint64_t came_bytes) const;

  const Versioned<Model>& model_;
  const TensorReader& reader_;
  const TensorStates& states_;
  Archive& beside_;
  const bool waits_for_name_;
  ArchiveStream stream_;
  std::vector<Saved> saved_;
  std::uint32_t next_ = 0;  // the first tensor whose bytes have not all come
  std::unique_ptr<TransactionGroup> group_;
  const uid_t user_ = requesting_user();  // who has begun it
  UserCounts::Share share_;               // of file_
  std::unique_ptr<File> file_;            // bytes of new tensors, at their place in the data
  std::vector<std::byte> buffer_;
  const CheckRewriting check_rewriting_;
  bool may_rewrite_ = true;
  std::string head_;                 // the archive's bytes before the data, while it may be rewritten
  std::uint64_t head_bytes_ = 0;     // their number
  std::uint64_t data_bytes_ = 0;     // of all tensors
  std::uint64_t unknown_bytes_ = 0;  // of tensors that the model does not have in this form
  std::uint64_t differing_bytes_ = 0;
  std::optional<JournalFile> rewritten_;
  Writeback writeback_;  // of rewritten_
  bool is_committed_ = false;
};

}  // namespace stfs
