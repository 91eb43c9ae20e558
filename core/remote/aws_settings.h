// The settings of a user for S3, as the tools of AWS read them: variables of the environment, ~/.aws/config
// and ~/.aws/credentials. Nothing is asked for over the network.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <string_view>

#include "core/base/error.h"
#include "core/remote/s3_signature.h"

namespace stfs {

/// The profiles of a file: its sections, each with its values.
using AwsProfiles = std::map<std::string, std::map<std::string, std::string>, std::less<>>;

/// Reads ~/.aws/config or ~/.aws/credentials.
/// @param is_config  the sections have names like "profile NAME", except for "default". Sections with other
///   names are left out.
AwsProfiles read_aws_profiles(std::string_view text, bool is_config);

struct AwsSettings {
  std::string region = "us-east-1";
  std::string endpoint{};      // without a slash at the end; empty: AWS itself
  std::string certificates{};  // a file; empty: the usual one
  S3Keys keys{};               // of the environment
  std::string role_arn{};      // with identity_file: the role that AWS gives to the bearer of the token
  std::string role_session{};
  std::string identity_file{};
  std::string sts_endpoint{};
  std::string profile{};                        // its name
  std::map<std::string, std::string> values{};  // of the profile; credentials win over config
  bool is_own_config = true;                    // only this user or root may write the files of the profile
  std::string container_url{};                  // of a service that has the keys of a container
  std::string container_token{};
  std::string container_token_file{};  // wins over container_token
  std::string metadata_endpoint{};     // of the instance; empty: it is not asked
  bool operator==(const AwsSettings&) const = default;

  /// Returns a value of the profile. Empty: it has none.
  [[nodiscard]] std::string value(const std::string& name) const;
};

/// EINVAL: AWS_PROFILE names a profile that is not there, AWS_ACCESS_KEY_ID has no secret key, the endpoint
/// is no address, or the region is no word. EACCES: a profile that others may write names an endpoint, a file
/// of certificates or a file with a token, and this would be used.
Result<AwsSettings> read_aws_settings();

}  // namespace stfs
