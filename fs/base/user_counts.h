// Limits what each user may make a mount keep in memory, so that one user at the limit never stops another.
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

/// What one user may have in a mount of one model. A request for more gives EDQUOT, with a line in the log.
struct UserLimits {
  std::size_t transactions = 1000;                 // open ones
  std::size_t staged = 1 << 18;                    // tensors, and keys of metadata, in all open transactions
  std::uint64_t metadata_bytes = kMaxHeaderBytes;  // in all open transactions: no header can hold more
  std::size_t scratch_files = 1 << 17;             // that the user has made in this mount
  // The kernel forgets slices and texts soon after their last close, so these are open.
  std::size_t slices = 1 << 16;
  std::size_t texts = 1024;  // states of the log, and as many of stats.json
  /// Files of a source directory that programs write to, and as many that are deleted and still open. Each
  /// takes a descriptor of the mount.
  std::size_t source_files = 1024;
  /// Models in a mounted directory that have come or were replaced since the mount, with versions that were
  /// replaced or deleted and are still open. They count for the owner of the archive.
  std::size_t models = 1000;
  /// Bytes of headers of models in a mounted directory. The tables of a model take about twice as much
  /// memory. The last model of a user may go beyond the limit. Models that were there at the mount count
  /// apart from those that came later.
  std::size_t header_bytes = std::size_t{1} << 29U;
};

/// Any thread may call.
class UserCounts {
 public:
  /// One thing of a user. It counts until the last copy is gone, which may be later than the UserCounts.
  using Share = std::shared_ptr<const void>;

  /// @param what  names the things in the message: "slices"
  /// @param most  that one user may have
  UserCounts(std::string what, std::size_t most);

  /// EDQUOT if the user has the most that one user may have. Without the error, the user may have more
  /// afterwards, if the amount is not 1.
  Result<Share> take(uid_t user, std::size_t amount = 1) { return take_within(most_, user, amount); }
  /// The same, with another limit.
  Result<Share> take_within(std::size_t most, uid_t user, std::size_t amount);
  /// The number of things that a user has.
  [[nodiscard]] std::size_t count(uid_t user) const;

 private:
  struct Counts;
  const std::string what_;
  const std::size_t most_;
  const std::shared_ptr<Counts> counts_;
};

/// EDQUOT, with the limit in the message.
/// @param advice  what the user can do.
tl::unexpected<Error> over_user_limit(uid_t user, std::size_t most, std::string_view what,
                                      std::string_view advice);

/// Counts a descriptor that this process keeps open for what a user writes, until the share is gone. EDQUOT
/// if the user has a quarter of all that the process may open: programs of others need some, too. No share
/// for users without a limit.
Result<UserCounts::Share> take_descriptor(uid_t user);

/// Whether no limit counts: for root and for the user of this process.
bool is_unlimited(uid_t user);

/// The user whose request this thread serves. Without a request, or for one of the kernel: this process's.
uid_t requesting_user();
/// The same; `otherwise` for a request of the kernel, which writes pages back that a program has changed.
uid_t requesting_user(uid_t otherwise);

}  // namespace stfs
