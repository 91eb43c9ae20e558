// Computes a tensor's checksum in pieces and without a lock, so that commits can run during the computation,
// even commits of this tensor. If the tensor changes during the computation, the sum is discarded and
// computed again.
#include <fmt/format.h>

#include <algorithm>

#include "core/base/cancellation.h"
#include "core/base/checksum.h"
#include "core/base/mutex.h"
#include "fs/read/tensor_reader.h"

namespace stfs {
namespace {

// The number of bytes that are hashed before the next check whether the tensor has changed.
constexpr std::uint64_t kPieceBytes = 1 << 20;
// One commit may spoil several attempts: it changes bytes, removes its journal, and changes the generation.
constexpr int kAttempts = 16;

}  // namespace

TensorReader::ContentState TensorReader::content_state(TensorId tensor) const {
  return {.generation = states_.of(tensor).noted, .turns = lock_of(snapshots_->model->place(tensor)).turns()};
}

Result<std::string> TensorReader::checksum(TensorId tensor) const {
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    auto sum = try_checksum(tensor);
    RETURN_IF_ERROR(sum);
    if (*sum) return std::move(**sum);
  }
  return fail(ErrorCode::Busy, EBUSY,
              fmt::format("{}: changed {} times during the computation of its checksum: request it again "
                          "when the writers pause",
                          label_of(tensor), kAttempts));
}

Result<std::optional<std::string>> TensorReader::try_checksum(TensorId tensor) const {
  // Waits for a running change to end, without delaying another change.
  auto found = find(tensor);
  RETURN_IF_ERROR(found);
  const ContentState state = content_state(tensor);
  found->lock.unlock();
  // False if another program has changed the archive and this mount has not noticed it yet. Plain reads of
  // the archive show the change already, so no kept checksum is used, and the new one is not kept.
  const bool may_be_kept = found->archive->is_as_known();
  if (may_be_kept) {
    // Programs ask twice in a row, first for the length and then for the value.
    const MutexLock lock(mutex_);
    const auto known = checksums_.find(tensor);
    if (known != checksums_.end() && known->second.state == state) return std::optional(known->second.text);
  }
  Checksum sum;
  const ByteRange range = found->range;
  std::vector<std::byte> buffer(static_cast<std::size_t>(std::min(kPieceBytes, range.size_bytes)));
  for (std::uint64_t done = 0; done < range.size_bytes;) {
    if (Cancellation::is_requested()) {
      return fail(ErrorCode::System, EINTR,
                  label_of(tensor) + ": the request for its checksum was cancelled");
    }
    const auto piece =
        std::span(buffer).first(static_cast<std::size_t>(std::min(kPieceBytes, range.size_bytes - done)));
    RETURN_IF_ERROR(found->archive->read_through(piece, range.offset + done));
    if (content_state(tensor) != state) return std::optional<std::string>();
    sum.update(piece);
    done += piece.size();
  }
  std::string text = "xxh128:" + sum.hex();
  if (!may_be_kept) return std::optional(std::move(text));
  const MutexLock lock(mutex_);
  checksums_[tensor] = {state, text};
  return std::optional(std::move(text));
}

}  // namespace stfs
