#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <span>
#include <utility>

#include "core/base/printable.h"
#include "core/format/json_string.h"
#include "core/storage/attribute_names.h"
#include "fs/model/mounted_model.h"

namespace stfs {
namespace {

constexpr std::string_view kPrefix = kAttributePrefix;
constexpr std::size_t kMaxAttributeNameBytes = 255;  // XATTR_NAME_MAX, linux/limits.h
constexpr std::size_t kMaxListBytes = 65536;         // XATTR_LIST_MAX

// The listed attributes of a tensor. `checksum` is not listed: a tool that copies all attributes must not
// read every byte twice.
constexpr std::array<std::string_view, 6> kTensorKeys = {"name",    "dtype",  "shape",
                                                         "archive", "offset", "generation"};
// The attributes that views list in addition to the attributes of their tensor. A view has no `checksum`,
// because a checksum covers the tensor's own bytes.
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

// Values that are longer than the kernel passes on are refused before a copy or a text of them is made: any
// reader may ask, again and again.

tl::unexpected<Error> too_long() {
  return fail(ErrorCode::InvalidArgument, E2BIG, "longer than an attribute can be");
}

Result<std::string> value_of_text(std::string_view text) {
  if (text.size() > kMostAttributeBytes) return too_long();
  return std::string(text);
}

Result<std::string> value_of_shape(std::span<const std::uint64_t> shape) {
  if (shape.size() > kMostDimensionsInAttribute) return too_long();
  return value_of_text(shape_text(shape));
}

/// Whether a value of the attribute may be longer than the kernel passes on.
bool may_be_long(std::string_view name) {
  constexpr std::array<std::string_view, 4> kShort = {"dtype", "offset", "generation", "first_generation"};
  return std::ranges::find(kShort, name.substr(kPrefix.size())) == kShort.end();
}

/// Collects names of attributes until the list has the length that the kernel passes on. The kernel refuses a
/// longer list with E2BIG.
class ListedNames {
 public:
  /// Returns false if the list is full. Then no later name may be added either.
  bool add(std::string name) {
    bytes_ += name.size() + 1;
    if (bytes_ > kMaxListBytes) return false;
    names_.push_back(std::move(name));
    return true;
  }
  [[nodiscard]] std::vector<std::string> names() && { return std::move(names_); }

 private:
  std::vector<std::string> names_;
  std::size_t bytes_ = 0;
};

Result<std::string> attribute_of_draft(const PendingFile& content, std::string_view key) {
  NewTensor* const made = content.new_tensor();
  if (made == nullptr) return no_attribute();
  if (key == "name") return value_of_text(made->name());
  // One of both may be set before the other.
  if (const auto dtype = made->dtype(); dtype && key == "dtype") return std::string(name_of(*dtype));
  if (const auto shape = made->shape(); shape && key == "shape") return value_of_shape(*shape);
  const auto form = made->form();
  if (form && key == "dtype") return std::string(name_of(form->dtype));
  if (form && key == "shape") return value_of_shape(form->shape);
  return no_attribute();
}

Result<std::string> delta_attribute(const Model& model) {
  if (!model.delta()) return no_attribute();
  return join_deltas(model.delta_paths());
}

/// A JSON list.
Result<std::string> deleted_names(const TransactionDirectory& all, Ino transaction) {
  std::string names = "[";
  for (const std::string& name : all.deleted(transaction, kMostAttributeBytes)) {
    if (names.size() + name.size() > kMostAttributeBytes) return too_long();
    if (names.size() > 1) names += ',';
    append_json_string(names, name);
  }
  return printable_json(names + "]");
}

}  // namespace

Result<std::string> MountedModel::extended_attribute(Ino ino, std::string_view name) const {
  // The kernel asks for security.* and system.* on every listing and every cached write. These requests are
  // answered first.
  if (!name.starts_with(kPrefix)) return no_attribute();
  const Node node = node_of(ino);
  if (!node.exists()) return fail(ErrorCode::NotFound, ENOENT, "no such file");
  name.remove_prefix(kPrefix.size());
  if (node.ino == kRootIno) return attribute_of_root(name);
  if (transactions_.is_transaction(node.ino)) return attribute_of_staged(node, name);
  if (node.kind == Node::Kind::StagedNpy && name == "view") return std::string(kNpyView);
  if (node.kind == Node::Kind::StagedNpy)
    return attribute_of_staged(node_of(transactions_.bytes_file(node.ino)), name);
  if (node.is_directory() || node.is_source_file()) return no_attribute();
  if (node.is_view()) return attribute_of_view(node.ino, name);
  if (node.kind == Node::Kind::Draft) {
    const auto content = shared_content(node);
    return content ? attribute_of_draft(*content, name) : no_attribute();
  }
  return attribute_of_tensor(node.tensor, name);
}

Result<std::string> MountedModel::attribute_of_staged(const Node& node, std::string_view key) const {
  if (node.is_directory()) {
    if (key == kDeletedKey) return deleted_names(transactions_, node.ino);
    if (!key.starts_with(kMetadataPrefix)) return no_attribute();
    RETURN_IF_ERROR(check_metadata_readable());
    auto value = transactions_.metadata(node.ino, key.substr(kMetadataPrefix.size()));
    return value ? Result<std::string>(std::move(*value)) : no_attribute();
  }
  if (key == "view") return std::string(kTransactionView);
  if (key == "name") return transactions_.name(node.ino);
  if (key == "dtype" || key == "shape") {
    const auto form = transactions_.form(node.ino);
    if (!form && form.error().errno_value == E2BIG) return attribute_of_tensor(node.tensor, key);
    if (!form) return no_attribute();
    return key == "dtype" ? std::string(name_of(form->dtype)) : value_of_shape(form->shape);
  }
  if (node.kind == Node::Kind::Draft || key == "checksum") return no_attribute();
  if (key == "file") return own_file(node.tensor);
  return attribute_of_tensor(node.tensor, key);
}

Result<std::vector<std::string>> MountedModel::list_extended_attributes(Ino ino, const Maker& caller) const {
  Node node = node_of(ino);
  if (!node.exists()) return fail(ErrorCode::NotFound, ENOENT, "no such file");
  if (node.kind == Node::Kind::StagedNpy) node = node_of(transactions_.bytes_file(node.ino));
  ListedNames listed;
  // The kernel refuses a longer value with E2BIG, and a program that reads each attribute that is listed must
  // not fail.
  const auto add = [&](std::string_view key) {
    std::string name = fmt::format("{}{}", kPrefix, key);
    const auto value = may_be_long(name) ? extended_attribute(node.ino, name) : Result<std::string>();
    const bool is_too_long = value ? value->size() > kMostAttributeBytes : value.error().errno_value == E2BIG;
    return is_too_long || listed.add(std::move(name));
  };
  const auto add_all = [&](const auto& keys) { return std::ranges::all_of(keys, add); };
  const auto add_metadata = [&](std::string_view key, std::size_t value_bytes) {
    // The kernel can't pass names that are too long or contain NUL; `stfs info` shows these keys.
    const std::size_t name_bytes = kPrefix.size() + kMetadataPrefix.size() + key.size();
    if (name_bytes > kMaxAttributeNameBytes || value_bytes > kMostAttributeBytes) return true;
    if (key.find('\0') != std::string_view::npos) return true;
    return listed.add(fmt::format("{}{}{}", kPrefix, kMetadataPrefix, key));
  };
  if (node.ino == kRootIno) {
    add_all(kRootKeys);
    if (model().delta()) add(kDeltaKeyOfModel);
    if (!may_read_metadata(caller)) return std::move(listed).names();
    for (const auto& [key, value] : model().metadata()) {
      if (!add_metadata(key, value.size())) break;
    }
  } else if (node.is_directory() && transactions_.is_transaction(node.ino)) {
    add(kDeletedKey);
    if (const auto maker = transactions_.maker(node.ino);
        options_.is_shared && caller.uid != 0 && (!maker || maker->uid != caller.uid))
      return std::move(listed).names();
    transactions_.visit_metadata(node.ino, add_metadata);
  } else if (node.kind == Node::Kind::Draft && transactions_.is_transaction(node.ino)) {
    add_all(kNewKeys);
  } else if (node.is_directory() || node.is_source_file() || node.kind == Node::Kind::Draft) {
    return std::vector<std::string>();
  } else if (node.is_view() && !views_.tensor(node.ino)) {
    add_all(kModelViewKeys);
    if (model().delta()) add(kDeltaKeyOfModel);
  } else {
    add_all(kTensorKeys);
    if (node.is_other_form() || node.is_staged()) add_all(kViewKeys);
  }
  return std::move(listed).names();
}

Result<std::string> MountedModel::attribute_of_view(Ino ino, std::string_view key) const {
  if (key == "view") return std::string(Views::kind(ino));
  const auto tensor = views_.tensor(ino);
  if (!tensor && key == "archive") return model().path().string();
  if (!tensor && key == kDeltaKeyOfModel) return delta_attribute(model());
  if (!tensor) return no_attribute();
  if (key == "file") return own_file(*tensor);
  if (key == "checksum") return no_attribute();
  if (const auto shape = views_.slice_shape(ino); shape && key == "shape") return value_of_shape(*shape);
  return attribute_of_tensor(*tensor, key);
}

Result<std::string> MountedModel::own_file(TensorId tensor) const {
  std::string path = path_in_tree(InodeTable::ino_of_tensor(tensor));
  return path.empty() ? no_attribute() : Result<std::string>(std::move(path));
}

std::uint64_t MountedModel::generation_of(TensorId tensor) const {
  const std::uint32_t shard = model().place(tensor).shard;
  // While bytes may be changing, each answer is another one.
  if (foreign_.is_unsettled(shard)) states_.note_unsettled(shard);
  return states_.of(tensor).generation;
}

Result<std::string> MountedModel::attribute_of_tensor(TensorId id, std::string_view key) const {
  const Tensor tensor = model().tensor(id);
  if (key == "name") return value_of_text(tensor.name);
  if (key == "dtype") return std::string(name_of(tensor.dtype));
  if (key == "shape") return value_of_shape(tensor.shape);
  if (key == "archive") return model().archive_of(id).path().string();
  if (key == "offset") return fmt::format("{}", model().file_range(id).offset);
  if (key == "generation") return fmt::format("{}", generation_of(id));
  if (key == "checksum") return reader_.checksum(id);
  return no_attribute();
}

Result<void> MountedModel::check_metadata_readable() const {
  // A user who may read one shard may enter the directory. The metadata describe all shards, so they are
  // refused if the shards give different rights to read.
  constexpr mode_t kRead = 0444;
  if (options_.is_shared && (permissions_.of_all().mode & kRead) != (permissions_.of_any().mode & kRead))
    return fail(ErrorCode::System, EACCES, "some users may list the model but not read every shard");
  return {};
}

bool MountedModel::may_read_metadata(const Maker& caller) const {
  if (!options_.is_shared) return true;
  return check_metadata_readable() && caller.has(S_IROTH, permissions_.of_all());
}

Result<std::string> MountedModel::attribute_of_root(std::string_view key) const {
  RETURN_IF_ERROR(check_caller(node_of(kRootIno), S_IROTH));
  if (key == "archive") return model().path().string();
  if (key == kDeltaKeyOfModel) return delta_attribute(model());
  if (key == "tensors") return fmt::format("{}", model().tensors().size());
  if (key == "parameters") return fmt::format("{}", model().tensors().parameters());
  if (key == "generation") return fmt::format("{}", states_.newest_generation());
  if (key == "first_generation") return fmt::format("{}", states_.first_generation());
  if (!key.starts_with(kMetadataPrefix)) return no_attribute();
  RETURN_IF_ERROR(check_metadata_readable());
  const auto value = model().metadata().find(key.substr(kMetadataPrefix.size()));
  return value ? value_of_text(*value) : no_attribute();
}

}  // namespace stfs
