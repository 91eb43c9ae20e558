// Standard output as a stream that remembers why a write failed.
//
// std::cout forgets the errno, copies large writes through stdio, and loses an error on close. A full disk
// would go unnoticed, and `stfs cat` would copy each tensor once more than necessary.
#pragma once

#include <array>
#include <ostream>
#include <streambuf>
#include <string_view>

namespace stfs::tools {

class DescriptorBuffer : public std::streambuf {
 public:
  /// The caller still owns the descriptor.
  explicit DescriptorBuffer(int fd);

  /// The errno of the first write that failed, or 0. After a failure nothing more is written.
  [[nodiscard]] int error() const { return error_; }

 protected:
  int_type overflow(int_type character) override;
  /// Data larger than the buffer go to write(2) directly from the caller's memory.
  std::streamsize xsputn(const char* from, std::streamsize count) override;
  int sync() override;

 private:
  bool write_all(const char* from, std::size_t size_bytes);
  bool drain();

  int fd_;
  int error_ = 0;
  std::array<char, 65536> buffer_;
};

class DescriptorStream : public std::ostream {
 public:
  explicit DescriptorStream(int fd) : std::ostream(nullptr), buffer_(fd) { rdbuf(&buffer_); }

  [[nodiscard]] int error() const { return buffer_.error(); }

 private:
  DescriptorBuffer buffer_;
};

/// Flushes standard output and returns the exit code of the whole command: `code`, or kFailed if not
/// everything could be written. If the reader has closed the pipe (`stfs ls | head`), nothing is printed,
/// because this is not an error for the user. (If SIGPIPE has its default action, the process has already
/// ended.)
int close_output(DescriptorStream& out, int code, std::string_view verb, std::ostream& err);

}  // namespace stfs::tools
