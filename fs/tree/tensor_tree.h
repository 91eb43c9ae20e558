// The tree that a mount shows at a model's root: one file for each tensor. Also the names of tensors that no
// shard can serve.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/format/tensor_index.h"
#include "core/model/model.h"
#include "fs/base/versioned.h"
#include "fs/tree/directory.h"
#include "fs/tree/inode_table.h"
#include "fs/tree/names.h"

namespace stfs {

/// Finds tensors that the model's index names but that no shard can serve. A look-up of such a tensor must
/// fail with EIO (it cannot be read), not with ENOENT (it does not exist). This class has a second tree with
/// the file names that these tensors would have.
///
/// Immutable once built; any number of threads may read it.
class UnservedTensors {
 public:
  /// The model must outlive this object.
  UnservedTensors(const Versioned<Model>& model, Layout layout);

  /// Returns the unserved tensor that would have this name in a directory of the tree. If the name would be a
  /// directory, returns the first unserved tensor below it. Returns null if no unserved tensor matches.
  [[nodiscard]] const Model::Unserved* find(const InodeTable& tree, Ino directory,
                                            std::string_view file_name) const;
  /// Returns the unserved tensor with this flat file name in any layout, or null.
  [[nodiscard]] const Model::Unserved* find_flat(std::string_view file_name) const;
  /// The error for a name that the tree does not have: EIO for an unserved tensor, ENOENT for null.
  [[nodiscard]] tl::unexpected<Error> why_missing(const Model::Unserved* tensor) const {
    if (tensor == nullptr) return fail(ErrorCode::NotFound, ENOENT, "no such tensor");
    return fail(ErrorCode::ArchiveChanged, EIO, model_->why_unserved(*tensor));
  }

 private:
  static TensorIndex index_of(const Model& model);

  const Versioned<Model>& model_;
  const TensorIndex names_;  // tensors without bytes, in the order of model.unserved()
  const InodeTable table_;
  const InodeTable flat_;
};

/// Any thread may call. show() changes the tree together with the model, and can't fail.
class TensorTree final : public Directory {
 public:
  /// The model must outlive the tree.
  TensorTree(const Versioned<Model>& model, Layout layout);

  [[nodiscard]] Node node(Ino ino) const override;
  /// Also finds `.safetensors` in the root. list() leaves it out, so that a copy of the tree contains each
  /// tensor once.
  Result<Ino> find(Ino directory, std::string_view name) override;
  void list(Ino directory, std::uint64_t position, const VisitEntry& visit) const override;

  [[nodiscard]] const InodeTable& table() const { return shown_->table; }
  [[nodiscard]] const UnservedTensors& unserved() const { return unserved_; }

  /// The names of one version of the model. Immutable: any thread may call.
  struct Version {
    Version(const Model& of, Layout layout)
        : model(of), table(of.tensors(), of.ids(), layout), is_flat_(layout == Layout::Flat) {}
    Version(const Model& of, DirectoryNumbers& numbers)
        : model(of), table(of.tensors(), of.ids(), Layout::Tree, numbers), is_flat_(false) {}
    const Model& model;
    const InodeTable table;
    /// The tensors' names in one directory, in any layout.
    [[nodiscard]] const InodeTable& flat() const;

   private:
    const bool is_flat_;
    mutable std::once_flag has_flat_;  // few mounts with layout=tree need it
    mutable std::unique_ptr<InodeTable> own_flat_;
  };
  [[nodiscard]] const Version& version() const { return *shown_; }
  /// Returns the name of the tensor that a new file of this name would become. Nothing if no tensor's file
  /// can have the name, or if the directory is not in this tree.
  [[nodiscard]] std::optional<std::string> name_in(Ino directory, std::string_view file_name) const;

  /// Acts as name_in() for a directory that shows all tensors, in any layout.
  [[nodiscard]] static std::optional<std::string> flat_name(std::string_view file_name) {
    return name_of_file(file_name);
  }

  /// Makes the names of the next model. Only one thread at a time may call.
  [[nodiscard]] std::shared_ptr<Version> next(const Model& model);
  /// Shows the next names. @return an object to keep until the running calls have ended.
  std::shared_ptr<void> show(std::shared_ptr<Version> next) noexcept {
    return shown_.replace(std::move(next));
  }
  /// The directories' numbers, for the thread that calls next(). next() shows its changes. Only with
  /// layout=tree.
  DirectoryNumbers& numbers();

 private:
  const Versioned<Model>& model_;
  const Layout layout_;
  Versioned<Version> shown_;
  const UnservedTensors unserved_;
  std::optional<DirectoryNumbers> numbers_;  // unset until the first edit
};

}  // namespace stfs
