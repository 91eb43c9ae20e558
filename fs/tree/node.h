// What an inode number of a model stands for. ModelParts::resolve() decodes the number once; every step
// behind it takes the node.
#pragma once

#include <cstdint>

#include "fs/tree/inode_table.h"

namespace stfs {

struct Node {
  enum class Kind : std::uint8_t {
    Missing,          // no file has the number, or not any more
    Directory,        // of the tree of tensors
    Tensor,           // in that tree
    ViewDirectory,    // of views
    View,             // of a tensor, or of the model
    SourceDirectory,  // `pretrained`, and the directories in it
    SourceFile,       // a file of the source directory, in `pretrained`
    StagedDirectory,  // `.safetensors`, the directories of transactions, a transaction
    Staged,           // a tensor's file in a transaction
    StagedNpy,        // the same tensor as a NumPy file
    Draft,            // a file that is no tensor yet (fs/write/drafts.h)
  };
  Ino ino = 0;  // the number in the model (InodeSpace::local())
  Kind kind = Kind::Missing;
  TensorId tensor{};  // only of Tensor, Staged, StagedNpy and Draft

  [[nodiscard]] bool exists() const { return kind != Kind::Missing; }
  [[nodiscard]] bool is_directory() const {
    return kind == Kind::Directory || kind == Kind::ViewDirectory || kind == Kind::SourceDirectory ||
           kind == Kind::StagedDirectory;
  }
  [[nodiscard]] bool is_source_file() const { return kind == Kind::SourceFile; }
  [[nodiscard]] bool is_of_source() const { return is_source_file() || kind == Kind::SourceDirectory; }
  /// Whether it is read-only and below `.safetensors`.
  [[nodiscard]] bool is_view() const { return kind == Kind::View || kind == Kind::ViewDirectory; }
  [[nodiscard]] bool is_staged() const { return kind == Kind::Staged || kind == Kind::StagedDirectory; }
  /// Whether it shows a tensor, or the model, in another form: a program that writes it makes a draft.
  [[nodiscard]] bool is_other_form() const { return is_view() || kind == Kind::StagedNpy; }
};

}  // namespace stfs
