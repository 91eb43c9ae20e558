// A whole model that a program writes to `.safetensors/archive.safetensors`, as it would save a checkpoint.
//
// The bytes are compared with the model as they arrive. Blocks of a tensor that differ are staged for its
// place; tensors that the model does not have so are kept in a file without a name beside the archive. So a
// checkpoint may be larger than the memory and than the free disk space. It must come from its beginning to
// its end, as safetensors writes it.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/archive/archive.h"
#include "core/base/error.h"
#include "core/format/header.h"
#include "core/model/model.h"
#include "core/model/transaction_group.h"
#include "fs/base/versioned.h"
#include "fs/read/tensor_reader.h"
#include "fs/read/tensor_states.h"
#include "fs/write/archive_stream.h"
#include "fs/write/new_content.h"

namespace stfs {

/// Its owner serializes the calls.
class Checkpoint final : public NewContent {
 public:
  /// All must outlive this object.
  /// @param beside         lies in the directory for the bytes.
  /// @param waits_for_name  the file has another name. It counts when it is renamed to the archive's.
  Checkpoint(const Versioned<Model>& model, const TensorReader& reader, const TensorStates& states,
             Archive& beside, bool waits_for_name);

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
  void note_committed() override { is_committed_ = true; }
  [[nodiscard]] bool is_committed() const { return is_committed_; }
  void forget() override;

  [[nodiscard]] bool waits_for_name() const override { return waits_for_name_; }

  /// A tensor of the checkpoint.
  struct Saved {
    std::optional<TensorId> same;  // the tensor of the model with its name, dtype and shape
    std::uint64_t generation = 0;  // that tensor's, when its bytes were compared
    Staging* stage = nullptr;      // its bytes that differ; null: none do
    [[nodiscard]] bool is_changed() const { return !same || stage != nullptr; }
  };
  // After all bytes have come:
  [[nodiscard]] const Header& header() const { return *stream_.header(); }
  /// By position in the header.
  [[nodiscard]] const Saved& saved(std::uint32_t position) const { return saved_[position]; }
  /// The stages of all that only have other bytes. Null: there are none.
  [[nodiscard]] TransactionGroup* group() const { return group_.get(); }
  /// Stages all bytes of a tensor that is changed for another place.
  Result<void> copy_to(Staging& to, std::uint32_t position) const;

 private:
  Result<void> begin_data(const Header& header);
  Result<void> take_data(std::span<const std::byte> from, std::uint64_t at);
  Result<void> take_piece(std::uint32_t position, std::span<const std::byte> bytes, std::uint64_t offset);
  Result<void> keep_new(std::uint32_t position, std::span<const std::byte> bytes, std::uint64_t offset);
  Result<void> stage_changed(std::uint32_t position, std::span<const std::byte> bytes, std::uint64_t offset);

  const Versioned<Model>& model_;
  const TensorReader& reader_;
  const TensorStates& states_;
  Archive& beside_;
  const bool waits_for_name_;
  ArchiveStream stream_;
  std::vector<Saved> saved_;
  std::uint32_t next_ = 0;  // the first tensor whose bytes have not all come
  std::unique_ptr<TransactionGroup> group_;
  std::unique_ptr<File> file_;  // bytes of new tensors, at their place in the data
  std::vector<std::byte> buffer_;
  bool is_committed_ = false;
};

}  // namespace stfs
