// A change of tensors as verbs make it: what they stage, show and commit.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/reader_writer_lock.h"
#include "core/model/transaction_group.h"
#include "tools/cli/command_line.h"
#include "tools/cli/interrupt.h"
#include "tools/cli/progress.h"
#include "tools/cli/verb.h"

namespace stfs::tools {

struct ChangeOptions {
  std::string durability = "power";
  bool has_no_locks = false;
  std::uint32_t wait_s = 10;
};

/// Declares --durability, --nolock and --wait.
void add_change_options(CommandLine& line, ChangeOptions& options);

/// One transaction, over all shards of a model. Before its commit point an interrupt ends it and leaves the
/// model as it was; one that comes later waits until the change is complete and this object gone, so that the
/// verb can say so.
class Change {
 public:
  /// @param total_bytes  what will be staged, for the progress.
  Change(Streams& streams, std::string_view verb, const Model& model, const ChangeOptions& options,
         std::uint64_t total_bytes);

  /// Bytes of the new content, at most kPieceBytes and in ascending order: the span is valid until the
  /// next call.
  using ReadPiece = std::function<Result<std::span<const std::byte>>(ByteRange piece)>;
  static constexpr std::uint64_t kPieceBytes = 1U << 20U;

  /// Copies a tensor's whole new content, piece by piece.
  Result<void> stage(std::uint32_t tensor, const ReadPiece& read_piece);
  /// All that is staged, or nothing.
  Result<void> commit();

 private:
  Streams& streams_;
  std::string verb_;
  const Model& model_;
  CommitOptions options_;
  std::uint64_t total_bytes_;
  TransactionGroup transaction_;
  ReaderWriterLock lock_;                // nobody else reads this model
  std::optional<InterruptGuard> guard_;  // outlives progress_, which writes
  std::optional<Progress> progress_;
};

/// Says what recovery did beside the archives of a model that was opened for writing: journals that were
/// applied, and journals that can't be used.
void report_recovered(Streams& streams, std::string_view verb, const Model& model);

}  // namespace stfs::tools
