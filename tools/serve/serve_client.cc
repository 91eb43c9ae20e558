// Attaches to a server: receives the Grant with its manifest and its arenas.
#include "tools/serve/serve_client.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <thread>
#include <utility>

#include "core/storage/group_members.h"
#include "core/storage/trusted_links.h"
#include "tools/device/backend.h"
#include "tools/serve/sealed_document.h"
#include "tools/serve/serve_message.h"
#include "tools/serve/serve_socket.h"

namespace stfs::serve {
namespace {

using device::Arena;
using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kConnectPause{2};
/// A server accepts a full queue of connections within moments, so even an impatient client waits this long.
constexpr std::chrono::seconds kLeastConnectPatience{1};
/// A running server answers a Query at once.
constexpr std::chrono::seconds kQueryPatience{10};
constexpr std::string_view kNoAnswer = "the server does not answer";

/// An arena of another process. The lease lasts while any thread uses the arena, even after the Lease object
/// is destroyed.
class LeasedArena final : public Arena {
 public:
  LeasedArena(std::shared_ptr<Arena> arena, std::shared_ptr<void> lease)
      : lease_(std::move(lease)), arena_(std::move(arena)) {}

  [[nodiscard]] const device::Device& device() const override { return arena_->device(); }
  [[nodiscard]] std::uint64_t size_bytes() const override { return arena_->size_bytes(); }
  [[nodiscard]] void* address() const override { return arena_->address(); }
  [[nodiscard]] std::span<std::byte> host_bytes() override { return arena_->host_bytes(); }
  [[nodiscard]] bool is_read_only() const override { return true; }
  Result<UniqueFd> share() override {
    return fail(ErrorCode::InvalidArgument, ENOTSUP, "an arena of another process cannot be shared again");
  }

 private:
  std::shared_ptr<void> lease_;  // destroyed after the memory: the server may rely on this order
  std::shared_ptr<Arena> arena_;
};

Result<UniqueFd> connect_until(const std::filesystem::path& path, Clock::time_point deadline) {
  deadline = std::max(deadline, Clock::now() + kLeastConnectPatience);
  for (;;) {
    auto socket = connect_to_server(path);
    const bool is_crowded = !socket && socket.error().errno_value == EAGAIN;
    if (!is_crowded || Clock::now() >= deadline) return socket;
    std::this_thread::sleep_for(kConnectPause);
  }
}

/// Refuses a server of another user, because any user can bind a socket in /tmp and pose as a server. A
/// server of root is accepted. A client of root accepts a server of the user who owns the socket's directory,
/// and may query every server.
Result<void> check_server(int socket, const std::filesystem::path& path, ServeKind question) {
  const auto peer = peer_of(socket);
  RETURN_IF_ERROR(peer);
  const uid_t self = ::geteuid();
  if (peer->uid == 0 || is_same_user(peer->uid, self)) return {};
  if (self != 0)
    return fail(ErrorCode::System, EPERM, fmt::format("is served by another user (uid {})", peer->uid));
  if (question == ServeKind::Query) return {};
  struct stat directory {};
  const auto place = follow_to_directory(path.has_parent_path() ? path.parent_path() : ".");
  if (place && ::fstat(place->get(), &directory) == 0 && is_same_user(directory.st_uid, peer->uid)) return {};
  return fail(
      ErrorCode::System, EPERM,
      fmt::format("is served by another user (uid {}), in a directory that is not that user's", peer->uid));
}

/// Waits, and looks at the socket at least once. A caller of several waits checks its deadline between them:
/// a server may send messages without end.
/// @param late  the meaning of ETIMEDOUT.
Result<void> wait_readable(int socket, Clock::time_point deadline, std::string_view late) {
  for (;;) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()).count();
    pollfd polled{socket, POLLIN, 0};
    const int ready = ::poll(&polled, 1, static_cast<int>(std::clamp<std::int64_t>(left, 0, 1'000'000)));
    if (ready > 0) return {};
    if (ready < 0 && errno != EINTR) return fail_system(errno, "socket", "poll");
    if (Clock::now() >= deadline) return fail(ErrorCode::System, ETIMEDOUT, std::string(late));
  }
}

/// Returns the next message, which must be of this kind.
Result<ReceivedMessage> receive_answer(int socket, ServeKind wanted) {
  auto received =
      receive_message(socket, wanted == ServeKind::Grant ? Incoming::Descriptors : Incoming::NoDescriptors);
  RETURN_IF_ERROR(received);
  if (!*received) return fail(ErrorCode::System, ECONNRESET, "the server has ended");
  const ServeMessage& message = (*received)->message;
  if (message.kind == ServeKind::Refusal) return fail(ErrorCode::System, message.errno_value, message.text);
  if (message.kind != wanted)
    return fail(ErrorCode::InvalidArgument, EPROTO, "the server has sent an unexpected message");
  return std::move(**received);
}

/// Sends one request to a server and receives the answer.
Result<ReceivedMessage> ask(int socket, const std::filesystem::path& path, ServeKind question,
                            ServeKind wanted, Clock::time_point deadline) {
  RETURN_IF_ERROR(check_server(socket, path, question));
  // Continue after EPIPE: a server that has closed the connection may have sent the reason before.
  if (auto sent = send_message(socket, ServeMessage{question}); !sent && sent.error().errno_value != EPIPE) {
    return pass_on(std::move(sent));
  }
  const std::string_view late =
      wanted == ServeKind::Grant ? "the server is still uploading its first generation" : kNoAnswer;
  RETURN_IF_ERROR(wait_readable(socket, deadline, late));
  return receive_answer(socket, wanted);
}

/// Receives the rest of a report.
Result<std::string> take_report(int socket, ServeMessage part, Clock::time_point deadline) {
  const std::uint64_t size_bytes = part.document_bytes;
  std::string text = std::move(part.text);
  while (text.size() < size_bytes) {
    RETURN_IF_ERROR(wait_readable(socket, deadline, kNoAnswer));
    auto received = receive_answer(socket, ServeKind::Report);
    RETURN_IF_ERROR(received);
    if (received->message.text.empty())
      return fail(ErrorCode::InvalidArgument, EPROTO, "the server has sent an empty part of its report");
    text += received->message.text;
  }
  if (text.size() > size_bytes)
    return fail(ErrorCode::InvalidArgument, EPROTO, "the server has sent more than its report");
  return text;
}

Result<std::shared_ptr<Arena>> adopt(const ManifestArena& arena, UniqueFd descriptor) {
  const auto device = device::parse_device(arena.device);
  RETURN_IF_ERROR(device);
  const auto backend = device::Backend::open(*device);
  RETURN_IF_ERROR(backend);
  return (*backend)->adopt(std::move(descriptor), arena.size_bytes);
}

}  // namespace

class Lease::Connection {
 public:
  explicit Connection(UniqueFd socket) : socket_(std::move(socket)) {}
  [[nodiscard]] int descriptor() const { return socket_.get(); }
  void close() { const UniqueFd gone = std::move(socket_); }

 private:
  UniqueFd socket_;
};

Result<Lease> Lease::attach(const std::filesystem::path& socket, const AttachOptions& options) {
  const auto attach = [&]() -> Result<Lease> {
    const auto deadline = Clock::now() + options.patience;
    auto connected = connect_until(socket, deadline);
    RETURN_IF_ERROR(connected);
    auto granted = ask(connected->get(), socket, ServeKind::Attach, ServeKind::Grant, deadline);
    if (!granted) return tl::unexpected(std::move(granted.error()).within(socket.native()));
    Lease lease;
    std::error_code ignored;
    lease.socket_ = std::filesystem::absolute(socket, ignored);
    lease.connection_ = std::make_shared<Connection>(std::move(*connected));
    if (auto taken = lease.take_over(*granted); !taken)
      return tl::unexpected(std::move(taken.error()).within(socket.native()));
    lease.changed_.clear();
    return lease;
  };
  return guard_memory(attach);
}

Result<void> Lease::take_over(ReceivedMessage& granted) {
  const auto wrong = [](std::string message) {
    return fail(ErrorCode::InvalidArgument, EPROTO, std::move(message));
  };
  const auto text = read_document(granted.descriptors.front().get(), granted.message.document_bytes);
  RETURN_IF_ERROR(text);
  auto manifest = parse_manifest(*text);
  RETURN_IF_ERROR(manifest);
  const bool is_other_server = !arenas_.empty() && manifest->identity.server != manifest_.identity.server;
  if (is_other_server || manifest->identity.generation != granted.message.generation)
    return wrong("the manifest belongs to another generation");
  std::vector<std::shared_ptr<Arena>> arenas;
  std::size_t used = 1;
  for (const ManifestArena& arena : manifest->arenas) {
    const auto held = std::ranges::find(manifest_.arenas, arena.number, &ManifestArena::number);
    if (held != manifest_.arenas.end()) {
      if (held->device != arena.device || held->size_bytes != arena.size_bytes)
        return wrong("an arena has become another one");
      arenas.push_back(arenas_[static_cast<std::size_t>(held - manifest_.arenas.begin())]);
      continue;
    }
    if (used == granted.descriptors.size()) return wrong("an arena is missing");
    auto adopted = adopt(arena, std::move(granted.descriptors[used++]));
    RETURN_IF_ERROR(adopted);
    arenas.push_back(std::make_shared<LeasedArena>(std::move(*adopted), connection_));
  }
  if (used != granted.descriptors.size()) return wrong("there are more arenas than the manifest names");
  changed_.clear();
  for (std::size_t at = 0; at < manifest->tensors.size(); ++at) {
    if (manifest->tensors[at].changed_in > generation()) changed_.push_back(at);
  }
  manifest_ = std::move(*manifest);
  arenas_ = std::move(arenas);
  newest_ = std::max(newest_, generation());
  told_newest_ = std::max(told_newest_, generation());
  return {};
}

int Lease::descriptor() const {
  return connection_->descriptor();
}

tl::unexpected<Error> Lease::gone() const {
  return fail(ErrorCode::System, ECONNRESET, fmt::format("{}: the server has ended", socket_.native()));
}

Result<void> Lease::receive_arrived() {
  constexpr int kMostMessages = 256;
  for (int count = 0; count < kMostMessages && connection_->descriptor() >= 0; ++count) {
    auto received = receive_message(connection_->descriptor(),
                                    is_renewing_ ? Incoming::Descriptors : Incoming::NoDescriptors);
    if (!received && received.error().errno_value == EAGAIN) return {};
    auto done = !received    ? Result<void>(pass_on(std::move(received)))
                : !*received ? Result<void>()
                             : receive(**received);
    if (!received || !*received || !done) connection_->close();
    // The server's next messages cannot be trusted, so the lease treats the server as ended.
    if (!done) return tl::unexpected(std::move(done.error()).within(socket_.native()));
  }
  return {};
}

Result<void> Lease::receive(ReceivedMessage& received) {
  const ServeMessage& message = received.message;
  if (message.kind == ServeKind::Newer && message.generation > newest_) {
    newest_ = message.generation;
    why_stuck_.clear();
  } else if (message.kind == ServeKind::Stuck) {
    why_stuck_ = message.text;
  } else if (message.kind == ServeKind::Grant && is_renewing_) {
    is_renewing_ = false;
    granted_ = std::make_shared<ReceivedMessage>(std::move(received));
  } else if (message.kind == ServeKind::Refusal) {
    return fail(ErrorCode::System, message.errno_value, message.text);
  }
  return {};
}

Result<LeaseNews> Lease::take_news() {
  RETURN_IF_ERROR(receive_arrived());
  LeaseNews news;
  if (newest_ > told_newest_) news.newer_generation = told_newest_ = newest_;
  news.why_stuck = std::exchange(why_stuck_, {});
  news.is_server_gone = connection_->descriptor() < 0;
  return news;
}

Result<std::uint64_t> Lease::wait_newer(std::chrono::milliseconds patience) {
  const auto deadline = Clock::now() + patience;
  for (;;) {
    RETURN_IF_ERROR(receive_arrived());
    if (newest_ > generation()) return newest_;
    if (connection_->descriptor() < 0) return gone();
    if (Clock::now() >= deadline) return 0;
    if (auto ready = wait_readable(connection_->descriptor(), deadline, kNoAnswer); !ready) {
      if (ready.error().errno_value == ETIMEDOUT) return 0;
      return pass_on(std::move(ready));
    }
  }
}

Result<void> Lease::renew(std::chrono::milliseconds patience) {
  const auto renew = [&]() -> Result<void> {
    const auto deadline = Clock::now() + patience;
    changed_.clear();
    RETURN_IF_ERROR(receive_arrived());
    if (newest_ <= generation() && connection_->descriptor() >= 0) return {};
    while (!granted_) {
      if (connection_->descriptor() < 0) return gone();
      if (!is_renewing_) {
        auto sent = send_message(connection_->descriptor(), ServeMessage{ServeKind::Renew});
        if (!sent && sent.error().errno_value == EPIPE) return gone();
        RETURN_IF_ERROR(sent);
        is_renewing_ = true;
      }
      if (auto ready = wait_readable(connection_->descriptor(), deadline, kNoAnswer); !ready)
        return tl::unexpected(std::move(ready.error()).within(socket_.native()));
      RETURN_IF_ERROR(receive_arrived());
      if (!granted_ && connection_->descriptor() >= 0 && Clock::now() >= deadline)
        return fail(ErrorCode::System, ETIMEDOUT, fmt::format("{}: {}", socket_.native(), kNoAnswer));
    }
    const auto granted = std::exchange(granted_, nullptr);
    auto taken = take_over(*granted);
    if (taken) return taken;
    connection_->close();
    return tl::unexpected(std::move(taken.error()).within(socket_.native()));
  };
  return guard_memory(renew);
}

Result<std::string> query_server(const std::filesystem::path& socket) {
  const auto deadline = Clock::now() + kQueryPatience;
  const auto connected = connect_until(socket, deadline);
  RETURN_IF_ERROR(connected);
  auto text = guard_memory([&]() -> Result<std::string> {
    auto answered = ask(connected->get(), socket, ServeKind::Query, ServeKind::Report, deadline);
    RETURN_IF_ERROR(answered);
    return take_report(connected->get(), std::move(answered->message), deadline);
  });
  if (!text) return tl::unexpected(std::move(text.error()).within(socket.native()));
  return text;
}

}  // namespace stfs::serve
