// A bucket of a store that speaks the protocol of S3: its address, its region, and the keys for its requests.
//
// The first requests may teach the region, and the difference between the clocks. Keys that have an end are
// replaced five minutes before it.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "core/base/error.h"
#include "core/base/mutex.h"
#include "core/remote/aws_settings.h"
#include "core/remote/http_connection.h"
#include "core/remote/request_signer.h"
#include "core/remote/s3_credentials.h"

namespace stfs {

/// Any number of threads may use it.
class S3Bucket {
 public:
  using FindCredentials = std::function<Result<S3Credentials>()>;

  /// @param find  looks for the user's keys: at the first request, before they end, and after a refusal.
  S3Bucket(std::string name, AwsSettings settings, FindCredentials find)
      : name_(std::move(name)),
        settings_(std::move(settings)),
        find_(std::move(find)),
        region_(settings_.region) {}

  /// Returns the bucket with the present settings of the user. Two calls return the same one, unless the
  /// settings have changed between them.
  static Result<std::shared_ptr<S3Bucket>> find(const std::string& name);

  [[nodiscard]] const std::string& name() const { return name_; }
  [[nodiscard]] bool has_keys() const;

  /// The object or the list that a request is for.
  struct What {
    std::string key{};    // empty: the bucket
    std::string query{};  // canonical_query(); empty: none
    std::optional<ByteRange> range{};
  };
  /// @return EINVAL: the keys would be sent in plain. Otherwise see RequestSigner::sign().
  Result<RequestSigner::Signed> sign(const What& what);
  /// See RequestSigner.
  Result<bool> learn(const HttpAnswer& answer, std::uint64_t state);
  [[nodiscard]] std::optional<Error> refusal(const HttpAnswer& answer) const;

  /// Sends a request, with retries.
  /// @param to  gets the body of status 200. Its size is the most that is taken. Empty: no body is wanted.
  /// @return an answer with a status that is final.
  Result<HttpAnswer> get(const What& what, std::span<std::byte> to, HttpConnection& connection);

 private:
  /// Finds keys, unless the present keys are good for some more time.
  Result<void> refresh() REQUIRES(mutex_);
  /// Returns the address of the bucket, without a slash at the end.
  [[nodiscard]] std::string base() const REQUIRES(mutex_);
  [[nodiscard]] S3Time now() const REQUIRES(mutex_);
  bool learn_region(const HttpAnswer& answer) REQUIRES(mutex_);
  bool learn_time(const HttpAnswer& answer) REQUIRES(mutex_);
  [[nodiscard]] std::string advice(const std::string& code) const REQUIRES(mutex_);

  const std::string name_;
  const AwsSettings settings_;
  const FindCredentials find_;
  mutable Mutex mutex_;
  std::string region_ GUARDED_BY(mutex_);
  bool has_moved_ GUARDED_BY(mutex_) = false;               // the store has named another region
  std::chrono::seconds clock_ahead_ GUARDED_BY(mutex_){0};  // of the store's clock
  std::optional<S3Credentials> credentials_ GUARDED_BY(mutex_);
  S3Time next_refresh_ GUARDED_BY(mutex_){};    // after a failed one
  std::uint64_t state_ GUARDED_BY(mutex_) = 0;  // another number after each lesson
};

/// Returns the code of an error that a store answers with, such as NoSuchKey. Empty: none.
std::string s3_error_code(const HttpAnswer& answer);

}  // namespace stfs
