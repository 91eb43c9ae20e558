// A thread takes a shard, encodes its tensors directly into the file, and syncs it while other threads
// continue.
#include "tools/sync/version_writer.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <functional>
#include <map>
#include <optional>
#include <queue>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "core/format/json_string.h"
#include "tools/compare/changed_files.h"
#include "tools/compare/model_difference.h"
#include "tools/compare/name_globs.h"
#include "tools/sync/diff_encoder.h"
#include "tools/sync/mounted_model.h"
#include "tools/sync/version_directory.h"
#include "tools/text/json_document.h"
#include "tools/text/quantity.h"

namespace stfs::sync {
namespace {

constexpr std::uint64_t kLeastShardBytes = 16U << 20U;
constexpr std::uint64_t kShardsPerThread = 4;  // so that threads end at about the same time
constexpr std::uint64_t kMostHeaderBytes = 8U << 20U;

std::string described(const Tensor& tensor) {
  return fmt::format("{} {}", name_of(tensor.dtype), shape_text(tensor.shape));
}

std::string described(const tools::ModelPair& models, const tools::HeaderDifference& difference) {
  const auto name_in = [](const Model& model, std::uint32_t at) {
    return in_quotes(model.tensors()[at].name);
  };
  if (!difference.b) return name_in(models.a, *difference.a) + " is missing in NEW";
  if (!difference.a) return name_in(models.b, *difference.b) + " is missing in OLD";
  return fmt::format("{} is {} in OLD and {} in NEW", name_in(models.a, *difference.a),
                     described(models.a.tensors()[*difference.a]),
                     described(models.b.tensors()[*difference.b]));
}

ReadPiece reader_of(const Model& model, std::uint32_t position) {
  const ArchiveReader* archive = &model.archive_of(position);
  return [archive, from = model.file_range(position).offset](std::uint64_t offset, std::span<std::byte> to) {
    return archive->read_through(to, from + offset);
  };
}

class Publisher {
 public:
  Publisher(const tools::ModelPair& models, const PublishOptions& options, Work& work)
      : models_(models), options_(options), work_(work) {}

  Result<WrittenVersion> run(const std::filesystem::path& published) {
    RETURN_IF_ERROR(check());
    auto pairs = paired_tensors(models_);
    RETURN_IF_ERROR(pairs);
    RETURN_IF_ERROR(check_sizes(*pairs));
    written_.tensors = pairs->size();
    for (const tools::TensorPair& pair : *pairs) written_.tensor_bytes += size_of(pair);
    RETURN_IF_ERROR(leave_out_unchanged(*pairs));
    written_.read_tensors = pairs->size();
    plan_ = plan_shards(models_.b, std::move(*pairs), options_.threads);
    auto directory = VersionDirectory::create(published, options_.version, *options_.storage);
    RETURN_IF_ERROR(directory);
    for (const Model* model : {&models_.a, &models_.b}) {
      RETURN_IF_ERROR((*directory)->check_source(*model));
    }
    written_.path = (*directory)->path();
    auto done = (*directory)->told(write_to(**directory));
    shards_.clear();  // removes their files, before the directory is removed
    RETURN_IF_ERROR(done);
    return written_;
  }

 private:
  Result<void> check() const {
    if (options_.base_version >= options_.version) {
      return fail(ErrorCode::InvalidArgument, EINVAL,
                  fmt::format("the base version {} must be smaller than the version {}",
                              options_.base_version, options_.version));
    }
    for (const Model* model : {&models_.a, &models_.b}) {
      RETURN_IF_ERROR(model->check_whole("a published version"));
    }
    return {};
  }

  Result<void> check_sizes(const std::vector<tools::TensorPair>& pairs) const {
    if (options_.encoding == DiffEncoding::Xor) return {};
    for (const tools::TensorPair& pair : pairs) {
      const Tensor tensor = models_.b.tensors()[pair.b];
      if (tensor.data.size_bytes <= kMostOverwriteBytes) continue;
      return fail(ErrorCode::InvalidArgument, EFBIG,
                  fmt::format("tensor {} has {} bytes, and overwrite reaches only {}: use xor",
                              in_quotes(tensor.name), tensor.data.size_bytes, kMostOverwriteBytes));
    }
    return {};
  }

  [[nodiscard]] std::uint64_t size_of(const tools::TensorPair& pair) const {
    return models_.b.file_range(pair.b).size_bytes;
  }

  /// Asks the mount which tensors have changed, if B is one.
  Result<void> leave_out_unchanged(std::vector<tools::TensorPair>& pairs) {
    if (!options_.mount) return {};
    auto mounted = MountedModel::look(*options_.mount, models_.b);
    RETURN_IF_ERROR(mounted);
    mounted_ = std::move(*mounted);
    written_.generation = mounted_->generation();
    if (!options_.since) return {};
    if (*options_.since > mounted_->generation()) {
      return fail(
          ErrorCode::InvalidArgument, EINVAL,
          fmt::format("{}: has generation {}, which is before {}: leave --since out to compare all tensors",
                      options_.mount->string(), mounted_->generation(), *options_.since));
    }
    std::erase_if(pairs, [&](const tools::TensorPair& pair) {
      return !mounted_->may_have_changed(models_.b.tensors()[pair.b].name, *options_.since).value_or(true);
    });
    return {};
  }

  Result<void> write_to(VersionDirectory& directory) {
    auto done = write_shards(directory);
    if (done) done = check_unchanged();
    if (done) done = finish(directory);
    return done;
  }

  Result<void> write_shards(const VersionDirectory& directory) {
    shards_.resize(plan_.size());
    std::uint64_t total_bytes = 0;
    for (const PlannedShard& shard : plan_) {
      for (const tools::TensorPair& pair : shard.tensors) total_bytes += size_of(pair);
    }
    work_.begin(total_bytes);
    const auto done = run_watched(plan_.size(), options_.threads, work_,
                                  [&](std::size_t at, unsigned) { return write_shard(directory, at); });
    if (!done || !work_.is_stopped()) return done;
    return fail(ErrorCode::System, EINTR, directory.path().native() + ": interrupted, nothing is left");
  }

  Result<void> write_shard(const VersionDirectory& directory, std::size_t at) {
    const PlannedShard& planned = plan_[at];
    auto shard = directory.new_shard(at + 1, plan_.size(), planned.header_bytes);
    RETURN_IF_ERROR(shard);
    DiffEncoder encoder(options_.encoding, options_.checksum_format);
    const DiffEncoder::Sink sink = [&](std::span<const std::byte> bytes) { return shard->append(bytes); };
    for (const tools::TensorPair& pair : planned.tensors) {
      if (!work_.goes_on()) return {};
      const std::string_view name = models_.b.tensors()[pair.b].name;
      auto diff = mounted_ ? encode_mounted(encoder, pair, *shard, sink)
                           : encoder.encode({.size_bytes = size_of(pair),
                                             .before = reader_of(models_.a, pair.a),
                                             .after = reader_of(models_.b, pair.b)},
                                            sink, work_);
      if (!diff) return tl::unexpected(std::move(diff).error().within("tensor " + in_quotes(name)));
      if (diff->is_changed) shard->end_entry(name, diff->checksum);
    }
    if (shard->entries().empty()) return {};
    RETURN_IF_ERROR(shard->settle());
    shards_[at].emplace(std::move(*shard));
    return {};
  }

  /// Reads the tensor again each time that it has changed during the reading.
  Result<EncodedDiff> encode_mounted(DiffEncoder& encoder, const tools::TensorPair& pair, VersionShard& shard,
                                     const DiffEncoder::Sink& sink) const {
    constexpr int kMostReadings = 32;
    constexpr std::chrono::milliseconds kRetryPause{20};
    const std::string_view name = models_.b.tensors()[pair.b].name;
    for (int reading = 1;; ++reading) {
      auto tensor = mounted_->open(name, size_of(pair));
      RETURN_IF_ERROR(tensor);
      auto diff = encoder.encode(
          {.size_bytes = size_of(pair),
           .before = reader_of(models_.a, pair.a),
           .after = [&](std::uint64_t offset, std::span<std::byte> to) { return tensor->read(offset, to); }},
          sink, work_);
      // An encoder that reads three times may itself find that the bytes have changed.
      const bool has_changed = !diff && diff.error().code == ErrorCode::ArchiveChanged;
      if (!diff && !has_changed) return diff;
      auto whole = has_changed ? Result<bool>(false) : tensor->is_whole();
      RETURN_IF_ERROR(whole);
      if (*whole) return diff;
      RETURN_IF_ERROR(shard.drop_entry());
      work_.take_back(encoder.counted_bytes());
      if (reading == kMostReadings) {
        return fail(
            ErrorCode::Busy, EBUSY,
            fmt::format("has changed during each of {} readings: publish it when fewer programs write",
                        kMostReadings));
      }
      std::this_thread::sleep_for(kRetryPause);
    }
  }

  /// Checks that no other program has changed a file: the bytes that were read may be old in part and new in
  /// part.
  Result<void> check_unchanged() const {
    for (const Model* model : {&models_.a, &models_.b}) {
      if (mounted_ && model == &models_.b) continue;  // each tensor was checked
      RETURN_IF_ERROR(tools::check_unchanged(*model));
    }
    return {};
  }

  Result<void> finish(VersionDirectory& directory) {
    std::vector<VersionShard> shards;
    for (std::optional<VersionShard>& shard : shards_) {
      if (shard) shards.push_back(std::move(*shard));
    }
    for (const VersionShard& shard : shards) {
      written_.changed_tensors += shard.entries().size();
      written_.diff_bytes += shard.data_bytes();
    }
    return directory.finish(shards, index_of(shards));
  }

  [[nodiscard]] std::string index_of(std::span<const VersionShard> shards) const {
    std::map<std::string_view, std::string> shard_of;
    for (std::size_t at = 0; at < shards.size(); ++at) {
      const std::string file = VersionDirectory::shard_name(at + 1, shards.size());
      for (const TensorSpec& entry : shards[at].entries()) shard_of.emplace(entry.name, file);
    }
    tools::Json document;
    document["metadata"] = {{"version", version_text(options_.version)},
                            {"base_version", version_text(options_.base_version)},
                            {"delta_encoding", name_of(options_.encoding)},
                            {"compression_format", "zstd"},
                            {"checksum_format", name_of(options_.checksum_format)}};
    tools::Json names = tools::Json::object();
    for (auto& [name, file] : shard_of) names[std::string(name)] = std::move(file);
    document["weight_map"] = std::move(names);
    std::ostringstream text;
    tools::write_json(document, text);
    return std::move(text).str();
  }

  const tools::ModelPair& models_;
  const PublishOptions& options_;
  Work& work_;
  std::optional<MountedModel> mounted_;
  WrittenVersion written_{};
  std::vector<PlannedShard> plan_;
  std::vector<std::optional<VersionShard>> shards_;  // one job writes each
};

}  // namespace

Result<std::vector<tools::TensorPair>> paired_tensors(const tools::ModelPair& models) {
  constexpr std::size_t kMostNamed = 3;
  tools::NameGlobs all({});
  auto difference = tools::difference_of({models.a}, {models.b}, all);
  if (difference.tensors.empty()) return std::move(difference.pairs);
  std::string text;
  for (std::size_t at = 0; at < std::min(kMostNamed, difference.tensors.size()); ++at) {
    text += (at == 0 ? "" : "; ") + described(models, difference.tensors[at]);
  }
  if (difference.tensors.size() > kMostNamed) {
    text += fmt::format("; and {} more", tools::counted(difference.tensors.size() - kMostNamed, "tensor"));
  }
  return fail(ErrorCode::InvalidArgument, EINVAL,
              "a version of diffs needs the same names, dtypes and shapes in both models: " + text);
}

std::vector<PlannedShard> plan_shards(const Model& model, std::vector<tools::TensorPair> pairs,
                                      std::uint64_t threads) {
  const auto size_of = [&](const tools::TensorPair& pair) { return model.tensors()[pair.b].data.size_bytes; };
  std::ranges::stable_sort(pairs, std::ranges::greater(), size_of);
  std::uint64_t total_bytes = 0;
  for (const tools::TensorPair& pair : pairs) total_bytes += size_of(pair);
  std::vector<PlannedShard> shards(
      std::clamp<std::uint64_t>(total_bytes / kLeastShardBytes, 1, kShardsPerThread * threads));

  // The largest tensor that is left goes to the smallest shard.
  using Place = std::pair<std::uint64_t, std::size_t>;  // the size of a shard, and its position
  std::priority_queue<Place, std::vector<Place>, std::greater<>> smallest;
  for (std::size_t at = 0; at < shards.size(); ++at) smallest.emplace(0, at);
  for (const tools::TensorPair& pair : pairs) {
    const std::uint64_t header_bytes = most_header_bytes(model.tensors()[pair.b].name);
    const auto is_full = [&](const Place& place) {
      return shards[place.second].header_bytes + header_bytes > kMostHeaderBytes;
    };
    while (!smallest.empty() && is_full(smallest.top())) smallest.pop();
    if (smallest.empty()) {
      smallest.emplace(0, shards.size());
      shards.emplace_back();
    }
    const std::size_t at = smallest.top().second;
    smallest.pop();
    shards[at].tensors.push_back(pair);
    shards[at].size_bytes += size_of(pair);
    shards[at].header_bytes += header_bytes;
    smallest.emplace(shards[at].size_bytes, at);
  }
  std::ranges::stable_sort(shards, std::ranges::greater(), &PlannedShard::size_bytes);
  return shards;
}

Result<WrittenVersion> publish_version(const tools::ModelPair& models, const std::filesystem::path& published,
                                       const PublishOptions& options) {
  Work unwatched;
  Work& work = options.work != nullptr ? *options.work : unwatched;
  return guard_memory([&] { return Publisher(models, options, work).run(published); });
}

}  // namespace stfs::sync
