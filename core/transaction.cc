// Check, apply, sync.
#include "core/transaction.h"

#include <fmt/format.h>

#include <algorithm>
#include <mutex>

namespace stfs {
namespace {

// Large enough that a system call's cost vanishes, small enough to stay in the L2 cache.
constexpr std::uint64_t kCopyBytes = 1 << 20;

}  // namespace

void Transaction::add(std::uint32_t tensor, Staging& staging, ReaderWriterLock& readers) {
  parts_.push_back({tensor, &staging, &readers, {}});
}

Result<void> Transaction::commit() {
  if (auto sizes = check_sizes(); !sizes) return sizes;
  if (auto same = check_archive(); !same) return same;
  if (auto collected = collect_pieces(); !collected) return collected;
  const bool has_bytes = std::ranges::any_of(parts_, [](const Part& part) { return !part.pieces.empty(); });
  if (has_bytes) {
    if (auto applied = apply(); !applied) return applied;
    if (auto synced = archive_.file().sync(); !synced) return synced;
    if (auto adopted = archive_.adopt_identity(); !adopted) return adopted;
  }
  for (const Part& part : parts_) part.staging->forget();
  return {};
}

Result<void> Transaction::check_sizes() const {
  for (const Part& part : parts_) {
    if (part.staging->is_whole()) continue;
    const Tensor tensor = archive_.tensors()[part.tensor];
    return fail(
        ErrorCode::WrongSize, EINVAL,
        fmt::format("tensor \"{}\": {} bytes came, {} {} needs {}", tensor.name, part.staging->size_bytes(),
                    name_of(tensor.dtype), shape_text(tensor.shape), tensor.data.size_bytes));
  }
  return {};
}

Result<void> Transaction::check_archive() const {
  auto change = archive_.check_for_change();
  if (!change) return pass_on(std::move(change));
  const std::string path = archive_.path().string();
  if (change->is_replaced) {
    return fail(ErrorCode::ArchiveChanged, ESTALE,
                path + ": the archive was replaced or deleted while it was open; mount it again");
  }
  if (change->is_broken) {
    return fail(ErrorCode::ArchiveChanged, ESTALE,
                path + ": somebody else has changed the archive's header; mount it again");
  }
  auto status = archive_.file().status();
  if (!status) return pass_on(std::move(status));
  for (const Part& part : parts_) {
    if (part.staging->target().end() <= status->identity.size_bytes) continue;
    return fail(ErrorCode::ArchiveCut, EIO,
                fmt::format("{}: cut short: the file ends at byte {}, the tensor at {}", path,
                            status->identity.size_bytes, part.staging->target().end()));
  }
  return {};
}

Result<void> Transaction::collect_pieces() {
  for (Part& part : parts_) {
    auto pieces = part.staging->pieces();
    if (!pieces) return pass_on(std::move(pieces));
    part.pieces = std::move(*pieces);
  }
  return {};
}

Result<void> Transaction::apply() {
  // Several tensors may share a lock; each is taken once, in one order for everybody.
  std::vector<ReaderWriterLock*> locks;
  for (const Part& part : parts_) locks.push_back(part.readers);
  std::ranges::sort(locks);
  locks.erase(std::unique(locks.begin(), locks.end()), locks.end());
  std::vector<std::unique_lock<ReaderWriterLock>> held;
  for (ReaderWriterLock* lock : locks) held.emplace_back(*lock);

  std::vector<std::byte> buffer;
  for (const Part& part : parts_) {
    for (ByteRange piece : part.pieces) {
      while (!piece.empty()) {
        buffer.resize(static_cast<std::size_t>(std::min(kCopyBytes, piece.size_bytes)));
        if (auto read = part.staging->read_piece(buffer, piece.offset); !read) return read;
        const std::uint64_t to = part.staging->target().offset + piece.offset;
        if (auto written = archive_.file().write(buffer, to); !written) return written;
        piece = {piece.offset + buffer.size(), piece.size_bytes - buffer.size()};
      }
    }
  }
  return {};
}

}  // namespace stfs
