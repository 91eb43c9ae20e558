// Finds attributes by the kind of the file.
#include "fs/model/attribute_reader.h"

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

namespace stfs {
namespace {

constexpr std::string_view kPrefix = kAttributePrefix;
constexpr std::string_view kMetadataPrefix = "metadata.";
constexpr std::size_t kMaxAttributeNameBytes = 255;  // XATTR_NAME_MAX, linux/limits.h
constexpr std::size_t kMaxListBytes = 65536;         // XATTR_LIST_MAX

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

/// Names of attributes, up to what the kernel passes on: it refuses a longer list with E2BIG.
class ListedNames {
 public:
  /// False if the list is full. However many names follow, no other fits.
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

}  // namespace

Result<std::string> AttributeReader::get(Ino ino, std::string_view name) const {
  // The kernel asks for security.* and system.* on every listing and every cached write. These requests are
  // answered first.
  if (!name.starts_with(kPrefix)) return no_attribute();
  const Node node = parts_.resolve(ino);
  if (!node.exists()) return fail(ErrorCode::NotFound, ENOENT, "no such file");
  name.remove_prefix(kPrefix.size());
  if (node.ino == kRootIno) return of_root(name);
  if (parts_.transactions.is_transaction(node.ino)) return of_staged(node, name);
  if (node.kind == Node::Kind::StagedNpy && name == "view") return std::string(kNpyView);
  if (node.kind == Node::Kind::StagedNpy)
    return of_staged(parts_.resolve(parts_.transactions.bytes_file(node.ino)), name);
  if (node.is_directory() || node.is_source_file()) return no_attribute();
  if (node.is_view()) return of_view(node.ino, name);
  if (node.kind == Node::Kind::Draft) {
    const auto content = parts_.shared_content(node);
    return content ? of_draft(*content, name) : no_attribute();
  }
  return of_tensor(node.tensor, name);
}

Result<std::string> AttributeReader::of_staged(const Node& node, std::string_view key) const {
  if (node.is_directory()) {
    if (key == kDeletedKey) return deleted_names(node.ino);
    if (!key.starts_with(kMetadataPrefix)) return no_attribute();
    if (auto readable = check_metadata_readable(); !readable) return pass_on(std::move(readable));
    auto value = parts_.transactions.metadata(node.ino, key.substr(kMetadataPrefix.size()));
    return value ? Result<std::string>(std::move(*value)) : no_attribute();
  }
  if (key == "view") return std::string(kTransactionView);
  if (key == "name") return parts_.transactions.name(node.ino);
  if (key == "dtype" || key == "shape") {
    const auto form = parts_.transactions.form(node.ino);
    if (!form && form.error().errno_value == E2BIG) return of_tensor(node.tensor, key);
    if (!form) return no_attribute();
    return key == "dtype" ? std::string(name_of(form->dtype)) : value_of_shape(form->shape);
  }
  if (node.kind == Node::Kind::Draft || key == "checksum") return no_attribute();
  if (key == "file") return own_file(node.tensor);
  return of_tensor(node.tensor, key);
}

Result<std::string> AttributeReader::deleted_names(Ino transaction) const {
  std::string names = "[";
  for (const std::string& name : parts_.transactions.deleted(transaction)) {
    if (names.size() + name.size() > kMostAttributeBytes) return too_long();
    if (names.size() > 1) names += ',';
    append_json_string(names, name);
  }
  return printable_json(names + "]");
}

Result<std::vector<std::string>> AttributeReader::list(Ino ino, const Maker& caller) const {
  Node node = parts_.resolve(ino);
  if (!node.exists()) return fail(ErrorCode::NotFound, ENOENT, "no such file");
  if (node.kind == Node::Kind::StagedNpy) node = parts_.resolve(parts_.transactions.bytes_file(node.ino));
  ListedNames listed;
  // The kernel refuses a longer value with E2BIG, and a program that reads each attribute that is listed must
  // not fail.
  const auto add = [&](std::string_view key) {
    std::string name = fmt::format("{}{}", kPrefix, key);
    const auto value = may_be_long(name) ? get(node.ino, name) : Result<std::string>();
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
    if (parts_.model->delta()) add(kDeltaKeyOfModel);
    if (!may_read_metadata(caller)) return std::move(listed).names();
    for (const auto& [key, value] : parts_.model->metadata()) {
      if (!add_metadata(key, value.size())) break;
    }
  } else if (node.is_directory() && parts_.transactions.is_transaction(node.ino)) {
    add(kDeletedKey);
    if (const auto maker = parts_.transactions.maker(node.ino);
        parts_.options.is_shared && caller.uid != 0 && (!maker || maker->uid != caller.uid))
      return std::move(listed).names();
    parts_.transactions.visit_metadata(node.ino, add_metadata);
  } else if (node.kind == Node::Kind::Draft && parts_.transactions.is_transaction(node.ino)) {
    add_all(kNewKeys);
  } else if (node.is_directory() || node.is_source_file() || node.kind == Node::Kind::Draft) {
    return std::vector<std::string>();
  } else if (node.is_view() && !parts_.views.tensor(node.ino)) {
    add_all(kModelViewKeys);
    if (parts_.model->delta()) add(kDeltaKeyOfModel);
  } else {
    add_all(kTensorKeys);
    if (node.is_other_form() || node.is_staged()) add_all(kViewKeys);
  }
  return std::move(listed).names();
}

Result<std::string> AttributeReader::of_view(Ino ino, std::string_view key) const {
  if (key == "view") return std::string(Views::kind(ino));
  const auto tensor = parts_.views.tensor(ino);
  if (!tensor && key == "archive") return parts_.model->path().string();
  if (!tensor && key == kDeltaKeyOfModel) return delta_attribute();
  if (!tensor) return no_attribute();
  if (key == "file") return own_file(*tensor);
  if (key == "checksum") return no_attribute();
  if (const auto shape = parts_.views.slice_shape(ino); shape && key == "shape")
    return value_of_shape(*shape);
  return of_tensor(*tensor, key);
}

Result<std::string> AttributeReader::delta_attribute() const {
  if (!parts_.model->delta()) return no_attribute();
  return join_deltas(parts_.model->delta_paths());
}

Result<std::string> AttributeReader::own_file(TensorId tensor) const {
  const InodeTable& table = parts_.tree.table();
  Ino ino = InodeTable::ino_of_tensor(tensor);
  if (!table.exists(ino)) return no_attribute();
  std::string path(table.file_name(ino));
  for (ino = table.parent(ino); ino != kRootIno; ino = table.parent(ino)) {
    path = fmt::format("{}/{}", table.file_name(ino), path);
  }
  return path;
}

std::uint64_t AttributeReader::generation_of(TensorId tensor) const {
  const std::uint32_t shard = parts_.model->place(tensor).shard;
  // While bytes may be changing, each answer is another one.
  if (foreign_.is_unsettled(shard)) parts_.states.note_unsettled(shard);
  return parts_.states.of(tensor).generation;
}

Result<std::string> AttributeReader::of_tensor(TensorId id, std::string_view key) const {
  const Tensor tensor = parts_.model->tensor(id);
  if (key == "name") return value_of_text(tensor.name);
  if (key == "dtype") return std::string(name_of(tensor.dtype));
  if (key == "shape") return value_of_shape(tensor.shape);
  if (key == "archive") return parts_.model->archive_of(id).path().string();
  if (key == "offset") return fmt::format("{}", parts_.model->file_range(id).offset);
  if (key == "generation") return fmt::format("{}", generation_of(id));
  if (key == "checksum") return parts_.reader.checksum(id);
  return no_attribute();
}

Result<void> AttributeReader::check_metadata_readable() const {
  // A user who may read one shard may enter the directory. The metadata belong to all shards, so they are
  // refused if the shards give different rights to read.
  constexpr mode_t kRead = 0444;
  if (parts_.options.is_shared &&
      (parts_.permissions.of_all().mode & kRead) != (parts_.permissions.of_any().mode & kRead))
    return fail(ErrorCode::System, EACCES, "some users may list the model but not read every shard");
  return {};
}

bool AttributeReader::may_read_metadata(const Maker& caller) const {
  if (!parts_.options.is_shared) return true;
  return check_metadata_readable() && caller.has(S_IROTH, parts_.permissions.of_all());
}

Result<std::string> AttributeReader::of_root(std::string_view key) const {
  if (key == "archive") return parts_.model->path().string();
  if (key == kDeltaKeyOfModel) return delta_attribute();
  if (key == "tensors") return fmt::format("{}", parts_.model->tensors().size());
  if (key == "parameters") return fmt::format("{}", parts_.model->tensors().parameters());
  if (key == "generation") return fmt::format("{}", parts_.states.newest_generation());
  if (key == "first_generation") return fmt::format("{}", parts_.states.first_generation());
  if (!key.starts_with(kMetadataPrefix)) return no_attribute();
  if (auto readable = check_metadata_readable(); !readable) return pass_on(std::move(readable));
  const auto value = parts_.model->metadata().find(key.substr(kMetadataPrefix.size()));
  return value ? value_of_text(*value) : no_attribute();
}

Result<std::string> AttributeReader::of_draft(const PendingContent& content, std::string_view key) {
  NewTensor* const made = content.made()->tensor();
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

}  // namespace stfs
