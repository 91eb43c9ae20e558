// Takes the messages of libfuse. It calls writev(2), which is replaced at the link.
#include "tests/simulation/fuse_wire.h"

#include <fcntl.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cerrno>
#include <stdexcept>

namespace stfs::test {
namespace {

FuseWire* the_wire = nullptr;
int its_descriptor = -1;

}  // namespace

FuseWire::FuseWire(const fuse_lowlevel_ops& operations, void* userdata, Notified notified)
    : notified_(std::move(notified)) {
  std::string name = "simulation";
  char* words[] = {name.data(), nullptr};
  fuse_args arguments = FUSE_ARGS_INIT(1, words);
  session_ = fuse_session_new(&arguments, &operations, sizeof operations, userdata);
  fuse_opt_free_args(&arguments);
  // libfuse serves a file descriptor that a parent process has opened and mounted.
  its_descriptor = ::open("/dev/null", O_RDWR | O_CLOEXEC);  // the session closes it
  const std::string place = "/dev/fd/" + std::to_string(its_descriptor);
  if (session_ == nullptr || fuse_session_mount(session_, place.c_str()) != 0)
    throw std::runtime_error("libfuse takes no descriptor");
  the_wire = this;
}

FuseWire::~FuseWire() {
  its_descriptor = -1;
  the_wire = nullptr;
  fuse_session_unmount(session_);
  fuse_session_destroy(session_);
}

FuseWire* FuseWire::of(int descriptor) {
  return descriptor >= 0 && descriptor == its_descriptor ? the_wire : nullptr;
}

std::uint64_t FuseWire::send(std::uint32_t opcode, std::uint64_t node, const Asker& asker,
                             std::span<const std::byte> body) {
  fuse_in_header header{};
  header.len = static_cast<std::uint32_t>(sizeof header + body.size());
  header.opcode = opcode;
  header.unique = requests_ += 2;  // odd ones are interrupts
  header.nodeid = node;
  header.uid = asker.uid;
  header.gid = asker.gid;
  header.pid = asker.thread;
  Buffer message;
  message.reserve(header.len);
  append_to(message, header);
  message.insert(message.end(), body.begin(), body.end());
  fuse_buf buffer{};
  buffer.size = message.size();
  buffer.mem = message.data();
  if (!is_aborted_) fuse_session_process_buf(session_, &buffer);
  return header.unique;
}

std::optional<Reply> FuseWire::take(std::uint64_t request) {
  if (is_aborted_) return Reply{.error = ENOTCONN, .body = {}};
  const auto found = replies_.find(request);
  if (found == replies_.end()) return std::nullopt;
  Reply reply = std::move(found->second);
  replies_.erase(found);
  return reply;
}

ssize_t FuseWire::receive(std::span<const std::byte> message) {
  if (is_aborted_) {
    errno = ENOENT;  // libfuse prints any other errno to stderr
    return -1;
  }
  const auto header = taken_from<fuse_out_header>(message);
  const auto body = message.subspan(sizeof header);
  if (header.unique == 0) {
    notified_(header.error, body);
  } else {
    replies_[header.unique] = {.error = -header.error, .body = {body.begin(), body.end()}};
  }
  return static_cast<ssize_t>(message.size());
}

}  // namespace stfs::test

extern "C" ssize_t writev(int descriptor, const iovec* parts, int count) {
  auto* wire = stfs::test::FuseWire::of(descriptor);
  if (wire == nullptr) return ::syscall(SYS_writev, descriptor, parts, count);
  stfs::test::Buffer message;
  for (const iovec& part : std::span(parts, static_cast<std::size_t>(count))) {
    const auto bytes = std::as_bytes(std::span(static_cast<const char*>(part.iov_base), part.iov_len));
    message.insert(message.end(), bytes.begin(), bytes.end());
  }
  return wire->receive(message);
}
