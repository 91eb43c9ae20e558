// A thread takes a shard, encodes its tensors straight into the file, and syncs it while others go on.
#include "tools/sync/version_writer.h"

#include <fmt/format.h>

#include <cerrno>
#include <chrono>
#include <map>
#include <optional>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "core/format/json_string.h"
#include "tools/compare/changed_files.h"
#include "tools/sync/diff_encoder.h"
#include "tools/sync/mounted_model.h"
#include "tools/sync/version_directory.h"
#include "tools/sync/version_name.h"
#include "tools/sync/version_plan.h"
#include "tools/sync/version_shard.h"
#include "tools/text/json_document.h"

namespace stfs::sync {
namespace {

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
    if (auto ok = check(); !ok) return pass_on(std::move(ok));
    auto pairs = paired_tensors(models_);
    if (!pairs) return pass_on(std::move(pairs));
    if (auto ok = check_sizes(*pairs); !ok) return pass_on(std::move(ok));
    written_.tensors = pairs->size();
    for (const tools::TensorPair& pair : *pairs) written_.tensor_bytes += size_of(pair);
    if (auto ok = leave_out_unchanged(*pairs); !ok) return pass_on(std::move(ok));
    written_.read_tensors = pairs->size();
    plan_ = plan_shards(models_.b, std::move(*pairs), options_.threads);
    auto directory = VersionDirectory::create(published, options_.version, *options_.storage);
    if (!directory) return pass_on(std::move(directory));
    written_.path = directory->path();
    mode_ = directory->file_mode();
    auto done = directory->told(write_shards(*directory));
    if (done) done = check_unchanged();
    if (done) done = finish(*directory);
    shards_.clear();  // removes their files, before the directory is removed
    if (!done) return pass_on(std::move(done));
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
      if (auto ok = model->check_whole("a published version"); !ok) return ok;
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

  /// Looks at the mount, if B is one.
  Result<void> leave_out_unchanged(std::vector<tools::TensorPair>& pairs) {
    if (!options_.mount) return {};
    auto mounted = MountedModel::look(*options_.mount);
    if (!mounted) return pass_on(std::move(mounted));
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
    auto shard = VersionShard::create(directory.shard_path(at + 1, plan_.size()), planned.header_bytes, mode_,
                                      directory.storage());
    if (!shard) return pass_on(std::move(shard));
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
    if (shard->is_empty()) return {};
    if (auto ok = shard->settle(); !ok) return ok;
    shards_[at].emplace(std::move(*shard));
    return {};
  }

  /// Reads the tensor again as often as it has changed meanwhile.
  Result<EncodedDiff> encode_mounted(DiffEncoder& encoder, const tools::TensorPair& pair, VersionShard& shard,
                                     const DiffEncoder::Sink& sink) const {
    constexpr int kMostReadings = 32;
    constexpr std::chrono::milliseconds kPause{20};
    const std::string_view name = models_.b.tensors()[pair.b].name;
    for (int reading = 1;; ++reading) {
      auto tensor = mounted_->open(name, size_of(pair));
      if (!tensor) return pass_on(std::move(tensor));
      auto diff = encoder.encode(
          {.size_bytes = size_of(pair),
           .before = reader_of(models_.a, pair.a),
           .after = [&](std::uint64_t offset, std::span<std::byte> to) { return tensor->read(offset, to); }},
          sink, work_);
      // An encoder that reads three times may see itself that the bytes have changed.
      const bool has_changed = !diff && diff.error().code == ErrorCode::ArchiveChanged;
      if (!diff && !has_changed) return diff;
      auto whole = has_changed ? Result<bool>(false) : tensor->is_whole();
      if (!whole) return pass_on(std::move(whole));
      if (*whole) return diff;
      if (auto dropped = shard.drop_entry(); !dropped) return pass_on(std::move(dropped));
      work_.take_back(size_of(pair));
      if (reading == kMostReadings) {
        return fail(
            ErrorCode::Busy, EBUSY,
            fmt::format("has changed during each of {} readings: publish it when fewer programs write",
                        kMostReadings));
      }
      std::this_thread::sleep_for(kPause);
    }
  }

  /// What was read of a file that somebody else has changed meanwhile may be old in part and new in part.
  Result<void> check_unchanged() const {
    for (const Model* model : {&models_.a, &models_.b}) {
      if (mounted_ && model == &models_.b) continue;  // each tensor was checked
      if (auto unchanged = tools::check_unchanged(*model); !unchanged) return unchanged;
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
    return directory.finish(shards, index_of(directory, shards), mode_);
  }

  [[nodiscard]] std::string index_of(const VersionDirectory& directory,
                                     std::span<const VersionShard> shards) const {
    std::map<std::string_view, std::string> shard_of;
    for (std::size_t at = 0; at < shards.size(); ++at) {
      const std::string file = directory.shard_path(at + 1, shards.size()).filename();
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
  mode_t mode_ = 0;
  std::optional<MountedModel> mounted_;
  WrittenVersion written_{};
  std::vector<PlannedShard> plan_;
  std::vector<std::optional<VersionShard>> shards_;  // each is written by one job
};

}  // namespace

Result<WrittenVersion> publish_version(const tools::ModelPair& models, const std::filesystem::path& published,
                                       const PublishOptions& options) {
  Work unwatched;
  Work& work = options.work != nullptr ? *options.work : unwatched;
  return guard_memory([&] { return Publisher(models, options, work).run(published); });
}

}  // namespace stfs::sync
