// Archives with known bytes for tests of uploads, and plans of these archives.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "core/format/header.h"
#include "tests/support/archive_bytes.h"
#include "tests/support/catch.h"
#include "tests/support/temporary_directory.h"
#include "tools/upload/upload.h"

namespace stfs::test {

/// Bytes that differ from place to place and from seed to seed.
inline std::string pattern_bytes(std::uint64_t size_bytes, std::uint64_t seed) {
  std::string bytes(size_bytes, '\0');
  std::uint64_t state = seed * 0x9E3779B97F4A7C15U + 1;
  for (char& byte : bytes) {
    state = state * 6364136223846793005U + 1442695040888963407U;
    byte = static_cast<char>(state >> 56U);
  }
  return bytes;
}

struct UploadModel {
  TemporaryDirectory directory;
  std::map<std::string, std::string> tensors;  // name -> bytes
  std::string path;

  /// Data in the order given.
  void write(const std::vector<TensorSpec>& specs, const std::string& file = "m.safetensors") {
    std::string data;
    for (const TensorSpec& spec : specs) {
      const std::string bytes =
          pattern_bytes(data_size_bytes(spec.dtype, spec.shape).value(), data.size() + 7);
      tensors[spec.name] = bytes;
      data += bytes;
    }
    path = directory.write(file, format_header(specs, {}, 8, 0).value() + data);
  }

  /// Tensors of all sizes that matter: empty, a few bytes, around the alignment, around a slot, several
  /// slots.
  void write_mixed(std::uint64_t slot_bytes) {
    std::vector<TensorSpec> specs;
    const auto add = [&](std::uint64_t size_bytes) {
      specs.push_back({"t" + std::to_string(specs.size()), Dtype::U8, {size_bytes}});
    };
    for (const std::uint64_t size_bytes : {0U, 1U, 255U, 256U, 257U, 0U, 3U, 5000U}) add(size_bytes);
    for (const std::uint64_t size_bytes : {slot_bytes - 1, slot_bytes, slot_bytes + 1, 3 * slot_bytes + 17}) {
      add(size_bytes);
      add(size_bytes % 97);
    }
    for (std::uint64_t at = 0; at < 200; ++at) add(at * 7 % 300);
    write(specs);
  }
};

inline upload::PlanRequest request_for(const std::string& path, std::vector<std::string> patterns = {}) {
  upload::PlanRequest request;
  request.sources = {{path, std::move(patterns)}};
  request.rules = device::DeviceRules::parse_device_list("cpu").value();
  return request;
}

inline upload::Plan plan_for(const upload::PlanRequest& request) {
  auto plan = upload::make_plan(request);
  INFO((plan ? std::string() : plan.error().message));
  REQUIRE(plan);
  return std::move(*plan);
}

/// The bytes at the place of a planned tensor.
inline std::string bytes_on_device(const upload::Resident& resident, const upload::PlannedTensor& tensor) {
  const auto bytes =
      resident.arenas[tensor.device]->host_bytes().subspan(tensor.place.offset, tensor.place.size_bytes);
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

}  // namespace stfs::test
