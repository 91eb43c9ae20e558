// stfs top: shows the requests of a mount while they happen.
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <deque>
#include <numeric>
#include <ostream>

#include "core/base/unique_fd.h"
#include "tools/cli/command_line.h"
#include "tools/cli/diagnostic.h"
#include "tools/cli/interrupt.h"
#include "tools/cli/keyboard.h"
#include "tools/cli/mount_sample.h"
#include "tools/cli/verb.h"
#include "tools/target/question.h"
#include "tools/target/served_mounts.h"
#include "tools/text/chart.h"
#include "tools/text/json_document.h"
#include "tools/text/printable.h"
#include "tools/text/quantity.h"
#include "tools/text/table.h"

namespace stfs::tools {
namespace {

constexpr const char* kTopExamples =
    "Shows reads, writes, commits and errors in each second and since the mount began, and the number of\n"
    "requests that wait for their reply (- where the kernel does not tell this user). The figures come "
    "from\n"
    "MOUNT/.safetensors/stats.json. The hot tensors are those with the most bytes in the last reads: at "
    "most\n"
    "512 reads, of at most ten seconds. Reads that the page cache answers do not reach the mount. In a "
    "mount\n"
    "of several models, name the directory of one.\n"
    "Ends with q, with Ctrl-C, and when the mount goes.\n"
    "\n"
    "Examples:\n"
    "  stfs top --once /mnt/model                                 the rates of one second\n"
    "  stfs top --once --json /mnt/model | jq .bytes_read_per_second";

struct TopRequest {
  std::string named;
  std::uint64_t interval_s = 1;
  bool is_once = false;
  bool json = false;
};

/// A row of the view.
struct Figure {
  std::string_view label;
  std::string_view name;  // in MountSample::counts
  bool is_size;
};
constexpr std::array kFigures = {
    Figure{"read", "bytes_read", true},          Figure{"written", "bytes_written", true},
    Figure{"requests", "requests", false},       Figure{"reads", "requests.read", false},
    Figure{"writes", "requests.write", false},   Figure{"commits", "commits", false},
    Figure{"refused", "refused_commits", false}, Figure{"errors", "errors", false},
};

void add_all_requests(MountSample& sample) {
  std::uint64_t all = 0;
  for (const auto& [name, count] : sample.counts) all += name.starts_with("requests.") ? count : 0;
  sample.counts["requests"] = all;
}

std::string stats_of(const std::filesystem::path& directory) {
  const UniqueFd file(::open((directory / ".safetensors/stats.json").c_str(), O_RDONLY | O_CLOEXEC));
  if (!file) return "error " + std::to_string(errno);
  return read_stats(file);
}

class Top {
 public:
  Top(const TopRequest& request, PlaceInMount place, Streams& streams)
      : request_(request), place_(std::move(place)), streams_(streams) {}

  int print_once() {
    const auto before = sample_within(kAnswerPatience);
    if (!before) return why_not();
    const Keyboard* const none = nullptr;
    if (wait(none)) return kFailed;
    const auto now = sample_within(kAnswerPatience);
    if (!now) return why_not();
    note(*before);
    note(*now);
    request_.json ? print_json() : print_lines(ChartStyle{});
    return streams_.out ? kDone : kFailed;
  }

  int watch() {
    const Keyboard keyboard;
    constexpr const char* kEnter = "\x1b[?1049h\x1b[?25l";  // another screen, no cursor
    constexpr const char* kLeave = "\x1b[?25h\x1b[?1049l";
    streams_.out << kEnter;
    while (is_mounted() && streams_.out && !interrupted()) {
      if (const auto sample = sample_within(std::chrono::milliseconds(200))) note(*sample);
      // The user may have made the window larger or smaller.
      winsize window{};
      if (::ioctl(STDOUT_FILENO, TIOCGWINSZ, &window) == 0) set_terminal_columns(streams_.out, window.ws_col);
      streams_.out << "\x1b[H";  // to the top; each line erases its rest
      print_lines(chart_style(streams_.out, true));
      streams_.out << "\x1b[J" << std::flush;
      if (wait(&keyboard)) break;
    }
    streams_.out << kLeave << std::flush;
    if (!is_mounted())
      streams_.err << fmt::format("stfs top: {}: was unmounted\n", printable(request_.named));
    return streams_.out ? kDone : kFailed;
  }

 private:
  /// @return nothing if there is no answer, or no mount any more.
  std::optional<MountSample> sample_within(std::chrono::milliseconds time) {
    // One question at a time: a stopped daemon leaves each child process waiting.
    if (!question_) question_.emplace([this] { return stats_of(place_.path); });
    const auto answer = question_->answer_by(deadline_in(time));
    is_silent_ = !answer;
    if (!answer) return std::nullopt;
    question_.reset();
    answer_ = *answer;
    auto sample = sample_of(*answer);
    if (!sample) return std::nullopt;
    add_all_requests(*sample);
    sample->waiting = waiting_requests(place_.mount);
    return sample;
  }

  int why_not() {
    if (interrupted()) return kFailed;
    if (is_silent_) return report_failure(streams_, request_.named + ": gives no answer");
    const bool has_none = answer_ == "error " + std::to_string(ENOENT);
    return report_failure(streams_,
                          request_.named + (has_none ? ": has no figures: name the mount, or one model of a "
                                                       "mount of several"
                                                     : ": its figures cannot be read"));
  }

  [[nodiscard]] bool is_mounted() const {
    const auto all = stfs::mounts();
    return std::ranges::any_of(all, [&](const MountEntry& entry) {
      return entry.id == place_.mount.id && entry.device == place_.mount.device;
    });
  }

  /// @return true to end.
  bool wait(const Keyboard* keyboard) const {
    const auto end = deadline_in(std::chrono::seconds(request_.interval_s));
    constexpr std::chrono::milliseconds kLook{200};  // for a mount that goes
    while (time_left(end).count() > 0 && !interrupted() && is_mounted()) {
      const auto time = std::min(time_left(end), kLook);
      const char key = keyboard != nullptr ? keyboard->wait(time)
                                           : (::usleep(static_cast<useconds_t>(time.count()) * 1000), '\0');
      if (key == 'q' || key == 'Q') return true;
    }
    return interrupted();
  }

  void note(const MountSample& sample) {
    constexpr std::size_t kMost = 200;  // as many as a wide terminal shows
    samples_.push_back(sample);
    if (samples_.size() > kMost) samples_.pop_front();
  }

  [[nodiscard]] double rate(const Figure& figure, std::size_t at) const {
    return at == 0 ? 0 : rate_of(std::string(figure.name), samples_[at - 1], samples_[at]);
  }

  /// The course of a rate, a character for each sample.
  [[nodiscard]] std::string course(const Figure& figure, std::size_t columns) const {
    constexpr std::array<const char*, 9> kLevels = {" ", "▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
    const std::size_t first = samples_.size() > columns ? samples_.size() - columns : 1;
    double largest = 0;
    for (std::size_t at = first; at < samples_.size(); ++at) largest = std::max(largest, rate(figure, at));
    std::string text;
    for (std::size_t at = first; at < samples_.size(); ++at) {
      const double share = largest > 0 ? rate(figure, at) / largest : 0;
      text += kLevels[share > 0 ? std::max<std::size_t>(static_cast<std::size_t>(share * 8), 1) : 0];
    }
    return text;
  }

  void print_line(std::string line, const ChartStyle& style) const {
    if (streams_.out_is_terminal) line = shortened(line, style.columns) + (request_.is_once ? "" : "\x1b[K");
    streams_.out << line << '\n';
  }

  void print_lines(const ChartStyle& style) const {
    print_line(fmt::format("{}  from {}", printable(place_.path.native()), printable(place_.mount.source)),
               style);
    if (samples_.empty()) {
      print_line("no answer", style);
      return;
    }
    const MountSample& last = samples_.back();
    print_line(fmt::format(
                   "mounted for {}, {}; waiting requests: {}{}",
                   human_duration(std::chrono::seconds(static_cast<std::int64_t>(last.uptime_seconds))),
                   counted(last.count("tensors"), "tensor"),
                   last.waiting ? std::to_string(*last.waiting) : "-", is_silent_ ? "; gives no answer" : ""),
               style);
    if (!last.problem.empty()) print_line("problem: " + printable(last.problem), style);
    print_line("", style);
    print_line(fmt::format("{:<10}{:>14}{:>16}", "", "in a second", "in all"), style);
    for (const Figure& figure : kFigures) {
      const double now = rate(figure, samples_.size() - 1);
      const std::uint64_t all = last.count(std::string(figure.name));
      const std::string shown_rate =
          figure.is_size ? human_size(static_cast<std::uint64_t>(now)) : fmt::format("{:.1f}", now);
      const std::string shown_all = figure.is_size ? human_size(all) : grouped(all);
      constexpr std::size_t kFixed = 44;
      print_line(fmt::format(
                     "{:<10}{:>14}{:>16}  {}", figure.label, shown_rate, shown_all,
                     request_.is_once ? "" : course(figure, style.columns - std::min(style.columns, kFixed))),
                 style);
    }
    if (!last.hot_tensors.empty()) print_line("hot tensors, by their share of the last reads' bytes", style);
    for (const auto& [name, share] : last.hot_tensors)
      print_line(fmt::format("{:>10.1f} %  {}", 100 * share, printable(name)), style);
    if (!last.last_error.empty()) print_line("last error: " + printable(last.last_error), style);
    if (!request_.is_once) print_line("q ends", style);
  }

  void print_json() const {
    const MountSample& last = samples_.back();
    Json document = json_document();
    document["path"] = place_.path.string();
    document["source"] = place_.mount.source;
    document["uptime_seconds"] = last.uptime_seconds;
    document["waiting"] = last.waiting ? Json(*last.waiting) : Json();
    document["problem"] = last.problem.empty() ? Json() : Json(last.problem);
    for (const Figure& figure : kFigures) {
      std::string name(figure.name);
      std::ranges::replace(name, '.', '_');
      document[name] = last.count(std::string(figure.name));
      document[name + "_per_second"] = rate(figure, samples_.size() - 1);
    }
    document["hot_tensors"] = Json::array();
    for (const auto& [name, share] : last.hot_tensors)
      document["hot_tensors"].push_back({{"name", name}, {"share_of_bytes", share}});
    write_json(document, streams_.out);
  }

  const TopRequest& request_;
  const PlaceInMount place_;
  Streams& streams_;
  std::deque<MountSample> samples_;  // the oldest first
  std::optional<Question> question_;
  std::string answer_;
  bool is_silent_ = false;
};

}  // namespace

int top(const Arguments& arguments, Streams& streams) {
  TopRequest request;
  CommandLine line("top", "Show the reads, writes and commits of a mount while they happen.", kTopExamples);
  line.usage("MOUNT");
  line.usage("--once [--json] MOUNT");
  line.positional_file(request.named, "MOUNT",
                       "A mount of safetensorsfs, or the directory of one model in it.");
  line.flag(request.is_once, "--once", "Print the figures of one interval, and end.");
  line.number(request.interval_s, "--interval", "SECONDS", "Look again after SECONDS. Default: 1.", 1, 3600);
  line.flag(request.json, "--json", "With --once: print a JSON object.");
  if (const auto code = line.parse(arguments, streams)) return *code;
  if (request.json && !request.is_once) return report_wrong_usage(streams, "--json needs --once");
  if (!request.is_once && !streams.out_is_terminal)
    return report_wrong_usage(streams, "standard output is no terminal: --once prints one sample");
  auto place = place_in_mount(request.named);
  if (!place) return report_failure(streams, place.error().message);
  const InterruptGuard guard;
  Top view(request, std::move(*place), streams);
  return request.is_once ? view.print_once() : view.watch();
}

}  // namespace stfs::tools
