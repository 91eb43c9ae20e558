// The tree that a mount shows at a model's root: one file for each tensor. Also the names of tensors that no
// shard can serve.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/format/tensor_index.h"
#include "core/model/model.h"
#include "fs/tree/directory.h"
#include "fs/tree/inode_table.h"
#include "fs/tree/names.h"
#include "fs/tree/snapshot.h"

namespace stfs {

/// Finds tensors that the model's index names but that no shard can serve. A look-up of such a tensor must
/// fail with EIO (it cannot be read), not with ENOENT (it does not exist). This class has a second tree with
/// the file names that these tensors would have.
///
/// Immutable once built; any number of threads may read it.
class UnservedTensors {
 public:
  /// @param snapshots  must outlive this object.
  UnservedTensors(const Snapshots& snapshots, Layout layout);

  /// Returns the unserved tensor that would have this name in a directory of the tree. If the name would be a
  /// directory, returns the first unserved tensor below it. Returns null if no unserved tensor matches.
  [[nodiscard]] const Model::Unserved* find(const InodeTable& tree, Ino directory,
                                            std::string_view file_name) const;
  /// Returns the unserved tensor with this flat file name in any layout, or null.
  [[nodiscard]] const Model::Unserved* find_flat(std::string_view file_name) const;
  /// The error for a name that the tree does not have: EIO for an unserved tensor, ENOENT for null.
  [[nodiscard]] tl::unexpected<Error> why_missing(const Model::Unserved* tensor) const {
    if (tensor == nullptr) return fail(ErrorCode::NotFound, ENOENT, "no such tensor");
    return fail(ErrorCode::ArchiveChanged, EIO, snapshots_->model->why_unserved(*tensor));
  }

 private:
  static TensorIndex index_of(const Model& model);

  const Snapshots& snapshots_;
  const TensorIndex names_;  // tensors without bytes, in the order of model.unserved()
  const InodeTable table_;
  const InodeTable flat_;
};

/// Any thread may call. Shows the names of the present snapshot.
class TensorTree final : public Directory {
 public:
  /// @param snapshots  must outlive the tree.
  TensorTree(const Snapshots& snapshots, Layout layout)
      : snapshots_(snapshots), layout_(layout), unserved_(snapshots, layout) {}

  [[nodiscard]] Node node(Ino ino) const override;
  /// Also finds `.safetensors` in the root. list() leaves it out, so that a copy of the tree contains each
  /// tensor once.
  Result<Ino> find(Ino directory, std::string_view name) override;
  void list(Ino directory, std::uint64_t position, const VisitEntry& visit) const override;

  [[nodiscard]] const InodeTable& table() const { return snapshots_->table; }
  [[nodiscard]] const UnservedTensors& unserved() const { return unserved_; }

  /// Returns the name of the tensor that a new file of this name would become. Nothing if no tensor's file
  /// can have the name, or if the directory is not in this tree.
  [[nodiscard]] std::optional<std::string> name_in(Ino directory, std::string_view file_name) const;

  /// Acts as name_in() for a directory that shows all tensors, in any layout.
  [[nodiscard]] static std::optional<std::string> flat_name(std::string_view file_name) {
    return name_of_file(file_name);
  }

  /// Makes the snapshot of the next model. Only one thread at a time may call.
  [[nodiscard]] std::unique_ptr<Snapshot> next(std::shared_ptr<const Model> model);
  /// The directories' numbers, for the thread that calls next(), which shows their changes. Only with
  /// layout=tree.
  DirectoryNumbers& numbers();

 private:
  const Snapshots& snapshots_;
  const Layout layout_;
  const UnservedTensors unserved_;
  std::optional<DirectoryNumbers> numbers_;  // unset until the first edit
};

}  // namespace stfs
