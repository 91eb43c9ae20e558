// Implements the requests that change names and forms of tensors: unlink, rename, setxattr (filesystem.h).
#include <fmt/format.h>
#include <linux/fs.h>
#include <sys/xattr.h>

#include <algorithm>
#include <cctype>

#include "core/base/utf8.h"
#include "core/format/json_string.h"
#include "core/storage/attribute_names.h"
#include "fs/model/filesystem.h"
#include "fs/tree/names.h"

namespace stfs {
namespace {

constexpr std::string_view kPrefixOfAll = kAttributePrefix;

tl::unexpected<Error> refuse_edit(int errno_value, std::string why) {
  return fail(ErrorCode::InvalidArgument, errno_value, std::move(why));
}

/// The shape that the same bytes have with another dtype: only the last dimension changes, as in NumPy's
/// view(). Nothing if they don't fit.
std::optional<std::vector<std::uint64_t>> shape_as(const NewTensor::Form& now, Dtype dtype) {
  std::vector<std::uint64_t> shape = now.shape;
  const std::uint64_t before = bits_of(now.dtype);
  const std::uint64_t after = bits_of(dtype);
  if (before == after) return shape;
  if (shape.empty()) return std::nullopt;
  std::uint64_t last_bits = 0;  // beside a dimension of 0 the last one may have any size
  if (__builtin_mul_overflow(shape.back(), before, &last_bits) || last_bits % after != 0) return std::nullopt;
  shape.back() = last_bits / after;
  return shape;
}

}  // namespace

Result<std::string> Filesystem::name_in(Ino directory, std::string_view file_name) const {
  auto name = tree_.name_in(directory, file_name);
  if (name) return std::move(*name);
  // mv(1) takes EINVAL for a directory that is moved into itself, and says so.
  return refuse_edit(
      EILSEQ, fmt::format("{}: no tensor's file can have this name: {}", in_quotes(file_name),
                          options_.layout == Layout::Tree && file_name.find('.') != std::string_view::npos
                              ? "with layout=tree a dot stands between two directories"
                              : "a % is written as %25, and needs two digits otherwise"));
}

Result<Outdated> Filesystem::remove_file(Ino parent, std::string_view name) {
  const Node directory = resolve(parent);
  const auto draft = drafts_.find(directory.ino, name);
  if (draft && draft->content->made()->waits_for_name()) {
    remove_draft(*draft);
    return Outdated{};
  }
  if (directory.is_staged()) {
    auto removed = transactions_.remove_file(directory.ino, name, check_staging(directory.ino));
    return removed ? Result<Outdated>(Outdated{}) : pass_on(std::move(removed));
  }
  if (directory.kind != Node::Kind::Directory)
    return refuse_edit(EPERM, "views can't be removed: remove the tensor");
  if (auto editable = check_editable(); !editable) return tl::unexpected(editable.error());
  auto found = tree_.find(directory.ino, name);
  if (!found) {
    if (draft && remove_draft(*draft)) return Outdated{};
    found = tree_.find(directory.ino, name);
    if (!found) return tl::unexpected(found.error());
  }
  if (InodeTable::is_directory(*found) || *found == kHiddenIno) return refuse_edit(EISDIR, "is a directory");
  const TensorId tensor = InodeTable::tensor(*found);
  return edit({.touched = {tensor},
               .apply = [&](ModelEdit& edit) { return edit.remove(model_->tensor(tensor).name); }});
}

Result<Outdated> Filesystem::rename_tensor(Ino parent, std::string_view name, Ino new_parent,
                                           std::string_view new_name, unsigned flags) {
  if (auto editable = check_editable(); !editable) return tl::unexpected(editable.error());
  if (const auto draft = drafts_.find(parent, name); draft && draft->content->made()->waits_for_name()) {
    const auto tensor_name = tree_.name_in(new_parent, new_name);
    if ((flags & RENAME_EXCHANGE) != 0)
      return refuse_edit(EINVAL, "a file without a tensor can't be exchanged");
    if ((flags & RENAME_NOREPLACE) != 0 && tree_.find(new_parent, new_name))
      return refuse_edit(EEXIST, "there is a tensor of that name");
    if (tensor_name) return name_draft(*draft, *tensor_name);
    if (drafts_.rename(draft->ino, new_parent, new_name)) return Outdated{};
    return refuse_edit(EBUSY, "another program is making this file");
  }
  if (!drafts_.wait_for_end(parent, name) || !drafts_.wait_for_end(new_parent, new_name))
    return refuse_edit(EBUSY, "a program is making this file");
  const auto from = tree_.find(parent, name);
  if (!from) return tl::unexpected(from.error());
  const auto to = tree_.find(new_parent, new_name);
  if (!to && to.error().errno_value != ENOENT) return tl::unexpected(to.error());
  if (*from == kHiddenIno || (to && *to == kHiddenIno))
    return refuse_edit(EPERM, ".safetensors stays where it is");
  if (to && (flags & RENAME_NOREPLACE) != 0) return refuse_edit(EEXIST, "there is a tensor of that name");
  if (InodeTable::is_directory(*from)) return rename_directory(*from, to, new_parent, new_name, flags);
  if (to && InodeTable::is_directory(*to)) return refuse_edit(EISDIR, "is a directory");
  const TensorId tensor = InodeTable::tensor(*from);
  if (to && *to == *from) return Outdated{};
  const std::string old(model_->tensor(tensor).name);
  if (!to) {
    if ((flags & RENAME_EXCHANGE) != 0) return tl::unexpected(to.error());
    auto wanted = name_in(new_parent, new_name);
    if (!wanted) return pass_on(std::move(wanted));
    return edit({.touched = {tensor}, .apply = [&](ModelEdit& edit) {
                   return edit.rename(std::vector<ModelEdit::Renaming>{{old, *wanted}});
                 }});
  }
  const TensorId target = InodeTable::tensor(*to);
  const std::string other(model_->tensor(target).name);
  if ((flags & RENAME_EXCHANGE) != 0) {
    return edit({.touched = {tensor, target}, .apply = [&](ModelEdit& edit) {
                   return edit.rename(std::vector<ModelEdit::Renaming>{{old, other}, {other, old}});
                 }});
  }
  if (is_being_written(target)) {
    return refuse_edit(EBUSY,
                       fmt::format("tensor {} can't be replaced: a program is writing it", in_quotes(other)));
  }
  // An editor has written a new file, and makes it the old one: only the bytes are new.
  const bool keeps_form = drafts_.is_plain(tensor);
  const Tensor form = model_->tensor(target);
  const Dtype dtype = form.dtype;
  const std::vector<std::uint64_t> shape(form.shape.begin(), form.shape.end());
  const std::uint64_t size_bytes = model_->tensor(tensor).data.size_bytes;
  if (keeps_form && size_bytes != form.data.size_bytes) {
    return refuse_edit(
        ENODATA, fmt::format("tensor {}: {} has {} bytes, {} {} needs {}: set the dtype or the shape of the "
                             "new file first, to replace the tensor by another one",
                             in_quotes(other), in_quotes(old), size_bytes, name_of(dtype), shape_text(shape),
                             form.data.size_bytes));
  }
  auto renamed = edit({.touched = {tensor, target}, .apply = [&](ModelEdit& edit) -> Result<void> {
                         if (auto removed = edit.remove(other); !removed) return removed;
                         auto named = edit.rename(std::vector<ModelEdit::Renaming>{{old, other}});
                         return named && keeps_form ? edit.reinterpret(other, dtype, shape) : named;
                       }});
  if (renamed && keeps_form && !drafts_.is_plain(target)) drafts_.note_typed(tensor);
  return renamed;
}

Result<Outdated> Filesystem::set_extended_attribute(Ino ino, std::string_view name,
                                                    const std::optional<std::string>& value, int flags) {
  constexpr std::string_view kMetadataPrefix = "metadata.";
  const Node node = resolve(ino);
  if (!node.exists()) return fail(ErrorCode::NotFound, ENOENT, "no such file");
  if (!name.starts_with(kPrefixOfAll)) {
    return options_.is_read_only ? tl::unexpected(check_editable().error())
                                 : refuse_edit(EPERM, "only attributes of safetensorsfs can be set");
  }
  name.remove_prefix(kPrefixOfAll.size());
  if (auto editable = check_editable(); !editable) return tl::unexpected(editable.error());
  if (transactions_.is_transaction(node.ino)) return set_staged_attribute(node, name, value, flags);
  if (node.ino == kRootIno && name.starts_with(kMetadataPrefix))
    return set_metadata(name.substr(kMetadataPrefix.size()), value, flags);
  const bool is_form = name == "dtype" || name == "shape";
  if (const auto draft = drafts_.find(node.ino); draft && is_form && value) {
    auto set = set_form(*draft->content, name, *value);
    return set ? Result<Outdated>(Outdated{}) : pass_on(std::move(set));
  }
  if (node.kind != Node::Kind::Tensor || !is_form || !value) {
    return refuse_edit(
        EPERM, fmt::format("{}{}: can't be set: only dtype and shape of a tensor, and metadata.KEY of "
                           "the root, can",
                           kPrefixOfAll, name));
  }
  if ((flags & XATTR_CREATE) != 0) return refuse_edit(EEXIST, "the attribute is there");
  if (auto set = set_pending_form(node.tensor, name, *value))
    return *set ? Result<Outdated>(Outdated{}) : pass_on(std::move(*set));
  return retype(node.tensor, name, *value);
}

Result<Dtype> Filesystem::dtype_of_text(const std::string& text) {
  std::string upper = text;
  std::ranges::transform(upper, upper.begin(), [](unsigned char c) { return std::toupper(c); });
  const auto dtype = dtype_named(upper);
  if (dtype) return *dtype;
  return refuse_edit(EINVAL, fmt::format("{} is no dtype such as BF16 or U8", in_quotes(text)));
}

Result<std::vector<std::uint64_t>> Filesystem::shape_of_attribute(const std::string& text) {
  auto shape = shape_of_text(text);
  if (shape) return std::move(*shape);
  return refuse_edit(EINVAL, fmt::format("{} is no shape such as [4,16]", in_quotes(text)));
}

Result<void> Filesystem::check_metadata(std::string_view key, const std::optional<std::string>& value) {
  if (is_utf8(key) && (!value || is_utf8(*value))) return {};
  return refuse_edit(EINVAL, fmt::format("metadata {}: key and value must be UTF-8", in_quotes(key)));
}

Result<Outdated> Filesystem::set_metadata(std::string_view key, const std::optional<std::string>& value,
                                          int flags) {
  const auto pin = epochs_.pin();
  const Metadata& metadata = model_->metadata();
  const bool is_there = std::ranges::find(metadata, key, &Metadata::value_type::first) != metadata.end();
  if (!is_there && (!value || (flags & XATTR_REPLACE) != 0))
    return fail(ErrorCode::NotFound, ENODATA, "no such attribute");
  if (is_there && value && (flags & XATTR_CREATE) != 0) return refuse_edit(EEXIST, "the attribute is there");
  if (auto text = check_metadata(key, value); !text) return pass_on(std::move(text));
  return edit({.touched = {}, .apply = [&](ModelEdit& edit) -> Result<void> {
                 edit.set_metadata(key, value);
                 return {};
               }});
}

Result<NewTensor::Form> Filesystem::retyped(std::string_view name, NewTensor::Form now, std::string_view key,
                                            const std::string& value) {
  if (key == "dtype") {
    const auto wanted = dtype_of_text(value);
    if (!wanted) return tl::unexpected(wanted.error());
    auto fitting = shape_as(now, *wanted);
    if (!fitting) {
      return refuse_edit(EINVAL,
                         fmt::format("tensor {}: {} {} has no shape as {} that only differs in its last "
                                     "dimension: set the shape first",
                                     in_quotes(name), name_of(now.dtype), shape_text(now.shape), value));
    }
    now.dtype = *wanted;
    now.shape = std::move(*fitting);
  } else {
    auto wanted = shape_of_attribute(value);
    if (!wanted) return pass_on(std::move(wanted));
    now.shape = std::move(*wanted);
  }
  return now;
}

Result<Outdated> Filesystem::retype(TensorId tensor, std::string_view key, const std::string& value) {
  const auto pin = epochs_.pin();
  if (!model_->ids().position(tensor)) return fail(ErrorCode::NotFound, ENOENT, "the tensor was deleted");
  const Tensor now = model_->tensor(tensor);
  const std::string name(now.name);
  auto form = retyped(name, {.dtype = now.dtype, .shape = {now.shape.begin(), now.shape.end()}}, key, value);
  if (!form) return pass_on(std::move(form));
  drafts_.note_typed(tensor);
  return edit({.touched = {tensor},
               .apply = [&](ModelEdit& edit) { return edit.reinterpret(name, form->dtype, form->shape); }});
}

}  // namespace stfs
