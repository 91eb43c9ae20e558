// Draws the progress line.
#include "tools/cli/progress.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <ostream>

#include "tools/cli/interrupt.h"
#include "tools/text/quantity.h"

namespace stfs::tools {
namespace {

constexpr std::chrono::milliseconds kFirstDrawn{1000};
constexpr std::chrono::milliseconds kRedrawn{200};
constexpr const char* kWipeLine = "\r\x1b[K";

}  // namespace

Progress::Progress(Streams& streams, std::uint64_t total_bytes)
    : streams_(streams), total_bytes_(std::max<std::uint64_t>(total_bytes, 1)) {}

Progress::~Progress() {
  if (visible_) streams_.err << kWipeLine << std::flush;
}

void Progress::show(std::uint64_t done_bytes) {
  done_bytes_ = done_bytes;
  if (!streams_.err_is_terminal) return;
  const Clock::time_point now = Clock::now();
  if (now - start_ < kFirstDrawn || now - drawn_ < kRedrawn) return;
  drawn_ = now;
  visible_ = true;
  const double seconds = std::chrono::duration<double>(now - start_).count();
  const double bytes_per_second = static_cast<double>(done_bytes_) / seconds;
  const double left_bytes = static_cast<double>(total_bytes_ - std::min(done_bytes_, total_bytes_));
  streams_.err << kWipeLine
               << fmt::format("stfs {}: {:.0f} %, {} of {}, {}/s, {:.0f} s left", streams_.verb,
                              100 * static_cast<double>(done_bytes_) / static_cast<double>(total_bytes_),
                              human_size(done_bytes_), human_size(total_bytes_),
                              human_size(static_cast<std::uint64_t>(bytes_per_second)),
                              left_bytes / std::max(bytes_per_second, 1.0))
               << std::flush;
}

Work::Watch watch_on(Streams& streams) {
  return [&streams, line = std::make_shared<std::optional<Progress>>()](std::uint64_t done_bytes,
                                                                        std::uint64_t total_bytes) {
    if (done_bytes == 0 || !*line) line->emplace(streams, total_bytes);
    (*line)->show(done_bytes);
    return !interrupted();
  };
}

}  // namespace stfs::tools
