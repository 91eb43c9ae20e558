// The blocks of remote files that this user's programs keep on the local disk, all files together.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/error.h"

namespace stfs {

/// Says whether the bytes of a file were compared with a digest.
enum class Proof : std::uint8_t {
  Server,  // the server has sent the bytes: TLS proves the server alone
  Blocks,  // the Hub lists a digest, and the whole file was never compared with it
  Whole,   // the whole file has the digest
};
std::string_view name_of(Proof proof);

/// A file of the cache.
struct CachedFile {
  std::string name;     // of the local file, in the cache's directory
  std::string shown;    // how people name the remote file: its address, or hf://ORG/MODEL@COMMIT/FILE
  std::string version;  // its ETag, or the digest that the Hub lists
  std::uint64_t size_bytes = 0;
  std::uint64_t kept_bytes = 0;
  std::uint64_t pinned_bytes = 0;  // of the kept ones
  std::uint32_t used_at = 0;       // in minutes since 1970; 0: no block is kept
  Proof proof = Proof::Server;
  bool is_in_use = false;  // a program has it open
};

/// Lists the files in the order of `shown`. Files that are damaged are left out.
/// @return the errors of open_own_cache().
Result<std::vector<CachedFile>> list_block_cache();

/// Drops the blocks that no program has begun to use for the longest time, until `bytes` are free. Pinned
/// blocks stay, and blocks of the last minute. Does nothing while another program drops blocks.
/// @return the number of bytes dropped.
std::uint64_t drop_least_recent(std::uint64_t bytes);

/// Drops all blocks of a file, also pinned ones. Programs that use it fetch them again.
/// @return the number of bytes dropped. ENOENT: there is no such file.
Result<std::uint64_t> drop_cached_file(const std::string& name);

/// Compares a whole file with the digest that the Hub lists. A wrong file is dropped.
/// @return ESTALE (ArchiveChanged): it has another digest. ENODATA: not all of it is here. EINVAL: its server
///   lists no digest. ENOENT: there is no such file. ENOSYS: there is no libcrypto.
Result<void> prove_cached_file(const std::string& name);

/// Lets the pinned blocks of a file go when they are the least recent.
Result<void> unpin_cached_file(const std::string& name);

/// The most bytes that the cache keeps. Nothing: as many as leave a twentieth of the disk free.
Result<std::optional<std::uint64_t>> block_cache_limit();
/// @param limit  nothing: there is no limit any more.
Result<void> set_block_cache_limit(std::optional<std::uint64_t> limit);

/// Drops the least recent blocks if the cache is over its limit.
/// @return the number of bytes dropped.
std::uint64_t drop_over_limit();

/// Returns true if the disk has room for more blocks. Drops the least recent ones for it, if that is needed.
/// @param file  a file of the cache, or one on the same disk.
bool has_room_for_blocks(int file);
/// A program calls it after it has kept bytes. Calls drop_over_limit() from time to time.
void note_kept_bytes(std::uint64_t bytes);

}  // namespace stfs
