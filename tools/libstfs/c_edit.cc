// Edits: collects changes by name, and commits them as one.
//
//   only new bytes of tensors    a transaction on the model that the handle shows: the tensors stay in place
//   anything else                core's ModelEdit on an opening of its own. The handle's opening is closed
//   for the
//                                commit unless it is pinned, because an edit frees no bytes that somebody
//                                reads.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <thread>
#include <utility>

#include "core/base/utf8.h"
#include "core/model/model_edit.h"
#include "core/model/transaction_group.h"
#include "tools/libstfs/c_error.h"
#include "tools/libstfs/c_struct.h"
#include "tools/libstfs/handles.h"
#include "tools/target/target.h"
#include "tools/text/printable.h"

using namespace stfs;
using namespace stfs::interface;

namespace {

constexpr std::uint64_t kStagedPieceBytes = 4U << 20U;

Result<Dtype> known_dtype(std::int32_t dtype) {
  if (dtype >= 0 && dtype < static_cast<std::int32_t>(kDtypeCount)) return static_cast<Dtype>(dtype);
  return refuse(fmt::format("there is no dtype {}", dtype));
}

Result<std::string> utf8_text(const char* text, std::size_t size_bytes, std::string_view what) {
  std::string known(text == nullptr ? "" : text, size_bytes);
  if (is_utf8(known)) return known;
  return refuse(fmt::format("{} {}: is not UTF-8", what, tools::printable_name(known)));
}

Result<void> write_all(Staging& stage, std::span<const std::byte> bytes) {
  if (auto emptied = stage.resize(0); !emptied) return emptied;
  for (std::uint64_t offset = 0; offset < bytes.size(); offset += kStagedPieceBytes) {
    const auto piece = bytes.subspan(static_cast<std::size_t>(offset));
    const auto size = std::min<std::size_t>(piece.size(), kStagedPieceBytes);
    if (auto written = stage.write(piece.first(size), offset); !written) return written;
  }
  return {};
}

}  // namespace

struct stfs_edit {
  /// New bytes of a tensor. The caller owns them.
  struct NewTensor {
    Dtype dtype = Dtype::U8;
    std::vector<std::uint64_t> shape;
    std::span<const std::byte> bytes;
  };
  std::shared_ptr<EditableModel> shared;
  CommitOptions options{};
  std::mutex mutex{};               // guards the members below; taken before that of `shared`
  std::unique_ptr<Model> writer{};  // null as long as only bytes of tensors change
  std::optional<ModelEdit> edit{};  // of `writer`
  std::map<std::string, NewTensor, std::less<>> fresh{};  // by the tensor's name afterwards
  std::map<std::string, bool, std::less<>> keys{};  // changed keys of the metadata: whether they have a value
  bool is_ended = false;

  /// The structure changes: opens the model for that.
  Result<ModelEdit*> structure();
  Result<void> put(std::string name, NewTensor tensor);
  Result<void> rename(std::span<const ModelEdit::Renaming> renamings);
  Result<void> set_metadata(const std::string& key, const std::optional<std::string>& value);
  Result<void> commit();
  /// Lets the next edit of the model begin.
  void end();
  [[nodiscard]] Result<void> check_open() const {
    if (is_ended) return refuse(shared->path + ": the edit has ended: begin another one");
    return {};
  }

 private:
  Result<void> commit_bytes();
  Result<void> commit_structure();
  Result<void> write_structure();
  void wait_for_short_pins();
};

Result<ModelEdit*> stfs_edit::structure() {
  if (edit) return &*edit;
  auto target = tools::open_target(shared->named, tools::Use::Change, shared->options);
  if (!target) return pass_on(std::move(target));
  if (target->tensor) {
    return refuse(shared->named.string() +
                  ": is a tensor's file: only its bytes can change; open the mount or the archive");
  }
  writer = std::move(target->model);
  auto begun = ModelEdit::of(*writer);
  if (!begun) return pass_on(std::move(begun));
  edit.emplace(std::move(*begun));
  for (const auto& [name, tensor] : fresh) {
    if (auto done = edit->put(name, tensor.dtype, tensor.shape); !done) return pass_on(std::move(done));
  }
  return &*edit;
}

Result<void> stfs_edit::put(std::string name, NewTensor tensor) {
  const auto size_bytes = data_size_bytes(tensor.dtype, tensor.shape);
  if (!size_bytes) return tl::unexpected(size_bytes.error());
  if (*size_bytes != tensor.bytes.size()) {
    return fail(
        ErrorCode::WrongSize, EINVAL,
        fmt::format("{}: tensor {}: {} {} needs {} bytes, {} came", shared->path, tools::printable_name(name),
                    name_of(tensor.dtype), shape_text(tensor.shape), *size_bytes, tensor.bytes.size()));
  }
  bool is_alike = false;
  if (!edit) {
    const std::scoped_lock lock(shared->mutex);
    const Model& model = *shared->opened->model;
    const auto at = model.tensors().find(name);
    if (shared->opened->only && (!at || *at != *shared->opened->only)) {
      return refuse(shared->named.string() +
                    ": is the file of another tensor: open the mount or the archive");
    }
    if (at) {
      const Tensor known = model.tensors()[*at];
      is_alike = known.dtype == tensor.dtype && std::ranges::equal(known.shape, tensor.shape);
    }
  }
  if (!is_alike) {
    auto changed = structure();
    if (!changed) return pass_on(std::move(changed));
    if (auto done = (*changed)->put(name, tensor.dtype, tensor.shape); !done) return done;
  }
  fresh.insert_or_assign(std::move(name), std::move(tensor));
  return {};
}

Result<void> stfs_edit::rename(std::span<const ModelEdit::Renaming> renamings) {
  auto changed = structure();
  if (!changed) return pass_on(std::move(changed));
  if (auto done = (*changed)->rename(renamings); !done) return done;
  std::map<std::string, NewTensor, std::less<>> moved;
  for (const ModelEdit::Renaming& renaming : renamings) {
    if (auto node = fresh.extract(renaming.from)) {
      node.key() = renaming.to;
      moved.insert(std::move(node));
    }
  }
  fresh.merge(moved);
  return {};
}

Result<void> stfs_edit::set_metadata(const std::string& key, const std::optional<std::string>& value) {
  auto changed = structure();
  if (!changed) return pass_on(std::move(changed));
  const auto known = keys.find(key);
  const bool is_there =
      known != keys.end()
          ? known->second
          : std::ranges::any_of(writer->metadata(), [&](const auto& entry) { return entry.first == key; });
  if (!value && !is_there) {
    return fail(ErrorCode::NotFound, ENOENT,
                fmt::format("{}: no metadata of the key {}", shared->path, tools::printable_name(key)));
  }
  (*changed)->set_metadata(key, value);
  keys.insert_or_assign(key, value.has_value());
  return {};
}

Result<void> stfs_edit::commit() {
  if (auto open = check_open(); !open) return open;
  const std::scoped_lock lock(shared->mutex);
  auto done = edit ? commit_structure() : commit_bytes();
  edit.reset();
  writer.reset();
  fresh.clear();
  is_ended = true;
  shared->is_edited = false;
  return done;
}

void stfs_edit::end() {
  if (std::exchange(is_ended, true)) return;
  const std::scoped_lock lock(shared->mutex);
  shared->is_edited = false;
}

Result<void> stfs_edit::commit_bytes() {
  if (fresh.empty()) return {};
  const Model& model = *shared->opened->model;
  TransactionGroup transaction(model);
  for (const auto& [name, tensor] : fresh) {
    auto stage = transaction.stage(model.place(*model.tensors().find(name)));
    if (!stage) return pass_on(std::move(stage));
    if (auto written = write_all(**stage, tensor.bytes); !written) return written;
  }
  ReaderWriterLock unused;
  return transaction.commit([this](std::uint32_t) -> Result<CommitOptions> { return options; },
                            [&unused](TensorPlace) -> ReaderWriterLock& { return unused; });
}

Result<void> stfs_edit::commit_structure() {
  if (edit->is_empty()) return {};
  shared->let_go();
  auto done = write_structure();
  edit.reset();
  writer.reset();
  auto again = shared->open_again();
  if (!done || again) return done;
  Error error = std::move(again).error();
  error.message += " (the edit itself is complete)";
  return tl::unexpected(std::move(error));
}

/// Calls on other threads pin the model for a moment. Waits for them if the edit needs that nobody reads.
void stfs_edit::wait_for_short_pins() {
  constexpr int kMostTries = 100;
  constexpr std::chrono::milliseconds kPause{1};
  if (!shared->has_pins()) return;
  for (int tries = 0; tries < kMostTries; ++tries) {
    const auto planned = edit->plan(options.uses_locks);
    if (planned || planned.error().errno_value != EBUSY) return;
    std::this_thread::sleep_for(kPause);
  }
}

Result<void> stfs_edit::write_structure() {
  wait_for_short_pins();
  if (auto begun = edit->begin(options.uses_locks); !begun) {
    Error error = std::move(begun).error();
    if (error.errno_value == EBUSY && shared->has_pins()) {
      error.message +=
          "; this program itself still uses tensors of the model that it opened before: close them, or copy "
          "them to memory of their own";
    }
    return tl::unexpected(std::move(error));
  }
  for (const auto& [name, tensor] : fresh) {
    Staging* stage = edit->stage(name);
    if (stage == nullptr) continue;  // it has no bytes
    if (auto written = write_all(*stage, tensor.bytes); !written) return written;
  }
  return edit->commit(options);
}

stfs_edit* stfs_edit_begin(stfs_model* model, const stfs_edit_options* options, stfs_error* error) {
  return answer(error, [&]() -> Result<stfs_edit*> {
    const auto given = options == nullptr ? Result<stfs_edit_options>() : take_struct(options);
    if (!given) return tl::unexpected(given.error());
    EditableModel& shared = *model->shared;
    if (shared.options.access != Access::ReadWrite) {
      return fail(ErrorCode::ReadOnly, EROFS,
                  shared.path + ": the model is open for reading only: open it for writing to change it");
    }
    auto edit = std::make_unique<stfs_edit>();
    edit->shared = model->shared;
    if (given->patience_ns != 0) {
      constexpr std::uint64_t kNanosecondsPerMillisecond = 1'000'000;
      constexpr std::uint64_t kLongestMs = 86'400'000;
      edit->options.lock_patience =
          std::chrono::milliseconds(std::min(given->patience_ns / kNanosecondsPerMillisecond, kLongestMs));
    }
    const std::scoped_lock lock(shared.mutex);
    if (shared.is_edited) {
      return fail(ErrorCode::Busy, EBUSY,
                  shared.path + ": another edit of this model is open: commit it or close it first");
    }
    if (!shared.opened || !check_current(*shared.opened->model)) {
      if (auto again = shared.open_again(); !again) return pass_on(std::move(again));
    }
    shared.is_edited = true;
    return edit.release();
  });
}

void stfs_edit_close(stfs_edit* edit) {
  if (edit != nullptr) edit->end();
  delete edit;
}

int stfs_edit_put(stfs_edit* edit, const char* name, std::size_t name_bytes, std::int32_t dtype,
                  std::uint32_t rank, const std::uint64_t* shape, const void* data, std::uint64_t data_bytes,
                  stfs_error* error) {
  return answer(error, [&]() -> Result<void> {
    const std::scoped_lock lock(edit->mutex);
    if (auto open = edit->check_open(); !open) return open;
    auto known_name = utf8_text(name, name_bytes, "tensor");
    if (!known_name) return pass_on(std::move(known_name));
    const auto known = known_dtype(dtype);
    if (!known) return tl::unexpected(known.error());
    stfs_edit::NewTensor tensor{.dtype = *known, .shape = {}, .bytes = {}};
    if (rank > 0) tensor.shape.assign(shape, shape + rank);
    tensor.bytes = {static_cast<const std::byte*>(data), static_cast<std::size_t>(data_bytes)};
    return edit->put(std::move(*known_name), std::move(tensor));
  });
}

int stfs_edit_remove(stfs_edit* edit, const char* name, std::size_t name_bytes, stfs_error* error) {
  return answer(error, [&]() -> Result<void> {
    const std::scoped_lock lock(edit->mutex);
    if (auto open = edit->check_open(); !open) return open;
    auto changed = edit->structure();
    if (!changed) return pass_on(std::move(changed));
    const std::string known(name, name_bytes);
    if (auto done = (*changed)->remove(known); !done) return done;
    edit->fresh.erase(known);
    return {};
  });
}

int stfs_edit_rename(stfs_edit* edit, const stfs_renaming* renamings, std::size_t count, stfs_error* error) {
  return answer(error, [&]() -> Result<void> {
    const std::scoped_lock lock(edit->mutex);
    if (auto open = edit->check_open(); !open) return open;
    std::vector<ModelEdit::Renaming> known;
    for (std::size_t at = 0; at < count; ++at) {
      const auto& [from, to] = renamings[at];
      auto name = utf8_text(to.data, to.size_bytes, "tensor");
      if (!name) return pass_on(std::move(name));
      known.push_back({std::string(from.data, from.size_bytes), std::move(*name)});
    }
    return edit->rename(known);
  });
}

int stfs_edit_reinterpret(stfs_edit* edit, const char* name, std::size_t name_bytes, std::int32_t dtype,
                          std::uint32_t rank, const std::uint64_t* shape, stfs_error* error) {
  return answer(error, [&]() -> Result<void> {
    const std::scoped_lock lock(edit->mutex);
    if (auto open = edit->check_open(); !open) return open;
    const auto known = known_dtype(dtype);
    if (!known) return tl::unexpected(known.error());
    auto changed = edit->structure();
    if (!changed) return pass_on(std::move(changed));
    const std::string its_name(name, name_bytes);
    std::vector<std::uint64_t> its_shape;
    if (rank > 0) its_shape.assign(shape, shape + rank);
    if (auto done = (*changed)->reinterpret(its_name, *known, its_shape); !done) {
      return tl::unexpected(std::move(done).error().within(edit->shared->path));
    }
    if (const auto fresh = edit->fresh.find(its_name); fresh != edit->fresh.end()) {
      fresh->second.dtype = *known;
      fresh->second.shape = std::move(its_shape);
    }
    return {};
  });
}

int stfs_edit_set_metadata(stfs_edit* edit, const char* key, std::size_t key_bytes, const char* value,
                           std::size_t value_bytes, stfs_error* error) {
  return answer(error, [&]() -> Result<void> {
    const std::scoped_lock lock(edit->mutex);
    if (auto open = edit->check_open(); !open) return open;
    auto known_key = utf8_text(key, key_bytes, "metadata");
    if (!known_key) return pass_on(std::move(known_key));
    if (value == nullptr) return edit->set_metadata(*known_key, std::nullopt);
    auto known_value = utf8_text(value, value_bytes, "metadata");
    if (!known_value) return pass_on(std::move(known_value));
    return edit->set_metadata(*known_key, *known_value);
  });
}

int stfs_edit_commit(stfs_edit* edit, stfs_error* error) {
  return answer(error, [&]() -> Result<void> {
    const std::scoped_lock lock(edit->mutex);
    return edit->commit();
  });
}
