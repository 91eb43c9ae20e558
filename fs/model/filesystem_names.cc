// Implements the requests on names and attributes: mkdir, rmdir, unlink, rename, setxattr (filesystem.h).
#include <fmt/format.h>
#include <linux/fs.h>
#include <sys/xattr.h>

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "core/storage/attribute_names.h"
#include "fs/base/log.h"
#include "fs/model/filesystem.h"
#include "fs/model/tensor_forms.h"

namespace stfs {
namespace {

constexpr std::string_view kPrefixOfAll = kAttributePrefix;

tl::unexpected<Error> refuse_edit(int errno_value, std::string why) {
  return fail(ErrorCode::InvalidArgument, errno_value, std::move(why));
}

/// Whether only the mount gives files this attribute.
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

Result<Outdated> Filesystem::remove_file(Ino parent, std::string_view name) {
  const Node directory = parts_.resolve(parent);
  const auto made = parts_.drafts.find(directory.ino, name);
  if (made && made->content->made()->checkpoint() != nullptr) {
    made->content->made()->forget();
    made->content->is_unlinked = true;
    parts_.drafts.remove(made->ino);
    return Outdated{};
  }
  if (directory.is_of_source()) {
    auto removed = pretrained_.remove(directory, name);
    return removed ? Result<Outdated>(Outdated{}) : pass_on(std::move(removed));
  }
  if (directory.is_staged()) {
    auto removed = parts_.transactions.remove_file(directory.ino, name, staged_.check(directory.ino));
    return removed ? Result<Outdated>(Outdated{}) : pass_on(std::move(removed));
  }
  if (directory.kind != Node::Kind::Directory)
    return refuse_edit(EPERM, "views can't be removed: remove the tensor");
  if (auto editable = parts_.check_editable(); !editable) return tl::unexpected(editable.error());
  auto found = parts_.tree.find(directory.ino, name);
  if (!found) {
    const auto draft = scratch_.find(directory.ino, name);
    if (draft && is_scratch(*draft)) {
      auto removed = scratch_.remove(*draft);
      return removed ? Result<Outdated>(Outdated{}) : pass_on(std::move(removed));
    }
    found = parts_.tree.find(directory.ino, name);
    if (!found) return tl::unexpected(found.error());
  }
  if (InodeTable::is_directory(*found) || *found == kHiddenIno) return refuse_edit(EISDIR, "is a directory");
  const TensorId tensor = InodeTable::tensor(*found);
  bool is_outdated = false;
  auto removed = structure_.edit({.touched = {tensor}, .apply = [&](ModelEdit& edit) -> Result<void> {
                                    // Another edit may come before this one.
                                    const auto now = parts_.tree.find(directory.ino, name);
                                    if (!now) return tl::unexpected(now.error());
                                    is_outdated = *now != *found;
                                    if (is_outdated)
                                      return refuse_edit(ESTALE, "another edit has changed this name");
                                    names_.note_vacated(tensor);
                                    return edit.remove(parts_.model->tensor(tensor).name);
                                  }});
  return removed || !is_outdated ? std::move(removed) : remove_file(parent, name);
}

Result<Outdated> Filesystem::set_extended_attribute(Ino ino, std::string_view name,
                                                    const std::optional<std::string>& value, int flags) {
  constexpr std::string_view kMetadataPrefix = "metadata.";
  const Node node = parts_.resolve(ino);
  if (!node.exists()) return fail(ErrorCode::NotFound, ENOENT, "no such file");
  if (node.is_of_source() && !parts_.options.is_read_only)
    return refuse_edit(EOPNOTSUPP, "files of the source directory have no attributes here");
  if (!name.starts_with(kPrefixOfAll)) {
    return parts_.options.is_read_only ? tl::unexpected(parts_.check_editable().error())
                                       : refuse_edit(EPERM, "only attributes of safetensorsfs can be set");
  }
  name.remove_prefix(kPrefixOfAll.size());
  if (auto editable = parts_.check_editable(); !editable) return tl::unexpected(editable.error());
  // `cp -a`, `rsync -X` and `tar --xattrs` copy all attributes, and remove those that the source has not.
  if (is_set_by_mount(name)) return Outdated{};
  if (parts_.transactions.is_transaction(node.ino)) return staged_.set_attribute(node, name, value, flags);
  if (node.ino == kRootIno && name.starts_with(kMetadataPrefix))
    return names_.set_metadata(name.substr(kMetadataPrefix.size()), value, flags);
  const bool is_form = name == "dtype" || name == "shape";
  if (const auto draft = parts_.drafts.find(node.ino); draft && is_form && value)
    return drafts_.set_attribute(*draft, name, *value);
  if (node.kind != Node::Kind::Tensor || !is_form || !value) {
    return refuse_edit(
        EPERM, fmt::format("{}{}: can't be set: only dtype and shape of a tensor, and metadata.KEY of "
                           "the root, can",
                           kPrefixOfAll, name));
  }
  if ((flags & XATTR_CREATE) != 0) return refuse_edit(EEXIST, "the attribute is there");
  if (auto set = drafts_.set_pending_form(node.tensor, name, *value))
    return *set ? Result<Outdated>(Outdated{}) : pass_on(std::move(*set));
  return names_.retype(node.tensor, name, *value);
}

Result<struct stat> Filesystem::make_directory(Ino parent, std::string_view name, Maker maker, mode_t mode) {
  const Node directory = parts_.resolve(parent);
  if (directory.is_of_source()) {
    const auto made = pretrained_.make_directory(directory, name, mode, maker);
    return made ? stats_.of(parts_.resolve(*made)) : tl::unexpected(made.error());
  }
  if (directory.kind == Node::Kind::Directory) return names_.make_directory(directory.ino, name);
  if (!directory.is_staged()) return not_among_transactions();
  const auto made = parts_.transactions.begin(directory.ino, name, std::move(maker));
  if (!made) return tl::unexpected(made.error());
  return stats_.of(parts_.resolve(*made));
}

Result<void> Filesystem::remove_directory(Ino parent, std::string_view name) {
  const Node directory = parts_.resolve(parent);
  if (directory.is_of_source()) return pretrained_.remove_directory(directory, name);
  if (directory.kind == Node::Kind::Directory) return names_.remove_directory(directory.ino, name);
  if (!directory.is_staged()) return not_among_transactions();
  return parts_.transactions.remove_directory(directory.ino, name);
}

Result<Outdated> Filesystem::rename(Ino parent, std::string_view name, Ino new_parent,
                                    std::string_view new_name, unsigned flags) {
  if ((flags & ~(RENAME_NOREPLACE | RENAME_EXCHANGE)) != 0)
    return fail(ErrorCode::InvalidArgument, EINVAL, "unknown flags of renameat2");
  const Node from = parts_.resolve(parent);
  const Node to = parts_.resolve(new_parent);
  if (from.kind == Node::Kind::Directory && to.kind == Node::Kind::Directory)
    return names_.rename(from.ino, name, to.ino, new_name, flags);
  if (parts_.transactions.is_hidden(from.ino)) return not_among_transactions();
  if (parts_.drafts.find(from.ino, name)) return checkpoints_.rename(from.ino, name, to.ino, new_name);
  if (from.is_of_source() && to.is_of_source()) {
    auto renamed = pretrained_.rename(from, name, to, new_name, flags);
    return renamed ? Result<Outdated>(Outdated{}) : pass_on(std::move(renamed));
  }
  if (!from.is_staged() || !to.is_staged()) return not_among_transactions();
  if (parts_.transactions.is_transaction(from.ino) && from.ino == to.ino)
    return staged_.rename(from.ino, name, new_name, flags);
  if (to.ino == TransactionDirectory::kCommitted) {
    const auto transaction = parts_.transactions.find(from.ino, name);
    if (transaction && !parts_.drafts.wait_for_ends_in(parts_.transactions.npy_directory(*transaction))) {
      return fail(ErrorCode::Busy, EBUSY,
                  fmt::format("a file in {}/.safetensors/npy is still open for writing", name));
    }
  }
  if ((flags & RENAME_EXCHANGE) != 0) return fail(ErrorCode::InvalidArgument, EINVAL, "not for transactions");
  std::vector<Stale> found;
  Outdated edited;
  bool is_committed = false;
  const auto note_stale = [&](const TransactionDirectory::Contents& contents) {
    for (const auto& content : contents)
      found.push_back(parts_.stale(InodeTable::ino_of_tensor(content->tensor()), Stale::What::Content));
  };
  const TransactionDirectory::Calls calls{
      .lock_of = parts_.lock_of(),
      .in_turn =
          [&](const auto& shards, const auto& patch, const auto& check, const auto& attempt) {
            return structure_.following([&] {
              ShardWriter writer(parts_, foreign_, shards, patch);
              writer.set_check(check);
              while (writer.take_turns())
                writer.end_attempt(guard_memory([&] { return attempt(writer.options_of()); }));
              for (const auto& [shard, change] : writer.foreign()) found.push_back(change);
              return std::move(writer.result());
            });
          },
      .note_committed =
          [&](const TransactionDirectory::Contents& contents) {
            for (const auto& content : contents) contents_.note_commit(*content);
            note_stale(contents);
          },
      // After a failure behind the commit point, reads show the new bytes, out of the journal.
      .note_shown =
          [&](const TransactionDirectory::Contents& contents) {
            is_committed = true;
            note_stale(contents);
          },
      .edit = [&](const TransactionEdit& staged) { return staged_.commit(staged, edited); }};
  const auto renamed = parts_.transactions.rename(from.ino, name, to.ino, new_name, calls);
  if (!renamed) {
    for (const Stale& one : found) parts_.forget(one);
    log::error("{}: transaction {}: {}: {}", parts_.model->path().string(), name,
               is_committed ? "not finished" : "not committed", renamed.error().message);
    return tl::unexpected(renamed.error());
  }
  if (!edited.stale.empty()) return edited;
  if (to.ino == TransactionDirectory::kCommitted) parts_.note_commit();
  return Outdated{.stale = std::move(found), .entries = {}};
}

}  // namespace stfs
