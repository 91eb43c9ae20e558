// The scratch files of a model: which names they have in the tree, and which drafts (fs/write/drafts.h) stand
// for them. core/model/scratch_directory.h has the files themselves, fs/model/draft_files.h makes tensors of
// them.
//
// A file's name in the scratch directory is its path from the mount's root, in which `%` is written as %25
// and `/` as %2F. Where the tree does not have the directory of a path, for example with another layout, the
// root shows the file, with dots between the parts, as in a tensor's name.
//
// Only a mount that can make files shows scratch files. It looks into the scratch directory at each look-up
// and listing, so that it shows what other mounts do.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/base/error.h"
#include "fs/model/model_parts.h"

namespace stfs {

/// Whether a draft is a scratch file.
bool is_scratch(const Drafts::Draft& draft);

/// Any thread may call. Directories are those of the tree.
class ScratchFiles {
 public:
  /// Must not outlive the parts.
  explicit ScratchFiles(ModelParts& parts) : parts_(parts) {}

  /// The draft of that name, of any kind.
  [[nodiscard]] std::optional<Drafts::Draft> find(Ino directory, std::string_view name) const;
  /// Makes drafts of all scratch files, and drops those whose files have gone.
  void load() const;
  /// Whether a directory has scratch files.
  [[nodiscard]] bool has_in(Ino directory) const;
  /// Calls visit as Directory::list() does, for the scratch files of a directory that no tensor hides.
  /// @param position  at least kFirstPosition, or where visit was told to go on.
  void list(Ino directory, std::uint64_t position, const Directory::VisitEntry& visit) const;
  static constexpr std::uint64_t kFirstPosition = std::uint64_t{1} << 50U;
  /// Whether there are scratch files, or were when the last listing began. The kernel must not cache listings
  /// then.
  [[nodiscard]] bool may_be_listed() const;

  /// EEXIST if there is a scratch file of that name by now. EDQUOT if the user whose request this is has
  /// too many (UserLimits).
  Result<Drafts::Draft> create(Ino directory, std::string_view name, mode_t mode);
  /// @param replaced  the scratch file that has the new name.
  Result<void> rename(const Drafts::Draft& draft, Ino new_directory, std::string_view new_name,
                      const std::optional<Drafts::Draft>& replaced);
  /// Keeps a dtype or a shape with the file, for other mounts and for the next one. Logs a failure. Does
  /// nothing for a draft that is no scratch file.
  static void keep_attribute(const Drafts::Draft& draft, std::string_view key, const std::string& value);
  /// Programs that have the file open keep its bytes.
  Result<void> remove(const Drafts::Draft& draft);
  /// Call when a scratch file's bytes are a tensor's. The caller holds the content's mutex.
  void note_tensor(const Drafts::Draft& draft);
  /// Call when a file that has no name may have lost its last user.
  void let_go(Ino ino) const;
  /// Renames files after a directory has moved.
  void follow_directories() const;

  /// Logs the scratch files that are there. Removes those whose bytes became a tensor just before a crash.
  void begin();
  /// Their names, for messages.
  [[nodiscard]] std::string names() const;

 private:
  [[nodiscard]] bool is_on() const { return !parts_.options.is_read_only && parts_.options.allows_edits; }
  [[nodiscard]] std::string file_name_of(Ino directory, std::string_view name) const;
  using Place = std::pair<Ino, std::string>;
  /// The place in the tree of a file in the scratch directory. Nothing: its name leads nowhere.
  [[nodiscard]] std::optional<Place> place_of(const std::string& file_name) const;
  [[nodiscard]] std::optional<std::string> find_file(Ino directory, std::string_view name) const;
  /// @param share  of the user who makes the file; none for a file that is found.
  std::optional<Drafts::Draft> add(Ino directory, std::string_view name, std::string file_name,
                                   UserCounts::Share share = {}) const;
  /// Takes the name of a draft whose file has gone.
  void drop(const Drafts::Draft& draft) const;
  /// Whether the name still leads to the draft's file.
  [[nodiscard]] bool is_there(const Drafts::Draft& draft) const;
  /// Call before the file loses its name: programs that have it open keep its bytes.
  static Result<void> keep_bytes(const Drafts::Draft& draft);
  [[nodiscard]] bool is_in_use(const Drafts::Draft& draft) const;
  [[nodiscard]] bool is_the_same(const std::string& file_name, TensorId tensor) const;

  ModelParts& parts_;
  UserCounts counts_{"scratch files", parts_.options.user_limits.scratch_files};
  mutable std::atomic<bool> was_listed_ = false;
  mutable std::atomic<bool> was_refused_ = false;  // and the log says so
};

}  // namespace stfs
