// Files and edits of the structure in transactions, and the commit of a transaction.
// fs/write/staged_changes.h has the rules, fs/write/transaction_npy.cc has the rules for NumPy files.
#include <fmt/format.h>
#include <linux/fs.h>
#include <sys/stat.h>
#include <sys/xattr.h>

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "core/base/utf8.h"
#include "core/format/header.h"
#include "core/format/json_string.h"
#include "fs/base/log.h"
#include "fs/model/mounted_model.h"
#include "fs/model/tensor_forms.h"

namespace stfs {
namespace {

/// The name that a file's tensor would have; nothing if no archive can have it.
std::optional<std::string> new_name_of(std::string_view file_name) {
  auto name = TensorTree::flat_name(file_name);
  if (!name || !is_utf8(*name) || *name == "__metadata__" || name->starts_with(kFillerPrefix))
    return std::nullopt;
  return name;
}

/// EILSEQ if no tensor can have the name.
Result<std::string> staged_name_of(std::string_view file_name) {
  if (auto name = new_name_of(file_name)) return std::move(*name);
  return fail(ErrorCode::InvalidArgument, EILSEQ,
              fmt::format("no tensor can be made as {}", in_quotes(file_name)));
}

}  // namespace

Result<void> MountedModel::check_staging(Ino transaction) const {
  RETURN_IF_ERROR(check_editable());
  const auto maker = options_.is_shared ? transactions_.maker(transaction) : std::nullopt;
  // The kernel checks only the rights to one file, but an edit may change every shard.
  if (!maker || maker->has(S_IWOTH, rights_to_all())) return {};
  return refuse_change(EACCES, "an edit of the structure needs the right to write every shard");
}

Result<OpenFile*> MountedModel::open_staged(const Node& node, int flags, pid_t opener) {
  const bool is_of_model = model().has(node.tensor);
  if (is_of_model && reader_.is_broken(model().place(node.tensor).shard))
    return fail(ErrorCode::ArchiveChanged, ESTALE, "the archive's header has changed");
  if (options_.is_read_only) return fail(ErrorCode::ReadOnly, EROFS, "mounted read-only");
  auto content = transactions_.open(node.ino, true);
  RETURN_IF_ERROR(content);
  return add_open(node.ino, flags, opener, FileKind::Grouped, std::move(*content));
}

Result<CreatedFile> MountedModel::create_staged(Ino transaction, std::string_view name, int flags,
                                                pid_t opener) {
  RETURN_IF_ERROR(check_staging(transaction));
  auto tensor_name = staged_name_of(name);
  RETURN_IF_ERROR(tensor_name);
  auto made = transactions_.create(transaction, name, std::move(*tensor_name), give_id(), archive_for_new());
  RETURN_IF_ERROR(made);
  auto shown = status_of(node_of(made->ino));
  RETURN_IF_ERROR(shown);
  return CreatedFile{*shown, add_open(made->ino, flags, opener, FileKind::Grouped, std::move(made->content))};
}

Result<Outdated> MountedModel::rename_staged(Ino transaction, std::string_view name,
                                             std::string_view new_name, unsigned flags) {
  RETURN_IF_ERROR(check_staging(transaction));
  auto renamed = transactions_.rename_file(transaction, name, new_name, new_name_of(new_name), flags);
  return renamed ? Result<Outdated>(Outdated{}) : pass_on(std::move(renamed));
}

Result<Outdated> MountedModel::set_staged_attribute(const Node& node, std::string_view key,
                                                    const std::optional<std::string>& value, int flags) {
  RETURN_IF_ERROR(check_staging(node.ino));
  const auto done = [&]() -> Result<void> {
    if (node.is_directory() && key.starts_with(kMetadataPrefix)) {
      key.remove_prefix(kMetadataPrefix.size());
      RETURN_IF_ERROR(check_metadata(key, value));
      return transactions_.set_metadata(node.ino, key, value, flags);
    }
    if (node.is_directory() || (key != "dtype" && key != "shape") || !value) {
      return refuse_change(EPERM, fmt::format("{}: can't be set: only dtype and shape of a tensor, and "
                                              "metadata.KEY of the transaction, can",
                                              key));
    }
    if ((flags & XATTR_CREATE) != 0) return refuse_change(EEXIST, "the attribute is there");
    return set_staged_form(node, key, *value);
  }();
  return done ? Result<Outdated>(Outdated{}) : tl::unexpected(done.error());
}

Result<void> MountedModel::set_staged_form(const Node& node, std::string_view key, const std::string& value) {
  const auto staged = transactions_.staged(node.ino);
  const std::string name = transactions_.name(node.ino);
  if (staged && staged->writers > 0) {
    const Dtype dtype = staged->form ? staged->form->dtype : staged->base_form.dtype;
    auto formed = form_open_content(*staged->content, name, dtype, key, value);
    RETURN_IF_ERROR(formed);
    if (*formed) return {};
  }
  NewTensor* const made = staged ? staged->new_tensor() : nullptr;
  if (made != nullptr && staged->is_new && !made->has_whole_form()) {
    const auto dtype = made->dtype();
    auto shape = made->shape();
    RETURN_IF_ERROR(set_form(*staged->content, key, value));
    if (!made->has_whole_form()) return {};
    auto form = made->form();
    if (form) return {};
    made->put_form_back(dtype, std::move(shape));
    return pass_on(std::move(form));
  }
  auto now = transactions_.form(node.ino);
  RETURN_IF_ERROR(now);
  const auto size_bytes = data_size_bytes(now->dtype, now->shape);
  auto wanted = retyped(name, std::move(*now), key, value);
  RETURN_IF_ERROR(wanted);
  auto due = data_size_bytes(wanted->dtype, wanted->shape);
  if (!due) return tl::unexpected(std::move(due).error().within("tensor " + in_quotes(name)));
  if (*due != size_bytes.value_or(*due)) {
    return refuse_change(EINVAL,
                         fmt::format("tensor {}: {} {} needs {} bytes, its data has {}", in_quotes(name),
                                     name_of(wanted->dtype), shape_text(wanted->shape), *due, *size_bytes));
  }
  if (made == nullptr) return transactions_.set_form(node.ino, std::move(*wanted));
  made->set_dtype(wanted->dtype);
  made->set_shape(std::move(wanted->shape));
  return {};
}

Result<Outdated> MountedModel::rename_transaction(Ino from, std::string_view name, Ino to,
                                                  std::string_view new_name, unsigned flags) {
  if (to == TransactionDirectory::kCommitted) {
    const auto transaction = transactions_.find(from, name);
    if (transaction && !drafts_.wait_for_ends_in(transactions_.npy_directory(*transaction))) {
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
      found.push_back(stale(InodeTable::ino_of_tensor(content->tensor()), Stale::What::Content));
  };
  const TransactionDirectory::Calls calls{
      .lock_of = lock_of(),
      .in_turn =
          [&](const auto& shards, const auto& patch, const auto& check, const auto& attempt) {
            return structure_.following([&] {
              ShardWriter writer(*this, shards, patch);
              writer.set_check(check);
              while (writer.take_turns())
                writer.end_attempt(guard_memory([&] { return attempt(writer.options_of()); }));
              for (const auto& [shard, change] : writer.foreign()) found.push_back(change);
              return std::move(writer.result());
            });
          },
      .note_committed =
          [&](const TransactionDirectory::Contents& contents) {
            for (const auto& content : contents) note_patched(*content);
            note_stale(contents);
          },
      // If the commit has failed past its commit point, reads get the new bytes from the journal.
      .note_shown =
          [&](const TransactionDirectory::Contents& contents) {
            is_committed = true;
            note_stale(contents);
          },
      .edit = [&](const TransactionEdit& staged) { return commit_edits(staged, edited); }};
  const auto renamed = transactions_.rename(from, name, to, new_name, calls);
  if (!renamed) {
    for (const Stale& one : found) tell_stale_(one);
    log::error("{}: transaction {}: {}: {}", model().path().string(), name,
               is_committed ? "not finished" : "not committed", renamed.error().message);
    return tl::unexpected(renamed.error());
  }
  if (!edited.stale.empty()) return edited;
  if (to == TransactionDirectory::kCommitted) note_commit();
  return Outdated{.stale = std::move(found), .entries = {}};
}

Result<void> MountedModel::commit_edits(const TransactionEdit& staged, Outdated& outdated) {
  StructureChange change{
      .touched = staged.touched(),
      .apply = [&](ModelEdit& edit) -> Result<void> {
        RETURN_IF_ERROR(staged.check());
        for (const TensorId tensor : staged.replaced()) {
          if (!structure_.is_being_written(tensor)) continue;
          return refuse_change(EBUSY, fmt::format("tensor {} can't be replaced: a program is writing it",
                                                  in_quotes(model().tensor(tensor).name)));
        }
        return staged.apply(edit);
      },
      .fill =
          [&](ModelEdit& edit) {
            return staged.fill(
                edit, [this](PendingFile& content, Staging& to) { return copy_content(content, to); });
          },
      .check = [&] { return staged.check(); },
      .is_patch = staged.is_patch()};
  std::vector<TensorId> patched;
  for (const TransactionEdit::Put& put : staged.puts()) {
    // Files keep their numbers, except an existing tensor whose new content may have another size.
    const bool is_patch = put.staged->new_tensor() == nullptr;
    const bool is_another = !is_patch && !put.staged->is_new;
    change.ids.emplace(put.staged->name, is_another ? give_id() : put.tensor);
    if (is_patch) patched.push_back(put.tensor);
  }
  auto edited = structure_.edit(change);
  RETURN_IF_ERROR(edited);
  outdated = std::move(*edited);
  for (const TensorId tensor : patched)
    outdated.stale.push_back(stale(InodeTable::ino_of_tensor(tensor), Stale::What::Content));
  return {};
}

Result<CreatedFile> MountedModel::create_staged_npy(Ino directory, std::string_view name, int flags,
                                                    pid_t opener) {
  RETURN_IF_ERROR(check_staging(directory));
  auto file_name = npy_stem(name);
  RETURN_IF_ERROR(file_name);
  auto tensor_name = staged_name_of(*file_name);
  RETURN_IF_ERROR(tensor_name);
  const TensorId id = give_id();
  RETURN_IF_ERROR(transactions_.check_room(id));
  auto made = std::make_unique<NewTensor>(std::move(*tensor_name), true,
                                          transactions_.new_bytes(directory, archive_for_new()));
  return make_draft({.ino = transactions_.npy_file(directory, id),
                     .directory = directory,
                     .file_name = std::string(name),
                     .content = std::make_shared<PendingFile>(id, std::move(made))},
                    flags, opener);
}

Result<OpenFile*> MountedModel::open_staged_npy(const Node& node, int flags, pid_t opener) {
  RETURN_IF_ERROR(check_staging(node.ino));
  auto base = transactions_.base_of(node.ino);
  RETURN_IF_ERROR(base);
  std::string name = transactions_.name(node.ino);
  auto made = std::make_unique<NewTensor>(name, true, transactions_.new_bytes(node.ino, archive_for_new()));
  made->note_replaces(model().has(node.tensor) ? model().place(node.tensor).shard : model().top());
  return open_draft({.ino = node.ino,
                     .directory = transactions_.npy_directory(node.ino),
                     .content = std::make_shared<PendingFile>(node.tensor, std::move(made)),
                     .base = std::move(*base)},
                    node.tensor, std::move(name), flags, opener);
}

Result<void> MountedModel::check_npy_shape(const OpenFile& file, const NewTensor::Form& form) const {
  const TensorId tensor = file.content->tensor();
  const bool is_free =
      options_.reshapes || file.content->new_tensor()->shape() || !model().ids().position(tensor);
  if (is_free || node_of(file.ino).kind != Node::Kind::StagedNpy) return {};
  const Tensor now = model().tensor(tensor);
  const auto staged = transactions_.form(file.ino);
  if (std::ranges::equal(now.shape, form.shape) || (staged && staged->shape == form.shape)) return {};
  return fail(ErrorCode::WrongSize, EINVAL,
              fmt::format("tensor {} has the shape {}, the NumPy file {}: mount with -o reshape to give "
                          "tensors another shape this way, or set user.safetensors.shape of the file",
                          in_quotes(now.name), shape_text(now.shape), shape_text(form.shape)));
}

Result<Stale> MountedModel::stage_npy(const OpenFile& file) {
  PendingFile& content = *file.content;
  NewTensor& made = *content.new_tensor();
  auto form = made.form();
  RETURN_IF_ERROR(form);
  RETURN_IF_ERROR(check_npy_shape(file, *form));
  auto data = made.data(*form);
  RETURN_IF_ERROR(data);
  const auto draft = drafts_.find(file.ino);
  auto staged = transactions_.put_npy(file.ino, {.name = made.name(),
                                                 .base = draft ? draft->base : TensorVersion{},
                                                 .data = std::move(*data),
                                                 .failure = {}});
  RETURN_IF_ERROR(staged);
  content.note_committed();
  return stale(transactions_.bytes_file(file.ino), Stale::What::Content);
}

void MountedModel::stage_npy_failure(const OpenFile& file) {
  const NewTensor& made = *file.content->new_tensor();
  auto data =
      std::make_unique<NewTensor>(made.name(), false, transactions_.new_bytes(file.ino, archive_for_new()));
  if (node_of(file.ino).kind == Node::Kind::StagedNpy) {
    if (auto form = transactions_.form(file.ino)) {
      data->set_dtype(form->dtype);
      data->set_shape(std::move(form->shape));
    }
  }
  const auto draft = drafts_.find(file.ino);
  // A transaction that has ended or has deleted the tensor needs no note.
  static_cast<void>(transactions_.put_npy(file.ino, {.name = made.name(),
                                                     .base = draft ? draft->base : TensorVersion{},
                                                     .data = std::move(data),
                                                     .failure = file.content->failure}));
}

}  // namespace stfs
