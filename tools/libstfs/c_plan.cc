// Plans of uploads.
#include <fmt/format.h>

#include <string_view>

#include "tools/device/conversion.h"
#include "tools/libstfs/c_error.h"
#include "tools/libstfs/c_struct.h"
#include "tools/libstfs/handles.h"

using namespace stfs;
using namespace stfs::interface;

namespace {

Result<device::DeviceRules> rules_of(const stfs_plan_options& options) {
  if ((options.devices == nullptr) == (options.rules == nullptr)) {
    return refuse("give either devices or rules");
  }
  return options.devices != nullptr ? device::DeviceRules::parse_device_list(options.devices)
                                    : device::DeviceRules::parse(options.rules, "rules");
}

Result<upload::PlanRequest> request_of(const stfs_model& model, const stfs_plan_options& options) {
  if (!model.shared->options.deltas.empty()) {
    return fail(ErrorCode::InvalidArgument, ENOTSUP,
                model.shared->path + ": an upload reads no delta: mount the variant, and upload the mount");
  }
  upload::PlanRequest request;
  request.sources.push_back({model.shared->named, {}});
  for (std::size_t at = 0; at < options.pattern_count; ++at) {
    request.sources.front().patterns.emplace_back(options.patterns[at]);
  }
  auto rules = rules_of(options);
  RETURN_IF_ERROR(rules);
  request.rules = std::move(*rules);
  if (options.dtype != nullptr) {
    auto dtype = device::conversion_target_named(options.dtype);
    RETURN_IF_ERROR(dtype);
    request.dtype = *dtype;
  }
  request.casts = options.must_cast != 0;
  return request;
}

}  // namespace

stfs_plan* stfs_plan_make(const stfs_model* model, const stfs_plan_options* options, stfs_error* error) {
  return answer(error, [&]() -> Result<stfs_plan*> {
    if (options == nullptr) return refuse("stfs_plan_make: the options are missing: they name the devices");
    const auto known = take_struct(options);
    RETURN_IF_ERROR(known);
    const auto request = request_of(*model, *known);
    RETURN_IF_ERROR(request);
    auto plan = upload::make_plan(*request);
    RETURN_IF_ERROR(plan);
    return new stfs_plan{std::move(*plan)};
  });
}

void stfs_plan_close(stfs_plan* plan) {
  delete plan;
}

std::uint64_t stfs_plan_count(const stfs_plan* plan) {
  return plan->plan.tensors.size();
}

int stfs_plan_describe(const stfs_plan* plan, std::uint64_t position, stfs_tensor_info* info,
                       stfs_error* error) {
  return answer(error, [&]() -> Result<void> {
    if (position >= plan->plan.tensors.size()) {
      return refuse(fmt::format("stfs_plan_describe: no tensor {}", position));
    }
    const upload::PlannedTensor& planned = plan->plan.tensors[static_cast<std::size_t>(position)];
    const device::Device& device = plan->plan.devices[planned.device].device;
    stfs_tensor_info known{};
    known.name = {planned.name.data(), planned.name.size()};
    known.dtype = static_cast<std::int32_t>(planned.dtype);
    known.rank = static_cast<std::uint32_t>(planned.shape.size());
    known.shape = planned.shape.data();
    known.size_bytes = planned.place.size_bytes;
    known.archive = plan->plan.archive_of(planned).path().c_str();
    known.offset = plan->plan.file_offset(planned);
    known.device_kind = device.kind == device::Device::Kind::Cpu ? STFS_CPU : STFS_CUDA;
    known.device_index = device.index;
    known.flags = STFS_WRITABLE;
    return give_struct(known, info);
  });
}

std::uint64_t stfs_plan_read_bytes(const stfs_plan* plan) {
  return plan->plan.read_bytes();
}

std::uint64_t stfs_plan_left_out_count(const stfs_plan* plan) {
  return plan->plan.left_out.size();
}

int stfs_plan_left_out(const stfs_plan* plan, std::uint64_t position, stfs_text* name, stfs_error* error) {
  return answer(error, [&]() -> Result<void> {
    if (position >= plan->plan.left_out.size()) {
      return refuse(fmt::format("stfs_plan_left_out: no name {}", position));
    }
    const std::string& left_out = plan->plan.left_out[static_cast<std::size_t>(position)];
    *name = {left_out.data(), left_out.size()};
    return {};
  });
}
