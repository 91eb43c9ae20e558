#include "core/remote/s3_credentials.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cstdio>
#include <ctime>
#include <map>
#include <utility>
#include <vector>

#include "core/base/cancellation.h"
#include "core/base/printable.h"
#include "core/format/json_cursor.h"
#include "core/format/json_syntax.h"
#include "core/remote/credential_process.h"
#include "core/remote/escapes.h"
#include "core/remote/http_answer.h"
#include "core/remote/http_connection.h"
#include "core/remote/retries.h"
#include "core/remote/settings.h"
#include "core/remote/xml_text.h"

namespace stfs {
namespace {

using Found = Result<std::optional<S3Credentials>>;

constexpr std::size_t kMostTextBytes = 64 << 10;
constexpr std::chrono::seconds kServicePatience{10};
constexpr std::chrono::seconds kProcessPatience{60};

tl::unexpected<Error> refused(std::string message) {
  return fail(ErrorCode::System, EACCES, std::move(message));
}

/// Returns true if a text can be the value of a header.
bool is_header_value(std::string_view text) {
  return std::ranges::all_of(text, [](unsigned char c) { return std::isprint(c) != 0; });
}

Result<S3Credentials> checked(S3Credentials found) {
  for (const std::string* text :
       {&found.keys.access_key, &found.keys.secret_key, &found.keys.session_token}) {
    if (!std::ranges::all_of(*text, [](unsigned char c) { return std::isgraph(c) != 0; }))
      return fail(ErrorCode::InvalidArgument, EINVAL,
                  fmt::format("the credentials of {} have characters that none has", found.source));
  }
  return found;
}

// --- services ---------------------------------------------------------------------------------------------

struct Answered {
  long status = 0;
  std::string text;  // of the body
};

/// Requests a text, once or with retries.
Result<Answered> request_text(HttpConnection& connection, const HttpConnection::Request& request,
                              bool is_tried_again) {
  const RetryRules rules{.patience = kServicePatience};
  const Retries::IsEnding is_ending = [] { return Cancellation::is_end(); };
  Retries retries(rules, is_ending);
  std::vector<std::byte> bytes(kMostTextBytes);
  while (true) {
    const HttpAnswer answer = connection.get(
        request, bytes,
        {.wants_body = [](const HttpAnswer& head) { return head.status == 200; }, .is_ending = is_ending});
    const bool is_passing_failure =
        answer.status == 200 ? answer.failure.has_value() : answer.status == 0 || is_passing(answer.status);
    if (!is_passing_failure) {
      return Answered{answer.status, answer.status == 200
                                         ? std::string(reinterpret_cast<const char*>(bytes.data()),
                                                       static_cast<std::size_t>(answer.received_bytes))
                                         : answer.error_text};
    }
    Error why = answer.failure.value_or(
        Error{ErrorCode::System, EIO, fmt::format("answers with status {}", answer.status)});
    if (!is_tried_again || is_final(why)) return tl::unexpected(std::move(why));
    RETURN_IF_ERROR(retries.wait(std::move(why), asked_pause(answer)));
  }
}

/// Exchanges the token of AWS_WEB_IDENTITY_TOKEN_FILE for the keys of a role.
Found ask_for_role(const AwsSettings& settings, HttpConnection& connection) {
  if (settings.identity_file.empty() || settings.role_arn.empty()) return std::nullopt;
  const std::string source = fmt::format("the role {}", printable(settings.role_arn));
  const auto token = small_file(settings.identity_file, kMostTextBytes);
  if (!token)
    return refused(fmt::format("{}: can't be read, so there are no credentials", settings.identity_file));
  const bool is_global = variable("AWS_REGION").empty() && variable("AWS_DEFAULT_REGION").empty();
  std::string url = settings.sts_endpoint;
  if (url.empty())
    url = is_global ? "https://sts.amazonaws.com"
                    : fmt::format("https://sts.{}.amazonaws.com{}", escaped_part(settings.region),
                                  settings.region.starts_with("cn-") ? ".cn" : "");
  if (!url.starts_with("https://") && !is_loopback(url))
    return fail(ErrorCode::InvalidArgument, EINVAL, "AWS_ENDPOINT_URL_STS: a token is sent over https only");
  url += "/?" + canonical_query({{"Action", "AssumeRoleWithWebIdentity"},
                                 {"RoleArn", settings.role_arn},
                                 {"RoleSessionName", settings.role_session},
                                 {"Version", "2011-06-15"},
                                 {"WebIdentityToken", trimmed_text(token->text)}});
  auto answer = request_text(
      connection, {.url = url, .certificates = settings.certificates, .most_time = kServicePatience}, true);
  if (!answer) return tl::unexpected(std::move(answer).error().within(source));
  if (answer->status != 200)
    return refused(fmt::format("{}: the token service answers with status {} ({})", source, answer->status,
                               printable(xml_value(answer->text, "Code").substr(0, 80))));
  S3Credentials found{
      .keys = {xml_value(answer->text, "AccessKeyId"), xml_value(answer->text, "SecretAccessKey"),
               xml_value(answer->text, "SessionToken")},
      .source = source,
      .expires = parse_iso_time(xml_value(answer->text, "Expiration"))};
  if (found.keys.access_key.empty() || found.keys.secret_key.empty())
    return refused(source + ": the token service answers without keys");
  return found;
}

/// Asks the service that gives a container its keys (ECS, EKS).
Found ask_container(const AwsSettings& settings, HttpConnection& connection) {
  const std::string& url = settings.container_url;
  if (url.empty()) return std::nullopt;
  const std::string source = "the container";
  if (!url.starts_with("https://") && !is_near(url)) {
    return fail(ErrorCode::InvalidArgument, EINVAL,
                "AWS_CONTAINER_CREDENTIALS_FULL_URI: must be an address of https, of this host, or of the "
                "service of AWS for containers");
  }
  std::string token = settings.container_token;
  if (!settings.container_token_file.empty()) {
    const auto file = small_file(settings.container_token_file, kMostTextBytes);
    if (!file) return refused(settings.container_token_file + ": can't be read, so there are no credentials");
    token = trimmed_text(file->text);
  }
  if (!is_header_value(token))
    return fail(ErrorCode::InvalidArgument, EINVAL,
                "AWS_CONTAINER_AUTHORIZATION_TOKEN: has characters that no token has");
  auto answer = request_text(
      connection, {.url = url, .headers = authorization_header(token), .most_time = kServicePatience}, true);
  if (!answer) return tl::unexpected(std::move(answer).error().within("credentials of " + source));
  if (answer->status != 200)
    return refused(
        fmt::format("credentials of {}: the service answers with status {}", source, answer->status));
  return credentials_of_json(answer->text, source);
}

/// Asks the metadata service of an instance (IMDSv2). Most machines have none.
Found ask_instance(const AwsSettings& settings, HttpConnection& connection) {
  constexpr std::chrono::seconds kPatience{1};
  const std::string& endpoint = settings.metadata_endpoint;
  if (endpoint.empty()) return std::nullopt;
  if (!endpoint.starts_with("https://") && !is_near(endpoint)) {
    return fail(
        ErrorCode::InvalidArgument, EINVAL,
        "AWS_EC2_METADATA_SERVICE_ENDPOINT: must be an address of this host or of the service of AWS");
  }
  const auto token = request_text(connection,
                                  {.url = endpoint + "/latest/api/token",
                                   .headers = {"X-aws-ec2-metadata-token-ttl-seconds: 21600"},
                                   .method = "PUT",
                                   .most_time = kPatience},
                                  false);
  if (!token || token->status != 200 || !is_header_value(token->text)) return std::nullopt;
  const auto ask = [&](const std::string& path) {
    return request_text(connection,
                        {.url = endpoint + "/latest/meta-data/iam/security-credentials/" + path,
                         .headers = {"X-aws-ec2-metadata-token: " + token->text},
                         .most_time = kPatience},
                        false);
  };
  const auto roles = ask("");
  if (!roles || roles->status != 200) return std::nullopt;
  const std::string role = trimmed_text(roles->text.substr(0, roles->text.find('\n')));
  if (role.empty()) return std::nullopt;
  const auto keys = ask(escaped_part(role));
  if (!keys || keys->status != 200)
    return refused(fmt::format("the metadata service gives no keys for the role {}", printable(role)));
  return credentials_of_json(keys->text, fmt::format("the instance's role {}", printable(role)));
}

// --- the profile ------------------------------------------------------------------------------------------

Found ask_process(const AwsSettings& settings, const std::string& source) {
  const std::string command = settings.value("credential_process");
  if (command.empty()) return std::nullopt;
  if (!settings.is_own_config)
    return refused(source + ": its credential_process is not run, because others may write the file");
  const auto words = command_words(command);
  if (!words || words->empty())
    return fail(ErrorCode::InvalidArgument, EINVAL, source + ": its credential_process is no command");
  auto output = output_of(*words, kProcessPatience);
  if (!output) return tl::unexpected(std::move(output).error().within(source));
  return credentials_of_json(*output, source);
}

Found ask_profile(const AwsSettings& settings) {
  const std::string source = "profile " + printable(settings.profile);
  const auto advised = [&](std::string_view kind) {
    return refused(
        fmt::format("{}: {} is not read: give the profile credential_process = aws configure "
                    "export-credentials --format process --profile OTHER, or set AWS_ACCESS_KEY_ID "
                    "and the others with `aws configure export-credentials --format env`",
                    source, kind));
  };
  if (!settings.value("role_arn").empty()) return advised("role_arn");
  if (!settings.value("aws_access_key_id").empty()) {
    if (settings.value("aws_secret_access_key").empty())
      return fail(ErrorCode::InvalidArgument, EINVAL,
                  source + ": has an aws_access_key_id, but no aws_secret_access_key");
    return S3Credentials{
        .keys = {settings.value("aws_access_key_id"), settings.value("aws_secret_access_key"),
                 settings.value("aws_session_token")},
        .source = source};
  }
  auto found = ask_process(settings, source);
  if (!found || *found) return found;
  if (!settings.value("sso_session").empty() || !settings.value("sso_start_url").empty())
    return advised("a login of SSO");
  return std::nullopt;
}

}  // namespace

std::optional<S3Time> parse_iso_time(std::string_view text) {
  std::tm parts{};
  int size = 0;
  const std::string copy(text);
  if (std::sscanf(copy.c_str(), "%4d-%2d-%2dT%2d:%2d:%2d%n", &parts.tm_year, &parts.tm_mon, &parts.tm_mday,
                  &parts.tm_hour, &parts.tm_min, &parts.tm_sec, &size) != 6)
    return std::nullopt;
  parts.tm_year -= 1900;
  parts.tm_mon -= 1;
  std::string_view rest = text.substr(static_cast<std::size_t>(size));
  if (rest.starts_with('.'))
    rest.remove_prefix(std::min(rest.find_first_not_of("0123456789", 1), rest.size()));
  int hours = 0;
  int minutes = 0;
  if (!rest.empty() && rest != "Z") {
    const std::string offset(rest.substr(1));
    if ((rest.front() != '+' && rest.front() != '-') ||
        std::sscanf(offset.c_str(), "%2d:%2d", &hours, &minutes) != 2)
      return std::nullopt;
  }
  const int sign = rest.starts_with('-') ? 1 : -1;
  return S3Time(std::chrono::seconds(::timegm(&parts))) +
         sign * (std::chrono::hours(hours) + std::chrono::minutes(minutes));
}

Result<S3Credentials> credentials_of_json(std::string_view json, std::string source) {
  constexpr unsigned kMostDepth = 16;
  std::map<std::string, std::string, std::less<>> members;
  JsonCursor cursor(json);
  if (!find_json_error(json, kMostDepth) && cursor.peek() == '{') {
    RETURN_IF_ERROR(cursor.for_each_member([&](std::string_view name, std::size_t) -> Result<void> {
      std::string decoded;
      const std::string key(name);
      members[key] = cursor.peek() == '"' ? cursor.take_string(decoded) : cursor.take_value();
      return {};
    }));
  }
  S3Credentials found{.keys = {members["AccessKeyId"], members["SecretAccessKey"],
                               members.contains("Token") ? members["Token"] : members["SessionToken"]},
                      .source = std::move(source),
                      .expires = parse_iso_time(members["Expiration"])};
  if (found.keys.access_key.empty() || found.keys.secret_key.empty())
    return refused(found.source + ": answers without AccessKeyId and SecretAccessKey in JSON");
  if (found.keys.session_token == "null") found.keys.session_token.clear();
  return found;
}

Result<S3Credentials> find_s3_credentials(const AwsSettings& settings) {
  if (!settings.keys.access_key.empty())
    return checked({.keys = settings.keys, .source = "AWS_ACCESS_KEY_ID"});
  HttpConnection connection;
  const std::array<std::function<Found()>, 4> sources = {[&] { return ask_for_role(settings, connection); },
                                                         [&] { return ask_profile(settings); },
                                                         [&] { return ask_container(settings, connection); },
                                                         [&] { return ask_instance(settings, connection); }};
  for (const auto& ask : sources) {
    auto found = ask();
    RETURN_IF_ERROR(found);
    if (*found) return checked(std::move(**found));
  }
  return S3Credentials{};
}

}  // namespace stfs
