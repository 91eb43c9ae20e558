// An index as hostile input. Checks the promises of core/model/model_index.h and core/model/model.h for any
// text, with a second, simple reader, and a storage that checks every requested path.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <map>
#include <optional>
#include <set>

#include "core/base/utf8.h"
#include "core/format/json_string.h"
#include "core/model/model.h"
#include "core/model/model_index.h"
#include "tests/fuzz/guarded_storage.h"
#include "tests/fuzz/index_oracle.h"
#include "tests/fuzz/target.h"
#include "tests/support/archive_mutator.h"
#include "tools/sync/version_format.h"

namespace stfs::test {
namespace {

using namespace std::string_view_literals;

/// Maps each tensor of the index to the shard that serves it. Nothing: no shard can serve the tensor.
using Served = std::map<std::string, std::optional<std::string>>;

Served due_of(const WeightMap& map) {
  std::map<std::string, std::set<std::string>> holders;
  for (const auto& [tensor, shard] : map) {
    const auto whole = whole_shards().find(shard);
    if (whole == whole_shards().end()) continue;
    for (const TensorDraft& draft : whole->second) holders[draft.name].insert(shard);
  }
  Served served;
  for (const auto& [tensor, shards] : holders) {
    const auto named = map.find(tensor);
    if (named != map.end() && shards.contains(named->second)) {
      served[tensor] = named->second;
    } else if (shards.size() == 1) {
      served[tensor] = *shards.begin();
    } else if (named != map.end()) {
      served[tensor] = std::nullopt;
    }
  }
  for (const auto& [tensor, shard] : map) served.try_emplace(tensor, std::nullopt);
  return served;
}

// ---- the judges ----

std::string judge_refusal(const Error& error) {
  constexpr std::size_t kLongestMessage = 2000;
  if (error.message.empty() || error.message.size() > kLongestMessage)
    return fmt::format("a message of {} bytes", error.message.size());
  return has_control(error.message) || !is_utf8(error.message) ? "a message that is no text" : "";
}

std::string judge_index(const ModelIndex& index, const WeightMap& due) {
  if (index.size() != due.size()) return fmt::format("{} tensors, {} are due", index.size(), due.size());
  std::uint32_t at = 0;
  for (const auto& [tensor, shard] : due) {
    const ModelIndex::Entry entry = index[at++];
    if (entry.tensor != tensor || index.shards().at(entry.shard) != shard ||
        index.find(tensor) != entry.shard)
      return fmt::format("tensor {} is read as another one", in_quotes(tensor));
  }
  return "";
}

std::string judge_model(const Model& model, const Served& due, const GuardedStorage& storage) {
  std::size_t found = 0;
  std::vector<std::byte> scratch;
  for (const auto& [tensor, shard] : due) {
    const auto at = model.tensors().find(tensor);
    if (at.has_value() != shard.has_value())
      return fmt::format("tensor {}: served or not", in_quotes(tensor));
    if (!at) continue;
    ++found;
    const ArchiveReader& archive = model.archive_of(*at);
    if (archive.path() != in_directory(*shard))
      return fmt::format("tensor {}: another shard", in_quotes(tensor));
    const auto bytes = archive.read(model.file_range(*at), scratch);
    const ByteRange place = model.file_range(*at);
    if (!bytes || !is_same(*bytes, storage.content(*shard).subspan(place.offset, place.size_bytes)))
      return fmt::format("tensor {}: other bytes", in_quotes(tensor));
  }
  if (found != model.tensors().size()) return "more tensors than there are";
  if (found + model.unserved().size() != due.size()) return "other tensors can't be served";
  for (const Model::Unserved& tensor : model.unserved()) {
    const auto known = due.find(tensor.name);
    if (known == due.end() || known->second) return "another tensor can't be served";
    if (model.why_unserved(tensor).empty()) return "a tensor can't be served for no reason";
  }
  return "";
}

std::string judge_strict(const Model& model, const ModelOptions& options) {
  ModelOptions strict = options;
  strict.is_strict = true;
  const bool is_at_odds = std::ranges::any_of(model.problems(), [](const ModelProblem& problem) {
    return problem.kind != ModelProblem::Kind::MetadataConflict;
  });
  return Model::open(kIndex, strict).has_value() == is_at_odds ? "strict is not strict" : "";
}

FuzzOutcome judge(std::span<const std::byte> input, GuardedStorage& storage) {
  const std::string_view text(reinterpret_cast<const char*>(input.data()), input.size());
  bool is_sure = true;
  const auto due = read_index(text, is_sure);
  const auto index = parse_model_index(text);
  if (is_sure && index.has_value() != due.has_value()) {
    return {"parsed", index ? "accepted, and must not be" : "refused: " + index.error().message};
  }
  storage.put_index(input);
  const ModelOptions options{.storage = &storage, .io = Io::Pread};
  const auto model = Model::open(kIndex, options);
  if (!index) {
    if (model) return {"refused", "a model without an index"};
    if (index.error().errno_value != EINVAL) return {"refused", "with another errno than EINVAL"};
    const bool is_way_out = index.error().message.find("leads out") != std::string::npos;
    return {is_way_out ? "way out" : "refused", judge_refusal(index.error())};
  }
  if (!due) return {"not sure"};
  if (std::string wrong = judge_index(*index, *due); !wrong.empty()) return {"parsed", std::move(wrong)};
  const Served served = due_of(*due);
  const bool is_usable =
      std::ranges::any_of(*due, [](const auto& entry) { return whole_shards().contains(entry.second); });
  if (model.has_value() != is_usable) return {"opened", is_usable ? model.error().message : "of no shard"};
  if (!model) return {"no shard", judge_refusal(model.error())};
  std::string wrong = judge_model(**model, served, storage);
  if (wrong.empty()) wrong = judge_strict(**model, options);
  return {(*model)->problems().empty() ? "whole" : "at odds", std::move(wrong)};
}

/// Tools read the metadata of a directory first if it may be a published version (is_version_directory()).
std::string judge_metadata(std::string_view text) {
  const auto metadata = sync::parse_version_metadata(text);
  if (metadata) return "";
  const int why = metadata.error().errno_value;
  return why == EINVAL || why == EOPNOTSUPP ? judge_refusal(metadata.error()) : "metadata: another errno";
}

FuzzOutcome fuzz_one(std::span<const std::byte> input) {
  static GuardedStorage storage;
  FuzzOutcome outcome = judge(input, storage);
  if (outcome.wrong.empty())
    outcome.wrong = judge_metadata({reinterpret_cast<const char*>(input.data()), input.size()});
  const std::string trespass = storage.take_trespass();
  if (!trespass.empty()) outcome.wrong = trespass;
  return outcome;
}

// ---- what is tried ----

// The names as they are in the text, with their escapes.
constexpr std::array kTensors = {
    "x"sv,      "both"sv, "\\u00e9/\\n\\\""sv, "u"sv,          "z"sv,  ""sv,
    "secret"sv, "gone"sv, "__metadata__"sv,    "weight_map"sv, "x "sv, "\\u0078"sv};
constexpr std::array kBadShards = {"broken.safetensors"sv,
                                   "gone.safetensors"sv,
                                   "../secret.safetensors"sv,
                                   "/nonexistent/secret.safetensors"sv,
                                   "sub/secret.safetensors"sv,
                                   "./a.safetensors"sv,
                                   "../model/a.safetensors"sv,
                                   "\\u002e\\u002e\\u002fsecret.safetensors"sv,
                                   "..\\/secret.safetensors"sv,
                                   "a.safetensors\\u0000"sv,
                                   "\\u0000a.safetensors"sv,
                                   "..\\\\secret.safetensors"sv,
                                   "a.safetensors/"sv,
                                   "..safetensors"sv,
                                   ".safetensors"sv,
                                   ""sv,
                                   ".."sv,
                                   "A.safetensors"sv,
                                   "a.safetensors "sv,
                                   "a\\n.safetensors"sv,
                                   "\\u001b]0;a.safetensors"sv,
                                   "a\x7f.safetensors"sv,
                                   "\\u0061.safetensors"sv,
                                   "model.safetensors.index.json"sv,
                                   "file:///nonexistent/secret.safetensors"sv,
                                   "~/secret.safetensors"sv,
                                   "%2e%2e%2fsecret.safetensors"sv};

std::string any_shard(Choices& choices) {
  if (!choices.one_in(10)) return fmt::format("{}.safetensors", "aaabbbbc"[choices.below(8)]);
  if (choices.one_in(20)) return std::string(240 + choices.below(20), 'n') + ".safetensors";
  return std::string(one_of(choices, kBadShards));
}

/// Returns the index that a writer of the shards makes.
std::string true_index() {
  return R"({"metadata":{"total_size":72},"weight_map":{"x":"a.safetensors","both":"a.safetensors",)"
         R"("\u00e9/\n\"":"a.safetensors","u":"b.safetensors","z":"b.safetensors","":"b.safetensors"}})";
}

std::string any_index(Choices& choices) {
  if (choices.one_in(4)) return true_index();
  std::string map;
  for (std::size_t left = choices.below(8); left > 0; --left) {
    map +=
        fmt::format(R"({}"{}":"{}")", map.empty() ? "" : ",", one_of(choices, kTensors), any_shard(choices));
  }
  static constexpr std::array kMetadata = {R"("metadata":{"total_size":"72"},)"sv,
                                           R"("metadata":{"a":[{}],"total_size":1e9},"weight_map":{},)"sv,
                                           R"("metadata":null,)"sv, R"("metadata":{"total_size":72},)"sv,
                                           R"("metadata":{"version":"000002","base_version":"000001",)"
                                           R"("delta_encoding":"xor","compression_format":"zstd",)"
                                           R"("checksum_format":"adler32"},)"sv};
  const std::string_view metadata = choices.one_in(4) ? one_of(choices, kMetadata) : ""sv;
  return fmt::format("{{{}\"weight_map\":{{{}}}}}", metadata, map);
}

Bytes bytes_of(std::string_view text) {
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

Bytes make(Choices& choices) {
  if (choices.one_in(40)) return make_noise(choices);
  std::string text = any_index(choices);
  if (!choices.one_in(3)) return bytes_of(text);
  const std::string other = any_index(choices);
  for (std::size_t left = 1 + choices.below(3); left > 0; --left) mutate_json(text, other, choices);
  return bytes_of(text);
}

void mutate(Bytes& input, Choices& choices) {
  std::string text(reinterpret_cast<const char*>(input.data()), input.size());
  mutate_json(text, true_index(), choices);
  input = bytes_of(text);
}

}  // namespace

const FuzzTarget& index_target() {
  static constexpr FuzzShare shares[] = {
      // Each outcome of an index is frequent enough.
      {"whole", 10}, {"at odds", 10}, {"refused", 10}, {"way out", 2}, {"no shard", 1}, {"not sure", 0, 1},
  };
  static constexpr FuzzTarget target{"index", shares, make, mutate, fuzz_one};
  return target;
}

}  // namespace stfs::test
