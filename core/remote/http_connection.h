// Requests ranges of bytes from web servers, by libcurl. The program loads libcurl at the first request: it
// is no part of every system, and a program that reads no remote archive needs none of it.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/base/byte_range.h"
#include "core/base/error.h"

namespace stfs {

inline constexpr std::size_t kMostErrorBytes = 16 << 10;

/// The answer of a server to one request: the status, some headers, and the number of bytes.
struct HttpAnswer {
  long status = 0;  // of HTTP; 0 if there was no answer
  // Values of headers, without spaces around them. Empty if the server has sent none.
  std::string content_range;
  std::string content_encoding;
  std::string etag;
  std::string last_modified;
  std::string location;
  std::string retry_after;
  std::string rate_limit;
  std::string linked_etag;  // X-Linked-Etag: of the file behind a redirect of the Hugging Face Hub
  std::string error_code;   // X-Error-Code and X-Error-Message of the Hub
  std::string error_message;
  std::string bucket_region;  // X-Amz-Bucket-Region, of stores that speak the protocol of S3
  std::string date;
  std::string error_text;  // the first kMostErrorBytes of the body of a status of at least 400
  std::optional<std::uint64_t> content_bytes;  // Content-Length
  std::uint64_t received_bytes = 0;            // of the body; all of them are sound
  /// Set if the request did not end well: ENETUNREACH for no network or no server, ECANCELED, EBADMSG for
  /// more bytes than were asked for, ENOSYS for a program without libcurl, otherwise EIO. Not set if the
  /// caller did not want the body.
  std::optional<Error> failure;
};

/// Keeps its connections for the next request. For one thread at a time.
class HttpConnection {
 public:
  HttpConnection();
  ~HttpConnection();
  HttpConnection(const HttpConnection&) = delete;
  HttpConnection& operator=(const HttpConnection&) = delete;

  struct Calls {
    /// Decides by status and headers whether the body is taken. Otherwise none of it is read. Is not called
    /// for a status of at least 400.
    std::function<bool(const HttpAnswer& answer)> wants_body;
    /// Returns true if the request must end. Called about once a second.
    std::function<bool()> is_ending;
  };
  struct Request {
    std::string url;                     // of the scheme http or https, without a user's name and password
    std::optional<ByteRange> range{};    // not empty; nothing: the whole body
    std::vector<std::string> headers{};  // more headers, each "NAME: VALUE"
    std::string method = "GET";          // the request has no body
    std::string certificates{};          // a file; empty: the user's choice, or the system's list
    std::chrono::milliseconds most_time{0};  // for all of the request; 0: any time
  };
  /// Sends a request, and fills `to` with the body. A body that is longer than `to` is a failure. Follows no
  /// redirect. A server that sends nothing for ten seconds fails the request.
  HttpAnswer get(const Request& request, std::span<std::byte> to, const Calls& calls);

  struct Handle;

 private:
  std::unique_ptr<Handle> handle_;
};

/// Returns the header Authorization. Returns no header for an empty value.
inline std::vector<std::string> authorization_header(const std::string& value) {
  if (value.empty()) return {};
  return {"Authorization: " + value};
}

/// Returns the address that a Location header of `url` means. EINVAL for an address of another scheme, for
/// one with a user's name or password, for one from https to http, and for no address.
Result<std::string> redirected(const std::string& url, const std::string& location);

/// Returns true if both addresses have the same scheme, host and port.
bool has_same_origin(const std::string& one, const std::string& other);

/// Returns true if the address names this host, as 127.0.0.1, [::1] or localhost.
bool is_loopback(const std::string& url);

/// Returns true if the address names this host, or a service that a cloud offers to this host alone: the
/// link-local addresses, as 169.254.169.254. No proxy is asked for them.
bool is_near(const std::string& url);

/// Fails (EINVAL) if the text is no address that get() takes. ENOSYS: the program has no libcurl.
Result<void> check_url(const std::string& url);

}  // namespace stfs
