// Finds the keys that sign a user's requests to S3: in the order of the tools of AWS, from the same places.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "core/base/error.h"
#include "core/remote/aws_settings.h"
#include "core/remote/s3_signature.h"

namespace stfs {

struct S3Credentials {
  S3Keys keys{};         // without an access key: none were found, and requests are not signed
  std::string source{};  // for messages: "the environment", "profile NAME" ...
  std::optional<S3Time> expires{};
};

/// Asks one source after the other: the environment; a role for the bearer of a token (web identity); the
/// profile, with its keys or its credential_process; the service of a container; the metadata service of an
/// instance, for one second. A source that is configured and fails ends the search.
/// @return EACCES, EINVAL, ENETUNREACH, EIO: a source has failed. ENOSYS: there is no libcurl.
Result<S3Credentials> find_s3_credentials(const AwsSettings& settings);

/// Reads {"AccessKeyId": ..., "SecretAccessKey": ..., "SessionToken" or "Token": ..., "Expiration": ...}.
/// @return EACCES: it has no keys.
Result<S3Credentials> credentials_of_json(std::string_view json, std::string source);

/// Parses "2026-12-01T08:00:00Z", also with parts of seconds and with an offset such as "+00:00".
std::optional<S3Time> parse_iso_time(std::string_view text);

}  // namespace stfs
