// Escapes in addresses: %20 is a space.
#pragma once

#include <string>
#include <string_view>

namespace stfs {

/// Returns true if the byte stays as it is in each part of an address (RFC 3986, section 2.3).
bool is_unreserved(unsigned char byte);

/// Escapes a part of an address, with upper-case digits.
/// @param kept  other characters that stay.
std::string escaped_part(std::string_view text, std::string_view kept = {});

/// Keeps a '%' that no two digits follow.
std::string unescaped_part(std::string_view text);

}  // namespace stfs
