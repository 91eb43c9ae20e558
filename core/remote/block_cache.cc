#include "core/remote/block_cache.h"

#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <map>
#include <memory>
#include <string_view>
#include <utility>

#include "core/base/deadline.h"
#include "core/remote/block_file.h"
#include "core/remote/cache_directory.h"
#include "core/remote/digest.h"

namespace stfs {
namespace {

constexpr const char* kLimitName = "limit";
constexpr std::size_t kNameDigits = 32;
constexpr std::size_t kBlobDigits = 40;

bool is_block_file(std::string_view name) {
  return name.size() == kNameDigits && name.find_first_not_of("0123456789abcdef") == name.npos;
}

/// Removes a temporary file that a killed program has left.
void remove_if_old(int directory, const std::string& name) {
  constexpr std::time_t kOldSeconds = 3600;
  struct stat status {};
  if (::fstatat(directory, name.c_str(), &status, AT_SYMLINK_NOFOLLOW) != 0) return;
  if (S_ISREG(status.st_mode) && status.st_mtime + kOldSeconds < ::time(nullptr))
    ::unlinkat(directory, name.c_str(), 0);
}

std::vector<std::string> names_in(int directory) {
  std::vector<std::string> names;
  UniqueFd again(::openat(directory, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  DIR* const list = again ? ::fdopendir(again.get()) : nullptr;
  if (list == nullptr) return names;
  (void)again.release();  // closedir() closes it
  while (const dirent* entry = ::readdir(list)) {
    const std::string name = entry->d_name;
    if (is_block_file(name)) names.push_back(name);
    if (name.size() > 2 && name.front() == '.' && name != "..") remove_if_old(directory, name);
  }
  ::closedir(list);
  return names;
}

std::uint64_t size_of(const BlockFile& file, std::uint64_t block) {
  return file.bytes_of({block, block + 1}).size_bytes;
}

/// Drops the blocks whose entries `is_chosen` takes. Returns their bytes. Nothing: a program that is stopped
/// is dropping blocks.
template <class IsChosen>
std::optional<std::uint64_t> drop_blocks(const BlockFile& file, BlockFile::Pins pins,
                                         const IsChosen& is_chosen) {
  std::uint64_t bytes = 0;
  std::vector<Blocks> runs;
  file.each_entry([&](std::uint64_t block, const BlockFile::Entry& entry) {
    if (!is_chosen(block, entry)) return;
    bytes += size_of(file, block);
    if (runs.empty() || runs.back().end != block) runs.push_back({block, block});
    runs.back().end = block + 1;
  });
  return file.drop(runs, pins) ? std::optional(bytes) : std::nullopt;
}

constexpr auto every_block = [](std::uint64_t, const BlockFile::Entry&) { return true; };

/// Calls act(name, file) for each file. Removes the files that a crash has left without a header.
template <class Act>
void each_file(int directory, const Act& act) {
  for (const std::string& name : names_in(directory)) {
    if (const auto file = BlockFile::open_named(directory, name)) {
      act(name, *file);
    } else {
      BlockFile::remove_useless(directory, name);
    }
  }
}

/// One program at a time looks for blocks to drop. The lock ends with the owner, also for a child process
/// that has a copy of the descriptor.
class OneSearch {
 public:
  explicit OneSearch(int directory)
      : directory_(directory), is_held_(::flock(directory, LOCK_EX | LOCK_NB) == 0) {}
  ~OneSearch() {
    if (is_held_) ::flock(directory_, LOCK_UN);
  }
  OneSearch(const OneSearch&) = delete;
  OneSearch& operator=(const OneSearch&) = delete;
  explicit operator bool() const { return is_held_; }

 private:
  const int directory_;
  const bool is_held_;
};

/// Returns the digest that the Hub lists for a version "sha256:..."; empty for an ETag.
std::string_view listed_digest(std::string_view version) {
  for (const std::string_view kind : {"sha256:", "sha1:"}) {
    if (version.starts_with(kind)) return version.substr(kind.size());
  }
  return {};
}

Proof proof_of(const BlockFile& file) {
  if (listed_digest(file.identity().version).empty()) return Proof::Server;
  return file.is_whole_proven() ? Proof::Whole : Proof::Blocks;
}

}  // namespace

std::string_view name_of(Proof proof) {
  switch (proof) {
    case Proof::Server: return "by TLS only";
    case Proof::Blocks: return "partly";
    case Proof::Whole: return "proven";
  }
  return "";
}

Result<std::vector<CachedFile>> list_block_cache() {
  const auto directory = open_block_directory();
  RETURN_IF_ERROR(directory);
  std::vector<CachedFile> files;
  each_file(directory->get(), [&](const std::string& name, const BlockFile& file) {
    CachedFile shown{.name = name,
                     .shown = file.identity().shown,
                     .version = file.identity().version,
                     .size_bytes = file.size_bytes(),
                     .proof = proof_of(file),
                     .is_in_use = file.is_in_use()};
    file.each_entry([&](std::uint64_t block, const BlockFile::Entry& entry) {
      const std::uint64_t bytes = size_of(file, block);
      shown.kept_bytes += bytes;
      shown.pinned_bytes += entry.is_pinned != 0 ? bytes : 0;
      shown.used_at = std::max(shown.used_at, entry.used_at);
    });
    files.push_back(std::move(shown));
  });
  std::ranges::sort(files, {}, &CachedFile::shown);
  return files;
}

std::uint64_t drop_least_recent(std::uint64_t bytes) {
  const auto directory = open_block_directory();
  if (!directory) return 0;
  const OneSearch search(directory->get());
  if (!search) return 0;
  const std::uint32_t now = minutes_now();
  // A time that has not come yet is wrong.
  const auto time_of = [now](const BlockFile::Entry& entry) {
    return entry.used_at > now + 1 ? 0 : entry.used_at;
  };
  const auto may_go = [&](const BlockFile::Entry& entry) {
    return entry.is_pinned == 0 && time_of(entry) < now - 1;
  };
  std::map<std::uint32_t, std::uint64_t> bytes_of_minute;
  each_file(directory->get(), [&](const std::string&, const BlockFile& file) {
    file.each_entry([&](std::uint64_t block, const BlockFile::Entry& entry) {
      if (may_go(entry)) bytes_of_minute[time_of(entry)] += size_of(file, block);
    });
  });
  // One minute may have many blocks. Of the last minute, only as many blocks go as are needed.
  std::uint64_t of_last_minute = bytes;
  std::optional<std::uint32_t> last;
  for (const auto& [minute, there] : bytes_of_minute) {
    if (last && bytes_of_minute[*last] >= of_last_minute) break;
    if (last) of_last_minute -= bytes_of_minute[*last];
    last = minute;
  }
  if (!last || bytes == 0) return 0;
  std::uint64_t dropped = 0;
  std::vector<std::string> names;
  each_file(directory->get(), [&](const std::string& name, const BlockFile& file) {
    const auto gone =
        drop_blocks(file, BlockFile::Pins::Spare, [&](std::uint64_t block, const BlockFile::Entry& entry) {
          if (!may_go(entry) || time_of(entry) > *last) return false;
          if (time_of(entry) < *last) return true;
          if (of_last_minute == 0) return false;
          of_last_minute -= std::min(of_last_minute, size_of(file, block));
          return true;
        });
    dropped += gone.value_or(0);
    names.push_back(name);
  });
  for (const std::string& name : names) BlockFile::remove_useless(directory->get(), name);
  return dropped;
}

Result<std::uint64_t> drop_cached_file(const std::string& name) {
  const auto directory = open_block_directory();
  RETURN_IF_ERROR(directory);
  std::optional<std::uint64_t> dropped;
  {
    const auto file = BlockFile::open_named(directory->get(), name);
    if (!file) return fail_system(ENOENT, name, "open");
    dropped = drop_blocks(*file, BlockFile::Pins::Go, every_block);
  }
  if (!dropped) return fail_system(EAGAIN, "a program that is stopped", "drop blocks of it");
  BlockFile::remove_useless(directory->get(), name);
  return *dropped;
}

Result<void> prove_cached_file(const std::string& name) {
  const auto directory = open_block_directory();
  RETURN_IF_ERROR(directory);
  const auto file = BlockFile::open_named(directory->get(), name);
  if (!file) return fail_system(ENOENT, name, "open");
  const std::string_view digest = listed_digest(file->identity().version);
  if (digest.empty())
    return fail(ErrorCode::InvalidArgument, EINVAL, "its server lists no digest, so it can't be proven");
  const std::uint64_t generation = file->generation();
  std::uint64_t there = 0;
  file->each_entry([&](std::uint64_t block, const BlockFile::Entry&) { there += size_of(*file, block); });
  if (there != file->size_bytes()) {
    return fail(
        ErrorCode::System, ENODATA,
        fmt::format("{} of {} bytes are here: `stfs fetch` brings the rest", there, file->size_bytes()));
  }
  const bool is_blob = digest.size() == kBlobDigits;
  auto sum = Digest::begin(is_blob ? Digest::Kind::Sha1 : Digest::Kind::Sha256);
  RETURN_IF_ERROR(sum);
  // The digest of a git blob begins with its kind and its size.
  const std::string head = fmt::format("blob {}", file->size_bytes());
  if (is_blob) sum->update(std::as_bytes(std::span(head.c_str(), head.size() + 1)));
  std::vector<Blocks> wrong;  // a crash has cut them short
  std::vector<std::byte> bytes(BlockFile::kBlockBytes);
  for (std::uint64_t block = 0; block < file->count(); ++block) {
    const ByteRange range = file->bytes_of({block, block + 1});
    const auto piece = std::span(bytes).first(static_cast<std::size_t>(range.size_bytes));
    if (file->prove(block) != BlockFile::Found::Right || !file->read(piece, range.offset)) {
      wrong.push_back({block, block + 1});
    } else {
      sum->update(piece);
    }
  }
  if (generation == BlockFile::kDropping || file->generation() != generation)
    return fail(ErrorCode::System, EAGAIN, "a program has dropped blocks of it meanwhile: try again");
  if (!wrong.empty()) {
    file->drop(wrong, BlockFile::Pins::Stay);
    return fail(ErrorCode::System, ENODATA,
                fmt::format("{} of {} blocks were damaged: `stfs fetch` brings them again", wrong.size(),
                            file->count()));
  }
  const std::string found = sum->finish();
  if (found == digest) {
    file->note_whole_proven(generation);
    return {};
  }
  (void)drop_blocks(*file, BlockFile::Pins::Go, every_block);
  return fail(ErrorCode::ArchiveChanged, ESTALE,
              fmt::format("has the digest {}, the Hub lists {}: it is dropped", found, digest));
}

Result<void> unpin_cached_file(const std::string& name) {
  const auto directory = open_block_directory();
  RETURN_IF_ERROR(directory);
  const auto file = BlockFile::open_named(directory->get(), name);
  if (!file) return fail_system(ENOENT, name, "open");
  (void)file->set_pinned({0, file->count()}, false);
  return {};
}

Result<std::optional<std::uint64_t>> block_cache_limit() {
  const auto directory = open_block_directory();
  RETURN_IF_ERROR(directory);
  UniqueFd file(::openat(directory->get(), kLimitName, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  if (!file) return std::nullopt;
  std::array<char, 32> text{};
  const ssize_t size = ::read(file.get(), text.data(), text.size());
  std::uint64_t limit = 0;
  const auto read = std::from_chars(text.data(), text.data() + std::max<ssize_t>(size, 0), limit);
  return read.ec == std::errc() ? std::optional(limit) : std::nullopt;
}

Result<void> set_block_cache_limit(std::optional<std::uint64_t> limit) {
  const auto directory = open_block_directory();
  RETURN_IF_ERROR(directory);
  if (!limit) {
    if (::unlinkat(directory->get(), kLimitName, 0) == 0 || errno == ENOENT) return {};
    return fail_system(errno, kLimitName, "remove");
  }
  const std::string text = fmt::format("{}\n", *limit);
  return put_in_cache(directory->get(), kLimitName, std::as_bytes(std::span(text)), S_IRUSR | S_IWUSR,
                      KeepsFree::No);
}

bool has_room_for_blocks(int file) {
  // A twentieth of the disk stays free: the cache must stop no other program.
  constexpr std::uint64_t kShare = 20;
  struct statvfs disk {};
  const auto has_room = [&] {
    return ::fstatvfs(file, &disk) != 0 || disk.f_bavail >= disk.f_blocks / kShare;
  };
  if (has_room()) return true;
  // A search for old blocks reads the tables of all files. Programs that find none go on without one.
  constexpr std::chrono::milliseconds kPause{10'000};
  static std::atomic<bool> is_searching = false;
  static Deadline next_try;  // for the thread that searches
  if (is_searching.exchange(true)) return false;
  const struct End {
    ~End() { is_searching = false; }
  } end;
  if (time_left(next_try).count() == 0) {
    // A little more, so that the next blocks find room.
    const std::uint64_t missing = disk.f_blocks / kShare - disk.f_bavail + disk.f_blocks / kShare / 4;
    drop_least_recent(missing * disk.f_frsize);
    next_try = deadline_in(kPause);
  }
  return has_room();
}

std::uint64_t drop_over_limit() {
  const auto limit = block_cache_limit();
  if (!limit || !*limit) return 0;
  const auto files = list_block_cache();
  if (!files) return 0;
  std::uint64_t there = 0;
  for (const CachedFile& file : *files) there += file.kept_bytes;
  return there > **limit ? drop_least_recent(there - **limit + **limit / 16) : 0;
}

void note_kept_bytes(std::uint64_t bytes) {
  constexpr std::uint64_t kStep = 64 << 20;
  static std::atomic<std::uint64_t> kept = kStep;  // so that each program looks once at its start
  if ((kept += bytes) < kStep) return;
  kept = 0;
  drop_over_limit();
}

}  // namespace stfs
