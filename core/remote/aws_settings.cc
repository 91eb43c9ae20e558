#include "core/remote/aws_settings.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <optional>
#include <utility>

#include "core/base/printable.h"
#include "core/remote/settings.h"

namespace stfs {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kMostConfigBytes = 1 << 20;

/// Returns the first value that is not empty.
std::string first_of(std::initializer_list<std::string> values) {
  for (const std::string& value : values) {
    if (!value.empty()) return value;
  }
  return {};
}

/// Returns the file that a variable names, or else the file in ~/.aws. Empty without a home directory: no
/// file in the working directory is meant.
fs::path config_path(const char* name, const char* usual) {
  const std::string path = variable(name);
  if (!path.empty() && !path.starts_with("~/")) return path;
  const std::string home = variable("HOME");
  if (!home.starts_with('/')) return {};
  return path.empty() ? fs::path(home) / ".aws" / usual : fs::path(home) / path.substr(2);
}

/// Returns the name of the profile in a line "[...]". Nothing for another kind of section.
std::optional<std::string> section_name(std::string_view line, bool is_config) {
  std::string name = trimmed_text(line.substr(1, line.find(']') - 1));
  if (!is_config || name == "default") return name;
  constexpr std::string_view kProfile = "profile";
  if (!name.starts_with(kProfile) || name.find_first_of(" \t") != kProfile.size()) return std::nullopt;
  name = trimmed_text(std::string_view(name).substr(kProfile.size()));
  if (name.size() >= 2 && name.front() == name.back() && (name.front() == '"' || name.front() == '\''))
    name = name.substr(1, name.size() - 2);
  return name;
}

Result<void> read_profile(AwsSettings& settings) {
  const std::string named = first_of({variable("AWS_PROFILE"), variable("AWS_DEFAULT_PROFILE")});
  settings.profile = named.empty() ? "default" : named;
  bool is_there = named.empty();
  const std::pair<fs::path, bool> files[] = {
      {config_path("AWS_CONFIG_FILE", "config"), true},
      {config_path("AWS_SHARED_CREDENTIALS_FILE", "credentials"), false}};
  for (const auto& [path, is_config] : files) {
    const auto file = small_file(path, kMostConfigBytes);
    if (!file) continue;
    AwsProfiles profiles = read_aws_profiles(file->text, is_config);
    const auto found = profiles.find(settings.profile);
    if (found == profiles.end()) continue;
    is_there = true;
    settings.is_own_config = settings.is_own_config && file->is_own;
    for (auto& [name, value] : found->second) settings.values[name] = std::move(value);
  }
  if (is_there) return {};
  return fail(ErrorCode::InvalidArgument, EINVAL,
              fmt::format("AWS_PROFILE={}: neither {} nor {} has this profile", printable(named),
                          files[0].first.native(), files[1].first.native()));
}

/// Refuses values that lead requests or files of this user elsewhere, if others may write the profile:
/// credential_process, which ask_process() refuses, is one more of them.
/// @param settings  with all of their values.
Result<void> check_writers(const AwsSettings& settings) {
  if (settings.is_own_config) return {};
  const bool asks_token_service = settings.keys.access_key.empty() && !settings.identity_file.empty();
  const bool has_general = !variable("AWS_ENDPOINT_URL").empty();
  const bool names_store = !has_general && variable("AWS_ENDPOINT_URL_S3").empty();
  const bool names_service = asks_token_service && !has_general && variable("AWS_ENDPOINT_URL_STS").empty();
  struct Rule {
    const char* value;
    const char* instead;
    bool is_used;
  };
  const Rule rules[] = {
      {"endpoint_url", "AWS_ENDPOINT_URL", names_store || names_service},
      {"ca_bundle", "AWS_CA_BUNDLE", variable("AWS_CA_BUNDLE").empty()},
      {"web_identity_token_file", "AWS_WEB_IDENTITY_TOKEN_FILE and AWS_ROLE_ARN",
       asks_token_service && variable("AWS_WEB_IDENTITY_TOKEN_FILE").empty()},
  };
  for (const Rule& rule : rules) {
    if (!rule.is_used || settings.value(rule.value).empty()) continue;
    return fail(ErrorCode::System, EACCES,
                fmt::format("profile {}: its {} is not used, because others may write the file: let only "
                            "yourself write it, or set {}",
                            printable(settings.profile), rule.value, rule.instead));
  }
  return {};
}

/// Returns true if the region can be a part of a host's name and of a signature.
bool is_region(std::string_view text) {
  return std::ranges::all_of(text,
                             [](unsigned char c) { return std::isalnum(c) != 0 || c == '-' || c == '_'; });
}

}  // namespace

AwsProfiles read_aws_profiles(std::string_view text, bool is_config) {
  AwsProfiles profiles;
  std::map<std::string, std::string>* section = nullptr;
  std::size_t indent = text.npos;  // of the last value; npos: of none
  while (!text.empty()) {
    std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(text.size(), line.size() + 1));
    const std::size_t first = line.find_first_not_of(" \t\r");
    if (first == line.npos || line[first] == '#' || line[first] == ';') continue;
    if (indent != text.npos && first > indent) continue;  // in a table of the value before
    line.remove_prefix(first);
    if (line.front() == '[') {
      const auto name = section_name(line, is_config);
      section = name ? &profiles[*name] : nullptr;
      indent = text.npos;
      continue;
    }
    const std::size_t sign = line.find('=');
    if (sign == line.npos || section == nullptr) continue;
    indent = first;
    std::string_view value = line.substr(sign + 1);
    for (const std::string_view comment : {" #", " ;", "\t#", "\t;"})
      value = value.substr(0, value.find(comment));
    (*section)[trimmed_text(line.substr(0, sign))] = trimmed_text(value);
  }
  return profiles;
}

std::string AwsSettings::value(const std::string& name) const {
  const auto found = values.find(name);
  return found == values.end() ? std::string() : found->second;
}

Result<AwsSettings> read_aws_settings() {
  AwsSettings settings;
  RETURN_IF_ERROR(read_profile(settings));
  settings.keys = {variable("AWS_ACCESS_KEY_ID"), variable("AWS_SECRET_ACCESS_KEY"),
                   variable("AWS_SESSION_TOKEN")};
  if (settings.keys.access_key.empty()) settings.keys = {};
  if (!settings.keys.access_key.empty() && settings.keys.secret_key.empty())
    return fail(ErrorCode::InvalidArgument, EINVAL,
                "AWS_ACCESS_KEY_ID is set, but AWS_SECRET_ACCESS_KEY is not: set both, or neither");
  settings.region = first_of(
      {variable("AWS_REGION"), variable("AWS_DEFAULT_REGION"), settings.value("region"), settings.region});
  settings.endpoint = first_of(
      {variable("AWS_ENDPOINT_URL_S3"), variable("AWS_ENDPOINT_URL"), settings.value("endpoint_url")});
  settings.certificates = first_of({variable("AWS_CA_BUNDLE"), settings.value("ca_bundle")});
  settings.identity_file = variable("AWS_WEB_IDENTITY_TOKEN_FILE");
  settings.role_arn = variable("AWS_ROLE_ARN");
  if (settings.identity_file.empty()) {
    settings.identity_file = settings.value("web_identity_token_file");
    settings.role_arn = settings.value("role_arn");
  }
  settings.role_session =
      first_of({variable("AWS_ROLE_SESSION_NAME"), settings.value("role_session_name"), "safetensorsfs"});
  settings.sts_endpoint = first_of(
      {variable("AWS_ENDPOINT_URL_STS"), variable("AWS_ENDPOINT_URL"), settings.value("endpoint_url")});
  const std::string relative = variable("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI");
  settings.container_url =
      relative.empty() ? variable("AWS_CONTAINER_CREDENTIALS_FULL_URI") : "http://169.254.170.2" + relative;
  settings.container_token = variable("AWS_CONTAINER_AUTHORIZATION_TOKEN");
  settings.container_token_file = variable("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE");
  if (!is_set("AWS_EC2_METADATA_DISABLED"))
    settings.metadata_endpoint =
        first_of({variable("AWS_EC2_METADATA_SERVICE_ENDPOINT"), "http://169.254.169.254"});
  for (std::string* address : {&settings.endpoint, &settings.sts_endpoint, &settings.metadata_endpoint}) {
    while (address->ends_with('/')) address->pop_back();
  }
  const std::string& endpoint = settings.endpoint;
  const bool is_web = endpoint.starts_with("https://") || endpoint.starts_with("http://");
  if (!endpoint.empty() && (!is_web || endpoint.find_first_of("@?# ") != endpoint.npos))
    return fail(ErrorCode::InvalidArgument, EINVAL,
                "AWS_ENDPOINT_URL: is no address of a store: write https://HOST, without a password");
  if (!is_region(settings.region))
    return fail(ErrorCode::InvalidArgument, EINVAL,
                fmt::format("AWS_REGION={}: is no name of a region", printable(settings.region)));
  RETURN_IF_ERROR(check_writers(settings));
  return settings;
}

}  // namespace stfs
