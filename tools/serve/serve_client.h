// The other side of `stfs serve`: tensors that another process keeps in the memory of its devices, mapped
// here.
//
// No byte of them is copied. They can't be written to, from here or anywhere: the memory of the CPU is
// sealed.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "core/base/byte_range.h"
#include "core/base/error.h"
#include "core/base/unique_fd.h"
#include "core/format/dtype.h"
#include "tools/device/arena.h"

namespace stfs::upload {

struct ReceivedMessage;

struct LeasedTensor {
  std::string name;
  Dtype dtype = Dtype::U8;
  std::vector<std::uint64_t> shape;
  std::uint32_t arena = 0;  // in Lease::arenas()
  ByteRange place;          // in that arena
};

struct AttachOptions {
  /// How long a server that is still uploading its first generation is waited for.
  std::chrono::milliseconds patience = std::chrono::seconds(60);
};

/// What is new on a lease. Each is told once.
struct LeaseNews {
  /// The newest generation that is there, where that is a newer one than ours and has not been told before;
  /// else 0.
  std::uint64_t newer_generation = 0;
  /// Why a change of the archive has led to no newer generation; empty where there is no such news.
  std::string why_stuck;
  /// The server has ended. What is mapped stays; there will be no more news.
  bool is_server_gone = false;
};

/// One generation of what a server holds. Each of its arenas keeps the lease, too: it lasts until the Lease
/// and the last of its arenas are gone. Moved, not copied. One thread at a time, but for its arenas: any.
class Lease {
 public:
  /// @param socket  what `stfs serve --socket` was given.
  /// @return ENOENT, ECONNREFUSED: nobody serves there; EACCES, EPERM: another user does; ETIMEDOUT: it is
  /// still
  ///         uploading; EPROTO, EPROTONOSUPPORT: it is something else, or another version; ENODEV: a device
  ///         of it is not visible here; each with what to do about it.
  static Result<Lease> attach(const std::filesystem::path& socket, const AttachOptions& options = {});

  [[nodiscard]] const std::filesystem::path& socket() const { return socket_; }
  /// From 1 on. Counted by one server: after another one has taken its place, it begins anew.
  [[nodiscard]] std::uint64_t generation() const { return generation_; }
  /// What the server was given to serve, as absolute paths.
  [[nodiscard]] const std::vector<std::string>& sources() const { return sources_; }
  /// Read-only.
  [[nodiscard]] const std::vector<std::shared_ptr<Arena>>& arenas() const { return arenas_; }
  /// In the order in which they lie in the archives. A replica is a tensor of its own, with the same name.
  [[nodiscard]] const std::vector<LeasedTensor>& tensors() const { return tensors_; }

  /// To be polled: readable when there is news. -1 once the server is gone.
  [[nodiscard]] int descriptor() const;
  /// Takes the news that is there; never waits.
  /// @return EPROTO where the server says something that makes no sense.
  Result<LeaseNews> take_news();

  /// A lease of the newest generation, whatever it is. This one stays as it is.
  [[nodiscard]] Result<Lease> refresh(const AttachOptions& options = {}) const {
    return attach(socket_, options);
  }

 private:
  class Connection;
  Lease() = default;
  static Result<Lease> take_over(ReceivedMessage& granted, UniqueFd socket);

  std::filesystem::path socket_;
  std::uint64_t generation_ = 0;
  std::uint64_t told_generation_ = 0;
  std::vector<std::string> sources_;
  std::shared_ptr<Connection> connection_;
  std::vector<std::shared_ptr<Arena>> arenas_;
  std::vector<LeasedTensor> tensors_;
};

/// What a server says about itself, its generations and its leases: the JSON of `stfs serve --status --json`.
/// @return as Lease::attach().
Result<std::string> query_server(const std::filesystem::path& socket);

}  // namespace stfs::upload
