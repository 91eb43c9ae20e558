// Checks requests, and edits the structure.
#include "fs/model/tensor_names.h"

#include <fmt/format.h>
#include <linux/fs.h>
#include <sys/xattr.h>

#include <utility>
#include <vector>

#include "core/format/json_string.h"
#include "fs/base/log.h"
#include "fs/model/tensor_forms.h"
#include "fs/tree/names.h"

namespace stfs {
namespace {

tl::unexpected<Error> refuse(int errno_value, std::string why) {
  return fail(ErrorCode::InvalidArgument, errno_value, std::move(why));
}

}  // namespace

Result<Outdated> TensorNames::rename(Ino parent, std::string_view name, Ino new_parent,
                                     std::string_view new_name, unsigned flags) {
  for (;;) {
    bool is_outdated = false;
    auto renamed = rename_once(parent, name, new_parent, new_name, flags, is_outdated);
    if (renamed || !is_outdated) return renamed;
  }
}

Result<Outdated> TensorNames::rename_once(Ino parent, std::string_view name, Ino new_parent,
                                          std::string_view new_name, unsigned flags, bool& is_outdated) {
  if (auto editable = parts_.check_editable(); !editable) return tl::unexpected(editable.error());
  const auto from = parts_.tree.find(parent, name);
  const auto scratch = from ? std::nullopt : scratch_.find(parent, name);
  if (scratch && is_scratch(*scratch))
    return rename_scratch(*scratch, new_parent, new_name, flags, is_outdated);
  if (!from) return tl::unexpected(from.error());
  const auto to = parts_.tree.find(new_parent, new_name);
  if (!to && to.error().errno_value != ENOENT) return tl::unexpected(to.error());
  if (*from == kHiddenIno || (to && *to == kHiddenIno))
    return refuse(EPERM, ".safetensors stays where it is");
  if (to && (flags & RENAME_NOREPLACE) != 0) return refuse(EEXIST, "there is a tensor of that name");
  if (InodeTable::is_directory(*from)) return rename_directory(*from, to, new_parent, new_name, flags);
  if (to && InodeTable::is_directory(*to)) return refuse(EISDIR, "is a directory");
  if (to && *to == *from) return Outdated{};
  const TensorId tensor = InodeTable::tensor(*from);
  // Another edit may come before this one.
  const auto check = [&]() -> Result<void> {
    const auto from_now = parts_.tree.find(parent, name);
    const auto to_now = parts_.tree.find(new_parent, new_name);
    is_outdated =
        !from_now || *from_now != *from || to_now.has_value() != to.has_value() || (to && *to_now != *to);
    if (is_outdated) return refuse(ESTALE, "another edit has changed these names");
    return {};
  };
  const auto name_of_tensor = [&](TensorId which) { return std::string(parts_.model->tensor(which).name); };
  if (!to) {
    const auto hidden = scratch_.find(new_parent, new_name);
    if (hidden && (flags & RENAME_EXCHANGE) != 0)
      return refuse(EINVAL, "a scratch file can't be exchanged with a tensor");
    if (hidden && (flags & RENAME_NOREPLACE) != 0) return refuse(EEXIST, "there is a file of that name");
    if ((flags & RENAME_EXCHANGE) != 0) return tl::unexpected(to.error());
    auto wanted = parts_.name_in(new_parent, new_name);
    if (!wanted) return pass_on(std::move(wanted));
    auto renamed = structure_.edit(
        {.touched = {tensor}, .apply = [&](ModelEdit& edit) -> Result<void> {
           if (auto same = check(); !same) return same;
           note_vacated(tensor);
           return edit.rename(std::vector<ModelEdit::Renaming>{{name_of_tensor(tensor), *wanted}});
         }});
    if (!renamed || !hidden || !is_scratch(*hidden)) return renamed;
    if (auto removed = scratch_.remove(*hidden); !removed) log::warning("{}", removed.error().message);
    return renamed;
  }
  const TensorId target = InodeTable::tensor(*to);
  if ((flags & RENAME_EXCHANGE) != 0) {
    return structure_.edit(
        {.touched = {tensor, target}, .apply = [&](ModelEdit& edit) -> Result<void> {
           if (auto same = check(); !same) return same;
           const std::string one = name_of_tensor(tensor);
           const std::string other = name_of_tensor(target);
           return edit.rename(std::vector<ModelEdit::Renaming>{{one, other}, {other, one}});
         }});
  }
  return structure_.edit({.touched = {tensor, target}, .apply = [&](ModelEdit& edit) -> Result<void> {
                            if (auto same = check(); !same) return same;
                            return replace(edit, tensor, target);
                          }});
}

void TensorNames::note_vacated(TensorId tensor) {
  const Tensor now = parts_.model->tensor(tensor);
  parts_.drafts.note_vacated(std::string(now.name),
                             {.dtype = now.dtype, .shape = {now.shape.begin(), now.shape.end()}});
}

Result<Outdated> TensorNames::rename_scratch(const Drafts::Draft& draft, Ino new_parent,
                                             std::string_view new_name, unsigned flags, bool& is_outdated) {
  if ((flags & RENAME_EXCHANGE) != 0) return refuse(EINVAL, "a scratch file can't be exchanged");
  const auto to = parts_.tree.find(new_parent, new_name);
  if (!to && to.error().errno_value != ENOENT) return tl::unexpected(to.error());
  const auto replaced = to ? std::nullopt : scratch_.find(new_parent, new_name);
  if ((to || replaced) && (flags & RENAME_NOREPLACE) != 0)
    return refuse(EEXIST, "there is a file of that name");
  if (to && *to == kHiddenIno) return refuse(EPERM, ".safetensors stays where it is");
  if (to && InodeTable::is_directory(*to)) return refuse(EISDIR, "is a directory");
  if (to) {
    // Another edit may come before this one.
    const auto check = [&]() -> Result<void> {
      const auto now = parts_.tree.find(new_parent, new_name);
      is_outdated = !now || *now != *to;
      return is_outdated ? refuse(ESTALE, "another edit has changed this name") : Result<void>();
    };
    return drafts_.replace(draft, InodeTable::tensor(*to), check);
  }
  if (replaced && replaced->ino == draft.ino) return Outdated{};
  return drafts_.rename(draft, new_parent, new_name,
                        replaced && is_scratch(*replaced) ? replaced : std::nullopt);
}

Result<void> TensorNames::replace(ModelEdit& edit, TensorId tensor, TensorId target) {
  const Tensor from = parts_.model->tensor(tensor);
  const Tensor to = parts_.model->tensor(target);
  const std::string name(to.name);
  if (structure_.is_being_written(target)) {
    return refuse(EBUSY,
                  fmt::format("tensor {} can't be replaced: a program is writing it", in_quotes(name)));
  }
  note_vacated(tensor);
  if (auto removed = edit.remove(name); !removed) return removed;
  return edit.rename(std::vector<ModelEdit::Renaming>{{std::string(from.name), name}});
}

Result<Outdated> TensorNames::set_metadata(std::string_view key, const std::optional<std::string>& value,
                                           int flags) {
  if (auto text = check_metadata(key, value); !text) return pass_on(std::move(text));
  return structure_.edit({.touched = {}, .apply = [&](ModelEdit& edit) -> Result<void> {
                            const bool is_there = parts_.model->metadata().find(key).has_value();
                            if (!is_there && (!value || (flags & XATTR_REPLACE) != 0))
                              return fail(ErrorCode::NotFound, ENODATA, "no such attribute");
                            if (is_there && value && (flags & XATTR_CREATE) != 0)
                              return refuse(EEXIST, "the attribute is there");
                            return edit.set_metadata(key, value);
                          }});
}

Result<Outdated> TensorNames::retype(TensorId tensor, std::string_view key, const std::string& value) {
  return structure_.edit(
      {.touched = {tensor}, .apply = [&](ModelEdit& edit) -> Result<void> {
         if (!parts_.model->ids().position(tensor))
           return fail(ErrorCode::NotFound, ENOENT, "the tensor was deleted");
         const Tensor now = parts_.model->tensor(tensor);
         const std::string name(now.name);
         auto form =
             retyped(name, {.dtype = now.dtype, .shape = {now.shape.begin(), now.shape.end()}}, key, value);
         if (!form) return pass_on(std::move(form));
         return edit.reinterpret(name, form->dtype, form->shape);
       }});
}

Result<void> TensorNames::check_new_directory(Ino parent, std::string_view name) const {
  if (auto editable = parts_.check_editable(); !editable) return editable;
  if (parts_.options.layout != Layout::Tree)
    return refuse(EPERM, "there are no directories without layout=tree");
  // A tensor in it must have a name that leads there again.
  const auto wanted = parts_.name_in(parent, name);
  return wanted ? Result<void>() : tl::unexpected(wanted.error());
}

Result<struct stat> TensorNames::make_directory(Ino parent, std::string_view name) {
  if (auto right = check_new_directory(parent, name); !right) return tl::unexpected(right.error());
  Ino made = 0;
  const auto done = structure_.change_directories([&]() -> Result<void> {
    if (parts_.tree.find(parent, name) || scratch_.find(parent, name))
      return refuse(EEXIST, fmt::format("{} exists", in_quotes(name)));
    if (!parts_.tree.table().exists(parent)) return no_such_inode(parent);
    made = parts_.tree.numbers().number(parent, name);
    return {};
  });
  if (!done) return tl::unexpected(done.error());
  return stats_.of(parts_.resolve(made));
}

Result<void> TensorNames::remove_directory(Ino parent, std::string_view name) {
  if (auto editable = parts_.check_editable(); !editable) return editable;
  return structure_.change_directories([&]() -> Result<void> {
    const auto found = parts_.tree.find(parent, name);
    if (!found) return tl::unexpected(found.error());
    if (*found == kHiddenIno) return refuse(EPERM, ".safetensors stays");
    if (!InodeTable::is_directory(*found)) return refuse(ENOTDIR, "not a directory");
    if (parts_.tree.table().child_count(*found) != 0 || scratch_.has_in(*found))
      return refuse(ENOTEMPTY, fmt::format("{} has tensors", in_quotes(name)));
    parts_.tree.numbers().remove(*found);
    return {};
  });
}

Result<Outdated> TensorNames::rename_directory(Ino directory, const Result<Ino>& to, Ino new_parent,
                                               std::string_view new_name, unsigned flags) {
  if ((flags & RENAME_EXCHANGE) != 0) return refuse(EINVAL, "directories can't be exchanged");
  if (to && *to == directory) return Outdated{};
  if (to && !InodeTable::is_directory(*to)) return refuse(ENOTDIR, "not a directory");
  if (to && (parts_.tree.table().child_count(*to) != 0 || scratch_.has_in(*to)))
    return refuse(ENOTEMPTY, fmt::format("{} has tensors", in_quotes(new_name)));
  if (auto right = check_new_directory(new_parent, new_name); !right) return tl::unexpected(right.error());
  scratch_.load();
  const auto pin = parts_.epochs.pin();
  const InodeTable& table = parts_.tree.table();
  const auto before = parts_.tree.name_in(table.parent(directory), table.file_name(directory));
  if (!before) return refuse(EPERM, "a directory whose name was cut can't be renamed: rename its tensors");
  const auto after = parts_.name_in(new_parent, new_name);
  if (!after) return tl::unexpected(after.error());
  for (Ino above = new_parent; above != kRootIno; above = table.parent(above)) {
    if (above == directory) return refuse(EINVAL, "a directory can't move into itself");
  }
  StructureChange change;
  std::vector<ModelEdit::Renaming> renamings;
  const auto collect = [&] {
    change.touched.clear();
    renamings.clear();
    const Model& model = *parts_.model;
    const InodeTable& names = parts_.tree.table();
    for (std::uint32_t at = 0; at < model.ids().size(); ++at) {
      const TensorId tensor = model.ids().of(at);
      Ino above = InodeTable::ino_of_tensor(tensor);
      if (!names.exists(above)) continue;
      while (above != kRootIno && above != directory) above = names.parent(above);
      if (above != directory) continue;
      const std::string name(model.tensor(tensor).name);
      renamings.push_back({name, *after + name.substr(before->size())});
      change.touched.push_back(tensor);
    }
  };
  collect();
  // Another edit may come before this one.
  const auto check = [&]() -> Result<void> {
    const InodeTable& names = parts_.tree.table();
    const auto to_now = parts_.tree.find(new_parent, new_name);
    const bool is_same = names.exists(directory) &&
                         parts_.tree.name_in(names.parent(directory), names.file_name(directory)) == before &&
                         to_now.has_value() == to.has_value() && (!to || *to_now == *to);
    if (!is_same) return fail(ErrorCode::NotFound, ENOENT, "another edit has renamed the directory");
    if (to && names.child_count(*to) != 0)
      return refuse(ENOTEMPTY, fmt::format("{} has tensors", in_quotes(new_name)));
    collect();
    return {};
  };
  const auto renumber = [&] {
    if (to) parts_.tree.numbers().remove(*to);
    parts_.tree.numbers().move(directory, new_parent, new_name);
  };
  if (renamings.empty()) {
    auto moved = structure_.change_directories([&]() -> Result<void> {
      if (auto same = check(); !same) return same;
      if (!renamings.empty()) return refuse(EBUSY, "another edit has put a tensor into the directory");
      renumber();
      return {};
    });
    if (moved) scratch_.follow_directories();
    return moved ? Result<Outdated>(Outdated{}) : pass_on(std::move(moved));
  }
  change.renumber = renumber;
  change.apply = [&](ModelEdit& edit) -> Result<void> {
    if (auto same = check(); !same) return same;
    return edit.rename(renamings);
  };
  auto renamed = structure_.edit(change);
  if (renamed) scratch_.follow_directories();
  return renamed;
}

}  // namespace stfs
