// Makes drafts, and commits them as tensors.
#include "fs/model/draft_files.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "core/base/mutex.h"
#include "core/format/json_string.h"
#include "fs/base/log.h"
#include "fs/model/tensor_forms.h"
#include "fs/tree/names.h"

namespace stfs {

Result<CreatedFile> DraftFiles::create(const Node& directory, std::string_view name, int flags, pid_t opener,
                                       mode_t mode) {
  const bool is_npy = directory.ino == Views::kNpy;
  if (directory.kind != Node::Kind::Directory && !is_npy) {
    return fail(ErrorCode::InvalidArgument, parts_.options.is_read_only ? EROFS : EPERM,
                "files can be made beside the tensors, in .safetensors/npy and in transactions only");
  }
  if (auto editable = parts_.check_editable(); !editable) return tl::unexpected(editable.error());
  if (!is_npy) {
    auto draft = scratch_.create(directory.ino, name, mode);
    return draft ? show(std::move(*draft), flags, opener) : pass_on(std::move(draft));
  }
  const auto file_name = npy_stem(name);
  if (!file_name) return tl::unexpected(file_name.error());
  const auto tensor_name = parts_.tree.flat_name(*file_name);
  if (!tensor_name) return parts_.no_tensor_named(*file_name);
  const TensorId id = parts_.give_id();
  auto made = std::make_unique<NewTensor>(*tensor_name, true, parts_.archive_for_new());
  return make({.ino = Views::kNpyFiles + number_of(id),
               .directory = directory.ino,
               .file_name = std::string(name),
               .content = std::make_shared<PendingContent>(parts_.model, id, std::move(made))},
              flags, opener);
}

Result<CreatedFile> DraftFiles::make(Drafts::Draft draft, int flags, pid_t opener) {
  if (!parts_.drafts.add(draft)) return fail(ErrorCode::Busy, EBUSY, "another program is making this file");
  return show(std::move(draft), flags, opener);
}

Result<CreatedFile> DraftFiles::show(Drafts::Draft draft, int flags, pid_t opener) {
  auto shown = stats_.of(parts_.resolve(draft.ino));
  if (!shown) return pass_on(std::move(shown));
  shown->st_ino = parts_.space.in_mount(draft.ino);
  return CreatedFile{*shown,
                     parts_.add_open(draft.ino, flags, opener, FileKind::New, std::move(draft.content))};
}

Result<OpenFile*> DraftFiles::open(Drafts::Draft draft, TensorId tensor, std::string name, int flags,
                                   pid_t opener) {
  auto known = parts_.drafts.find(draft.ino);
  if (!known) {
    // It has no name of its own: its tensor is found by name.
    draft.file_name = std::to_string(draft.ino);
    if (!draft.content) {
      auto made = std::make_unique<NewTensor>(std::move(name), true, parts_.archive_for_new());
      made->note_replaces();
      draft.content = std::make_shared<PendingContent>(parts_.model, tensor, std::move(made));
    }
    known = parts_.drafts.add(draft) ? std::move(draft) : parts_.drafts.find(draft.ino);
    if (!known) return fail(ErrorCode::Busy, EBUSY, "another program has just closed it");
  }
  return parts_.add_open(known->ino, flags, opener, FileKind::New, known->content);
}

Result<std::string_view> DraftFiles::npy_stem(std::string_view name) {
  if (const auto stem = without_npy_suffix(name)) return *stem;
  return fail(ErrorCode::InvalidArgument, EINVAL, "a file in npy/ has a name that ends with .npy");
}

Result<OpenFile*> DraftFiles::open_npy(const Node& node, int flags, pid_t opener) {
  const auto tensor = parts_.views.tensor(node.ino);
  if (!tensor || !Views::is_npy(node.ino) || !parts_.options.allows_edits)
    return fail(ErrorCode::ReadOnly, EROFS, "this view is read-only: write the tensor, or its file in npy/");
  if (auto editable = parts_.check_editable(); !editable) return tl::unexpected(editable.error());
  if (!parts_.model->ids().position(*tensor))
    return fail(ErrorCode::ArchiveChanged, ESTALE, "the tensor was deleted");
  return open({.ino = node.ino}, *tensor, std::string(parts_.model->tensor(*tensor).name), flags, opener);
}

Result<void> DraftFiles::load_base(PendingContent& content, Ino ino) {
  // A write into the middle of a NumPy file changes a part of it.
  NewTensor* const made = content.made() == nullptr ? nullptr : content.made()->tensor();
  if (made == nullptr || made->is_dirty() || made->size_bytes() != 0) return {};
  const Node node = parts_.resolve(ino);
  if (!node.is_other_form()) return {};
  // What a transaction stages is compared with the tensor at its commit.
  if (!node.is_view()) return copy_view(*made, ino);
  const Epochs::Pin pin = parts_.epochs.pin();
  for (;;) {
    auto base = form_of(content.tensor());
    if (!base) return fail(ErrorCode::ArchiveChanged, ESTALE, "the tensor was deleted");
    if (auto copied = copy_view(*made, ino); !copied) return copied;
    const auto now = form_of(content.tensor());
    const bool is_same = now && now->is_as(*base);
    if (is_same) made->note_base(std::move(*base));
    if (is_same) return {};
    // An edit came between two pieces, and the NumPy header may have another length now.
    if (auto emptied = made->resize(0); !emptied) return emptied;
  }
}

Result<void> DraftFiles::copy_view(NewTensor& made, Ino ino) const {
  constexpr std::size_t kPieceBytes = 1 << 20;
  for (std::uint64_t done = 0;;) {
    auto bytes = reader_.read(ino, done, kPieceBytes);
    if (!bytes) return pass_on(std::move(bytes));
    if (bytes->size_bytes() == 0) return {};
    auto piece = bytes->copy();
    if (!piece) return pass_on(std::move(piece));
    if (auto written = made.write(*piece, done); !written) return written;
    done += piece->size();
  }
}

std::optional<NewTensor::Form> DraftFiles::form_of(TensorId tensor) const {
  const Model& model = *parts_.model;
  if (!model.ids().position(tensor)) return std::nullopt;
  const Tensor now = model.tensor(tensor);
  return NewTensor::Form{.dtype = now.dtype, .shape = {now.shape.begin(), now.shape.end()}};
}

Result<Stale> DraftFiles::commit(const OpenFile& file) {
  PendingContent& content = *file.content;
  NewTensor& made = *content.made()->tensor();
  auto form = made.form();
  if (!form) return pass_on(std::move(form));
  const auto draft = parts_.drafts.find(file.ino);
  const auto note_tensor = [&] {
    if (draft && made.is_scratch()) scratch_.note_tensor(*draft);
  };
  // A tensor of before may have got another name since.
  const auto present_name = [&] {
    const Model& model = *parts_.model;
    return std::string(model.ids().position(content.tensor()) ? model.tensor(content.tensor()).name
                                                              : made.name());
  };
  // The rest of the file is what the tensor was: with another form it is not that any more.
  const auto check_base = [&](const NewTensor::Form& now) -> Result<void> {
    if (!made.base() || made.base()->is_as(now)) return {};
    return fail(ErrorCode::InvalidArgument, ESTALE,
                fmt::format("{}: has got another dtype or shape since a part of it was written: {} {}, not "
                            "{} {}: open it again",
                            made.label(), name_of(now.dtype), shape_text(now.shape),
                            name_of(made.base()->dtype), shape_text(made.base()->shape)));
  };
  const auto note_done = [&] {
    if (made.is_npy()) made.note_base(*form);
    note_tensor();
  };
  const auto known = parts_.model->find(present_name());
  auto now = known ? form_of(*known) : std::nullopt;
  if (now && now->is_as(*form) && made.size_bytes() > form->data_offset) {
    if (auto same = check_base(*now); !same) return pass_on(std::move(same));
    auto committed = contents_.commit_in_place(
        *known, [&](Staging& stage) { return made.copy_to(stage, *form); }, &*form);
    if (committed) {
      content.note_committed();
      note_done();
      return committed;
    }
    now = form_of(*known);
    if (!now || now->is_as(*form)) return committed;
    // An edit has given the tensor another form meanwhile: as below.
  }
  const auto decide = [&]() -> Result<NamedForm> {
    NamedForm put{present_name(), *form};
    const auto replaced = parts_.model->find(put.name);
    if (!replaced) return put;
    const NewTensor::Form its = *form_of(*replaced);
    if (auto same = check_base(its); !same) return pass_on(std::move(same));
    if (!made.is_npy() || made.shape() || parts_.options.reshapes || its.shape == form->shape) return put;
    return fail(ErrorCode::WrongSize, EINVAL,
                fmt::format("tensor {} has the shape {}, the NumPy file {}: mount with -o reshape to give "
                            "tensors another shape this way, or set user.safetensors.shape of the file",
                            in_quotes(put.name), shape_text(its.shape), shape_text(form->shape)));
  };
  // The file keeps its number, unless it stands for a tensor of before.
  auto outdated = put_made(
      content, decide, known || parts_.model->has(content.tensor()) ? parts_.give_id() : content.tensor());
  if (!outdated) return tl::unexpected(outdated.error());
  note_done();
  parts_.tell_outdated(*outdated);
  return parts_.stale(file.ino, Stale::What::Attributes);
}

Result<Outdated> DraftFiles::put_made(PendingContent& content,
                                      const std::function<Result<NamedForm>()>& decide, TensorId id) {
  NewTensor& made = *content.made()->tensor();
  NamedForm put;
  StructureChange change;
  change.apply = [&](ModelEdit& edit) -> Result<void> {
    auto decided = decide();
    if (!decided) return pass_on(std::move(decided));
    put = std::move(*decided);
    const auto replaced = parts_.model->find(put.name);
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
  if (!outdated) return outdated;
  content.note_committed();
  return outdated;
}

Result<Outdated> DraftFiles::replace(const Drafts::Draft& draft, TensorId tensor,
                                     const std::function<Result<void>()>& check) {
  PendingContent& content = *draft.content;
  const MutexLock lock(content.mutex);
  if (content.failure) return tl::unexpected(*content.failure);
  NewTensor& made = *content.made()->tensor();
  if (!made.is_scratch()) return fail(ErrorCode::Busy, EBUSY, "the file has just become a tensor");
  NamedForm put;
  const auto decide = [&]() -> Result<NamedForm> {
    if (auto same = check(); !same) return pass_on(std::move(same));
    const Tensor now = parts_.model->tensor(tensor);
    put.name = now.name;
    if (structure_.is_being_written(tensor)) {
      return fail(ErrorCode::InvalidArgument, EBUSY,
                  fmt::format("tensor {} can't be replaced: a program is writing it", in_quotes(put.name)));
    }
    if (made.has_whole_form()) {
      auto form = made.form();
      if (!form) return pass_on(std::move(form));
      put.form = std::move(*form);
      return put;
    }
    // Only the bytes are new.
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
  auto outdated = put_made(content, decide, content.tensor());
  if (!outdated) return outdated;
  made.take_name(put.name, true);
  made.set_dtype(put.form.dtype);
  made.set_shape(std::move(put.form.shape));
  scratch_.note_tensor(draft);
  return outdated;
}

Result<Outdated> DraftFiles::rename(const Drafts::Draft& draft, Ino new_directory, std::string_view new_name,
                                    const std::optional<Drafts::Draft>& replaced) {
  if (auto renamed = scratch_.rename(draft, new_directory, new_name, replaced); !renamed)
    return pass_on(std::move(renamed));
  const MutexLock lock(draft.content->mutex);
  if (is_being_written(*draft.content)) return Outdated{};
  adopt_form(*draft.content);
  if (!draft.content->is_dirty() || !draft.content->is_whole()) return Outdated{};
  auto become = this->become(draft);
  if (become) return become;
  log::warning("{}: stays a scratch file: {}", parts_.label_of(*draft.content), become.error().message);
  return Outdated{};
}

Result<Outdated> DraftFiles::become(const Drafts::Draft& draft) {
  PendingContent& content = *draft.content;
  const NewTensor& made = *content.made()->tensor();
  const auto form = made.form();
  if (!form) return tl::unexpected(form.error());
  const auto decide = [&] { return NamedForm{made.name(), *form}; };
  auto outdated = put_made(content, decide, content.tensor());
  if (outdated) scratch_.note_tensor(draft);
  return outdated;
}

bool DraftFiles::is_being_written(const PendingContent& content) const {
  bool is_written = false;
  parts_.open_files.visit([&](const OpenFile& file) {
    is_written = is_written || (file.content.get() == &content && !file.opener_has_flushed);
  });
  return is_written;
}

Result<Outdated> DraftFiles::set_attribute(const Drafts::Draft& draft, std::string_view key,
                                           const std::string& value) {
  PendingContent& content = *draft.content;
  const MutexLock lock(draft.content->mutex);
  NewTensor* const made = content.made()->tensor();
  const auto dtype = made == nullptr ? std::nullopt : made->dtype();
  const auto shape = made == nullptr ? std::nullopt : made->shape();
  if (auto set = set_form(content, key, value); !set) return pass_on(std::move(set));
  if (made != nullptr && made->is_scratch() && made->has_form() && !content.is_unlinked) {
    // rsync gives its temporary files attributes, and then another name.
    if (const auto named = parts_.name_in(draft.directory, draft.file_name); !named)
      log::warning("{}: {} has a dtype and a shape, and is a scratch file until it is renamed: {}",
                   parts_.model->path().string(), in_quotes(draft.file_name), named.error().message);
  }
  if (is_being_written(content)) {
    // Its close decides, also if no byte comes.
    parts_.open_files.visit([&](OpenFile& file) {
      if (file.content.get() == &content) file.is_untouched = false;
    });
    ScratchFiles::keep_attribute(draft, key, value);
    return Outdated{};
  }
  // tar makes an empty file and sets its attributes before it writes.
  const bool waits = !content.is_dirty() || (made->size_bytes() == 0 && !content.is_whole());
  if (!made->is_scratch() || waits || content.is_unlinked) {
    ScratchFiles::keep_attribute(draft, key, value);
    return Outdated{};
  }
  auto become = this->become(draft);
  if (!become) made->put_form_back(dtype, shape);
  return become;
}

void DraftFiles::adopt_form(PendingContent& content) const {
  NewTensor* const made = content.made() == nullptr ? nullptr : content.made()->tensor();
  if (made == nullptr || !made->is_scratch() || made->has_form() || content.is_unlinked) return;
  const auto form = parts_.drafts.vacated(made->name());
  if (form && data_size_bytes(form->dtype, form->shape) == made->size_bytes()) made->adopt(*form);
}

void DraftFiles::end(const OpenFile& file) {
  PendingContent& content = *file.content;
  const MutexLock lock(content.mutex);
  if (content.made()->is_kept() || content.descriptors != 0) return;
  NewTensor* const made = content.made()->tensor();
  if (made == nullptr || !made->is_scratch()) return parts_.drafts.remove(file.ino);
  content.retry();
  content.accept();
  if (content.is_unlinked) return scratch_.let_go(file.ino);
  if (made->take_news())
    log::info("{}: {} is a scratch file: it becomes a tensor with a dtype and a shape",
              parts_.model->path().string(), in_quotes(made->name()));
  made->scratch()->close();
}

std::optional<Result<void>> DraftFiles::set_pending_form(TensorId tensor, std::string_view key,
                                                         const std::string& value) {
  std::vector<std::shared_ptr<PendingContent>> contents;
  parts_.open_files.visit([&](const OpenFile& file) {
    if (file.content->tensor() == tensor && file.kind != FileKind::Grouped) contents.push_back(file.content);
  });
  std::optional<Result<void>> done;
  for (const auto& content : contents) {
    const Tensor now = parts_.model->tensor(tensor);
    auto formed = form_open_content(*content, std::string(now.name), now.dtype, key, value);
    if (!formed) return pass_on(std::move(formed));
    if (*formed) done = Result<void>();
  }
  return done;
}

Result<bool> DraftFiles::form_open_content(PendingContent& content, const std::string& name, Dtype dtype,
                                           std::string_view key, const std::string& value) const {
  const MutexLock lock(content.mutex);
  // After its close a descriptor writes no more, although its release may not have come yet.
  if (content.failure || content.is_closed) return false;
  // A NumPy file has a form of its own, and its close gives it to the tensor.
  if (content.made() != nullptr && content.made()->tensor() != nullptr && content.made()->tensor()->is_npy())
    return false;
  if (content.made() == nullptr) {
    if (content.is_dirty() && content.size_bytes() != 0) return false;
    auto made = std::make_unique<NewTensor>(name, false, parts_.archive_for_new());
    made->set_dtype(dtype);
    made->note_replaces();
    const bool was_cut = content.is_dirty();
    content.remake(std::move(made));
    if (was_cut) {
      if (auto cut = content.resize(0); !cut) return pass_on(std::move(cut));
    }
  }
  auto set = set_form(content, key, value);
  return set ? Result<bool>(true) : pass_on(std::move(set));
}

void DraftFiles::apply_form(const PendingContent& content) {
  const NewTensor* const made = content.made() == nullptr ? nullptr : content.made()->tensor();
  if (made == nullptr || content.failure || !made->has_only_form()) return;
  const TensorId tensor = content.tensor();
  const auto pin = parts_.epochs.pin();
  if (!parts_.model->ids().position(tensor)) return;
  bool is_other = false;
  const auto apply = [&](ModelEdit& edit) -> Result<void> {
    if (!parts_.model->ids().position(tensor))
      return fail(ErrorCode::NotFound, ENOENT, "the tensor was deleted");
    const Tensor now = parts_.model->tensor(tensor);
    const std::string name(now.name);
    NewTensor::Form form{.dtype = now.dtype, .shape = {now.shape.begin(), now.shape.end()}};
    if (auto shape = made->shape()) {
      form.dtype = made->dtype().value_or(form.dtype);
      form.shape = std::move(*shape);
    } else if (const auto dtype = made->dtype()) {
      auto fitting = retyped(name, std::move(form), "dtype", std::string(name_of(*dtype)));
      if (!fitting) return pass_on(std::move(fitting));
      form = std::move(*fitting);
    }
    is_other = form.dtype != now.dtype || !std::ranges::equal(form.shape, now.shape);
    return is_other ? edit.reinterpret(name, form.dtype, form.shape) : Result<void>();
  };
  const auto done = structure_.edit({.touched = {tensor}, .apply = apply});
  if (done) return parts_.tell_outdated(*done);
  log::warning(
      "{}: the dtype or shape that was set while the file was open is dropped: nothing was written: {}",
      parts_.label_of(content), done.error().message);
}

}  // namespace stfs
