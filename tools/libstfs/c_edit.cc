// The functions of edits: they check the arguments, and call the handle.
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

std::vector<std::uint64_t> shape_of(std::uint32_t rank, const std::uint64_t* shape) {
  return rank > 0 ? std::vector(shape, shape + rank) : std::vector<std::uint64_t>();
}

}  // namespace

stfs_edit* stfs_edit_begin(stfs_model* model, const stfs_edit_options* options, stfs_error* error) {
  return answer(error, [&]() -> Result<stfs_edit*> {
    const auto given = options == nullptr ? Result<stfs_edit_options>() : take_struct(options);
    RETURN_IF_ERROR(given);
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
    RETURN_IF_ERROR(edit->begin());
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
    RETURN_IF_ERROR(edit->check_open());
    auto known_name = utf8_text(name, name_bytes, "tensor");
    RETURN_IF_ERROR(known_name);
    const auto known = known_dtype(dtype);
    RETURN_IF_ERROR(known);
    return edit->put(std::move(*known_name), *known, shape_of(rank, shape),
                     {static_cast<const std::byte*>(data), static_cast<std::size_t>(data_bytes)});
  });
}

int stfs_edit_remove(stfs_edit* edit, const char* name, std::size_t name_bytes, stfs_error* error) {
  return answer(error, [&]() -> Result<void> {
    const MutexLock lock(edit->mutex);
    RETURN_IF_ERROR(edit->check_open());
    const auto changed = edit->change->edit();
    RETURN_IF_ERROR(changed);
    const std::string known(name, name_bytes);
    RETURN_IF_ERROR((*changed)->remove(known));
    edit->fresh.erase(known);
    return {};
  });
}

int stfs_edit_rename(stfs_edit* edit, const stfs_renaming* renamings, std::size_t count, stfs_error* error) {
  return answer(error, [&]() -> Result<void> {
    const MutexLock lock(edit->mutex);
    RETURN_IF_ERROR(edit->check_open());
    std::vector<ModelEdit::Renaming> known;
    for (std::size_t at = 0; at < count; ++at) {
      const auto& [from, to] = renamings[at];
      auto name = utf8_text(to.data, to.size_bytes, "tensor");
      RETURN_IF_ERROR(name);
      known.push_back({std::string(from.data, from.size_bytes), std::move(*name)});
    }
    return edit->rename(known);
  });
}

int stfs_edit_reinterpret(stfs_edit* edit, const char* name, std::size_t name_bytes, std::int32_t dtype,
                          std::uint32_t rank, const std::uint64_t* shape, stfs_error* error) {
  return answer(error, [&]() -> Result<void> {
    const MutexLock lock(edit->mutex);
    RETURN_IF_ERROR(edit->check_open());
    const auto known = known_dtype(dtype);
    RETURN_IF_ERROR(known);
    const auto changed = edit->change->edit();
    RETURN_IF_ERROR(changed);
    if (auto done = (*changed)->reinterpret({name, name_bytes}, *known, shape_of(rank, shape)); !done) {
      return tl::unexpected(std::move(done).error().within(edit->shared->path));
    }
    return {};
  });
}

int stfs_edit_set_metadata(stfs_edit* edit, const char* key, std::size_t key_bytes, const char* value,
                           std::size_t value_bytes, stfs_error* error) {
  return answer(error, [&]() -> Result<void> {
    const MutexLock lock(edit->mutex);
    RETURN_IF_ERROR(edit->check_open());
    auto known_key = utf8_text(key, key_bytes, "metadata");
    RETURN_IF_ERROR(known_key);
    if (value == nullptr) return edit->set_metadata(*known_key, std::nullopt);
    auto known_value = utf8_text(value, value_bytes, "metadata");
    RETURN_IF_ERROR(known_value);
    return edit->set_metadata(*known_key, *known_value);
  });
}

int stfs_edit_commit(stfs_edit* edit, stfs_error* error) {
  return answer(error, [&]() -> Result<void> {
    const MutexLock lock(edit->mutex);
    return edit->commit();
  });
}
