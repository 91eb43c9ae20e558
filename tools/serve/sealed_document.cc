#include "tools/serve/sealed_document.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>

namespace stfs::serve {
namespace {

constexpr const char* kSubject = "document";

Result<void> write_all(int fd, std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = ::write(fd, text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return fail_system(errno, kSubject, "write");
    text.remove_prefix(static_cast<std::size_t>(written));
  }
  return {};
}

/// Checks that no process can write to the document or truncate it, and that it has at least this size.
Result<void> check_sealed(int descriptor, std::uint64_t size_bytes) {
  const int seals = ::fcntl(descriptor, F_GET_SEALS);
  // Only memfds can be sealed.
  if (seals < 0) return fail(ErrorCode::InvalidArgument, EPROTO, "the received document is not a memfd");
  constexpr int kWanted = F_SEAL_WRITE | F_SEAL_SHRINK;
  if ((seals & kWanted) != kWanted) {
    return fail(ErrorCode::InvalidArgument, EPROTO, "the received document is not sealed: it could change");
  }
  struct stat status {};
  if (::fstat(descriptor, &status) != 0) return fail_system(errno, kSubject, "query");
  if (static_cast<std::uint64_t>(status.st_size) < size_bytes) {
    return fail(ErrorCode::InvalidArgument, EPROTO, "the received document is too short");
  }
  return {};
}

}  // namespace

Result<UniqueFd> seal_document(std::string_view text) {
  UniqueFd document(::memfd_create("stfs-document", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!document) return fail_system(errno, kSubject, "create a memfd");
  RETURN_IF_ERROR(write_all(document.get(), text));
  if (::fcntl(document.get(), F_ADD_SEALS, F_SEAL_WRITE | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    return fail_system(errno, kSubject, "seal");
  }
  return document;
}

Result<std::string> read_document(int descriptor, std::uint64_t size_bytes) {
  RETURN_IF_ERROR(check_sealed(descriptor, size_bytes));
  return guard_memory([&]() -> Result<std::string> {
    std::string text(size_bytes, '\0');
    std::size_t done = 0;
    while (done < text.size()) {
      const ssize_t got =
          ::pread(descriptor, text.data() + done, text.size() - done, static_cast<off_t>(done));
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) return fail_system(errno, kSubject, "read");
      if (got == 0) return fail(ErrorCode::InvalidArgument, EPROTO, "the document ends early");
      done += static_cast<std::size_t>(got);
    }
    return text;
  });
}

}  // namespace stfs::serve
