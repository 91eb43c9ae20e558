#include "fs/base/user_counts.h"

#include <fmt/format.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cerrno>
#include <map>
#include <utility>

#include "core/base/mutex.h"
#include "fs/base/requester.h"

namespace stfs {

struct UserCounts::Counts {
  Mutex mutex;
  std::map<uid_t, std::size_t> of_user GUARDED_BY(mutex);

  void give_back(uid_t user, std::size_t amount) {
    const MutexLock lock(mutex);
    const auto found = of_user.find(user);
    if (found == of_user.end()) return;  // an amount of 0 keeps no entry
    if ((found->second -= amount) == 0) of_user.erase(found);
  }
};

/// All models of a mount count together: a user may add many models to a mounted directory.
std::shared_ptr<UserCounts::Counts> UserCounts::counts_of(const std::string& what) {
  static Mutex mutex;
  static std::map<std::string, std::weak_ptr<Counts>> known;
  const MutexLock lock(mutex);
  std::weak_ptr<Counts>& shared = known[what];
  auto counts = shared.lock();
  if (!counts) shared = counts = std::make_shared<Counts>();
  return counts;
}

UserCounts::UserCounts(std::string what, std::size_t most)
    : what_(std::move(what)), most_(most), counts_(counts_of(what_)) {}

Result<UserCounts::Share> UserCounts::take_within(std::size_t most, uid_t user, std::size_t amount) {
  {
    const MutexLock lock(counts_->mutex);
    std::size_t& count = counts_->of_user[user];
    if (count >= most) return over_user_limit(user, most, what_, "close or remove some");
    count += amount;
  }
  // The address is only a mark. If memory for the share runs out, the deleter runs at once.
  return Share(this, [counts = counts_, user, amount](const void*) { counts->give_back(user, amount); });
}

std::size_t UserCounts::count(uid_t user) const {
  const MutexLock lock(counts_->mutex);
  const auto found = counts_->of_user.find(user);
  return found == counts_->of_user.end() ? 0 : found->second;
}

tl::unexpected<Error> over_user_limit(uid_t user, std::size_t most, std::string_view what,
                                      std::string_view advice) {
  return fail(ErrorCode::InvalidArgument, EDQUOT,
              fmt::format("user {} has {} {}, and one user may have no more: {}", user, most, what, advice));
}

Result<UserCounts::Share> take_descriptor(uid_t user) {
  static UserCounts counts("descriptors of the mount for what is written", 0);
  if (is_unlimited(user)) return UserCounts::Share();
  constexpr rlim_t kPart = 4;
  struct rlimit all {};
  if (::getrlimit(RLIMIT_NOFILE, &all) != 0) return fail_system(errno, "RLIMIT_NOFILE", "read");
  return counts.take_within(static_cast<std::size_t>(all.rlim_cur / kPart), user, 1);
}

bool is_unlimited(uid_t user) {
  return user == 0 || user == ::geteuid();
}

uid_t requesting_user() {
  return requesting_user(::geteuid());
}

uid_t requesting_user(uid_t otherwise) {
  const Requester* const requester = Requester::present();
  return requester != nullptr && requester->uid() ? *requester->uid() : otherwise;
}

}  // namespace stfs
