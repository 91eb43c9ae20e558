// Files that become tensors: scratch files that get a form, and the NumPy files that programs write to
// `.safetensors/npy`. fs/write/new_tensor.h has the bytes, fs/write/drafts.h the files until then.
//
// A scratch file becomes a tensor when it has a dtype and a shape that fit its bytes, and no program writes
// it: at its close, or by the setfattr of the second attribute after it. Its form can come from
//   setfattr                 both attributes
//   a rename over a tensor   of as many bytes, unless the file has a form: the tensor keeps dtype and shape
//   its name                 if a tensor of this name and as many bytes was removed or renamed in this mount
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
#include "fs/model/scratch_files.h"
#include "fs/model/structure_edits.h"

namespace stfs {

/// Any thread may call.
class DraftFiles {
 public:
  /// Must not outlive them.
  DraftFiles(ModelParts& parts, StructureEdits& structure, ContentCommits& contents, const FileStats& stats,
             const FileReader& reader, ScratchFiles& scratch)
      : parts_(parts),
        structure_(structure),
        contents_(contents),
        stats_(stats),
        reader_(reader),
        scratch_(scratch) {}

  /// Makes a file beside the tensors, or in npy/. EPERM in other directories.
  Result<CreatedFile> create(const Node& directory, std::string_view name, int flags, pid_t opener,
                             mode_t mode);
  /// Makes a file that is no tensor before its close, and opens it. EBUSY if there is one of that name.
  Result<CreatedFile> make(Drafts::Draft draft, int flags, pid_t opener);
  /// Opens a draft that has just been made.
  Result<CreatedFile> show(Drafts::Draft draft, int flags, pid_t opener);
  /// Opens the NumPy file of a tensor for writing: the first open makes the draft.
  Result<OpenFile*> open(Drafts::Draft draft, TensorId tensor, std::string name, int flags, pid_t opener);
  /// Opens a view in npy/ for writing.
  Result<OpenFile*> open_npy(const Node& node, int flags, pid_t opener);
  /// The file name of the tensor of a new file in npy/. EINVAL without `.npy`.
  static Result<std::string_view> npy_stem(std::string_view name);

  /// Loads what a view shows before the first write to it, unless it was truncated.
  Result<void> load_base(PendingContent& content, Ino ino) REQUIRES(content.mutex);
  /// Makes a tensor of a file that was made, or replaces the one of its name. The caller holds the mutex of
  /// the file's content.
  Result<Stale> commit(const OpenFile& file);

  // Scratch files:
  /// Gives it the name of a tensor, which it replaces. ENODATA: it has no form, and the tensor another size.
  /// @param check  runs in the edit: its error ends it.
  Result<Outdated> replace(const Drafts::Draft& draft, TensorId tensor,
                           const std::function<Result<void>()>& check);
  /// Gives it another name, which no tensor has. @param replaced  the scratch file that has the name.
  Result<Outdated> rename(const Drafts::Draft& draft, Ino new_directory, std::string_view new_name,
                          const std::optional<Drafts::Draft>& replaced);
  /// Sets `dtype` or `shape`. EINVAL if both are set, no program writes the file, and they don't fit its
  /// bytes. A file without bytes may get them later.
  Result<Outdated> set_attribute(const Drafts::Draft& draft, std::string_view key, const std::string& value);
  /// Call before a close decides.
  void adopt_form(PendingContent& content) const REQUIRES(content.mutex);
  /// Call when the descriptor of a file that is no tensor goes.
  void end(const OpenFile& file);

  /// Gives a form to what a program is about to write to a tensor: it then has another size, dtype or shape.
  /// @return nothing if no program has the tensor open for writing, or has written bytes already.
  std::optional<Result<void>> set_pending_form(TensorId tensor, std::string_view key,
                                               const std::string& value);
  /// Gives a tensor the form that was set while its file was open, if no program has written to it since.
  /// Call it at the last release. A form that needs another number of bytes changes nothing and is logged.
  void apply_form(const PendingContent& content) REQUIRES(content.mutex);
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
  /// Makes a tensor of a scratch file that has a form, if no program writes it.
  Result<Outdated> become(const Drafts::Draft& draft) REQUIRES(draft.content->mutex);
  [[nodiscard]] bool is_being_written(const PendingContent& content) const;
  /// Writes what a view shows.
  Result<void> copy_view(NewTensor& made, Ino ino) const;
  /// Of a tensor of the model as it is now.
  [[nodiscard]] std::optional<NewTensor::Form> form_of(TensorId tensor) const;

  ModelParts& parts_;
  StructureEdits& structure_;
  ContentCommits& contents_;
  const FileStats& stats_;
  const FileReader& reader_;
  ScratchFiles& scratch_;
};

}  // namespace stfs
