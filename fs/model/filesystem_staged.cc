// Stages edits of the structure in transactions, and commits them (filesystem.h). fs/write/staged_changes.h
// has the rules.
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/xattr.h>

#include <algorithm>
#include <utility>

#include "core/base/utf8.h"
#include "core/format/header.h"
#include "core/format/json_string.h"
#include "fs/model/filesystem.h"

namespace stfs {
namespace {

/// Whether those rights let somebody write.
bool may_write(const Maker& who, const Permissions& right) {
  if (who.uid == 0) return true;
  if (who.uid == right.uid) return (right.mode & S_IWUSR) != 0;
  const bool is_of_group =
      who.gid == right.gid || std::ranges::find(who.other_groups, right.gid) != who.other_groups.end();
  return (right.mode & (is_of_group ? S_IWGRP : S_IWOTH)) != 0;
}

/// The name that a file's tensor would have; nothing if no archive can have it.
std::optional<std::string> new_name_of(std::string_view file_name) {
  auto name = TensorTree::flat_name(file_name);
  if (!name || !is_utf8(*name) || *name == "__metadata__" || name->starts_with(kFillerPrefix))
    return std::nullopt;
  return name;
}

tl::unexpected<Error> refuse_staging(int errno_value, std::string why) {
  return fail(ErrorCode::InvalidArgument, errno_value, std::move(why));
}

}  // namespace

Result<void> Filesystem::check_staging(Ino transaction) const {
  if (auto editable = check_editable(); !editable) return editable;
  const auto maker = options_.is_shared ? transactions_.maker(transaction) : std::nullopt;
  // The kernel knows the rights to a file only: an edit may change every shard.
  if (!maker || may_write(*maker, permissions_.of_all())) return {};
  return refuse_staging(EACCES, "an edit of the structure needs the right to write every shard");
}

Result<std::string> Filesystem::name_for_staging(std::string_view file_name) {
  auto name = new_name_of(file_name);
  if (name) return std::move(*name);
  return refuse_staging(EILSEQ, fmt::format("no tensor can be made as {}", in_quotes(file_name)));
}

Result<OpenFile*> Filesystem::open_staged(const Node& node, int flags, pid_t opener) {
  const bool is_of_model = model_->has(node.tensor);
  if (is_of_model && reader_.is_broken(model_->place(node.tensor).shard))
    return fail(ErrorCode::ArchiveChanged, ESTALE, "the archive's header has changed");
  if (options_.is_read_only) return fail(ErrorCode::ReadOnly, EROFS, "mounted read-only");
  auto content = transactions_.open(node.ino, true);
  if (!content) return pass_on(std::move(content));
  return add_open(node.ino, flags, opener, FileKind::Grouped, std::move(*content));
}

Result<Filesystem::Created> Filesystem::create_staged(Ino transaction, std::string_view name, int flags,
                                                      pid_t opener) {
  if (auto right = check_staging(transaction); !right) return pass_on(std::move(right));
  auto tensor_name = name_for_staging(name);
  if (!tensor_name) return pass_on(std::move(tensor_name));
  auto made = transactions_.create(transaction, name, std::move(*tensor_name), give_id(), archive_for_new());
  if (!made) return pass_on(std::move(made));
  auto shown = stat_of(resolve(made->ino));
  if (!shown) return pass_on(std::move(shown));
  return Created{*shown, add_open(made->ino, flags, opener, FileKind::Grouped, std::move(made->content))};
}

Result<Outdated> Filesystem::rename_staged(Ino transaction, std::string_view name, std::string_view new_name,
                                           unsigned flags) {
  if (auto right = check_staging(transaction); !right) return pass_on(std::move(right));
  auto renamed = transactions_.rename_file(transaction, name, new_name, new_name_of(new_name), flags);
  return renamed ? Result<Outdated>(Outdated{}) : pass_on(std::move(renamed));
}

Result<Outdated> Filesystem::set_staged_attribute(const Node& node, std::string_view key,
                                                  const std::optional<std::string>& value, int flags) {
  constexpr std::string_view kMetadataKey = "metadata.";
  if (auto right = check_staging(node.ino); !right) return pass_on(std::move(right));
  const auto done = [&]() -> Result<void> {
    if (node.is_directory() && key.starts_with(kMetadataKey)) {
      key.remove_prefix(kMetadataKey.size());
      if (auto text = check_metadata(key, value); !text) return text;
      return transactions_.set_metadata(node.ino, key, value, flags);
    }
    if (node.is_directory() || (key != "dtype" && key != "shape") || !value) {
      return refuse_staging(EPERM, fmt::format("{}: can't be set: only dtype and shape of a tensor, and "
                                               "metadata.KEY of the transaction, can",
                                               key));
    }
    if ((flags & XATTR_CREATE) != 0) return refuse_staging(EEXIST, "the attribute is there");
    return set_staged_form(node, key, *value);
  }();
  return done ? Result<Outdated>(Outdated{}) : tl::unexpected(done.error());
}

Result<void> Filesystem::set_staged_form(const Node& node, std::string_view key, const std::string& value) {
  const auto staged = transactions_.staged(node.ino);
  const std::string name = transactions_.name(node.ino);
  drafts_.note_typed(node.tensor);
  if (staged && staged->writers > 0) {
    const Dtype dtype = staged->form ? staged->form->dtype : staged->base_form.dtype;
    auto formed = form_open_content(*staged->content, name, dtype, key, value);
    if (!formed) return pass_on(std::move(formed));
    if (*formed) return {};
  }
  auto now = transactions_.form(node.ino);
  if (!now) return pass_on(std::move(now));
  const auto size_bytes = data_size_bytes(now->dtype, now->shape);
  auto wanted = retyped(name, std::move(*now), key, value);
  if (!wanted) return pass_on(std::move(wanted));
  auto due = data_size_bytes(wanted->dtype, wanted->shape);
  if (!due) return tl::unexpected(std::move(due).error().within("tensor " + in_quotes(name)));
  if (*due != size_bytes.value_or(*due)) {
    return refuse_staging(EINVAL,
                          fmt::format("tensor {}: {} {} needs {} bytes, its data has {}", in_quotes(name),
                                      name_of(wanted->dtype), shape_text(wanted->shape), *due, *size_bytes));
  }
  if (!staged || !staged->is_made()) return transactions_.set_form(node.ino, std::move(*wanted));
  NewTensor& made = *staged->content->made()->tensor();
  made.set_dtype(wanted->dtype);
  made.set_shape(std::move(wanted->shape));
  return {};
}

Result<void> Filesystem::commit_staged(const TransactionEdit& staged, Outdated& outdated) {
  StructureChange change{
      .touched = staged.touched(),
      .apply = [&](ModelEdit& edit) -> Result<void> {
        if (auto same = staged.check(); !same) return same;
        for (const TensorId tensor : staged.replaced()) {
          if (!is_being_written(tensor)) continue;
          return refuse_staging(EBUSY, fmt::format("tensor {} can't be replaced: a program is writing it",
                                                   in_quotes(model_->tensor(tensor).name)));
        }
        return staged.apply(edit);
      },
      .fill =
          [&](ModelEdit& edit) {
            return staged.fill(
                edit, [this](PendingContent& content, Staging& to) { return copy_content(content, to); });
          },
      .check = [&] { return staged.check(); },
      .is_patch = staged.is_patch()};
  std::vector<TensorId> plain;
  std::vector<TensorId> patched;
  for (const TransactionEdit::Put& put : staged.puts()) {
    // Files keep their numbers, but a tensor of before that gets bytes of any size is another one.
    const bool is_another = put.staged->is_made() && !put.staged->is_new;
    change.ids.emplace(put.staged->name, is_another ? give_id() : put.tensor);
    if (!put.staged->is_made()) patched.push_back(put.tensor);
    if (put.staged->is_new && !put.staged->content->made()->tensor()->has_form()) plain.push_back(put.tensor);
  }
  auto edited = edit(change);
  if (!edited) return pass_on(std::move(edited));
  for (const TensorId tensor : plain) drafts_.note_plain(tensor);
  outdated = std::move(*edited);
  for (const TensorId tensor : patched)
    outdated.stale.push_back(stale(InodeTable::ino_of_tensor(tensor), Stale::What::Content));
  return {};
}

}  // namespace stfs
