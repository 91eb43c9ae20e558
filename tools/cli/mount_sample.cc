#include "tools/cli/mount_sample.h"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>

namespace stfs::tools {

std::uint64_t MountSample::count(const std::string& name) const {
  const auto found = counts.find(name);
  return found == counts.end() ? 0 : found->second;
}

std::optional<MountSample> sample_of(std::string_view stats) {
  const Json json = parse_json(stats);
  if (!json.is_object() || !json.contains("uptime_seconds")) return std::nullopt;
  MountSample sample{.at = std::chrono::steady_clock::now()};
  for (const auto& [name, value] : json.items()) {
    if (value.is_number_unsigned()) sample.counts[name] = value;
  }
  if (json["uptime_seconds"].is_number()) sample.uptime_seconds = json["uptime_seconds"];
  if (json.contains("requests") && json["requests"].is_object()) {
    for (const auto& [name, value] : json["requests"].items()) {
      if (value.is_number_unsigned()) sample.counts["requests." + name] = value;
    }
  }
  const auto text = [&](const char* name) {
    return json.contains(name) && json[name].is_string() ? json[name].get<std::string>() : "";
  };
  sample.problem = text("problem");
  sample.last_error = text("last_error");
  for (const Json& tensor : json.value("hot_tensors", Json())) {
    if (!tensor.is_object()) continue;
    const Json name = tensor.value("name", Json());
    const Json share = tensor.value("share_of_bytes", Json());
    if (name.is_string() && share.is_number()) sample.hot_tensors.push_back({name, share});
  }
  return sample;
}

std::optional<std::uint64_t> waiting_requests(const MountEntry& mount) {
  const std::string number = mount.device.substr(mount.device.find(':') + 1);
  std::uint64_t waiting = 0;
  std::ifstream file(fmt::format("/sys/fs/fuse/connections/{}/waiting", number));
  return file >> waiting ? std::optional(waiting) : std::nullopt;
}

double rate_of(const std::string& name, const MountSample& before, const MountSample& now) {
  const double seconds = std::chrono::duration<double>(now.at - before.at).count();
  const std::uint64_t first = before.count(name);
  const std::uint64_t last = now.count(name);
  if (seconds <= 0 || last < first) return 0;
  return static_cast<double>(last - first) / seconds;
}

}  // namespace stfs::tools
