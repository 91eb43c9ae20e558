// Stripe i lies in file i % n, as its stripe i / n.
#include "core/stripes.h"

#include <algorithm>
#include <array>
#include <utility>

#include "core/journal_format.h"

namespace stfs {

Result<std::unique_ptr<Stripes>> Stripes::open(Storage& storage, File& journal,
                                               const std::filesystem::path& journal_path,
                                               std::uint64_t probe) {
  const Striping form = journal.striping();
  // A name would have to be removed again, by whoever finds it after a crash.
  if (form.files < 2 || journal.has_staged_name()) return nullptr;
  std::unique_ptr<Stripes> stripes(new Stripes(form));
  while (stripes->members_.size() < form.files) {
    auto opened = storage.create_unnamed(journal_path);
    if (!opened) return pass_on(std::move(opened));
    File& file = **opened;
    stripes->members_.push_back(std::make_unique<Member>());
    stripes->members_.back()->file = std::move(*opened);
    if (stripes->members_.size() > 1) continue;
    // Only the file system itself knows.
    const std::array<std::byte, kBlockBytes> zeros{};
    if (auto written = file.write(zeros, 0); !written) return pass_on(std::move(written));
    const auto shared = journal.clone_from(file, 0, {probe, kBlockBytes});
    if (!shared && shared.error().errno_value == EOPNOTSUPP) return nullptr;
    if (!shared) return tl::unexpected(shared.error());
  }
  return stripes;
}

Stripes::Place Stripes::place_of(std::uint64_t offset) const {
  const std::uint64_t stripe = offset / form_.stripe_bytes;
  return {members_[stripe % members_.size()].get(),
          stripe / members_.size() * form_.stripe_bytes + offset % form_.stripe_bytes};
}

template <class Visit>
Result<void> Stripes::for_each_stripe(ByteRange range, const Visit& visit) const {
  while (!range.empty()) {
    const std::uint64_t size_bytes =
        std::min(form_.stripe_bytes - range.offset % form_.stripe_bytes, range.size_bytes);
    if (auto visited = visit(place_of(range.offset), size_bytes); !visited) return visited;
    range = {range.offset + size_bytes, range.size_bytes - size_bytes};
  }
  return {};
}

Result<void> Stripes::write(std::span<const std::byte> from, std::uint64_t offset) {
  return for_each_stripe({offset, from.size()}, [&](Place place, std::uint64_t size_bytes) -> Result<void> {
    {
      const std::scoped_lock turn(place.member->turn);
      auto written = place.member->file->write(from.first(size_bytes), place.offset);
      if (!written) return written;
    }
    from = from.subspan(size_bytes);
    place.member->writeback.follow(*place.member->file, {place.offset, size_bytes});
    return {};
  });
}

Result<void> Stripes::read(std::span<std::byte> to, std::uint64_t offset) const {
  return for_each_stripe({offset, to.size()}, [&](Place place, std::uint64_t size_bytes) -> Result<void> {
    if (auto read = place.member->file->read(to.first(size_bytes), place.offset); !read) return read;
    to = to.subspan(size_bytes);
    return {};
  });
}

Result<void> Stripes::reserve(ByteRange range) {
  // Of each file, what the range has of it lies together.
  std::vector<ByteRange> parts(members_.size());
  static_cast<void>(for_each_stripe(range, [&](Place place, std::uint64_t size_bytes) -> Result<void> {
    const auto member = std::ranges::find(members_, place.member, &std::unique_ptr<Member>::get);
    ByteRange& part = parts[static_cast<std::size_t>(member - members_.begin())];
    if (part.empty()) part.offset = place.offset;
    part.size_bytes = place.offset + size_bytes - part.offset;
    return {};
  }));
  for (std::size_t member = 0; member < parts.size(); ++member) {
    if (parts[member].empty()) continue;
    if (auto reserved = members_[member]->file->reserve(parts[member]); !reserved) return reserved;
  }
  return {};
}

std::unique_ptr<File> Stripes::take_file() {
  if (members_.empty()) return nullptr;
  auto file = std::move(members_.back()->file);
  members_.pop_back();
  return file;
}

Result<void> Stripes::share_with(File& journal, ByteRange blocks) {
  for (const auto& member : members_) member->writeback.finish();
  std::uint64_t at = blocks.offset;
  return for_each_stripe(blocks, [&](Place place, std::uint64_t size_bytes) {
    const ByteRange to = {at, size_bytes};
    at += size_bytes;
    return journal.clone_from(*place.member->file, place.offset, to);
  });
}

}  // namespace stfs
