// Changes of what tensors are called and what form they have, of directories of layout=tree, and of metadata.
//
// A directory without tensors exists in this mount only: the archive knows names, no directories.
#pragma once

#include <sys/stat.h>

#include <optional>
#include <string>
#include <string_view>

#include "core/base/error.h"
#include "fs/model/draft_files.h"
#include "fs/model/file_stats.h"
#include "fs/model/model_parts.h"
#include "fs/model/structure_edits.h"

namespace stfs {

/// Any thread may call. Directories are those of the model's numbers.
class TensorNames {
 public:
  /// Must not outlive them.
  TensorNames(ModelParts& parts, StructureEdits& structure, DraftFiles& drafts, ScratchFiles& scratch,
              const FileStats& stats)
      : parts_(parts), structure_(structure), drafts_(drafts), scratch_(scratch), stats_(stats) {}

  /// Renames a tensor, a directory, or a scratch file. @param flags  of renameat2(2).
  Result<Outdated> rename(Ino parent, std::string_view name, Ino new_parent, std::string_view new_name,
                          unsigned flags);
  Result<struct stat> make_directory(Ino parent, std::string_view name);
  Result<void> remove_directory(Ino parent, std::string_view name);
  // @param flags  of setxattr(2).
  Result<Outdated> set_metadata(std::string_view key, const std::optional<std::string>& value, int flags);
  /// Sets `dtype` or `shape`.
  Result<Outdated> retype(TensorId tensor, std::string_view key, const std::string& value);
  /// Keeps the form of a tensor that is about to lose its name (Drafts::note_vacated()).
  void note_vacated(TensorId tensor);

 private:
  /// One try of rename().
  /// @param is_outdated  set if another edit has changed the names before this one: try again.
  Result<Outdated> rename_once(Ino parent, std::string_view name, Ino new_parent, std::string_view new_name,
                               unsigned flags, bool& is_outdated);
  Result<Outdated> rename_scratch(const Drafts::Draft& draft, Ino new_parent, std::string_view new_name,
                                  unsigned flags, bool& is_outdated);
  /// Gives a tensor the name of another one, which goes. EBUSY: a program is writing that one.
  Result<void> replace(ModelEdit& edit, TensorId tensor, TensorId target);
  /// @param to  what has the new name now.
  Result<Outdated> rename_directory(Ino directory, const Result<Ino>& to, Ino new_parent,
                                    std::string_view new_name, unsigned flags);
  /// Whether layout=tree can have a directory of that name: EILSEQ, EPERM, EEXIST.
  [[nodiscard]] Result<void> check_new_directory(Ino parent, std::string_view name) const;

  ModelParts& parts_;
  StructureEdits& structure_;
  DraftFiles& drafts_;
  ScratchFiles& scratch_;
  const FileStats& stats_;
};

}  // namespace stfs
