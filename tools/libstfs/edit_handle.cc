#include "tools/libstfs/edit_handle.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

#include "core/commit/compaction.h"
#include "tools/target/target.h"
#include "tools/text/printable.h"

using namespace stfs;
using namespace stfs::interface;

Result<void> stfs_edit::begin() {
  const MutexLock own(mutex);
  const MutexLock lock(shared->mutex);
  if (shared->is_edited) {
    return fail(ErrorCode::Busy, EBUSY,
                shared->path + ": another edit of this model is open: commit it or close it first");
  }
  if (!shared->opened || !check_current(*shared->opened->model)) {
    RETURN_IF_ERROR(shared->open_again());
  }
  change.emplace(*shared->opened->model, [this]() REQUIRES(mutex) { return open_writer(); });
  shared->is_edited = true;
  return {};
}

Result<const Model*> stfs_edit::open_writer() {
  auto target = tools::open_target(shared->named, tools::Use::Change, shared->options);
  RETURN_IF_ERROR(target);
  if (target->tensor) {
    return refuse(shared->named.string() +
                  ": is a tensor's file: only its bytes can change; open the mount or the archive");
  }
  RETURN_IF_ERROR(shared->make_editable(*target->model));
  writer = std::move(target->model);
  return writer.get();
}

Result<void> stfs_edit::put(std::string name, Dtype dtype, std::vector<std::uint64_t> shape,
                            std::span<const std::byte> bytes) {
  const auto size_bytes = data_size_bytes(dtype, shape);
  RETURN_IF_ERROR(size_bytes);
  if (*size_bytes != bytes.size()) {
    return fail(
        ErrorCode::WrongSize, EINVAL,
        fmt::format("{}: tensor {}: {} {} needs {} bytes, {} came", shared->path, tools::printable_name(name),
                    name_of(dtype), shape_text(shape), *size_bytes, bytes.size()));
  }
  {
    const MutexLock lock(shared->mutex);
    const OpenedModel& opened = *shared->opened;
    if (opened.only && opened.model->tensors().find(name) != opened.only) {
      return refuse(shared->named.string() +
                    ": is the file of another tensor: open the mount or the archive");
    }
  }
  RETURN_IF_ERROR(change->put(name, dtype, std::move(shape)));
  fresh.insert_or_assign(std::move(name), bytes);
  return {};
}

Result<void> stfs_edit::rename(std::span<const ModelEdit::Renaming> renamings) {
  const auto edit = change->edit();
  RETURN_IF_ERROR(edit);
  RETURN_IF_ERROR((*edit)->rename(renamings));
  std::map<std::string, std::span<const std::byte>, std::less<>> moved;
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
  const auto edit = change->edit();
  RETURN_IF_ERROR(edit);
  const auto known = keys.find(key);
  const bool is_there = known != keys.end() ? known->second : writer->metadata().find(key).has_value();
  if (!value && !is_there) {
    return fail(ErrorCode::NotFound, ENOENT,
                fmt::format("{}: no metadata of the key {}", shared->path, tools::printable_name(key)));
  }
  RETURN_IF_ERROR((*edit)->set_metadata(key, value));
  keys.insert_or_assign(key, value.has_value());
  return {};
}

Result<void> stfs_edit::commit() {
  RETURN_IF_ERROR(check_open());
  const MutexLock lock(shared->mutex);
  auto done = change->is_empty() ? Result<void>() : change->is_in_place() ? write() : commit_edit();
  change.reset();
  writer.reset();
  fresh.clear();
  shared->is_edited = false;
  return done;
}

void stfs_edit::end() {
  const MutexLock own(mutex);
  if (!change) return;
  change.reset();
  const MutexLock lock(shared->mutex);
  shared->is_edited = false;
}

Result<void> stfs_edit::commit_edit() {
  shared->let_go();
  wait_for_short_pins();
  auto done = write();
  // The edit is done. A failure from here on leaves a filler, which the next edit may close.
  if (done) close_gaps();
  change.reset();
  writer.reset();
  auto again = shared->open_again();
  if (!done || again) return done;
  Error error = std::move(again).error();
  error.message += " (the edit itself is complete)";
  return tl::unexpected(std::move(error));
}

/// Waits for calls on other threads, which pin the model for a moment, if the edit needs an archive without
/// readers.
void stfs_edit::wait_for_short_pins() {
  constexpr int kMostTries = 100;
  constexpr std::chrono::milliseconds kPause{1};
  if (!shared->has_pins()) return;
  for (int tries = 0; tries < kMostTries; ++tries) {
    const auto planned = change->plan(options.uses_locks);
    if (planned || planned.error().errno_value != EBUSY) return;
    std::this_thread::sleep_for(kPause);
  }
}

Result<void> stfs_edit::write() {
  if (auto begun = change->begin(options.uses_locks); !begun) {
    Error error = std::move(begun).error();
    if (error.errno_value == EBUSY && shared->has_pins()) {
      error.message +=
          "; this program itself still uses tensors of the model that it opened before: close them, or copy "
          "them to memory of their own";
    }
    return tl::unexpected(std::move(error));
  }
  for (const auto& [name, bytes] : fresh) {
    const auto read_piece = [from = bytes](ByteRange rest) -> Result<std::span<const std::byte>> {
      constexpr std::uint64_t kPieceBytes = 4U << 20U;
      return from.subspan(static_cast<std::size_t>(rest.offset),
                          static_cast<std::size_t>(std::min(kPieceBytes, rest.size_bytes)));
    };
    RETURN_IF_ERROR(change->write(name, read_piece));
  }
  ReaderWriterLock unused;
  return change->commit([this](std::uint32_t) { return options; },
                        [&unused](TensorPlace) -> ReaderWriterLock& { return unused; });
}

void stfs_edit::close_gaps() const {
  for (const ModelEdit::Changed& changed : change->changed()) {
    Archive& archive = writer->archive(changed.shard);
    if (archive.version()->header->content.fillers.empty()) continue;
    if (const auto forecast = forecast_compaction(*archive.version(), Gaps::Cheap))
      static_cast<void>(close_cheap_gaps(archive, *forecast, options));
  }
}
