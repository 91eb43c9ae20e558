// One look at the counts of a mount (`.safetensors/stats.json`), and the rates between two looks.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/storage/mount_table.h"
#include "tools/text/json_document.h"

namespace stfs::tools {

struct MountSample {
  std::chrono::steady_clock::time_point at{};
  std::map<std::string, std::uint64_t> counts{};  // "bytes_read", "commits", "requests.read" and others
  double uptime_seconds = 0;
  std::string problem{};     // why the model can't be shown
  std::string last_error{};  // the newest line of the log about a failure
  struct HotTensor {
    std::string name;
    double share_of_bytes;  // of the bytes of the last reads
  };
  std::vector<HotTensor> hot_tensors{};  // the hottest first
  /// Requests that have no reply yet. The kernel tells only root and the user of the mount, in
  /// /sys/fs/fuse/connections.
  std::optional<std::uint64_t> waiting{};

  /// 0 for a count that the mount does not have.
  [[nodiscard]] std::uint64_t count(const std::string& name) const;
};

/// @param stats  the text of stats.json. Nothing if it is no such text.
std::optional<MountSample> sample_of(std::string_view stats);

/// Reads the number of waiting requests from the kernel, without a request to the mount.
std::optional<std::uint64_t> waiting_requests(const MountEntry& mount);

/// The growth of a count in a second. 0 if the counts began anew between the samples.
double rate_of(const std::string& name, const MountSample& before, const MountSample& now);

}  // namespace stfs::tools
