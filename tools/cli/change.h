// A change of a model by a verb: stages the new content, shows progress, commits, and reports.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/model/model_change.h"
#include "tools/cli/change_options.h"
#include "tools/cli/gaps.h"
#include "tools/cli/interrupt.h"
#include "tools/cli/progress.h"
#include "tools/cli/verb.h"
#include "tools/text/json_document.h"

namespace stfs::tools {

/// Describes what a change has done, or would do.
struct ChangeReport {
  std::string what;                  // for print_result()
  Json members = Json::object();     // more members of Change::json()
  std::vector<std::string> names{};  // lines of a dry run
};

/// The order of calls: the changes of what(), then carry_out(), then the report. An interrupt before the
/// commit point leaves the model unchanged: EINTR, or the end of the process. A later interrupt waits until
/// this object is destroyed, so that the verb can report the change.
class Change {
 public:
  Change(Streams& streams, std::unique_ptr<Model> model, EditOptions options)
      : streams_(streams), options_(std::move(options)), model_(std::move(model)), what_(*model_) {}

  [[nodiscard]] const Model& model() const { return *model_; }
  [[nodiscard]] const ModelChange& what() const { return what_; }
  ModelChange& what() { return what_; }

  /// Writes the new bytes, by calls of write().
  using Fill = std::function<Result<void>()>;
  /// Makes the change. Then closes the gaps that an edit leaves, unless --keep-space was given. With
  /// --dry-run only plans the change.
  /// @param new_bytes  the number of bytes that `fill` will write, for the progress line.
  Result<void> carry_out(
      std::uint64_t new_bytes = 0, const Fill& fill = [] { return Result<void>(); });

  /// Returns bytes of the new content. The pieces come in ascending order and have at most kPieceBytes. The
  /// span is valid until the next call.
  using ReadPiece = std::function<Result<std::span<const std::byte>>(ByteRange piece)>;
  /// Stages a tensor's whole new content, piece by piece.
  Result<void> write(std::string_view name, const ReadPiece& read_piece);
  /// Does the same with a tensor of another model, which has the tensor's name and size.
  Result<void> write(const Model& from, std::uint32_t position);

  /// Prints a report in the form that the options choose. @return the exit code.
  [[nodiscard]] int report(const ChangeReport& report) const;
  /// Prints the change that was made, or would be made, and the number of bytes that had to move for it.
  void print_result(std::string_view what) const;
  /// Returns a document with "path", "changed", "free_bytes", "moved_bytes" and "filler_bytes".
  [[nodiscard]] Json json() const;

 private:
  static constexpr std::uint64_t kPieceBytes = 1U << 20U;
  Result<void> commit(std::uint64_t left_bytes);

  Streams& streams_;
  const EditOptions options_;
  // Destroyed after the staged content and the progress line, because a signal may then end the process.
  std::optional<InterruptGuard> guard_;
  const std::unique_ptr<Model> model_;
  ModelChange what_;
  std::optional<Progress> progress_;
  LeftSpace left_{};  // after carry_out()
};

/// Opens a whole model for a change, and reports its problems. Null: the model can't be edited, and the
/// reason was reported.
std::unique_ptr<Change> open_for_edit(const std::string& named, const EditOptions& options, Streams& streams);

/// Reports "NAME: no tensor matches; did you mean ...?" for globs of the command line that match no tensor.
/// @return kFailed.
int report_unmatched(const std::string& target, std::span<const std::string> globs, const Model& model,
                     Streams& streams);

}  // namespace stfs::tools
