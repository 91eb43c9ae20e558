#include "core/model/model_shards.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <memory>
#include <utility>

#include "core/base/absolute_path.h"
#include "core/base/parallel.h"
#include "core/model/model.h"

namespace stfs {
namespace {

// Headers are in the page cache or must be read from a disk. For a disk, more threads than cores help.
constexpr unsigned kMostThreads = 8;

void open_shard(Shard& shard, const ModelOptions& options) {
  auto archive = Archive::open(shard.path, options.access, *options.storage, options.io, options.links,
                               options.deadline());
  if (archive) {
    shard.adopt(std::move(*archive));
  } else {
    shard.failure = std::move(archive).error();
  }
}

/// Returns true if the cause of the error is this process, not the shard.
bool is_our_own(const Error& error) {
  return error.code == ErrorCode::OutOfMemory || error.errno_value == ENOMEM || error.errno_value == EMFILE ||
         error.errno_value == ENFILE;
}

using InodeKey = std::pair<std::uint64_t, std::uint64_t>;  // device and number

/// Names of one file, in their order.
using Twins = std::vector<Shard*>;

std::vector<Twins> twins_among(std::vector<Shard>& shards) {
  std::vector<Twins> files;
  std::map<InodeKey, std::size_t> known;
  for (Shard& shard : shards) {
    std::size_t at = files.size();
    if (shard.before) at = known.try_emplace({shard.before->device, shard.before->inode}, at).first->second;
    if (at == files.size()) files.emplace_back();
    files[at].push_back(&shard);
  }
  return files;
}

void refuse_twin(Shard& shard, const Shard& first) {
  shard.archive.reset();
  shard.version.reset();
  shard.failure = Error{ErrorCode::InvalidArgument, EINVAL,
                        fmt::format("{}: is the same file as {}", shard.path.string(), first.path.string())};
}

/// Opens the file by the first name that can be used, and only once: a large header would need its memory for
/// each name.
void open_twins(const Twins& twins, const ModelOptions& options) {
  const Shard* first = nullptr;
  for (Shard* shard : twins) {
    if (first != nullptr) {
      refuse_twin(*shard, *first);
      continue;
    }
    open_shard(*shard, options);
    if (shard->archive) first = shard;
  }
}

void refuse_twins(std::vector<Shard>& shards) {
  std::map<InodeKey, const Shard*> known;
  for (Shard& shard : shards) {
    if (!shard.archive) continue;
    const FileIdentity identity = shard.archive->identity();
    const auto [first, is_new] = known.try_emplace({identity.device, identity.inode}, &shard);
    if (!is_new) refuse_twin(shard, *first->second);
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

  const unsigned threads = options.uses_threads ? kMostThreads : 1;
  std::vector<std::unique_ptr<File>> held(shards.size());  // else a server is asked twice for each file
  auto opened = run_parallel(shards.size(), threads, [&](std::size_t at, unsigned) -> Result<void> {
    const std::filesystem::path& path = shards[at].path;
    if (is_url(path)) held[at] = options.storage->open(path, Access::ReadOnly).value_or(nullptr);
    shards[at].before = identity_at(path, *options.storage);
    return {};
  });
  RETURN_IF_ERROR(opened);
  const std::vector<Twins> files = twins_among(shards);
  opened = run_parallel(files.size(), threads, [&](std::size_t at, unsigned) -> Result<void> {
    open_twins(files[at], options);
    return {};
  });
  RETURN_IF_ERROR(opened);

  for (Shard& shard : shards) {
    if (!shard.failure) continue;
    if (is_our_own(*shard.failure)) return tl::unexpected(*shard.failure);
    if (options.access == Access::ReadWrite && is_refusal_to_write(*shard.failure)) {
      return tl::unexpected(*shard.failure);
    }
  }
  refuse_twins(shards);  // again: names may lead elsewhere by now
  return shards;
}

}  // namespace stfs
