// The handle of an edit: collects changes by name, and commits them as one.
//
//   only new bytes of tensors   a transaction on the model that the handle shows; the tensors stay in place
//   anything else               core's ModelEdit, on an opening of its own
//
// A commit of the second kind closes the handle's opening first: an edit frees no bytes that somebody reads.
// Tensors that were taken before keep that opening.
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/base/mutex.h"
#include "core/model/model_edit.h"
#include "tools/libstfs/c_error.h"
#include "tools/libstfs/handles.h"

struct stfs_edit {
  /// New bytes of a tensor. The caller owns them.
  struct NewTensor {
    stfs::Dtype dtype = stfs::Dtype::U8;
    std::vector<std::uint64_t> shape;
    std::span<const std::byte> bytes;
  };
  std::shared_ptr<stfs::interface::EditableModel> shared;
  stfs::CommitOptions options{};
  stfs::Mutex mutex{};  // taken before that of `shared`
  // Null as long as only bytes of tensors change.
  std::unique_ptr<stfs::Model> writer GUARDED_BY(mutex){};
  std::optional<stfs::ModelEdit> edit GUARDED_BY(mutex){};  // of `writer`
  // By the tensor's name afterwards.
  std::map<std::string, NewTensor, std::less<>> fresh GUARDED_BY(mutex){};
  // Changed keys of the metadata: whether they have a value.
  std::map<std::string, bool, std::less<>> keys GUARDED_BY(mutex){};
  bool is_ended GUARDED_BY(mutex) = false;

  /// The structure changes: opens the model for that.
  stfs::Result<stfs::ModelEdit*> structure() REQUIRES(mutex);
  stfs::Result<void> put(std::string name, NewTensor tensor) REQUIRES(mutex);
  stfs::Result<void> rename(std::span<const stfs::ModelEdit::Renaming> renamings) REQUIRES(mutex);
  stfs::Result<void> set_metadata(const std::string& key, const std::optional<std::string>& value)
      REQUIRES(mutex);
  stfs::Result<void> commit() REQUIRES(mutex);
  /// Lets the next edit of the model begin.
  void end();
  [[nodiscard]] stfs::Result<void> check_open() const REQUIRES(mutex) {
    if (is_ended) return stfs::interface::refuse(shared->path + ": the edit has ended: begin another one");
    return {};
  }

 private:
  stfs::Result<void> commit_bytes() REQUIRES(mutex, shared->mutex);
  stfs::Result<void> commit_structure() REQUIRES(mutex, shared->mutex);
  stfs::Result<void> write_structure() REQUIRES(mutex, shared->mutex);
  void wait_for_short_pins() REQUIRES(mutex, shared->mutex);
  void close_gaps() const REQUIRES(mutex);
};
