#include "tests/crash/edited_archive.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "core/commit/archive_replacement.h"
#include "core/commit/compaction.h"
#include "core/commit/transaction.h"
#include "core/format/header.h"
#include "core/format/json_string.h"
#include "tests/support/archive_bytes.h"

namespace stfs::test {
namespace {

std::string new_name(const EditedContent& content, Choices& choices) {
  for (;;) {
    std::string name = random_name(choices);
    if (!content.tensors.contains(name)) return name;
  }
}

std::string pick(const EditedContent& content, Choices& choices) {
  auto at = content.tensors.begin();
  std::advance(at, static_cast<std::ptrdiff_t>(choices.below(content.tensors.size())));
  return at->first;
}

}  // namespace

std::string random_bytes(std::uint64_t size_bytes, Choices& choices) {
  std::string bytes(size_bytes, '\0');
  RandomChoices random(choices.below(1'000'000));
  for (char& byte : bytes) byte = static_cast<char>(random.below(256));
  return bytes;
}

EditedContent::Value random_value(Choices& choices) {
  constexpr std::array kSizes = {0U, 4U, 8U, 100U, 700U, 3000U, 4096U, 5000U, 9000U, 20'000U};
  const std::uint64_t size = kSizes[choices.below(kSizes.size())];
  return {"U8", {size}, random_bytes(size, choices)};
}

std::string random_name(Choices& choices) {
  std::string name = fmt::format("t{}", choices.below(40));
  if (choices.one_in(6)) name += std::string(1 + choices.below(300), 'x');
  if (choices.one_in(8)) name += "\n\"\\";
  return name;
}

void reinterpret(EditedContent::Value& value, Choices& choices) {
  const std::uint64_t size = value.bytes.size();
  if (size % 4 == 0 && choices.one_in(2)) {
    value.dtype = "F32";
    value.shape = {size / 4, 1};
  } else {
    value.dtype = "I8";
    value.shape = {1, size};
  }
}

std::pair<std::string, std::optional<std::string>> random_entry(Choices& choices) {
  std::string key = fmt::format("key{}", choices.below(4));
  if (choices.one_in(3)) return {std::move(key), std::nullopt};
  return {std::move(key), std::string(choices.one_in(5) ? 5000 : choices.below(100), 'v')};
}

EditedContent first_content(Choices& choices) {
  EditedContent content;
  for (std::size_t tensors = choices.below(7); tensors > 0; --tensors) {
    content.tensors.emplace(new_name(content, choices), random_value(choices));
  }
  if (choices.one_in(2)) content.metadata["format"] = "pt";
  return content;
}

std::string tight_archive(const EditedContent& content, std::size_t padding) {
  std::string header = "{";
  std::string data;
  if (!content.metadata.empty()) {
    header += "\"__metadata__\":{";
    for (const auto& [key, value] : content.metadata) {
      append_json_string(header, key);
      header += ':';
      append_json_string(header, value);
      header += ',';
    }
    header.back() = '}';
    header += ',';
  }
  for (const auto& [name, value] : content.tensors) {
    append_json_string(header, name);
    header += fmt::format(":{{\"dtype\":\"{}\",\"shape\":{},\"data_offsets\":[{},{}]}},", value.dtype,
                          shape_text(value.shape), data.size(), data.size() + value.bytes.size());
    data += value.bytes;
  }
  if (header.back() == ',') header.pop_back();
  header += '}';
  header.resize((header.size() + 7) / 8 * 8 + padding, ' ');
  return archive_bytes(header, data);
}

EditStep random_step(const EditedContent& before, Choices& choices) {
  EditStep step{.after = before, .kept = {}};
  if (choices.one_in(4)) {
    step.is_compaction = true;
    return step;
  }
  EditedContent& after = step.after;
  if (!before.tensors.empty() && choices.one_in(4)) {
    step.is_patch = true;
    for (std::size_t tensors = 1 + choices.below(2); tensors > 0; --tensors) {
      EditedContent::Value& value = after.tensors[pick(before, choices)];
      value.bytes = random_bytes(value.bytes.size(), choices);
    }
    return step;
  }
  for (const auto& [name, value] : before.tensors) step.kept[name] = name;
  for (std::size_t changes = 1 + choices.below(3); changes > 0; --changes) {
    const std::size_t kind = choices.below(after.tensors.empty() ? 2 : 5);
    if (kind == 0) {
      after.tensors.emplace(new_name(after, choices), random_value(choices));
    } else if (kind == 1) {
      const auto [key, value] = random_entry(choices);
      if (value) {
        after.metadata[key] = *value;
      } else {
        after.metadata.erase(key);
      }
    } else {
      const std::string name = pick(after, choices);
      EditedContent::Value value = after.tensors[name];
      if (kind == 2) {
        after.tensors.erase(name);
        step.kept.erase(name);
      } else if (kind == 3) {
        const std::string renamed = new_name(after, choices);
        auto kept = step.kept.extract(name);
        if (!kept.empty()) {
          kept.key() = renamed;
          step.kept.insert(std::move(kept));
        }
        after.tensors.erase(name);
        after.tensors[renamed] = std::move(value);
      } else {
        reinterpret(after.tensors[name], choices);
      }
    }
  }
  return step;
}

Result<void> carry_out(Archive& archive, const EditStep& step, const CommitOptions& options) {
  if (step.is_replacement) {
    const std::string bytes = tight_archive(step.after);
    auto made = begin_replacement(archive, bytes.size());
    if (!made) return pass_on(std::move(made));
    if (auto written = made->file->write(std::as_bytes(std::span(bytes)), 0); !written) return written;
    if (auto retired = archive.lane_journal().retire(options.durability); !retired) return retired;
    bool is_replaced = false;
    return replace_archive(
        archive, *made, options, [] { return Result<void>(); }, is_replaced);
  }
  Transaction transaction(archive);
  ReaderWriterLock lock;
  const auto lock_of = [&](TensorId) -> ReaderWriterLock& { return lock; };
  const auto version = archive.version();
  const auto write = [](Staging& stage, const std::string& bytes) {
    return stage.write(std::as_bytes(std::span(bytes)), 0);
  };
  if (step.is_patch) {
    for (const auto& [name, value] : step.after.tensors) {
      auto stage = transaction.stage(*version->find(name));
      if (!stage) return pass_on(std::move(stage));
      if (auto written = write(**stage, value.bytes); !written) return written;
    }
    return transaction.commit(options, lock_of);
  }
  ArchiveEdit edit;
  for (const auto& [key, value] : step.after.metadata) edit.metadata.emplace_back(key, value);
  for (const auto& [name, value] : step.after.tensors) {
    const auto kept = step.kept.find(name);
    edit.tensors.push_back({.name = name,
                            .dtype = *dtype_named(value.dtype),
                            .shape = value.shape,
                            .from = kept == step.kept.end() ? std::nullopt : version->find(kept->second)});
  }
  const std::vector<EditedTensor> tensors = edit.tensors;
  if (auto begun = transaction.edit(std::move(edit)); !begun) return begun;
  for (std::uint32_t at = 0; at < tensors.size(); ++at) {
    Staging* stage = transaction.stage_new(at);
    if (stage == nullptr) continue;
    if (auto written = write(*stage, step.after.tensors.at(std::string(tensors[at].name)).bytes); !written)
      return written;
  }
  return transaction.commit(options, lock_of);
}

Result<void> compact(Storage& storage, const std::filesystem::path& path, const CommitOptions& options) {
  constexpr int kMostSteps = 500;
  for (int step = 0; step < kMostSteps; ++step) {
    auto archive = Archive::open(path, Access::ReadWrite, storage);
    if (!archive) return pass_on(std::move(archive));
    auto done = compact_once(**archive, options);
    if (!done) return pass_on(std::move(done));
    if (!*done) return {};
  }
  return fail(ErrorCode::System, ELOOP, "the compaction does not end");
}

Result<EditedContent> content_of(const Archive& archive) {
  EditedContent content;
  const auto version = archive.version();
  for (const auto& [key, value] : version->metadata()) content.metadata.emplace(key, value);
  std::vector<std::byte> scratch;
  for (std::uint32_t at = 0; at < version->tensors().size(); ++at) {
    const Tensor tensor = version->tensors()[at];
    auto bytes = archive.read(version->file_range(tensor.data), scratch);
    if (!bytes) return pass_on(std::move(bytes));
    content.tensors[std::string(tensor.name)] = {
        std::string(name_of(tensor.dtype)),
        {tensor.shape.begin(), tensor.shape.end()},
        std::string(reinterpret_cast<const char*>(bytes->data()), bytes->size())};
  }
  return content;
}

std::optional<EditedContent> read_plainly(std::string_view bytes) {
  const auto length = header_length(std::as_bytes(std::span(bytes.substr(0, 8))), bytes.size());
  if (!length) return std::nullopt;
  const std::string_view data = bytes.substr(8 + *length);
  const auto header = parse_header(bytes.substr(8, *length), data.size());
  if (!header) return std::nullopt;
  EditedContent content;
  for (const auto& [key, value] : header->metadata) content.metadata.emplace(key, value);
  for (std::uint32_t at = 0; at < header->tensors.size(); ++at) {
    const Tensor tensor = header->tensors[at];
    content.tensors[std::string(tensor.name)] = {
        std::string(name_of(tensor.dtype)),
        {tensor.shape.begin(), tensor.shape.end()},
        std::string(data.substr(tensor.data.offset, tensor.data.size_bytes))};
  }
  return content;
}

}  // namespace stfs::test
