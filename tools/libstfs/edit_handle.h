// The handle of an edit: collects changes by name, and commits them as one (core/model/model_change.h).
//
//   in place     the change uses the model that the handle shows
//   as an edit   the change has another opening. Its commit first closes the handle's opening, because an
//                edit frees no bytes that a program reads. Tensors that were taken before keep that opening
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
#include "core/model/model_change.h"
#include "tools/libstfs/c_error.h"
#include "tools/libstfs/handles.h"

struct stfs_edit {
  std::shared_ptr<stfs::interface::EditableModel> shared;
  stfs::CommitOptions options{};
  stfs::Mutex mutex{};  // taken before the mutex of `shared`
  // Null while the change is in place.
  std::unique_ptr<stfs::Model> writer GUARDED_BY(mutex){};
  // A change of `writer` or of the model that the handle shows. Nothing: the edit has ended.
  std::optional<stfs::ModelChange> change GUARDED_BY(mutex){};
  // New bytes of tensors, by the tensor's name after the edit. The caller owns the bytes.
  std::map<std::string, std::span<const std::byte>, std::less<>> fresh GUARDED_BY(mutex){};
  // Changed keys of the metadata; true: the key has a value.
  std::map<std::string, bool, std::less<>> keys GUARDED_BY(mutex){};

  /// Begins a change of the model that the handle shows. Busy (EBUSY): another edit is open.
  stfs::Result<void> begin();
  stfs::Result<void> put(std::string name, stfs::Dtype dtype, std::vector<std::uint64_t> shape,
                         std::span<const std::byte> bytes) REQUIRES(mutex);
  stfs::Result<void> rename(std::span<const stfs::ModelEdit::Renaming> renamings) REQUIRES(mutex);
  stfs::Result<void> set_metadata(const std::string& key, const std::optional<std::string>& value)
      REQUIRES(mutex);
  stfs::Result<void> commit() REQUIRES(mutex);
  /// Lets the next edit of the model begin.
  void end();
  [[nodiscard]] stfs::Result<void> check_open() const REQUIRES(mutex) {
    if (!change) return stfs::interface::refuse(shared->path + ": the edit has ended: begin another one");
    return {};
  }

 private:
  stfs::Result<const stfs::Model*> open_writer() REQUIRES(mutex);
  stfs::Result<void> commit_edit() REQUIRES(mutex, shared->mutex);
  stfs::Result<void> write() REQUIRES(mutex, shared->mutex);
  void wait_for_short_pins() REQUIRES(mutex, shared->mutex);
  void close_gaps() const REQUIRES(mutex);
};
