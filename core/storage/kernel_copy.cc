// Writes the bytes into a pipe and reads them from it.
#include "core/storage/kernel_copy.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include "core/base/unique_fd.h"

namespace stfs {
namespace {

constexpr std::size_t kPipeBytes = 64 << 10;  // capacity of a pipe

tl::unexpected<Error> failure(int errno_value) {
  if (errno_value != EFAULT) return fail_system(errno_value, "mapped bytes", "copy");
  return fail(ErrorCode::ArchiveCut, EIO,
              "mapped bytes are missing: the file was truncated, or its disk fails");
}

/// Reads exactly so many bytes from the pipe, which has them.
Result<void> take(int pipe, std::span<std::byte> to) {
  while (!to.empty()) {
    const ssize_t got = ::read(pipe, to.data(), to.size());
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return failure(got < 0 ? errno : EPIPE);
    to = to.subspan(static_cast<std::size_t>(got));
  }
  return {};
}

}  // namespace

Result<void> copy_by_kernel(std::span<const std::byte> from, std::span<std::byte> to) {
  if (from.empty()) return {};
  std::array<int, 2> ends{};
  // O_NONBLOCK: a pipe smaller than a piece then takes a part of it. A blocking write would wait for ever,
  // since this thread is the only reader.
  if (::pipe2(ends.data(), O_CLOEXEC | O_NONBLOCK) < 0) return failure(errno);
  const UniqueFd out(ends[0]);
  const UniqueFd in(ends[1]);
  while (!from.empty()) {
    const ssize_t put = ::write(in.get(), from.data(), std::min(from.size(), kPipeBytes));
    if (put < 0 && errno == EINTR) continue;
    if (put <= 0) return failure(put < 0 ? errno : EFAULT);
    const auto size_bytes = static_cast<std::size_t>(put);
    RETURN_IF_ERROR(take(out.get(), to.first(size_bytes)));
    from = from.subspan(size_bytes);
    to = to.subspan(size_bytes);
  }
  return {};
}

}  // namespace stfs
