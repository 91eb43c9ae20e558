// Limits the memory and the files that each user may use in a mount, so that one user at the limit never
// stops another.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "core/base/error.h"
#include "core/format/header.h"

namespace stfs {

/// The limits of one user in a mount. A request for more gives EDQUOT, and is logged.
struct UserLimits {
  std::size_t transactions = 1000;  // open transactions
  std::size_t staged = 1 << 18;     // tensors, and keys of metadata, in all open transactions
  // Metadata, and names and shapes of staged tensors, in all open transactions: no header can hold more.
  std::uint64_t metadata_bytes = kMaxHeaderBytes;
  std::size_t scratch_files = 1 << 17;  // scratch files that the user has made in this mount
  std::size_t directories = 1 << 17;    // directories that the user has made with layout=tree
  /// Checkpoints and NumPy files that programs write, and whole checkpoints that wait for their name or their
  /// index.
  std::size_t drafts = 1024;
  std::size_t draft_bytes = std::size_t{1} << 28U;  // the text of their headers and indexes, in memory
  // The kernel forgets slices and texts soon after their last close, so these two limits count open files.
  std::size_t slices = 1 << 16;
  std::size_t texts = 1024;  // states of the log, and the same number of stats.json
  /// Files of a source directory that programs write to, and the same number of deleted files that are still
  /// open. Each one takes a descriptor of the mount.
  std::size_t source_files = 1024;
  /// Models in a mounted directory that were added or replaced since the mount, and their replaced or deleted
  /// versions that are still open. The owner of the archive is charged for them.
  std::size_t models = 1000;
  /// Bytes of headers of models in a mounted directory. The tables of a model take about twice as much
  /// memory. The last model of a user may exceed the limit. Models that were there at the mount are counted
  /// separately.
  std::size_t header_bytes = std::size_t{1} << 29U;
};

/// Counts objects of one kind for each user. All UserCounts of this process with the same name of the kind
/// share their counts, because the process serves one mount. Any thread may call.
class UserCounts {
 public:
  /// An object of a user. The object is counted until its last copy is destroyed, which may be later than the
  /// UserCounts.
  using Share = std::shared_ptr<const void>;

  /// @param what  names the counted objects in the message: "slices"
  /// @param most  the greatest number that one user may have
  UserCounts(std::string what, std::size_t most);

  /// EDQUOT if the user already has the greatest number. Otherwise the user may exceed the number afterwards,
  /// if the amount is not 1.
  Result<Share> take(uid_t user, std::size_t amount = 1) { return take_within(most_, user, amount); }
  /// Acts as take(), with another limit.
  Result<Share> take_within(std::size_t most, uid_t user, std::size_t amount);
  /// The number of counted objects that a user has.
  [[nodiscard]] std::size_t count(uid_t user) const;

 private:
  struct Counts;
  static std::shared_ptr<Counts> counts_of(const std::string& what);
  const std::string what_;
  const std::size_t most_;
  const std::shared_ptr<Counts> counts_;
};

/// EDQUOT, with the limit in the message.
/// @param advice  what the user can do.
tl::unexpected<Error> over_user_limit(uid_t user, std::size_t most, std::string_view what,
                                      std::string_view advice);

/// Counts a descriptor that this process keeps open for a user's writes, until the share is destroyed. EDQUOT
/// if the user has a quarter of all descriptors that the process may open, because programs of other users
/// also need some. Users without a limit get no share.
Result<UserCounts::Share> take_descriptor(uid_t user);

/// True if no limit applies: for root and for the user of this process.
bool is_unlimited(uid_t user);

/// The user whose request this thread serves. Without a request, or for a request of the kernel: the user of
/// this process.
uid_t requesting_user();
/// Acts as requesting_user(), but returns `otherwise` for a request of the kernel, which writes back pages
/// that a program has changed.
uid_t requesting_user(uid_t otherwise);

}  // namespace stfs
