// Writes the manifest as JSON, and checks it when reading.
#include "tools/serve/serve_manifest.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "core/format/header.h"
#include "tools/serve/serve_protocol.h"
#include "tools/text/json_document.h"

namespace stfs::upload {
namespace {

using tools::Json;

tl::unexpected<Error> wrong(std::string_view what) {
  return fail(ErrorCode::InvalidArgument, EPROTO, fmt::format("the manifest is wrong: {}", what));
}

Result<std::string> device_text(const Device& device) {
  if (device.kind == Device::Kind::Cpu) return "cpu";
  if (!device.uuid.empty()) return "cuda:" + device.uuid;
  for (const DeviceInfo& info : list_devices().devices) {
    if (info.device == device && !info.device.uuid.empty()) return "cuda:" + info.device.uuid;
  }
  return fail(ErrorCode::System, ENODEV,
              fmt::format("{}: has no UUID: other processes cannot find it", device.name()));
}

/// Returns a member; nothing if it is absent or has another type. The text is untrusted and may be anything.
template <class T>
std::optional<T> member(const Json& object, const char* key) {
  const auto found = object.find(key);
  if (found == object.end()) return std::nullopt;
  if constexpr (std::is_same_v<T, std::string>) {
    if (!found->is_string()) return std::nullopt;
  } else {
    if (!found->is_number_unsigned()) return std::nullopt;
  }
  return found->template get<T>();
}

const Json* array_member(const Json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_array() ? &*found : nullptr;
}

std::optional<std::vector<std::uint64_t>> parse_shape(const Json& object) {
  const Json* array = array_member(object, "shape");
  if (array == nullptr) return std::nullopt;
  std::vector<std::uint64_t> shape;
  for (const Json& extent : *array) {
    if (!extent.is_number_unsigned()) return std::nullopt;
    shape.push_back(extent.get<std::uint64_t>());
  }
  return shape;
}

Result<LeasedTensor> parse_tensor(const Json& object, const std::vector<ManifestArena>& arenas) {
  if (!object.is_object()) return wrong("a tensor is not an object");
  auto name = member<std::string>(object, "name");
  const auto dtype = dtype_named(member<std::string>(object, "dtype").value_or(""));
  auto shape = parse_shape(object);
  const auto arena = member<std::uint64_t>(object, "arena");
  const auto offset = member<std::uint64_t>(object, "offset");
  const auto size_bytes = member<std::uint64_t>(object, "size_bytes");
  const auto changed_in = member<std::uint64_t>(object, "changed_in");
  if (!name || !dtype || !shape || !arena || !offset || !size_bytes || !changed_in)
    return wrong("a tensor lacks a member");
  const auto place = ByteRange::checked(*offset, *size_bytes);
  if (*arena >= arenas.size() || !place || place->end() > arenas[*arena].size_bytes) {
    return wrong("a tensor lies outside of its arena");
  }
  if (const auto due = data_size_bytes(*dtype, *shape); !due || *due != *size_bytes) {
    return wrong("the size of a tensor is not the size of its elements");
  }
  return LeasedTensor{std::move(*name), *dtype,     std::move(*shape), static_cast<std::uint32_t>(*arena),
                      *place,           *changed_in};
}

}  // namespace

Result<ServeManifest> manifest_of(const ServedIdentity& identity, const ServedLayout& layout,
                                  const Plan& plan) {
  if (layout.arenas.size() > kMaxServeArenas) {
    return fail(ErrorCode::InvalidArgument, EMSGSIZE,
                fmt::format("{} devices, at most {} can be served", layout.arenas.size(), kMaxServeArenas));
  }
  ServeManifest manifest{identity, {}, {}};
  for (const ServedArena& it : layout.arenas) {
    auto device = device_text(it.arena->device());
    if (!device) return pass_on(std::move(device));
    manifest.arenas.push_back({std::move(*device), it.arena->size_bytes(), it.number});
  }
  manifest.tensors.reserve(plan.tensors.size());
  for (std::size_t at = 0; at < plan.tensors.size(); ++at) {
    const PlannedTensor& tensor = plan.tensors[at];
    const ServedPlace& place = layout.places[at];
    manifest.tensors.push_back(
        {tensor.name, tensor.dtype, tensor.shape, place.arena, place.place, place.changed_in});
  }
  return manifest;
}

std::string manifest_text(const ServeManifest& manifest) {
  Json document;
  document["generation"] = manifest.identity.generation;
  document["server"] = manifest.identity.server;
  document["sources"] = manifest.identity.sources;
  document["version"] = manifest.identity.version;
  document["arenas"] = Json::array();
  for (const ManifestArena& arena : manifest.arenas) {
    document["arenas"].push_back(
        {{"device", arena.device}, {"size_bytes", arena.size_bytes}, {"number", arena.number}});
  }
  Json tensors = Json::array();
  for (const LeasedTensor& tensor : manifest.tensors) {
    tensors.push_back({{"name", tensor.name},
                       {"dtype", name_of(tensor.dtype)},
                       {"shape", tensor.shape},
                       {"arena", tensor.arena},
                       {"offset", tensor.place.offset},
                       {"size_bytes", tensor.place.size_bytes},
                       {"changed_in", tensor.changed_in}});
  }
  document["tensors"] = std::move(tensors);
  return tools::json_line(document);
}

Result<ServeManifest> parse_manifest(std::string_view text) {
  return guard_memory([&]() -> Result<ServeManifest> {
    const Json document = tools::parse_json(text);
    if (!document.is_object()) return wrong("it is not a JSON object");
    ServeManifest manifest;
    const auto generation = member<std::uint64_t>(document, "generation");
    const auto server = member<std::uint64_t>(document, "server");
    auto version = member<std::string>(document, "version");
    const Json* sources = array_member(document, "sources");
    const Json* arenas = array_member(document, "arenas");
    const Json* tensors = array_member(document, "tensors");
    if (!generation || !server || !version || sources == nullptr || arenas == nullptr || tensors == nullptr) {
      return wrong("a member is missing");
    }
    manifest.identity.generation = *generation;
    manifest.identity.server = *server;
    manifest.identity.version = std::move(*version);
    for (const Json& source : *sources) {
      if (!source.is_string()) return wrong("a source is not a text");
      manifest.identity.sources.push_back(source.get<std::string>());
    }
    for (const Json& object : *arenas) {
      if (!object.is_object()) return wrong("an arena is not an object");
      auto device = member<std::string>(object, "device");
      const auto size_bytes = member<std::uint64_t>(object, "size_bytes");
      const auto number = member<std::uint64_t>(object, "number");
      if (!device || !size_bytes || !number) return wrong("an arena lacks a member");
      if (std::ranges::find(manifest.arenas, *number, &ManifestArena::number) != manifest.arenas.end())
        return wrong("two arenas have the same number");
      manifest.arenas.push_back({std::move(*device), *size_bytes, *number});
    }
    manifest.tensors.reserve(tensors->size());
    for (const Json& object : *tensors) {
      auto tensor = parse_tensor(object, manifest.arenas);
      if (!tensor) return pass_on(std::move(tensor));
      manifest.tensors.push_back(std::move(*tensor));
    }
    return manifest;
  });
}

}  // namespace stfs::upload
