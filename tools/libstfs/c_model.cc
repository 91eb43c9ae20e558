// Opens models and describes them without reading tensors.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "core/model/delta_base.h"
#include "tools/libstfs/c_error.h"
#include "tools/libstfs/c_struct.h"
#include "tools/libstfs/handles.h"
#include "tools/target/target.h"
#include "tools/text/printable.h"

using namespace stfs;
using namespace stfs::interface;

namespace {

Result<ModelOptions> model_options(const stfs_model_options& given) {
  ModelOptions options;
  switch (given.io) {
    case STFS_IO_AUTO: options.io = Io::Auto; break;
    case STFS_IO_MMAP: options.io = Io::Mmap; break;
    case STFS_IO_PREAD: options.io = Io::Pread; break;
    default: return refuse(fmt::format("stfs_model_open: unknown way to read: {}", given.io));
  }
  options.is_strict = given.is_strict != 0;
  if (given.is_writable != 0) options.access = Access::ReadWrite;
  for (std::size_t at = 0; at < given.delta_count; ++at)
    options.deltas.push_back(std::filesystem::absolute(given.deltas[at]));
  if (options.deltas.empty()) return options;
  options.check_base = [](const Model& model) -> Result<void> {
    Work work;
    auto checked = check_base(
        model, [](std::uint64_t, std::string_view) {}, work);
    RETURN_IF_ERROR(checked);
    return {};
  };
  return options;
}

/// Calls `Result<void> visit(ArchiveReader&)` for each usable archive.
template <class Visit>
Result<void> for_each_archive(const Model& model, Visit&& visit) {
  for (std::uint32_t shard = 0; shard < model.shards().size(); ++shard) {
    if (!model.shards()[shard].archive) continue;
    RETURN_IF_ERROR(visit(model.reader(shard)));
  }
  return {};
}

}  // namespace

stfs_model* stfs_model_open(const char* path, const stfs_model_options* options, stfs_error* error) {
  return answer(error, [&]() -> Result<stfs_model*> {
    if (path == nullptr) return refuse("stfs_model_open: no path");
    auto given = options == nullptr ? Result<stfs_model_options>() : take_struct(options);
    RETURN_IF_ERROR(given);
    auto known = model_options(*given);
    RETURN_IF_ERROR(known);
    auto shared = std::make_shared<EditableModel>();
    shared->named = path;
    shared->options = std::move(*known);
    shared->is_forgiving = given->is_forgiving != 0;
    if (shared->options.access == Access::ReadWrite && !shared->options.deltas.empty()) {
      Work work;
      auto made = make_delta(
          shared->named, shared->options, [](const Model&) {}, work);
      RETURN_IF_ERROR(made);
    }
    auto opened = shared->open();
    RETURN_IF_ERROR(opened);
    shared->named = std::filesystem::absolute(path);
    const MutexLock lock(shared->mutex);
    shared->opened = std::move(*opened);
    shared->path = shared->opened->model->path().string();
    return new stfs_model{std::move(shared)};
  });
}

stfs_model* stfs_model_snapshot(const stfs_model* model, stfs_error* error) {
  return answer(error, [&]() -> Result<stfs_model*> {
    auto opened = model->opened();
    RETURN_IF_ERROR(opened);
    auto shared = std::make_shared<EditableModel>();
    shared->named = model->shared->named;
    shared->options = model->shared->options;
    shared->options.access = Access::ReadOnly;
    shared->is_forgiving = model->shared->is_forgiving;
    shared->path = model->shared->path;
    const MutexLock lock(shared->mutex);
    shared->opened = std::move(*opened);
    return new stfs_model{std::move(shared)};
  });
}

void stfs_model_close(stfs_model* model) {
  delete model;
}

std::uint64_t stfs_model_tensor_count(const stfs_model* model) {
  const auto opened = model->opened();
  return opened ? (*opened)->count() : 0;
}

const char* stfs_model_path(const stfs_model* model) {
  return model->shared->path.c_str();
}

int stfs_model_find(const stfs_model* model, const char* name, std::size_t name_bytes,
                    std::uint64_t* position, stfs_error* error) {
  return answer(error, [&]() -> Result<void> {
    const auto opened = model->opened();
    RETURN_IF_ERROR(opened);
    const OpenedModel& now = **opened;
    const std::string wanted(name, name_bytes);
    // To suggest similar names compares every tensor's name. Skip it for a caller that only asks whether the
    // name exists.
    if (error == nullptr && !now.model->tensors().find(wanted)) return refuse({});
    auto found = tools::find_tensor(*now.model, model->shared->named, wanted);
    RETURN_IF_ERROR(found);
    if (now.only && *found != *now.only) {
      return fail(ErrorCode::NotFound, ENOENT,
                  fmt::format("{}: {}: is not the tensor whose file was opened",
                              model->shared->named.string(), tools::printable_name(wanted)));
    }
    *position = now.only ? 0 : *found;
    return {};
  });
}

std::uint64_t stfs_model_metadata_count(const stfs_model* model) {
  const auto opened = model->opened();
  return opened ? (*opened)->model->metadata().size() : 0;
}

int stfs_model_metadata(const stfs_model* model, std::uint64_t entry, stfs_text* key, stfs_text* value,
                        stfs_error* error) {
  return answer(error, [&]() -> Result<void> {
    const auto opened = model->opened();
    RETURN_IF_ERROR(opened);
    const Metadata& metadata = (*opened)->model->metadata();
    if (entry >= metadata.size()) return refuse(fmt::format("stfs_model_metadata: no entry {}", entry));
    const auto [its_key, its_value] = metadata[static_cast<std::size_t>(entry)];
    *key = {its_key.data(), its_key.size()};
    *value = {its_value.data(), its_value.size()};
    return {};
  });
}

std::uint64_t stfs_model_not_shown_count(const stfs_model* model) {
  const auto opened = model->opened();
  return opened ? (*opened)->not_shown.size() : 0;
}

int stfs_model_not_shown(const stfs_model* model, std::uint64_t entry, stfs_text* why, stfs_error* error) {
  return answer(error, [&]() -> Result<void> {
    const auto opened = model->opened();
    RETURN_IF_ERROR(opened);
    if (entry >= (*opened)->not_shown.size())
      return refuse(fmt::format("stfs_model_not_shown: no entry {}", entry));
    const std::string& text = (*opened)->not_shown[static_cast<std::size_t>(entry)];
    *why = {text.data(), text.size()};
    return {};
  });
}

int stfs_model_generation(const stfs_model* model, std::uint64_t* generation, stfs_error* error) {
  return answer(error, [&]() -> Result<void> {
    const auto opened = model->opened();
    RETURN_IF_ERROR(opened);
    *generation = 0;
    return for_each_archive(*(*opened)->model, [&](const ArchiveReader& archive) -> Result<void> {
      auto status = archive.status();
      RETURN_IF_ERROR(status);
      *generation = std::max(*generation, static_cast<std::uint64_t>(status->identity.mtime_ns));
      return {};
    });
  });
}

int stfs_model_check_current(const stfs_model* model, stfs_error* error) {
  return answer(error, [&]() -> Result<void> {
    const auto opened = model->opened();
    RETURN_IF_ERROR(opened);
    return interface::check_current(*(*opened)->model);
  });
}

int stfs_model_describe(const stfs_model* model, std::uint64_t position, stfs_tensor_info* info,
                        stfs_error* error) {
  return answer(error, [&]() -> Result<void> {
    const auto opened = model->opened();
    RETURN_IF_ERROR(opened);
    const OpenedModel& now = **opened;
    if (position >= now.count()) return refuse(fmt::format("stfs_model_describe: no tensor {}", position));
    const std::uint32_t at = now.tensor(position);
    const Tensor tensor = now.model->tensors()[at];
    const ArchiveReader& archive = now.model->archive_of(at);
    stfs_tensor_info known{};
    known.name = {tensor.name.data(), tensor.name.size()};
    known.dtype = static_cast<std::int32_t>(tensor.dtype);
    known.rank = static_cast<std::uint32_t>(tensor.shape.size());
    known.shape = tensor.shape.data();
    known.size_bytes = tensor.data.size_bytes;
    known.archive = archive.path().c_str();
    known.offset = now.model->file_range(at).offset;
    if (archive.bytes().is_mapped()) known.flags |= STFS_MAPPED;
    return give_struct(known, info);
  });
}
