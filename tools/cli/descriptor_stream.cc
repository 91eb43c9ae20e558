// Writes to the descriptor.
#include "tools/cli/descriptor_stream.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>

#include "tools/cli/verb.h"
#include "tools/text/printable.h"

namespace stfs::tools {

DescriptorBuffer::DescriptorBuffer(int fd) : fd_(fd) {
  setp(buffer_.data(), buffer_.data() + buffer_.size());
}

bool DescriptorBuffer::write_all(const char* from, std::size_t size_bytes) {
  // Linux writes at most 2 GiB - 4 KiB in one call and returns the number of bytes that it wrote.
  while (size_bytes > 0 && error_ == 0) {
    const ssize_t written = ::write(fd_, from, size_bytes);
    if (written < 0) {
      if (errno != EINTR) error_ = errno;
      continue;
    }
    from += written;
    size_bytes -= static_cast<std::size_t>(written);
  }
  return error_ == 0;
}

bool DescriptorBuffer::drain() {
  const bool written = write_all(pbase(), static_cast<std::size_t>(pptr() - pbase()));
  setp(buffer_.data(), buffer_.data() + buffer_.size());
  return written;
}

DescriptorBuffer::int_type DescriptorBuffer::overflow(int_type character) {
  if (!drain()) return traits_type::eof();
  if (!traits_type::eq_int_type(character, traits_type::eof())) sputc(traits_type::to_char_type(character));
  return traits_type::not_eof(character);
}

std::streamsize DescriptorBuffer::xsputn(const char* from, std::streamsize count) {
  if (count > epptr() - pptr() && !drain()) return 0;
  if (count >= epptr() - pptr()) return write_all(from, static_cast<std::size_t>(count)) ? count : 0;
  std::copy_n(from, count, pptr());
  pbump(static_cast<int>(count));
  return count;
}

int DescriptorBuffer::sync() {
  return drain() ? 0 : -1;
}

int close_output(DescriptorStream& out, int code, std::string_view verb, std::ostream& err) {
  out.flush();
  if (out.error() == 0) return code;
  if (out.error() != EPIPE) {
    err << fmt::format("stfs {}: standard output: write: {}\n", printable(verb),
                       std::generic_category().message(out.error()));
  }
  return kFailed;
}

}  // namespace stfs::tools
