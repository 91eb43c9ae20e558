// Small models to be served: arenas of the real CPU, and the plan that says what lies in them.
#pragma once

#include <cstring>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "tools/device/backend.h"
#include "tools/serve/served_model.h"
#include "tools/upload/upload.h"

namespace stfs::test {

/// Tensors "a" (U8, with that content) and "b" (F32 [2], 1 and 2), in one arena.
inline upload::Resident resident(const std::string& content) {
  using namespace upload;
  auto backend = Backend::open(Device{});
  if (!backend) throw std::runtime_error(backend.error().message);
  const std::uint64_t b_at = (content.size() + kTensorAlignment) / kTensorAlignment * kTensorAlignment;
  auto arena = (*backend)->allocate(b_at + 8, true);
  if (!arena) throw std::runtime_error(arena.error().message);
  const std::span<std::byte> bytes = (*arena)->host_bytes();
  const std::array<float, 2> b = {1, 2};
  std::memcpy(bytes.data(), content.data(), content.size());
  std::memcpy(bytes.data() + b_at, b.data(), sizeof(b));

  Resident made;
  made.plan.devices = {{Device{}, b_at + 8}};
  PlannedTensor first;
  first.name = "a";
  first.shape = {content.size()};
  first.place = {0, content.size()};
  PlannedTensor second;
  second.name = "b";
  second.dtype = second.source_dtype = Dtype::F32;
  second.shape = {2};
  second.place = {b_at, 8};
  made.plan.tensors = {first, second};
  made.arenas.push_back(std::move(*arena));
  return made;
}

inline std::shared_ptr<const upload::ServedModel> served_model(std::uint64_t generation,
                                                               const std::string& content) {
  auto made = resident(content);
  auto model = upload::ServedModel::make(generation, {"/models/m.safetensors"}, made.arenas, made.plan);
  if (!model) throw std::runtime_error(model.error().message);
  return *model;
}

}  // namespace stfs::test
