// When a request that failed is sent again, and when a caller gives up.
#pragma once

#include <chrono>
#include <functional>
#include <optional>

#include "core/base/deadline.h"
#include "core/base/error.h"

namespace stfs {

/// How long a read tries again after failures that may pass.
struct RetryRules {
  std::chrono::milliseconds patience{60'000};         // since the last byte that came
  std::chrono::milliseconds patience_offline{2'000};  // while no server can be reached
  std::chrono::milliseconds first_pause{200};         // doubles up to longest_pause; the real pause is random
  std::chrono::milliseconds longest_pause{8'000};
};

/// The pauses of one read. For one thread.
class Retries {
 public:
  /// Returns true if the read must end.
  using IsEnding = std::function<bool()>;

  Retries(const RetryRules& rules, const IsEnding& is_ending)
      : rules_(rules),
        is_ending_(is_ending),
        give_up_(deadline_in(rules.patience)),
        pause_(rules.first_pause) {}

  /// Some bytes have come: the next pause is the first one.
  void note_answer() { pause_ = rules_.first_pause; }
  /// The read has got on: the whole time begins again.
  void note_progress() { give_up_ = deadline_in(rules_.patience); }
  /// Waits before the next try.
  /// @param why  the failure. With ENETUNREACH only patience_offline counts.
  /// @param least  the server asks for a pause of this length.
  /// @return the failure: the time is over. ECANCELED: the read must end.
  Result<void> wait(Error why, std::chrono::milliseconds least);

 private:
  const RetryRules& rules_;
  const IsEnding& is_ending_;
  Deadline give_up_;
  std::optional<Deadline> give_up_offline_;  // while no server can be reached
  std::chrono::milliseconds pause_;
};

}  // namespace stfs
