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
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/model/model_edit.h"
#include "tools/libstfs/c_error.h"
#include "tools/libstfs/handles.h"

/// The functions of stfs.h call it with the mutex held, except end().
struct stfs_edit {
  /// New bytes of a tensor. The caller owns them.
  struct NewTensor {
    stfs::Dtype dtype = stfs::Dtype::U8;
    std::vector<std::uint64_t> shape;
    std::span<const std::byte> bytes;
  };
  std::shared_ptr<stfs::interface::EditableModel> shared;
  stfs::CommitOptions options{};
  std::mutex mutex{};                     // guards the members below; taken before that of `shared`
  std::unique_ptr<stfs::Model> writer{};  // null as long as only bytes of tensors change
  std::optional<stfs::ModelEdit> edit{};  // of `writer`
  std::map<std::string, NewTensor, std::less<>> fresh{};  // by the tensor's name afterwards
  std::map<std::string, bool, std::less<>> keys{};  // changed keys of the metadata: whether they have a value
  bool is_ended = false;

  /// The structure changes: opens the model for that.
  stfs::Result<stfs::ModelEdit*> structure();
  stfs::Result<void> put(std::string name, NewTensor tensor);
  stfs::Result<void> rename(std::span<const stfs::ModelEdit::Renaming> renamings);
  stfs::Result<void> set_metadata(const std::string& key, const std::optional<std::string>& value);
  stfs::Result<void> commit();
  /// Lets the next edit of the model begin.
  void end();
  [[nodiscard]] stfs::Result<void> check_open() const {
    if (is_ended) return stfs::interface::refuse(shared->path + ": the edit has ended: begin another one");
    return {};
  }

 private:
  stfs::Result<void> commit_bytes();
  stfs::Result<void> commit_structure();
  stfs::Result<void> write_structure();
  void wait_for_short_pins();
  void close_gaps() const;
};
