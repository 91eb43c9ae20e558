// Writes the files of a repack plan: all of them, or none.
#pragma once

#include <cstdint>

#include "core/archive/archive_writer.h"
#include "core/base/error.h"
#include "core/model/model.h"
#include "core/storage/permissions.h"
#include "tools/cli/repack_plan.h"
#include "tools/cli/verb.h"

namespace stfs::tools {

struct RepackOutput {
  std::uint64_t alignment = NewArchiveOptions().alignment;
  std::uint64_t slack_bytes = NewArchiveOptions().slack_bytes;
  bool is_replacing = false;  // replace files that exist
  std::uint64_t threads = 1;  // for conversions
  NewFileMode most{};         // limits the mode of the new files, in addition to the model's files
};

/// Writes each archive, then the index if the plan has shards. No file gets its name before the bytes of all
/// archives are written, and the index gets its name last. After a failure no new file is left, except files
/// that have replaced others. (A kill between two names leaves shards without an index.) Fails if the model's
/// files change during the call, and with EINTR if interrupted() (interrupt.h). A user who may not read all
/// files of the model may not read a new file.
/// @return the number of elements that their new dtype could not hold.
Result<std::uint64_t> write_repacked(const Model& model, const RepackPlan& plan, const RepackOutput& output,
                                     Streams& streams);

}  // namespace stfs::tools
