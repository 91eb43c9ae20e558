#include "core/remote/digest.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <array>
#include <optional>
#include <vector>

namespace stfs {
namespace {

constexpr std::size_t kMostDigestBytes = 64;  // EVP_MAX_MD_SIZE

/// The functions of libcrypto, whose types are opaque here.
struct Crypto {
  using Kind = const void* (*)();
  Kind sha1 = nullptr;
  Kind sha256 = nullptr;
  int (*digest)(const void* data, std::size_t size, unsigned char* to, unsigned* to_size, const void* kind,
                void* engine) = nullptr;
  void* (*make)() = nullptr;
  void (*free)(void* context) = nullptr;
  int (*begin)(void* context, const void* kind, void* engine) = nullptr;
  int (*update)(void* context, const void* data, std::size_t size) = nullptr;
  int (*finish)(void* context, unsigned char* to, unsigned* to_size) = nullptr;
};

template <class Function>
bool find(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(::dlsym(library, name));
  return function != nullptr;
}

/// Loads libcrypto. It stays loaded to the end of the process.
std::optional<Crypto> load_crypto() {
  for (const char* name : {"libcrypto.so.3", "libcrypto.so.1.1"}) {
    void* library = ::dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) continue;
    Crypto crypto;
    if (find(library, "EVP_sha1", crypto.sha1) && find(library, "EVP_sha256", crypto.sha256) &&
        find(library, "EVP_Digest", crypto.digest) && find(library, "EVP_MD_CTX_new", crypto.make) &&
        find(library, "EVP_MD_CTX_free", crypto.free) && find(library, "EVP_DigestInit_ex", crypto.begin) &&
        find(library, "EVP_DigestUpdate", crypto.update) &&
        find(library, "EVP_DigestFinal_ex", crypto.finish))
      return crypto;
  }
  return std::nullopt;
}

const std::optional<Crypto>& crypto() {
  static const std::optional<Crypto> loaded = load_crypto();
  return loaded;
}

tl::unexpected<Error> no_libcrypto() {
  return fail(ErrorCode::System, ENOSYS, "digests of the Hub need libcrypto: install it (Debian: libssl3)");
}

std::string hexadecimal(std::span<const unsigned char> bytes) {
  std::string text;
  for (const unsigned char byte : bytes) text += fmt::format("{:02x}", byte);
  return text;
}

}  // namespace

Result<void> check_digest(std::span<const std::byte> bytes, std::string_view digest) {
  constexpr std::size_t kSha256Digits = 64;
  if (!crypto()) return no_libcrypto();
  const bool is_large = digest.size() == kSha256Digits;
  std::vector<std::byte> blob;
  if (!is_large) {
    const std::string head = fmt::format("blob {}", bytes.size());
    const auto begin = std::as_bytes(std::span(head.c_str(), head.size() + 1));  // with the zero
    blob.reserve(begin.size() + bytes.size());
    blob.insert(blob.end(), begin.begin(), begin.end());
    blob.insert(blob.end(), bytes.begin(), bytes.end());
    bytes = blob;
  }
  std::array<unsigned char, kMostDigestBytes> found{};
  unsigned found_bytes = 0;
  const void* kind = is_large ? crypto()->sha256() : crypto()->sha1();
  if (crypto()->digest(bytes.data(), bytes.size(), found.data(), &found_bytes, kind, nullptr) != 1)
    return fail(ErrorCode::System, EIO, "libcrypto computes no digest");
  const std::string text = hexadecimal(std::span(found).first(found_bytes));
  if (text == digest) return {};
  return fail(ErrorCode::ArchiveChanged, ESTALE,
              fmt::format("the Hub lists this file as {}, and the bytes that came have {}", digest, text));
}

Result<Sha256> Sha256::begin() {
  if (!crypto()) return no_libcrypto();
  Context context(crypto()->make(), crypto()->free);
  if (!context || crypto()->begin(context.get(), crypto()->sha256(), nullptr) != 1)
    return fail(ErrorCode::System, EIO, "libcrypto computes no digest");
  return Sha256(std::move(context));
}

void Sha256::update(std::span<const std::byte> bytes) {
  crypto()->update(context_.get(), bytes.data(), bytes.size());
}

std::string Sha256::finish() {
  std::array<unsigned char, kMostDigestBytes> found{};
  unsigned found_bytes = 0;
  crypto()->finish(context_.get(), found.data(), &found_bytes);
  return hexadecimal(std::span(found).first(found_bytes));
}

}  // namespace stfs
