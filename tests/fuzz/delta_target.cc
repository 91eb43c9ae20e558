// Runs `stfs apply` with its arguments and its messages, on files in memory only: the build links the
// system's storage to the storage in this file.
#include <fmt/format.h>

#include <algorithm>
#include <clocale>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>

#include "core/format/header.h"
#include "core/journal/journal_format.h"
#include "tests/fuzz/target.h"
#include "tests/support/archive_mutator.h"
#include "tests/support/memory_storage.h"
#include "tests/support/temporary_directory.h"
#include "tools/cli/verb.h"

namespace stfs::test {
namespace {

using View = std::span<const std::byte>;

/// The bits of an input's last byte.
enum Option : unsigned { kIsDryRun = 1, kIsJson = 2, kIsProcess = 4, kHasNoLocks = 8 };

const std::vector<TensorDraft>& target_tensors() {
  static const std::vector<TensorDraft> drafts = {{"f", "F32", {2, 3}},  {"b", "BF16", {4}},
                                                  {"x", "U8", {3}},      {"zero", "F16", {0, 5}},
                                                  {"scalar", "I64", {}}, {"large", "F8_E4M3", {4099}},
                                                  {"half", "F4", {6}},   {"\u00e9/\n\"", "BOOL", {1, 2}},
                                                  {"", "C64", {1}},      {"last", "U16", {2048}}};
  return drafts;
}

const Bytes& target_bytes() {
  static const Bytes bytes = write_archive(target_tensors(), R"({"format":"pt"})", 0);
  return bytes;
}

/// Returns the file range of a tensor's bytes in the target, or nothing if the target has no tensor with this
/// name, dtype and shape.
std::optional<ByteRange> place_of(const Tensor& wanted) {
  static const std::uint64_t data_offset = kHeaderLengthBytes + number_at(target_bytes(), 0);
  std::uint64_t offset = data_offset;
  for (const TensorDraft& draft : target_tensors()) {
    const ByteRange place{offset, size_of(draft)};
    if (draft.name == wanted.name) {
      const bool is_alike =
          draft.dtype == name_of(wanted.dtype) && std::ranges::equal(draft.shape, wanted.shape);
      return is_alike ? std::optional(place) : std::nullopt;
    }
    offset = place.end();
  }
  return std::nullopt;
}

/// The expected effect of a delta.
struct Due {
  std::string_view what = "no archive";
  bool fits = false;
  std::size_t tensors = 0;
  Bytes target;  // its bytes afterwards, if the delta fits
};

Due due_of(View delta) {
  const auto length =
      header_length(delta.first(std::min<std::size_t>(kHeaderLengthBytes, delta.size())), delta.size());
  if (!length) return {};
  const std::uint64_t data_offset = kHeaderLengthBytes + *length;
  const auto header = parse_header(
      {reinterpret_cast<const char*>(delta.data()) + kHeaderLengthBytes, static_cast<std::size_t>(*length)},
      delta.size() - data_offset);
  if (!header) return {};
  Due due{.what = "fits", .fits = true, .tensors = header->tensors.size(), .target = target_bytes()};
  for (std::uint32_t at = 0; at < header->tensors.size(); ++at) {
    const Tensor tensor = header->tensors[at];
    const auto place = place_of(tensor);
    if (!place || place->size_bytes != tensor.data.size_bytes) {
      due.what = "misfit";
      due.fits = false;
      return due;
    }
    if (place->empty()) continue;
    std::memcpy(due.target.data() + place->offset, delta.data() + data_offset + tensor.data.offset,
                place->size_bytes);
  }
  return due;
}

/// Two empty files for code that checks the kind of a file. Their bytes are in memory.
struct Files {
  TemporaryDirectory directory;
  std::filesystem::path path = std::filesystem::canonical(directory.path());
  std::string target = directory.write("m.safetensors", "");
  std::string delta = directory.write("d.safetensors", "");
  MemoryStorage storage;

  Files() {
    std::setlocale(LC_CTYPE, "C.UTF-8");  // as main does
    target = path / "m.safetensors";
    delta = path / "d.safetensors";
    storage.put(target, target_bytes());
  }
};

Files& files() {
  static Files made;
  return made;
}

struct Run {
  int code = 0;
  std::string out = {};
  std::string err = {};
};

Run run_apply(unsigned options) {
  tools::Arguments arguments = {files().target, files().delta};
  if ((options & kIsDryRun) != 0) arguments.emplace_back("--dry-run");
  if ((options & kIsJson) != 0) arguments.emplace_back("--json");
  if ((options & kIsProcess) != 0) arguments.emplace_back("--durability=process");
  if ((options & kHasNoLocks) != 0) arguments.emplace_back("--nolock");
  std::istringstream in;
  std::ostringstream out;
  std::ostringstream err;
  tools::Streams streams{in, out, err};
  Run run{.code = tools::apply(arguments, streams)};
  run.out = std::move(out).str();
  run.err = std::move(err).str();
  return run;
}

bool is_printable(std::string_view text) {
  return std::ranges::none_of(
      text, [](char c) { return (static_cast<unsigned char>(c) < 0x20 && c != '\n') || c == '\x7f'; });
}

std::string judge_words(const Run& run, const Due& due, unsigned options) {
  constexpr std::string_view kStart = "stfs apply: ";
  if (due.fits && !run.err.empty()) return "it complains of a delta that fits: " + run.err;
  if (!due.fits && (!run.err.starts_with(kStart) || !run.err.ends_with('\n')))
    return "it does not say what is wrong";
  if (!is_printable(run.err)) return "what it says is no text";
  if ((options & kIsJson) == 0) {
    if (!is_printable(run.out)) return "the output is no text";
    return due.fits == run.out.empty() ? "the output is there, or is not, by mistake" : "";
  }
  if (due.what == "no archive") return run.out.empty() ? "" : "there is output without an archive";
  const auto document = nlohmann::json::parse(run.out, nullptr, false);
  if (document.is_discarded()) return "the output is no JSON";
  const bool is_applied = due.fits && (options & kIsDryRun) == 0;
  if (document["applied"] != is_applied || document["problems"].empty() != due.fits)
    return "the JSON is wrong";
  return due.fits && document["tensors"].size() != due.tensors ? "the JSON names other tensors" : "";
}

std::string judge_files(const Due& due, unsigned options) {
  const MemoryStorage& storage = files().storage;
  if (storage.writes(files().delta) != 0) return "the delta was written";
  if (storage.files() != 2) return "a file was left behind";
  const bool is_applied = due.fits && (options & kIsDryRun) == 0;
  if (!is_applied) return storage.writes(files().target) == 0 ? "" : "the target was written";
  return is_same(storage.content(files().target), due.target) ? "" : "the target is not what the delta says";
}

FuzzOutcome fuzz_one(View input) {
  if (input.empty()) return {"nothing"};
  const unsigned options = std::to_integer<unsigned>(input.back());
  const View delta = input.first(input.size() - 1);
  files().storage.put_back(files().target);
  files().storage.put(files().delta, delta);
  const Due due = due_of(delta);
  const Run run = run_apply(options);
  std::string wrong = judge_files(due, options);
  if (wrong.empty() && run.code != (due.fits ? tools::kDone : tools::kFailed)) {
    wrong = fmt::format("exit status {}: {}", run.code, run.err);
  }
  if (wrong.empty()) wrong = judge_words(run, due, options);
  return {due.what, std::move(wrong)};
}

Bytes make(Choices& choices) {
  Bytes input = choices.one_in(50) ? make_noise(choices) : make_archive(target_tensors(), choices);
  unsigned options = 0;
  if (choices.one_in(8)) options |= kIsDryRun;
  if (choices.one_in(8)) options |= kIsJson;
  if (choices.one_in(4)) options |= kIsProcess;
  if (choices.one_in(4)) options |= kHasNoLocks;
  input.push_back(static_cast<std::byte>(options));
  return input;
}

void mutate(Bytes& input, Choices& choices) {
  if (input.size() < 2) {
    input = make(choices);
    return;
  }
  const std::byte options = choices.one_in(8) ? static_cast<std::byte>(choices.below(16)) : input.back();
  input.pop_back();
  static constexpr std::string_view kOther =
      R"({"f":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},"b":null})";
  mutate_archive(input, kOther, choices);
  input.push_back(options);
}

}  // namespace

const FuzzTarget& delta_target() {
  static constexpr FuzzShare shares[] = {
      {"no archive", 10},
      {"misfit", 10},
      {"fits", 10},
  };
  static constexpr FuzzTarget target{"delta", shares, make, mutate, fuzz_one};
  return target;
}

// These functions replace the program's functions (tests/CMakeLists.txt: --wrap). One returns the storage.
// The second one returns a journal's id, because a random id takes longer than the rest of a commit.
Storage& storage_in_memory() __asm__("__wrap__ZN4stfs14system_storageEv");
Storage& storage_in_memory() {
  return files().storage;
}
JournalId id_of_zeros() __asm__("__wrap__ZN4stfs9JournalId6randomEv");
JournalId id_of_zeros() {
  return {};
}

}  // namespace stfs::test
