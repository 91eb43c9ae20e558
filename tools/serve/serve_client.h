// The client of `stfs serve`: maps tensors that another process keeps in the memory of its devices.
//
// No byte of them is copied. No process can write to tensors in the CPU's memory, because that memory is
// sealed.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "core/base/error.h"
#include "core/base/unique_fd.h"
#include "tools/device/arena.h"
#include "tools/serve/serve_manifest.h"

namespace stfs::serve {

struct ReceivedMessage;

struct AttachOptions {
  /// The time to wait for a server that is still uploading its first generation.
  std::chrono::milliseconds patience = std::chrono::seconds(60);
};

/// News about a lease. Each item is reported once.
struct LeaseNews {
  /// The server's newest generation, if it is newer than the leased one and was not reported before; else 0.
  std::uint64_t newer_generation = 0;
  /// The reason why a change of the archive has led to no newer generation; empty: no such news.
  std::string why_stuck;
  /// The server has ended. Mapped tensors stay valid. No news will follow.
  bool is_server_gone = false;
};

/// A lease of one generation of a server. Each of its arenas also keeps the lease: the lease lasts until the
/// Lease object and its last arena are destroyed. A Lease can be moved but not copied. One thread at a time
/// may use it; any number of threads may use its arenas.
///
/// renew() exchanges the generation for the newest one. Arenas that both generations use keep their
/// addresses. Arenas that the caller already has stay valid and unchanged.
class Lease {
 public:
  /// @param socket  the path that `stfs serve --socket` was given.
  /// @return ENOENT, ECONNREFUSED: no server listens there;
  ///         EACCES, EPERM: the server is a process of another user;
  ///         ETIMEDOUT: the server is still uploading;
  ///         EPROTO, EPROTONOSUPPORT: the server is another program or another version;
  ///         ENODEV: one of the server's devices is not visible here. Each message says how to continue.
  static Result<Lease> attach(const std::filesystem::path& socket, const AttachOptions& options = {});

  /// The number of the generation, from 1 on. The server counts. A server that takes its place counts from 1
  /// again.
  [[nodiscard]] std::uint64_t generation() const { return manifest_.identity.generation; }
  /// The version of the weight sync that the generation holds, "000042"; empty: unknown.
  [[nodiscard]] const std::string& version() const { return manifest_.identity.version; }
  /// The sources that the server was given, as absolute paths.
  [[nodiscard]] const std::vector<std::string>& sources() const { return manifest_.identity.sources; }
  /// All arenas are read-only.
  [[nodiscard]] const std::vector<std::shared_ptr<device::Arena>>& arenas() const { return arenas_; }
  /// The tensors in the order of the archives. A replica is a separate tensor with the same name.
  [[nodiscard]] const std::vector<LeasedTensor>& tensors() const { return manifest_.tensors; }

  /// A descriptor for poll(2) that is readable when there is news. -1 after the server has ended.
  [[nodiscard]] int descriptor() const;
  /// Takes the pending news and never waits.
  /// @return EPROTO: the server has sent an invalid message.
  Result<LeaseNews> take_news();

  /// Waits for a generation that is newer than the leased one. take_news() still reports it.
  /// @return its number; 0 if there is none within `patience`; ECONNRESET: the server has ended.
  Result<std::uint64_t> wait_newer(std::chrono::milliseconds patience);
  /// Leases the newest generation instead of the present one. Does nothing if there is no newer one.
  /// @return ECONNRESET: the server has ended; ETIMEDOUT: no answer within `patience`: call again. After
  ///         another error the lease has no connection any more: attach again. After each error the lease is
  ///         still a lease of the old generation.
  Result<void> renew(std::chrono::milliseconds patience);
  /// The positions in tensors() whose bytes, dtype or shape differ from the generation before the last
  /// renew(). Empty if that call found no newer generation.
  [[nodiscard]] const std::vector<std::uint64_t>& changed() const { return changed_; }

 private:
  class Connection;
  Lease() = default;
  /// Maps the new arenas of the Grant, and reuses the arenas that this lease has already.
  Result<void> take_over(ReceivedMessage& granted);
  /// Receives messages that have arrived, without waiting. A server may send faster than they are received,
  /// so their number is limited.
  Result<void> receive_arrived();
  Result<void> receive(ReceivedMessage& received);
  [[nodiscard]] tl::unexpected<Error> gone() const;

  std::filesystem::path socket_;  // absolute
  ServeManifest manifest_;
  std::vector<std::uint64_t> changed_;
  std::uint64_t newest_ = 0;                  // the newest generation that the server has announced
  std::uint64_t told_newest_ = 0;             // the newest one that take_news() has reported
  std::string why_stuck_;                     // not reported yet
  bool is_renewing_ = false;                  // Renew was sent, and the Grant has not arrived
  std::shared_ptr<ReceivedMessage> granted_;  // the Grant that has arrived
  std::shared_ptr<Connection> connection_;
  std::vector<std::shared_ptr<device::Arena>> arenas_;
};

/// Returns a server's report about itself, its generations and its leases: the JSON of `stfs serve --status
/// --json`.
/// @return the errors of Lease::attach().
Result<std::string> query_server(const std::filesystem::path& socket);

}  // namespace stfs::serve
