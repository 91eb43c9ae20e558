// The tree that a mount shows at a model's root: one file for each tensor.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/model/model.h"
#include "fs/base/versioned.h"
#include "fs/tree/directory.h"
#include "fs/tree/inode_table.h"
#include "fs/tree/names.h"
#include "fs/tree/unserved_tensors.h"

namespace stfs {

/// Any thread may call. show() changes it, together with the model. It can't fail.
class TensorTree final : public Directory {
 public:
  /// The model must outlive the tree.
  TensorTree(const Versioned<Model>& model, Layout layout);

  [[nodiscard]] Node node(Ino ino) const override;
  /// Also finds `.safetensors` in the root, which list() leaves out: a copy of the tree contains each tensor
  /// once.
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
    /// The tensors' names in one directory, whatever the layout.
    [[nodiscard]] const InodeTable& flat() const;

   private:
    const bool is_flat_;
    mutable std::once_flag has_flat_;  // few mounts with layout=tree need it
    mutable std::unique_ptr<InodeTable> own_flat_;
  };
  [[nodiscard]] const Version& version() const { return *shown_; }
  /// The tensor that a new file of that name would be. Nothing if no tensor's file can have the name, and for
  /// a directory that is not in this tree.
  [[nodiscard]] std::optional<std::string> name_in(Ino directory, std::string_view file_name) const;

  /// The same for a directory that shows all tensors, whatever the layout.
  [[nodiscard]] static std::optional<std::string> flat_name(std::string_view file_name) {
    return name_of_file(file_name);
  }

  /// Makes the names of the model that is shown next. One thread at a time.
  [[nodiscard]] std::shared_ptr<Version> next(const Model& model);
  /// Shows them. @return what must stay until the calls that are running have ended.
  std::shared_ptr<void> show(std::shared_ptr<Version> next) noexcept {
    return shown_.replace(std::move(next));
  }
  /// The directories' numbers: for the thread that calls next(), which shows what it has changed. Only with
  /// layout=tree.
  DirectoryNumbers& numbers();

 private:
  const Versioned<Model>& model_;
  const Layout layout_;
  Versioned<Version> shown_;
  const UnservedTensors unserved_;
  std::optional<DirectoryNumbers> numbers_;  // from the first edit on
};

}  // namespace stfs
