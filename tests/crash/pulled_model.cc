#include "tests/crash/pulled_model.h"

#include <fmt/format.h>

#include <array>
#include <nlohmann/json.hpp>
#include <string_view>

#include "tests/support/archive_bytes.h"
#include "tests/support/choices.h"
#include "tests/support/plain.h"

namespace stfs::test {
namespace {

using Json = nlohmann::json;

struct PulledTensor {
  std::string_view archive;
  std::string_view name;
  std::uint64_t size_bytes;
};

// Some blocks are shared by tensors, some are whole blocks of one tensor, and some tensors end within a
// block.
constexpr std::array kFirst = {
    PulledTensor{"model-00001-of-00002.safetensors", "a.bias", 40},
    PulledTensor{"model-00001-of-00002.safetensors", "a.weight", 9000},
    PulledTensor{"model-00001-of-00002.safetensors", "b.weight", 3000},
    PulledTensor{"model-00002-of-00002.safetensors", "c.bias", 600},
    PulledTensor{"model-00002-of-00002.safetensors", "c.weight", 5000},
};
constexpr std::array kOtherTensors = {
    PulledTensor{"model-00001-of-00003.safetensors", "a.bias", 40},
    PulledTensor{"model-00002-of-00003.safetensors", "a.weight", 4500},
    PulledTensor{"model-00003-of-00003.safetensors", "d.weight", 5000},
};
constexpr std::array kSameArchives = {
    PulledTensor{"model-00001-of-00002.safetensors", "a.bias", 48},
    PulledTensor{"model-00002-of-00002.safetensors", "d.weight", 5000},
};

std::span<const PulledTensor> tensors_of(PulledLayout layout) {
  switch (layout) {
    case PulledLayout::OtherTensors: return kOtherTensors;
    case PulledLayout::SameArchives: return kSameArchives;
    case PulledLayout::First: break;
  }
  return kFirst;
}

/// The archives of an index by their tensors' names.
Json archives_in(const Content& index) {
  const Json document = Json::parse(text_of(index), nullptr, false);
  return document.is_object() ? document.value("weight_map", Json::object()) : Json::object();
}

std::string bytes_in(const PulledTensor& tensor, std::uint64_t version) {
  RandomChoices first(tensor.name.size() * 1000 + tensor.size_bytes);
  std::string bytes(tensor.size_bytes, '\0');
  for (char& byte : bytes) byte = static_cast<char>(first.below(256));
  for (std::uint64_t step = 1; step <= version; ++step) {
    RandomChoices choices(step * 1'000'000 + tensor.name.front() * 1000U + tensor.size_bytes);
    // Changes no byte, one byte, or several bytes.
    const std::size_t changed = choices.below(3) * choices.below(3) * tensor.size_bytes / 100 + step % 2;
    for (std::size_t times = 0; times < changed; ++times)
      bytes[choices.below(bytes.size())] = static_cast<char>(choices.below(256));
  }
  return bytes;
}

}  // namespace

PulledFiles pulled_files(PulledLayout layout, std::uint64_t version) {
  struct Archive {
    std::string header;
    std::string data;
  };
  std::map<std::string_view, Archive> archives;
  std::string map;
  for (const PulledTensor& tensor : tensors_of(layout)) {
    Archive& archive = archives[tensor.archive];
    archive.header += fmt::format(R"({}"{}":{{"dtype":"U8","shape":[{}],"data_offsets":[{},{}]}})",
                                  archive.header.empty() ? "" : ",", tensor.name, tensor.size_bytes,
                                  archive.data.size(), archive.data.size() + tensor.size_bytes);
    archive.data += bytes_in(tensor, version);
    map += fmt::format(R"({}"{}":"{}")", map.empty() ? "" : ",", tensor.name, tensor.archive);
  }
  PulledFiles files;
  const auto put = [&](std::string_view name, std::string_view text) {
    const auto bytes = bytes_of(text);
    files[std::string(name)] = {bytes.begin(), bytes.end()};
  };
  for (const auto& [name, archive] : archives)
    put(name, archive_bytes("{" + archive.header + "}", archive.data));
  put(kPulledIndex, R"({"metadata":{},"weight_map":{)" + map + "}}");
  put(kPulledConfig, fmt::format(R"({{"layout":{}}})", static_cast<int>(layout)));
  return files;
}

std::optional<std::set<std::string>> names_of_model(const DiskImage& image, const std::string& directory,
                                                    const PulledFiles& files) {
  const InodeNumber index = image.inode_at(directory + "/" + kPulledIndex);
  if (index == 0 || files.empty()) return std::nullopt;
  const Json present = archives_in(image.content(index));
  const Json due = archives_in(files.at(kPulledIndex));
  if (present.size() != due.size()) return std::nullopt;
  std::map<std::string, std::string> names;
  for (const auto& [tensor, archive] : due.items()) {
    const std::string there = present.value(tensor, std::string());
    const auto [known, is_new] = names.emplace(archive, there);
    if (known->second != there) return std::nullopt;
    const InodeNumber inode = image.inode_at(directory + "/" + there);
    if (is_new && (inode == 0 || !image.has_content(inode, files.at(archive)))) return std::nullopt;
  }
  const InodeNumber config = image.inode_at(directory + "/" + kPulledConfig);
  if (config == 0 || !image.has_content(config, files.at(kPulledConfig))) return std::nullopt;
  std::set<std::string> used = {kPulledIndex, kPulledConfig};
  for (const auto& [theirs, ours] : names) used.insert(ours);
  return used;
}

}  // namespace stfs::test
