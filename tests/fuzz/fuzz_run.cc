// Child processes make inputs, judge them and count the outcomes. However a child ends, its parent knows the
// seed, and makes the input again.
#include "tests/fuzz/fuzz_run.h"

#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <new>
#include <optional>
#include <thread>

namespace stfs::test {
namespace {

using Clock = std::chrono::steady_clock;

// A machine that runs the tests has at least two processors.
constexpr std::size_t kProcesses = 2;
// An execution takes microseconds. The limit allows for a busy machine and a sanitizer.
constexpr std::chrono::seconds kLongestExecution{30};
constexpr std::chrono::milliseconds kLookEvery{20};
constexpr std::uint64_t kFirstLongSeed = 1'000'000'000;

struct Seeds {
  std::uint64_t first = 0;
  std::uint64_t end = UINT64_MAX;
  Clock::time_point deadline = Clock::time_point::max();
};

/// The progress of a child, in memory that its parent also sees.
struct Progress {
  struct Count {
    std::string_view outcome;  // a constant of the program, with the same address in both processes
    std::uint64_t times = 0;
  };
  std::atomic<std::uint64_t> seed = 0;
  std::atomic<bool> is_at_end = false;  // no seed is executed any more
  std::array<Count, 16> counts{};
  std::array<char, 4000> wrong{};

  void count(std::string_view outcome) {
    for (Count& count : counts) {
      if (count.times > 0 && count.outcome != outcome) continue;
      count.outcome = outcome;
      ++count.times;
      return;
    }
  }
};

struct Shared {
  std::array<Progress, kProcesses> progress{};
  std::atomic<bool> has_failed = false;
};

std::optional<std::uint64_t> number_in_environment(const char* name) {
  const char* text = std::getenv(name);
  if (text == nullptr || *text == '\0') return std::nullopt;
  return std::strtoull(text, nullptr, 10);
}

/// Returns the directory for inputs that fail: the directory of test results, or the directory of temporary
/// files.
std::filesystem::path directory_for_inputs() {
  std::error_code ignored;
  if (const char* build = std::getenv("STFS_BUILD_DIR")) {
    const std::filesystem::path results = std::filesystem::path(build) / "test-results";
    if (std::filesystem::is_directory(results, ignored)) return results;
  }
  return std::filesystem::temp_directory_path(ignored);
}

FuzzOutcome execute(const FuzzTarget& target, std::uint64_t seed) {
  RandomChoices choices(seed);
  const Bytes input = target.make(choices);
  return target.fuzz_one(input);
}

/// Writes the input to a file. Returns the failure and the commands that replay it.
std::string describe(const FuzzTarget& target, std::uint64_t seed, std::string_view why) {
  RandomChoices choices(seed);
  const Bytes input = target.make(choices);
  const auto path = directory_for_inputs() / fmt::format("fuzz-{}-{}.input", target.name, seed);
  std::ofstream(path, std::ios::binary)
      .write(reinterpret_cast<const char*>(input.data()), static_cast<std::streamsize>(input.size()));
  return fmt::format(
      "{}: seed {}: {}\nThe input is in {}.\nSTFS_FUZZ_SEED={} fuzz_tests '[fuzz]~[.]' -c {} replays it.",
      target.name, seed, why, path.string(), seed, target.name);
}

std::string describe_end(int status) {
  if (WIFSIGNALED(status)) {
    return fmt::format("a crash: signal {}, {}", WTERMSIG(status), ::strsignal(WTERMSIG(status)));
  }
  return fmt::format("a report of a sanitizer, or an exit: status {}", WEXITSTATUS(status));
}

/// Runs every kProcesses-th seed. An exception ends the process, because only the parent may continue with
/// the next test.
[[noreturn]] void run_child(const FuzzTarget& target, const Seeds& seeds, std::size_t at,
                            Shared& shared) noexcept {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  // With Catch2's handlers, the child would also report the failure that the parent reports.
  for (const int deadly : {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGABRT, SIGTERM, SIGINT})
    std::signal(deadly, SIG_DFL);
  Progress& own = shared.progress.at(at);
  for (std::uint64_t seed = seeds.first + at; seed < seeds.end && Clock::now() < seeds.deadline;
       seed += kProcesses) {
    if (shared.has_failed) break;
    own.seed = seed;
    const FuzzOutcome outcome = execute(target, seed);
    own.count(outcome.what);
    if (outcome.wrong.empty()) continue;
    const std::string wrong = fmt::format("{}: {}", outcome.what, outcome.wrong);
    std::copy_n(wrong.begin(), std::min(wrong.size(), own.wrong.size() - 1), own.wrong.begin());
    break;
  }
  own.is_at_end = true;
  std::exit(EXIT_SUCCESS);  // removes temporary directories and checks for leaks
}

/// A child process, for its parent.
class Child {
 public:
  Child(const FuzzTarget& target, const Seeds& seeds, std::size_t at, Shared& shared)
      : target_(target), progress_(shared.progress.at(at)), pid_(::fork()) {
    if (pid_ == 0) run_child(target, seeds, at, shared);
  }

  /// Checks the child. Returns the child's failure, at most once.
  std::optional<std::string> look() {
    if (pid_ < 0) {
      is_running_ = false;
      return "fork: " + std::string(std::strerror(errno));
    }
    int status = 0;
    if (::waitpid(pid_, &status, WNOHANG) == 0) {
      stop_if_hanging();
      return std::nullopt;
    }
    is_running_ = false;
    const std::string_view wrong = progress_.wrong.data();
    if (!wrong.empty()) return describe(target_, progress_.seed, wrong);
    if (has_hung_) return describe(target_, progress_.seed, "hangs");
    if (status == 0 && progress_.is_at_end) return std::nullopt;
    if (progress_.is_at_end)
      return fmt::format("{}: behind its last seed {}", target_.name, describe_end(status));
    return describe(target_, progress_.seed, describe_end(status));
  }
  [[nodiscard]] bool is_running() const { return is_running_; }

 private:
  void stop_if_hanging() {
    const auto now = Clock::now();
    if (progress_.seed != seed_) {
      seed_ = progress_.seed;
      since_ = now;
    } else if (now - since_ > kLongestExecution) {
      has_hung_ = true;
      ::kill(pid_, SIGKILL);
    }
  }

  const FuzzTarget& target_;
  Progress& progress_;
  const pid_t pid_;
  bool is_running_ = true;
  bool has_hung_ = false;
  std::uint64_t seed_ = 0;
  Clock::time_point since_ = Clock::now();
};

FuzzReport run_children(const FuzzTarget& target, const Seeds& seeds) {
  void* memory = ::mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
  auto& shared = *new (memory) Shared;
  std::fflush(nullptr);  // or each child prints the text again
  std::vector<Child> children;
  children.reserve(kProcesses);
  for (std::size_t at = 0; at < kProcesses; ++at) children.emplace_back(target, seeds, at, shared);
  FuzzReport report;
  while (std::ranges::any_of(children, &Child::is_running)) {
    for (Child& child : children) {
      if (!child.is_running()) continue;
      const auto failure = child.look();
      if (!failure) continue;
      shared.has_failed = true;
      if (report.failure.empty()) report.failure = *failure;
    }
    std::this_thread::sleep_for(kLookEvery);
  }
  for (const Progress& progress : shared.progress) {
    for (const Progress::Count& count : progress.counts) {
      if (count.times == 0) continue;
      report.outcomes[count.outcome] += count.times;
      report.executions += count.times;
    }
  }
  ::munmap(memory, sizeof(Shared));
  return report;
}

}  // namespace

double FuzzReport::percent(std::string_view outcome) const {
  const auto found = outcomes.find(outcome);
  if (found == outcomes.end() || executions == 0) return 0;
  return 100 * static_cast<double>(found->second) / static_cast<double>(executions);
}

std::string FuzzReport::text() const {
  std::string text = fmt::format("{} executions", executions);
  for (const auto& [outcome, count] : outcomes) text += fmt::format(", {} {}", count, outcome);
  return text;
}

FuzzReport fuzz(const FuzzTarget& target, std::uint64_t first, std::uint64_t end) {
  const auto seed = number_in_environment("STFS_FUZZ_SEED");
  if (!seed) return run_children(target, {.first = first, .end = end});
  // The seed runs in this process, for debuggers and the sanitizers' reports.
  const FuzzOutcome outcome = execute(target, *seed);
  FuzzReport report{.executions = 1, .outcomes = {{outcome.what, 1}}, .failure = {}, .is_replay = true};
  if (!outcome.wrong.empty()) {
    report.failure = describe(target, *seed, fmt::format("{}: {}", outcome.what, outcome.wrong));
  }
  return report;
}

FuzzReport fuzz_for_long(const FuzzTarget& target) {
  constexpr std::uint64_t kSeconds = 1200;
  const std::chrono::seconds time(number_in_environment("STFS_FUZZ_SECONDS").value_or(kSeconds));
  const std::uint64_t first = number_in_environment("STFS_FUZZ_SEED").value_or(kFirstLongSeed);
  return run_children(target, {.first = first, .deadline = Clock::now() + time});
}

}  // namespace stfs::test
