// Packets from a stranger on a socket, and the manifest by which a client maps memory. Each input is refused
// or sound.
#include <algorithm>
#include <string>
#include <utility>

#include "tests/fuzz/target.h"
#include "tools/serve/serve_manifest.h"
#include "tools/serve/serve_message.h"

namespace stfs::test {
namespace {

using namespace serve;

// The last byte of an input: kIsManifest, or the number of file descriptors that a packet brings.
constexpr std::byte kIsManifest{0xff};
constexpr unsigned kDescriptors = 4;

std::string text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

Bytes input_of(std::string_view text, std::byte setting) {
  Bytes input(text.size() + 1, setting);
  put_text(input, 0, text);
  return input;
}

ServeMessage some_message(Choices& choices) {
  ServeMessage message{.kind = static_cast<ServeKind>(choices.below(10))};
  if (choices.one_in(2)) message.generation = 1 + choices.below(3);
  if (choices.one_in(2)) message.document_bytes = extreme_number(choices, kMaxServeDocumentBytes);
  if (choices.one_in(2)) message.errno_value = static_cast<int>(choices.below(5000));
  if (choices.one_in(2)) message.text.assign(1 + choices.below(40), 'x');
  return message;
}

/// Two messages in three are valid, so that the reader's later checks are also reached.
ServeMessage whole_message(Choices& choices) {
  switch (choices.below(5)) {
    case 0: return {.kind = ServeKind::Attach};
    case 4: return {.kind = ServeKind::Renew};
    case 1: return {.kind = ServeKind::Grant, .generation = 7, .document_bytes = 100};
    case 2: return {.kind = ServeKind::Newer, .generation = 8};
    default: return {.kind = ServeKind::Refusal, .errno_value = ENOSPC, .text = "no room"};
  }
}

std::string some_manifest(Choices& choices) {
  ServeManifest manifest{.identity = {.generation = 1 + choices.below(9),
                                      .server = choices.below(3),
                                      .sources = {"/models/\u00e9.safetensors"},
                                      .version = "000042"},
                         .arenas = {},
                         .tensors = {}};
  manifest.arenas = {{"cpu", 4096, choices.below(3)}, {"cuda:GPU-0", 1 << 20, 3}};
  for (std::uint64_t count = choices.below(4); count > 0; --count) {
    const std::uint64_t rows = choices.below(5);
    manifest.tensors.push_back({.name = "layer." + std::to_string(count),
                                .dtype = Dtype::F32,
                                .shape = {rows, 3},
                                .arena = static_cast<std::uint32_t>(choices.below(2)),
                                .place = {choices.below(64) * 64, rows * 12},
                                .changed_in = choices.below(10)});
  }
  return manifest_text(manifest);
}

void mutate(Bytes& input, Choices& choices) {
  if (input.empty()) return;
  const std::byte setting = input.back();
  if (setting == kIsManifest) {
    std::string text = text_of(std::span(input).first(input.size() - 1));
    mutate_json(text, some_manifest(choices), choices);
    input = input_of(text, setting);
    return;
  }
  const std::string other = encode(some_message(choices), choices.below(kDescriptors));
  mutate_bytes(input, {0, input.size() - 1}, std::as_bytes(std::span(other)), choices, true);
}

Bytes make(Choices& choices) {
  Bytes input;
  if (choices.one_in(2)) {
    input = input_of(some_manifest(choices), kIsManifest);
  } else {
    const ServeMessage message = choices.one_in(3) ? some_message(choices) : whole_message(choices);
    const std::size_t descriptors = message.kind == ServeKind::Grant ? 2 : 0;
    const std::size_t come = choices.one_in(8) ? choices.below(kDescriptors) : descriptors;
    input = input_of(encode(message, descriptors), static_cast<std::byte>(come));
  }
  for (std::uint64_t changes = choices.below(4); changes > 0; --changes) mutate(input, choices);
  return input;
}

FuzzOutcome judge_packet(const std::string& packet, std::size_t descriptors) {
  const auto message = decode(packet, descriptors);
  if (!message) {
    const int why = message.error().errno_value;
    return {"no packet", why == EPROTO || why == EPROTONOSUPPORT ? "" : "refused for another reason"};
  }
  // An accepted message contains everything that was sent.
  const bool is_same_again = encode(*message, descriptors) == packet;
  return {"packet", is_same_again ? "" : "read otherwise than written"};
}

/// Divides, because a product can wrap around.
bool has_so_many_bytes(const LeasedTensor& tensor) {
  if (std::ranges::find(tensor.shape, 0U) != tensor.shape.end()) return tensor.place.size_bytes == 0;
  std::uint64_t left = tensor.place.size_bytes;
  if (left > UINT64_MAX / 8 || left * 8 % bits_of(tensor.dtype) != 0) return false;
  left = left * 8 / bits_of(tensor.dtype);
  for (const std::uint64_t extent : tensor.shape) {
    if (left % extent != 0) return false;
    left /= extent;
  }
  return left == 1;
}

FuzzOutcome judge_manifest(const std::string& text) {
  const auto manifest = parse_manifest(text);
  if (!manifest)
    return {"no manifest", manifest.error().errno_value == EPROTO ? "" : "refused for another reason"};
  for (const LeasedTensor& tensor : manifest->tensors) {
    if (tensor.arena >= manifest->arenas.size()) return {"manifest", "a tensor in no arena"};
    const ByteRange place = tensor.place;
    const std::uint64_t arena_bytes = manifest->arenas[tensor.arena].size_bytes;
    if (place.offset > arena_bytes || place.size_bytes > arena_bytes - place.offset)
      return {"manifest", "a tensor outside of its arena"};
    if (!has_so_many_bytes(tensor)) return {"manifest", "a tensor of another size than its elements"};
  }
  const auto again = parse_manifest(manifest_text(*manifest));
  const bool is_same_again = again && manifest_text(*again) == manifest_text(*manifest);
  return {"manifest", is_same_again ? "" : "read otherwise than written"};
}

FuzzOutcome fuzz_one(std::span<const std::byte> input) {
  if (input.empty()) return {"nothing"};
  const std::string text = text_of(input.first(input.size() - 1));
  return input.back() == kIsManifest ? judge_manifest(text)
                                     : judge_packet(text, std::to_integer<std::size_t>(input.back()));
}

}  // namespace

const FuzzTarget& serve_target() {
  static constexpr FuzzShare shares[] = {
      {"packet", 5}, {"no packet", 10}, {"manifest", 10}, {"no manifest", 10}};
  static constexpr FuzzTarget target{"serve", shares, make, mutate, fuzz_one};
  return target;
}

}  // namespace stfs::test
