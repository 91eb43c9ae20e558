// The files that programs have made and that are no tensors yet: scratch files, NumPy files that are being
// written, and checkpoints. A draft has a name and a tensor's id, but the model does not contain it.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/base/mutex.h"
#include "core/format/tensor_id.h"
#include "fs/base/user_counts.h"
#include "fs/tree/inode_table.h"
#include "fs/write/pending_file.h"
#include "fs/write/staged_changes.h"

namespace stfs {

/// Any thread may call. No other lock is taken while its mutex is held.
class Drafts {
 public:
  struct Draft {
    Ino ino = 0;
    Ino directory = 0;
    std::string file_name{};
    std::shared_ptr<PendingFile> content{};
    /// The version of the tensor that a file in a transaction changes, from the time when the file was
    /// opened.
    TensorVersion base{};
    /// The share of the user who has made the file in this mount.
    UserCounts::Share share{};
    [[nodiscard]] bool is_scratch() const;
  };
  /// @return false if a draft of this name exists already.
  bool add(Draft draft);
  /// Returns the draft of this name, or of this number.
  [[nodiscard]] std::optional<Draft> find(Ino directory, std::string_view file_name) const;
  [[nodiscard]] std::optional<Draft> find(Ino ino) const;
  /// True if a directory has drafts.
  [[nodiscard]] bool has_in(Ino directory) const;
  /// The names of the drafts that wait for another name.
  [[nodiscard]] std::vector<std::string> kept() const;
  /// @return false if another draft has this name.
  bool rename(Ino ino, Ino directory, std::string_view file_name);
  /// Does nothing if no draft has this number.
  void remove(Ino ino);
  /// Removes the name of a draft. The draft keeps its number, because programs may have it open.
  void unlink(Ino ino);
  [[nodiscard]] std::vector<Draft> all() const;
  /// The drafts of a directory whose number is at least `first`, by number, and at most this many.
  [[nodiscard]] std::vector<Draft> in(Ino directory, Ino first, std::size_t most) const;
  /// Waits until a directory has no drafts any more, at most two seconds. The kernel sends the RELEASE after
  /// close(2) has returned, and a program may use the file again immediately.
  /// @return true if the directory has no drafts.
  [[nodiscard]] bool wait_for_ends_in(Ino directory) const;

  // The forms of tensors that were removed or renamed in this mount, by their former names. A scratch file
  // that gets such a name and has as many bytes becomes a tensor of this form. The oldest forms are dropped.
  static constexpr std::size_t kMostVacated = 1 << 16;
  void note_vacated(std::string name, TensorForm form);
  [[nodiscard]] std::optional<TensorForm> vacated(const std::string& name) const;

 private:
  [[nodiscard]] bool has_any_in(Ino directory) const REQUIRES(mutex_);
  void leave_name(const Draft& draft) REQUIRES(mutex_);

  std::atomic<std::size_t> count_ = 0;  // the size of drafts_; most requests check it first
  mutable Mutex mutex_;
  mutable Condition ends_;
  std::map<Ino, Draft> drafts_ GUARDED_BY(mutex_);
  std::map<std::pair<Ino, std::string>, Ino> by_name_ GUARDED_BY(mutex_);
  struct Vacated {
    TensorForm form;
    std::uint64_t number = 0;
  };
  std::map<std::string, Vacated> vacated_ GUARDED_BY(mutex_);
  std::map<std::uint64_t, std::string> vacated_order_ GUARDED_BY(mutex_);  // names by number
  std::uint64_t next_vacated_ GUARDED_BY(mutex_) = 0;
};

}  // namespace stfs
