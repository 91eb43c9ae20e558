// Checks the names, locks, checks every tensor, commits.
#include "tools/sync/version_apply.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "core/base/mutex.h"
#include "core/base/parallel.h"
#include "core/model/transaction_group.h"
#include "tools/sync/damage.h"
#include "tools/sync/tensor_patcher.h"
#include "tools/text/printable.h"

namespace stfs::sync {
namespace {

/// A tensor of a version, and its position in the model.
struct Step {
  const PublishedTensor* tensor = nullptr;
  std::uint32_t position = 0;
};

/// Why the tensor of a full version can't take the place of the model's; empty if it can.
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
    if (auto follows = check_order(); !follows) return pass_on(std::move(follows));
    if (outcome_.was_known) return outcome_;
    if (auto fits = check_model(); !fits) return pass_on(std::move(fits));
    if (auto found = find_tensors(); !found) return pass_on(std::move(found));
    if (!options_.is_dry_run) {
      if (auto begun = begin(); !begun) return pass_on(std::move(begun));
    }
    if (auto patched = patch_all(); !patched) return pass_on(std::move(patched));
    if (options_.is_dry_run) return outcome_;
    if (auto committed = commit(); !committed) return pass_on(std::move(committed));
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
    std::error_code failed;
    const auto directory = std::filesystem::weakly_canonical(state_.place().directory, failed);
    for (const Shard& shard : model_.shards()) {
      const std::filesystem::path& path = shard.archive->real_path();
      if (path.parent_path() == directory) {
        if (auto same = check_in_open_directory(*shard.archive); !same) return same;
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

  /// A user who may write a directory above may have given the model's path to another model meanwhile.
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
    // The longest work first: no thread has to end alone with it.
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
          if (*patched == TensorPatcher::Outcome::Same) return {};
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
      // The state vouches for all tensors, also for those that another process has changed without a sync.
      for (const Shard& shard : model_.shards()) {
        if (auto synced = shard.archive->sync_what_others_wrote(); !synced) return synced;
      }
    }
    // Every tensor was new already: no transaction is needed for the state alone.
    if (!transaction_.has_patches()) return state_.write(version_.version(), durability);
    const std::string text = state_.text_with(version_.version(), changes());
    // A journal names one place of states. The state of another place follows its transaction: a kill between
    // the two leaves the state before, and the next pull finds the tensors done.
    const bool is_in_transaction = state_.place().is_shared();
    if (is_in_transaction) {
      if (auto replaced = transaction_.replace_sync_state(text); !replaced) return replaced;
    }
    auto committed = transaction_.commit([this](std::uint32_t) { return options_.commit; },
                                         [this](TensorPlace) -> ReaderWriterLock& { return readers_; });
    if (!committed) return committed;
    if (!is_in_transaction) {
      auto written = state_.write_text(text, durability);
      if (!written) {
        return tl::unexpected(std::move(written).error().within(
            fmt::format("{}: the model has version {}, and its state does not say so: apply it once more",
                        state_.place().state().string(), version_.version().text)));
      }
    }
    if (auto read = state_.read(); !read) return read;
    if (state_.version() && state_.version()->number == version_.version().number) return {};
    return fail(
        ErrorCode::ArchiveChanged, ESTALE,
        fmt::format("{}: another program removed or changed it during the commit: the model has version "
                    "{}; apply it once more, that writes the state again",
                    state_.place().state().string(), version_.version().text));
  }

  /// Which tensors change, if that is known and worth telling.
  [[nodiscard]] std::optional<SyncChanges> changes() const {
    if (version_.is_full() || outcome_.changed.size() > model_.tensors().size() / 2) return std::nullopt;
    std::map<std::string, std::string> from;
    for (const Step& step : steps_) {
      const ArchiveReader& archive = model_.archive_of(step.position);
      const auto [stamp, is_new] = from.try_emplace(archive.path().filename().string());
      if (!is_new) continue;
      // A program without locks has written to it meanwhile.
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
