// Makes tensors of files that programs create, and of NumPy files that they write to `.safetensors/npy`
// (filesystem.h). fs/write/new_tensor.h has the bytes, fs/write/drafts.h the files until their close.
#include <fcntl.h>
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "core/format/json_string.h"
#include "fs/base/log.h"
#include "fs/base/process.h"
#include "fs/model/filesystem.h"
#include "fs/tree/names.h"

namespace stfs {

Archive& Filesystem::archive_for_new() const {
  // New tensors go to the last shard (core/model/model_edit.h).
  return model_->archive(static_cast<std::uint32_t>(model_->shards().size() - 1));
}

std::string Filesystem::label_of(const PendingContent& content) const {
  if (content.made() == nullptr) return reader_.label_of(content.tensor());
  return fmt::format("{}: {}", model_->path().string(), content.made()->label());
}

Result<Filesystem::Created> Filesystem::create(Ino parent, std::string_view name, int flags, pid_t opener) {
  const Node directory = resolve(parent);
  if (!directory.is_directory()) return no_such_inode(parent);
  auto known = lookup(parent, name);
  if (known) {
    if ((flags & O_EXCL) != 0) return fail(ErrorCode::System, EEXIST, "the file exists");
    auto file = open(known->st_ino, flags, opener);
    if (!file) return pass_on(std::move(file));
    return Created{*known, *file};
  }
  if (known.error().errno_value != ENOENT) return tl::unexpected(known.error());
  if (directory.ino == kHiddenIno || PretrainedDirectory::owns(directory.ino))
    return create_checkpoint(directory.ino, name, flags, opener);
  if (transactions_.is_npy_directory(directory.ino))
    return create_staged_npy(directory.ino, name, flags, opener);
  if (transactions_.is_transaction(directory.ino)) return create_staged(directory.ino, name, flags, opener);
  const bool is_npy = directory.ino == Views::kNpy;
  if (directory.kind != Node::Kind::Directory && !is_npy) {
    return fail(ErrorCode::InvalidArgument, options_.is_read_only ? EROFS : EPERM,
                "files can be made beside the tensors, in .safetensors/npy and in transactions only");
  }
  if (auto editable = check_editable(); !editable) return tl::unexpected(editable.error());
  const auto file_name = is_npy ? npy_stem(name) : Result<std::string_view>(name);
  if (!file_name) return tl::unexpected(file_name.error());
  const auto tensor_name = is_npy ? tree_.flat_name(*file_name) : tree_.name_in(directory.ino, *file_name);
  // Programs write a temporary file and rename it. With layout=tree its name is often one that no tensor has.
  const bool may_wait = !is_npy && options_.layout == Layout::Tree;
  if (!tensor_name && !may_wait) return pass_on(name_in(directory.ino, *file_name));
  const TensorId id = give_id();
  const Ino ino = is_npy ? Views::kNpyFiles + number_of(id) : InodeTable::ino_of_tensor(id);
  auto made = std::make_unique<NewTensor>(tensor_name.value_or(std::string(name)), is_npy, archive_for_new());
  if (!tensor_name) made->wait_for_name();
  auto content = std::make_shared<PendingContent>(model_, id, std::move(made));
  return make_draft(
      {.ino = ino, .directory = directory.ino, .file_name = std::string(name), .content = std::move(content)},
      flags, opener);
}

Result<std::string_view> Filesystem::npy_stem(std::string_view name) {
  if (name.ends_with(kNpySuffix)) return name.substr(0, name.size() - kNpySuffix.size());
  return fail(ErrorCode::InvalidArgument, EINVAL, "a file in npy/ has a name that ends with .npy");
}

Result<Filesystem::Created> Filesystem::make_draft(Drafts::Draft draft, int flags, pid_t opener) {
  if (!drafts_.add(draft)) return fail(ErrorCode::Busy, EBUSY, "another program is making this file");
  auto shown = stat_of(resolve(draft.ino));
  if (!shown) return pass_on(std::move(shown));
  shown->st_ino = space_.in_mount(draft.ino);
  return Created{*shown, add_open(draft.ino, flags, opener, FileKind::New, std::move(draft.content))};
}

OpenFile* Filesystem::add_open(Ino ino, int flags, pid_t opener, FileKind kind,
                               std::shared_ptr<PendingContent> content) {
  auto file = std::make_unique<OpenFile>();
  file->ino = ino;
  file->opener = opener;
  file->opener_process = process_of(opener);
  file->kind = kind;
  file->appends = (flags & O_APPEND) != 0;
  file->is_synchronous = (flags & O_DSYNC) != 0;  // O_SYNC contains it
  file->content = std::move(content);
  return open_files_.add(std::move(file));
}

Result<OpenFile*> Filesystem::open_npy(const Node& node, int flags, pid_t opener) {
  const auto tensor = views_.tensor(node.ino);
  if (!tensor || !Views::is_npy(node.ino) || !options_.allows_edits)
    return fail(ErrorCode::ReadOnly, EROFS, "this view is read-only: write the tensor, or its file in npy/");
  if (auto editable = check_editable(); !editable) return tl::unexpected(editable.error());
  if (!model_->ids().position(*tensor))
    return fail(ErrorCode::ArchiveChanged, ESTALE, "the tensor was deleted");
  return open_draft({.ino = node.ino}, *tensor, std::string(model_->tensor(*tensor).name), flags, opener);
}

Result<OpenFile*> Filesystem::open_draft(Drafts::Draft draft, TensorId tensor, std::string name, int flags,
                                         pid_t opener) {
  auto known = drafts_.find(draft.ino);
  if (!known) {
    // It has no name of its own: its tensor is found by name.
    draft.file_name = std::to_string(draft.ino);
    auto made = std::make_unique<NewTensor>(std::move(name), true, archive_for_new());
    made->note_replaces();
    draft.content = std::make_shared<PendingContent>(model_, tensor, std::move(made));
    known = drafts_.add(draft) ? std::move(draft) : drafts_.find(draft.ino);
    if (!known) return fail(ErrorCode::Busy, EBUSY, "another program has just closed it");
  }
  return add_open(known->ino, flags, opener, FileKind::New, known->content);
}

Result<void> Filesystem::load_base(PendingContent& content, Ino ino) {
  // A write into the middle of a NumPy file changes a part of it.
  NewTensor* const made = content.made() == nullptr ? nullptr : content.made()->tensor();
  if (made == nullptr || made->is_dirty() || made->size_bytes() != 0) return {};
  if (!resolve(ino).is_other_form()) return {};
  constexpr std::size_t kPieceBytes = 1 << 20;
  for (std::uint64_t done = 0;;) {
    auto bytes = this->read(ino, done, kPieceBytes);
    if (!bytes) return pass_on(std::move(bytes));
    if (bytes->size_bytes() == 0) return {};
    auto piece = bytes->copy();
    if (!piece) return pass_on(std::move(piece));
    if (auto written = made->write(*piece, done); !written) return written;
    done += piece->size();
  }
}

Result<Stale> Filesystem::commit_new(const OpenFile& file) {
  PendingContent& content = *file.content;
  if (content.made()->checkpoint() != nullptr) {
    const auto found = commit_checkpoint(content);
    if (!found) return tl::unexpected(found.error());
    for (const Stale& one : *found) forget_(one);
    // The caller waits for this one, and so for those before.
    return stale(file.ino, Stale::What::Content);
  }
  if (transactions_.is_hidden(file.ino)) return stage_npy(file);
  NewTensor& made = *content.made()->tensor();
  auto form = made.form();
  if (!form) return pass_on(std::move(form));
  // A tensor of before may have got another name since.
  const std::string name(model_->ids().position(content.tensor()) ? model_->tensor(content.tensor()).name
                                                                  : made.name());
  const auto known = model_->find(name);
  if (known && made.size_bytes() > form->data_offset) {
    const Tensor tensor = model_->tensor(*known);
    if (tensor.dtype == form->dtype && std::ranges::equal(tensor.shape, form->shape)) {
      auto committed = commit_in_place(*known, [&](Staging& stage) { return made.copy_to(stage, *form); });
      if (!committed) return committed;
      made.note_committed();
      content.writers.clear();
      content.was_refused = false;
      return committed;
    }
  }
  // The file keeps its number, unless it stands for a tensor of before.
  auto outdated = put_made(content, name, *form, known ? give_id() : content.tensor());
  if (!outdated) return tl::unexpected(outdated.error());
  tell_outdated_(*outdated);
  return stale(file.ino, Stale::What::Attributes);
}

Result<Outdated> Filesystem::put_made(PendingContent& content, const std::string& name,
                                      const NewTensor::Form& form, TensorId id) {
  NewTensor& made = *content.made()->tensor();
  const auto replaced = model_->find(name);
  StructureChange change{.touched = {},
                         .apply = [&](ModelEdit& edit) { return edit.put(name, form.dtype, form.shape); },
                         .fill = [&](ModelEdit& edit) -> Result<void> {
                           Staging* const stage = edit.stage(name);
                           return stage == nullptr ? Result<void>() : made.copy_to(*stage, form);
                         }};
  if (replaced) change.touched.push_back(*replaced);
  change.ids.emplace(name, id);
  auto outdated = edit(change);
  if (!outdated) return outdated;
  if (!replaced && !made.is_npy() && !made.has_form()) drafts_.note_plain(content.tensor());
  made.note_committed();
  content.writers.clear();
  content.was_refused = false;
  return outdated;
}

Result<Outdated> Filesystem::name_draft(const Drafts::Draft& draft, const std::string& name) {
  PendingContent& content = *draft.content;
  const std::scoped_lock lock(content.mutex);
  if (content.failure) return tl::unexpected(*content.failure);
  NewTensor& made = *content.made()->tensor();
  auto form = made.form();
  if (!form) return pass_on(std::move(form));
  const auto known = model_->find(name);
  if (known && is_being_written(*known)) {
    return fail(ErrorCode::Busy, EBUSY,
                fmt::format("tensor {} can't be replaced: a program is writing it", in_quotes(name)));
  }
  if (known && !made.has_form()) {
    // Only the bytes are new.
    const Tensor tensor = model_->tensor(*known);
    if (tensor.data.size_bytes != made.size_bytes()) {
      return fail(ErrorCode::InvalidArgument, ENODATA,
                  fmt::format("tensor {}: {} has {} bytes, {} {} needs {}", in_quotes(name),
                              in_quotes(draft.file_name), made.size_bytes(), name_of(tensor.dtype),
                              shape_text(tensor.shape), tensor.data.size_bytes));
    }
    form->dtype = tensor.dtype;
    form->shape = {tensor.shape.begin(), tensor.shape.end()};
  }
  auto outdated = put_made(content, name, *form, content.tensor());
  if (!outdated) return outdated;
  made.take_name(name);
  drafts_.remove(draft.ino);
  return outdated;
}

Result<Stale> Filesystem::commit_in_place(TensorId tensor,
                                          const std::function<Result<void>(Staging&)>& fill) {
  OpenFile patch;
  patch.ino = InodeTable::ino_of_tensor(tensor);
  patch.content = std::make_shared<PendingContent>(model_, tensor);
  const std::scoped_lock lock(patch.content->mutex);
  if (auto emptied = patch.content->resize(0); !emptied) return pass_on(std::move(emptied));
  if (auto copied = fill(**patch.content->stage()); !copied) return pass_on(std::move(copied));
  patch.kind = FileKind::Isolated;
  return commit(patch);
}

struct stat Filesystem::stat_of_draft(const Node& node, const PendingContent& content) const {
  constexpr std::uint64_t kStatBlockBytes = 512;
  const auto shard = static_cast<std::uint32_t>(model_->shards().size() - 1);
  const Permissions shown = permissions_.of_shard(shard);
  struct stat st {};
  st.st_ino = space_.in_mount(node.ino);
  st.st_blksize = 1 << 20;
  st.st_mode = S_IFREG | (shown.mode & ~options_.umask);
  st.st_uid = shown.uid;
  st.st_gid = shown.gid;
  st.st_nlink = 1;
  st.st_size = static_cast<off_t>(content.shown_size_bytes());
  st.st_blocks = static_cast<blkcnt_t>((content.shown_size_bytes() + kStatBlockBytes - 1) / kStatBlockBytes);
  const NewTensor* const made = content.made()->tensor();
  if (made != nullptr) {
    st.st_mtim = timespec_of(made->mtime_ns());
  } else {
    clock_gettime(CLOCK_REALTIME, &st.st_mtim);
  }
  st.st_ctim = st.st_atim = st.st_mtim;
  return st;
}

Result<std::string> Filesystem::draft_attribute(const PendingContent& content, std::string_view key) const {
  NewTensor* const made = content.made()->tensor();
  if (made == nullptr) return fail(ErrorCode::NotFound, ENODATA, "no such attribute");
  if (key == "name") return made->name();
  const auto form = made->form();
  if (form && key == "dtype") return std::string(name_of(form->dtype));
  if (form && key == "shape") return shape_text(form->shape);
  return fail(ErrorCode::NotFound, ENODATA, "no such attribute");
}

Result<void> Filesystem::set_form(const PendingContent& content, std::string_view key,
                                  const std::string& value) {
  NewTensor* const made = content.made()->tensor();
  if (made == nullptr) return fail(ErrorCode::InvalidArgument, EPERM, "a checkpoint has no dtype");
  if (key == "dtype") {
    auto dtype = dtype_of_text(value);
    if (!dtype) return pass_on(std::move(dtype));
    made->set_dtype(*dtype);
  } else {
    auto shape = shape_of_attribute(value);
    if (!shape) return pass_on(std::move(shape));
    made->set_shape(std::move(*shape));
  }
  return {};
}

void Filesystem::end_draft(const OpenFile& file) {
  const std::scoped_lock lock(file.content->mutex);
  if (file.content->made()->is_kept()) return;
  if (file.content->descriptors == 0) drafts_.remove(file.ino);
}

std::optional<Result<void>> Filesystem::set_pending_form(TensorId tensor, std::string_view key,
                                                         const std::string& value) {
  std::vector<std::shared_ptr<PendingContent>> contents;
  open_files_.visit([&](const OpenFile& file) {
    if (file.content->tensor() == tensor && file.kind != FileKind::Grouped) contents.push_back(file.content);
  });
  std::optional<Result<void>> done;
  for (const auto& content : contents) {
    const Tensor now = model_->tensor(tensor);
    auto formed = form_open_content(*content, std::string(now.name), now.dtype, key, value);
    if (!formed) return pass_on(std::move(formed));
    if (*formed) done = Result<void>();
  }
  return done;
}

Result<bool> Filesystem::form_open_content(PendingContent& content, const std::string& name, Dtype dtype,
                                           std::string_view key, const std::string& value) const {
  const std::scoped_lock lock(content.mutex);
  // After its close a descriptor writes no more, although its release may not have come yet.
  if (content.failure || content.is_closed) return false;
  if (content.made() == nullptr) {
    if (content.is_dirty() && content.size_bytes() != 0) return false;
    auto made = std::make_unique<NewTensor>(name, false, archive_for_new());
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

bool Filesystem::remove_draft(const Drafts::Draft& draft) {
  const std::scoped_lock lock(draft.content->mutex);
  if (model_->has(draft.content->tensor())) return false;
  draft.content->made()->forget();
  draft.content->is_unlinked = true;
  drafts_.remove(draft.ino);
  return true;
}

}  // namespace stfs
