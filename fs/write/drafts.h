// The files that programs have made and that are no tensors yet: they have a name and a tensor's id, but the
// model does not have them before their close.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/format/tensor_id.h"
#include "fs/tree/inode_table.h"
#include "fs/write/open_file.h"
#include "fs/write/staged_changes.h"

namespace stfs {

/// Any thread may call. No other lock is taken while its mutex is held.
class Drafts {
 public:
  struct Draft {
    Ino ino = 0;
    Ino directory = 0;
    std::string file_name{};
    std::shared_ptr<PendingContent> content{};
    /// The version of the tensor that a file in a transaction changes, when the file was opened.
    TensorVersion base{};
  };
  /// @return false if there is a draft of that name already.
  bool add(Draft draft);
  /// The draft of that name, or of that number.
  [[nodiscard]] std::optional<Draft> find(Ino directory, std::string_view file_name) const;
  [[nodiscard]] std::optional<Draft> find(Ino ino) const;
  /// Whether there are drafts in a directory.
  [[nodiscard]] bool has_in(Ino directory) const;
  /// The names of those that wait for another name.
  [[nodiscard]] std::vector<std::string> kept() const;
  /// @return false if there is another draft of that name.
  bool rename(Ino ino, Ino directory, std::string_view file_name);
  /// Does nothing if there is none.
  void remove(Ino ino);
  /// Returns when there is no draft of that name any more, at the latest after two seconds: the kernel sends
  /// the RELEASE after close(2) has returned, and a program may go on with the file at once. Does not wait
  /// for a draft that waits for another name.
  /// @return whether there is none.
  [[nodiscard]] bool wait_for_end(Ino directory, std::string_view file_name) const;
  /// The same for all drafts in a directory.
  [[nodiscard]] bool wait_for_ends_in(Ino directory) const;

  // Tensors that were made as plain files, without a dtype: an editor may rename them over another tensor,
  // which then keeps its own dtype and shape.
  void note_plain(TensorId tensor);
  void note_typed(TensorId tensor);
  [[nodiscard]] bool is_plain(TensorId tensor) const;

 private:
  /// The caller holds the mutex.
  [[nodiscard]] bool has_any_in(Ino directory) const;

  std::atomic<std::size_t> count_ = 0;  // of drafts_; most requests check it first
  mutable std::mutex mutex_;            // guards what follows
  mutable std::condition_variable ends_;
  std::map<Ino, Draft> drafts_;
  std::map<std::pair<Ino, std::string>, Ino> by_name_;
  std::set<TensorId> plain_;
};

}  // namespace stfs
