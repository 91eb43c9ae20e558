// Sizes and places are chosen for blocks of 4096 bytes; the rest is drawn from the seed.
#include "tests/replay/seeded_commits.h"

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "tests/support/choices.h"

namespace stfs::replay {
namespace {

constexpr std::uint64_t kMiB = 1U << 20U;

std::uint64_t mixed(std::uint64_t value) {
  return test::RandomChoices(value).next();
}

Patch whole(const Layout& layout, std::size_t tensor) {
  return {tensor, 0, layout.tensors[tensor].size_bytes};
}

Patch part(const Layout& layout, std::size_t tensor, std::uint64_t most_bytes, test::Choices& choices) {
  const std::uint64_t size_bytes = layout.tensors[tensor].size_bytes;
  const std::uint64_t begin = choices.below(size_bytes);
  return {tensor, begin, 1 + choices.below(std::min(most_bytes, size_bytes - begin))};
}

}  // namespace

Layout::Layout(std::uint64_t large_bytes) {
  const std::vector<std::pair<std::string, std::uint64_t>> sizes = {
      {"scalar", 4},       {"pair", 8},          {"norm.a", 1000},    {"norm.b", 1500},
      {"odd", 12345},      {"block", 4096},      {"middle", 200'000}, {"large", large_bytes},
      {"after.large", 77}, {"second", 1500'000}, {"last", 3001}};
  nlohmann::ordered_json json;
  json["__metadata__"]["format"] = "pt";
  std::uint64_t at = 0;
  for (const auto& [name, bytes] : sizes) {
    json[name] = {{"dtype", "U8"}, {"shape", {bytes}}, {"data_offsets", {at, at + bytes}}};
    at += bytes;
  }
  std::string text = json.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');
  const std::uint64_t length = text.size();  // this machine is little-endian, as the format is
  header.resize(sizeof length);
  std::memcpy(header.data(), &length, sizeof length);
  header += text;
  size_bytes = header.size() + at;
  at = header.size();
  for (const auto& [name, bytes] : sizes) {
    tensors.push_back({name, at, bytes});
    at += bytes;
  }
}

std::size_t Layout::position(const std::string& name) const {
  const auto found = std::ranges::find(tensors, name, &PlainTensor::name);
  if (found == tensors.end()) throw std::invalid_argument("there is no tensor " + name);
  return static_cast<std::size_t>(found - tensors.begin());
}

std::vector<Patch> patches_of(const Layout& layout, std::uint64_t seed, std::uint64_t number) {
  test::RandomChoices choices(mixed(seed * 1'000'003 + number));
  const auto any = [&] { return choices.below(layout.tensors.size()); };
  const std::size_t large = layout.position("large");
  std::vector<Patch> patches;
  // The kinds come in turn instead of being drawn, because a short series must have all of them.
  switch (number % 8) {
    case 1: return {whole(layout, layout.position("scalar"))};
    case 2:
      return {whole(layout, layout.position("norm.a")), part(layout, layout.position("norm.b"), 600, choices),
              whole(layout, layout.position("pair"))};
    case 3: return {whole(layout, large)};
    case 4:
      for (int count = 0; count < 3; ++count) patches.push_back(part(layout, any(), 5000, choices));
      return patches;
    case 5: return {whole(layout, layout.position("odd")), whole(layout, layout.position("last"))};
    case 6:
      return {part(layout, large, 3 * kMiB, choices), whole(layout, layout.position("after.large")),
              part(layout, large, 10'000, choices)};
    case 7:
      return {whole(layout, layout.position("middle")),
              part(layout, layout.position("block"), 4096, choices)};
    default:
      return {whole(layout, layout.position("second")), whole(layout, layout.position("after.large")),
              part(layout, any(), 100'000, choices)};
  }
}

void fill_bytes(std::span<std::byte> to, std::uint64_t seed, std::uint64_t number, std::uint64_t offset) {
  const std::uint64_t stream = mixed(seed ^ (number * 0x9e3779b97f4a7c15U));
  for (std::size_t at = 0; at < to.size();) {
    const std::uint64_t word_index = (offset + at) / sizeof(std::uint64_t);
    const std::size_t skipped = (offset + at) % sizeof(std::uint64_t);
    // No byte is zero, because a lost block reads as zeros.
    const std::uint64_t word = mixed(stream + word_index) | 0x0101010101010101U;
    const std::size_t count = std::min(sizeof word - skipped, to.size() - at);
    std::memcpy(to.data() + at, reinterpret_cast<const std::byte*>(&word) + skipped, count);
    at += count;
  }
}

Expectation::Expectation(const Layout& layout, std::uint64_t seed)
    : layout_(layout), seed_(seed), bytes_(layout.size_bytes) {
  std::memcpy(bytes_.data(), layout.header.data(), layout.header.size());
  fill_bytes(std::span(bytes_).subspan(layout.header.size()), seed, 0, layout.header.size());
}

void Expectation::advance() {
  ++number_;
  for (const Patch& patch : patches_of(layout_, seed_, number_)) {
    const std::uint64_t begin = layout_.tensors[patch.tensor].offset + patch.begin;
    fill_bytes(std::span(bytes_).subspan(begin, patch.size_bytes), seed_, number_, begin);
  }
}

}  // namespace stfs::replay
