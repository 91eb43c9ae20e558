// Files that become tensors at their close: those that programs make beside the tensors, and the NumPy files
// that they write to `.safetensors/npy`. fs/write/new_tensor.h has the bytes, fs/write/drafts.h the files
// until their close.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "core/base/error.h"
#include "fs/model/content_commits.h"
#include "fs/model/file_reader.h"
#include "fs/model/file_stats.h"
#include "fs/model/model_parts.h"
#include "fs/model/structure_edits.h"

namespace stfs {

/// Any thread may call.
class DraftFiles {
 public:
  /// Must not outlive them.
  DraftFiles(ModelParts& parts, StructureEdits& structure, ContentCommits& contents, const FileStats& stats,
             const FileReader& reader)
      : parts_(parts), structure_(structure), contents_(contents), stats_(stats), reader_(reader) {}

  /// Makes a file beside the tensors, or in npy/. EPERM in other directories.
  Result<CreatedFile> create(const Node& directory, std::string_view name, int flags, pid_t opener);
  /// Makes a file that is no tensor before its close, and opens it. EBUSY if there is one of that name.
  Result<CreatedFile> make(Drafts::Draft draft, int flags, pid_t opener);
  /// Opens the NumPy file of a tensor for writing: the first open makes the draft.
  Result<OpenFile*> open(Drafts::Draft draft, TensorId tensor, std::string name, int flags, pid_t opener);
  /// Opens a view in npy/ for writing.
  Result<OpenFile*> open_npy(const Node& node, int flags, pid_t opener);
  /// The file name of the tensor of a new file in npy/. EINVAL without `.npy`.
  static Result<std::string_view> npy_stem(std::string_view name);

  // The caller holds the content's mutex:
  /// Loads what a view shows before the first write to it, unless it was truncated.
  Result<void> load_base(PendingContent& content, Ino ino);
  /// Makes a tensor of a file that was made, or replaces the one of its name.
  Result<Stale> commit(const OpenFile& file);

  /// Makes a tensor of a file that waits for its name. ENODATA: a tensor of that name has another size.
  Result<Outdated> give_name(const Drafts::Draft& draft, const std::string& name);
  /// Call when the descriptor of a new tensor goes.
  void end(const OpenFile& file);
  /// @return false if it has become a tensor.
  bool remove(const Drafts::Draft& draft);

  /// Gives a form to what a program is about to write to a tensor: it then has another size, dtype or shape.
  /// @return nothing if no program has the tensor open for writing, or has written bytes already.
  std::optional<Result<void>> set_pending_form(TensorId tensor, std::string_view key,
                                               const std::string& value);
  /// Gives a tensor the form that was set while its file was open, if no program has written to it since.
  /// Call it at the last release. A form that needs another number of bytes changes nothing and is logged.
  /// The caller holds the content's mutex.
  void apply_form(const PendingContent& content);
  /// The same for one content. @return false if bytes were written or it was closed.
  Result<bool> form_open_content(PendingContent& content, const std::string& name, Dtype dtype,
                                 std::string_view key, const std::string& value) const;

 private:
  struct NamedForm {
    std::string name;
    NewTensor::Form form;
  };
  /// Makes a tensor of a content that was made, or replaces the one of that name. The caller holds the
  /// content's mutex.
  /// @param decide  the name and the form. Runs when no other edit can come before this one.
  /// @param id      the tensor's.
  Result<Outdated> put_made(PendingContent& content, const std::function<Result<NamedForm>()>& decide,
                            TensorId id);

  ModelParts& parts_;
  StructureEdits& structure_;
  ContentCommits& contents_;
  const FileStats& stats_;
  const FileReader& reader_;
};

}  // namespace stfs
