// Changes tensors for verbs: stages the new content, shows progress, and commits.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
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
  std::uint64_t wait_s = 10;
};

/// The same for commits.
CommitOptions commit_options_of(const ChangeOptions& options);

/// Runs an attempt to open and change a model, and reports its failure. If another program has edited the
/// model since the attempt opened it, runs it again, until options.wait_s ends. Such an attempt has printed
/// nothing and changed nothing.
/// @param attempt  the exit status; a failure that was not reported.
int attempt_beside_others(const ChangeOptions& options, Streams& streams,
                          const std::function<Result<int>()>& attempt);

/// Declares --durability, --nolock and --wait.
void add_change_options(CommandLine& line, ChangeOptions& options);

/// One transaction over all shards of a model. An interrupt before the commit point ends the transaction and
/// leaves the model unchanged. A later interrupt waits until the change is complete and this object is
/// destroyed, so that the verb can report the change.
class Change {
 public:
  /// @param total_bytes  the bytes that will be staged, for the progress line.
  Change(Streams& streams, const Model& model, const ChangeOptions& options, std::uint64_t total_bytes);

  /// Returns bytes of the new content. The pieces come in ascending order and have at most kPieceBytes. The
  /// span is valid until the next call.
  using ReadPiece = std::function<Result<std::span<const std::byte>>(ByteRange piece)>;
  static constexpr std::uint64_t kPieceBytes = 1U << 20U;

  /// Stages a tensor's whole new content, piece by piece.
  Result<void> stage(std::uint32_t tensor, const ReadPiece& read_piece);
  /// The same from a tensor of another model, of the same size.
  Result<void> stage(std::uint32_t tensor, const Model& from, std::uint32_t position);
  /// Commits everything that is staged, or nothing.
  Result<void> commit();

 private:
  /// Commits tensors of the base of a delta: the delta gets them.
  Result<void> commit_copies(const TransactionGroup::OptionsOf& options_of);

  Streams& streams_;
  const Model& model_;
  CommitOptions options_;
  std::uint64_t total_bytes_;
  TransactionGroup transaction_;
  std::map<std::uint32_t, Staging*> staged_;  // by the tensor's position
  ReaderWriterLock lock_;                     // for commit(); no other thread reads this model
  std::optional<InterruptGuard>
      guard_;  // declared before progress_ and destroyed after it, as progress_ writes
  std::optional<Progress> progress_;
};

/// Reports what recovery did beside the archives of a model that was opened for writing: the journals that
/// were applied, and the journals that cannot be used.
void report_recovered(Streams& streams, const Model& model);

}  // namespace stfs::tools
