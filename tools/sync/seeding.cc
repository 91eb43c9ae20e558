// Shards first, then other files, then the index.
#include "tools/sync/seeding.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <set>
#include <span>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "core/model/model_index.h"
#include "core/storage/file.h"
#include "core/storage/new_file.h"
#include "tools/sync/version_name.h"

namespace stfs::sync {
namespace {

constexpr std::string_view kArchiveSuffix = ".safetensors";
constexpr std::string_view kSeedingMark = ".weight_sync/seeding";  // exists while files are copied
constexpr std::uint64_t kCopiedBytes = 1 << 20;

Result<void> copy_file(const std::filesystem::path& from, const std::filesystem::path& to,
                       const std::function<Result<void>(std::uint64_t bytes)>& on_bytes) {
  auto source = system_storage().open(from, Access::ReadOnly);
  if (!source) return pass_on(std::move(source));
  auto size_bytes = (*source)->size_bytes();
  if (!size_bytes) return pass_on(std::move(size_bytes));
  auto file = NewFile::create(to, true);
  if (!file) return pass_on(std::move(file));
  if (auto reserved = file->reserve(*size_bytes); !reserved) return reserved;
  std::vector<std::byte> buffer(static_cast<std::size_t>(std::min(kCopiedBytes, *size_bytes)));
  for (std::uint64_t at = 0; at < *size_bytes; at += buffer.size()) {
    const auto piece = std::span(buffer).first(
        static_cast<std::size_t>(std::min<std::uint64_t>(buffer.size(), *size_bytes - at)));
    if (auto read = (*source)->read(piece, at); !read) return read;
    if (auto appended = file->append(piece); !appended) return appended;
    if (auto goes_on = on_bytes(piece.size()); !goes_on) return goes_on;
  }
  return file->finish();
}

Result<void> write_mark(const std::filesystem::path& path) {
  auto file = NewFile::create(path, true);
  return file ? file->finish() : pass_on(std::move(file));
}

/// The names of the archives that the directory's index names; empty if there is none, or no sound one.
std::set<std::string> archives_of_index(const std::filesystem::path& directory) {
  const auto file = system_storage().open(directory / kVersionIndex, Access::ReadOnly);
  if (!file) return {};
  const auto size_bytes = (*file)->size_bytes();
  if (!size_bytes || *size_bytes > kMaxModelIndexBytes) return {};
  const auto text = read_text(**file, {0, *size_bytes});
  if (!text) return {};
  const auto index = parse_model_index(*text);
  if (!index) return {};
  const auto names = index->shards();
  return {names.begin(), names.end()};
}

/// The regular files of a version, the index last. Hidden and temporary ones are not part of it.
Result<std::vector<std::string>> files_of(const PublishedVersion& version) {
  auto names = system_storage().list(version.directory(), "");
  if (!names) return names;
  std::erase_if(*names, [&](const std::string& name) {
    std::error_code failed;
    return name.starts_with('.') || name.ends_with(".tmp") ||
           !std::filesystem::is_regular_file(version.directory() / name, failed);
  });
  const auto rank = [](const std::string& name) {
    return name == kVersionIndex ? 2 : name.ends_with(kArchiveSuffix) ? 0 : 1;
  };
  std::ranges::sort(*names, [&](const std::string& a, const std::string& b) {
    return std::pair(rank(a), std::string_view(a)) < std::pair(rank(b), std::string_view(b));
  });
  return names;
}

}  // namespace

bool has_model(const std::filesystem::path& directory) {
  const auto names = system_storage().list(directory, "");
  return names && std::ranges::any_of(*names, [](const std::string& name) {
           return name.ends_with(kArchiveSuffix) && name != kArchiveSuffix;
         });
}

std::uint64_t seeded_bytes(const PublishedVersion& version) {
  std::uint64_t total = 0;
  const auto files = files_of(version);
  if (!files) return total;
  for (const std::string& name : *files) {
    std::error_code failed;
    const std::uintmax_t size_bytes = std::filesystem::file_size(version.directory() / name, failed);
    if (!failed) total += size_bytes;
  }
  return total;
}

Result<void> seed_model(const PublishedVersion& version, SyncState& state,
                        const std::function<Result<void>(std::uint64_t bytes)>& on_bytes) {
  const std::filesystem::path directory = state.model_directory();
  auto files = files_of(version);
  if (!files) return pass_on(std::move(files));
  const std::set<std::string> before = archives_of_index(directory);
  const std::filesystem::path mark = directory / kSeedingMark;
  std::error_code unknown;
  const bool goes_on = std::filesystem::exists(mark, unknown);  // an earlier seeding has left its files
  for (const std::string& name : *files) {
    std::error_code failed;
    const bool is_shared = before.contains(name) && std::filesystem::exists(directory / name, failed);
    if (goes_on || !is_shared) continue;
    return fail(
        ErrorCode::InvalidArgument, EEXIST,
        fmt::format("{}: version {} has other tensors than the model, and an archive of the same name: "
                    "readers would see half of each; pull it into a new directory",
                    (directory / name).string(), version.version().text));
  }
  if (auto marked = write_mark(mark); !marked) return marked;
  if (auto removed = state.remove(); !removed) return removed;
  for (const std::string& name : *files) {
    if (auto copied = copy_file(version.directory() / name, directory / name, on_bytes); !copied)
      return copied;
  }
  std::set<std::string> unused = before;
  if (!version.has_index()) {
    // The index of the model before would still name the old archives.
    std::error_code failed;
    std::filesystem::remove(directory / kVersionIndex, failed);
    if (failed) return fail_system(failed.value(), (directory / kVersionIndex).string(), "remove");
  }
  for (const std::string& name : *files) unused.erase(name);
  for (const std::string& name : unused) {
    auto removed = system_storage().remove(directory / name);
    if (!removed && removed.error().errno_value != ENOENT) return removed;
  }
  if (auto synced = system_storage().sync_directory(directory); !synced) return synced;
  if (auto unmarked = system_storage().remove(mark); !unmarked) return unmarked;
  return state.write(version.version());
}

}  // namespace stfs::sync
