// The definitions of the handles in stfs.h. Only the files that implement stfs.h include them.
#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/base/mutex.h"
#include "core/model/model.h"
#include "tools/libstfs/stfs.h"
#include "tools/libstfs/strided_view.h"
#include "tools/libstfs/tensor_memory.h"
#include "tools/serve/serve_client.h"
#include "tools/upload/plan.h"
#include "tools/upload/upload.h"

namespace stfs::interface {

/// An opening of a model. Immutable: tensors of the handle pin the model, and an edit replaces the whole
/// opening.
struct OpenedModel {
  std::shared_ptr<const Model> model;
  std::shared_ptr<const ForgivingMaps> maps;  // null unless is_forgiving was set
  std::optional<std::uint32_t> only;          // set if a tensor's file in a mount was opened
  std::vector<std::string> not_shown;         // see stfs_model_not_shown()

  [[nodiscard]] std::uint64_t count() const { return only ? 1 : model->tensors().size(); }
  /// @param position  below count().
  [[nodiscard]] std::uint32_t tensor(std::uint64_t position) const {
    return only ? *only : static_cast<std::uint32_t>(position);
  }
};

/// The state that the handle of a model and the handle of its edit share.
struct EditableModel {
  std::filesystem::path named;  // the user's path, made absolute: plans and edits open it again
  ModelOptions options;         // the access is the one for reading and patching
  bool is_forgiving = false;
  std::string path;  // of the archive or of the index

  /// Held while a commit is written: other calls on the handle wait for the commit.
  mutable Mutex mutex;
  /// Null only if the model could not be opened again after an edit.
  std::shared_ptr<const OpenedModel> opened GUARDED_BY(mutex);
  /// The models before edits. The ones that still exist are pinned by tensors or snapshots.
  std::vector<std::weak_ptr<const Model>> former GUARDED_BY(mutex);
  bool is_edited GUARDED_BY(mutex) = false;  // a stfs_edit is open

  /// Opens the path, or opens it again.
  [[nodiscard]] Result<std::shared_ptr<const OpenedModel>> open() const;
  /// Closes the present model, unless tensors or snapshots pin it.
  void let_go() REQUIRES(mutex);
  /// Replaces `opened`. After a failure it is null.
  Result<void> open_again() REQUIRES(mutex);
  /// Prepares an opening with a delta for edits: reads the base if its times prove nothing.
  Result<void> make_editable(Model& model) const;
  /// Returns true if tensors or snapshots pin a model that let_go() has closed.
  [[nodiscard]] bool has_pins() const REQUIRES(mutex);
};

/// See stfs_model_check_current().
Result<void> check_current(const Model& model);

}  // namespace stfs::interface

struct stfs_model {
  std::shared_ptr<stfs::interface::EditableModel> shared;

  /// Returns the present model. Fails if it could not be opened again after an edit.
  [[nodiscard]] stfs::Result<std::shared_ptr<const stfs::interface::OpenedModel>> opened() const;
};

struct stfs_tensor {
  std::string name;
  std::string archive;       // path of the file that holds the tensor
  std::uint64_t offset = 0;  // of the whole tensor in that file
  stfs::interface::StridedView view;
  std::shared_ptr<stfs::interface::TensorMemory> memory;
  mutable std::shared_ptr<stfs::interface::TensorMemory> gathered GUARDED_BY(mutex) = {};
  mutable stfs::Mutex mutex = {};

  /// Returns true if address and strides locate all elements. If not, stfs_tensor_data() first gathers them.
  [[nodiscard]] bool is_in_place() const { return memory->address() != nullptr && view.is_addressable(); }
};

struct stfs_plan {
  stfs::upload::Plan plan;
};

struct stfs_upload {
  std::unique_ptr<stfs::upload::Upload> upload;
  std::atomic<bool> is_taken = false;  // set by stfs_upload_wait()
};

struct stfs_resident {
  stfs::upload::Resident resident;
};

struct stfs_lease {
  mutable stfs::Mutex mutex;
  stfs::serve::Lease lease GUARDED_BY(mutex);
};
