// Makes, removes and renames directories of layout=tree (filesystem.h). A directory without tensors exists in
// this mount only: the archive knows names, no directories.
#include <fmt/format.h>
#include <linux/fs.h>

#include <algorithm>
#include <utility>

#include "core/format/json_string.h"
#include "fs/model/filesystem.h"
#include "fs/tree/names.h"

namespace stfs {
namespace {

tl::unexpected<Error> refuse_directory(int errno_value, std::string why) {
  return fail(ErrorCode::InvalidArgument, errno_value, std::move(why));
}

}  // namespace

Result<void> Filesystem::check_new_directory(Ino parent, std::string_view name) const {
  if (auto editable = check_editable(); !editable) return editable;
  if (options_.layout != Layout::Tree)
    return refuse_directory(EPERM, "there are no directories without layout=tree");
  // A tensor in it must have a name that leads there again.
  const auto wanted = name_in(parent, name);
  return wanted ? Result<void>() : tl::unexpected(wanted.error());
}

Result<struct stat> Filesystem::make_tree_directory(Ino parent, std::string_view name) {
  if (auto right = check_new_directory(parent, name); !right) return tl::unexpected(right.error());
  Ino made = 0;
  {
    const auto pin = epochs_.pin();
    const std::scoped_lock structure(structure_mutex_);
    if (tree_.find(parent, name) || drafts_.find(parent, name))
      return refuse_directory(EEXIST, fmt::format("{} exists", in_quotes(name)));
    if (!tree_.table().exists(parent)) return no_such_inode(parent);
    made = tree_.numbers().number(parent, name);
    show_directories();
  }
  return stat_of(resolve(made));
}

Result<void> Filesystem::remove_tree_directory(Ino parent, std::string_view name) {
  if (auto editable = check_editable(); !editable) return editable;
  const auto pin = epochs_.pin();
  const std::scoped_lock structure(structure_mutex_);
  const auto found = tree_.find(parent, name);
  if (!found) return tl::unexpected(found.error());
  if (*found == kHiddenIno) return refuse_directory(EPERM, ".safetensors stays");
  if (!InodeTable::is_directory(*found)) return refuse_directory(ENOTDIR, "not a directory");
  if (tree_.table().child_count(*found) != 0 || drafts_.has_in(*found))
    return refuse_directory(ENOTEMPTY, fmt::format("{} has tensors", in_quotes(name)));
  tree_.numbers().remove(*found);
  show_directories();
  return {};
}

void Filesystem::show_directories() {
  std::vector<std::shared_ptr<void>> replaced;
  tree_.show(replaced);
  views_.show(replaced, false);
  ++changes_;
  last_edit_ = epochs_.retire(std::move(replaced));
}

Result<Outdated> Filesystem::rename_directory(Ino directory, const Result<Ino>& to, Ino new_parent,
                                              std::string_view new_name, unsigned flags) {
  if ((flags & RENAME_EXCHANGE) != 0) return refuse_directory(EINVAL, "directories can't be exchanged");
  if (to && *to == directory) return Outdated{};
  if (to && !InodeTable::is_directory(*to)) return refuse_directory(ENOTDIR, "not a directory");
  if (to && (tree_.table().child_count(*to) != 0 || drafts_.has_in(*to)))
    return refuse_directory(ENOTEMPTY, fmt::format("{} has tensors", in_quotes(new_name)));
  if (auto right = check_new_directory(new_parent, new_name); !right) return tl::unexpected(right.error());
  const auto pin = epochs_.pin();
  const InodeTable& table = tree_.table();
  const auto before = tree_.name_in(table.parent(directory), table.file_name(directory));
  if (!before)
    return refuse_directory(EPERM, "a directory whose name was cut can't be renamed: rename its tensors");
  const auto after = name_in(new_parent, new_name);
  if (!after) return tl::unexpected(after.error());
  for (Ino above = new_parent; above != kRootIno; above = table.parent(above)) {
    if (above == directory) return refuse_directory(EINVAL, "a directory can't move into itself");
  }
  const auto is_below = [&](Ino ino) {
    while (ino != kRootIno && ino != directory) ino = table.parent(ino);
    return ino == directory;
  };
  StructureChange change;
  std::vector<ModelEdit::Renaming> renamings;
  for (std::uint32_t at = 0; at < model_->ids().size(); ++at) {
    const TensorId tensor = model_->ids().of(at);
    const Ino ino = InodeTable::ino_of_tensor(tensor);
    if (!table.exists(ino) || !is_below(ino)) continue;
    const std::string name(model_->tensor(tensor).name);
    renamings.push_back({name, *after + name.substr(before->size())});
    change.touched.push_back(tensor);
  }
  const auto renumber = [&] {
    if (to) tree_.numbers().remove(*to);
    tree_.numbers().move(directory, new_parent, new_name);
  };
  if (renamings.empty()) {
    const std::scoped_lock structure(structure_mutex_);
    renumber();
    show_directories();
    return Outdated{};
  }
  change.renumber = renumber;
  change.apply = [&](ModelEdit& edit) { return edit.rename(renamings); };
  return edit(change);
}

}  // namespace stfs
