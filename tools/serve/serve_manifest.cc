// Writes the manifest as JSON, and checks a manifest that is read.
#include "tools/serve/serve_manifest.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <utility>

#include "core/base/utf8.h"
#include "core/format/header.h"
#include "core/format/json_cursor.h"
#include "core/format/json_syntax.h"
#include "tools/serve/serve_protocol.h"
#include "tools/text/json_document.h"

namespace stfs::serve {
namespace {

using tools::Json;

/// This is more than a command line can name.
constexpr std::size_t kMostSources = 1'000'000;

tl::unexpected<Error> wrong(std::string_view what) {
  return fail(ErrorCode::InvalidArgument, EPROTO, fmt::format("the manifest is wrong: {}", what));
}

Result<std::string> device_text(const device::Device& device) {
  if (device.kind == device::Device::Kind::Cpu) return "cpu";
  if (!device.uuid.empty()) return "cuda:" + device.uuid;
  for (const device::DeviceInfo& info : device::list_devices().devices) {
    if (info.device == device && !info.device.uuid.empty()) return "cuda:" + info.device.uuid;
  }
  return fail(ErrorCode::System, ENODEV,
              fmt::format("{}: has no UUID: other processes cannot find it", device.name()));
}

/// Reads the text without a tree, so that a server can't make a client's memory much larger than the text.
class ManifestReader {
 public:
  explicit ManifestReader(std::string_view text) : json_(text) {}

  Result<ServeManifest> read() {
    if (json_.peek() != '{') return wrong("it is not a JSON object");
    auto taken =
        json_.for_each_member([this](std::string_view key, std::size_t) { return take_member(key); });
    RETURN_IF_ERROR(taken);
    if (!generation_ || !server_ || !version_ || !sources_ || !arenas_ || !tensors_)
      return wrong("a member is missing");
    // The arenas may follow the tensors in the text.
    for (const LeasedTensor& tensor : *tensors_) {
      if (tensor.arena >= arenas_->size() || tensor.place.end() > (*arenas_)[tensor.arena].size_bytes)
        return wrong("a tensor lies outside of its arena");
    }
    return ServeManifest{{*generation_, *server_, std::move(*sources_), std::move(*version_)},
                         std::move(*arenas_),
                         std::move(*tensors_)};
  }

 private:
  Result<void> take_member(std::string_view key) {
    if (key == "generation") {
      generation_ = json_.take_whole_number();
    } else if (key == "server") {
      server_ = json_.take_whole_number();
    } else if (key == "version") {
      version_ = take_text();
    } else if (key == "sources") {
      return take_items(sources_, kMostSources, [this] { return take_source(); });
    } else if (key == "arenas") {
      return take_items(arenas_, kMaxServeArenas, [this] { return take_arena(); });
    } else if (key == "tensors") {
      return take_items(tensors_, std::numeric_limits<std::size_t>::max(), [this] { return take_tensor(); });
    } else {
      json_.take_value();
    }
    return {};
  }

  /// Takes any value. The result is nothing unless the value is an array.
  template <class Item, class Take>
  Result<void> take_items(std::optional<std::vector<Item>>& items, std::size_t most, const Take& take) {
    items.reset();
    if (json_.peek() != '[') {
      json_.take_value();
      return {};
    }
    items.emplace();
    return json_.for_each_element([&]() -> Result<void> {
      if (items->size() == most) return wrong("an array is too long");
      auto item = take();
      RETURN_IF_ERROR(item);
      items->push_back(std::move(*item));
      return {};
    });
  }

  /// Takes any value. The result is nothing unless the value is a string.
  std::optional<std::string> take_text() {
    if (json_.peek() != '"') {
      json_.take_value();
      return std::nullopt;
    }
    std::string decoded;
    return std::string(json_.take_string(decoded));
  }

  Result<std::string> take_source() {
    auto source = take_text();
    if (!source) return wrong("a source is not a text");
    return std::move(*source);
  }

  Result<ManifestArena> take_arena() {
    if (json_.peek() != '{') return wrong("an arena is not an object");
    std::optional<std::string> device;
    std::optional<std::uint64_t> size_bytes;
    std::optional<std::uint64_t> number;
    static_cast<void>(json_.for_each_member([&](std::string_view key, std::size_t) -> Result<void> {
      if (key == "device") {
        device = take_text();
      } else if (key == "size_bytes") {
        size_bytes = json_.take_whole_number();
      } else if (key == "number") {
        number = json_.take_whole_number();
      } else {
        json_.take_value();
      }
      return {};
    }));
    if (!device || !size_bytes || !number) return wrong("an arena lacks a member");
    if (std::ranges::find(*arenas_, *number, &ManifestArena::number) != arenas_->end())
      return wrong("two arenas have the same number");
    return ManifestArena{std::move(*device), *size_bytes, *number};
  }

  Result<LeasedTensor> take_tensor() {
    if (json_.peek() != '{') return wrong("a tensor is not an object");
    std::optional<std::string> name;
    std::optional<Dtype> dtype;
    std::optional<std::vector<std::uint64_t>> shape;
    std::optional<std::uint64_t> arena;
    std::optional<std::uint64_t> offset;
    std::optional<std::uint64_t> size_bytes;
    std::optional<std::uint64_t> changed_in;
    auto taken = json_.for_each_member([&](std::string_view key, std::size_t) -> Result<void> {
      if (key == "name") {
        name = take_text();
      } else if (key == "dtype") {
        dtype = dtype_named(take_text().value_or(""));
      } else if (key == "shape") {
        return take_items(shape, std::numeric_limits<std::size_t>::max(), [this] { return take_extent(); });
      } else if (key == "arena") {
        arena = json_.take_whole_number();
      } else if (key == "offset") {
        offset = json_.take_whole_number();
      } else if (key == "size_bytes") {
        size_bytes = json_.take_whole_number();
      } else if (key == "changed_in") {
        changed_in = json_.take_whole_number();
      } else {
        json_.take_value();
      }
      return {};
    });
    RETURN_IF_ERROR(taken);
    if (!name || !dtype || !shape || !arena || !offset || !size_bytes || !changed_in)
      return wrong("a tensor lacks a member");
    const auto place = ByteRange::checked(*offset, *size_bytes);
    if (*arena >= kMaxServeArenas || !place) return wrong("a tensor lies outside of its arena");
    if (const auto due = data_size_bytes(*dtype, *shape); !due || *due != *size_bytes)
      return wrong("the size of a tensor is not the size of its elements");
    shape->shrink_to_fit();
    return LeasedTensor{std::move(*name), *dtype,     std::move(*shape), static_cast<std::uint32_t>(*arena),
                        *place,           *changed_in};
  }

  Result<std::uint64_t> take_extent() {
    const auto extent = json_.take_whole_number();
    if (!extent) return wrong("an extent is not a whole number");
    return *extent;
  }

  JsonCursor json_;
  std::optional<std::uint64_t> generation_;
  std::optional<std::uint64_t> server_;
  std::optional<std::string> version_;
  std::optional<std::vector<std::string>> sources_;
  std::optional<std::vector<ManifestArena>> arenas_;
  std::optional<std::vector<LeasedTensor>> tensors_;
};

}  // namespace

Result<ServeManifest> manifest_of(const ServedIdentity& identity, const ServedLayout& layout,
                                  const upload::Plan& plan) {
  if (layout.arenas.size() > kMaxServeArenas) {
    return fail(ErrorCode::InvalidArgument, EMSGSIZE,
                fmt::format("{} devices, at most {} can be served", layout.arenas.size(), kMaxServeArenas));
  }
  ServeManifest manifest{identity, {}, {}};
  for (const ServedArena& it : layout.arenas) {
    auto device = device_text(it.arena->device());
    RETURN_IF_ERROR(device);
    manifest.arenas.push_back({std::move(*device), it.arena->size_bytes(), it.number});
  }
  manifest.tensors.reserve(plan.tensors.size());
  for (std::size_t at = 0; at < plan.tensors.size(); ++at) {
    const upload::PlannedTensor& tensor = plan.tensors[at];
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
    if (!is_utf8(text) || find_json_error(text, tools::kMostJsonLevels)) return wrong("it is not JSON");
    return ManifestReader(text).read();
  });
}

}  // namespace stfs::serve
