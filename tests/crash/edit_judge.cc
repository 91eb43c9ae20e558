#include "tests/crash/edit_judge.h"

#include <algorithm>
#include <map>
#include <numeric>

#include "core/journal/recovery.h"
#include "tests/crash/workload.h"
#include "tests/support/disk_crash.h"
#include "tests/support/plain.h"

namespace stfs::test {
namespace {

constexpr std::uint64_t kDevicesOfBoot = 16;
constexpr std::size_t kCallsOfRecovery = 60;
constexpr unsigned kMostCrashes = 3;  // of recoveries, in a row

template <class T>
const T& any_of(const std::vector<T>& list, Choices& choices) {
  return list[choices.below(list.size())];
}

}  // namespace

std::unique_ptr<DiskProcess> EditCast::start_process(DiskModel& disk, std::size_t boot) {
  DiskMount mount = any_of(mounts_, choices_);
  // Each boot of a host has another id, and gives other numbers to devices.
  boot += boots_[mount.boot.host];
  mount.boot.id[1] = static_cast<std::uint8_t>(boot);
  mount.boot.id[2] = static_cast<std::uint8_t>(boot >> 8U);
  mount.device += boot * kDevicesOfBoot;
  return disk.start_process(any_of(users_, choices_), mount);
}

std::uint64_t EditCast::crash_host(DiskModel& disk) {
  const std::uint64_t host = any_of(mounts_, choices_).boot.host;
  disk.crash_host(host, choices_);
  ++boots_[host];
  return host;
}

JudgeCounts& JudgeCounts::operator+=(const JudgeCounts& other) {
  states += other.states;
  in_recovery += other.in_recovery;
  hidden += other.hidden;
  return *this;
}

std::optional<std::string> EditJudge::recover(DiskImage& image, const EditLog& log, std::size_t& boot) {
  const std::vector<EditedModel> allowed = log.allowed();
  for (unsigned in_a_row = 0;; ++in_a_row) {
    ++counts_.states;
    counts_.in_recovery += in_a_row > 0;
    if (auto wrong = check_plainly(image, log)) return wrong;
    DiskModel disk(disk_, image);
    if (choices_.one_in(3)) {
      if (auto wrong = look(disk, allowed, boot)) return wrong;
    }
    const auto end = recover_all(disk, boot, in_a_row < kMostCrashes && choices_.one_in(3));
    if (!end) return "RECOVERY fails: " + text_of(end.error());
    image = disk.image();
    if (*end == End::Recovered) break;
    const bool loses_power = choices_.one_in(2);
    image =
        loses_power ? after_random_power_loss(image, choices_, disk_.has_stale_blocks) : after_kill(image);
    boot += loses_power;
  }
  auto wrong = check_recovered(image, allowed);
  if (wrong) *wrong += reports_;
  return wrong;
}

std::optional<std::string> EditJudge::check_plainly(const DiskImage& image, const EditLog& log) {
  const std::vector<EditedModel> allowed = log.allowed();
  for (std::uint32_t shard = 0; shard < layout_.shards.size(); ++shard) {
    const auto seen = shard_in(image, layout_, shard);
    if (!seen) {
      ++counts_.hidden;
      continue;
    }
    const bool is_mixed = may_be_mixed(log, shard);
    const auto is_it = [&](const EditedModel& one) {
      return is_mixed ? have_same_structure(one.shards[shard], *seen) : one.shards[shard] == *seen;
    };
    if (std::ranges::any_of(allowed, is_it) || std::ranges::any_of(log.former(), is_it)) continue;
    EditedModel found = allowed.front();
    found.shards[shard] = *seen;
    return "MISREAD: a plain reader finds what never was in shard " + std::to_string(shard) + ":" +
           difference(found, allowed.front());
  }
  return std::nullopt;
}

/// A reader without write access sees the committed content before recovery.
std::optional<std::string> EditJudge::look(DiskModel& disk, const std::vector<EditedModel>& allowed,
                                           std::size_t boot) {
  if (choices_.one_in(2)) return look_at_model(disk, allowed, boot);
  const auto process = cast_.start_process(disk, boot);
  EditedModel found;
  for (std::size_t shard = 0; shard < layout_.shards.size(); ++shard) {
    const auto archive = Archive::open(path_of_shard(layout_, shard), Access::ReadOnly, *process, Io::Pread);
    auto content = archive ? content_of(**archive) : Result<EditedContent>(tl::unexpected(archive.error()));
    if (!content) return "A READER can't read: " + text_of(content.error());
    found.shards.push_back(std::move(*content));
  }
  if (std::ranges::find(allowed, found) != allowed.end()) return std::nullopt;
  return "A READER sees what never was:" + difference(found, allowed.front());
}

/// A reader of the model sees the committed content. Shards that the index does not name must have no
/// tensors.
std::optional<std::string> EditJudge::look_at_model(DiskModel& disk, const std::vector<EditedModel>& allowed,
                                                    std::size_t boot) {
  const auto process = cast_.start_process(disk, boot);
  const auto model = open_model(layout_, Access::ReadOnly, *process);
  if (!model) return "A READER can't open the model: " + text_of(model.error());
  if (auto whole = (*model)->check_whole("a reader"); !whole) return "A READER: " + text_of(whole.error());
  std::map<std::string, EditedContent> named;
  for (const Shard& shard : (*model)->shards()) {
    auto content = content_of(*shard.archive);
    if (!content) return "A READER of the model can't read: " + text_of(content.error());
    named.emplace(shard.path.native(), std::move(*content));
  }
  const auto is_it = [&](const EditedModel& one) {
    for (std::size_t shard = 0; shard < one.shards.size(); ++shard) {
      const auto content = named.find(path_of_shard(layout_, shard).native());
      if (content == named.end() ? !one.shards[shard].tensors.empty() : one.shards[shard] != content->second)
        return false;
    }
    return true;
  };
  if (std::ranges::any_of(allowed, is_it)) return std::nullopt;
  return "A READER of the model sees what never was";
}

/// Recovers all shards, beginning with any shard, each by another process.
Result<EditJudge::End> EditJudge::recover_all(DiskModel& disk, std::size_t boot, bool is_killed) {
  reports_.clear();
  may_stay_.clear();
  if (choices_.one_in(2)) return recover_model(disk, boot, is_killed);
  std::vector<std::size_t> order(layout_.shards.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::rotate(order, order.begin() + static_cast<std::ptrdiff_t>(choices_.below(order.size())));
  const std::size_t victim = is_killed ? choices_.below(order.size()) : order.size();
  for (std::size_t at = 0; at < order.size(); ++at) {
    const auto path = path_of_shard(layout_, order[at]);
    const auto process = cast_.start_process(disk, boot);
    DiesOnCall death(*process, at == victim ? choices_.below(kCallsOfRecovery) : SIZE_MAX);
    InterceptedStorage storage(*process, death);
    const auto file = storage.open(path, Access::ReadWrite);
    auto recovered = file ? stfs::recover(storage, path, **file)
                          : Result<std::vector<JournalReport>>(tl::unexpected(file.error()));
    if (process->is_dead()) return End::Killed;
    if (!recovered) return pass_on(std::move(recovered));
    for (const JournalReport& report : *recovered) note(report);
  }
  return End::Recovered;
}

/// Recovers by opening the model for writing.
Result<EditJudge::End> EditJudge::recover_model(DiskModel& disk, std::size_t boot, bool is_killed) {
  const auto process = cast_.start_process(disk, boot);
  DiesOnCall death(*process, is_killed ? choices_.below(kCallsOfRecovery) : SIZE_MAX);
  InterceptedStorage storage(*process, death);
  const auto model = open_model(layout_, Access::ReadWrite, storage);
  if (process->is_dead()) return End::Killed;
  if (!model) return tl::unexpected(model.error());
  for (const Shard& shard : (*model)->shards()) {
    if (!shard.archive) return tl::unexpected(*shard.failure);
    for (const JournalReport& report : shard.archive->recovered()) note(report);
  }
  return note_unnamed(**model, *process);
}

/// Opening the model also recovers the shards that the index no longer names, but does not report them. Notes
/// the journals that are still there.
Result<EditJudge::End> EditJudge::note_unnamed(const Model& model, DiskProcess& process) {
  for (std::size_t shard = 0; shard < layout_.shards.size(); ++shard) {
    const auto path = path_of_shard(layout_, shard);
    const auto is_it = [&](const Shard& one) { return one.path == path; };
    if (std::ranges::any_of(model.shards(), is_it)) continue;
    const auto file = process.open(path, Access::ReadWrite);
    if (!file && file.error().errno_value == ENOENT) continue;
    auto found = file ? stfs::recover(process, path, **file, {.is_dry_run = true})
                      : Result<std::vector<JournalReport>>(tl::unexpected(file.error()));
    if (!found) return pass_on(std::move(found));
    for (const JournalReport& report : *found) note(report);
  }
  return End::Recovered;
}

void EditJudge::note(const JournalReport& report) {
  const std::string name = report.path.filename().string();
  reports_ += "; " + name + " was " + std::string(name_of(report.state)) + " (" + report.explanation +
              (report.action == JournalAction::Applied ? "), applied" : ")");
  // Without unnamed files, a staged journal of a killed process stays: only its maker can read it.
  const bool is_his = report.state == JournalState::Unknown && !report.blocks_commits;
  if (is_his && name.ends_with(kStagedSuffix)) may_stay_.push_back(name);
}

std::optional<std::string> EditJudge::check_recovered(const DiskImage& image,
                                                      const std::vector<EditedModel>& allowed) {
  const auto plain = model_in(image, layout_);
  if (!plain) return "INVALID: a plain reader refuses what recovery left";
  if (std::ranges::find(allowed, *plain) == allowed.end())
    return "TORN or LOST:" + difference(*plain, allowed.front());
  if (auto mistake = index_mistake(image, *plain)) return mistake;
  DiskModel disk(disk_, image);
  const auto left = disk.start_process()->list(kDirectory, ".");
  for (const std::string& name : *left) {
    if (std::ranges::find(may_stay_, name) == may_stay_.end()) return "LEFT BEHIND: " + name;
  }
  return std::nullopt;
}

std::optional<std::string> EditJudge::follow_up(const DiskImage& image, std::size_t boot) {
  DiskModel disk(disk_, image);
  const auto process = cast_.start_process(disk, boot);
  auto model = open_model(layout_, Access::ReadWrite, *process);
  if (!model) return "NEXT: can't open: " + text_of(model.error());
  const ModelStep step = random_model_step(structure_of(**model, layout_), choices_);
  const auto expected = content_after(step, *model_in(image, layout_));
  if (!expected) return "NEXT: the model shows another structure than its archives";
  Result<void> done;
  if (!step.is_compaction) done = carry_out(**model, step, commit_options(Durability::Power));
  model->reset();
  for (std::size_t shard = 0; step.is_compaction && done && shard < layout_.shards.size(); ++shard)
    done = compact(*process, path_of_shard(layout_, shard), commit_options(Durability::Power));
  if (!done) return "NEXT: " + text_of(done.error());
  const auto after = model_in(disk.image(), layout_);
  if (!after || *after != *expected)
    return "NEXT: TORN or LOST:" + (after ? difference(*after, *expected) : "");
  if (auto mistake = index_mistake(disk.image(), *after)) return "NEXT: " + *mistake;
  return std::nullopt;
}

}  // namespace stfs::test
