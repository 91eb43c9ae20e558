#include "core/remote/fetched_blocks.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <string>
#include <thread>
#include <utility>

#include "core/base/cancellation.h"
#include "core/base/deadline.h"
#include "core/remote/block_cache.h"
#include "core/remote/remote_workers.h"

namespace stfs {

FetchedBlocks::FetchedBlocks(std::unique_ptr<RemoteObject> object, std::unique_ptr<BlockFile> file)
    : object_(std::move(object)),
      file_(std::move(file)),
      listed_(0),
      proven_(file_->count()),
      generation_(file_->generation()),
      owner_(::getpid()) {
  BlockSet listed(file_->count());
  file_->each_entry([&](std::uint64_t block, const BlockFile::Entry&) { listed.set(block, true); });
  listed_ = std::move(listed);
}

std::shared_ptr<FetchedBlocks> FetchedBlocks::make(std::unique_ptr<RemoteObject> object,
                                                   std::unique_ptr<BlockFile> file,
                                                   std::span<const std::byte> first) {
  std::shared_ptr<FetchedBlocks> blocks(new FetchedBlocks(std::move(object), std::move(file)));
  const bool is_whole = first.size() == blocks->size_bytes();
  const std::uint64_t whole_blocks = is_whole ? blocks->file_->count() : first.size() / kBlockBytes;
  const MutexLock lock(blocks->mutex_);
  if (whole_blocks == 0 || (blocks->listed_.has(0) && !is_whole)) return blocks;
  const auto bytes = first.first(std::min<std::size_t>(first.size(), whole_blocks * kBlockBytes));
  if (blocks->keep(0, bytes)) {
    for (std::uint64_t at = 0; at < whole_blocks; ++at) {
      blocks->listed_.set(at, true);
      blocks->proven_.set(at, true);
    }
  } else if (is_whole) {  // A server that sends only whole files can't be asked for a part.
    blocks->whole_.assign(first.begin(), first.end());
  }
  return blocks;
}

Blocks FetchedBlocks::blocks_of(ByteRange range) const {
  const std::uint64_t end = std::min(range.end(), size_bytes());
  return {std::min(range.offset, end) / kBlockBytes, (end + kBlockBytes - 1) / kBlockBytes};
}

bool FetchedBlocks::are_proven(Blocks blocks) const {
  for (std::uint64_t at = blocks.first; at < blocks.end; ++at) {
    if (!proven_.has(at)) return false;
  }
  return true;
}

bool FetchedBlocks::is_any_missing(Blocks blocks, Blocks wanted) const {
  const MutexLock lock(mutex_);
  return !are_proven(blocks) || !begin(wanted).empty();
}

bool FetchedBlocks::is_any_listed(Blocks blocks) const {
  for (std::uint64_t at = blocks.first; at < blocks.end; ++at) {
    if (listed_.has(at) && !proven_.has(at)) return true;
  }
  return false;
}

bool FetchedBlocks::prove(Blocks blocks) {
  for (std::uint64_t at = blocks.first; at < blocks.end; ++at) {
    std::uint64_t generation = 0;
    {
      const MutexLock lock(mutex_);
      if (proven_.has(at) || !listed_.has(at)) continue;
      generation = generation_;
    }
    const BlockFile::Found found = file_->prove(at);
    const Blocks wrong{at, at + 1};
    if (found == BlockFile::Found::Wrong && !file_->drop(std::span(&wrong, 1), BlockFile::Pins::Stay))
      return false;
    const MutexLock lock(mutex_);
    listed_.set(at, found == BlockFile::Found::Right);
    proven_.set(at, listed_.has(at) && generation == generation_);
  }
  return true;
}

FetchedBlocks::Parts FetchedBlocks::begin(Blocks blocks) const {
  Parts parts;
  for (std::uint64_t at = blocks.first; at < blocks.end;) {
    // The last part that begins at or before this block.
    const auto coming = coming_.upper_bound(at);
    if (coming != coming_.begin() && std::prev(coming)->second->end > at) {
      at = std::prev(coming)->second->end;
      continue;
    }
    if (listed_.has(at)) {
      ++at;
      continue;
    }
    auto part = std::make_shared<Part>(Part{.first = at, .end = at + 1});
    const std::uint64_t limit = std::min(
        {blocks.end, at + kPartBytes / kBlockBytes, coming == coming_.end() ? blocks.end : coming->first});
    while (part->end < limit && !listed_.has(part->end)) ++part->end;
    at = part->end;
    parts.push_back(std::move(part));
  }
  return parts;
}

void FetchedBlocks::post(const Parts& parts, bool is_needed) {
  for (const auto& part : parts) {
    const auto noted = coming_.emplace(part->first, part).first;
    bool is_posted = false;
    try {
      is_posted = post_remote_job([self = shared_from_this(),
                                   part](HttpConnection& connection) { self->fetch_part(*part, connection); },
                                  is_needed ? Urgency::Needed : Urgency::Guessed);
    } catch (const std::bad_alloc&) {  // the reader fetches its bytes itself
    }
    if (!is_posted) coming_.erase(noted);
  }
}

bool FetchedBlocks::wait_for_others(Blocks blocks) const {
  // A program that is stopped holds its locks. Then each reader gets the bytes from the server.
  constexpr std::chrono::seconds kPatience{10};
  constexpr std::chrono::milliseconds kStep{20};
  const Deadline give_up = deadline_in(kPatience);
  while (!file_->try_lock(blocks)) {
    if (is_ending_ || time_left(give_up).count() == 0) return false;
    std::this_thread::sleep_for(kStep);
  }
  return true;
}

Result<void> FetchedBlocks::fetch_missing(Blocks blocks, HttpConnection& connection) {
  if (!wait_for_others(blocks)) return fail_system(EAGAIN, "another program", "fetch the same bytes");
  auto fetched = guard_memory([&]() -> Result<void> {
    const std::uint64_t generation = known_generation();
    const auto entries = file_->entries(blocks);
    const auto is_there = [&](std::uint64_t at) { return entries[at - blocks.first].hash != 0; };
    for (std::uint64_t at = blocks.first; at < blocks.end;) {
      Blocks run{at, at + 1};
      while (run.end < blocks.end && is_there(run.end) == is_there(run.first)) ++run.end;
      at = run.end;
      if (!is_there(run.first)) {
        if (is_ending_) return fail(ErrorCode::System, ECANCELED, "the file was closed");
        const ByteRange range = file_->bytes_of(run);
        std::vector<std::byte> bytes(static_cast<std::size_t>(range.size_bytes));
        RETURN_IF_ERROR(object_->read(bytes, range.offset, connection, [this] { return is_ending_.load(); }));
        RETURN_IF_ERROR(keep(run.first, bytes));
      }
      const MutexLock lock(mutex_);
      for (std::uint64_t block = run.first; block < run.end; ++block) {
        listed_.set(block, true);
        if (!is_there(block)) proven_.set(block, generation == generation_);
      }
    }
    return {};
  });
  file_->unlock(blocks);
  return fetched;
}

void FetchedBlocks::fetch_part(Part& part, HttpConnection& connection) {
  auto done = fetch_missing({part.first, part.end}, connection);
  const MutexLock lock(mutex_);
  if (!done) part.failure = std::move(done).error();
  part.is_over = true;
  const auto noted = coming_.find(part.first);
  if (noted != coming_.end() && noted->second.get() == &part) coming_.erase(noted);
  part_ends_.notify_all();
}

bool FetchedBlocks::has_room() const {
  return has_room_for_blocks(file_->descriptor());
}

Result<void> FetchedBlocks::keep(std::uint64_t first, std::span<const std::byte> bytes) const {
  if (!has_room()) return fail_system(ENOSPC, "the disk for fetched bytes", "write");
  RETURN_IF_ERROR(file_->write(first, bytes));
  if (file_->is_shared()) note_kept_bytes(bytes.size());
  return {};
}

Result<void> FetchedBlocks::read_past(std::span<std::byte> to, std::uint64_t offset) const {
  HttpConnection connection;
  return object_->read(to, offset, connection, [this] { return is_given_up(); });
}

Result<void> FetchedBlocks::read(std::span<std::byte> to, std::uint64_t offset, ByteRange wanted) {
  if (!whole_.empty()) {
    std::copy_n(whole_.begin() + static_cast<std::ptrdiff_t>(offset), to.size(), to.begin());
    return {};
  }
  const Blocks blocks = blocks_of({offset, to.size()});
  // Another program may drop blocks again and again.
  constexpr int kMostTries = 8;
  for (int tries = 0; tries < kMostTries; ++tries) {
    auto is_kept = guard_memory([&] { return bring(blocks, blocks_of(wanted)); });
    RETURN_IF_ERROR(is_kept);
    if (!*is_kept || !file_->read(to, offset)) break;
    std::uint64_t found = file_->generation();
    if (found == **is_kept && found != BlockFile::kDropping) return {};
    const Deadline give_up = deadline_in(BlockFile::kDropPatience);
    while (found == BlockFile::kDropping && time_left(give_up).count() > 0) {
      if (is_given_up()) return fail_system(EINTR, "the read", "wait for another program");
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      found = file_->generation();
    }
    adopt(found);
  }
  return read_past(to, offset);
}

void FetchedBlocks::adopt(std::uint64_t generation) {
  BlockSet listed(file_->count());
  file_->each_entry([&](std::uint64_t block, const BlockFile::Entry&) { listed.set(block, true); });
  const MutexLock lock(mutex_);
  if (generation == generation_) return;
  generation_ = generation;
  listed_ = std::move(listed);
  proven_.clear();
}

std::uint64_t FetchedBlocks::known_generation() const {
  const MutexLock lock(mutex_);
  return generation_;
}

Result<std::optional<std::uint64_t>> FetchedBlocks::bring(Blocks blocks, Blocks wanted) {
  // A failed guess says nothing: this read requests the blocks again, as needed ones.
  for (bool has_asked = false;;) {
    if (!prove(blocks)) return std::nullopt;
    const bool has_space = is_any_missing(blocks, wanted) && has_room();
    std::shared_ptr<Part> coming;
    {
      const MutexLock lock(mutex_);
      if (std::exchange(owner_, ::getpid()) != ::getpid()) coming_.clear();  // fork(2) copies no thread
      if (are_proven(blocks)) {
        if (has_space) post(begin(wanted), false);
        return generation_;
      }
      if (has_space) {
        const Parts needed = begin(blocks);
        has_asked = has_asked || !needed.empty();
        post(needed, true);
        post(begin(wanted), false);
      }
      const auto there = std::ranges::find_if(coming_, [&](const auto& entry) {
        return entry.second->first < blocks.end && entry.second->end > blocks.first;
      });
      if (there == coming_.end()) {
        if (is_any_listed(blocks) && !is_given_up()) continue;  // it has just come
        return std::nullopt;
      }
      coming = there->second;
    }
    const MutexLock lock(mutex_);
    constexpr std::chrono::milliseconds kStep{200};
    while (!part_ends_.wait_for(mutex_, kStep, [&] { return coming->is_over; })) {
      if (is_given_up()) return fail_system(EINTR, "the read", "wait for the server");
    }
    if (!coming->failure || (!has_asked && !is_ending_)) continue;
    const int why = coming->failure->errno_value;
    if (why == ENOSPC || why == EDQUOT || why == EAGAIN) return std::nullopt;
    return tl::unexpected(*coming->failure);
  }
}

Result<void> FetchedBlocks::fetch(ByteRange range) {
  const Blocks blocks = blocks_of(range);
  auto is_kept = guard_memory([&] { return bring(blocks, blocks); });
  RETURN_IF_ERROR(is_kept);
  if (*is_kept) return {};
  return fail_system(ENOSPC, "a disk of which less than a twentieth is free", "keep fetched bytes");
}

FetchedBlocks::Missing FetchedBlocks::missing(ByteRange range) const {
  const Blocks blocks = blocks_of(range);
  const auto entries = file_->entries(blocks);
  Missing found;
  std::uint64_t run_bytes = 0;  // of the request that ends before this block
  for (std::uint64_t at = blocks.first; at < blocks.end; ++at) {
    if (entries[at - blocks.first].hash != 0) {
      run_bytes = 0;
      continue;
    }
    if (run_bytes == 0) ++found.requests;
    found.size_bytes += file_->bytes_of({at, at + 1}).size_bytes;
    run_bytes = run_bytes + kBlockBytes >= kPartBytes ? 0 : run_bytes + kBlockBytes;
  }
  return found;
}

bool FetchedBlocks::pin(ByteRange range) const {
  return file_->set_pinned(blocks_of(range), true);
}

bool FetchedBlocks::is_given_up() const {
  return is_ending_ || Cancellation::is_requested() || Cancellation::is_end();
}

void FetchedBlocks::end() {
  is_ending_ = true;
}

}  // namespace stfs
