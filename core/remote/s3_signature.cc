#include "core/remote/s3_signature.h"

#include <fmt/format.h>

#include <algorithm>
#include <ctime>
#include <map>

#include "core/remote/digest.h"
#include "core/remote/escapes.h"

namespace stfs {
namespace {

constexpr std::string_view kMethod = "AWS4-HMAC-SHA256";
constexpr std::string_view kNoBody = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

std::string time_text(S3Time now, const char* form) {
  const std::time_t seconds = std::chrono::system_clock::to_time_t(now);
  std::tm parts{};
  ::gmtime_r(&seconds, &parts);
  std::string text(32, '\0');
  text.resize(std::strftime(text.data(), text.size(), form, &parts));
  return text;
}

std::string hexadecimal(std::string_view bytes) {
  std::string text;
  for (const char byte : bytes) text += fmt::format("{:02x}", static_cast<unsigned char>(byte));
  return text;
}

/// Returns the key that signs all requests of a day to a region.
Result<std::string> signing_key(const S3Keys& keys, std::string_view day, std::string_view region) {
  std::string key = "AWS4" + keys.secret_key;
  for (const std::string_view part :
       {day, region, std::string_view("s3"), std::string_view("aws4_request")}) {
    auto next = hmac_sha256(key, part);
    RETURN_IF_ERROR(next);
    key = std::move(*next);
  }
  return key;
}

}  // namespace

std::string escaped_key(std::string_view key) {
  return escaped_part(key, "/");
}

std::string canonical_query(std::vector<std::pair<std::string, std::string>> parameters) {
  for (auto& [name, value] : parameters) {
    name = escaped_part(name);
    value = escaped_part(value);
  }
  std::ranges::sort(parameters);
  std::string query;
  for (const auto& [name, value] : parameters)
    query += fmt::format("{}{}={}", query.empty() ? "" : "&", name, value);
  return query;
}

Result<std::vector<std::string>> signed_headers(const S3Request& request, const S3Keys& keys,
                                                std::string_view region, S3Time now) {
  std::vector<std::string> headers = {"Host: " + request.host};
  if (keys.access_key.empty()) return headers;
  const std::string time = time_text(now, "%Y%m%dT%H%M%SZ");
  const std::string day = time.substr(0, 8);
  std::map<std::string, std::string> covered = {
      {"host", request.host}, {"x-amz-content-sha256", std::string(kNoBody)}, {"x-amz-date", time}};
  if (request.range)
    covered["range"] = fmt::format("bytes={}-{}", request.range->offset, request.range->end() - 1);
  if (!keys.session_token.empty()) covered["x-amz-security-token"] = keys.session_token;

  std::string names;
  std::string lines;
  for (const auto& [name, value] : covered) {
    names += (names.empty() ? "" : ";") + name;
    lines += fmt::format("{}:{}\n", name, value);
    if (name.starts_with("x-amz-")) headers.push_back(fmt::format("{}: {}", name, value));
  }
  const auto digest =
      sha256_of(fmt::format("GET\n{}\n{}\n{}\n{}\n{}", request.path, request.query, lines, names, kNoBody));
  RETURN_IF_ERROR(digest);
  const std::string scope = fmt::format("{}/{}/s3/aws4_request", day, region);
  const auto key = signing_key(keys, day, region);
  RETURN_IF_ERROR(key);
  const auto signature = hmac_sha256(*key, fmt::format("{}\n{}\n{}\n{}", kMethod, time, scope, *digest));
  RETURN_IF_ERROR(signature);
  headers.push_back(fmt::format("Authorization: {} Credential={}/{},SignedHeaders={},Signature={}", kMethod,
                                keys.access_key, scope, names, hexadecimal(*signature)));
  return headers;
}

}  // namespace stfs
