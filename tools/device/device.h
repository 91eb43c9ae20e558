// Names a device, and lists the devices of this machine.
//
// `cpu` always means the CPU. A bare `cuda` is refused with the list of available devices: this code never
// asks a framework or a driver for a default.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/error.h"

namespace stfs::device {

struct Device {
  enum class Kind : std::uint8_t { Cpu, Cuda };
  Kind kind = Kind::Cpu;
  int index = 0;  // of a GPU, in the driver's order
  std::string
      uuid;  // of a GPU, "GPU-...", or of a part of one, "MIG-..."; set if the user named it or if known

  /// Returns, for example, "cpu" or "cuda:1".
  [[nodiscard]] std::string name() const;
  /// Ignores the UUID, which only one of the two may know.
  friend bool operator==(const Device& a, const Device& b) { return a.kind == b.kind && a.index == b.index; }
};

/// Parses `cpu`, `cuda:N`, `cuda:GPU-uuid` and `cuda:MIG-uuid`. Does not check that the device exists, except
/// for a UUID, because only the driver can turn a UUID into an index.
/// @return InvalidArgument (EINVAL) with the mistake and the available devices; ENODEV if no device has this
///   UUID.
Result<Device> parse_device(std::string_view text);

struct DeviceInfo {
  Device device;
  std::string description;  // "NVIDIA H200", or the processor's name
  std::uint64_t total_bytes = 0;
  std::optional<std::uint64_t> free_bytes;  // nothing if the answer would take the GPU's memory
  std::string problem;                      // the reason why this device cannot be queried; empty if it can
};

struct DeviceList {
  std::vector<DeviceInfo> devices;  // the CPU is always first
  std::string why_no_cuda;          // one sentence for the user; empty if there is a GPU
};

/// Asks the driver, which may take seconds when the driver starts. Never fails. Creates no context on a GPU,
/// so the list takes no memory of a GPU. A GPU that is broken or taken is in the list with its `problem`.
DeviceList list_devices();

}  // namespace stfs::device
