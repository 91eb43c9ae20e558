#include "core/remote/block_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <random>
#include <thread>
#include <utility>

#include "core/base/checksum.h"
#include "core/base/deadline.h"
#include "core/base/xxh3.h"
#include "core/remote/cache_directory.h"
#include "core/storage/foreign_mount.h"
#include "core/storage/mount_record.h"
#include "core/storage/unmappable_store.h"

namespace stfs {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kHeaderBytes = 4096;
constexpr std::uint64_t kEntryBytes = sizeof(BlockFile::Entry);
constexpr std::array<char, 8> kMagic{'s', 't', 'f', 's', 'b', 'l', 'k', '1'};
// Bytes whose locks have a meaning. The blocks themselves are locked at the bytes of their data.
constexpr std::uint64_t kUserByte = 1;  // each program that has the file open shares this lock
constexpr std::uint64_t kDropByte = 2;  // a program that drops blocks has this lock alone

struct Fixed {
  std::array<char, 8> magic = kMagic;
  std::uint64_t hash = 0;  // of the fields below the generations and the texts
  std::uint64_t generation = 0;
  std::uint64_t proven_generation = 0;  // in which the whole file was proven; 0: never
  std::uint64_t is_private = 0;
  std::uint64_t size_bytes = 0;
  std::uint32_t address_bytes = 0;
  std::uint32_t version_bytes = 0;
  std::uint32_t shown_bytes = 0;
  std::uint32_t unused = 0;
};
static_assert(sizeof(Fixed) == 64);
constexpr std::size_t kHashedFrom = offsetof(Fixed, size_bytes);
constexpr std::size_t kMostText = kHeaderBytes - sizeof(Fixed);

std::uint64_t data_offset(std::uint64_t size_bytes) {
  const std::uint64_t blocks = (size_bytes + BlockFile::kBlockBytes - 1) / BlockFile::kBlockBytes;
  return kHeaderBytes + (blocks * kEntryBytes + kHeaderBytes - 1) / kHeaderBytes * kHeaderBytes;
}

/// The hash in an entry. A block at another place has another hash.
std::uint64_t hash_of(std::span<const std::byte> bytes, std::uint64_t block) {
  return std::max<std::uint64_t>(XXH3_64bits_withSeed(bytes.data(), bytes.size(), block), 1);
}

/// Returns how many bytes came: fewer at the end of the file or after a failure.
std::size_t read_at(int file, std::span<std::byte> to, std::uint64_t offset) {
  std::size_t done = 0;
  while (done < to.size()) {
    const ssize_t taken =
        ::pread(file, to.data() + done, to.size() - done, static_cast<off_t>(offset + done));
    if (taken < 0 && errno == EINTR) continue;
    if (taken <= 0) break;
    done += static_cast<std::size_t>(taken);
  }
  return done;
}

Result<void> write_at(int file, std::span<const std::byte> bytes, std::uint64_t offset) {
  while (!bytes.empty()) {
    const ssize_t written = ::pwrite(file, bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return fail_system(written < 0 ? errno : EIO, "the file for fetched bytes", "write");
    bytes = bytes.subspan(static_cast<std::size_t>(written));
    offset += static_cast<std::uint64_t>(written);
  }
  return {};
}

template <class Value>
std::span<std::byte> bytes_of_value(Value& value) {
  return std::as_writable_bytes(std::span(&value, 1));
}

bool set_lock(int file, short kind, ByteRange range) {
  struct flock lock {};
  lock.l_type = kind;
  lock.l_whence = SEEK_SET;
  lock.l_start = static_cast<off_t>(range.offset);
  lock.l_len = static_cast<off_t>(range.size_bytes);
  return ::fcntl(file, F_OFD_SETLK, &lock) == 0;
}

std::string name_of(const std::string& address) {
  Checksum sum;
  sum.update(std::as_bytes(std::span(address)));
  return sum.hex();
}

/// Returns the directory of files without a name. A program of another user may show other bytes than were
/// written to it, so the file is in no mount of such a program.
fs::path place_of_unnamed() {
  const auto cache = cache_directory();
  const UniqueFd opened(cache ? ::open(cache->c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC) : -1);
  return opened && !is_in_foreign_mount(opened.get()) ? *cache : fs::path("/var/tmp");
}

/// A name that no other process takes.
std::string temporary_name() {
  std::random_device random;
  return fmt::format(".{:08x}{:08x}", random(), random());
}

/// Returns true if no drop of blocks is under way.
bool is_settled(std::uint64_t generation) {
  return generation != BlockFile::kDropping && generation % 2 == 0;
}

/// Keeps other programs from dropping blocks. False: a program that is stopped has the lock, or there are no
/// locks.
class DropLock {
 public:
  DropLock(int file, std::chrono::milliseconds patience) : file_(file) {
    constexpr std::chrono::milliseconds kStep{1};
    const Deadline give_up = deadline_in(patience);
    while (!(is_held_ = set_lock(file_, F_WRLCK, {kDropByte, 1}))) {
      if ((errno != EAGAIN && errno != EACCES) || time_left(give_up).count() == 0) return;
      std::this_thread::sleep_for(kStep);
    }
  }
  ~DropLock() {
    if (is_held_) set_lock(file_, F_UNLCK, {kDropByte, 1});
  }
  DropLock(const DropLock&) = delete;
  DropLock& operator=(const DropLock&) = delete;
  explicit operator bool() const { return is_held_; }

 private:
  const int file_;
  bool is_held_ = false;
};

/// Locks the names of the shared files. Invalid: a program that is stopped has the lock.
/// The lock ends with the owner, also for a child process that has a copy of the descriptor.
class NamesLock {
 public:
  explicit NamesLock(UniqueFd file) : file_(std::move(file)) {}
  NamesLock(NamesLock&&) = default;
  NamesLock& operator=(NamesLock&&) = delete;
  ~NamesLock() {
    if (file_) set_lock(file_.get(), F_UNLCK, {0, 1});
  }
  explicit operator bool() const { return static_cast<bool>(file_); }

 private:
  UniqueFd file_;
};

NamesLock lock_names(int directory) {
  constexpr std::chrono::milliseconds kStep{1};
  UniqueFd file(
      ::openat(directory, "lock", O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, S_IRUSR | S_IWUSR));
  if (!file) return NamesLock(UniqueFd());
  const Deadline give_up = deadline_in(BlockFile::kDropPatience);
  while (!set_lock(file.get(), F_WRLCK, {0, 1})) {
    if ((errno != EAGAIN && errno != EACCES) || time_left(give_up).count() == 0) return NamesLock(UniqueFd());
    std::this_thread::sleep_for(kStep);
  }
  return NamesLock(std::move(file));
}

/// Returns true for a store that other hosts may use as well, whose changes this host sees later.
bool is_elsewhere(int directory) {
  struct statfs store {};
  return ::fstatfs(directory, &store) != 0 ||
         !unmappable_store(static_cast<std::uint64_t>(store.f_type)).empty();
}

/// Returns true if blocks can be dropped from a file here.
bool can_punch(int file) {
  return ::fallocate(file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(kHeaderBytes),
                     static_cast<off_t>(kHeaderBytes)) == 0;
}

}  // namespace

std::uint32_t minutes_now() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return static_cast<std::uint32_t>(std::chrono::duration_cast<std::chrono::minutes>(now).count());
}

Result<UniqueFd> open_block_directory() {
  return open_own_cache("blocks");
}

BlockFile::BlockFile(UniqueFd file, Identity identity)
    : file_(std::move(file)), identity_(std::move(identity)), data_at_(data_offset(identity_.size_bytes)) {}

Result<void> BlockFile::fill_header(int file, const Identity& identity) {
  std::array<std::byte, kHeaderBytes> header{};
  Fixed fixed;
  const std::string text = identity.address + identity.version + identity.shown;
  if (text.size() > kMostText) return fail_system(ENAMETOOLONG, "the file for fetched bytes", "make");
  fixed.size_bytes = identity.size_bytes;
  fixed.address_bytes = static_cast<std::uint32_t>(identity.address.size());
  fixed.version_bytes = static_cast<std::uint32_t>(identity.version.size());
  fixed.shown_bytes = static_cast<std::uint32_t>(identity.shown.size());
  fixed.generation = 2 * (std::uint64_t{std::random_device()()} + 1);
  std::memcpy(header.data() + sizeof fixed, text.data(), text.size());
  std::memcpy(header.data(), &fixed, sizeof fixed);
  fixed.hash = XXH3_64bits(header.data() + kHashedFrom, header.size() - kHashedFrom);
  std::memcpy(header.data(), &fixed, sizeof fixed);
  RETURN_IF_ERROR(write_at(file, header, 0));
  const std::uint64_t whole = data_offset(identity.size_bytes) + identity.size_bytes;
  if (::ftruncate(file, static_cast<off_t>(whole)) != 0)
    return fail_system(errno, "the file for fetched bytes", fmt::format("make sparse with {} bytes", whole));
  return {};
}

std::unique_ptr<BlockFile> BlockFile::from(UniqueFd file) {
  std::array<std::byte, kHeaderBytes> header{};
  Fixed fixed;
  if (read_at(file.get(), header, 0) != header.size()) return nullptr;
  std::memcpy(&fixed, header.data(), sizeof fixed);
  if (fixed.magic != kMagic || fixed.size_bytes > kMostBytes ||
      fixed.hash != XXH3_64bits(header.data() + kHashedFrom, header.size() - kHashedFrom) ||
      std::uint64_t{fixed.address_bytes} + fixed.version_bytes + fixed.shown_bytes > kMostText)
    return nullptr;
  const auto* const text = reinterpret_cast<const char*>(header.data() + sizeof fixed);
  Identity identity{
      .address = std::string(text, fixed.address_bytes),
      .version = std::string(text + fixed.address_bytes, fixed.version_bytes),
      .size_bytes = fixed.size_bytes,
      .shown = std::string(text + fixed.address_bytes + fixed.version_bytes, fixed.shown_bytes)};
  return std::unique_ptr<BlockFile>(new BlockFile(std::move(file), std::move(identity)));
}

std::unique_ptr<BlockFile> BlockFile::open_named(int directory, const std::string& name) {
  UniqueFd file(::openat(directory, name.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  struct stat status {};
  if (!file || ::fstat(file.get(), &status) != 0 || !S_ISREG(status.st_mode) ||
      owner_of(file.get(), status.st_uid) != ::geteuid())
    return nullptr;
  // A program that removes the file has this lock alone.
  if (!set_lock(file.get(), F_RDLCK, {kUserByte, 1})) return nullptr;
  if (::fstat(file.get(), &status) != 0 || status.st_nlink == 0) return nullptr;
  return from(std::move(file));
}

std::unique_ptr<BlockFile> BlockFile::find(const std::string& address) {
  const auto directory = open_block_directory();
  if (!directory) return nullptr;
  auto found = open_named(directory->get(), name_of(address));
  return found && found->identity().address == address ? std::move(found) : nullptr;
}

std::unique_ptr<BlockFile> BlockFile::share(const Identity& identity) {
  if (identity.size_bytes > kMostBytes) return nullptr;
  const auto directory = open_block_directory();
  if (!directory || is_elsewhere(directory->get())) return nullptr;
  const NamesLock names = lock_names(directory->get());
  if (!names) return nullptr;
  const std::string name = name_of(identity.address);
  if (auto there = open_named(directory->get(), name)) {
    if (there->identity().is_same(identity)) return there;
  }
  const std::string temporary = temporary_name();
  UniqueFd file(::openat(directory->get(), temporary.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC,
                         S_IRUSR | S_IWUSR));
  if (!file) return nullptr;
  // The file of another version goes. Programs that have it open keep it.
  if (set_lock(file.get(), F_RDLCK, {kUserByte, 1}) && fill_header(file.get(), identity) &&
      can_punch(file.get()) &&
      ::renameat(directory->get(), temporary.c_str(), directory->get(), name.c_str()) == 0)
    return from(std::move(file));
  ::unlinkat(directory->get(), temporary.c_str(), 0);
  return nullptr;
}

void BlockFile::remove_useless(int directory, const std::string& name) {
  const NamesLock names = lock_names(directory);
  if (!names) return;
  UniqueFd file(::openat(directory, name.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  struct stat status {};
  std::array<std::byte, kHeaderBytes> header{};
  if (!file || ::fstat(file.get(), &status) != 0 || !S_ISREG(status.st_mode) ||
      !set_lock(file.get(), F_WRLCK, {kUserByte, 1}))
    return;
  const auto expected = std::min<std::uint64_t>(header.size(), static_cast<std::uint64_t>(status.st_size));
  if (read_at(file.get(), header, 0) != expected) return;
  const auto sound = from(std::move(file));
  if (!sound || sound->is_empty()) ::unlinkat(directory, name.c_str(), 0);
}

bool BlockFile::is_empty() const {
  for (auto next = next_entry(0); next && *next < count();) {
    const std::uint64_t end = std::min(*next + kStepBlocks, count());
    for (const Entry& entry : entries({*next, end}))
      if (entry.hash != 0 || entry.is_pinned != 0) return false;
    next = next_entry(end);
  }
  return true;
}

Result<std::unique_ptr<BlockFile>> BlockFile::make_unnamed(std::uint64_t size_bytes) {
  if (size_bytes > kMostBytes) return fail_system(EFBIG, "the file for fetched bytes", "make");
  const fs::path directory = place_of_unnamed();
  UniqueFd file(::open(directory.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, S_IRUSR | S_IWUSR));
  if (!file) {  // an old or a foreign file system
    std::string name = (directory / "stfs-XXXXXX").native();
    file = UniqueFd(::mkostemp(name.data(), O_CLOEXEC));
    if (file) ::unlink(name.c_str());
  }
  if (!file) return fail_system(errno, directory.native(), "make a file for fetched bytes");
  Identity identity{.address = {}, .version = {}, .size_bytes = size_bytes};
  auto filled = fill_header(file.get(), identity);
  if (!filled) return tl::unexpected(std::move(filled).error().within(directory.native()));
  return std::unique_ptr<BlockFile>(new BlockFile(std::move(file), std::move(identity)));
}

ByteRange BlockFile::bytes_of(Blocks blocks) const {
  const std::uint64_t begin = blocks.first * kBlockBytes;
  return {begin, std::min(blocks.end * kBlockBytes, size_bytes()) - begin};
}

std::uint64_t BlockFile::entry_at(std::uint64_t block) const {
  return kHeaderBytes + block * kEntryBytes;
}

std::uint64_t BlockFile::stored_generation() const {
  std::uint64_t found = 0;
  read_at(file_.get(), bytes_of_value(found), offsetof(Fixed, generation));
  return found;
}

bool BlockFile::store_generation(std::uint64_t generation) const {
  return write_at(file_.get(), bytes_of_value(generation), offsetof(Fixed, generation)).has_value();
}

std::uint64_t BlockFile::generation() const {
  const std::uint64_t found = stored_generation();
  if (is_settled(found)) return found;
  // A program drops blocks, or it was killed while it did. Nobody has the lock of a killed program.
  const MutexLock lock(dropping_);
  const DropLock drops(file_.get(), std::chrono::milliseconds(0));
  if (!drops) return kDropping;
  std::uint64_t next = stored_generation();
  if (!is_settled(next)) {
    next = (next | 1U) + 1;
    if (!store_generation(next)) next = kDropping;
  }
  return next;
}

std::optional<std::uint64_t> BlockFile::next_entry(std::uint64_t block) const {
  const off_t found = ::lseek(file_.get(), static_cast<off_t>(entry_at(block)), SEEK_DATA);
  if (found < 0) return errno == ENXIO ? std::nullopt : std::optional(block);
  const auto at = static_cast<std::uint64_t>(found);
  if (at >= data_at_) return std::nullopt;
  return std::max(block, (at - std::min(at, kHeaderBytes)) / kEntryBytes);
}

bool BlockFile::is_whole_proven() const {
  std::array<std::uint64_t, 2> both{};
  read_at(file_.get(), std::as_writable_bytes(std::span(both)), offsetof(Fixed, generation));
  return is_settled(both[0]) && both[0] == both[1];
}

void BlockFile::note_whole_proven(std::uint64_t generation) const {
  // A failure only makes the file seem not proven.
  (void)write_at(file_.get(), bytes_of_value(generation), offsetof(Fixed, proven_generation));
}

std::vector<BlockFile::Entry> BlockFile::entries(Blocks blocks) const {
  std::vector<Entry> found(static_cast<std::size_t>(blocks.end - blocks.first));
  read_at(file_.get(), std::as_writable_bytes(std::span(found)), entry_at(blocks.first));
  return found;
}

BlockFile::Found BlockFile::prove(std::uint64_t block) const {
  const ByteRange range = bytes_of({block, block + 1});
  std::vector<std::byte> bytes(static_cast<std::size_t>(range.size_bytes));
  const Entry entry = entries({block, block + 1}).front();
  if (entry.hash == 0) return Found::Missing;
  if (read_at(file_.get(), bytes, data_at_ + range.offset) != bytes.size() ||
      hash_of(bytes, block) != entry.hash)
    return Found::Wrong;
  std::uint32_t now = minutes_now();
  // A failure only makes the block seem older.
  if (entry.used_at < now)
    (void)write_at(file_.get(), bytes_of_value(now), entry_at(block) + offsetof(Entry, used_at));
  return Found::Right;
}

Result<void> BlockFile::write(std::uint64_t first, std::span<const std::byte> bytes) const {
  RETURN_IF_ERROR(write_at(file_.get(), bytes, data_at_ + first * kBlockBytes));
  auto made = entries({first, first + (bytes.size() + kBlockBytes - 1) / kBlockBytes});
  for (std::size_t at = 0; at < made.size(); ++at) {
    const auto block = bytes.subspan(at * kBlockBytes)
                           .first(std::min<std::size_t>(bytes.size() - at * kBlockBytes, kBlockBytes));
    made[at].hash = hash_of(block, first + at);
    made[at].used_at = minutes_now();
  }
  return write_at(file_.get(), std::as_bytes(std::span(made)), entry_at(first));
}

Result<void> BlockFile::read(std::span<std::byte> to, std::uint64_t offset) const {
  if (read_at(file_.get(), to, data_at_ + offset) == to.size()) return {};
  return fail_system(EIO, "the file for fetched bytes", "read");
}

bool BlockFile::drop(std::span<const Blocks> runs, Pins pins) const {
  if (runs.empty()) return true;
  const MutexLock lock(dropping_);
  const DropLock drops(file_.get(), kDropPatience);
  if (!drops) return false;
  // The generation is odd while blocks go. Readers take no byte for sound until it is even and the one for
  // which they have proven their blocks.
  const std::uint64_t odd = stored_generation() | 1U;
  if (!store_generation(odd)) return false;
  const auto dropped = guard_memory([&]() -> Result<void> {
    for (const Blocks run : runs) {
      RETURN_IF_ERROR(empty(run, pins));
    }
    return {};
  });
  return store_generation(odd + 1) && dropped.has_value();
}

Result<void> BlockFile::empty(Blocks run, Pins pins) const {
  for (Blocks step{run.first, run.first}; step.end < run.end; step.first = step.end) {
    step.end = std::min(step.first + kStepBlocks, run.end);
    auto left = entries(step);
    for (std::uint64_t at = step.first; at < step.end; ++at) {
      Entry& entry = left[at - step.first];
      const bool is_pinned = entry.is_pinned != 0;
      if (is_pinned && pins == Pins::Spare) continue;
      entry = {.is_pinned = is_pinned && pins == Pins::Stay ? 1U : 0U};
    }
    RETURN_IF_ERROR(write_at(file_.get(), std::as_bytes(std::span(left)), entry_at(step.first)));
    for (std::uint64_t at = step.first; at < step.end;) {
      Blocks gone{at, at};
      while (gone.end < step.end && left[gone.end - step.first].hash == 0) ++gone.end;
      at = std::max(gone.end, at + 1);
      const ByteRange range = bytes_of(gone);
      if (range.empty()) continue;
      ::fallocate(file_.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                  static_cast<off_t>(data_at_ + range.offset), static_cast<off_t>(range.size_bytes));
    }
  }
  return {};
}

bool BlockFile::set_pinned(Blocks blocks, bool is_pinned) const {
  const MutexLock lock(dropping_);
  const DropLock drops(file_.get(), kDropPatience);
  if (!drops) return false;
  bool are_here = true;
  std::uint32_t value = is_pinned ? 1 : 0;
  const auto found = entries(blocks);
  for (std::size_t at = 0; at < found.size(); ++at) {
    are_here = are_here && found[at].hash != 0;
    if ((is_pinned && found[at].hash == 0) || found[at].is_pinned == value) continue;
    const std::uint64_t place = entry_at(blocks.first + at) + offsetof(Entry, is_pinned);
    are_here = write_at(file_.get(), bytes_of_value(value), place).has_value() && are_here;
  }
  return are_here;
}

void BlockFile::set_private(bool is_private) const {
  if (is_private == this->is_private()) return;
  std::uint64_t value = is_private ? 1 : 0;
  (void)write_at(file_.get(), bytes_of_value(value), offsetof(Fixed, is_private));
}

bool BlockFile::is_private() const {
  std::uint64_t found = 0;
  return read_at(file_.get(), bytes_of_value(found), offsetof(Fixed, is_private)) != sizeof found ||
         found != 0;
}

bool BlockFile::has_all() const {
  std::uint64_t there = 0;
  each_entry([&](std::uint64_t, const Entry&) { ++there; });
  return there == count();
}

bool BlockFile::try_lock(Blocks blocks) const {
  const ByteRange range = bytes_of(blocks);
  if (set_lock(file_.get(), F_WRLCK, {data_at_ + range.offset, range.size_bytes})) return true;
  return errno != EAGAIN && errno != EACCES;  // a file system without locks: blocks may come twice
}

void BlockFile::unlock(Blocks blocks) const {
  const ByteRange range = bytes_of(blocks);
  set_lock(file_.get(), F_UNLCK, {data_at_ + range.offset, range.size_bytes});
}

bool BlockFile::is_in_use() const {
  struct flock lock {};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  lock.l_start = static_cast<off_t>(kUserByte);
  lock.l_len = 1;
  return ::fcntl(file_.get(), F_OFD_GETLK, &lock) != 0 || lock.l_type != F_UNLCK;
}

}  // namespace stfs
