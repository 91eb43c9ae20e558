// One version of a file on a web server, read by ranges.
//
// The first answer decides which version this is: by its strong ETag, or else by its time and its size. If
// the Hugging Face Hub lists the file, the listed digest and size decide. Each later answer is compared
// before one of its bytes is taken, so bytes of two versions never mix.
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

#include "core/base/error.h"
#include "core/base/mutex.h"
#include "core/remote/http_connection.h"
#include "core/remote/request_signer.h"
#include "core/remote/retries.h"

namespace stfs {

/// Identifies a version of a file: each later answer is compared with it.
struct RemoteVersion {
  std::string etag;           // strong, as the server writes it; empty if there is none
  std::string last_modified;  // as the server writes it; empty if there is none
  std::uint64_t size_bytes = 0;
};

/// The address of a file, with the facts that are known before the first request.
struct RemoteAddress {
  std::string url;
  /// The value of the Authorization header. Only requests to the origin of `url` have it, no redirect to
  /// another server. Empty: no header.
  std::string authorization{};
  /// Of the file that the Hub lists. Other servers have other ETags of the file, so only the Hub's own
  /// answers are compared with the digest, and all answers with the size.
  struct Listed {
    std::string hub;  // the address of the Hub that lists the file
    std::string digest;
    std::uint64_t size_bytes = 0;
  };
  std::optional<Listed> listed{};
  /// Makes the requests for `url`, if each of them is signed. A redirect's address gets no signature. Null:
  /// no request is signed.
  std::shared_ptr<RequestSigner> signer{};

  bool is_kept = false;  // the facts are from a list that this machine has kept
  /// No request is sent: each fails with ENETUNREACH.
  bool is_offline = false;

  /// Returns true if the file is read with a token or with keys of this user.
  [[nodiscard]] bool is_private() const { return !authorization.empty() || (signer && signer->has_keys()); }
};

/// Any number of threads may read, each with its own connection.
class RemoteObject {
 public:
  using IsEnding = Retries::IsEnding;

  /// Asks for the first bytes of the file.
  /// @param first  at least one byte. Gets the first bytes, at most as many as the file has.
  /// @return ENOENT: the server has no such file. EACCES: it refuses. ENETUNREACH: it cannot be reached.
  ///   ENOSYS: there is no libcurl. EINVAL: the address is none, or the server gives no ranges. Otherwise
  ///   EIO.
  static Result<std::unique_ptr<RemoteObject>> open(RemoteAddress address, HttpConnection& connection,
                                                    std::vector<std::byte>& first,
                                                    const RetryRules& rules = {});

  /// Opens a file whose version is known, without a request. Each answer is compared with this version.
  static std::unique_ptr<RemoteObject> known(RemoteAddress address, RemoteVersion version,
                                             const RetryRules& rules = {});

  [[nodiscard]] const RemoteVersion& version() const { return version_; }

  /// Reads a range inside the file. Retries after temporary failures, from the first missing byte.
  /// @return ESTALE (ArchiveChanged): the server has another version now, or none. ENETUNREACH: it cannot be
  ///   reached. ECANCELED: is_ending() has returned true. EACCES, EIO: the server refuses, or fails for too
  ///   long; the message has the reason.
  [[nodiscard]] Result<void> read(std::span<std::byte> to, std::uint64_t offset, HttpConnection& connection,
                                  const IsEnding& is_ending) const;

 private:
  RemoteObject(RemoteAddress address, const RetryRules& rules)
      : address_(std::move(address)), rules_(rules) {}

  enum class What : std::uint8_t { Done, Again, Redirected, Failed };
  struct Verdict {
    What what = What::Done;
    Error why{};                               // unless Done
    std::chrono::milliseconds least_pause{0};  // with Again: the server asks for it
  };
  struct Part;
  /// Decides what an answer means.
  /// @param part  what was asked for.
  [[nodiscard]] Verdict judge(const HttpAnswer& answer, const Part& part) const;
  /// Makes the next request, signed if it is for the first address.
  [[nodiscard]] Result<RequestSigner::Signed> make_request(const std::string& target, ByteRange range) const;
  /// Returns the size of a whole file that a server without ranges sends; 0 if it is unknown.
  [[nodiscard]] std::uint64_t whole_size(const HttpAnswer& answer) const;
  /// Fails if an answer with bytes is not the wanted part of this version.
  [[nodiscard]] Result<void> check(const HttpAnswer& answer, const Part& part) const;
  /// Fails if two answers of the listed file at one address have different ETags. Notes the first.
  [[nodiscard]] Result<void> check_target(const std::string& target, const HttpAnswer& answer) const;
  /// Fails if two answers are of different versions.
  [[nodiscard]] Result<void> check_version(const RemoteVersion& found, const Part& part) const;
  /// Fails if the Hub's answer is of another file than the listed one.
  [[nodiscard]] Result<void> check_listed(const HttpAnswer& answer) const;
  /// Adds the bytes of an answer to the part. EIO: there are more than the answer promised.
  Result<void> take(const HttpAnswer& answer, Part& part) const;
  /// Sends requests until the part is there.
  Result<void> bring(Part& part, HttpConnection& connection, const IsEnding& is_ending) const;

  const RemoteAddress address_;
  const RetryRules rules_;
  RemoteVersion version_;  // constant after open()
  bool is_known_ = false;  // version_ is
  mutable Mutex mutex_;
  /// The address to which the server has redirected. The address often expires. Empty: none.
  mutable std::string target_ GUARDED_BY(mutex_);
  /// The ETag of the file at target_. Another server may give the listed file another ETag. Empty: unknown.
  mutable std::string target_etag_ GUARDED_BY(mutex_);
};

}  // namespace stfs
