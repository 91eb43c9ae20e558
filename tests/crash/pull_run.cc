// Records one life of a host and its publisher. Then new lives begin on the disks that crashes of it have
// left.
#include "tests/crash/pull_run.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <set>
#include <utility>

#include "core/model/model.h"
#include "tests/support/choices.h"
#include "tests/support/disk_crash.h"
#include "tests/support/faulty_storage.h"
#include "tests/support/plain.h"
#include "tools/sync/pull.h"
#include "tools/sync/sync_state.h"
#include "tools/sync/version_format.h"
#include "tools/sync/version_writer.h"

namespace stfs::test {
namespace {

const std::string kHost = "/models/host";
const std::string kStateDirectory = kHost + "/.weight_sync";
const std::string kPublished = "/models/published";
const std::string kTraining = "/training";
constexpr int kCrashesInARow = 3;

/// The promises at a moment. They count versions; 0 is the host's own model or none.
struct Known {
  std::size_t told = 0;       // the version that a pull has reported
  std::size_t published = 0;  // the number of versions that are published for sure
  bool is_publishing = false;

  [[nodiscard]] std::size_t begun() const { return published + (is_publishing ? 1 : 0); }
};

struct Moment {
  DiskImage image;
  Known known;
  std::string after{};  // the last change of the disk
};

class PullRun {
 public:
  PullRun(const PullScenario& scenario, std::uint64_t seed, PullCounts& counts)
      : scenario_(scenario), counts_(counts), choices_(seed) {
    disk_options_ = {.has_clone = choices_.one_in(3),
                     .has_unnamed = !choices_.one_in(3),
                     .has_birth_times = !choices_.one_in(4)};
    durability_ = choices_.one_in(4) ? Durability::Process : Durability::Power;
    files_.push_back(scenario.has_model ? pulled_files(PulledLayout::First, 0) : PulledFiles());
    for (const PulledVersion& version : scenario.versions)
      files_.push_back(pulled_files(version.layout, version.number));
  }

  std::optional<std::string> run(std::size_t one_in) {
    const std::vector<Moment> moments = record();
    for (std::size_t at = 0; at < moments.size() && !wrong_; ++at) {
      // The end is always crashed, because there most versions are promised.
      if (at + 1 < moments.size() && !choices_.one_in(one_in)) continue;
      crash(moments[at], false);
      if (!wrong_ && durability_ == Durability::Power) crash(moments[at], true);
      if (wrong_) *wrong_ = fmt::format("{} changes, the last was {}: {}", at, moments[at].after, *wrong_);
    }
    return wrong_;
  }

 private:
  // --- a life -----------------------------------------------------------------------------------------

  /// Records all moments of a life from the beginning.
  std::vector<Moment> record() {
    DiskModel disk(disk_options_);
    static_cast<void>(disk.start_process()->make_directory(kPublished));
    static_cast<void>(disk.start_process()->sync_directory("/models"));
    for (const auto& [name, content] : files_.front()) disk.put(kHost + "/" + name, content);
    known_ = {};
    return watch(disk, [&] {
      while (known_.published < scenario_.versions.size() && !wrong_) {
        if (choices_.one_in(2)) try_to_fail(disk, [&](Storage& storage) { return publish(storage); });
        if (!wrong_) publish_surely(disk);
        const bool is_last = known_.published == scenario_.versions.size();
        if (is_last || choices_.one_in(2)) come_up(disk);
      }
    });
  }

  /// Continues after a crash: opens the model, pulls, and lets the publisher finish its version.
  void go_on(DiskModel& disk) {
    open(disk);
    if (wrong_) return;
    const bool was_publishing = known_.is_publishing;
    // Mostly the host pulls first, and sees the files of the interrupted publisher.
    if (!was_publishing || !choices_.one_in(3)) pull_surely(disk);
    if (!was_publishing || wrong_) return;
    publish_surely(disk);
    if (!wrong_) pull_surely(disk);
  }

  void come_up(DiskModel& disk) {
    if (choices_.one_in(2)) {
      try_to_fail(disk, [&](Storage& storage) {
        auto pulled = pull(storage);
        return pulled ? Result<void>{} : pass_on(std::move(pulled));
      });
    }
    if (!wrong_) open(disk);
    if (!wrong_) pull_surely(disk);
  }

  template <class Life>
  std::vector<Moment> watch(DiskModel& disk, Life life) {
    std::vector<Moment> moments = {{disk.image(), known_}};
    disk.observe([&](std::string_view what, const DiskImage& image) {
      moments.push_back({image, known_, std::string(what)});
    });
    life();
    disk.observe({});
    moments.push_back({disk.image(), known_});
    return moments;
  }

  /// Runs the work in a new process, in which a call may fail.
  template <class Work>
  void try_to_fail(DiskModel& disk, Work work) {
    const auto process = disk.start_process();
    FaultyStorage storage(*process);
    // A publisher makes some dozens of calls, a pull some hundreds.
    storage.plan().set({.nth = static_cast<unsigned>(1 + choices_.below(choices_.one_in(2) ? 50 : 300)),
                        .errno_value = choices_.one_in(2) ? EIO : ENOSPC,
                        .kind = {}});
    counts_.failed += !work(storage);
    process->kill();
  }

  // --- the publisher ----------------------------------------------------------------------------------

  void publish_surely(DiskModel& disk) {
    if (known_.published == scenario_.versions.size()) return;
    const auto process = disk.start_process();
    auto published = publish(*process);
    if (!published) wrong_ = "publishing fails: " + text_of(published.error());
  }

  /// Publishes the next version, or the missing part of it.
  Result<void> publish(Storage& storage) {
    const PulledVersion& version = scenario_.versions[known_.published];
    known_.is_publishing = true;
    const std::string path = kPublished + "/" + sync::version_directory_name(version.number);
    auto done = version.base ? publish_delta(storage, version)
                             : publish_full(storage, path, files_[known_.published + 1]);
    if (!done && !(done.error().errno_value == EEXIST && is_there(storage, path + "/" + kPulledIndex)))
      return done;
    known_.is_publishing = false;
    ++known_.published;
    return {};
  }

  static bool is_there(Storage& storage, const std::string& path) { return storage.status(path).has_value(); }

  /// Publishes a full version as other programs do: each file gets its name when it is whole, the index last.
  static Result<void> publish_full(Storage& storage, const std::string& path, const PulledFiles& files) {
    if (is_there(storage, path + "/" + kPulledIndex)) return storage.sync_directory(path);
    auto made = storage.make_directory(path);
    if (!made) return pass_on(std::move(made));
    if (auto synced = storage.sync_directory(kPublished); !synced) return synced;
    const auto put = [&](const std::string& name) {
      return storage.replace(path + "/" + name, path + "/" + name + ".tmp", files.at(name),
                             Durability::Power);
    };
    for (const auto& [name, content] : files) {
      if (name == kPulledIndex) continue;
      if (auto done = put(name); !done) return done;
    }
    return put(kPulledIndex);
  }

  Result<void> publish_delta(Storage& storage, const PulledVersion& version) {
    DiskModel training;
    const auto trainer = training.start_process();
    const PulledFiles before = pulled_files(version.layout, *version.base);
    const PulledFiles& after = files_[known_.published + 1];
    const auto open = [&](const std::string& directory, const PulledFiles& files) {
      for (const auto& [name, content] : files) training.put(directory + "/" + name, content);
      return Model::open(directory + "/" + kPulledIndex,
                         {.storage = trainer.get(), .io = Io::Pread, .uses_threads = false});
    };
    auto a = open(kTraining + "/before", before);
    if (!a) return pass_on(std::move(a));
    auto b = open(kTraining + "/after", after);
    if (!b) return pass_on(std::move(b));
    auto written = sync::publish_version({**a, **b}, kPublished,
                                         {.encoding = version.encoding,
                                          .version = version.number,
                                          .base_version = *version.base,
                                          .storage = &storage});
    return written ? Result<void>{} : pass_on(std::move(written));
  }

  // --- the host ---------------------------------------------------------------------------------------

  /// The count of versions up to this number; nothing for a number that is never published.
  [[nodiscard]] std::optional<std::size_t> count_of(std::uint64_t number) const {
    const auto found = std::ranges::find(scenario_.versions, number, &PulledVersion::number);
    if (found == scenario_.versions.end()) return std::nullopt;
    return static_cast<std::size_t>(found - scenario_.versions.begin()) + 1;
  }

  Result<std::optional<sync::VersionNumber>> pull(Storage& storage) {
    unfinished_.clear();
    sync::PullOptions options;
    options.apply.commit.durability = durability_;
    options.apply.threads = 1;
    options.storage = &storage;
    options.on_event = [&](const sync::PullEvent& event) -> Result<void> {
      if (event.kind == sync::PullEvent::Kind::Unfinished) unfinished_ = event.why;
      const bool is_seeded = event.kind == sync::PullEvent::Kind::Seeded;
      if (!is_seeded && event.kind != sync::PullEvent::Kind::Applied) return {};
      (is_seeded ? counts_.seeded : counts_.applied) += 1;
      known_.told = count_of(std::stoull(event.version)).value();
      return {};
    };
    return sync::pull(kHost, kPublished, options);
  }

  /// Pulls; then the host must have the newest whole version and no other files.
  void pull_surely(DiskModel& disk) {
    const auto process = disk.start_process();
    const auto pulled = pull(*process);
    if (!pulled) {
      wrong_ = "a pull fails: " + text_of(pulled.error());
      return;
    }
    const std::size_t has = *pulled ? count_of((*pulled)->number).value_or(0) : 0;
    if (has < known_.published || has > known_.begun()) {
      wrong_ = fmt::format("a pull stops at {} of {} versions: {}", has, known_.published, unfinished_);
      return;
    }
    judge(disk, "after a pull");
    if (wrong_ || has == 0) return;
    if (const auto names = names_of_model(disk.image(), kHost, files_[has])) look_for_leftovers(disk, *names);
  }

  void look_for_leftovers(DiskModel& disk, const std::set<std::string>& files) {
    const auto process = disk.start_process();
    const auto look = [&](const std::string& directory, auto may_be_there) {
      const auto names = process->list(directory, "");
      if (!names) wrong_ = text_of(names.error());
      for (const std::string& name : names.value_or(std::vector<std::string>())) {
        if (!may_be_there(name)) wrong_ = "LEFT BEHIND: " + directory + "/" + name;
      }
    };
    look(kHost, [&](const std::string& name) { return files.contains(name) || name == ".weight_sync"; });
    look(kStateDirectory, [](const std::string& name) { return name == "lock" || name == "state.json"; });
  }

  /// Finishes the work of a killed pull: takes the lock, then opens the model.
  void open(DiskModel& disk) {
    const auto process = disk.start_process();
    if (is_there(*process, kStateDirectory)) {
      const auto state =
          sync::SyncState::lock(std::filesystem::path(kHost), std::chrono::milliseconds(0), *process);
      if (!state) {
        wrong_ = "the lock can't be taken: " + text_of(state.error());
        return;
      }
    }
    if (is_there(*process, kHost + "/" + kPulledIndex)) {
      const auto model = Model::open(
          kHost + "/" + kPulledIndex,
          {.access = Access::ReadWrite, .storage = process.get(), .io = Io::Pread, .uses_threads = false});
      if (!model) {
        wrong_ = "opening fails: " + text_of(model.error());
        return;
      }
    }
    judge(disk, "when it is opened");
  }

  // --- the judge --------------------------------------------------------------------------------------

  void judge(DiskModel& disk, std::string_view when) {
    const DiskImage image = disk.image();
    std::set<std::size_t> is;
    for (std::size_t count = known_.told; count <= known_.begun(); ++count) {
      if (names_of_model(image, kHost, files_[count])) is.insert(count);
    }
    const bool has_index = image.inode_at(kHost + "/" + kPulledIndex) != 0;
    if (is.empty() && (has_index || known_.told > 0 || scenario_.has_model)) {
      wrong_ = fmt::format("{} TORN or LOST: no version of {} to {}", when, known_.told, known_.begun());
      return;
    }
    const auto process = disk.start_process();
    const auto state = sync::read_sync_state(std::filesystem::path(kHost), *process);
    if (!state) {
      wrong_ = fmt::format("{} the state is damaged: {}", when, text_of(state.error()));
    } else if (!*state && known_.told > 0) {
      wrong_ = fmt::format("{} state.json is LOST: version {} was told", when, known_.told);
    } else if (*state && !is.contains(count_of((*state)->number).value_or(0))) {
      wrong_ = fmt::format("{} state.json says {}, and the model is not that version", when, (*state)->text);
    }
  }

  void crash(const Moment& moment, bool loses_power) {
    Moment now = moment;
    for (int in_a_row = 0; !wrong_; ++in_a_row) {
      ++counts_.states;
      counts_.in_recovery += in_a_row > 0;
      counts_.losses += loses_power;
      DiskModel disk(disk_options_, loses_power ? after_random_power_loss(now.image, choices_,
                                                                          disk_options_.has_stale_blocks)
                                                : after_kill(now.image));
      known_ = now.known;
      std::vector<Moment> moments = watch(disk, [&] { go_on(disk); });
      if (in_a_row + 1 >= kCrashesInARow || choices_.one_in(2)) return;
      now = std::move(moments[choices_.below(moments.size())]);
      loses_power = durability_ == Durability::Power && choices_.one_in(2);
    }
  }

  const PullScenario& scenario_;
  PullCounts& counts_;
  RandomChoices choices_;
  DiskOptions disk_options_;
  Durability durability_ = Durability::Power;
  std::vector<PulledFiles> files_;  // of the host's own model, and of each version
  Known known_;
  std::string unfinished_;  // why the last pull found a version unfinished
  std::optional<std::string> wrong_;
};

}  // namespace

std::optional<std::string> run_pulls(const PullScenario& scenario, std::uint64_t seed, std::size_t one_in,
                                     PullCounts& counts) {
  return PullRun(scenario, seed, counts).run(one_in);
}

}  // namespace stfs::test
