// Compares owners and times of birth. Does not follow a link.
#include "fs/model/listed_archive.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>

#include <cerrno>
#include <optional>
#include <utility>

#include "core/storage/file_attributes.h"

namespace stfs {
namespace {

/// Returns nothing if the file system records no time of birth. Does not wait for a FUSE file system.
std::optional<std::pair<std::int64_t, std::uint32_t>> birth_of(const std::filesystem::path& path) {
  struct statx found {};
  constexpr int kFlags = AT_SYMLINK_NOFOLLOW | AT_NO_AUTOMOUNT | AT_STATX_DONT_SYNC;
  if (::statx(AT_FDCWD, path.c_str(), kFlags, STATX_BTIME, &found) != 0 ||
      (found.stx_mask & STATX_BTIME) == 0)
    return std::nullopt;
  return std::pair(found.stx_btime.tv_sec, found.stx_btime.tv_nsec);
}

}  // namespace

Result<void> check_hides_nothing(const std::filesystem::path& archive, std::string_view model_name) {
  Storage& storage = system_storage();
  const std::filesystem::path path = archive.parent_path() / model_name;
  const auto hidden = storage.status_of_name(path);
  const auto model = storage.status_of_name(archive);
  if (!hidden || !model || hidden->uid == model->uid || !may_be_planted(storage, archive)) return {};
  // Without times of birth, as on NFS, the model keeps the name.
  const auto born = birth_of(archive);
  const auto hidden_born = birth_of(path);
  const bool is_older = !born || !hidden_born || *born < *hidden_born;
  if (is_older && may_be_planted(storage, path)) return {};
  return fail(ErrorCode::System, EEXIST,
              fmt::format("its model would hide {}, a file of user {}", path.string(), hidden->uid));
}

std::size_t header_bytes_of(const Model& model) {
  std::size_t sum = 0;
  for (const Shard& shard : model.shards()) {
    if (shard.archive) sum += shard.archive->version()->data_offset();
  }
  return sum;
}

}  // namespace stfs
