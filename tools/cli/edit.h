// Edits a model's structure for the verbs that do: opens it, tells what will change, and commits.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/model/model_edit.h"
#include "tools/cli/change.h"
#include "tools/cli/command_line.h"
#include "tools/cli/gaps.h"
#include "tools/cli/verb.h"
#include "tools/text/json_document.h"

namespace stfs::tools {

struct EditOptions {
  ChangeOptions change;
  bool is_dry_run = false;
  bool keeps_space = false;
  bool json = false;
};
/// Declares --keep-space: the option of all verbs that may leave a gap.
void add_keep_space(CommandLine& line, bool& keeps_space);
/// Declares --dry-run, --nolock, --wait and --json. An edit is always as durable as can be.
void add_edit_options(CommandLine& line, EditOptions& options);

/// A model that is open for an edit. Move-only.
struct EditTarget {
  std::unique_ptr<Model> model;
  ModelEdit edit;
  LeftSpace left{};  // after carry_out()
};
/// Opens the target, and reports what is wrong with it. Nothing: it can't be edited, as was reported.
std::optional<EditTarget> open_for_edit(const std::string& named, Streams& streams);

/// Called with the number of bytes of each piece that was staged. EINTR: an interrupt has come.
using Advance = std::function<Result<void>(std::uint64_t bytes)>;
/// Stages the bytes of new tensors.
using Fill = std::function<Result<void>(const Advance& advance)>;
/// Begins the edit, fills in the bytes of new tensors, and commits. Then closes gaps, unless --keep-space was
/// given. With --dry-run only plans it. An interrupt before the commit point leaves the model unchanged:
/// EINTR, or the end of the process.
/// @param new_bytes  that `fill` will stage.
/// @param fill  empty: there are none.
Result<void> carry_out(EditTarget& target, const EditOptions& options, std::uint64_t new_bytes,
                       const Fill& fill, Streams& streams);

/// What an edit has done, or would do.
struct EditReport {
  std::string what;                  // for print_result()
  Json members = Json::object();     // of the JSON document, besides those of json_of_edit()
  std::vector<std::string> names{};  // lines of a dry run
};
/// Prints a report as the options say. @return the exit code.
int report_edit(const EditTarget& target, const EditOptions& options, const EditReport& report,
                Streams& streams);
/// Prints what was done, or would have been, and how many bytes had to move for it.
void print_result(std::ostream& out, const EditTarget& target, const EditOptions& options,
                  std::string_view what);
/// A document with "path", "changed", "free_bytes", "moved_bytes" and "filler_bytes".
Json json_of_edit(const EditTarget& target, const EditOptions& options);

/// "NAME: no tensor matches; did you mean ...?", for globs of the command line that match nothing.
/// @return kFailed.
int report_unmatched(const std::string& target, std::span<const std::string> globs, const Model& model,
                     Streams& streams);

}  // namespace stfs::tools
