#include "tests/crash/state_record.h"

#include <fmt/format.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/support/plain.h"

namespace stfs::test {
namespace {

std::string in_hexadecimal(const std::string& bytes) {
  std::string text;
  text.reserve(2 * bytes.size());
  for (const char byte : bytes)
    fmt::format_to(std::back_inserter(text), "{:02x}", static_cast<unsigned char>(byte));
  return text;
}

nlohmann::json json_of_content(const EditedContent& content) {
  nlohmann::json tensors = nlohmann::json::object();
  for (const auto& [name, value] : content.tensors)
    tensors[name] = {{"dtype", value.dtype}, {"shape", value.shape}, {"data", in_hexadecimal(value.bytes)}};
  return {{"tensors", tensors}, {"metadata", content.metadata}};
}

void write_file(const std::filesystem::path& path, std::string_view bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

void copy_out(const DiskImage& image, const std::filesystem::path& from, const std::filesystem::path& to) {
  write_file(to, text_of(image.content(image.inode_at(from.native()))));
}

}  // namespace

void record_state(const std::filesystem::path& directory, const DiskImage& image, const EditedModel& layout,
                  std::uint32_t shard, const EditLog& log, bool is_mixed) {
  std::filesystem::create_directories(directory);
  std::size_t number = 0;
  const auto path = [&](const char* suffix) {
    return directory / fmt::format("state-{:06}.{}", number, suffix);
  };
  while (std::filesystem::exists(path("json"))) ++number;
  nlohmann::json allowed = nlohmann::json::array();
  for (const EditedModel& model : log.allowed()) allowed.push_back(json_of_content(model.shards[shard]));
  for (const EditedModel& model : log.former()) allowed.push_back(json_of_content(model.shards[shard]));
  copy_out(image, path_of_shard(layout, shard), path("safetensors"));
  const nlohmann::json about = {
      {"allowed", allowed}, {"is_mixed", is_mixed}, {"is_read", shard_in(image, layout, shard).has_value()}};
  write_file(path("json"), about.dump());
}

void record_model(const std::filesystem::path& directory, const DiskImage& image, const EditedModel& model) {
  std::filesystem::create_directories(directory / "model");
  nlohmann::json shards = nlohmann::json::object();
  for (std::size_t shard = 0; shard < model.shards.size(); ++shard) {
    const std::filesystem::path path = path_of_shard(model, shard);
    copy_out(image, path, directory / "model" / path.filename());
    shards[path.filename().string()] = json_of_content(model.shards[shard]);
  }
  if (model.has_index()) copy_out(image, path_of(model), directory / "model" / path_of(model).filename());
  write_file(directory / "model.json", nlohmann::json{{"shards", shards}}.dump());
}

}  // namespace stfs::test
