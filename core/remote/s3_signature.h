// Signs requests for stores that speak the protocol of S3: AWS Signature Version 4, without libcurl's own
// signer, because that one differs from version to version.
//
// The signature covers the method, the path, the query, and the headers that decide what the answer is. A
// caller sends the path and the query exactly as they were signed.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/base/byte_range.h"
#include "core/base/error.h"

namespace stfs {

/// The keys of a user. No message has them.
struct S3Keys {
  std::string access_key;  // a name, not a secret; empty: there are no keys
  std::string secret_key;
  std::string session_token;  // empty: none
  bool operator==(const S3Keys&) const = default;
};

/// A GET without a body.
struct S3Request {
  std::string host;     // as the header has it: with the port, unless the scheme implies it
  std::string path;     // escaped: escaped_key()
  std::string query{};  // canonical: canonical_query(); empty: none
  std::optional<ByteRange> range{};
};

using S3Time = std::chrono::sys_seconds;

/// Escapes a key, or a path of it, as S3 does. Keeps its slashes.
std::string escaped_key(std::string_view key);

/// Returns a query with escapes, in the order of the signature.
std::string canonical_query(std::vector<std::pair<std::string, std::string>> parameters);

/// Returns the headers that a signed request needs, each "NAME: VALUE". The header Range is signed, and
/// libcurl sends it. Without keys only the header Host is returned.
/// @return ENOSYS: there is no libcrypto.
Result<std::vector<std::string>> signed_headers(const S3Request& request, const S3Keys& keys,
                                                std::string_view region, S3Time now);

}  // namespace stfs
