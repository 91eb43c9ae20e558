// Commits of the bytes that programs have staged for one tensor: in place, or into a delta.
#pragma once

#include <functional>

#include "core/base/error.h"
#include "fs/model/foreign_changes.h"
#include "fs/model/model_parts.h"
#include "fs/model/structure_edits.h"

namespace stfs {

/// Any thread may call. The caller holds the content's mutex. Commits wait for the disk and for other
/// processes' locks.
class ContentCommits {
 public:
  /// Must not outlive them.
  ContentCommits(ModelParts& parts, ForeignChanges& foreign, StructureEdits& structure)
      : parts_(parts), foreign_(foreign), structure_(structure) {}

  /// Commits what is pending for a tensor. @return what the kernel must forget.
  Result<Stale> commit(const OpenFile& file) { return commit(file, nullptr); }
  /// Gives a tensor all of its bytes anew.
  /// @param fill  writes them.
  /// @param form  what they are meant for. ESTALE if the tensor has another form when they are committed.
  Result<Stale> commit_in_place(TensorId tensor, const std::function<Result<void>(Staging&)>& fill,
                                const TensorForm* form = nullptr);
  /// Stages all bytes of a content for another place.
  Result<void> copy_content(PendingContent& content, Staging& to) const;
  /// Notes that a tensor has just been committed.
  void note_commit(const PendingContent& content);

 private:
  Result<Stale> commit(const OpenFile& file, const TensorForm* form);
  /// ESTALE if another program has deleted the tensor, or given it another dtype or shape.
  [[nodiscard]] Result<void> check_target(const PendingContent& content, const TensorForm* form) const;
  /// Whether an edit has given the tensor another place since its bytes were staged.
  [[nodiscard]] bool is_elsewhere(PendingContent& content) const;
  /// commit() in the tensor's present place, after an edit has given it another one.
  Result<Stale> commit_elsewhere(PendingContent& content, const TensorForm* form);
  /// commit() in the place that the bytes were staged for.
  Result<Stale> commit_staged(const OpenFile& file, const TensorForm* form);
  /// commit() for a tensor of the base of a delta: the delta gets it.
  Result<Stale> commit_copy(const OpenFile& file, const TensorForm* form);

  ModelParts& parts_;
  ForeignChanges& foreign_;
  StructureEdits& structure_;
};

}  // namespace stfs
