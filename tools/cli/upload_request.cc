// Converts the command line to a PlanRequest.
#include "tools/cli/upload_request.h"

#include <utility>

#include "tools/cli/diagnostic.h"
#include "tools/device/conversion.h"

namespace stfs::tools {

void add_upload_options(CommandLine& line, UploadRequest& request) {
  line.positionals(request.sources, "SOURCE",
                   "Archive, sharded model, directory of archives, mount, or tensor's file in a mount.");
  line.text(request.device, "-d,--device", "DEVICE",
            "cpu, cuda:0, several devices with commas, or @FILE for a file of rules.")
      .suggests({"cpu", "cuda:0"});
  line.texts(request.patterns, "--select", "PATTERN",
             "Only tensors whose name matches PATTERN. May be repeated.");
  line.text(request.dtype, "--dtype", "DTYPE", "Convert floating-point tensors to DTYPE on the device.")
      .suggests(device::conversion_target_names());
  line.flag(request.is_casting, "--cast", "With --dtype: convert quantized values without their scales.");
}

tl::expected<upload::PlanRequest, int> plan_request(const UploadRequest& request, Streams& streams) {
  const auto wrong_usage = [&](std::string_view message) {
    return tl::unexpected(report_wrong_usage(streams, message));
  };
  upload::PlanRequest to;
  if (request.sources.empty()) return wrong_usage("SOURCE is required");
  for (const std::string& source : request.sources) to.sources.push_back({source, request.patterns});
  if (request.device.empty()) return wrong_usage("--device is required: `stfs devices` lists them");
  if (!request.dtype.empty()) {
    const auto dtype = device::conversion_target_named(request.dtype);
    if (!dtype) return wrong_usage("--dtype: " + dtype.error().message);
    to.dtype = *dtype;
  }
  if (request.is_casting && request.dtype.empty()) return wrong_usage("--cast needs --dtype");
  to.casts = request.is_casting;
  const bool is_file = request.device.starts_with('@');
  auto rules = is_file ? device::DeviceRules::read_file(request.device.substr(1))
                       : device::DeviceRules::parse_device_list(request.device);
  if (!rules) {
    const std::string message = (is_file ? "" : "--device: ") + rules.error().message;
    if (!is_file && rules.error().code == ErrorCode::InvalidArgument) return wrong_usage(message);
    return tl::unexpected(report_failure(streams, message));
  }
  to.rules = std::move(*rules);
  return to;
}

}  // namespace stfs::tools
