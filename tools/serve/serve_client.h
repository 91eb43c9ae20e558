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

namespace stfs::upload {

struct ReceivedMessage;

struct AttachOptions {
  /// How long to wait for a server that is still uploading its first generation.
  std::chrono::milliseconds patience = std::chrono::seconds(60);
};

/// News about a lease. Each item is reported once.
struct LeaseNews {
  /// The server's newest generation, if it is newer than the leased one and was not reported before; else 0.
  std::uint64_t newer_generation = 0;
  /// Why a change of the archive has led to no newer generation; empty if there is no such news.
  std::string why_stuck;
  /// The server has ended. Mapped tensors stay valid; there will be no more news.
  bool is_server_gone = false;
};

/// A lease of one generation of a server. Each of its arenas keeps the lease too: the lease lasts until the
/// Lease object and its last arena are gone. A Lease can be moved but not copied. One thread at a time may
/// use it; any number of threads may use its arenas.
///
/// renew() exchanges the generation for the newest one. Arenas that both generations use keep their
/// addresses. Arenas that the caller took before stay valid and unchanged.
class Lease {
 public:
  /// @param socket  the path that `stfs serve --socket` was given.
  /// @return ENOENT, ECONNREFUSED: no server listens there;
  ///         EACCES, EPERM: the server belongs to another user;
  ///         ETIMEDOUT: it is still uploading;
  ///         EPROTO, EPROTONOSUPPORT: it is another program or another version;
  ///         ENODEV: one of its devices is not visible here. Each message says what to do.
  static Result<Lease> attach(const std::filesystem::path& socket, const AttachOptions& options = {});

  /// Starts at 1. The server counts; after another server has taken its place, the count starts again.
  [[nodiscard]] std::uint64_t generation() const { return manifest_.identity.generation; }
  /// The version of the weight sync that the generation holds, "000042"; empty if none is known.
  [[nodiscard]] const std::string& version() const { return manifest_.identity.version; }
  /// The sources that the server was given, as absolute paths.
  [[nodiscard]] const std::vector<std::string>& sources() const { return manifest_.identity.sources; }
  /// All arenas are read-only.
  [[nodiscard]] const std::vector<std::shared_ptr<Arena>>& arenas() const { return arenas_; }
  /// In the order of the tensors in the archives. A replica is a tensor of its own with the same name.
  [[nodiscard]] const std::vector<LeasedTensor>& tensors() const { return manifest_.tensors; }

  /// A descriptor for poll(2) that is readable when there is news. -1 once the server has ended.
  [[nodiscard]] int descriptor() const;
  /// Takes the pending news and never waits.
  /// @return EPROTO if the server sends something that makes no sense.
  Result<LeaseNews> take_news();

  /// Waits until there is a generation newer than the leased one. take_news() still reports it.
  /// @return its number; 0 if there is none within `patience`; ECONNRESET if the server has ended.
  Result<std::uint64_t> wait_newer(std::chrono::milliseconds patience);
  /// Leases the newest generation instead of the present one. Does nothing if there is no newer one.
  /// @return ECONNRESET if the server has ended; ETIMEDOUT if it does not answer within `patience`: call
  ///         again. After another error the lease has no connection any more: attach again. After each error
  ///         the lease is still one of the generation before.
  Result<void> renew(std::chrono::milliseconds patience);
  /// The positions in tensors() whose bytes, dtype or shape differ from the generation before the last
  /// renew(). Empty if that call found no newer generation.
  [[nodiscard]] const std::vector<std::uint64_t>& changed() const { return changed_; }

 private:
  class Connection;
  Lease() = default;
  /// Maps what the Grant brings, and takes the arenas that this lease has already.
  Result<void> take_over(ReceivedMessage& granted);
  /// Receives what has come, without waiting.
  Result<void> receive_all();
  Result<void> receive(ReceivedMessage& received);
  [[nodiscard]] tl::unexpected<Error> gone() const;

  std::filesystem::path socket_;  // absolute
  ServeManifest manifest_;
  std::vector<std::uint64_t> changed_;
  std::uint64_t newest_ = 0;                  // the newest generation that the server has told
  std::uint64_t told_newest_ = 0;             // ... that take_news() has reported
  std::string why_stuck_;                     // not reported yet
  bool is_renewing_ = false;                  // Renew was sent, and the Grant has not come
  std::shared_ptr<ReceivedMessage> granted_;  // the Grant that has come
  std::shared_ptr<Connection> connection_;
  std::vector<std::shared_ptr<Arena>> arenas_;
};

/// Returns what a server reports about itself, its generations and its leases: the JSON of
/// `stfs serve --status --json`.
/// @return the errors of Lease::attach().
Result<std::string> query_server(const std::filesystem::path& socket);

}  // namespace stfs::upload
