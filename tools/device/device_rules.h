// Chooses the devices of each tensor by an ordered list of rules. The first rule that matches a name decides.
//
//     model.layers.[0-9].*     cuda:0
//     *.q_proj.weight          cuda:0 shard(0,1/2)     the first half of dimension 0
//     *.norm.weight            cuda:0,cuda:1           a replica on each; read once
//     *                        cpu
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/error.h"
#include "tools/device/device.h"

namespace stfs::device {

/// Part `part` of `parts` of a dimension, counted from 1 as in the text. The dimension must divide evenly.
struct ShardRule {
  std::uint32_t dimension = 0;
  std::uint32_t part = 1;
  std::uint32_t parts = 1;
};

struct DeviceRule {
  std::string pattern;          // of tensors' names, as for fnmatch(3)
  std::vector<Device> devices;  // at least one; several: a replica on each
  std::optional<ShardRule> shard;
};

class DeviceRules {
 public:
  /// Parses the value of `--device`: one device or several separated by commas, for every tensor.
  static Result<DeviceRules> parse_device_list(std::string_view text);
  /// Parses rules, one on each line; `#` begins a comment.
  /// @param origin  the source of the text; errors name it and the line.
  static Result<DeviceRules> parse(std::string_view text, const std::string& origin);
  /// Reads a file of rules.
  static Result<DeviceRules> read_file(const std::filesystem::path& path);

  /// Returns the first rule that matches, or null: the tensor is then left out.
  [[nodiscard]] const DeviceRule* rule_for(const std::string& name) const;
  [[nodiscard]] const std::vector<DeviceRule>& rules() const { return rules_; }

 private:
  std::vector<DeviceRule> rules_;
};

}  // namespace stfs::device
