#include "fs/read/tensor_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <shared_mutex>
#include <utility>

#include "core/base/mutex.h"

namespace stfs {

TensorReader::TensorReader(const Snapshots& snapshots, const TensorStates& states, bool fails_on_change)
    : snapshots_(snapshots),
      states_(states),
      locks_(std::clamp<std::size_t>(snapshots->model->tensors().size(), 1, kMostLocks)),
      is_broken_(snapshots->model->shards().size()),
      fails_on_change_(fails_on_change),
      is_changed_(fails_on_change ? snapshots->model->shards().size() : 0),
      present_(snapshots->model->shards().size()) {}

bool TensorReader::note_broken(std::uint32_t shard, std::shared_ptr<const ArchiveHeader> present) {
  const MutexLock lock(mutex_);
  // A tensor that has lost its place once may be at this place again only by chance.
  const bool is_lost = is_broken_[shard] && !present_[shard];
  present_[shard] = is_lost ? nullptr : std::move(present);
  is_any_broken_ = true;
  return !is_broken_[shard].exchange(true);
}

bool TensorReader::is_kept(const Model& model, TensorId tensor, std::uint32_t shard) const {
  std::shared_ptr<const ArchiveHeader> present;
  {
    const MutexLock lock(mutex_);
    present = present_[shard];
  }
  return present && present->keeps(model.tensor(tensor).name, model.file_range(tensor));
}

Result<void> TensorReader::check_unchanged(std::uint32_t shard) const {
  if (!fails_on_change_) return {};
  // A write changes the file's time before it changes the first byte. The mark stays, because programs set
  // times back.
  const ArchiveReader& archive = snapshots_->model->reader(shard);
  if (!is_changed_[shard] && archive.is_as_known()) return {};
  static_cast<void>(note_changed(shard));
  return fail(ErrorCode::ArchiveChanged, ESTALE,
              archive.path().string() + ": another program has changed it: open the file again");
}

Result<TensorReader::Found> TensorReader::find(TensorId tensor) const {
  for (;;) {
    const TensorPlace place = snapshots_->model->place(tensor);
    std::shared_lock lock(lock_of(place));
    // With the lock: an edit may move the tensor (wait_for_readers()), also from the base of a delta to the
    // delta, where it has another lock.
    const Model& model = *snapshots_->model;
    if (model.place(tensor) != place) continue;
    if (!is_broken_[place.shard] || is_kept(model, tensor, place.shard))
      return Found{&model.reader(place.shard), model.file_range(tensor), place.shard, std::move(lock)};
    return fail(ErrorCode::ArchiveChanged, EIO,
                label_of(tensor) + (model.is_of_base(place.shard) ? ": the base of the delta has changed"
                                                                  : ": the archive's header has changed"));
  }
}

Result<Bytes> TensorReader::read(TensorId tensor, ByteRange part) const {
  auto found = find(tensor);
  RETURN_IF_ERROR(found);
  recent_reads_.note(tensor, part.size_bytes);
  const std::uint64_t offset = found->range.offset + part.offset;
  if (!fails_on_change_) {
    auto mapped = found->archive->map({offset, part.size_bytes});
    RETURN_IF_ERROR(mapped);
    if (!mapped->empty()) return Bytes(*mapped, std::move(found->lock));
  }
  std::vector<std::byte> bytes = Bytes::buffer(part.size_bytes);
  RETURN_IF_ERROR(found->archive->read_through(bytes, offset));
  RETURN_IF_ERROR(check_unchanged(found->shard));
  return Bytes(std::move(bytes));
}

Result<void> TensorReader::copy(TensorId tensor, std::uint64_t offset, std::span<std::byte> to) const {
  const auto found = find(tensor);
  RETURN_IF_ERROR(found);
  auto read = found->archive->read_through(to, found->range.offset + offset);
  return read ? check_unchanged(found->shard) : read;
}

Result<void> TensorReader::read_parts(
    TensorId tensor, const std::function<Result<void>(const TensorBytes& tensor)>& work) const {
  const auto found = find(tensor);
  RETURN_IF_ERROR(found);
  const ByteRange whole = found->range;
  std::vector<std::byte> scratch;
  auto done = work(
      {.read =
           [&](ByteRange part) {
             return found->archive->read({whole.offset + part.offset, part.size_bytes}, scratch);
           },
       .copy_from = [&](const ByteSource::Copy& copy) { return found->archive->copy_from(whole, copy); }});
  return done ? check_unchanged(found->shard) : done;
}

Result<std::vector<std::byte>> TensorReader::read_header(ByteRange range) const {
  if (is_broken_[0]) {
    return fail(ErrorCode::ArchiveChanged, EIO,
                snapshots_->model->front().path().string() + ": the archive's header has changed");
  }
  std::vector<std::byte> bytes(static_cast<std::size_t>(range.size_bytes));
  RETURN_IF_ERROR(snapshots_->model->front().read_through(bytes, range.offset));
  RETURN_IF_ERROR(check_unchanged(0));
  return bytes;
}

void TensorReader::wait_for_readers() const {
  for (ReaderWriterLock& lock : locks_) const MutexLock none_inside(lock);
}

std::string TensorReader::label_of(TensorId tensor) const {
  return fmt::format("{}: tensor \"{}\"", snapshots_->model->archive_of(tensor).path().string(),
                     snapshots_->model->tensor(tensor).name);
}

}  // namespace stfs
