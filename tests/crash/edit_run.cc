#include "tests/crash/edit_run.h"

#include <algorithm>
#include <array>
#include <cerrno>

#include "core/journal/recovery.h"
#include "tests/crash/edited_archive.h"
#include "tests/crash/workload.h"
#include "tests/support/disk_crash.h"
#include "tests/support/faulty_storage.h"
#include "tests/support/lying_storage.h"
#include "tests/support/plain.h"

namespace stfs::test {
namespace {

struct EditMoment {
  DiskImage image;
  std::size_t promised = 0;
  std::size_t begun = 0;
};

struct EditHistory {
  std::vector<EditedContent> contents;
  std::vector<bool> is_patch;  // by step; step i leads from contents[i] to contents[i + 1]
  std::vector<EditMoment> moments;
  DiskOptions disk;
};

/// A random step of the archive, or its replacement by a new file, which has no name before.
EditStep next_step(const EditedContent& before, bool has_unnamed, Choices& choices) {
  if (has_unnamed && choices.one_in(5))
    return {.after = first_content(choices), .kept = {}, .is_replacement = true};
  return random_step(before, choices);
}

Result<void> settle_and_close(std::unique_ptr<Archive> archive) {
  static_cast<void>(archive->lane_journal().retire(Durability::Power));
  return {};
}

std::optional<std::string> record_edits(EditHistory& history, std::uint64_t seed,
                                        const std::vector<SeamCall>& lies) {
  RandomChoices random(seed);
  history.disk.has_unnamed = !random.one_in(4);
  history.disk.has_birth_times = !random.one_in(4);
  history.disk.has_clone = random.one_in(3);
  if (random.one_in(2)) history.disk.most_range_bytes = kDiskBlockBytes * (1 + random.below(3));
  history.contents = {first_content(random)};
  const std::string first = tight_archive(history.contents.front(), random.one_in(3) ? 7000 : 0);
  DiskModel disk(history.disk);
  disk.put(kArchivePath, std::as_bytes(std::span(first)), {.uid = 0, .gid = 0, .permissions = 0660});
  std::size_t promised = 0;
  std::size_t begun = 0;
  history.moments.push_back({disk.image(), 0, 0});
  disk.observe([&](std::string_view, const DiskImage& image) {
    history.moments.push_back({image, promised, begun});
  });
  const auto process = disk.start_process();
  LyingStorage storage(*process, lies);
  const bool keeps_lanes = random.one_in(2);
  for (std::size_t steps = 1 + random.below(4); steps > 0; --steps) {
    EditStep step = next_step(history.contents.back(), history.disk.has_unnamed, random);
    history.contents.push_back(step.after);
    history.is_patch.push_back(step.is_patch);
    begun = history.is_patch.size();
    auto archive = Archive::open(kArchivePath, Access::ReadWrite, storage);
    if (!archive) return "OPEN: " + text_of(archive.error());
    if (keeps_lanes) {
      if (auto prepared = (*archive)->lane_journal().prepare(); !prepared)
        return "LANES: " + text_of(prepared.error());
    }
    // An edit always survives a loss of power, whatever durability is asked for.
    const Durability durability =
        step.is_patch || step.is_replacement || random.one_in(2) ? Durability::Power : Durability::Process;
    Result<void> done;
    if (!step.is_compaction) done = carry_out(**archive, step, commit_options(durability));
    static_cast<void>(settle_and_close(std::move(*archive)));
    if (step.is_compaction) done = compact(storage, kArchivePath, commit_options(durability));
    if (!done) return "STEP " + std::to_string(begun) + ": " + text_of(done.error());
    promised = begun;
    history.moments.push_back({disk.image(), promised, begun});
  }
  disk.observe({});
  return std::nullopt;
}

std::string bytes_at_path(const DiskImage& image) {
  const auto bytes = image.content(image.inode_at(kArchivePath));
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

/// Whether the moment allows the content.
bool is_allowed(const EditHistory& history, const EditMoment& moment, const EditedContent& content) {
  const auto first = history.contents.begin() + static_cast<std::ptrdiff_t>(moment.promised);
  const auto last = history.contents.begin() + static_cast<std::ptrdiff_t>(moment.begun) + 1;
  return std::find(first, last, content) != last;
}

std::optional<std::string> check_plainly(const EditHistory& history, const EditMoment& moment,
                                         const DiskImage& image, EditCounts& counts) {
  const auto seen = read_plainly(bytes_at_path(image));
  if (!seen) ++counts.hidden;
  const bool is_patched = moment.begun > moment.promised && history.is_patch[moment.promised];
  if (!seen || is_patched || is_allowed(history, moment, *seen)) return std::nullopt;
  return "MISREAD: a plain reader finds what never was";
}

std::optional<std::string> check_recovered(const EditHistory& history, const EditMoment& moment,
                                           Storage& storage) {
  const auto archive = Archive::open(kArchivePath, Access::ReadOnly, storage);
  if (!archive) return "CAN'T OPEN: " + text_of(archive.error());
  const auto content = content_of(**archive);
  if (!content) return "CAN'T READ: " + text_of(content.error());
  if (is_allowed(history, moment, *content)) return std::nullopt;
  return "TORN or LOST: neither the old content nor the new one";
}

/// Compacts the recovered archive. A compaction must succeed after any interrupted step.
std::optional<std::string> check_compaction(const EditHistory& history, const EditMoment& moment,
                                            DiskModel& disk, Storage& storage) {
  if (auto done = compact(storage, kArchivePath, commit_options(Durability::Power)); !done)
    return "COMPACTION: " + text_of(done.error());
  const auto plain = read_plainly(bytes_at_path(disk.image()));
  if (!plain || !is_allowed(history, moment, *plain)) return "COMPACTION: TORN or LOST";
  return std::nullopt;
}

std::optional<std::string> crash_edit(const EditHistory& history, Choices& choices, EditCounts& counts,
                                      const std::vector<SeamCall>& lies) {
  const EditMoment& moment = history.moments[choices.below(history.moments.size())];
  bool loses_power = !choices.one_in(4);
  DiskImage image = loses_power ? after_random_power_loss(moment.image, choices) : after_kill(moment.image);
  DiskMount mount = history.disk.mount();
  for (unsigned in_a_row = 0;; ++in_a_row) {
    ++counts.states;
    counts.in_recovery += in_a_row > 0;
    if (auto wrong = check_plainly(history, moment, image, counts)) return wrong;
    if (loses_power) {
      ++mount.boot.id[1];
      ++mount.device;
    }
    DiskModel disk(history.disk, image);
    const auto process = disk.start_process({}, mount);
    LyingStorage storage(*process, lies);
    // A reader without write access sees the content that recovery will leave.
    if (choices.one_in(3)) {
      if (auto wrong = check_recovered(history, moment, storage)) return "A READER: " + *wrong;
    }
    const bool crashes_again = in_a_row < 3 && choices.one_in(3);
    std::vector<DiskImage> moments = {image};
    if (crashes_again) {
      disk.observe([&](std::string_view, const DiskImage& changed) { moments.push_back(changed); });
    }
    std::vector<JournalReport> reports;
    {
      auto file = storage.open(kArchivePath, Access::ReadWrite);
      if (!file) return "RECOVERY: " + text_of(file.error());
      auto recovered = recover(storage, kArchivePath, **file);
      if (!recovered) return "RECOVERY: " + text_of(recovered.error());
      reports = std::move(*recovered);
    }
    if (crashes_again) {
      const DiskImage& there = moments[choices.below(moments.size())];
      loses_power = !choices.one_in(4);
      image = loses_power ? after_random_power_loss(there, choices) : after_kill(there);
      continue;
    }
    const auto plain = read_plainly(bytes_at_path(disk.image()));
    if (!plain) {
      std::string why = "INVALID: a plain reader refuses what recovery left:";
      for (const JournalReport& report : reports) {
        why += " " + std::string(name_of(report.state)) + ": " + report.explanation + ";";
      }
      return why;
    }
    if (!is_allowed(history, moment, *plain)) return "TORN or LOST: neither the old content nor the new one";
    const auto names = process->list(kDirectory, ".");
    if (!names || !names->empty()) {
      std::string why = "LEFT BEHIND: " + (names ? names->front() : "?");
      for (const JournalReport& report : reports) why += "; " + report.explanation;
      return why;
    }
    if (auto wrong = check_recovered(history, moment, storage)) return wrong;
    if (choices.one_in(4)) return check_compaction(history, moment, disk, storage);
    return std::nullopt;
  }
}

}  // namespace

EditCounts& EditCounts::operator+=(const EditCounts& other) {
  steps += other.steps;
  states += other.states;
  in_recovery += other.in_recovery;
  hidden += other.hidden;
  return *this;
}

std::optional<std::string> run_edits(std::uint64_t seed, std::uint64_t crashes, EditCounts& counts,
                                     const std::vector<SeamCall>& lies) {
  EditHistory history;
  const auto about = [seed](const std::string& what) { return "seed " + std::to_string(seed) + ": " + what; };
  if (auto wrong = record_edits(history, seed, lies)) return about(*wrong);
  counts.steps += history.is_patch.size();
  const auto last = read_plainly(bytes_at_path(history.moments.back().image));
  if (!last || *last != history.contents.back()) return about("the steps led elsewhere");
  RandomChoices choices(seed + 1);
  for (std::uint64_t at = 0; at < crashes; ++at) {
    if (auto wrong = crash_edit(history, choices, counts, lies)) return about(*wrong);
  }
  return std::nullopt;
}

std::optional<std::string> fail_edits(std::uint64_t seed, EditCounts& counts) {
  constexpr std::array kErrors = {EIO, ENOSPC, EINTR};
  RandomChoices random(seed);
  DiskOptions options;
  options.has_unnamed = !random.one_in(4);
  options.has_clone = random.one_in(3);
  EditHistory history;
  history.contents = {first_content(random)};
  const std::string first = tight_archive(history.contents.front(), random.one_in(2) ? 7000 : 0);
  EditStep step = next_step(history.contents.front(), options.has_unnamed, random);
  while (step.is_patch || step.is_compaction) step = random_step(history.contents.front(), random);
  // The calls of the edit fail, or the calls of the compaction that follows.
  const bool compacts = random.one_in(2);
  history.contents.push_back(step.after);
  if (compacts) history.contents.front() = step.after;
  history.is_patch = {false};
  const bool is_for_good = random.one_in(2);
  const int errno_value = kErrors[random.below(kErrors.size())];
  for (unsigned nth = 1;; ++nth) {
    const auto about = [&](const std::string& what) {
      return "seed " + std::to_string(seed) + ", call " + std::to_string(nth) + ": " + what;
    };
    DiskModel disk(options);
    disk.put(kArchivePath, std::as_bytes(std::span(first)), {.uid = 0, .gid = 0, .permissions = 0660});
    const auto process = disk.start_process();
    FaultyStorage storage(*process);
    if (compacts) {
      auto archive = Archive::open(kArchivePath, Access::ReadWrite, storage);
      auto edited = archive ? carry_out(**archive, step, commit_options(Durability::Power))
                            : Result<void>(tl::unexpected(archive.error()));
      if (!edited) return about("fails without a fault: " + text_of(edited.error()));
    }
    storage.plan().set({.nth = nth, .errno_value = errno_value, .kind = {}, .is_for_good = is_for_good});
    Result<void> done;
    if (compacts) {
      done = compact(storage, kArchivePath, commit_options(Durability::Power));
    } else {
      auto archive = Archive::open(kArchivePath, Access::ReadWrite, storage);
      done = archive ? carry_out(**archive, step, commit_options(Durability::Power))
                     : Result<void>(tl::unexpected(archive.error()));
    }
    const auto hit = storage.plan().failed_call();
    if (!hit)
      return done ? std::nullopt : std::optional(about("fails without a fault: " + text_of(done.error())));
    ++counts.states;
    const EditMoment moment{disk.image(), done ? 1U : 0U, 1};
    if (auto wrong = check_plainly(history, moment, disk.image(), counts)) {
      return about(*wrong + " after " + std::string(name_of(hit->kind)) + " of the " +
                   std::string(name_of(hit->role)) + (is_for_good ? " for good" : "") +
                   (done ? " done" : " failed: " + text_of(done.error())));
    }
    // Every call that takes disk space comes before the commit point.
    const bool lacks_room = hit->kind == FileCall::Reserve || hit->kind == FileCall::CreateUnnamed;
    if (lacks_room && read_plainly(bytes_at_path(disk.image())) != history.contents[0]) {
      return about("a lack of room has changed the archive");
    }
    storage.plan().set({});
    const auto fresh = disk.start_process();
    auto file = fresh->open(kArchivePath, Access::ReadWrite);
    auto recovered = recover(*fresh, kArchivePath, **file);
    if (!recovered) return about("RECOVERY: " + text_of(recovered.error()));
    if (auto wrong = check_recovered(history, moment, *fresh)) return about(*wrong);
    if (!read_plainly(bytes_at_path(disk.image()))) return about("INVALID after recovery");
  }
}

}  // namespace stfs::test
