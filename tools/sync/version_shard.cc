// Spaces first, the entries' bytes, then the header over the spaces.
#include "tools/sync/version_shard.h"

#include <algorithm>
#include <utility>

#include "core/format/json_string.h"

namespace stfs::sync {
namespace {

// "":{"dtype":"U8","shape":[],"data_offsets":[,]}, and "":"", with three numbers and a checksum.
constexpr std::uint64_t kEntryBytes = 64 + 3 * 20 + 64 + 8;
constexpr std::uint64_t kAlignment = 8;  // as the reference library pads headers

}  // namespace

std::uint64_t most_header_bytes(std::string_view name) {
  std::string quoted;
  append_json_string(quoted, name);
  return kEntryBytes + 2 * quoted.size();
}

Result<VersionShard> VersionShard::create(const std::filesystem::path& path, std::uint64_t header_bytes,
                                          mode_t mode, Storage& storage) {
  constexpr std::uint64_t kFrameBytes = 64;  // the length, the braces, and "__metadata__"
  const std::uint64_t room_bytes = (header_bytes + kFrameBytes + kAlignment - 1) / kAlignment * kAlignment;
  auto file = NewFile::create_as(path.native() + ".tmp", path, mode, storage);
  if (!file) return pass_on(std::move(file));
  const std::string spaces(static_cast<std::size_t>(room_bytes), ' ');
  if (auto ok = file->append(std::as_bytes(std::span(spaces))); !ok) return pass_on(std::move(ok));
  return VersionShard(path, std::move(*file), room_bytes);
}

Result<void> VersionShard::append(std::span<const std::byte> bytes) {
  entry_bytes_ += bytes.size();
  return file_.append(bytes);
}

void VersionShard::end_entry(std::string_view name, std::string_view checksum) {
  data_bytes_ += entry_bytes_;
  entries_.push_back({std::string(name), Dtype::U8, {std::exchange(entry_bytes_, 0)}});
  checksums_.emplace_back(name, checksum);
}

Result<void> VersionShard::drop_entry() {
  entry_bytes_ = 0;
  return file_.cut(room_bytes_ + data_bytes_);
}

Result<void> VersionShard::settle() {
  const auto json = format_header_json(entries_, checksums_);
  if (!json) return tl::unexpected(Error(json.error()).within(path_.native()));
  const std::string header = pad_header(*json, room_bytes_);
  if (auto ok = file_.overwrite(0, std::as_bytes(std::span(header))); !ok) return ok;
  return file_.settle();
}

}  // namespace stfs::sync
