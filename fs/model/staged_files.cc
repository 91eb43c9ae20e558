// Stages edits of the structure, and commits them.
#include "fs/model/staged_files.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/xattr.h>

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "core/base/utf8.h"
#include "core/format/header.h"
#include "core/format/json_string.h"
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

tl::unexpected<Error> refuse_staging(int errno_value, std::string why) {
  return fail(ErrorCode::InvalidArgument, errno_value, std::move(why));
}

}  // namespace

Result<void> StagedFiles::check(Ino transaction) const {
  if (auto editable = parts_.check_editable(); !editable) return editable;
  const auto maker = parts_.options.is_shared ? parts_.transactions.maker(transaction) : std::nullopt;
  // The kernel knows the rights to a file only: an edit may change every shard.
  if (!maker || maker->has(S_IWOTH, parts_.permissions.of_all())) return {};
  return refuse_staging(EACCES, "an edit of the structure needs the right to write every shard");
}

Result<std::string> StagedFiles::new_name(std::string_view file_name) {
  auto name = new_name_of(file_name);
  if (name) return std::move(*name);
  return refuse_staging(EILSEQ, fmt::format("no tensor can be made as {}", in_quotes(file_name)));
}

Result<OpenFile*> StagedFiles::open(const Node& node, int flags, pid_t opener) {
  const bool is_of_model = parts_.model->has(node.tensor);
  if (is_of_model && parts_.reader.is_broken(parts_.model->place(node.tensor).shard))
    return fail(ErrorCode::ArchiveChanged, ESTALE, "the archive's header has changed");
  if (parts_.options.is_read_only) return fail(ErrorCode::ReadOnly, EROFS, "mounted read-only");
  auto content = parts_.transactions.open(node.ino, true);
  if (!content) return pass_on(std::move(content));
  return parts_.add_open(node.ino, flags, opener, FileKind::Grouped, std::move(*content));
}

Result<CreatedFile> StagedFiles::create(Ino transaction, std::string_view name, int flags, pid_t opener) {
  if (auto right = check(transaction); !right) return pass_on(std::move(right));
  auto tensor_name = new_name(name);
  if (!tensor_name) return pass_on(std::move(tensor_name));
  auto made = parts_.transactions.create(transaction, name, std::move(*tensor_name), parts_.give_id(),
                                         parts_.archive_for_new());
  if (!made) return pass_on(std::move(made));
  auto shown = stats_.of(parts_.resolve(made->ino));
  if (!shown) return pass_on(std::move(shown));
  return CreatedFile{*shown,
                     parts_.add_open(made->ino, flags, opener, FileKind::Grouped, std::move(made->content))};
}

Result<Outdated> StagedFiles::rename(Ino transaction, std::string_view name, std::string_view new_name,
                                     unsigned flags) {
  if (auto right = check(transaction); !right) return pass_on(std::move(right));
  auto renamed = parts_.transactions.rename_file(transaction, name, new_name, new_name_of(new_name), flags);
  return renamed ? Result<Outdated>(Outdated{}) : pass_on(std::move(renamed));
}

Result<Outdated> StagedFiles::set_attribute(const Node& node, std::string_view key,
                                            const std::optional<std::string>& value, int flags) {
  constexpr std::string_view kMetadataKey = "metadata.";
  if (auto right = check(node.ino); !right) return pass_on(std::move(right));
  const auto done = [&]() -> Result<void> {
    if (node.is_directory() && key.starts_with(kMetadataKey)) {
      key.remove_prefix(kMetadataKey.size());
      if (auto text = check_metadata(key, value); !text) return text;
      return parts_.transactions.set_metadata(node.ino, key, value, flags);
    }
    if (node.is_directory() || (key != "dtype" && key != "shape") || !value) {
      return refuse_staging(EPERM, fmt::format("{}: can't be set: only dtype and shape of a tensor, and "
                                               "metadata.KEY of the transaction, can",
                                               key));
    }
    if ((flags & XATTR_CREATE) != 0) return refuse_staging(EEXIST, "the attribute is there");
    return set_form(node, key, *value);
  }();
  return done ? Result<Outdated>(Outdated{}) : tl::unexpected(done.error());
}

Result<void> StagedFiles::set_form(const Node& node, std::string_view key, const std::string& value) {
  const auto staged = parts_.transactions.staged(node.ino);
  const std::string name = parts_.transactions.name(node.ino);
  if (staged && staged->writers > 0) {
    const Dtype dtype = staged->form ? staged->form->dtype : staged->base_form.dtype;
    auto formed = drafts_.form_open_content(*staged->content, name, dtype, key, value);
    if (!formed) return pass_on(std::move(formed));
    if (*formed) return {};
  }
  NewTensor* const made =
      staged && staged->is_new && staged->is_made() ? staged->content->made()->tensor() : nullptr;
  if (made != nullptr && !made->has_whole_form()) {
    const auto dtype = made->dtype();
    auto shape = made->shape();
    if (auto set = stfs::set_form(*staged->content, key, value); !set) return set;
    if (!made->has_whole_form()) return {};
    auto form = made->form();
    if (form) return {};
    made->put_form_back(dtype, std::move(shape));
    return pass_on(std::move(form));
  }
  auto now = parts_.transactions.form(node.ino);
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
  if (!staged || !staged->is_made()) return parts_.transactions.set_form(node.ino, std::move(*wanted));
  NewTensor& formed = *staged->content->made()->tensor();
  formed.set_dtype(wanted->dtype);
  formed.set_shape(std::move(wanted->shape));
  return {};
}

Result<void> StagedFiles::commit(const TransactionEdit& staged, Outdated& outdated) {
  StructureChange change{.touched = staged.touched(),
                         .apply = [&](ModelEdit& edit) -> Result<void> {
                           if (auto same = staged.check(); !same) return same;
                           for (const TensorId tensor : staged.replaced()) {
                             if (!structure_.is_being_written(tensor)) continue;
                             return refuse_staging(
                                 EBUSY, fmt::format("tensor {} can't be replaced: a program is writing it",
                                                    in_quotes(parts_.model->tensor(tensor).name)));
                           }
                           return staged.apply(edit);
                         },
                         .fill =
                             [&](ModelEdit& edit) {
                               return staged.fill(edit, [this](PendingContent& content, Staging& to) {
                                 return contents_.copy_content(content, to);
                               });
                             },
                         .check = [&] { return staged.check(); },
                         .is_patch = staged.is_patch()};
  std::vector<TensorId> patched;
  for (const TransactionEdit::Put& put : staged.puts()) {
    // Files keep their numbers, but a tensor of before that gets bytes of any size is another one.
    const bool is_another = put.staged->is_made() && !put.staged->is_new;
    change.ids.emplace(put.staged->name, is_another ? parts_.give_id() : put.tensor);
    if (!put.staged->is_made()) patched.push_back(put.tensor);
  }
  auto edited = structure_.edit(change);
  if (!edited) return pass_on(std::move(edited));
  outdated = std::move(*edited);
  for (const TensorId tensor : patched)
    outdated.stale.push_back(parts_.stale(InodeTable::ino_of_tensor(tensor), Stale::What::Content));
  return {};
}

Result<CreatedFile> StagedFiles::create_npy(Ino directory, std::string_view name, int flags, pid_t opener) {
  if (auto right = check(directory); !right) return pass_on(std::move(right));
  auto file_name = DraftFiles::npy_stem(name);
  if (!file_name) return pass_on(std::move(file_name));
  auto tensor_name = new_name(*file_name);
  if (!tensor_name) return pass_on(std::move(tensor_name));
  const TensorId id = parts_.give_id();
  if (auto room = parts_.transactions.check_room(id); !room) return pass_on(std::move(room));
  auto made = std::make_unique<NewTensor>(std::move(*tensor_name), true, new_bytes(directory));
  return drafts_.make({.ino = parts_.transactions.npy_file(directory, id),
                       .directory = directory,
                       .file_name = std::string(name),
                       .content = std::make_shared<PendingContent>(parts_.model, id, std::move(made))},
                      flags, opener);
}

Result<OpenFile*> StagedFiles::open_npy(const Node& node, int flags, pid_t opener) {
  if (auto right = check(node.ino); !right) return pass_on(std::move(right));
  auto base = parts_.transactions.base_of(node.ino);
  if (!base) return pass_on(std::move(base));
  std::string name = parts_.transactions.name(node.ino);
  auto made = std::make_unique<NewTensor>(name, true, new_bytes(node.ino));
  made->note_replaces();
  return drafts_.open(
      {.ino = node.ino,
       .directory = parts_.transactions.npy_directory(node.ino),
       .content = std::make_shared<PendingContent>(parts_.model, node.tensor, std::move(made)),
       .base = std::move(*base)},
      node.tensor, std::move(name), flags, opener);
}

std::shared_ptr<StagingFile> StagedFiles::new_bytes(Ino ino) {
  return parts_.transactions.new_bytes(ino, parts_.archive_for_new());
}

Result<void> StagedFiles::check_shape(const OpenFile& file, const NewTensor::Form& form) const {
  const TensorId tensor = file.content->tensor();
  const bool is_free = parts_.options.reshapes || file.content->made()->tensor()->shape() ||
                       !parts_.model->ids().position(tensor);
  if (is_free || parts_.resolve(file.ino).kind != Node::Kind::StagedNpy) return {};
  const Tensor now = parts_.model->tensor(tensor);
  const auto staged = parts_.transactions.form(file.ino);
  if (std::ranges::equal(now.shape, form.shape) || (staged && staged->shape == form.shape)) return {};
  return fail(ErrorCode::WrongSize, EINVAL,
              fmt::format("tensor {} has the shape {}, the NumPy file {}: mount with -o reshape to give "
                          "tensors another shape this way, or set user.safetensors.shape of the file",
                          in_quotes(now.name), shape_text(now.shape), shape_text(form.shape)));
}

Result<Stale> StagedFiles::stage_npy(const OpenFile& file) {
  PendingContent& content = *file.content;
  NewTensor& made = *content.made()->tensor();
  auto form = made.form();
  if (!form) return pass_on(std::move(form));
  if (auto same = check_shape(file, *form); !same) return pass_on(std::move(same));
  auto data = made.data(*form);
  if (!data) return pass_on(std::move(data));
  const auto draft = parts_.drafts.find(file.ino);
  auto staged = parts_.transactions.put_npy(file.ino, {.name = made.name(),
                                                       .base = draft ? draft->base : TensorVersion{},
                                                       .data = std::move(*data),
                                                       .failure = {}});
  if (!staged) return pass_on(std::move(staged));
  content.note_committed();
  return parts_.stale(parts_.transactions.bytes_file(file.ino), Stale::What::Content);
}

void StagedFiles::stage_npy_failure(const OpenFile& file) {
  const NewTensor& made = *file.content->made()->tensor();
  auto data = std::make_unique<NewTensor>(made.name(), false, new_bytes(file.ino));
  if (parts_.resolve(file.ino).kind == Node::Kind::StagedNpy) {
    if (auto form = parts_.transactions.form(file.ino)) {
      data->set_dtype(form->dtype);
      data->set_shape(std::move(form->shape));
    }
  }
  const auto draft = parts_.drafts.find(file.ino);
  // A transaction that has ended or has deleted the tensor needs no note.
  static_cast<void>(parts_.transactions.put_npy(file.ino, {.name = made.name(),
                                                           .base = draft ? draft->base : TensorVersion{},
                                                           .data = std::move(data),
                                                           .failure = file.content->failure}));
}

}  // namespace stfs
