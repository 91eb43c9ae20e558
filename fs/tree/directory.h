// The common interface of the trees of a model: the tensors (tensor_tree.h), the views (fs/read/views.h), the
// source directory (fs/read/pretrained_directory.h), the transactions (fs/write/transaction_directory.h), and
// the directory `.safetensors` (fs/model/hidden_directory.h).
//
// Each tree has a range of inode numbers (inode_space.h). MountedModel uses only the number to find the tree.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string_view>

#include "core/base/error.h"
#include "fs/tree/inode_table.h"

namespace stfs {

/// The meaning of an inode number of a model. MountedModel::node_of() decodes the number once, and all later
/// steps use the node.
struct Node {
  enum class Kind : std::uint8_t {
    Missing,          // no file has the number, or none any more
    Directory,        // of the tree of tensors
    Tensor,           // in that tree
    ViewDirectory,    // of views
    View,             // of a tensor, or of the model
    SourceDirectory,  // `pretrained`, and the directories in it
    SourceFile,       // a file of the source directory, in `pretrained`
    StagedDirectory,  // `.safetensors`, the directories of transactions, a transaction
    Staged,           // a tensor's file in a transaction
    StagedNpy,        // a tensor's file in a transaction, shown as a NumPy file
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
  /// True if the file or directory is read-only and below `.safetensors`.
  [[nodiscard]] bool is_view() const { return kind == Kind::View || kind == Kind::ViewDirectory; }
  [[nodiscard]] bool is_staged() const { return kind == Kind::Staged || kind == Kind::StagedDirectory; }
  /// True if the file shows a tensor, or the model, in another form. A program that writes the file makes a
  /// draft.
  [[nodiscard]] bool is_other_form() const { return is_view() || kind == Kind::StagedNpy; }
};

/// The name and the inode number of an entry that always exists.
struct FixedEntry {
  std::string_view name;
  Ino ino = 0;
};

/// Any thread may call. Numbers are numbers of the model.
class Directory {
 public:
  Directory() = default;
  virtual ~Directory() = default;
  Directory(const Directory&) = delete;
  Directory& operator=(const Directory&) = delete;

  /// Returns the meaning of a number of this tree. Missing if no file has the number, or none any more.
  [[nodiscard]] virtual Node node(Ino ino) const = 0;

  /// Finds an entry of a directory of this tree. ENOENT if the entry does not exist. EIO for a tensor that
  /// the model's index names but that no shard can serve.
  virtual Result<Ino> find(Ino directory, std::string_view name) = 0;

  /// Gets the next entry and the position after it. Returns false to end the listing.
  using VisitEntry = std::function<bool(std::string_view name, Ino ino, std::uint64_t position)>;
  /// Calls visit for `.`, `..` and the entries, from a position on: 0, or a position that visit got.
  virtual void list(Ino directory, std::uint64_t position, const VisitEntry& visit) const = 0;

 protected:
  /// Calls visit for `.`, `..` and then for the `count` entries that entry_at returns.
  template <class EntryAt>
  static void visit_entries(Ino directory, Ino parent, std::size_t count, std::uint64_t position,
                            const VisitEntry& visit, const EntryAt& entry_at) {
    constexpr std::uint64_t kDots = 2;
    for (; position < kDots + count; ++position) {
      bool goes_on = false;
      if (position < kDots) {
        goes_on = position == 0 ? visit(".", directory, 1) : visit("..", parent, kDots);
      } else {
        const auto& [name, ino] = entry_at(static_cast<std::size_t>(position - kDots));
        goes_on = visit(name, ino, position + 1);
      }
      if (!goes_on) return;
    }
  }
};

}  // namespace stfs
