#include "tests/simulation/simulated_archive.h"

#include <algorithm>
#include <cstring>
#include <span>

#include "tests/support/text_archive.h"

namespace stfs::test {

Buffer SimulatedArchive::fresh(std::uint64_t size_bytes) {
  Buffer bytes(size_bytes);
  RandomChoices random(++drawn_);
  for (std::uint64_t at = 0; at < size_bytes; at += 8) {
    const std::uint64_t word = random.next();
    std::memcpy(bytes.data() + at, &word, std::min<std::uint64_t>(8, size_bytes - at));
  }
  return bytes;
}

Contents SimulatedArchive::draw(Choices& choices) {
  Contents contents;
  const std::uint64_t sizes[] = {16, 5'000, 3 * kDiskBlockBytes + 100, 9'000};
  const std::size_t turn = choices.below(3) == 0 ? 1 : 0;  // other sizes, sometimes
  for (std::size_t at = 0; at < std::size(kTensorNames); ++at)
    contents[std::string(kTensorNames[at])] = fresh(sizes[(at + turn) % std::size(sizes)]);
  return contents;
}

DiskAccess SimulatedArchive::draw_access(Choices& choices) {
  constexpr std::uint32_t kModes[] = {0600, 0640, 0660, 0644, 0664, 0666, 0666};
  constexpr std::uint32_t kMostOwners = 2;
  constexpr std::uint32_t kMostGroups = 3;
  const std::uint32_t permissions = kModes[choices.below(std::size(kModes))];
  const auto owner = static_cast<std::uint32_t>(choices.below(kMostOwners));
  return {.uid = owner,
          .gid = static_cast<std::uint32_t>(choices.below(kMostGroups)),
          .permissions = permissions};
}

Buffer SimulatedArchive::bytes_of(const Contents& contents) {
  Tensors tensors;
  for (const auto& [name, content] : contents)
    tensors.emplace_back(name, std::string(reinterpret_cast<const char*>(content.data()), content.size()));
  const std::string bytes = archive_of(tensors);
  std::uint64_t at = bytes.size();
  for (const auto& [name, content] : contents) at -= content.size();
  places_.clear();
  for (const auto& [name, content] : contents) {
    places_[name] = {at, content.size()};
    at += content.size();
  }
  const auto all = std::as_bytes(std::span(bytes));
  return {all.begin(), all.end()};
}

std::optional<Contents> SimulatedArchive::stored_in(const DiskImage& image, InodeNumber inode) const {
  Contents contents;
  for (const auto& [name, place] : places_) {
    Buffer& content = contents[name];
    content.resize(place.size_bytes);
    if (!image.read(inode, place.offset, content)) return std::nullopt;
  }
  return contents;
}

}  // namespace stfs::test
