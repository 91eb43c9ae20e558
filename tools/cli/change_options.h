// The options of verbs that change a model, and their attempts beside other programs that do.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "core/base/error.h"
#include "core/commit/commit_options.h"
#include "core/model/model.h"
#include "tools/cli/command_line.h"
#include "tools/cli/verb.h"

namespace stfs::tools {

struct ChangeOptions {
  std::string durability = "power";
  bool has_no_locks = false;
  std::uint64_t wait_s = 10;
};
/// Declares --durability, --nolock and --wait.
void add_change_options(CommandLine& line, ChangeOptions& options);
/// Returns the options for commits.
CommitOptions commit_options_of(const ChangeOptions& options);

/// Waits until no other process has the archive open, for two seconds or --wait at the most: the process of a
/// mount ends a moment after its unmount.
/// @return false: another process still has the archive open.
bool is_alone_soon(const Archive& archive, const ChangeOptions& options);

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

/// Runs an attempt to open and change a model, and reports its failure. If another program has edited the
/// model after the attempt opened it, runs the attempt again, until options.wait_s ends. The failed attempt
/// must have printed and changed nothing.
/// @param attempt  returns the exit status, or a failure that was not reported.
int attempt_beside_others(const ChangeOptions& options, Streams& streams,
                          const std::function<Result<int>()>& attempt);

/// Reports what recovery did beside the archives of a model that was opened for writing: the journals that
/// were applied, and the journals that cannot be used.
void report_recovered(Streams& streams, const Model& model);

}  // namespace stfs::tools
