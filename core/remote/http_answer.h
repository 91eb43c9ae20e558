// The meaning of answers of web servers, for all requests.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string_view>

#include "core/remote/http_connection.h"

namespace stfs {

/// The most redirects of one request. If an address has expired, the next try counts as a redirect.
inline constexpr unsigned kMostRedirects = 5;

/// Returns nothing unless the whole text is a number.
std::optional<std::uint64_t> whole_number(std::string_view text);

bool is_redirect(long status);
/// Returns true if the same request may succeed later.
bool is_passing(long status);
/// Returns true if another try would fail as well.
bool is_final(const Error& failure);

/// Returns the pause that the server asks for: Retry-After, or the end of the window in RateLimit. At most an
/// hour.
std::chrono::seconds asked_pause(const HttpAnswer& answer);

}  // namespace stfs
