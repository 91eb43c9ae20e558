// Makes, shows and stages the NumPy files of a transaction (filesystem.h). fs/write/transaction_npy.cc has
// the rules.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "core/format/json_string.h"
#include "core/tensor/npy_writer.h"
#include "fs/model/filesystem.h"
#include "fs/tree/names.h"

namespace stfs {

Result<Filesystem::Created> Filesystem::create_staged_npy(Ino directory, std::string_view name, int flags,
                                                          pid_t opener) {
  if (auto right = check_staging(directory); !right) return pass_on(std::move(right));
  auto file_name = npy_stem(name);
  if (!file_name) return pass_on(std::move(file_name));
  auto tensor_name = name_for_staging(*file_name);
  if (!tensor_name) return pass_on(std::move(tensor_name));
  const TensorId id = give_id();
  if (auto room = transactions_.check_room(id); !room) return pass_on(std::move(room));
  auto made = std::make_unique<NewTensor>(std::move(*tensor_name), true, archive_for_new());
  return make_draft({.ino = transactions_.npy_file(directory, id),
                     .directory = directory,
                     .file_name = std::string(name),
                     .content = std::make_shared<PendingContent>(model_, id, std::move(made))},
                    flags, opener);
}

Result<OpenFile*> Filesystem::open_staged_npy(const Node& node, int flags, pid_t opener) {
  if (auto right = check_staging(node.ino); !right) return pass_on(std::move(right));
  auto base = transactions_.base_of(node.ino);
  if (!base) return pass_on(std::move(base));
  return open_draft(
      {.ino = node.ino, .directory = transactions_.npy_directory(node.ino), .base = std::move(*base)},
      node.tensor, transactions_.name(node.ino), flags, opener);
}

Result<Stale> Filesystem::stage_npy(const OpenFile& file) {
  PendingContent& content = *file.content;
  NewTensor& made = *content.made()->tensor();
  auto form = made.form();
  if (!form) return pass_on(std::move(form));
  auto data = made.data(*form);
  if (!data) return pass_on(std::move(data));
  const auto draft = drafts_.find(file.ino);
  auto staged = transactions_.put_npy(file.ino, {.name = made.name(),
                                                 .base = draft ? draft->base : TensorVersion{},
                                                 .data = std::move(*data),
                                                 .failure = {}});
  if (!staged) return pass_on(std::move(staged));
  made.note_committed();
  content.writers.clear();
  content.was_refused = false;
  return stale(transactions_.bytes_file(file.ino), Stale::What::Content);
}

void Filesystem::stage_npy_failure(const OpenFile& file) {
  const NewTensor& made = *file.content->made()->tensor();
  auto data = std::make_unique<NewTensor>(made.name(), false, archive_for_new());
  if (resolve(file.ino).kind == Node::Kind::StagedNpy) {
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

Result<Filesystem::StagedNpy> Filesystem::staged_npy(const Node& node) const {
  StagedNpy shown{.plain = transactions_.bytes_file(node.ino), .status = {}, .head = {}};
  auto status = stat_of(resolve(shown.plain));
  if (!status) return pass_on(std::move(status));
  shown.status = *status;
  if (const auto form = transactions_.form(node.ino)) {
    const auto size_bytes = static_cast<std::uint64_t>(shown.status.st_size);
    shown.head = npy_header(npy_form(form->dtype, form->shape, size_bytes));
  }
  return shown;
}

Result<struct stat> Filesystem::stat_of_staged_npy(const Node& node) const {
  constexpr mode_t kWrite = 0222;
  const auto shown = staged_npy(node);
  if (!shown) return tl::unexpected(shown.error());
  struct stat st = shown->status;
  st.st_ino = space_.in_mount(node.ino);
  st.st_size = shown->head ? st.st_size + static_cast<off_t>(shown->head->size()) : 0;
  if (!options_.allows_edits) st.st_mode &= ~kWrite;
  return st;
}

Result<Bytes> Filesystem::read_staged_npy(const Node& node, std::uint64_t offset,
                                          std::size_t size_bytes) const {
  const auto shown = staged_npy(node);
  if (!shown) return tl::unexpected(shown.error());
  if (!shown->head) return Bytes();
  const std::string& head = *shown->head;
  if (offset >= head.size()) return read(shown->plain, offset - head.size(), size_bytes);
  const auto in_head = std::as_bytes(std::span(head)).subspan(static_cast<std::size_t>(offset));
  const std::size_t taken = std::min(in_head.size(), size_bytes);
  auto body = read(shown->plain, 0, size_bytes - taken);
  if (!body) return body;
  auto rest = body->copy();
  if (!rest) return pass_on(std::move(rest));
  std::vector<std::byte> bytes(in_head.begin(), in_head.begin() + static_cast<std::ptrdiff_t>(taken));
  bytes.insert(bytes.end(), rest->begin(), rest->end());
  return Bytes(std::move(bytes));
}

}  // namespace stfs
