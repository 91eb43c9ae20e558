// The checksum of a tensor, computed in pieces and without a lock: commits, of this tensor too, go on
// meanwhile. A sum that a change has come into is thrown away, and computed anew.
#include <fmt/format.h>

#include <algorithm>

#include "core/base/checksum.h"
#include "fs/model/filesystem.h"
#include "fs/read/cancellation.h"

namespace stfs {
namespace {

// So much is read and hashed between two looks whether it still counts.
constexpr std::uint64_t kPieceBytes = 1 << 20;
// One commit may end several of them: its bytes appear, the journal over them goes, the generation moves.
constexpr int kAttempts = 16;

}  // namespace

Filesystem::ContentState Filesystem::content_state(std::uint32_t tensor) const {
  return {.generation = state_of(tensor).generation, .turns = lock_of(model_->place(tensor)).turns()};
}

Result<std::string> Filesystem::checksum(std::uint32_t tensor) const {
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    auto sum = try_checksum(tensor);
    if (!sum) return pass_on(std::move(sum));
    if (*sum) return std::move(**sum);
  }
  return fail(ErrorCode::Busy, EBUSY,
              fmt::format("{}: was changed {} times while its checksum was computed: ask again when its "
                          "writers pause",
                          label_of(tensor), kAttempts));
}

Result<std::optional<std::string>> Filesystem::try_checksum(std::uint32_t tensor) const {
  const auto archive = unbroken_archive_of(tensor);
  if (!archive) return tl::unexpected(archive.error());
  ContentState state;
  {
    // Lets a change that is under way end, and holds up none.
    const std::shared_lock wait(lock_of(model_->place(tensor)));
    state = content_state(tensor);
  }
  // A change of somebody else that nobody has noticed yet: plain reads of the archive show it already.
  const bool may_be_kept = (*archive)->is_as_known();
  if (may_be_kept) {
    // Asked for twice in a row, for its length and then for its value.
    const std::scoped_lock lock(state_mutex_);
    const auto known = checksums_.find(tensor);
    if (known != checksums_.end() && known->second.state == state) return std::optional(known->second.text);
  }
  Checksum sum;
  const ByteRange range = range_of(tensor);
  std::vector<std::byte> buffer(static_cast<std::size_t>(std::min(kPieceBytes, range.size_bytes)));
  for (std::uint64_t done = 0; done < range.size_bytes;) {
    if (Cancellation::is_requested()) {
      return fail(ErrorCode::System, EINTR, label_of(tensor) + ": nobody waits for its checksum any more");
    }
    const auto piece =
        std::span(buffer).first(static_cast<std::size_t>(std::min(kPieceBytes, range.size_bytes - done)));
    if (auto read = (*archive)->read_through(piece, range.offset + done); !read)
      return pass_on(std::move(read));
    if (content_state(tensor) != state) return std::optional<std::string>();
    sum.update(piece);
    done += piece.size();
  }
  std::string text = "xxh128:" + sum.hex();
  if (!may_be_kept) return std::optional(std::move(text));
  const std::scoped_lock lock(state_mutex_);
  checksums_[tensor] = {state, text};
  return std::optional(std::move(text));
}

}  // namespace stfs
