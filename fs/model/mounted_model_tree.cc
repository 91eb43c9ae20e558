// New names and forms of tensors, directories of layout=tree, and metadata (mounted_model.h).
//
// A directory without tensors exists in this mount only: the archive knows names, no directories.
#include <fmt/format.h>
#include <linux/fs.h>
#include <sys/xattr.h>

#include <utility>
#include <vector>

#include "core/format/json_string.h"
#include "fs/base/log.h"
#include "fs/model/mounted_model.h"
#include "fs/model/tensor_forms.h"
#include "fs/tree/names.h"

namespace stfs {

Result<Outdated> MountedModel::rename_in_tree(Ino parent, std::string_view name, Ino new_parent,
                                              std::string_view new_name, unsigned flags, bool& is_outdated) {
  RETURN_IF_ERROR(check_editable());
  const auto from = tree_.find(parent, name);
  const auto scratch = from ? std::nullopt : find_draft(parent, name);
  if (scratch && scratch->is_scratch())
    return rename_scratch(*scratch, new_parent, new_name, flags, is_outdated);
  RETURN_IF_ERROR(from);
  const auto to = tree_.find(new_parent, new_name);
  if (!to && to.error().errno_value != ENOENT) return tl::unexpected(to.error());
  if (*from == kHiddenIno || (to && *to == kHiddenIno))
    return refuse_change(EPERM, ".safetensors stays where it is");
  if (to && (flags & RENAME_NOREPLACE) != 0) return refuse_change(EEXIST, "there is a tensor of that name");
  if (InodeTable::is_directory(*from)) return rename_directory(*from, to, new_parent, new_name, flags);
  if (to && InodeTable::is_directory(*to)) return refuse_change(EISDIR, "is a directory");
  if (to && *to == *from) return Outdated{};
  const TensorId tensor = InodeTable::tensor(*from);
  // Another edit may come before this one.
  const auto check = [&]() -> Result<void> {
    const auto from_now = tree_.find(parent, name);
    const auto to_now = tree_.find(new_parent, new_name);
    is_outdated =
        !from_now || *from_now != *from || to_now.has_value() != to.has_value() || (to && *to_now != *to);
    if (is_outdated) return refuse_change(ESTALE, "another edit has changed these names");
    return {};
  };
  const auto name_of_tensor = [&](TensorId which) { return std::string(model().tensor(which).name); };
  if (!to) {
    const auto hidden = find_draft(new_parent, new_name);
    if (hidden && (flags & RENAME_EXCHANGE) != 0)
      return refuse_change(EINVAL, "a scratch file can't be exchanged with a tensor");
    if (hidden && (flags & RENAME_NOREPLACE) != 0)
      return refuse_change(EEXIST, "there is a file of that name");
    if ((flags & RENAME_EXCHANGE) != 0) return tl::unexpected(to.error());
    auto wanted = name_in(new_parent, new_name);
    RETURN_IF_ERROR(wanted);
    auto renamed = structure_.edit(
        {.touched = {tensor}, .apply = [&](ModelEdit& edit) -> Result<void> {
           RETURN_IF_ERROR(check());
           note_vacated(tensor);
           return edit.rename(std::vector<ModelEdit::Renaming>{{name_of_tensor(tensor), *wanted}});
         }});
    if (!renamed || !hidden || !hidden->is_scratch()) return renamed;
    if (auto removed = remove_scratch(*hidden); !removed) log::warning("{}", removed.error().message);
    return renamed;
  }
  const TensorId target = InodeTable::tensor(*to);
  if ((flags & RENAME_EXCHANGE) != 0) {
    return structure_.edit(
        {.touched = {tensor, target}, .apply = [&](ModelEdit& edit) -> Result<void> {
           RETURN_IF_ERROR(check());
           const std::string one = name_of_tensor(tensor);
           const std::string other = name_of_tensor(target);
           return edit.rename(std::vector<ModelEdit::Renaming>{{one, other}, {other, one}});
         }});
  }
  return structure_.edit({.touched = {tensor, target}, .apply = [&](ModelEdit& edit) -> Result<void> {
                            RETURN_IF_ERROR(check());
                            return replace_tensor(edit, tensor, target);
                          }});
}

void MountedModel::note_vacated(TensorId tensor) {
  const Tensor now = model().tensor(tensor);
  drafts_.note_vacated(std::string(now.name),
                       {.dtype = now.dtype, .shape = {now.shape.begin(), now.shape.end()}});
}

Result<Outdated> MountedModel::rename_scratch(const Drafts::Draft& draft, Ino new_parent,
                                              std::string_view new_name, unsigned flags, bool& is_outdated) {
  if ((flags & RENAME_EXCHANGE) != 0) return refuse_change(EINVAL, "a scratch file can't be exchanged");
  const auto to = tree_.find(new_parent, new_name);
  if (!to && to.error().errno_value != ENOENT) return tl::unexpected(to.error());
  const auto replaced = to ? std::nullopt : find_draft(new_parent, new_name);
  if ((to || replaced) && (flags & RENAME_NOREPLACE) != 0)
    return refuse_change(EEXIST, "there is a file of that name");
  if (to && *to == kHiddenIno) return refuse_change(EPERM, ".safetensors stays where it is");
  if (to && InodeTable::is_directory(*to)) return refuse_change(EISDIR, "is a directory");
  if (to) {
    // Another edit may come before this one.
    const auto check = [&]() -> Result<void> {
      const auto now = tree_.find(new_parent, new_name);
      is_outdated = !now || *now != *to;
      return is_outdated ? refuse_change(ESTALE, "another edit has changed this name") : Result<void>();
    };
    return replace_by_draft(draft, InodeTable::tensor(*to), check);
  }
  if (replaced && replaced->ino == draft.ino) return Outdated{};
  return rename_draft(draft, new_parent, new_name,
                      replaced && replaced->is_scratch() ? replaced : std::nullopt, is_outdated);
}

Result<void> MountedModel::replace_tensor(ModelEdit& edit, TensorId tensor, TensorId target) {
  const Tensor from = model().tensor(tensor);
  const Tensor to = model().tensor(target);
  const std::string name(to.name);
  if (structure_.is_being_written(target)) {
    return refuse_change(
        EBUSY, fmt::format("tensor {} can't be replaced: a program is writing it", in_quotes(name)));
  }
  note_vacated(tensor);
  RETURN_IF_ERROR(edit.remove(name));
  return edit.rename(std::vector<ModelEdit::Renaming>{{std::string(from.name), name}});
}

Result<Outdated> MountedModel::set_metadata(std::string_view key, const std::optional<std::string>& value,
                                            int flags) {
  RETURN_IF_ERROR(check_metadata(key, value));
  return structure_.edit({.touched = {}, .apply = [&](ModelEdit& edit) -> Result<void> {
                            const bool is_there = model().metadata().find(key).has_value();
                            if (!is_there && (!value || (flags & XATTR_REPLACE) != 0))
                              return fail(ErrorCode::NotFound, ENODATA, "no such attribute");
                            if (is_there && value && (flags & XATTR_CREATE) != 0)
                              return refuse_change(EEXIST, "the attribute is there");
                            return edit.set_metadata(key, value);
                          }});
}

Result<Outdated> MountedModel::retype(TensorId tensor, std::string_view key, const std::string& value) {
  return structure_.edit(
      {.touched = {tensor}, .apply = [&](ModelEdit& edit) -> Result<void> {
         if (!model().ids().position(tensor))
           return fail(ErrorCode::NotFound, ENOENT, "the tensor was deleted");
         const Tensor now = model().tensor(tensor);
         const std::string name(now.name);
         auto form =
             retyped(name, {.dtype = now.dtype, .shape = {now.shape.begin(), now.shape.end()}}, key, value);
         RETURN_IF_ERROR(form);
         return edit.reinterpret(name, form->dtype, form->shape);
       }});
}

Result<void> MountedModel::check_new_directory(Ino parent, std::string_view name) const {
  RETURN_IF_ERROR(check_editable());
  if (options_.layout != Layout::Tree)
    return refuse_change(EPERM, "there are no directories without layout=tree");
  // A tensor in the directory must have a name that leads to the directory again.
  const auto wanted = name_in(parent, name);
  return wanted ? Result<void>() : tl::unexpected(wanted.error());
}

Result<struct stat> MountedModel::make_tree_directory(Ino parent, std::string_view name) {
  RETURN_IF_ERROR(check_new_directory(parent, name));
  auto share = directory_counts_.take(requesting_user());
  RETURN_IF_ERROR(share);
  Ino made = 0;
  const auto done = structure_.change_directories([&]() -> Result<void> {
    if (tree_.find(parent, name) || find_draft(parent, name))
      return refuse_change(EEXIST, fmt::format("{} exists", in_quotes(name)));
    if (!tree_.table().exists(parent)) return no_such_inode(parent);
    made = tree_.numbers().number(parent, name, *share);
    return {};
  });
  RETURN_IF_ERROR(done);
  return status_of(node_of(made));
}

Result<void> MountedModel::remove_tree_directory(Ino parent, std::string_view name) {
  RETURN_IF_ERROR(check_editable());
  return structure_.change_directories([&]() -> Result<void> {
    const auto found = tree_.find(parent, name);
    RETURN_IF_ERROR(found);
    if (*found == kHiddenIno) return refuse_change(EPERM, ".safetensors stays");
    if (!InodeTable::is_directory(*found)) return refuse_change(ENOTDIR, "not a directory");
    if (tree_.table().child_count(*found) != 0 || has_scratch_in(*found))
      return refuse_change(ENOTEMPTY, fmt::format("{} has tensors", in_quotes(name)));
    tree_.numbers().remove(*found);
    return {};
  });
}

Result<Outdated> MountedModel::rename_directory(Ino directory, const Result<Ino>& to, Ino new_parent,
                                                std::string_view new_name, unsigned flags) {
  if ((flags & RENAME_EXCHANGE) != 0) return refuse_change(EINVAL, "directories can't be exchanged");
  if (to && *to == directory) return Outdated{};
  if (to && !InodeTable::is_directory(*to)) return refuse_change(ENOTDIR, "not a directory");
  if (to && (tree_.table().child_count(*to) != 0 || has_scratch_in(*to)))
    return refuse_change(ENOTEMPTY, fmt::format("{} has tensors", in_quotes(new_name)));
  RETURN_IF_ERROR(check_new_directory(new_parent, new_name));
  load_scratch();
  const auto pin = snapshots_.pin();
  const InodeTable& table = tree_.table();
  const auto before = tree_.name_in(table.parent(directory), table.file_name(directory));
  if (!before)
    return refuse_change(EPERM, "a directory whose name was cut can't be renamed: rename its tensors");
  const auto after = name_in(new_parent, new_name);
  RETURN_IF_ERROR(after);
  for (Ino above = new_parent; above != kRootIno; above = table.parent(above)) {
    if (above == directory) return refuse_change(EINVAL, "a directory can't move into itself");
  }
  StructureChange change;
  std::vector<ModelEdit::Renaming> renamings;
  const auto collect = [&] {
    change.touched.clear();
    renamings.clear();
    const Model& model = this->model();
    const InodeTable& names = tree_.table();
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
    const InodeTable& names = tree_.table();
    const auto to_now = tree_.find(new_parent, new_name);
    const bool is_same = names.exists(directory) &&
                         tree_.name_in(names.parent(directory), names.file_name(directory)) == before &&
                         to_now.has_value() == to.has_value() && (!to || *to_now == *to);
    if (!is_same) return fail(ErrorCode::NotFound, ENOENT, "another edit has renamed the directory");
    if (to && names.child_count(*to) != 0)
      return refuse_change(ENOTEMPTY, fmt::format("{} has tensors", in_quotes(new_name)));
    collect();
    return {};
  };
  const auto renumber = [&] {
    if (to) tree_.numbers().remove(*to);
    tree_.numbers().move(directory, new_parent, new_name);
  };
  if (renamings.empty()) {
    auto moved = structure_.change_directories([&]() -> Result<void> {
      RETURN_IF_ERROR(check());
      if (!renamings.empty()) return refuse_change(EBUSY, "another edit has put a tensor into the directory");
      renumber();
      return {};
    });
    if (moved) follow_directories();
    return moved ? Result<Outdated>(Outdated{}) : pass_on(std::move(moved));
  }
  change.renumber = renumber;
  change.apply = [&](ModelEdit& edit) -> Result<void> {
    RETURN_IF_ERROR(check());
    return edit.rename(renamings);
  };
  auto renamed = structure_.edit(change);
  if (renamed) follow_directories();
  return renamed;
}

}  // namespace stfs
