// Stripe i lies in file i % n, as its stripe i / n.
#include "core/journal/stripes.h"

#include <algorithm>
#include <array>
#include <utility>

#include "core/journal/journal_format.h"

namespace stfs {

Result<std::unique_ptr<Stripes>> Stripes::open(Storage& storage, File& journal,
                                               const std::filesystem::path& journal_path,
                                               std::uint64_t content_bytes) {
  const Striping form = journal.striping();
  // A name would have to be removed again, by whoever finds it after a crash.
  if (form.files < 2 || journal.has_staged_name()) return nullptr;
  std::unique_ptr<Stripes> stripes(new Stripes(form, journal));
  while (stripes->members_.size() < form.files) {
    auto opened = storage.create_unnamed(journal_path);
    if (!opened) return pass_on(std::move(opened));
    File& file = **opened;
    stripes->members_.push_back(std::make_unique<Member>());
    stripes->members_.back()->file = std::move(*opened);
    stripes->members_.back()->filled.resize(form.slots);
    // From the second round on, what was handed over has given back as much as was reserved for it in the
    // journal.
    const std::uint64_t share_bytes = content_bytes / form.files + form.stripe_bytes;
    const std::uint64_t room_bytes = std::min(form.slots * form.stripe_bytes, share_bytes);
    if (auto room = file.reserve({0, room_bytes}); !room) return pass_on(std::move(room));
    if (stripes->members_.size() > 1) continue;
    // Only the file system itself knows. Not up to the file's end, where less is asked of it.
    const std::array<std::byte, 2 * kBlockBytes> zeros{};
    if (auto written = file.write(zeros, 0); !written) return pass_on(std::move(written));
    const auto shared = journal.clone_from(file, 0, {0, kBlockBytes});
    if (!shared && shared.error().errno_value == EOPNOTSUPP) return nullptr;
    if (!shared) return tl::unexpected(shared.error());
  }
  return stripes;
}

void Stripes::begin(std::uint64_t offset) {
  begin_ = next_ = offset;
  has_failed_ = false;
  failure_.reset();
  const std::uint64_t first = offset / form_.stripe_bytes;
  for (std::size_t at = 0; at < members_.size(); ++at) {
    members_[at]->oldest = (first + members_.size() - 1 - at) / members_.size();
    std::ranges::fill(members_[at]->filled, 0);
  }
}

Stripes::Stripe Stripes::stripe_of(std::size_t file, std::uint64_t number) const {
  const std::uint64_t first = (number * members_.size() + file) * form_.stripe_bytes;
  const std::uint64_t begin = std::max(first, begin_);
  return {file, number, {begin, first + form_.stripe_bytes - begin}};
}

Stripes::Stripe Stripes::stripe_at(std::uint64_t offset) const {
  const std::uint64_t stripe = offset / form_.stripe_bytes;
  return stripe_of(stripe % members_.size(), stripe / members_.size());
}

Result<void> Stripes::write(std::span<const std::byte> from, std::uint64_t offset) {
  while (!from.empty()) {
    const Stripe stripe = stripe_at(offset);
    const auto part = from.first(std::min<std::size_t>(stripe.range.end() - offset, from.size()));
    if (auto done = guard_memory([&] { return put(stripe, part, offset); }); !done)
      return fail(std::move(done));
    from = from.subspan(part.size());
    offset += part.size();
  }
  return {};
}

Result<void> Stripes::put(const Stripe& stripe, std::span<const std::byte> from, std::uint64_t offset) {
  Member& member = *members_[stripe.file];
  const std::uint64_t place = place_of(stripe, offset);
  {
    std::unique_lock turn(member.turn);
    if (has_failed_) return failure();
    if (auto room = make_room(stripe, turn); !room) return room;
    if (auto written = member.file->write(from, place); !written) return written;
    std::uint64_t& filled = member.filled[slot_of(stripe)];
    filled += from.size();
    if (filled == stripe.range.size_bytes) member.changed.notify_all();
  }
  // Half of the ring is written out while the other half is filled.
  const std::uint64_t half_bytes = std::max(form_.slots / 2, 1U) * form_.stripe_bytes;
  member.writeback.follow(*member.file, {place, from.size()}, half_bytes);
  return {};
}

Result<void> Stripes::make_room(const Stripe& stripe, std::unique_lock<std::mutex>& turn) {
  Member& member = *members_[stripe.file];
  while (stripe.number >= member.oldest + form_.slots) {
    if (has_failed_) return failure();
    const Stripe oldest = stripe_of(stripe.file, member.oldest);
    std::uint64_t& filled = member.filled[slot_of(oldest)];
    if (filled < oldest.range.size_bytes) {
      member.changed.wait(turn);
      continue;
    }
    if (auto handed = hand_over(oldest, oldest.range); !handed) return handed;
    filled = 0;
    ++member.oldest;
    member.changed.notify_all();
  }
  return {};
}

/// The whole blocks are shared. What there is of a block at either end is copied: the rest of it may be
/// somebody else's.
Result<void> Stripes::hand_over(const Stripe& stripe, ByteRange range) {
  const std::uint64_t first = std::min(round_up_to_block(range.offset), range.end());
  const std::uint64_t last = std::max(round_down_to_block(range.end()), first);
  if (auto copied = copy(stripe, {range.offset, first - range.offset}); !copied) return copied;
  if (first < last) {
    auto shared =
        journal_.clone_from(*members_[stripe.file]->file, place_of(stripe, first), {first, last - first});
    if (!shared) return shared;
  }
  return copy(stripe, {last, range.end() - last});
}

Result<void> Stripes::copy(const Stripe& stripe, ByteRange range) {
  if (range.empty()) return {};
  std::array<std::byte, kBlockBytes> block;
  const auto bytes = std::span(block).first(range.size_bytes);
  if (auto read = members_[stripe.file]->file->read(bytes, place_of(stripe, range.offset)); !read)
    return read;
  return journal_.write(bytes, range.offset);
}

Result<void> Stripes::finish() {
  if (has_failed_) return guard_memory([&] { return failure(); });
  auto done = guard_memory([&] { return hand_over_rest(); });
  return done ? done : fail(std::move(done));
}

Result<void> Stripes::hand_over_rest() {
  for (std::size_t at = 0; at < members_.size(); ++at) {
    Member& member = *members_[at];
    member.writeback.finish();
    for (;; ++member.oldest) {
      const Stripe stripe = stripe_of(at, member.oldest);
      if (stripe.range.offset >= next_) break;
      auto handed = hand_over(stripe, stripe.range.intersection({begin_, next_ - begin_}));
      if (!handed) return handed;
    }
  }
  return {};
}

Result<void> Stripes::fail(Result<void> failed) {
  static_cast<void>(guard_memory([&]() -> Result<void> {
    const std::scoped_lock lock(failure_mutex_);
    if (!has_failed_) failure_ = failed.error();
    return {};
  }));
  has_failed_ = true;
  for (const auto& member : members_) {
    { const std::scoped_lock turn(member->turn); }  // whoever has looked waits by now
    member->changed.notify_all();
  }
  return failed;
}

Result<void> Stripes::failure() const {
  const std::scoped_lock lock(failure_mutex_);
  return tl::unexpected(failure_.value_or(Error{ErrorCode::OutOfMemory, ENOMEM, "out of memory"}));
}

std::unique_ptr<File> Stripes::take_file() {
  if (members_.empty()) return nullptr;
  auto file = std::move(members_.back()->file);
  members_.pop_back();
  return file;
}

}  // namespace stfs
