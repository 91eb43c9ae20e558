// Opens shards with a few threads: each takes the next shard.
#include "core/model/model_shards.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>

#include "core/base/parallel.h"
#include "core/model/model.h"

namespace stfs {
namespace {

// Headers are in the page cache or must come from a disk. More threads than cores help in the second case.
constexpr unsigned kMostThreads = 8;

void open_shard(Shard& shard, const ModelOptions& options) {
  shard.before = identity_at(shard.path, *options.storage);
  auto archive = Archive::open(shard.path, options.access, *options.storage, options.io, options.links);
  if (archive) {
    shard.adopt(std::move(*archive));
  } else {
    shard.failure = std::move(archive).error();
  }
}

/// Whether the error is not the shard's fault.
bool is_our_own(const Error& error) {
  return error.code == ErrorCode::OutOfMemory || error.errno_value == ENOMEM || error.errno_value == EMFILE ||
         error.errno_value == ENFILE;
}

void refuse_twins(std::vector<Shard>& shards) {
  std::map<std::pair<std::uint64_t, std::uint64_t>, const Shard*> known;  // by device and inode
  for (Shard& shard : shards) {
    if (!shard.archive) continue;
    const FileIdentity identity = shard.archive->identity();
    const auto [first, is_new] = known.try_emplace({identity.device, identity.inode}, &shard);
    if (is_new) continue;
    shard.archive.reset();
    shard.failure =
        Error{ErrorCode::InvalidArgument, EINVAL,
              fmt::format("{}: is the same file as {}", shard.path.string(), first->second->path.string())};
  }
}

}  // namespace

std::optional<FileIdentity> identity_at(const std::filesystem::path& path, Storage& storage) {
  const auto file = storage.open(path, Access::ReadOnly);
  const auto status = file ? (*file)->status() : tl::unexpected(file.error());
  return status ? std::optional(status->identity) : std::nullopt;
}

bool is_refusal_to_write(const Error& error) {
  const int why = error.errno_value;
  return error.code == ErrorCode::System && (why == EACCES || why == EROFS || why == EPERM || why == ETXTBSY);
}

Result<std::vector<Shard>> open_shards(const std::filesystem::path& directory,
                                       std::span<const std::string> names, const ModelOptions& options) {
  std::vector<Shard> shards;
  shards.reserve(names.size());
  for (const std::string& name : names) shards.push_back({.path = directory / name});

  auto opened = run_parallel(shards.size(), options.uses_threads ? kMostThreads : 1,
                             [&](std::size_t at, unsigned) -> Result<void> {
                               open_shard(shards[at], options);
                               return {};
                             });
  if (!opened) return pass_on(std::move(opened));

  for (Shard& shard : shards) {
    if (!shard.failure) continue;
    if (is_our_own(*shard.failure)) return tl::unexpected(*shard.failure);
    if (options.access == Access::ReadWrite && is_refusal_to_write(*shard.failure)) {
      return tl::unexpected(*shard.failure);
    }
  }
  refuse_twins(shards);
  return shards;
}

}  // namespace stfs
