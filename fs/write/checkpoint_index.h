// The index of a checkpoint that a program saves in several files, `model.safetensors.index.json`. The
// program has written the files before the index, and they are kept (checkpoint.h). The close of the index
// commits all of them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/base/error.h"
#include "fs/base/user_counts.h"
#include "fs/write/pending_bytes.h"

namespace stfs {

/// The owner serializes the calls.
class CheckpointIndex final : public PendingBytes {
 public:
  /// @param bytes  counts the text for the user who writes it. Must outlive this object.
  explicit CheckpointIndex(UserCounts& bytes) : bytes_(bytes) {}

  CheckpointIndex* checkpoint_index() override { return this; }
  [[nodiscard]] std::string label() const override { return "the index of the checkpoint"; }
  /// EFBIG if the text is longer than any index. EDQUOT if the user has too many bytes of such text.
  Result<void> write(std::span<const std::byte> from, std::uint64_t offset) override;
  Result<void> resize(std::uint64_t size_bytes) override;
  Result<void> read(std::span<std::byte> to, std::uint64_t offset,
                    const Staging::ReadBase& read_base) const override;
  [[nodiscard]] std::uint64_t size_bytes() const override { return text_.size(); }
  [[nodiscard]] bool is_dirty() const override { return !text_.empty() && !is_committed_; }
  /// EINVAL if the text is no index.
  [[nodiscard]] Result<void> check() const override;
  void note_committed() override { is_committed_ = true; }
  void drop() override;

  [[nodiscard]] const std::string& text() const { return text_; }

 private:
  /// Makes the text longer or shorter.
  Result<void> set_size(std::size_t size_bytes);

  UserCounts& bytes_;
  const uid_t user_ = requesting_user();  // the user who began it
  std::vector<UserCounts::Share> shares_;
  std::size_t counted_bytes_ = 0;  // in shares_
  std::string text_;
  bool is_committed_ = false;
};

}  // namespace stfs
