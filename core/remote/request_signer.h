// Requests for a file on a server that wants each request signed. remote_object.h sends them.
#pragma once

#include <cstdint>
#include <optional>

#include "core/base/byte_range.h"
#include "core/base/error.h"
#include "core/remote/http_connection.h"

namespace stfs {

/// Signs requests for one file, and learns from refusals. For any number of threads.
class RequestSigner {
 public:
  RequestSigner() = default;
  virtual ~RequestSigner() = default;
  RequestSigner(const RequestSigner&) = delete;
  RequestSigner& operator=(const RequestSigner&) = delete;

  struct Signed {
    HttpConnection::Request request{};
    std::uint64_t state = 0;  // of the signer, for learn()
  };
  /// Makes a GET of a range of the file. The address may differ from the one that the file was opened with.
  /// @return EACCES, EINVAL, ENOSYS: no request can be signed. Other errors may pass.
  virtual Result<Signed> sign(std::optional<ByteRange> range) = 0;

  /// Reads an answer of a status of at least 300.
  /// @param state  of the request.
  /// @return true: the next request will be signed in another way, so it may succeed.
  virtual Result<bool> learn(const HttpAnswer& answer, std::uint64_t state) = 0;

  /// Returns the reason why the server refuses, for a person. Nothing if the status says all.
  [[nodiscard]] virtual std::optional<Error> refusal(const HttpAnswer& answer) const = 0;

  /// Returns true if the file is read with keys of this user.
  [[nodiscard]] virtual bool has_keys() const = 0;
};

}  // namespace stfs
