#include "tests/crash/crash_run.h"

#include <algorithm>

#include "core/journal/recovery.h"
#include "tests/support/lying_storage.h"
#include "tests/support/plain.h"

namespace stfs::test {
namespace {

constexpr std::size_t kOneInRecovery = 12;  // one recovery in so many crashes
constexpr std::size_t kOneFollowUpInCrashes = 64;
constexpr std::size_t kOneReaderInCrashes = 16;  // one recovery in so many follows a reader
constexpr std::uint64_t kMostInARow = 4;
constexpr std::uint64_t kMostChoices = 10'000;  // of a moment

std::optional<std::string> names_left(DiskProcess& process) {
  const auto names = process.list(kDirectory, ".");
  if (!names || names->empty()) return std::nullopt;
  return "LEFT BEHIND: " + names->front();
}

/// Opens the archive and recovers, as a mount does.
Result<std::vector<JournalReport>> open_and_recover(Storage& storage) {
  auto file = storage.open(kArchivePath, Access::ReadWrite);
  if (!file) return pass_on(std::move(file));
  return recover(storage, kArchivePath, **file);
}

std::string which_blocks(const Content& found, const Content& expected) {
  std::string text;
  for (std::size_t at = 0; at < expected.size(); at += kDiskBlockBytes) {
    const std::size_t end = std::min(expected.size(), at + kDiskBlockBytes);
    const bool is_same = std::equal(found.begin() + static_cast<std::ptrdiff_t>(at),
                                    found.begin() + static_cast<std::ptrdiff_t>(end),
                                    expected.begin() + static_cast<std::ptrdiff_t>(at));
    if (!is_same) text += " " + std::to_string(at / kDiskBlockBytes);
  }
  return text;
}

/// The number of steps in the archive's content; nothing if no number of steps explains it.
std::optional<std::size_t> find_content(const DiskImage& image, const std::vector<Content>& contents) {
  const InodeNumber archive = image.inode_at(kArchivePath);
  if (archive == 0) return std::nullopt;
  for (std::size_t step = contents.size(); step-- > 0;) {
    if (image.has_content(archive, contents[step])) return step;
  }
  return std::nullopt;
}

std::optional<std::string> compare(const History& history, const Moment& moment, const DiskImage& image) {
  // Two steps may have the same content by chance, so the allowed contents are compared first.
  for (std::size_t step = moment.promised; step <= moment.begun; ++step) {
    if (image.has_content(image.inode_at(kArchivePath), history.contents[step])) return std::nullopt;
  }
  const auto found = find_content(image, history.contents);
  if (!found) {
    const Content content = image.content(image.inode_at(kArchivePath));
    std::string text = "TORN:";
    for (std::size_t step = moment.promised; step <= moment.begun; ++step) {
      text += " blocks that are not as after " + std::to_string(step) + " steps:" +
              (content.size() == history.contents[step].size() ? which_blocks(content, history.contents[step])
                                                               : " the size") +
              ";";
    }
    return text;
  }
  if (*found < moment.promised) {
    return "LOST: " + std::to_string(moment.promised) + " steps were committed, " + std::to_string(*found) +
           " are there";
  }
  return "TOO MUCH: " + std::to_string(*found) + " steps are there";
}

/// A reader without write access, for example on read-only media, sees the content that recovery would leave,
/// and changes nothing.
std::optional<std::string> check_reader(const History& history, const Moment& moment, DiskModel& disk,
                                        Storage& storage) {
  const DiskImage before = disk.image();
  const auto archive = Archive::open(kArchivePath, Access::ReadOnly, storage);
  if (!archive) return "A READER can't open: " + text_of(archive.error());
  std::vector<std::byte> scratch;
  const auto read = (*archive)->read({0, history.contents.front().size()}, scratch);
  if (!read) return "A READER can't read: " + text_of(read.error());
  const Content seen(read->begin(), read->end());
  const auto first = history.contents.begin() + static_cast<std::ptrdiff_t>(moment.promised);
  const auto last = history.contents.begin() + static_cast<std::ptrdiff_t>(moment.begun) + 1;
  const auto is_seen = [&](const Content& content) { return are_same(content, seen); };
  if (std::none_of(first, last, is_seen)) return "A READER sees what is TORN or LOST";
  const DiskImage after = disk.image();
  if (after.at(1).mtime_ns != before.at(1).mtime_ns || after.names().size() != before.names().size()) {
    return "A READER has changed something";
  }
  return std::nullopt;
}

/// After recovery the archive takes the next commit.
std::optional<std::string> follow_up(DiskModel& disk, Storage& storage, const TestArchive& archive,
                                     const Content& present) {
  const Step step{.pieces = {{"right"}, {"block"}}};
  constexpr std::uint64_t kNumber = 77;
  Writer writer(storage, archive, commit_options(Durability::Power));
  if (auto committed = writer.run(step, kNumber); !committed)
    return "NEXT COMMIT: " + text_of(committed.error());
  const DiskImage image = disk.image();
  if (image.has_content(image.inode_at(kArchivePath), content_after(archive, present, step, kNumber))) {
    return std::nullopt;
  }
  return "NEXT COMMIT: it is not what is there";
}

}  // namespace

CrashCounts& CrashCounts::operator+=(const CrashCounts& other) {
  states += other.states;
  in_recovery += other.in_recovery;
  deepest = std::max(deepest, other.deepest);
  follow_ups += other.follow_ups;
  return *this;
}

History record(const Workload& workload, const std::vector<SeamCall>& lies) {
  History history{.workload = &workload, .contents = contents_of(workload), .moments = {}, .failure = {}};
  DiskModel disk(workload.disk);
  put_archive(disk, *workload.archive);
  std::size_t promised = 0;
  std::size_t begun = 0;
  const auto remember = [&](std::string_view what, const DiskImage& image) {
    history.moments.push_back({what, image, promised, begun});
  };
  remember("beginning", disk.image());
  disk.observe(remember);
  const auto process = disk.start_process(workload.writer);
  LyingStorage storage(*process, lies);
  {
    Writer writer(storage, *workload.archive, commit_options(workload.durability), workload.keeps_journal);
    for (std::size_t number = 0; number < workload.steps.size() && !history.failure; ++number) {
      const Step& step = workload.steps[number];
      const bool is_inner_last = step.beside_when == Lent::WhileApplied;
      const auto fails = [&](const Result<void>& done) {
        if (!done) history.failure = std::string(workload.name) + ": " + text_of(done.error());
        return !done;
      };
      ++begun;
      writer.note_beside({.begins =
                              [&] {
                                // The commit point of the outer step has passed.
                                if (is_inner_last) promised = begun++;
                                return number + kBeside;
                              },
                          .ends =
                              [&](const Result<void>& done) {
                                if (fails(done)) return;
                                promised = is_inner_last ? begun : begun++;
                              }});
      if (fails(writer.run(step, number))) break;
      promised = begun;
      remember("commit returns", disk.image());
    }
  }
  disk.observe({});
  if (const auto left = names_left(*process); left && !history.failure) {
    history.failure = std::string(workload.name) + ": " + *left;
  }
  return history;
}

std::optional<std::string> judge(const History& history, const Moment& moment, const DiskImage& crashed,
                                 bool was_killed, Choices& choices, CrashCounts& counts,
                                 const std::vector<SeamCall>& lies) {
  const bool is_power = history.workload->durability == Durability::Power;
  DiskImage image = crashed;
  DiskMount mount = history.workload->disk.mount();
  for (std::uint64_t in_a_row = 1;; ++in_a_row) {
    ++counts.states;
    counts.in_recovery += in_a_row > 1;
    counts.deepest = std::max(counts.deepest, in_a_row);
    if (!was_killed) {
      ++mount.boot.id[1];
      ++mount.device;
    }
    DiskModel disk(history.workload->disk, image);
    // A journal that is staged under a name can be read only by its maker until the maker gives it to others.
    const bool may_be_anybody = disk.options().has_unnamed;
    const DiskUser& user =
        may_be_anybody ? people()[choices.below(people().size())] : history.workload->writer;
    const auto process = disk.start_process(user, mount);
    LyingStorage storage(*process, lies);
    if (choices.one_in(kOneReaderInCrashes)) {
      if (auto wrong = check_reader(history, moment, disk, storage)) return wrong;
    }
    const bool crashes_again =
        in_a_row < kMostInARow && choices.one_in(in_a_row == 1 && !was_killed ? kOneInRecovery : 2);
    std::vector<DiskImage> moments;
    if (crashes_again) {
      moments.push_back(image);
      disk.observe([&](std::string_view, const DiskImage& changed) { moments.push_back(changed); });
    }
    const auto recovered = open_and_recover(storage);
    if (!recovered) return "RECOVERY FAILED: " + text_of(recovered.error());
    if (crashes_again) {
      const DiskImage& there = moments[choices.below(moments.size())];
      const bool loses_power = is_power && !choices.one_in(4);
      was_killed = !loses_power;
      image = loses_power ? after_random_power_loss(there, choices) : after_kill(there);
      continue;
    }
    const DiskImage after = disk.image();
    if (auto wrong = compare(history, moment, after)) return wrong;
    if (auto left = names_left(*process)) return left;
    if (disk.has_locks_held()) return "a lock is still held after recovery";
    const auto again = open_and_recover(storage);
    if (!again) return "SECOND RECOVERY FAILED: " + text_of(again.error());
    const DiskImage after_again = disk.image();
    if (!again->empty() || after_again.at(1).mtime_ns != after.at(1).mtime_ns) {
      return "a second recovery found something to do";
    }
    if (!choices.one_in(kOneFollowUpInCrashes)) return std::nullopt;
    ++counts.follow_ups;
    return follow_up(disk, storage, *history.workload->archive,
                     history.contents[*find_content(after, history.contents)]);
  }
}

std::optional<std::string> crash_once(const History& history, Choices& choices, CrashCounts& counts,
                                      const std::vector<SeamCall>& lies) {
  const Moment& moment = history.moments[choices.below(history.moments.size())];
  const bool loses_power = history.workload->durability == Durability::Power && !choices.one_in(8);
  const DiskImage crashed =
      loses_power ? after_random_power_loss(moment.image, choices) : after_kill(moment.image);
  auto wrong = judge(history, moment, crashed, !loses_power, choices, counts, lies);
  if (!wrong) return std::nullopt;
  return std::string(history.workload->name) + ", " + (loses_power ? "power lost" : "killed") + " after \"" +
         std::string(moment.what) + "\" (change " + std::to_string(&moment - history.moments.data()) +
         "): " + *wrong;
}

std::optional<std::string> crash_every_way(const History& history, CrashCounts& counts, std::uint64_t seed) {
  for (const Moment& moment : history.moments) {
    EveryChoice every;
    std::uint64_t state = 0;
    do {
      const DiskImage crashed = after_power_loss(moment.image, every);
      RandomChoices choices(seed * kMostChoices + state++);
      if (const auto wrong = judge(history, moment, crashed, false, choices, counts)) {
        return std::string(history.workload->name) + " after \"" + std::string(moment.what) + "\" (change " +
               std::to_string(&moment - history.moments.data()) + "), choice " + std::to_string(state) +
               ": " + *wrong;
      }
    } while (state < kMostChoices && every.next());
  }
  return std::nullopt;
}

}  // namespace stfs::test
