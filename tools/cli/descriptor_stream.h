// Standard output as a stream that remembers why a write failed.
//
// std::cout forgets the errno, copies large writes through stdio, and reports an error on close to
// nobody: a full disk would go unnoticed, and `stfs cat` would copy each tensor once more than needed.
#pragma once

#include <array>
#include <ostream>
#include <streambuf>
#include <string_view>

namespace stfs::tools {

class DescriptorBuffer : public std::streambuf {
 public:
  /// Does not own the descriptor.
  explicit DescriptorBuffer(int fd);

  /// The errno of the first write that failed, 0 before. After it nothing more is written.
  [[nodiscard]] int error() const { return error_; }

 protected:
  int_type overflow(int_type character) override;
  /// What is larger than the buffer goes to write(2) straight from the caller's memory.
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

/// Flushes standard output and gives the exit code of the whole command: `code`, or kFailed where not
/// everything could be written. A reader that has gone (`stfs ls | head`) is no news for anybody: said
/// is nothing then. (Where SIGPIPE has its default action the process has ended before this.)
int close_output(DescriptorStream& out, int code, std::string_view verb, std::ostream& err);

}  // namespace stfs::tools
