// Libcurl's easy interface. Each worker (remote_workers.h) has one handle.
#include "core/remote/http_connection.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <string_view>
#include <utility>

#include "core/base/version.h"

#ifdef STFS_HAVE_CURL
#include <curl/curl.h>
#include <dlfcn.h>

#include <array>
#endif

namespace stfs {

#ifdef STFS_HAVE_CURL

namespace {

constexpr std::size_t kMostHeaderBytes = 256 << 10;  // of one answer; a hostile server sends any number
constexpr long kLeastErrorStatus = 400;

/// The functions of libcurl. Null if the system has no libcurl.
struct Curl {
  decltype(&curl_easy_init) easy_init = nullptr;
  decltype(&curl_easy_cleanup) easy_cleanup = nullptr;
  decltype(&curl_easy_reset) easy_reset = nullptr;
  decltype(&curl_easy_setopt) easy_setopt = nullptr;
  decltype(&curl_easy_perform) easy_perform = nullptr;
  decltype(&curl_easy_getinfo) easy_getinfo = nullptr;
  decltype(&curl_easy_strerror) easy_strerror = nullptr;
  decltype(&curl_slist_append) slist_append = nullptr;
  decltype(&curl_slist_free_all) slist_free_all = nullptr;
  decltype(&curl_url) url = nullptr;
  decltype(&curl_url_cleanup) url_cleanup = nullptr;
  decltype(&curl_url_set) url_set = nullptr;
  decltype(&curl_url_get) url_get = nullptr;
  decltype(&curl_free) free = nullptr;
};

template <class Function>
bool find(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(::dlsym(library, name));
  return function != nullptr;
}

/// Loads libcurl. It stays loaded to the end of the process.
std::optional<Curl> load_curl() {
  void* library = nullptr;
  for (const char* name : {"libcurl.so.4", "libcurl-gnutls.so.4", "libcurl-nss.so.4"}) {
    library = ::dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (library != nullptr) break;
  }
  if (library == nullptr) return std::nullopt;
  Curl curl;
  decltype(&curl_global_init) global_init = nullptr;
  const bool is_whole =
      find(library, "curl_global_init", global_init) && find(library, "curl_easy_init", curl.easy_init) &&
      find(library, "curl_easy_cleanup", curl.easy_cleanup) &&
      find(library, "curl_easy_reset", curl.easy_reset) &&
      find(library, "curl_easy_setopt", curl.easy_setopt) &&
      find(library, "curl_easy_perform", curl.easy_perform) &&
      find(library, "curl_easy_getinfo", curl.easy_getinfo) &&
      find(library, "curl_easy_strerror", curl.easy_strerror) &&
      find(library, "curl_slist_append", curl.slist_append) &&
      find(library, "curl_slist_free_all", curl.slist_free_all) && find(library, "curl_url", curl.url) &&
      find(library, "curl_url_cleanup", curl.url_cleanup) && find(library, "curl_url_set", curl.url_set) &&
      find(library, "curl_url_get", curl.url_get) && find(library, "curl_free", curl.free);
  if (!is_whole || global_init(CURL_GLOBAL_DEFAULT) != CURLE_OK) return std::nullopt;
  return curl;
}

const std::optional<Curl>& curl() {
  static const std::optional<Curl> loaded = load_curl();
  return loaded;
}

Error no_libcurl() {
  return {ErrorCode::System, ENOSYS, "remote archives need libcurl: install it (Debian: libcurl4)"};
}

/// An address in parts. There must be a libcurl.
class Url {
 public:
  Url() : handle_(curl()->url()) {}
  ~Url() { curl()->url_cleanup(handle_); }
  Url(const Url&) = delete;
  Url& operator=(const Url&) = delete;

  /// Takes an address, or one that is relative to the present one.
  bool set(const std::string& text) {
    return handle_ != nullptr && curl()->url_set(handle_, CURLUPART_URL, text.c_str(), 0) == CURLUE_OK;
  }
  /// @return empty if the address does not have the part.
  [[nodiscard]] std::string get(CURLUPart part, unsigned flags = 0) const {
    char* text = nullptr;
    if (curl()->url_get(handle_, part, &text, flags) != CURLUE_OK || text == nullptr) return {};
    std::string copy(text);
    curl()->free(text);
    return copy;
  }

 private:
  CURLU* handle_;
};

Result<void> check(const Url& url, const std::string& shown) {
  const std::string scheme = url.get(CURLUPART_SCHEME);
  if (scheme != "http" && scheme != "https")
    return fail(ErrorCode::InvalidArgument, EINVAL, fmt::format("{}: is no address of https or http", shown));
  // A user's name and password on a command line can be seen by all users of the host.
  if (!url.get(CURLUPART_USER).empty() || !url.get(CURLUPART_PASSWORD).empty()) {
    return fail(
        ErrorCode::InvalidArgument, EINVAL,
        fmt::format("{}://{}: an address with a password is refused", scheme, url.get(CURLUPART_HOST)));
  }
  if (url.get(CURLUPART_HOST).empty())
    return fail(ErrorCode::InvalidArgument, EINVAL, fmt::format("{}: names no host", shown));
  return {};
}

/// @return empty if the address has no host, or if there is no libcurl.
std::string host_of(const std::string& url) {
  if (!curl()) return {};
  Url parts;
  return parts.set(url) ? parts.get(CURLUPART_HOST) : std::string();
}

/// The state of one request. The callbacks of libcurl get it as their last argument.
struct Exchange {
  std::span<std::byte> to;
  const HttpConnection::Calls& calls;
  HttpAnswer answer;
  std::size_t header_bytes = 0;
  bool has_begun = false;    // the body
  bool is_unwanted = false;  // the caller does not want the body
  bool is_too_long = false;  // the body, or the headers
};

std::string_view trimmed(std::string_view text) {
  constexpr std::string_view kSpaces = " \t\r\n";
  const std::size_t first = text.find_first_not_of(kSpaces);
  if (first == text.npos) return {};
  return text.substr(first, text.find_last_not_of(kSpaces) - first + 1);
}

std::size_t take_header(char* data, std::size_t, std::size_t size_bytes, void* argument) {
  Exchange& request = *static_cast<Exchange*>(argument);
  request.header_bytes += size_bytes;
  if (request.header_bytes > kMostHeaderBytes) {
    request.is_too_long = true;
    return 0;
  }
  const std::string_view line(data, size_bytes);
  HttpAnswer& answer = request.answer;
  if (line.starts_with("HTTP/")) {  // an answer 100 comes before the real one
    answer = HttpAnswer();
    return size_bytes;
  }
  const std::size_t colon = line.find(':');
  if (colon == line.npos) return size_bytes;
  std::string name(line.substr(0, colon));
  std::ranges::transform(name, name.begin(), [](unsigned char c) { return std::tolower(c); });
  const std::string_view value = trimmed(line.substr(colon + 1));
  const std::array<std::pair<std::string_view, std::string*>, 12> wanted = {
      {{"content-range", &answer.content_range},
       {"content-encoding", &answer.content_encoding},
       {"etag", &answer.etag},
       {"last-modified", &answer.last_modified},
       {"location", &answer.location},
       {"retry-after", &answer.retry_after},
       {"ratelimit", &answer.rate_limit},
       {"x-linked-etag", &answer.linked_etag},
       {"x-error-code", &answer.error_code},
       {"x-error-message", &answer.error_message},
       {"x-amz-bucket-region", &answer.bucket_region},
       {"date", &answer.date}}};
  for (const auto& [header, text] : wanted) {
    if (name == header) *text = value;
  }
  if (name == "content-length") {
    std::uint64_t bytes = 0;
    const auto [end, failed] = std::from_chars(value.data(), value.data() + value.size(), bytes);
    if (failed == std::errc() && end == value.data() + value.size()) answer.content_bytes = bytes;
  }
  return size_bytes;
}

/// @param handle  of the request.
void note_status(CURL* handle, HttpAnswer& answer) {
  curl()->easy_getinfo(handle, CURLINFO_RESPONSE_CODE, &answer.status);
}

struct Body {
  Exchange* request;
  CURL* handle;
};

std::size_t take_body(char* data, std::size_t, std::size_t size_bytes, void* argument) {
  const Body& body = *static_cast<Body*>(argument);
  Exchange& request = *body.request;
  const bool is_first = !std::exchange(request.has_begun, true);
  if (is_first) note_status(body.handle, request.answer);
  if (request.answer.status >= kLeastErrorStatus) {
    std::string& text = request.answer.error_text;
    text.append(data, std::min(size_bytes, kMostErrorBytes - text.size()));
    request.is_unwanted = text.size() == kMostErrorBytes;
    return request.is_unwanted ? 0 : size_bytes;
  }
  if (is_first) request.is_unwanted = !request.calls.wants_body(request.answer);
  if (request.is_unwanted) return 0;
  const std::size_t at = request.answer.received_bytes;
  if (size_bytes > request.to.size() - at) {
    request.is_too_long = true;
    return 0;
  }
  std::memcpy(request.to.data() + at, data, size_bytes);
  request.answer.received_bytes += size_bytes;
  return size_bytes;
}

int look_whether_to_end(void* argument, curl_off_t, curl_off_t, curl_off_t, curl_off_t) {
  const Exchange& request = *static_cast<Exchange*>(argument);
  return request.calls.is_ending && request.calls.is_ending() ? 1 : 0;
}

/// A file of certificates that the user has chosen, as for curl(1) and for Python's programs.
const char* chosen_certificates() {
  for (const char* name : {"CURL_CA_BUNDLE", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE"}) {
    const char* file = std::getenv(name);
    if (file != nullptr && *file != '\0') return file;
  }
  return nullptr;
}

/// Returns true if there was no connection to the server.
bool is_unreachable(CURL* handle, CURLcode code) {
  if (code != CURLE_OPERATION_TIMEDOUT) {
    return code == CURLE_COULDNT_RESOLVE_HOST || code == CURLE_COULDNT_RESOLVE_PROXY ||
           code == CURLE_COULDNT_CONNECT;
  }
  double connected_after = 0;  // seconds
  return curl()->easy_getinfo(handle, CURLINFO_CONNECT_TIME, &connected_after) == CURLE_OK &&
         connected_after == 0;
}

/// Returns true if the server's certificate is not good, or if the file of certificates can't be read.
bool is_distrusted(CURLcode code) {
  return code == CURLE_PEER_FAILED_VERIFICATION || code == CURLE_SSL_CACERT_BADFILE;
}

}  // namespace

struct HttpConnection::Handle {
  CURL* easy = nullptr;
};

HttpConnection::HttpConnection() : handle_(std::make_unique<Handle>()) {
  if (curl()) handle_->easy = curl()->easy_init();
}

HttpConnection::~HttpConnection() {
  if (handle_->easy != nullptr) curl()->easy_cleanup(handle_->easy);
}

HttpAnswer HttpConnection::get(const Request& wanted, std::span<std::byte> to, const Calls& calls) {
  Exchange request{.to = to, .calls = calls, .answer = {}};
  CURL* const easy = handle_->easy;
  if (easy == nullptr) {
    request.answer.failure = no_libcurl();
    return request.answer;
  }
  const Curl& c = *curl();
  c.easy_reset(easy);  // keeps the connections
  Body body{&request, easy};
  std::array<char, CURL_ERROR_SIZE> why{};
  const ByteRange range = wanted.range.value_or(ByteRange{});
  const std::string bytes = wanted.range ? fmt::format("{}-{}", range.offset, range.end() - 1) : "";
  const std::string agent = fmt::format("safetensorsfs/{}", build_version());
  constexpr long kStallSeconds = 10;
  constexpr long kLeastBytesPerSecond = 1024;
  constexpr long kConnectSeconds = 10;
  // A body that was compressed on the way would have other ranges.
  curl_slist* headers = c.slist_append(nullptr, "Accept-Encoding: identity");
  for (const std::string& header : wanted.headers) headers = c.slist_append(headers, header.c_str());
  c.easy_setopt(easy, CURLOPT_URL, wanted.url.c_str());
  if (wanted.method != "GET") c.easy_setopt(easy, CURLOPT_CUSTOMREQUEST, wanted.method.c_str());
  // A proxy would see a request to this host in plain, with the token.
  if (is_near(wanted.url)) c.easy_setopt(easy, CURLOPT_NOPROXY, "*");
#if LIBCURL_VERSION_NUM >= 0x075500
  c.easy_setopt(easy, CURLOPT_PROTOCOLS_STR, "http,https");
#else
  c.easy_setopt(easy, CURLOPT_PROTOCOLS, static_cast<long>(CURLPROTO_HTTP | CURLPROTO_HTTPS));
#endif
  c.easy_setopt(easy, CURLOPT_HTTP_VERSION, static_cast<long>(CURL_HTTP_VERSION_1_1));
  c.easy_setopt(easy, CURLOPT_FOLLOWLOCATION, 0L);
  c.easy_setopt(easy, CURLOPT_NOSIGNAL, 1L);
  if (wanted.range) c.easy_setopt(easy, CURLOPT_RANGE, bytes.c_str());
  c.easy_setopt(easy, CURLOPT_USERAGENT, agent.c_str());
  c.easy_setopt(easy, CURLOPT_HTTPHEADER, headers);
  c.easy_setopt(easy, CURLOPT_CONNECTTIMEOUT, kConnectSeconds);
  c.easy_setopt(easy, CURLOPT_TIMEOUT_MS, static_cast<long>(wanted.most_time.count()));
  c.easy_setopt(easy, CURLOPT_LOW_SPEED_LIMIT, kLeastBytesPerSecond);
  c.easy_setopt(easy, CURLOPT_LOW_SPEED_TIME, kStallSeconds);
  c.easy_setopt(easy, CURLOPT_BUFFERSIZE, 256L << 10);
  c.easy_setopt(easy, CURLOPT_ERRORBUFFER, why.data());
  c.easy_setopt(easy, CURLOPT_HEADERFUNCTION, take_header);
  c.easy_setopt(easy, CURLOPT_HEADERDATA, &request);
  c.easy_setopt(easy, CURLOPT_WRITEFUNCTION, take_body);
  c.easy_setopt(easy, CURLOPT_WRITEDATA, &body);
  c.easy_setopt(easy, CURLOPT_XFERINFOFUNCTION, look_whether_to_end);
  c.easy_setopt(easy, CURLOPT_XFERINFODATA, &request);
  c.easy_setopt(easy, CURLOPT_NOPROGRESS, 0L);
  const char* const certificates =
      wanted.certificates.empty() ? chosen_certificates() : wanted.certificates.c_str();
  if (certificates != nullptr) c.easy_setopt(easy, CURLOPT_CAINFO, certificates);
  const CURLcode code = c.easy_perform(easy);
  note_status(easy, request.answer);
  c.slist_free_all(headers);
  HttpAnswer& answer = request.answer;
  if (request.is_too_long) {
    answer.failure = Error{ErrorCode::System, EBADMSG, "the server sends more than it was asked for"};
  } else if (code != CURLE_OK && !request.is_unwanted) {
    const char* text = why[0] != '\0' ? why.data() : c.easy_strerror(code);
    const int errno_value = code == CURLE_ABORTED_BY_CALLBACK ? ECANCELED
                            : is_unreachable(easy, code)      ? ENETUNREACH
                            : is_distrusted(code)             ? EKEYREJECTED
                                                              : EIO;
    answer.failure = Error{ErrorCode::System, errno_value, text};
  }
  return answer;
}

Result<void> check_url(const std::string& url) {
  if (!curl()) return tl::unexpected(no_libcurl());
  Url parts;
  if (!parts.set(url)) return fail(ErrorCode::InvalidArgument, EINVAL, "is no address of https or http");
  return check(parts, url);
}

bool has_same_origin(const std::string& one, const std::string& other) {
  if (!curl()) return false;
  const auto origin = [](const std::string& address) {
    Url parts;
    if (!parts.set(address)) return std::string();
    std::string text = fmt::format("{}://{}:{}", parts.get(CURLUPART_SCHEME), parts.get(CURLUPART_HOST),
                                   parts.get(CURLUPART_PORT, CURLU_DEFAULT_PORT));
    std::ranges::transform(text, text.begin(), [](unsigned char c) { return std::tolower(c); });
    return text;
  };
  const std::string first = origin(one);
  return !first.empty() && first == origin(other);
}

bool is_loopback(const std::string& url) {
  const std::string host = host_of(url);
  return host == "127.0.0.1" || host == "[::1]" || host == "localhost";
}

bool is_near(const std::string& url) {
  const std::string host = host_of(url);
  return is_loopback(url) || host == "169.254.169.254" || host == "169.254.170.2" ||
         host == "169.254.170.23" || host == "[fd00:ec2::23]" || host == "[fd00:ec2::254]";
}

Result<std::string> redirected(const std::string& url, const std::string& location) {
  if (!curl()) return tl::unexpected(no_libcurl());
  Url parts;
  const bool is_address = parts.set(url);
  const bool is_safe = parts.get(CURLUPART_SCHEME) == "https";
  if (location.empty() || !is_address || !parts.set(location))
    return fail(ErrorCode::InvalidArgument, EINVAL, "the server redirects to no address");
  RETURN_IF_ERROR(check(parts, "the address that the server redirects to"));
  if (is_safe && parts.get(CURLUPART_SCHEME) != "https")
    return fail(ErrorCode::InvalidArgument, EINVAL,
                "the server redirects from https to http, which is refused");
  return parts.get(CURLUPART_URL);
}

#else

struct HttpConnection::Handle {};
HttpConnection::HttpConnection() = default;
HttpConnection::~HttpConnection() = default;

namespace {

Error no_libcurl() {
  return {ErrorCode::System, ENOSYS,
          "this safetensorsfs was built without libcurl, which remote archives need"};
}

}  // namespace

HttpAnswer HttpConnection::get(const Request&, std::span<std::byte>, const Calls&) {
  HttpAnswer answer;
  answer.failure = no_libcurl();
  return answer;
}

bool has_same_origin(const std::string&, const std::string&) {
  return false;
}

bool is_loopback(const std::string&) {
  return false;
}

bool is_near(const std::string&) {
  return false;
}

Result<void> check_url(const std::string&) {
  return tl::unexpected(no_libcurl());
}

Result<std::string> redirected(const std::string&, const std::string&) {
  return tl::unexpected(no_libcurl());
}

#endif

}  // namespace stfs
