#include "core/remote/s3_bucket.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cstdio>
#include <ctime>
#include <map>
#include <string_view>

#include "core/base/cancellation.h"
#include "core/remote/escapes.h"
#include "core/remote/http_answer.h"
#include "core/remote/retries.h"
#include "core/remote/s3_signature.h"
#include "core/remote/xml_text.h"

namespace stfs {
namespace {

constexpr std::chrono::minutes kLeastLife{5};

S3Time clock_now() {
  return std::chrono::floor<std::chrono::seconds>(std::chrono::system_clock::now());
}

bool is_word(std::string_view text, std::string_view marks) {
  constexpr std::size_t kMostNameBytes = 255;
  return !text.empty() && text.size() <= kMostNameBytes && std::ranges::all_of(text, [&](unsigned char c) {
    return std::isalnum(c) != 0 || marks.find(static_cast<char>(c)) != marks.npos;
  });
}

/// Returns true if the name can be a part of a host's name. A certificate of the store does not cover a dot.
bool is_host_word(std::string_view name) {
  constexpr std::size_t kMostNameBytes = 63;
  return name.size() <= kMostNameBytes && std::ranges::all_of(name, [](unsigned char c) {
           return std::islower(c) != 0 || std::isdigit(c) != 0 || c == '-';
         });
}

/// An address in parts: "https://", "host:port", "/path".
struct AddressParts {
  std::string_view scheme, host, path;
};

AddressParts parts_of(std::string_view address) {
  const std::size_t host = address.find("://") + 3;
  const std::size_t path = std::min(address.find('/', host), address.size());
  AddressParts parts{address.substr(0, host), address.substr(host, path - host), address.substr(path)};
  const std::string_view usual = parts.scheme == "https://" ? ":443" : ":80";
  if (parts.host.ends_with(usual)) parts.host.remove_suffix(usual.size());
  return parts;
}

/// Parses "Tue, 01 Dec 2026 12:00:00 GMT".
std::optional<S3Time> parse_http_time(const std::string& text) {
  constexpr std::string_view kMonths = "JanFebMarAprMayJunJulAugSepOctNovDec";
  std::tm parts{};
  std::array<char, 4> month{};
  if (std::sscanf(text.c_str(), "%*3s, %2d %3s %4d %2d:%2d:%2d", &parts.tm_mday, month.data(), &parts.tm_year,
                  &parts.tm_hour, &parts.tm_min, &parts.tm_sec) != 6)
    return std::nullopt;
  const std::size_t at = kMonths.find(month.data());
  if (at == kMonths.npos || at % 3 != 0) return std::nullopt;
  parts.tm_year -= 1900;
  parts.tm_mon = static_cast<int>(at / 3);
  return S3Time(std::chrono::seconds(::timegm(&parts)));
}

bool says_expired(std::string_view code) {
  return code == "ExpiredToken" || code == "ExpiredTokenException" || code == "TokenRefreshRequired" ||
         code == "InvalidToken" || code == "InvalidAccessKeyId";
}

Result<S3Credentials> find_again() {
  const auto settings = read_aws_settings();
  RETURN_IF_ERROR(settings);
  return find_s3_credentials(*settings);
}

}  // namespace

std::string s3_error_code(const HttpAnswer& answer) {
  const std::string code = xml_value(answer.error_text, "Code");
  return is_word(code, "._-") ? code : std::string();
}

Result<std::shared_ptr<S3Bucket>> S3Bucket::find(const std::string& name) {
  static Mutex mutex;  // guards `buckets`
  static std::map<std::string, std::shared_ptr<S3Bucket>> buckets;
  if (!is_word(name, "._-") || name.starts_with('.') || name.starts_with('-')) {
    return fail(ErrorCode::InvalidArgument, EINVAL,
                fmt::format("s3://{}: names no bucket: write s3://BUCKET/KEY", name));
  }
  auto settings = read_aws_settings();
  RETURN_IF_ERROR(settings);
  const MutexLock lock(mutex);
  std::shared_ptr<S3Bucket>& bucket = buckets[name];
  if (!bucket || !(bucket->settings_ == *settings))
    bucket = std::make_shared<S3Bucket>(name, std::move(*settings), find_again);
  return bucket;
}

bool S3Bucket::has_keys() const {
  const MutexLock lock(mutex_);
  return credentials_ && !credentials_->keys.access_key.empty();
}

S3Time S3Bucket::now() const {
  return clock_now() + clock_ahead_;
}

Result<void> S3Bucket::refresh() {
  constexpr std::chrono::seconds kPause{30};
  const bool is_good =
      credentials_ && (!credentials_->expires || *credentials_->expires > now() + kLeastLife);
  if (is_good || (credentials_ && now() < next_refresh_)) return {};
  auto found = find_();
  if (found) {
    // A service may give the same keys until their last minutes.
    next_refresh_ = now() + kPause;
    if (!credentials_ || !(credentials_->keys == found->keys)) ++state_;
    credentials_ = std::move(*found);
    return {};
  }
  next_refresh_ = now() + kPause;
  if (credentials_ && *credentials_->expires > now()) return {};  // the old ones still work
  return tl::unexpected(std::move(found).error());
}

std::string S3Bucket::base() const {
  if (!settings_.endpoint.empty()) return fmt::format("{}/{}", settings_.endpoint, escaped_part(name_));
  const std::string store =
      fmt::format("s3.{}.amazonaws.com{}", escaped_part(region_), region_.starts_with("cn-") ? ".cn" : "");
  return is_host_word(name_) ? fmt::format("https://{}.{}", name_, store)
                             : fmt::format("https://{}/{}", store, escaped_part(name_));
}

Result<RequestSigner::Signed> S3Bucket::sign(const What& what) {
  const MutexLock lock(mutex_);
  RETURN_IF_ERROR(check_url(base()));  // before a search that may run a program
  RETURN_IF_ERROR(refresh());
  const std::string address = base();
  const AddressParts parts = parts_of(address);
  // A signature shows no secret key. A session token is a part of the keys.
  const bool has_token = !credentials_->keys.session_token.empty();
  if (has_token && parts.scheme != "https://" && !is_loopback(address)) {
    return fail(
        ErrorCode::InvalidArgument, EINVAL,
        fmt::format("AWS_ENDPOINT_URL={}: a session token is sent over https only: name an address of https",
                    settings_.endpoint));
  }
  std::string path(parts.path);
  if (!what.key.empty() || path.empty()) path += "/" + escaped_key(what.key);
  auto headers = signed_headers(
      {.host = std::string(parts.host), .path = path, .query = what.query, .range = what.range},
      credentials_->keys, region_, now());
  RETURN_IF_ERROR(headers);
  return RequestSigner::Signed{.request = {.url = fmt::format("{}{}{}{}{}", parts.scheme, parts.host, path,
                                                              what.query.empty() ? "" : "?", what.query),
                                           .range = what.range,
                                           .headers = std::move(*headers),
                                           .certificates = settings_.certificates},
                               .state = state_};
}

bool S3Bucket::learn_region(const HttpAnswer& answer) {
  const bool says_region = answer.status == 301 || answer.status == 307 || answer.status == 400;
  if (!says_region || has_moved_) return false;
  const std::string in_text = xml_value(answer.error_text, "Region");
  const std::string& region = answer.bucket_region.empty() ? in_text : answer.bucket_region;
  if (!is_word(region, "-") || region == region_) return false;
  region_ = region;
  has_moved_ = true;
  return true;
}

bool S3Bucket::learn_time(const HttpAnswer& answer) {
  constexpr std::chrono::minutes kLeast{1};
  const auto there = parse_http_time(answer.date);
  if (!there) return false;
  const std::chrono::seconds ahead = *there - clock_now();
  if (std::chrono::abs(ahead - clock_ahead_) < kLeast) return false;
  clock_ahead_ = ahead;
  return true;
}

Result<bool> S3Bucket::learn(const HttpAnswer& answer, std::uint64_t state) {
  const std::string code = s3_error_code(answer);
  const MutexLock lock(mutex_);
  const bool is_about_keys = answer.status == 400 || answer.status == 401 || answer.status == 403;
  if (state != state_) return is_about_keys || is_redirect(answer.status);
  bool has_learned = learn_region(answer);
  if (code == "RequestTimeTooSkewed") has_learned = learn_time(answer);
  if (is_about_keys && says_expired(code) && !credentials_->keys.access_key.empty()) {
    auto found = find_();
    RETURN_IF_ERROR(found);
    has_learned = !(found->keys == credentials_->keys);
    credentials_ = std::move(*found);
  }
  if (has_learned) ++state_;
  return has_learned;
}

std::string S3Bucket::advice(const std::string& code) const {
  if (!credentials_ || credentials_->keys.access_key.empty())
    return "no credentials were found, so the request was not signed: set AWS_PROFILE, or AWS_ACCESS_KEY_ID "
           "and "
           "AWS_SECRET_ACCESS_KEY";
  const std::string& source = credentials_->source;
  if (says_expired(code) && code != "InvalidAccessKeyId")
    return fmt::format("the credentials of {} have expired: renew them", source);
  if (code == "InvalidAccessKeyId" || code == "SignatureDoesNotMatch")
    return fmt::format("it does not accept the credentials of {}", source);
  if (code == "RequestTimeTooSkewed") return "the clock of this machine is wrong";
  if (code == "AuthorizationHeaderMalformed") return "set AWS_REGION to the region of the bucket";
  return fmt::format("the credentials of {} may not read it, or may not see whether it is there", source);
}

std::optional<Error> S3Bucket::refusal(const HttpAnswer& answer) const {
  const std::string code = s3_error_code(answer);
  if (answer.status == 404 && code == "NoSuchBucket")
    return Error{ErrorCode::NotFound, ENOENT,
                 fmt::format("the store has no bucket {} (status 404, NoSuchBucket)", name_)};
  if (answer.status != 400 && answer.status != 401 && answer.status != 403) return std::nullopt;
  const MutexLock lock(mutex_);
  return Error{ErrorCode::System, EACCES,
               fmt::format("the store answers with status {}{}: {}", answer.status,
                           code.empty() ? "" : " " + code, advice(code))};
}

Result<HttpAnswer> S3Bucket::get(const What& what, std::span<std::byte> to, HttpConnection& connection) {
  const RetryRules rules;
  const Retries::IsEnding is_ending = [] { return Cancellation::is_end(); };
  Retries retries(rules, is_ending);
  for (unsigned lessons = 0;;) {
    auto made = sign(what);
    RETURN_IF_ERROR(made);
    HttpAnswer answer = connection.get(
        made->request, to,
        {.wants_body = [&](const HttpAnswer& head) { return head.status == 200 && !to.empty(); },
         .is_ending = is_ending});
    if (answer.failure && is_final(*answer.failure)) return tl::unexpected(std::move(*answer.failure));
    if (answer.status >= 300) {
      const auto has_learned = learn(answer, made->state);
      RETURN_IF_ERROR(has_learned);
      if (*has_learned && ++lessons <= kMostRedirects) continue;
    }
    const bool is_answered = answer.status != 0 && !(answer.status == 200 && answer.failure);
    if (is_answered && !is_passing(answer.status)) return answer;
    Error why = answer.failure.value_or(
        Error{ErrorCode::System, EIO, fmt::format("the store answers with status {}", answer.status)});
    RETURN_IF_ERROR(retries.wait(std::move(why), asked_pause(answer)));
  }
}

}  // namespace stfs
