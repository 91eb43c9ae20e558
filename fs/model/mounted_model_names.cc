// Requests that change names and attributes. Each one finds the kind of the file, and calls a function for
// that kind (mounted_model.h).
#include <fmt/format.h>
#include <linux/fs.h>
#include <sys/xattr.h>

#include <algorithm>
#include <array>
#include <mutex>
#include <utility>

#include "core/storage/attribute_names.h"
#include "fs/base/log.h"
#include "fs/model/mounted_model.h"
#include "fs/model/tensor_forms.h"
#include "fs/write/checkpoint.h"

namespace stfs {
namespace {

constexpr std::string_view kPrefixOfAll = kAttributePrefix;

/// True if only the mount sets this attribute.
bool is_set_by_mount(std::string_view key) {
  constexpr std::array<std::string_view, 10> kKeys = {
      "name",    "archive",    "offset", "generation", "first_generation",
      "tensors", "parameters", "view",   "file",       "deleted"};
  return std::ranges::find(kKeys, key) != kKeys.end();
}

tl::unexpected<Error> not_among_transactions() {
  return fail(ErrorCode::InvalidArgument, EPERM, "only transactions can be created, moved and removed");
}

}  // namespace

Result<Outdated> MountedModel::remove_file(Ino parent, std::string_view name) {
  const Node directory = node_of(parent);
  RETURN_IF_ERROR(check_caller(directory, S_IWOTH));
  const auto made = drafts_.find(directory.ino, name);
  if (Checkpoint* const saved = made ? made->content->checkpoint() : nullptr) {
    RETURN_IF_ERROR(check_caller_writes_all());
    // The kernel holds the directory's lock, so this does not wait for a commit.
    const std::unique_lock lock(made->content->mutex, std::try_to_lock);
    if (!lock) return refuse_change(EBUSY, "is being written or saved: try again");
    saved->drop();
    made->content->is_unlinked = true;
    drafts_.remove(made->ino);
    return Outdated{};
  }
  if (directory.is_of_source()) {
    auto removed = served_files_.remove(directory, name);
    return removed ? Result<Outdated>(Outdated{}) : pass_on(std::move(removed));
  }
  if (directory.is_staged()) {
    auto removed = transactions_.remove_file(directory.ino, name, check_staging(directory.ino));
    return removed ? Result<Outdated>(Outdated{}) : pass_on(std::move(removed));
  }
  if (directory.kind != Node::Kind::Directory)
    return refuse_change(EPERM, "views can't be removed: remove the tensor");
  RETURN_IF_ERROR(check_editable());
  auto found = tree_.find(directory.ino, name);
  if (!found) {
    const auto draft = find_draft(directory.ino, name);
    if (draft && draft->is_scratch()) {
      auto removed = remove_scratch(*draft);
      return removed ? Result<Outdated>(Outdated{}) : pass_on(std::move(removed));
    }
    found = tree_.find(directory.ino, name);
    RETURN_IF_ERROR(found);
  }
  if (InodeTable::is_directory(*found) || *found == kHiddenIno)
    return refuse_change(EISDIR, "is a directory");
  const TensorId tensor = InodeTable::tensor(*found);
  bool is_outdated = false;
  auto removed = structure_.edit({.touched = {tensor}, .apply = [&](ModelEdit& edit) -> Result<void> {
                                    // Another edit may come before this one.
                                    const auto now = tree_.find(directory.ino, name);
                                    RETURN_IF_ERROR(now);
                                    is_outdated = *now != *found;
                                    if (is_outdated)
                                      return refuse_change(ESTALE, "another edit has changed this name");
                                    note_vacated(tensor);
                                    return edit.remove(model().tensor(tensor).name);
                                  }});
  if (!removed && is_outdated) return remove_file(parent, name);
  // A scratch file that the tensor has hidden must not come up under the name.
  const auto hidden = removed ? find_draft(directory.ino, name) : std::nullopt;
  if (hidden && hidden->is_scratch()) {
    if (auto gone = remove_scratch(*hidden); !gone) log::warning("{}", gone.error().message);
  }
  return removed;
}

Result<Outdated> MountedModel::set_extended_attribute(Ino ino, std::string_view name,
                                                      const std::optional<std::string>& value, int flags) {
  const Node node = node_of(ino);
  if (!node.exists()) return fail(ErrorCode::NotFound, ENOENT, "no such file");
  RETURN_IF_ERROR(check_caller(node, S_IWOTH));
  if (node.is_of_source() && !options_.is_read_only)
    return refuse_change(EOPNOTSUPP, "files of the source directory have no attributes here");
  if (!name.starts_with(kPrefixOfAll)) {
    return options_.is_read_only ? tl::unexpected(check_editable().error())
                                 : refuse_change(EPERM, "only attributes of safetensorsfs can be set");
  }
  name.remove_prefix(kPrefixOfAll.size());
  RETURN_IF_ERROR(check_editable());
  // `cp -a`, `rsync -X` and `tar --xattrs` copy all attributes, and remove attributes that the source file
  // lacks.
  if (is_set_by_mount(name)) return Outdated{};
  if (transactions_.is_transaction(node.ino)) return set_staged_attribute(node, name, value, flags);
  if (node.ino == kRootIno && name.starts_with(kMetadataPrefix))
    return set_metadata(name.substr(kMetadataPrefix.size()), value, flags);
  const bool is_form = name == "dtype" || name == "shape";
  if (const auto draft = drafts_.find(node.ino); draft && is_form && value)
    return set_draft_attribute(*draft, name, *value);
  if (node.kind != Node::Kind::Tensor || !is_form || !value) {
    return refuse_change(
        EPERM, fmt::format("{}{}: can't be set: only dtype and shape of a tensor, and metadata.KEY of "
                           "the root, can",
                           kPrefixOfAll, name));
  }
  if ((flags & XATTR_CREATE) != 0) return refuse_change(EEXIST, "the attribute is there");
  if (auto set = set_pending_form(node.tensor, name, *value))
    return *set ? Result<Outdated>(Outdated{}) : pass_on(std::move(*set));
  return retype(node.tensor, name, *value);
}

Result<struct stat> MountedModel::make_directory(Ino parent, std::string_view name, Maker maker,
                                                 mode_t mode) {
  const Node directory = node_of(parent);
  RETURN_IF_ERROR(check_caller(directory, S_IWOTH));
  if (directory.is_of_source()) {
    const auto made = served_files_.make_directory(directory, name, mode, maker);
    return made ? status_of(node_of(*made)) : tl::unexpected(made.error());
  }
  if (directory.kind == Node::Kind::Directory) return make_tree_directory(directory.ino, name);
  if (!directory.is_staged()) return not_among_transactions();
  const auto made = transactions_.begin(directory.ino, name, std::move(maker));
  RETURN_IF_ERROR(made);
  return status_of(node_of(*made));
}

Result<void> MountedModel::remove_directory(Ino parent, std::string_view name) {
  const Node directory = node_of(parent);
  RETURN_IF_ERROR(check_caller(directory, S_IWOTH));
  if (directory.is_of_source()) return served_files_.remove_directory(directory, name);
  if (directory.kind == Node::Kind::Directory) return remove_tree_directory(directory.ino, name);
  if (!directory.is_staged()) return not_among_transactions();
  return transactions_.remove_directory(directory.ino, name);
}

Result<Outdated> MountedModel::rename(Ino parent, std::string_view name, Ino new_parent,
                                      std::string_view new_name, unsigned flags) {
  if ((flags & ~(RENAME_NOREPLACE | RENAME_EXCHANGE)) != 0)
    return fail(ErrorCode::InvalidArgument, EINVAL, "unknown flags of renameat2");
  const Node from = node_of(parent);
  const Node to = node_of(new_parent);
  RETURN_IF_ERROR(check_caller(from, S_IWOTH));
  RETURN_IF_ERROR(check_caller(to, S_IWOTH));
  if (from.kind == Node::Kind::Directory && to.kind == Node::Kind::Directory) {
    for (;;) {
      bool is_outdated = false;
      auto renamed = rename_in_tree(from.ino, name, to.ino, new_name, flags, is_outdated);
      if (renamed || !is_outdated) return renamed;
    }
  }
  if (transactions_.is_hidden(from.ino)) return not_among_transactions();
  if (drafts_.find(from.ino, name)) return rename_checkpoint(from.ino, name, to.ino, new_name);
  if (from.is_of_source() && to.is_of_source()) {
    auto renamed = served_files_.rename(from, name, to, new_name, flags);
    return renamed ? Result<Outdated>(Outdated{}) : pass_on(std::move(renamed));
  }
  if (!from.is_staged() || !to.is_staged()) return not_among_transactions();
  if (transactions_.is_transaction(from.ino) && from.ino == to.ino)
    return rename_staged(from.ino, name, new_name, flags);
  return rename_transaction(from.ino, name, to.ino, new_name, flags);
}

}  // namespace stfs
