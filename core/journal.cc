// Seal, publish, retire.
#include "core/journal.h"

#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <limits>
#include <new>
#include <string>
#include <utility>

namespace stfs {
namespace {

constexpr std::size_t kRecordPieceBytes = 256 << 10;

}  // namespace

Result<std::unique_ptr<Journal>> Journal::create(Storage& storage, const std::filesystem::path& archive_path,
                                                 Place place) {
  std::unique_ptr<Journal> journal(new Journal(storage, archive_path));
  if (place == Place::Memory) {
    auto memory = std::make_unique<MemoryFile>();
    journal->memory_ = memory.get();
    journal->file_ = std::move(memory);
  } else if (auto moved = journal->move_to_disk(); !moved) {
    return pass_on(std::move(moved));
  }
  return journal;
}

Result<void> Journal::move_to_disk() {
  auto made = create_journal_file(storage_, archive_path_);
  if (!made) return pass_on(std::move(made));
  if (memory_ != nullptr) {
    if (auto copied = memory_->copy_to(*made->file); !copied) return copied;
  }
  path_ = std::move(made->path);
  id_ = made->id;
  memory_ = nullptr;
  file_ = std::move(made->file);
  worth_spreading_bytes_ = file_->striping().from_bytes;
  return {};
}

Result<void> Journal::write(std::span<const std::byte> from, std::uint64_t offset) {
  const std::scoped_lock lock(mutex_);
  if (memory_ != nullptr && memory_->blocks_with({offset, from.size()}) > kLaneBlocks) {
    if (auto moved = move_to_disk(); !moved) return moved;
  }
  return for_each_part({offset, from.size()}, [&](ByteRange part, bool is_spread) {
    const auto bytes = from.subspan(part.offset - offset, part.size_bytes);
    auto written = is_spread ? stripes_->write(bytes, part.offset) : file_->write(bytes, part.offset);
    // Let the disk begin while the rest still comes: the commit waits for it. Stripes do so by themselves.
    if (written && !is_spread && memory_ == nullptr) writeback_.follow(*file_, part);
    return written;
  });
}

Result<void> Journal::read(std::span<std::byte> to, std::uint64_t offset) const {
  const std::scoped_lock lock(mutex_);
  return for_each_part({offset, to.size()}, [&](ByteRange part, bool is_spread) {
    const auto bytes = to.subspan(part.offset - offset, part.size_bytes);
    return is_spread ? stripes_->read(bytes, part.offset) : file_->read(bytes, part.offset);
  });
}

Result<void> Journal::reserve(ByteRange range) {
  const std::scoped_lock lock(mutex_);
  if (memory_ != nullptr && memory_->blocks_with(range) > kLaneBlocks) {
    if (auto moved = move_to_disk(); !moved) return moved;
  }
  return for_each_part(range, [&](ByteRange part, bool is_spread) {
    return is_spread ? stripes_->reserve(part) : file_->reserve(part);
  });
}

/// Calls `Result<void> visit(ByteRange part, bool is_spread)` for what lies together, in order.
template <class Visit>
Result<void> Journal::for_each_part(ByteRange range, const Visit& visit) const {
  auto next = spread_.upper_bound(range.offset);
  if (next != spread_.begin() && std::prev(next)->second > range.offset) --next;
  while (!range.empty()) {
    const bool is_spread = next != spread_.end() && next->first <= range.offset;
    std::uint64_t end = range.end();
    if (is_spread) {
      end = std::min(end, next->second);
    } else if (next != spread_.end()) {
      end = std::min(end, next->first);
    }
    if (auto visited = visit(ByteRange{range.offset, end - range.offset}, is_spread); !visited)
      return visited;
    if (is_spread) ++next;
    range = {end, range.end() - end};
  }
  return {};
}

Result<Stripes*> Journal::spread(ByteRange blocks) {
  const std::scoped_lock lock(mutex_);
  if (memory_ != nullptr && blocks.size_bytes > kLaneBytes) {
    if (auto moved = move_to_disk(); !moved) return pass_on(std::move(moved));
  }
  if (memory_ != nullptr || blocks.size_bytes < worth_spreading_bytes_) return nullptr;
  if (!stripes_) {
    auto opened = Stripes::open(storage_, *file_, path_, blocks.offset);
    if (!opened || !*opened) worth_spreading_bytes_ = std::numeric_limits<std::uint64_t>::max();
    if (!opened) return pass_on(std::move(opened));
    if (!*opened) return nullptr;
    stripes_ = std::move(*opened);
  }
  spread_.emplace(blocks.offset, blocks.end());
  return stripes_.get();
}

Result<void> Journal::gather(const JournalRecord& record) {
  for (const JournalRange& range : record.ranges) {
    auto gathered = for_each_part({range.journal_offset, range.archive.size_bytes},
                                  [&](ByteRange part, bool is_spread) -> Result<void> {
                                    if (!is_spread) return {};
                                    // The archive's last block may end before its end.
                                    const std::uint64_t whole_bytes = round_down_to_block(part.size_bytes);
                                    auto shared = stripes_->share_with(*file_, {part.offset, whole_bytes});
                                    std::array<std::byte, kBlockBytes> block;
                                    const auto rest = std::span(block).first(part.size_bytes - whole_bytes);
                                    if (!shared || rest.empty()) return shared;
                                    if (auto read = stripes_->read(rest, part.offset + whole_bytes); !read)
                                      return read;
                                    return file_->write(rest, part.offset + whole_bytes);
                                  });
    if (!gathered) return gathered;
  }
  return {};
}

std::unique_ptr<File> Journal::take_file() {
  auto file = stripes_ ? stripes_->take_file() : nullptr;
  return file ? std::move(file) : std::move(file_);
}

std::uint64_t Journal::allocate(std::uint64_t size_bytes) {
  // Large writes fill the page cache's largest folios then.
  constexpr std::uint64_t kLargeBytes = 2 << 20;
  const std::uint64_t alignment = size_bytes >= kLargeBytes ? kLargeBytes : kBlockBytes;
  const std::scoped_lock lock(mutex_);
  const std::uint64_t begin = (end_bytes_ + alignment - 1) / alignment * alignment;
  end_bytes_ = begin + round_up_to_block(size_bytes);
  return begin;
}

Result<std::optional<std::uint64_t>> Journal::share(const File& archive, ByteRange blocks) {
  const std::uint64_t end_before = end_bytes_;
  const std::uint64_t region = allocate(blocks.size_bytes);
  auto shared = file_->clone_from(archive, blocks.offset, {region, blocks.size_bytes});
  if (shared) return region;
  end_bytes_ = end_before;
  const int why = shared.error().errno_value;
  if (why == EOPNOTSUPP || why == ENOSPC || why == EDQUOT) return std::nullopt;
  return pass_on(std::move(shared));
}

Result<void> Journal::seal(JournalRecord record, Durability durability, const HashRange& hash,
                           StandingJournal* standing) {
  if (spoiled_) return tl::unexpected(*spoiled_);
  record.owner_pid = ::getpid();
  if (memory_ != nullptr && standing != nullptr && standing->is_ready() && record.coordinator.empty()) {
    for (JournalRange& range : record.ranges) {
      if (auto hashed = hash ? hash(range) : Result<void>{}; !hashed) return hashed;
    }
    path_ = standing->path();
    auto committed = standing->commit(std::move(record), *file_, durability);
    if (committed) standing_ = standing;
    return committed;
  }
  if (memory_ != nullptr) {
    if (auto moved = move_to_disk(); !moved) return moved;
  }
  // What we change now must not be changed back by what we have committed before.
  if (standing != nullptr) {
    if (auto settled = standing->settle(durability); !settled) return settled;
  }
  record.id = id_;
  writeback_.finish();
  // Sharing writes out what is dirty, so it fails as a sync does.
  if (auto gathered = gather(record); !gathered) return spoil(std::move(gathered));
  const auto head = write_record(std::move(record), hash);
  if (!head) return tl::unexpected(head.error());
  const std::string block = encode_head(*head);
  if (auto written = file_->write(std::as_bytes(std::span(block)), 0); !written) return written;
  if (durability == Durability::Process) return {};
  auto synced = file_->sync();
  return synced ? synced : spoil(std::move(synced));
}

Result<void> Journal::spoil(Result<void> failed) {
  // Spoiled even where there is no memory for the reason.
  Error& why = spoiled_.emplace();
  why.code = failed.error().code;
  why.errno_value = failed.error().errno_value;
  why.message = failed.error().message;
  return failed;
}

Result<JournalHead> Journal::write_record(JournalRecord record, const HashRange& hash) {
  const std::unique_ptr<XXH3_state_t, XXH_errorcode (*)(XXH3_state_t*)> hashing(XXH3_createState(),
                                                                                &XXH3_freeState);
  if (!hashing) throw std::bad_alloc();
  XXH3_64bits_reset(hashing.get());
  std::uint64_t end = end_bytes_;
  std::string text = encode_beginning(record);
  const auto write_out = [&]() -> Result<void> {
    XXH3_64bits_update(hashing.get(), text.data(), text.size());
    auto written = file_->write(std::as_bytes(std::span(text)), end);
    end += text.size();
    text.clear();
    return written;
  };
  for (JournalRange& range : record.ranges) {
    if (auto hashed = hash ? hash(range) : Result<void>{}; !hashed) return pass_on(std::move(hashed));
    text += encode_range(range);
    range.new_hashes = range.old_hashes = {};
    if (text.size() < kRecordPieceBytes) continue;
    if (auto written = write_out(); !written) return pass_on(std::move(written));
  }
  if (auto written = write_out(); !written) return pass_on(std::move(written));
  return JournalHead{
      .id = id_, .record = {end_bytes_, end - end_bytes_}, .record_hash = XXH3_64bits_digest(hashing.get())};
}

Result<void> Journal::publish(Durability durability) {
  if (spoiled_) return tl::unexpected(*spoiled_);
  if (standing_ != nullptr) return {};
  // What needs memory comes before the name: a commit must not fail for want of it afterwards.
  const std::filesystem::path directory = path_.parent_path();
  auto done = storage_.publish(*file_, path_);
  const bool is_named = done.has_value();
  if (done && durability == Durability::Power) done = storage_.sync_directory(directory);
  if (done) return done;
  spoiled_ = done.error();
  if (!is_named) return done;
  // Nobody can say whether the name would survive a crash now. Make the content invalid as well, so that
  // whatever survives is no commit.
  const bool is_void = make_void(*file_, kHead).has_value();
  const bool is_removed = storage_.remove(path_).has_value();
  if (is_void || (is_removed && storage_.sync_directory(directory))) return done;
  return fail(ErrorCode::CommitUnknown, EIO,
              done.error().message +
                  "; the journal could not be taken back either: whether the change is "
                  "committed shows at the next recovery");
}

std::unique_ptr<File> Journal::give_up() {
  if (standing_ != nullptr) {
    standing_->give_up();
  } else {
    file_->unlock(kOwnerByte);
  }
  return std::move(file_);
}

void Journal::take_back(Error why, Durability durability) {
  spoiled_ = std::move(why);
  // Whether or not it succeeds: without its coordinator it is no commit, and recovery removes it.
  static_cast<void>(guard_memory([&] { return retire(durability); }));
}

Result<void> Journal::retire(Durability durability) {
  // A standing journal's owner settles it later (standing_journal.h, invariant 4).
  if (standing_ != nullptr) return {};
  if (durability == Durability::Power) {
    if (auto gone = make_void(*file_, kHead); !gone) return gone;
  }
  return storage_.remove(path_);
}

}  // namespace stfs
