// Plans, writes, commits, and opens the model again.
#include "tools/libstfs/edit_handle.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

#include "core/commit/compaction.h"
#include "core/model/transaction_group.h"
#include "tools/target/target.h"
#include "tools/text/printable.h"

using namespace stfs;
using namespace stfs::interface;

namespace {

constexpr std::uint64_t kStagedPieceBytes = 4U << 20U;

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

Result<ModelEdit*> stfs_edit::structure() {
  if (edit) return &*edit;
  auto target = tools::open_target(shared->named, tools::Use::Change, shared->options);
  if (!target) return pass_on(std::move(target));
  if (target->tensor) {
    return refuse(shared->named.string() +
                  ": is a tensor's file: only its bytes can change; open the mount or the archive");
  }
  if (auto provable = shared->make_editable(*target->model); !provable) return pass_on(std::move(provable));
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
    const MutexLock lock(shared->mutex);
    const Model& model = *shared->opened->model;
    const auto at = model.tensors().find(name);
    if (shared->opened->only && (!at || *at != *shared->opened->only)) {
      return refuse(shared->named.string() +
                    ": is the file of another tensor: open the mount or the archive");
    }
    if (at) {
      const Tensor known = model.tensors()[*at];
      is_alike = known.dtype == tensor.dtype && std::ranges::equal(known.shape, tensor.shape) &&
                 !model.is_of_base(model.place(*at).shard);
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
  const bool is_there = known != keys.end() ? known->second : writer->metadata().find(key).has_value();
  if (!value && !is_there) {
    return fail(ErrorCode::NotFound, ENOENT,
                fmt::format("{}: no metadata of the key {}", shared->path, tools::printable_name(key)));
  }
  if (auto set = (*changed)->set_metadata(key, value); !set) return set;
  keys.insert_or_assign(key, value.has_value());
  return {};
}

Result<void> stfs_edit::commit() {
  if (auto open = check_open(); !open) return open;
  const MutexLock lock(shared->mutex);
  auto done = edit ? commit_structure() : commit_bytes();
  edit.reset();
  writer.reset();
  fresh.clear();
  is_ended = true;
  shared->is_edited = false;
  return done;
}

void stfs_edit::end() {
  const MutexLock own(mutex);
  if (is_ended) return;
  is_ended = true;
  const MutexLock lock(shared->mutex);
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
  if (auto committed = edit->commit(options); !committed) return committed;
  close_gaps();
  return {};
}

/// The edit is done: what fails here leaves a filler, which the next edit may close.
void stfs_edit::close_gaps() const {
  for (const ModelEdit::Changed& changed : edit->changed()) {
    Archive& archive = writer->archive(changed.shard);
    if (archive.version()->header->content.fillers.empty()) continue;
    if (const auto forecast = forecast_compaction(*archive.version(), Gaps::Cheap))
      static_cast<void>(close_cheap_gaps(archive, forecast->steps, options));
  }
}
