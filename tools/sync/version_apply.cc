// Checks the names, locks, checks every tensor, commits.
#include "tools/sync/version_apply.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/base/mutex.h"
#include "core/base/parallel.h"
#include "core/model/transaction_group.h"
#include "core/storage/trusted_links.h"
#include "tools/sync/diff_decoder.h"
#include "tools/text/printable.h"

namespace stfs::sync {
namespace {

tl::unexpected<Error> interrupted() {
  return fail(ErrorCode::System, EINTR, "interrupted: not changed");
}

/// Makes the patches of one tensor after the other. Reads pieces that stay in the processor's cache while
/// they are decoded and hashed. Used by one thread: the patcher keeps its memory from one tensor to the next.
class TensorPatcher {
 public:
  /// All arguments must outlive the patcher.
  /// @param work  counts the bytes of the model that are read.
  /// @param transaction  has begun patches of the tensors. Null: only checks are made.
  TensorPatcher(const Model& model, const PublishedVersion& version, TransactionGroup* transaction,
                Work& work)
      : model_(model), version_(version), transaction_(transaction), work_(work) {}

  /// Stages a tensor's new bytes, once they have their checksum.
  /// @param position  of the tensor in the model.
  /// @return true if the tensor changes; false if the present bytes are the new ones.
  Result<bool> patch(const PublishedTensor& tensor, std::uint32_t position) {
    patches_.ranges.clear();
    checksum_.reset();
    bool has_changed = false;
    auto made = make_patches(tensor, position, has_changed);
    if (!made && made.error().code != ErrorCode::InvalidArgument) return pass_on(std::move(made));
    if (made && (version_.is_full() || is_same_checksum(checksum_->hex(), tensor.checksum))) {
      if (!has_changed || transaction_ == nullptr) return has_changed;
      RETURN_IF_ERROR(transaction_->of_shard(model_.place(position).shard).keep_patches(patches_));
      return true;
    }
    auto done = is_done(tensor, position);
    RETURN_IF_ERROR(done);
    if (*done) return false;
    RETURN_IF_ERROR(made);
    return damaged(
        "the present bytes with the diff have the checksum {}, expected {}: the diff is of another "
        "base, or damaged",
        checksum_->hex(), tensor.checksum);
  }

 private:
  static constexpr std::uint64_t kPatchBytes = 1 << 20;      // of one patch
  static constexpr std::uint64_t kDecodedBytes = 128 << 10;  // decoded at a time

  Result<void> make_patches(const PublishedTensor& tensor, std::uint32_t position, bool& has_changed) {
    const ByteRange range = model_.file_range(position);
    if (!version_.is_full()) {
      checksum_.emplace(version_.checksum_format());
      RETURN_IF_ERROR(decoder_.start(version_.encoding(), version_.diff(tensor), range.size_bytes));
    }
    for (std::uint64_t at = range.offset; at < range.end();) {
      // A block in two patches would be written twice.
      const std::uint64_t end = std::min(round_down_to_block(at) + kPatchBytes, range.end());
      if (auto staged = stage(tensor, position, {at, end - at}, has_changed); !staged) return staged;
      at = end;
    }
    return version_.is_full() ? Result<void>{} : decoder_.finish();
  }

  Result<void> stage(const PublishedTensor& tensor, std::uint32_t position, ByteRange place,
                     bool& has_changed) {
    before_.resize(static_cast<std::size_t>(place.size_bytes));
    after_.resize(before_.size());
    bool differs = false;
    const std::uint64_t begin = place.offset - model_.file_range(position).offset;
    RETURN_IF_ERROR(model_.archive_of(position).read_through(before_, place.offset));
    if (!work_.advance(place.size_bytes)) return interrupted();
    for (std::uint64_t at = 0; at < place.size_bytes; at += kDecodedBytes) {
      const std::size_t size = static_cast<std::size_t>(std::min(kDecodedBytes, place.size_bytes - at));
      const auto old_bytes = std::span(before_).subspan(static_cast<std::size_t>(at), size);
      const auto new_bytes = std::span(after_).subspan(static_cast<std::size_t>(at), size);
      std::ranges::copy(old_bytes, new_bytes.begin());
      auto made = make_new(tensor, new_bytes, begin + at);
      RETURN_IF_ERROR(made);
      if (checksum_) checksum_->update(new_bytes);
      differs = differs || *made;
    }
    has_changed = has_changed || differs;
    if (!differs || transaction_ == nullptr) return {};
    return transaction_->of_shard(model_.place(position).shard)
        .patch(place.offset, before_, after_, patches_);
  }

  /// Turns the next piece of old bytes into new bytes. @return true if they differ.
  Result<bool> make_new(const PublishedTensor& tensor, std::span<std::byte> piece, std::uint64_t offset) {
    if (!version_.is_full()) return decoder_.apply(piece);
    const Shard& shard = version_.shards()[tensor.shard];
    const std::vector<std::byte> old(piece.begin(), piece.end());
    RETURN_IF_ERROR(shard.archive->read_through(piece, tensor.file_range.offset + offset));
    return std::memcmp(old.data(), piece.data(), piece.size()) != 0;
  }

  /// Returns true if the tensor has its new checksum already.
  Result<bool> is_done(const PublishedTensor& tensor, std::uint32_t position) {
    if (version_.is_full()) return false;
    const ByteRange range = model_.file_range(position);
    ChecksumStream present(version_.checksum_format());
    before_.resize(static_cast<std::size_t>(std::min(kPatchBytes, range.size_bytes)));
    for (std::uint64_t at = 0; at < range.size_bytes; at += before_.size()) {
      const auto piece = std::span(before_).first(
          static_cast<std::size_t>(std::min<std::uint64_t>(before_.size(), range.size_bytes - at)));
      RETURN_IF_ERROR(model_.archive_of(position).read_through(piece, range.offset + at));
      present.update(piece);
      if (!work_.goes_on()) return interrupted();
    }
    return is_same_checksum(present.hex(), tensor.checksum);
  }

  const Model& model_;
  const PublishedVersion& version_;
  TransactionGroup* const transaction_;
  Work& work_;
  DiffDecoder decoder_;
  std::optional<ChecksumStream> checksum_;
  std::vector<std::byte> before_;
  std::vector<std::byte> after_;
  Transaction::Patches patches_;
};

/// A tensor of a version, and its position in the model.
struct Step {
  const PublishedTensor* tensor = nullptr;
  std::uint32_t position = 0;
};

/// Returns the reason why the tensor of a full version can't replace the model's tensor; empty if it can.
std::string full_mismatch(const PublishedVersion& version, const PublishedTensor& tensor,
                          const Tensor& ours) {
  const TensorIndex& theirs = version.shards()[tensor.shard].archive->tensors();
  const Tensor it = theirs[*theirs.find(tensor.name)];
  if (it.dtype == ours.dtype && std::ranges::equal(it.shape, ours.shape)) return {};
  return fmt::format("{}: it is {} {}, and the model's {} {}", tools::printable_name(tensor.name),
                     name_of(it.dtype), shape_text(it.shape), name_of(ours.dtype), shape_text(ours.shape));
}

class VersionApply {
 public:
  VersionApply(const Model& model, const PublishedVersion& version, SyncState& state,
               const VersionApplyOptions& options, Work& work)
      : model_(model),
        version_(version),
        state_(state),
        options_(options),
        work_(work),
        transaction_(model) {}

  Result<VersionOutcome> run() {
    RETURN_IF_ERROR(check_order());
    if (outcome_.was_known) return outcome_;
    RETURN_IF_ERROR(check_model());
    RETURN_IF_ERROR(find_tensors());
    if (!options_.is_dry_run) {
      RETURN_IF_ERROR(begin());
    }
    RETURN_IF_ERROR(patch_all());
    if (options_.is_dry_run) return outcome_;
    RETURN_IF_ERROR(commit());
    return outcome_;
  }

 private:
  [[nodiscard]] std::string name() const { return version_.directory().string(); }

  Result<void> check_order() {
    const auto& present = state_.version();
    if (!present) return {};
    outcome_.was_known = present->number == version_.version().number;
    if (outcome_.was_known) return {};
    if (version_.version().number < present->number) {
      return damaged("{}: the model has version {} already", name(), present->text);
    }
    if (version_.is_full() || version_.base_version()->number == present->number) return {};
    return damaged(
        "{}: it changes version {}, and the model has version {}: apply the versions between, or a "
        "full version",
        name(), version_.base_version()->text, present->text);
  }

  Result<void> check_model() const {
    if (model_.base() != nullptr) {
      return fail(
          ErrorCode::ReadOnly, EROFS,
          fmt::format("{}: has deltas on top: a weight sync changes the model itself, so name the base",
                      model_.path().string()));
    }
    if (!model_.problems().empty()) {
      return damaged("{}: is not whole: {}", model_.path().string(), model_.problems().front().message);
    }
    const std::filesystem::path directory = real_path(state_.place().directory);
    for (const Shard& shard : model_.shards()) {
      const std::filesystem::path& path = shard.archive->real_path();
      if (path.parent_path() == directory) {
        RETURN_IF_ERROR(check_in_open_directory(*shard.archive));
        continue;
      }
      return fail(
          ErrorCode::InvalidArgument, EOPNOTSUPP,
          fmt::format("{}: lies in another directory than {}: one transaction cannot change both; copy "
                      "the model to a directory of its own",
                      path.string(), state_.place().state().string()));
    }
    return {};
  }

  /// Checks that the open directory has the archive: a user who may write a directory above may have given
  /// the model's path to another model after the opening.
  [[nodiscard]] Result<void> check_in_open_directory(const Archive& archive) const {
    const std::filesystem::path name = archive.real_path().filename();
    const auto there = state_.storage().status(state_.place().model_file(name));
    if (there && there->identity.same_file(archive.identity())) return {};
    if (!there && there.error().errno_value != ENOENT) return tl::unexpected(there.error());
    return fail(
        ErrorCode::ArchiveChanged, ESTALE,
        fmt::format("{}: its directory, or it, was exchanged for another one since the pull has begun",
                    archive.path().string()));
  }

  Result<void> find_tensors() {
    std::vector<std::string> problems;
    for (const PublishedTensor& tensor : version_.tensors()) {
      const auto position = model_.tensors().find(tensor.name);
      if (!position) {
        problems.push_back(
            fmt::format("{}: the model has no such tensor", tools::printable_name(tensor.name)));
        continue;
      }
      if (version_.is_full()) {
        if (auto why = full_mismatch(version_, tensor, model_.tensors()[*position]); !why.empty())
          problems.push_back(std::move(why));
      }
      steps_.push_back({&tensor, *position});
    }
    if (version_.is_full() && problems.empty() && steps_.size() != model_.tensors().size()) {
      problems.push_back(
          fmt::format("it has {} tensors, and the model has {}", steps_.size(), model_.tensors().size()));
    }
    if (!problems.empty()) {
      return damaged("{}: {}{}{}", name(), problems.front(),
                     problems.size() == 1 ? "" : fmt::format(" (and {} more problems)", problems.size() - 1),
                     version_.is_full() ? ": `stfs pull` puts this full version in the model's place" : "");
    }
    // The longest work is first, so that no thread is left alone with it at the end.
    std::ranges::stable_sort(steps_, std::ranges::greater{}, [&](const Step& step) {
      return model_.tensors()[step.position].data.size_bytes;
    });
    return {};
  }

  Result<void> begin() {
    std::vector<TensorPlace> places;
    for (const Step& step : steps_) places.push_back(model_.place(step.position));
    return transaction_.begin_patches(places, [this](std::uint32_t) { return options_.commit; });
  }

  Result<void> patch_all() {
    const unsigned threads = options_.threads == 0 ? usable_processors() : options_.threads;
    std::uint64_t total_bytes = 0;
    for (const Step& step : steps_) total_bytes += model_.tensors()[step.position].data.size_bytes;
    work_.begin(total_bytes);
    Mutex mutex;  // guards the outcome while threads run
    std::vector<std::unique_ptr<TensorPatcher>> patchers(worker_count(steps_.size(), threads));
    auto done =
        run_watched(steps_.size(), threads, work_, [&](std::size_t index, unsigned worker) -> Result<void> {
          auto& patcher = patchers[worker];
          if (!patcher) {
            patcher = std::make_unique<TensorPatcher>(model_, version_,
                                                      options_.is_dry_run ? nullptr : &transaction_, work_);
          }
          const Step& step = steps_[index];
          auto patched = patcher->patch(*step.tensor, step.position);
          if (!patched) {
            return tl::unexpected(std::move(patched).error().within(
                fmt::format("{}: {}", name(), tools::printable_name(step.tensor->name))));
          }
          if (!*patched) return {};
          const MutexLock lock(mutex);
          outcome_.changed.emplace_back(step.tensor->name);
          outcome_.changed_bytes += model_.tensors()[step.position].data.size_bytes;
          return {};
        });
    outcome_.changed_tensors = outcome_.changed.size();
    outcome_.done_tensors = steps_.size() - outcome_.changed.size();
    std::ranges::sort(outcome_.changed);
    if (done && work_.is_stopped())
      return fail(ErrorCode::System, EINTR, name() + ": interrupted: not changed");
    return done;
  }

  Result<void> commit() {
    const Durability durability = options_.commit.durability;
    if (durability == Durability::Power) {
      // The state confirms all tensors, including tensors that another process has changed without a sync.
      for (const Shard& shard : model_.shards()) {
        RETURN_IF_ERROR(shard.archive->sync_what_others_wrote());
      }
    }
    // Every tensor was new already: the state alone needs no transaction.
    if (!transaction_.has_patches()) return state_.write(version_.version(), durability);
    const auto text = state_.text_with(version_.version(), changes());
    RETURN_IF_ERROR(text);
    // A journal can only replace the state in `.weight_sync`. The state of another place follows its
    // transaction: a kill between the two leaves the state before, and the next pull finds the tensors done.
    const bool is_in_transaction = state_.place().is_shared();
    if (is_in_transaction) {
      RETURN_IF_ERROR(transaction_.replace_sync_state(*text));
    }
    auto committed = transaction_.commit([this](std::uint32_t) { return options_.commit; },
                                         [this](TensorPlace) -> ReaderWriterLock& { return readers_; });
    RETURN_IF_ERROR(committed);
    if (!is_in_transaction) {
      auto written = state_.write_text(*text, durability);
      if (!written) {
        return tl::unexpected(std::move(written).error().within(
            fmt::format("{}: the model has version {}, and its state does not say so: apply it once more",
                        state_.place().state().string(), version_.version().text)));
      }
    }
    RETURN_IF_ERROR(state_.read());
    if (state_.version() && state_.version()->number == version_.version().number) return {};
    return fail(
        ErrorCode::ArchiveChanged, ESTALE,
        fmt::format("{}: another program removed or changed it during the commit: the model has version "
                    "{}; apply it once more, that writes the state again",
                    state_.place().state().string(), version_.version().text));
  }

  /// Returns the tensors that change, if they are known and few.
  [[nodiscard]] std::optional<SyncChanges> changes() const {
    if (version_.is_full() || outcome_.changed.size() > model_.tensors().size() / 2) return std::nullopt;
    std::map<std::string, std::string> from;
    for (const Step& step : steps_) {
      const ArchiveReader& archive = model_.archive_of(step.position);
      const auto [stamp, is_new] = from.try_emplace(archive.path().filename().string());
      if (!is_new) continue;
      // A program without locks has written to the archive.
      if (!archive.is_as_known()) return std::nullopt;
      stamp->second = stamp_of(archive);
    }
    return SyncChanges{
        .since = version_.base_version()->text, .tensors = outcome_.changed, .from = std::move(from)};
  }

  const Model& model_;
  const PublishedVersion& version_;
  SyncState& state_;
  const VersionApplyOptions& options_;
  Work& work_;
  TransactionGroup transaction_;
  ReaderWriterLock readers_;  // no other thread reads this model
  std::vector<Step> steps_;
  VersionOutcome outcome_;
};

}  // namespace

bool has_same_tensors(const PublishedVersion& version, const Model& model) {
  return version.tensors().size() == model.tensors().size() &&
         std::ranges::all_of(version.tensors(), [&](const PublishedTensor& tensor) {
           const auto position = model.tensors().find(tensor.name);
           return position && full_mismatch(version, tensor, model.tensors()[*position]).empty();
         });
}

Result<VersionOutcome> apply_version(const Model& model, const PublishedVersion& version, SyncState& state,
                                     const VersionApplyOptions& options) {
  Work unwatched;
  Work& work = options.work != nullptr ? *options.work : unwatched;
  return guard_memory([&] { return VersionApply(model, version, state, options, work).run(); });
}

}  // namespace stfs::sync
