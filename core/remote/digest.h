// The digests that git and Git LFS give files. The program loads libcrypto, which libcurl uses as well.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "core/base/error.h"

namespace stfs {

/// Fails unless the bytes have the digest: the SHA-256 of a large file, or the SHA-1 of a git blob.
/// @param digest  64 or 40 hexadecimal digits.
/// @return ESTALE (ArchiveChanged): the bytes have another digest. ENOSYS: there is no libcrypto.
Result<void> check_digest(std::span<const std::byte> bytes, std::string_view digest);

/// Computes the SHA-256 of bytes that come in pieces. For one thread.
class Sha256 {
 public:
  /// ENOSYS: there is no libcrypto.
  static Result<Sha256> begin();
  void update(std::span<const std::byte> bytes);
  /// Returns 64 hexadecimal digits. Call it once.
  std::string finish();

 private:
  using Context = std::unique_ptr<void, void (*)(void*)>;
  explicit Sha256(Context context) : context_(std::move(context)) {}
  Context context_;
};

}  // namespace stfs
