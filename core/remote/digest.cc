#include "core/remote/digest.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <array>
#include <optional>

namespace stfs {
namespace {

constexpr std::size_t kMostDigestBytes = 64;  // EVP_MAX_MD_SIZE

/// The functions of libcrypto, whose types are opaque here.
struct Crypto {
  const void* (*sha1)() = nullptr;
  const void* (*sha256)() = nullptr;
  void* (*make)() = nullptr;
  void (*free)(void* context) = nullptr;
  int (*begin)(void* context, const void* kind, void* engine) = nullptr;
  int (*update)(void* context, const void* data, std::size_t size) = nullptr;
  int (*finish)(void* context, unsigned char* to, unsigned* to_size) = nullptr;
  unsigned char* (*hmac)(const void* kind, const void* key, int key_size, const unsigned char* data,
                         std::size_t size, unsigned char* to, unsigned* to_size) = nullptr;
};

template <class Function>
bool find_function(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(::dlsym(library, name));
  return function != nullptr;
}

/// Loads libcrypto. It stays loaded to the end of the process.
std::optional<Crypto> load_crypto() {
  for (const char* name : {"libcrypto.so.3", "libcrypto.so.1.1"}) {
    void* library = ::dlopen(name, RTLD_NOW | RTLD_LOCAL);
    Crypto crypto;
    if (library != nullptr && find_function(library, "EVP_sha1", crypto.sha1) &&
        find_function(library, "EVP_sha256", crypto.sha256) &&
        find_function(library, "EVP_MD_CTX_new", crypto.make) &&
        find_function(library, "EVP_MD_CTX_free", crypto.free) &&
        find_function(library, "EVP_DigestInit_ex", crypto.begin) &&
        find_function(library, "EVP_DigestUpdate", crypto.update) &&
        find_function(library, "EVP_DigestFinal_ex", crypto.finish) &&
        find_function(library, "HMAC", crypto.hmac))
      return crypto;
  }
  return std::nullopt;
}

const std::optional<Crypto>& crypto() {
  static const std::optional<Crypto> loaded = load_crypto();
  return loaded;
}

tl::unexpected<Error> no_libcrypto() {
  return fail(ErrorCode::System, ENOSYS,
              "digests of files and signatures need libcrypto: install it (Debian: libssl3)");
}

}  // namespace

Result<Digest> Digest::begin(Kind kind) {
  if (!crypto()) return no_libcrypto();
  Context context(crypto()->make(), crypto()->free);
  if (!context) return fail(ErrorCode::OutOfMemory, ENOMEM, "out of memory");
  if (crypto()->begin(context.get(), kind == Kind::Sha1 ? crypto()->sha1() : crypto()->sha256(), nullptr) !=
      1)
    return fail(ErrorCode::System, EIO, "libcrypto computes no digest");
  return Digest(std::move(context));
}

void Digest::update(std::span<const std::byte> bytes) {
  crypto()->update(context_.get(), bytes.data(), bytes.size());
}

std::string Digest::finish() {
  std::array<unsigned char, kMostDigestBytes> found{};
  unsigned found_bytes = 0;
  crypto()->finish(context_.get(), found.data(), &found_bytes);
  std::string text;
  for (const unsigned char byte : std::span(found).first(found_bytes)) text += fmt::format("{:02x}", byte);
  return text;
}

Result<std::string> sha256_of(std::string_view text) {
  auto digest = Digest::begin(Digest::Kind::Sha256);
  RETURN_IF_ERROR(digest);
  digest->update(std::as_bytes(std::span(text)));
  return digest->finish();
}

Result<std::string> hmac_sha256(std::string_view key, std::string_view text) {
  if (!crypto()) return no_libcrypto();
  std::array<unsigned char, kMostDigestBytes> found{};
  unsigned found_bytes = 0;
  const auto* const data = reinterpret_cast<const unsigned char*>(text.data());
  if (crypto()->hmac(crypto()->sha256(), key.data(), static_cast<int>(key.size()), data, text.size(),
                     found.data(), &found_bytes) == nullptr)
    return fail(ErrorCode::System, EIO, "libcrypto computes no HMAC");
  return std::string(reinterpret_cast<const char*>(found.data()), found_bytes);
}

Result<DigestCheck> DigestCheck::begin(std::uint64_t size_bytes, std::string_view digest) {
  constexpr std::size_t kSha1Digits = 40;
  const bool is_blob = digest.size() == kSha1Digits;
  auto found = Digest::begin(is_blob ? Digest::Kind::Sha1 : Digest::Kind::Sha256);
  RETURN_IF_ERROR(found);
  if (is_blob) {
    const std::string head = fmt::format("blob {}", size_bytes);
    found->update(std::as_bytes(std::span(head.c_str(), head.size() + 1)));  // with the zero
  }
  return DigestCheck(std::move(*found), digest);
}

Result<void> DigestCheck::finish() {
  const std::string text = digest_.finish();
  if (text == listed_) return {};
  return fail(ErrorCode::ArchiveChanged, ESTALE,
              fmt::format("the Hub lists this file as {}, and the bytes that came have {}", listed_, text));
}

Result<void> check_digest(std::span<const std::byte> bytes, std::string_view digest) {
  auto check = DigestCheck::begin(bytes.size(), digest);
  RETURN_IF_ERROR(check);
  check->update(bytes);
  return check->finish();
}

}  // namespace stfs
