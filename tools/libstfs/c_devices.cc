// Lists the devices.
#include <fmt/format.h>

#include <string>
#include <vector>

#include "tools/device/device.h"
#include "tools/libstfs/c_error.h"
#include "tools/libstfs/c_struct.h"
#include "tools/libstfs/handles.h"

using namespace stfs;
using namespace stfs::interface;

struct stfs_device_list {
  device::DeviceList known;
  std::vector<std::string> names;  // one for each of known.devices
};

stfs_device_list* stfs_device_list_make(stfs_error* error) {
  return answer(error, []() -> Result<stfs_device_list*> {
    auto list = std::make_unique<stfs_device_list>(stfs_device_list{device::list_devices(), {}});
    for (const device::DeviceInfo& info : list->known.devices) list->names.push_back(info.device.name());
    return list.release();
  });
}

void stfs_device_list_close(stfs_device_list* list) {
  delete list;
}

std::uint64_t stfs_device_list_count(const stfs_device_list* list) {
  return list->names.size();
}

int stfs_device_list_describe(const stfs_device_list* list, std::uint64_t position, stfs_device_info* info,
                              stfs_error* error) {
  return answer(error, [&]() -> Result<void> {
    if (position >= list->names.size())
      return refuse(fmt::format("stfs_device_list_describe: no device {}", position));
    const auto at = static_cast<std::size_t>(position);
    const device::DeviceInfo& its = list->known.devices[at];
    stfs_device_info known{};
    known.kind = its.device.kind == device::Device::Kind::Cpu ? STFS_CPU : STFS_CUDA;
    known.index = its.device.index;
    known.name = list->names[at].c_str();
    known.uuid = its.device.uuid.c_str();
    known.description = its.description.c_str();
    known.total_bytes = its.total_bytes;
    known.free_bytes = its.free_bytes.value_or(UINT64_MAX);
    known.problem = its.problem.c_str();
    return give_struct(known, info);
  });
}

const char* stfs_device_list_why_no_cuda(const stfs_device_list* list) {
  return list->known.why_no_cuda.c_str();
}
