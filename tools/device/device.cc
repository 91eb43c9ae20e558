// Parses names of devices and lists the devices.
#include "tools/device/device.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>

#include "tools/device/cpu_memory.h"
#include "tools/device/cuda_backend.h"
#include "tools/text/printable.h"

namespace stfs::device {
namespace {

constexpr std::string_view kCudaPrefix = "cuda:";
// A part of a GPU (MIG) also has a UUID.
constexpr std::array<std::string_view, 2> kUuidPrefixes = {"GPU-", "MIG-"};

/// Returns, for example, "cpu, cuda:0 (NVIDIA H200)", or "cpu; no GPU: WHY".
std::string devices_text() {
  const DeviceList list = list_devices();
  std::string text;
  for (const DeviceInfo& info : list.devices) {
    if (!text.empty()) text += ", ";
    text += info.device.name();
    if (info.device.kind == Device::Kind::Cuda) text += fmt::format(" ({})", info.description);
  }
  if (!list.why_no_cuda.empty()) text += "; no GPU: " + list.why_no_cuda;
  return text;
}

tl::unexpected<Error> refuse(std::string_view text, std::string_view why) {
  const std::string subject = text.empty() ? "" : tools::printable_name(text) + ": ";
  return fail(ErrorCode::InvalidArgument, EINVAL,
              fmt::format("{}{}; there are: {}", subject, why, devices_text()));
}

Result<Device> find_uuid(std::string_view text, std::string_view uuid) {
  const DeviceList list = list_devices();
  for (const DeviceInfo& info : list.devices) {
    if (info.device.kind == Device::Kind::Cuda && info.device.uuid == uuid) return info.device;
  }
  return fail(ErrorCode::NotFound, ENODEV,
              fmt::format("{}: {}", tools::printable_name(text),
                          list.why_no_cuda.empty() ? "no GPU has this UUID" : list.why_no_cuda));
}

}  // namespace

std::string Device::name() const {
  return kind == Kind::Cpu ? "cpu" : fmt::format("cuda:{}", index);
}

Result<Device> parse_device(std::string_view text) {
  if (text == "cpu") return Device{};
  if (text.empty()) return refuse(text, "the list of devices is empty");
  if (text == "cuda" || text == "gpu") return refuse(text, "the number of the GPU is missing, as in cuda:0");
  if (!text.starts_with(kCudaPrefix)) return refuse(text, "no such kind of device");
  const std::string_view which = text.substr(kCudaPrefix.size());
  const auto begins_text = [&](std::string_view prefix) { return which.starts_with(prefix); };
  if (std::ranges::any_of(kUuidPrefixes, begins_text)) return find_uuid(text, which);
  Device device{.kind = Device::Kind::Cuda, .index = 0, .uuid = {}};
  const auto [end, error] = std::from_chars(which.data(), which.data() + which.size(), device.index);
  const bool is_number = error == std::errc() && end == which.data() + which.size() && device.index >= 0;
  if (!is_number) return refuse(text, "is neither cuda:NUMBER nor cuda:GPU-UUID nor cuda:MIG-UUID");
  return device;
}

DeviceList list_devices() {
  DeviceList list;
  const MemoryInfo memory = cpu_memory();
  list.devices.push_back({.device = {},
                          .description = cpu_description(),
                          .total_bytes = memory.total_bytes,
                          .free_bytes = memory.free_bytes,
                          .problem = {}});
  auto gpus = list_cuda_devices();
  if (!gpus) {
    list.why_no_cuda = gpus.error().message;
    return list;
  }
  for (DeviceInfo& info : *gpus) list.devices.push_back(std::move(info));
  return list;
}

}  // namespace stfs::device
