// The functions of edits: check the arguments, and call the handle.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "core/base/utf8.h"
#include "tools/libstfs/c_struct.h"
#include "tools/libstfs/edit_handle.h"
#include "tools/text/printable.h"

using namespace stfs;
using namespace stfs::interface;

namespace {

Result<Dtype> known_dtype(std::int32_t dtype) {
  if (dtype >= 0 && dtype < static_cast<std::int32_t>(kDtypeCount)) return static_cast<Dtype>(dtype);
  return refuse(fmt::format("there is no dtype {}", dtype));
}

Result<std::string> utf8_text(const char* text, std::size_t size_bytes, std::string_view what) {
  std::string known(text == nullptr ? "" : text, size_bytes);
  if (is_utf8(known)) return known;
  return refuse(fmt::format("{} {}: is not UTF-8", what, tools::printable_name(known)));
}

}  // namespace

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
    const MutexLock lock(shared.mutex);
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
    const MutexLock lock(edit->mutex);
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
    const MutexLock lock(edit->mutex);
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
    const MutexLock lock(edit->mutex);
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
    const MutexLock lock(edit->mutex);
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
    const MutexLock lock(edit->mutex);
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
    const MutexLock lock(edit->mutex);
    return edit->commit();
  });
}
