// The digests that git and Git LFS give files, and the digests in signatures of requests. The program loads
// libcrypto, which libcurl uses as well.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "core/base/error.h"

namespace stfs {

/// Computes a digest of bytes that come in pieces. For one thread.
class Digest {
 public:
  enum class Kind : std::uint8_t { Sha1, Sha256 };
  /// ENOSYS: there is no libcrypto.
  static Result<Digest> begin(Kind kind);
  void update(std::span<const std::byte> bytes);
  /// Returns hexadecimal digits: 40 or 64. Call it once.
  std::string finish();

 private:
  using Context = std::unique_ptr<void, void (*)(void*)>;
  explicit Digest(Context context) : context_(std::move(context)) {}
  Context context_;
};

/// Returns the SHA-256 of a text, as 64 hexadecimal digits. ENOSYS: there is no libcrypto.
Result<std::string> sha256_of(std::string_view text);

/// Returns the HMAC-SHA256 of a text (RFC 2104), as 32 bytes. ENOSYS: there is no libcrypto.
Result<std::string> hmac_sha256(std::string_view key, std::string_view text);

/// Compares a file whose bytes come in pieces with its digest. For one thread.
class DigestCheck {
 public:
  /// @param digest  64 hexadecimal digits: the SHA-256 of a large file. 40: the SHA-1 of a git blob.
  /// @return ENOSYS: there is no libcrypto.
  static Result<DigestCheck> begin(std::uint64_t size_bytes, std::string_view digest);
  void update(std::span<const std::byte> bytes) { digest_.update(bytes); }
  /// Call it once. ESTALE (ArchiveChanged): the bytes have another digest.
  Result<void> finish();

 private:
  DigestCheck(Digest digest, std::string_view listed) : digest_(std::move(digest)), listed_(listed) {}
  Digest digest_;
  std::string listed_;
};

/// Fails unless the bytes have the digest: the SHA-256 of a large file, or the SHA-1 of a git blob.
/// @param digest  64 or 40 hexadecimal digits.
/// @return ESTALE (ArchiveChanged): the bytes have another digest. ENOSYS: there is no libcrypto.
Result<void> check_digest(std::span<const std::byte> bytes, std::string_view digest);

}  // namespace stfs
