// Small models for servers: arenas of the real CPU, and the plan with the places of the tensors.
#pragma once

#include <cstring>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "tools/device/backend.h"
#include "tools/serve/generation_maker.h"
#include "tools/serve/served_model.h"
#include "tools/upload/upload.h"

namespace stfs::test {

/// Tensors "a" (U8, with that content) and "b" (F32 [2], 1 and 2), in one arena.
inline upload::Resident resident(const std::string& content) {
  using namespace device;
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

/// A generation of a resident. It shares no memory.
inline serve::Generation generation_of(upload::Resident made, std::uint64_t number) {
  serve::Generation generation;
  generation.number = number;
  generation.layout = serve::whole_layout(made.plan, std::move(made.arenas), number);
  generation.plan = std::move(made.plan);
  generation.changed_tensors = generation.plan.tensors.size();
  return generation;
}

inline std::shared_ptr<const serve::ServedModel> served(const serve::Generation& generation,
                                                        const std::string& version = "") {
  const serve::ServedIdentity identity = {generation.number, 4711, {"/models/m.safetensors"}, version};
  auto model = serve::ServedModel::make(identity, generation.layout, generation.plan);
  if (!model) throw std::runtime_error(model.error().message);
  return *model;
}

inline std::shared_ptr<const serve::ServedModel> served_model(std::uint64_t number,
                                                              const std::string& content) {
  return served(generation_of(resident(content), number));
}

/// The generation after `before`: "a" has another content, of the same size, and "b" is shared.
inline serve::Generation with_other_a(const serve::Generation& before, const std::string& content) {
  using namespace serve;
  Generation next;
  next.number = before.number + 1;
  next.plan = before.plan;
  const std::vector<bool> changed = {true, false};
  const PartOfPlan part = part_to_upload(next.plan, before.layout, changed, 64);
  auto arena = device::Backend::open({}).value()->allocate(part.plan.devices.at(0).arena_bytes, true).value();
  std::memcpy(arena->host_bytes().data(), content.data(), content.size());
  next.layout = next_layout(before.layout, changed, part, {std::move(arena)}, next.number);
  next.changed_tensors = 1;
  return next;
}

}  // namespace stfs::test
