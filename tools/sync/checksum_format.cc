// There is one class for each format behind a common interface. The call for each piece costs little beside
// the hash.
#include "tools/sync/checksum_format.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cerrno>

#include "core/base/checksum.h"
#include "core/format/json_string.h"
#ifdef STFS_HAVE_BLAKE3
#include <blake3.h>
#endif

namespace stfs::sync {

class ChecksumStream::Hash {
 public:
  Hash() = default;
  Hash(const Hash&) = delete;
  Hash& operator=(const Hash&) = delete;
  virtual ~Hash() = default;
  virtual void update(std::span<const std::byte> bytes) = 0;
  [[nodiscard]] virtual std::string hex() const = 0;
};

class ChecksumStream::Xxh3Hash final : public Hash {
 public:
  void update(std::span<const std::byte> bytes) override { checksum_.update(bytes); }
  [[nodiscard]] std::string hex() const override { return checksum_.hex(); }

 private:
  Checksum checksum_;
};

/// RFC 1950: the sum of all bytes, and the sum of these sums, each modulo 65521.
class ChecksumStream::Adler32Hash final : public Hash {
 public:
  void update(std::span<const std::byte> bytes) override {
    while (!bytes.empty()) {
      const auto run = bytes.first(std::min(bytes.size(), kRunBytes));
      add_run(run);
      bytes = bytes.subspan(run.size());
    }
  }
  [[nodiscard]] std::string hex() const override { return fmt::format("{:04x}{:04x}", second_, first_); }

 private:
  static constexpr std::uint32_t kModulus = 65521;
  static constexpr std::size_t kBlockBytes = 32;
  /// The sums of this many bytes fit 32 bits without a division (RFC 1950 allows 5552).
  static constexpr std::size_t kRunBytes = 5536;
  static_assert(kRunBytes % kBlockBytes == 0);

  void add_run(std::span<const std::byte> run) {
    while (run.size() >= kBlockBytes) {
      add_block(run.first<kBlockBytes>());
      run = run.subspan(kBlockBytes);
    }
    for (const std::byte byte : run) {
      first_ += std::to_integer<std::uint32_t>(byte);
      second_ += first_;
    }
    first_ %= kModulus;
    second_ %= kModulus;
  }

  /// Has no chain from byte to byte, so that the compiler uses vectors.
  void add_block(std::span<const std::byte, kBlockBytes> block) {
    std::uint32_t sum = 0;
    std::uint32_t weighted = 0;
    for (std::size_t at = 0; at < kBlockBytes; ++at) {
      const auto byte = std::to_integer<std::uint32_t>(block[at]);
      sum += byte;
      weighted += static_cast<std::uint32_t>(kBlockBytes - at) * byte;
    }
    second_ += static_cast<std::uint32_t>(kBlockBytes) * first_ + weighted;
    first_ += sum;
  }

  std::uint32_t first_ = 1;
  std::uint32_t second_ = 0;
};

#ifdef STFS_HAVE_BLAKE3
class ChecksumStream::Blake3Hash final : public Hash {
 public:
  Blake3Hash() { blake3_hasher_init(&hasher_); }
  void update(std::span<const std::byte> bytes) override {
    blake3_hasher_update(&hasher_, bytes.data(), bytes.size());
  }
  [[nodiscard]] std::string hex() const override {
    std::array<std::uint8_t, BLAKE3_OUT_LEN> digest{};
    blake3_hasher_finalize(&hasher_, digest.data(), digest.size());
    return fmt::format("{:02x}", fmt::join(digest, ""));
  }

 private:
  blake3_hasher hasher_{};
};
#endif

std::string_view name_of(ChecksumFormat format) {
  switch (format) {
    case ChecksumFormat::Xxh3_128: return "xxh3-128";
    case ChecksumFormat::Adler32: return "adler32";
    case ChecksumFormat::Blake3: return "blake3";
  }
  return "";
}

Result<ChecksumFormat> parse_checksum_format(std::string_view name) {
  if (name == "xxh3-128") return ChecksumFormat::Xxh3_128;
  if (name == "adler32") return ChecksumFormat::Adler32;
#ifdef STFS_HAVE_BLAKE3
  if (name == "blake3") return ChecksumFormat::Blake3;
#else
  if (name == "blake3") {
    return fail(ErrorCode::InvalidArgument, EOPNOTSUPP,
                "blake3: this build has no libblake3: install the C library of blake3 and build again");
  }
#endif
  return fail(ErrorCode::InvalidArgument, EINVAL,
              in_quotes(name) + " is no checksum format: expected xxh3-128, adler32 or blake3");
}

std::size_t hex_digits_of(ChecksumFormat format) {
  switch (format) {
    case ChecksumFormat::Xxh3_128: return 32;
    case ChecksumFormat::Adler32: return 8;
    case ChecksumFormat::Blake3: return 64;
  }
  return 0;
}

bool is_checksum(ChecksumFormat format, std::string_view text) {
  const auto is_digit = [](char c) { return std::isxdigit(static_cast<unsigned char>(c)) != 0; };
  return text.size() == hex_digits_of(format) && std::ranges::all_of(text, is_digit);
}

bool is_same_checksum(std::string_view a, std::string_view b) {
  const auto lower = [](char c) { return std::tolower(static_cast<unsigned char>(c)); };
  return std::ranges::equal(a, b, {}, lower, lower);
}

ChecksumStream::ChecksumStream(ChecksumFormat format) {
  switch (format) {
    case ChecksumFormat::Xxh3_128: hash_ = std::make_unique<Xxh3Hash>(); break;
    case ChecksumFormat::Adler32: hash_ = std::make_unique<Adler32Hash>(); break;
    case ChecksumFormat::Blake3:
#ifdef STFS_HAVE_BLAKE3
      hash_ = std::make_unique<Blake3Hash>();
#endif
      break;
  }
}
ChecksumStream::~ChecksumStream() = default;
ChecksumStream::ChecksumStream(ChecksumStream&&) noexcept = default;
ChecksumStream& ChecksumStream::operator=(ChecksumStream&&) noexcept = default;

void ChecksumStream::update(std::span<const std::byte> bytes) {
  hash_->update(bytes);
}

std::string ChecksumStream::hex() const {
  return hash_->hex();
}

}  // namespace stfs::sync
