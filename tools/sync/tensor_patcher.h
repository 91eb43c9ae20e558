// Makes the patches of one tensor after the other, from its old bytes and a published version.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/base/work.h"
#include "core/model/model.h"
#include "core/model/transaction_group.h"
#include "tools/sync/diff_decoder.h"
#include "tools/sync/published_version.h"

namespace stfs::sync {

/// Used by one thread, for any number of tensors: its memory is kept from one to the next.
class TensorPatcher {
 public:
  /// All must outlive the patcher.
  /// @param work  counts the bytes of the model that are read.
  /// @param transaction  has begun patches of the tensors. Null: checks only.
  TensorPatcher(const Model& model, const PublishedVersion& version, TransactionGroup* transaction,
                Work& work)
      : model_(model), version_(version), transaction_(transaction), work_(work) {}

  enum class Outcome : std::uint8_t {
    Changed,  // the transaction has patches of the tensor
    Same,     // the present bytes are the new ones
  };
  /// Stages a tensor's new bytes, once they have their checksum.
  /// @param position  of the tensor in the model.
  Result<Outcome> patch(const PublishedTensor& tensor, std::uint32_t position);

 private:
  /// Turns the next piece of old bytes into new ones. Returns whether they differ.
  Result<bool> make_new(std::span<std::byte> piece, std::uint64_t offset);
  Result<void> stage(std::uint32_t position, ByteRange place, bool& has_changed);
  /// Whether the tensor's present bytes have the checksum.
  Result<bool> is_done(const PublishedTensor& tensor, std::uint32_t position);

  const Model& model_;
  const PublishedVersion& version_;
  TransactionGroup* const transaction_;
  Work& work_;
  DiffDecoder decoder_;
  const PublishedTensor* tensor_ = nullptr;
  std::optional<ChecksumStream> checksum_;
  std::vector<std::byte> before_;
  std::vector<std::byte> after_;
  Transaction::Patches patches_;
};

}  // namespace stfs::sync
