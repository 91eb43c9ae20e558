// Which device is meant, and which ones are there.
//
// `cpu` means the CPU, always. A bare `cuda` is refused with the list of what is there: nothing here asks a
// framework or a driver for a default.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/error.h"

namespace stfs::upload {

struct Device {
  enum class Kind : std::uint8_t { Cpu, Cuda };
  Kind kind = Kind::Cpu;
  int index = 0;     // of a GPU, in the driver's order
  std::string uuid;  // of a GPU, "GPU-..." where it was named so or is known

  /// "cpu", "cuda:1".
  [[nodiscard]] std::string name() const;
  friend bool operator==(const Device&, const Device&) = default;
};

/// Understands `cpu`, `cuda:N` and `cuda:GPU-uuid`. Does not look whether it is there, but for a UUID, which
/// only the driver can turn into an index.
/// @return InvalidArgument (EINVAL) with what is wrong and which devices there are; ENODEV for a UUID that no
///         device has.
Result<Device> parse_device(std::string_view text);

struct DeviceInfo {
  Device device;
  std::string description;  // "NVIDIA H200", or the processor's name
  std::uint64_t total_bytes = 0;
  std::optional<std::uint64_t>
      free_bytes;       // nothing where that can't be asked without taking the GPU's memory
  std::string problem;  // why nothing can be asked of it; empty where all is well
};

struct DeviceList {
  std::vector<DeviceInfo> devices;  // the CPU first, always
  std::string why_no_cuda;          // empty where there is a GPU; else one sentence for a person
};

/// Asks the driver, which may take seconds at its first start. Never fails. Creates no context on a GPU: the
/// list takes none of their memory, and a GPU that is broken or taken is in it with its `problem`.
DeviceList list_devices();

}  // namespace stfs::upload
