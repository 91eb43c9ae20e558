#include "core/remote/http_answer.h"

#include <algorithm>
#include <cerrno>
#include <charconv>

namespace stfs {

std::optional<std::uint64_t> whole_number(std::string_view text) {
  std::uint64_t value = 0;
  const auto [end, failed] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (failed != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

bool is_redirect(long status) {
  return status == 301 || status == 302 || status == 303 || status == 307 || status == 308;
}

bool is_passing(long status) {
  return status == 408 || status == 429 || status == 500 || status == 502 || status == 503 || status == 504;
}

bool is_final(const Error& failure) {
  return failure.errno_value == ENOSYS || failure.errno_value == ECANCELED ||
         failure.errno_value == EBADMSG || failure.errno_value == EKEYREJECTED;
}

std::chrono::seconds asked_pause(const HttpAnswer& answer) {
  constexpr std::uint64_t kMostSeconds = 3600;
  std::uint64_t seconds = whole_number(answer.retry_after).value_or(0);
  // RateLimit: "resolvers";r=0;t=55
  const std::string_view limit = answer.rate_limit;
  const std::size_t at = limit.find(";t=");
  if (seconds == 0 && answer.status == 429 && at != limit.npos) {
    const std::string_view rest = limit.substr(at + 3);
    seconds = whole_number(rest.substr(0, rest.find_first_not_of("0123456789"))).value_or(0) + 1;
  }
  return std::chrono::seconds(std::min(seconds, kMostSeconds));
}

}  // namespace stfs
