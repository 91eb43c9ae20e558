// Files that become tensors: scratch files that get a form, and NumPy files that programs write to
// `.safetensors/npy`. fs/write/new_tensor.h keeps the bytes of such files, and fs/write/drafts.h lists the
// files.
//
// A scratch file becomes a tensor when it has a dtype and a shape that fit its bytes, and no program is
// writing it: at its close, or when setfattr sets the second attribute after the close. The form can come
// from
//   setfattr                 both attributes
//   a rename over a tensor   of as many bytes, unless the file has a form: the tensor keeps dtype and shape
//   its name                 if a tensor of this name and as many bytes was removed or renamed in this mount
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "core/base/mutex.h"
#include "core/format/json_string.h"
#include "fs/base/log.h"
#include "fs/model/mounted_model.h"
#include "fs/model/tensor_forms.h"
#include "fs/tree/names.h"
#include "fs/write/checkpoint.h"

namespace stfs {
namespace {

/// The form of a tensor of the present model; nothing if the model does not have the tensor any more.
std::optional<NewTensor::Form> form_of(const Model& model, TensorId tensor) {
  if (!model.ids().position(tensor)) return std::nullopt;
  const Tensor now = model.tensor(tensor);
  return NewTensor::Form{.dtype = now.dtype, .shape = {now.shape.begin(), now.shape.end()}};
}

}  // namespace

Result<CreatedFile> MountedModel::create_draft(const Node& directory, std::string_view name, int flags,
                                               pid_t opener, mode_t mode) {
  const bool is_npy = directory.ino == Views::kNpy;
  if (directory.kind != Node::Kind::Directory && !is_npy) {
    return fail(ErrorCode::InvalidArgument, options_.is_read_only ? EROFS : EPERM,
                "files can be made beside the tensors, in .safetensors/npy and in transactions only");
  }
  RETURN_IF_ERROR(check_editable());
  if (!is_npy) {
    auto draft = create_scratch(directory.ino, name, mode);
    return draft ? show_draft(std::move(*draft), flags, opener) : pass_on(std::move(draft));
  }
  const auto file_name = npy_stem(name);
  RETURN_IF_ERROR(file_name);
  const auto tensor_name = tree_.flat_name(*file_name);
  if (!tensor_name) return no_tensor_named(*file_name);
  const TensorId id = give_id();
  auto made = std::make_unique<NewTensor>(*tensor_name, true, archive_for_new());
  return make_draft({.ino = Views::kNpyFiles + number_of(id),
                     .directory = directory.ino,
                     .file_name = std::string(name),
                     .content = std::make_shared<PendingFile>(id, std::move(made))},
                    flags, opener);
}

Result<CreatedFile> MountedModel::make_draft(Drafts::Draft draft, int flags, pid_t opener) {
  auto share = draft_counts_.take(requesting_user());
  RETURN_IF_ERROR(share);
  draft.content->count_for(std::move(*share));
  if (!drafts_.add(draft)) return fail(ErrorCode::Busy, EBUSY, "another program is making this file");
  return show_draft(std::move(draft), flags, opener);
}

Result<CreatedFile> MountedModel::show_draft(Drafts::Draft draft, int flags, pid_t opener) {
  auto shown = status_of(node_of(draft.ino));
  RETURN_IF_ERROR(shown);
  shown->st_ino = space_.in_mount(draft.ino);
  return CreatedFile{*shown, add_open(draft.ino, flags, opener, FileKind::New, std::move(draft.content))};
}

Result<OpenFile*> MountedModel::open_draft(Drafts::Draft draft, TensorId tensor, std::string name, int flags,
                                           pid_t opener) {
  auto known = drafts_.find(draft.ino);
  if (!known) {
    auto share = draft_counts_.take(requesting_user());
    RETURN_IF_ERROR(share);
    // The draft needs no file name, because a look-up finds its tensor. The inode number replaces the name.
    draft.file_name = std::to_string(draft.ino);
    if (!draft.content) {
      auto made = std::make_unique<NewTensor>(std::move(name), true, archive_for_new());
      made->note_replaces(model().place(tensor).shard);
      draft.content = std::make_shared<PendingFile>(tensor, std::move(made));
    }
    draft.content->count_for(std::move(*share));
    known = drafts_.add(draft) ? std::move(draft) : drafts_.find(draft.ino);
    if (!known) return fail(ErrorCode::Busy, EBUSY, "another program has just closed it");
  }
  return add_open(known->ino, flags, opener, FileKind::New, known->content);
}

Result<std::string_view> MountedModel::npy_stem(std::string_view name) {
  if (const auto stem = without_npy_suffix(name)) return *stem;
  return fail(ErrorCode::InvalidArgument, EINVAL, "a file in npy/ has a name that ends with .npy");
}

Result<OpenFile*> MountedModel::open_npy(const Node& node, int flags, pid_t opener) {
  const auto tensor = views_.tensor(node.ino);
  if (!tensor || !Views::is_npy(node.ino) || !options_.allows_edits)
    return fail(ErrorCode::ReadOnly, EROFS, "this view is read-only: write the tensor, or its file in npy/");
  RETURN_IF_ERROR(check_editable());
  if (!model().ids().position(*tensor))
    return fail(ErrorCode::ArchiveChanged, ESTALE, "the tensor was deleted");
  return open_draft({.ino = node.ino}, *tensor, std::string(model().tensor(*tensor).name), flags, opener);
}

Result<void> MountedModel::load_base(PendingFile& content, Ino ino) {
  // A write into the middle of a NumPy file changes only a part of it, so the rest must be loaded.
  NewTensor* const made = content.new_tensor();
  if (made == nullptr || made->is_dirty() || made->size_bytes() != 0) return {};
  const Node node = node_of(ino);
  if (!node.is_other_form()) return {};
  // In a transaction, the commit compares the staged content with the tensor.
  if (!node.is_view()) return copy_view(*made, ino);
  const Snapshot::Pin pin = snapshots_.pin();
  for (;;) {
    auto base = form_of(model(), content.tensor());
    if (!base) return fail(ErrorCode::ArchiveChanged, ESTALE, "the tensor was deleted");
    RETURN_IF_ERROR(copy_view(*made, ino));
    const auto now = form_of(model(), content.tensor());
    const bool is_same = now && now->is_as(*base);
    if (is_same) made->note_base(std::move(*base));
    if (is_same) return {};
    // An edit came between two pieces, and the NumPy header may have another length now.
    RETURN_IF_ERROR(made->resize(0));
  }
}

Result<void> MountedModel::copy_view(NewTensor& made, Ino ino) const {
  constexpr std::size_t kPieceBytes = 1 << 20;
  for (std::uint64_t done = 0;;) {
    auto bytes = read(ino, done, kPieceBytes);
    RETURN_IF_ERROR(bytes);
    if (bytes->size_bytes() == 0) return {};
    auto piece = bytes->copy();
    RETURN_IF_ERROR(piece);
    RETURN_IF_ERROR(made.write(*piece, done));
    done += piece->size();
  }
}

Result<Stale> MountedModel::commit_draft(const OpenFile& file) {
  PendingFile& content = *file.content;
  NewTensor& made = *content.new_tensor();
  auto form = made.form();
  RETURN_IF_ERROR(form);
  // An existing tensor may have got another name since the file was opened.
  const auto present_name = [&] {
    const Model& model = this->model();
    return std::string(model.ids().position(content.tensor()) ? model.tensor(content.tensor()).name
                                                              : made.name());
  };
  // The rest of the file has the bytes of the old tensor. These bytes are wrong if the tensor has another
  // form now.
  const auto check_base = [&](const NewTensor::Form& now) -> Result<void> {
    if (!made.base() || made.base()->is_as(now)) return {};
    return fail(ErrorCode::InvalidArgument, ESTALE,
                fmt::format("{}: has got another dtype or shape since a part of it was written: {} {}, not "
                            "{} {}: open it again",
                            made.label(), name_of(now.dtype), shape_text(now.shape),
                            name_of(made.base()->dtype), shape_text(made.base()->shape)));
  };
  // A new tensor is put into the last shard, which the program may have no right to write.
  const auto check_target = [&](std::optional<TensorId> target) -> Result<void> {
    if (!made.replaced_shard() || model().delta()) return {};
    if (target && model().place(*target).shard == *made.replaced_shard()) return {};
    return fail(ErrorCode::ArchiveChanged, ESTALE,
                made.label() + ": the tensor was deleted after the file was opened: nothing is written");
  };
  const auto note_done = [&] {
    if (made.is_npy()) made.note_base(*form);
    if (made.is_scratch()) note_became_tensor(file.ino, content);
  };
  const auto known = model().find(present_name());
  RETURN_IF_ERROR(check_target(known));
  auto now = known ? form_of(model(), *known) : std::nullopt;
  if (now && now->is_as(*form) && made.size_bytes() > form->data_offset) {
    RETURN_IF_ERROR(check_base(*now));
    auto committed = commit_in_place(
        *known, [&](Staging& stage) { return made.copy_to(stage, *form); }, &*form);
    if (committed) {
      content.note_committed();
      note_done();
      return committed;
    }
    now = form_of(model(), *known);
    if (!now || now->is_as(*form)) return committed;
    // An edit has given the tensor another form since. The code below handles this.
  }
  const auto decide = [&]() -> Result<NamedForm> {
    NamedForm put{present_name(), *form};
    const auto replaced = model().find(put.name);
    RETURN_IF_ERROR(check_target(replaced));
    if (!replaced) return put;
    const NewTensor::Form its = *form_of(model(), *replaced);
    RETURN_IF_ERROR(check_base(its));
    if (!made.is_npy() || made.shape() || options_.reshapes || its.shape == form->shape) return put;
    return fail(ErrorCode::WrongSize, EINVAL,
                fmt::format("tensor {} has the shape {}, the NumPy file {}: mount with -o reshape to give "
                            "tensors another shape this way, or set user.safetensors.shape of the file",
                            in_quotes(put.name), shape_text(its.shape), shape_text(form->shape)));
  };
  // The file keeps its number, unless the number is the number of an existing tensor.
  auto outdated =
      put_draft(content, decide, known || model().has(content.tensor()) ? give_id() : content.tensor());
  RETURN_IF_ERROR(outdated);
  note_done();
  tell_outdated_(*outdated);
  return stale(file.ino, Stale::What::Attributes);
}

Result<Outdated> MountedModel::put_draft(PendingFile& content,
                                         const std::function<Result<NamedForm>()>& decide, TensorId id) {
  NewTensor& made = *content.new_tensor();
  NamedForm put;
  StructureChange change;
  change.apply = [&](ModelEdit& edit) -> Result<void> {
    auto decided = decide();
    RETURN_IF_ERROR(decided);
    put = std::move(*decided);
    const auto replaced = model().find(put.name);
    change.touched.clear();
    if (replaced) change.touched.push_back(*replaced);
    change.ids = {{put.name, id}};
    return edit.put(put.name, put.form.dtype, put.form.shape);
  };
  change.fill = [&](ModelEdit& edit) -> Result<void> {
    Staging* const stage = edit.stage(put.name);
    return stage == nullptr ? Result<void>() : made.copy_to(*stage, put.form);
  };
  auto outdated = structure_.edit(change);
  RETURN_IF_ERROR(outdated);
  content.note_committed();
  return outdated;
}

Result<Outdated> MountedModel::replace_by_draft(const Drafts::Draft& draft, TensorId tensor,
                                                const std::function<Result<void>()>& check) {
  PendingFile& content = *draft.content;
  const MutexLock lock(content.mutex);
  if (content.failure) return tl::unexpected(*content.failure);
  NewTensor& made = *content.new_tensor();
  if (!made.is_scratch()) return fail(ErrorCode::Busy, EBUSY, "the file has just become a tensor");
  NamedForm put;
  const auto decide = [&]() -> Result<NamedForm> {
    RETURN_IF_ERROR(check());
    const Tensor now = model().tensor(tensor);
    put.name = now.name;
    if (structure_.is_being_written(tensor)) {
      return fail(ErrorCode::InvalidArgument, EBUSY,
                  fmt::format("tensor {} can't be replaced: a program is writing it", in_quotes(put.name)));
    }
    if (made.has_whole_form()) {
      auto form = made.form();
      RETURN_IF_ERROR(form);
      put.form = std::move(*form);
      return put;
    }
    // The tensor gets new bytes and keeps its form.
    if (now.data.size_bytes != made.size_bytes()) {
      return fail(
          ErrorCode::InvalidArgument, ENODATA,
          fmt::format("tensor {}: {} has {} bytes, {} {} needs {}: set the dtype and the shape of the "
                      "new file first, to replace the tensor by another one",
                      in_quotes(put.name), in_quotes(draft.file_name), made.size_bytes(), name_of(now.dtype),
                      shape_text(now.shape), now.data.size_bytes));
    }
    put.form = {.dtype = now.dtype, .shape = {now.shape.begin(), now.shape.end()}};
    return put;
  };
  auto outdated = put_draft(content, decide, content.tensor());
  RETURN_IF_ERROR(outdated);
  made.take_name(put.name, true);
  made.set_dtype(put.form.dtype);
  made.set_shape(std::move(put.form.shape));
  note_became_tensor(draft.ino, content);
  return outdated;
}

Result<Outdated> MountedModel::rename_draft(const Drafts::Draft& draft, Ino new_directory,
                                            std::string_view new_name,
                                            const std::optional<Drafts::Draft>& replaced, bool& is_outdated) {
  RETURN_IF_ERROR(move_scratch(draft, new_directory, new_name, replaced, is_outdated));
  const MutexLock lock(draft.content->mutex);
  if (is_being_written(*draft.content)) return Outdated{};
  adopt_form(*draft.content);
  if (!draft.content->is_dirty() || !draft.content->is_whole()) return Outdated{};
  auto become = become_tensor(draft);
  if (become) return become;
  log::warning("{}: stays a scratch file: {}", label_of(*draft.content), become.error().message);
  return Outdated{};
}

Result<Outdated> MountedModel::become_tensor(const Drafts::Draft& draft) {
  PendingFile& content = *draft.content;
  const NewTensor& made = *content.new_tensor();
  const auto form = made.form();
  RETURN_IF_ERROR(form);
  const auto decide = [&] { return NamedForm{made.name(), *form}; };
  auto outdated = put_draft(content, decide, content.tensor());
  if (outdated) note_became_tensor(draft.ino, content);
  return outdated;
}

bool MountedModel::is_being_written(const PendingFile& content) const {
  bool is_written = false;
  open_files_.visit([&](const OpenFile& file) {
    is_written = is_written || (file.content.get() == &content && !file.opener_has_flushed);
  });
  return is_written;
}

Result<Outdated> MountedModel::set_draft_attribute(const Drafts::Draft& draft, std::string_view key,
                                                   const std::string& value) {
  PendingFile& content = *draft.content;
  const MutexLock lock(draft.content->mutex);
  NewTensor* const made = content.new_tensor();
  const auto dtype = made == nullptr ? std::nullopt : made->dtype();
  const auto shape = made == nullptr ? std::nullopt : made->shape();
  RETURN_IF_ERROR(set_form(content, key, value));
  if (made != nullptr && made->is_scratch() && made->has_form() && !content.is_unlinked) {
    // rsync sets attributes of its temporary files, and then renames the files.
    if (const auto named = name_in(draft.directory, draft.file_name); !named)
      log::warning("{}: {} has a dtype and a shape, and is a scratch file until it is renamed: {}",
                   model().path().string(), in_quotes(draft.file_name), named.error().message);
  }
  if (is_being_written(content)) {
    // The close decides, even if no byte is written.
    open_files_.visit([&](OpenFile& file) {
      if (file.content.get() == &content) file.is_untouched = false;
    });
    keep_attribute(draft, key, value);
    return Outdated{};
  }
  // tar makes an empty file and sets its attributes before it writes the bytes.
  const bool waits = !content.is_dirty() || (made->size_bytes() == 0 && !content.is_whole());
  if (!made->is_scratch() || waits || content.is_unlinked) {
    keep_attribute(draft, key, value);
    return Outdated{};
  }
  auto become = become_tensor(draft);
  if (!become) made->put_form_back(dtype, shape);
  return become;
}

void MountedModel::adopt_form(PendingFile& content) const {
  NewTensor* const made = content.new_tensor();
  if (made == nullptr || !made->is_scratch() || made->has_form() || content.is_unlinked) return;
  const auto form = drafts_.vacated(made->name());
  if (form && data_size_bytes(form->dtype, form->shape) == made->size_bytes()) made->adopt(*form);
}

void MountedModel::end_draft(const OpenFile& file) {
  PendingFile& content = *file.content;
  const MutexLock lock(content.mutex);
  const Checkpoint* const saved = content.checkpoint();
  if ((saved != nullptr && saved->is_kept()) || content.descriptors != 0) return;
  NewTensor* const made = content.new_tensor();
  if (made == nullptr || !made->is_scratch()) return drafts_.remove(file.ino);
  content.retry();
  content.accept();
  if (content.is_unlinked) return let_go_of_draft(file.ino);
  if (made->take_news())
    log::info("{}: {} is a scratch file: it becomes a tensor with a dtype and a shape",
              model().path().string(), in_quotes(made->name()));
  made->scratch()->close();
}

std::optional<Result<void>> MountedModel::set_pending_form(TensorId tensor, std::string_view key,
                                                           const std::string& value) {
  std::vector<std::shared_ptr<PendingFile>> contents;
  open_files_.visit([&](const OpenFile& file) {
    if (file.content->tensor() == tensor && file.kind != FileKind::Grouped) contents.push_back(file.content);
  });
  std::optional<Result<void>> done;
  for (const auto& content : contents) {
    const Tensor now = model().tensor(tensor);
    auto formed = form_open_content(*content, std::string(now.name), now.dtype, key, value);
    RETURN_IF_ERROR(formed);
    if (*formed) done = Result<void>();
  }
  return done;
}

Result<bool> MountedModel::form_open_content(PendingFile& content, const std::string& name, Dtype dtype,
                                             std::string_view key, const std::string& value) const {
  const MutexLock lock(content.mutex);
  // No bytes are written after the close of a descriptor, although the kernel may release it later.
  if (content.failure || content.is_closed) return false;
  // A NumPy file has its form in its header, and its close gives the form to the tensor.
  if (content.new_tensor() != nullptr && content.new_tensor()->is_npy()) return false;
  if (content.patch() != nullptr) {
    if (content.is_dirty() && content.size_bytes() != 0) return false;
    auto made = std::make_unique<NewTensor>(name, false, archive_for_new());
    made->set_dtype(dtype);
    made->note_replaces(model().place(content.tensor()).shard);
    const bool was_cut = content.is_dirty();
    content.remake(std::move(made));
    if (was_cut) {
      RETURN_IF_ERROR(content.resize(0));
    }
  }
  auto set = set_form(content, key, value);
  return set ? Result<bool>(true) : pass_on(std::move(set));
}

void MountedModel::apply_form(const PendingFile& content) {
  const NewTensor* const made = content.new_tensor();
  if (made == nullptr || content.failure || !made->has_only_form()) return;
  const TensorId tensor = content.tensor();
  const auto pin = snapshots_.pin();
  if (!model().ids().position(tensor)) return;
  bool is_other = false;
  const auto apply = [&](ModelEdit& edit) -> Result<void> {
    if (!model().ids().position(tensor)) return fail(ErrorCode::NotFound, ENOENT, "the tensor was deleted");
    const Tensor now = model().tensor(tensor);
    const std::string name(now.name);
    NewTensor::Form form{.dtype = now.dtype, .shape = {now.shape.begin(), now.shape.end()}};
    if (auto shape = made->shape()) {
      form.dtype = made->dtype().value_or(form.dtype);
      form.shape = std::move(*shape);
    } else if (const auto dtype = made->dtype()) {
      auto fitting = retyped(name, std::move(form), "dtype", std::string(name_of(*dtype)));
      RETURN_IF_ERROR(fitting);
      form = std::move(*fitting);
    }
    is_other = form.dtype != now.dtype || !std::ranges::equal(form.shape, now.shape);
    return is_other ? edit.reinterpret(name, form.dtype, form.shape) : Result<void>();
  };
  const auto done = structure_.edit({.touched = {tensor}, .apply = apply});
  if (done) return tell_outdated_(*done);
  log::warning(
      "{}: the dtype or shape that was set while the file was open is dropped: nothing was written: {}",
      label_of(content), done.error().message);
}

}  // namespace stfs
