// Extended attributes: a tensor's name, dtype, shape and place, and the model's metadata.
#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "core/format/json_string.h"
#include "core/storage/attribute_names.h"
#include "fs/model/filesystem.h"

namespace stfs {
namespace {

constexpr std::string_view kPrefix = kAttributePrefix;
constexpr std::string_view kMetadataPrefix = "metadata.";
constexpr std::size_t kMaxAttributeNameBytes = 255;  // XATTR_NAME_MAX, linux/limits.h

// The listed attributes of a tensor. `checksum` is not listed: a tool that copies all attributes must not
// read every byte twice.
constexpr std::array<std::string_view, 6> kTensorKeys = {"name",    "dtype",  "shape",
                                                         "archive", "offset", "generation"};
// The listed attributes of a view besides those of its tensor. A view has no `checksum`, because a checksum
// is of the tensor's own bytes.
constexpr std::array<std::string_view, 2> kViewKeys = {"view", "file"};
constexpr std::array<std::string_view, 4> kNewKeys = {"name", "dtype", "shape", "view"};  // in a transaction
constexpr std::string_view kDeletedKey = "deleted";  // of a transaction: a JSON list of names
constexpr std::array<std::string_view, 2> kModelViewKeys = {"archive", "view"};
constexpr std::array<std::string_view, 5> kRootKeys = {"archive", "tensors", "parameters", "generation",
                                                       "first_generation"};
constexpr std::string_view kDeltaKeyOfModel = "delta";  // on the root and on views of the model, with a delta

tl::unexpected<Error> no_attribute() {
  return fail(ErrorCode::NotFound, ENODATA, "no such attribute");
}

}  // namespace

Result<std::string> Filesystem::extended_attribute(Ino ino, std::string_view name) const {
  // The kernel asks for security.* and system.* on every listing and every cached write. These requests are
  // answered first.
  if (!name.starts_with(kPrefix)) return no_attribute();
  const Node node = resolve(ino);
  if (!node.exists()) return fail(ErrorCode::NotFound, ENOENT, "no such file");
  name.remove_prefix(kPrefix.size());
  if (node.ino == kRootIno) return root_attribute(name);
  if (transactions_.is_transaction(node.ino)) return staged_attribute(node, name);
  if (node.kind == Node::Kind::StagedNpy && name == "view") return std::string(kNpyView);
  if (node.kind == Node::Kind::StagedNpy)
    return staged_attribute(resolve(transactions_.bytes_file(node.ino)), name);
  if (node.is_directory() || node.is_link()) return no_attribute();
  if (node.is_view()) return view_attribute(node.ino, name);
  if (node.kind == Node::Kind::Draft) {
    const auto content = shared_content(node);
    return content ? draft_attribute(*content, name) : no_attribute();
  }
  return tensor_attribute(node.tensor, name);
}

Result<std::string> Filesystem::staged_attribute(const Node& node, std::string_view key) const {
  if (node.is_directory()) {
    if (key == kDeletedKey) return deleted_names(node.ino);
    if (!key.starts_with(kMetadataPrefix)) return no_attribute();
    if (auto readable = check_metadata_readable(); !readable) return pass_on(std::move(readable));
    auto value = transactions_.metadata(node.ino, key.substr(kMetadataPrefix.size()));
    return value ? Result<std::string>(std::move(*value)) : no_attribute();
  }
  if (key == "view") return std::string(kTransactionView);
  if (key == "name") return transactions_.name(node.ino);
  if (key == "dtype" || key == "shape") {
    const auto form = transactions_.form(node.ino);
    if (!form) return no_attribute();
    return key == "dtype" ? std::string(name_of(form->dtype)) : shape_text(form->shape);
  }
  if (node.kind == Node::Kind::Draft || key == "checksum") return no_attribute();
  if (key == "file") return own_file(node.tensor);
  return tensor_attribute(node.tensor, key);
}

std::string Filesystem::deleted_names(Ino transaction) const {
  std::string names = "[";
  for (const std::string& name : transactions_.deleted(transaction)) {
    if (names.size() > 1) names += ',';
    append_json_string(names, name);
  }
  return names + "]";
}

Result<std::vector<std::string>> Filesystem::list_extended_attributes(Ino ino) const {
  const Node node = resolve(ino);
  if (!node.exists()) return fail(ErrorCode::NotFound, ENOENT, "no such file");
  if (node.kind == Node::Kind::StagedNpy) return list_extended_attributes(transactions_.bytes_file(node.ino));
  std::vector<std::string> names;
  const auto add_metadata = [&](std::string_view key) {
    std::string name = fmt::format("{}{}{}", kPrefix, kMetadataPrefix, key);
    // The kernel cannot pass names that are too long or contain NUL; `stfs info` shows these keys.
    if (name.size() > kMaxAttributeNameBytes || name.find('\0') != std::string::npos) return;
    names.push_back(std::move(name));
  };
  if (node.ino == kRootIno) {
    for (const std::string_view key : kRootKeys) names.push_back(fmt::format("{}{}", kPrefix, key));
    if (model_->delta()) names.emplace_back(kDeltaAttribute);
    for (const auto& [key, value] : model_->metadata()) add_metadata(key);
  } else if (node.is_directory() && transactions_.is_transaction(node.ino)) {
    names.push_back(fmt::format("{}{}", kPrefix, kDeletedKey));
    for (const std::string& key : transactions_.metadata_keys(node.ino)) add_metadata(key);
  } else if (node.kind == Node::Kind::Draft && transactions_.is_transaction(node.ino)) {
    for (const std::string_view key : kNewKeys) names.push_back(fmt::format("{}{}", kPrefix, key));
  } else if (node.is_directory() || node.is_link() || node.kind == Node::Kind::Draft) {
    return names;
  } else if (node.is_view() && !views_.tensor(node.ino)) {
    for (const std::string_view key : kModelViewKeys) names.push_back(fmt::format("{}{}", kPrefix, key));
    if (model_->delta()) names.emplace_back(kDeltaAttribute);
  } else {
    for (const std::string_view key : kTensorKeys) names.push_back(fmt::format("{}{}", kPrefix, key));
    if (!node.is_other_form() && !node.is_staged()) return names;
    for (const std::string_view key : kViewKeys) names.push_back(fmt::format("{}{}", kPrefix, key));
  }
  return names;
}

Result<std::string> Filesystem::view_attribute(Ino ino, std::string_view key) const {
  if (key == "view") return std::string(Views::kind(ino));
  const auto tensor = views_.tensor(ino);
  if (!tensor && key == "archive") return model_->path().string();
  if (!tensor && key == kDeltaKeyOfModel) return delta_attribute();
  if (!tensor) return no_attribute();
  if (key == "file") return own_file(*tensor);
  if (key == "checksum") return no_attribute();
  if (const auto shape = views_.slice_shape(ino); shape && key == "shape") return shape_text(*shape);
  return tensor_attribute(*tensor, key);
}

Result<std::string> Filesystem::delta_attribute() const {
  if (!model_->delta()) return no_attribute();
  return join_deltas(model_->delta_paths());
}

Result<std::string> Filesystem::own_file(TensorId tensor) const {
  const InodeTable& table = tree_.table();
  Ino ino = InodeTable::ino_of_tensor(tensor);
  if (!table.exists(ino)) return no_attribute();
  std::string path(table.file_name(ino));
  for (ino = table.parent(ino); ino != kRootIno; ino = table.parent(ino)) {
    path = fmt::format("{}/{}", table.file_name(ino), path);
  }
  return path;
}

Result<std::string> Filesystem::tensor_attribute(TensorId id, std::string_view key) const {
  const Tensor tensor = model_->tensor(id);
  if (key == "name") return std::string(tensor.name);
  if (key == "dtype") return std::string(name_of(tensor.dtype));
  if (key == "shape") return shape_text(tensor.shape);
  if (key == "archive") return model_->archive_of(id).path().string();
  if (key == "offset") return fmt::format("{}", model_->file_range(id).offset);
  if (key == "generation") return fmt::format("{}", states_.of(id).generation);
  if (key == "checksum") return reader_.checksum(id);
  return no_attribute();
}

Result<void> Filesystem::check_metadata_readable() const {
  // A user who may read one shard may enter the directory. The metadata belong to all shards, so they are
  // refused if the shards give different rights to read.
  constexpr mode_t kRead = 0444;
  if (options_.is_shared && (permissions_.of_all().mode & kRead) != (permissions_.of_any().mode & kRead))
    return fail(ErrorCode::System, EACCES, "some users may list the model but not read every shard");
  return {};
}

Result<std::string> Filesystem::root_attribute(std::string_view key) const {
  if (key == "archive") return model_->path().string();
  if (key == kDeltaKeyOfModel) return delta_attribute();
  if (key == "tensors") return fmt::format("{}", model_->tensors().size());
  if (key == "parameters") return fmt::format("{}", model_->tensors().parameters());
  if (key == "generation") return fmt::format("{}", states_.newest_generation());
  if (key == "first_generation") return fmt::format("{}", states_.first_generation());
  if (!key.starts_with(kMetadataPrefix)) return no_attribute();
  if (auto readable = check_metadata_readable(); !readable) return pass_on(std::move(readable));
  key.remove_prefix(kMetadataPrefix.size());
  const Metadata& metadata = model_->metadata();
  const auto found = std::ranges::find(metadata, key, &Metadata::value_type::first);
  if (found == metadata.end()) return no_attribute();
  return std::string(found->second);
}

}  // namespace stfs
