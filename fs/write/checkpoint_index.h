// The index of a checkpoint that a program saves in several files, `model.safetensors.index.json`. The files
// were written before, and are kept (checkpoint.h). The close of the index commits all of them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "core/base/error.h"
#include "fs/write/new_content.h"

namespace stfs {

/// Its owner serializes the calls.
class CheckpointIndex final : public NewContent {
 public:
  [[nodiscard]] std::string label() const override { return "the index of the checkpoint"; }
  /// EFBIG: longer than any index.
  Result<void> write(std::span<const std::byte> from, std::uint64_t offset) override;
  Result<void> resize(std::uint64_t size_bytes) override;
  Result<void> read(std::span<std::byte> to, std::uint64_t offset) const override;
  [[nodiscard]] std::uint64_t size_bytes() const override { return text_.size(); }
  [[nodiscard]] bool is_dirty() const override { return !text_.empty() && !is_committed_; }
  /// EINVAL: it is no index.
  [[nodiscard]] Result<void> check() const override;
  void note_committed() override { is_committed_ = true; }
  void forget() override { text_.clear(); }

  [[nodiscard]] const std::string& text() const { return text_; }

 private:
  std::string text_;
  bool is_committed_ = false;
};

}  // namespace stfs
