// Opens models and describes them without reading tensors.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "tools/libstfs/c_error.h"
#include "tools/libstfs/c_struct.h"
#include "tools/libstfs/handles.h"
#include "tools/target/journal_text.h"
#include "tools/target/target.h"
#include "tools/text/printable.h"

using namespace stfs;
using namespace stfs::interface;

namespace {

Result<ModelOptions> model_options(const stfs_open_options& given) {
  ModelOptions options;
  switch (given.io) {
    case STFS_IO_AUTO: options.io = Io::Auto; break;
    case STFS_IO_MMAP: options.io = Io::Mmap; break;
    case STFS_IO_PREAD: options.io = Io::Pread; break;
    default: return refuse(fmt::format("stfs_open: unknown way to read: {}", given.io));
  }
  options.is_strict = given.is_strict != 0;
  return options;
}

/// Calls `Result<void> visit(ArchiveReader&)` for each usable archive.
template <class Visit>
Result<void> for_each_archive(const stfs_model& model, Visit&& visit) {
  for (std::uint32_t shard = 0; shard < model.model->shards().size(); ++shard) {
    if (!model.model->shards()[shard].archive) continue;
    if (auto visited = visit(model.model->reader(shard)); !visited) return visited;
  }
  return {};
}

Result<void> check_current(ArchiveReader& archive) {
  auto change = archive.check_for_change();
  if (!change) return pass_on(std::move(change));
  const std::string path = archive.path().string();
  if (change->is_gone) {
    return fail(ErrorCode::ArchiveChanged, ESTALE, path + ": was deleted; open tensors stay valid");
  }
  if (change->is_replaced) {
    return fail(ErrorCode::ArchiveChanged, ESTALE, path + ": was replaced by another file");
  }
  if (change->size_bytes < archive.opened_status().identity.size_bytes) {
    return fail(ErrorCode::ArchiveCut, EIO,
                fmt::format("{}: truncated: it had {} bytes and has {}", path,
                            archive.opened_status().identity.size_bytes, change->size_bytes));
  }
  if (change->is_broken) {
    return fail(ErrorCode::ArchiveChanged, ESTALE, path + ": its header has changed");
  }
  return {};
}

}  // namespace

stfs_model* stfs_open(const char* path, const stfs_open_options* options, stfs_error* error) {
  return answer(error, [&]() -> Result<stfs_model*> {
    if (path == nullptr) return refuse("stfs_open: no path");
    auto given = options == nullptr ? Result<stfs_open_options>() : take_struct(options);
    if (!given) return pass_on(std::move(given));
    const auto known = model_options(*given);
    if (!known) return tl::unexpected(known.error());
    auto target = tools::open_target(path, tools::Use::Tensors, *known);
    if (!target) return pass_on(std::move(target));
    auto model = std::make_unique<stfs_model>();
    model->named = std::filesystem::absolute(path);
    model->model = std::move(target->model);
    model->only = target->tensor;
    model->not_shown = tools::not_shown_beside(*model->model);
    if (given->is_forgiving != 0) model->maps = std::make_shared<const ForgivingMaps>(*model->model);
    return model.release();
  });
}

void stfs_close(stfs_model* model) {
  delete model;
}

std::uint64_t stfs_tensor_count(const stfs_model* model) {
  return model->count();
}

const char* stfs_path(const stfs_model* model) {
  return model->model->path().c_str();
}

int stfs_find(const stfs_model* model, const char* name, std::size_t name_bytes, std::uint64_t* position,
              stfs_error* error) {
  return answer(error, [&]() -> Result<void> {
    const std::string wanted(name, name_bytes);
    // Suggesting similar names looks at every tensor. Skip it for a caller that only asks whether the name
    // exists.
    if (error == nullptr && !model->model->tensors().find(wanted)) return refuse({});
    auto found = tools::find_tensor(*model->model, model->named, wanted);
    if (!found) return pass_on(std::move(found));
    if (model->only && *found != *model->only) {
      return fail(ErrorCode::NotFound, ENOENT,
                  fmt::format("{}: {}: is not the tensor whose file was opened", model->named.string(),
                              tools::printable_name(wanted)));
    }
    *position = model->only ? 0 : *found;
    return {};
  });
}

std::uint64_t stfs_metadata_count(const stfs_model* model) {
  return model->model->metadata().size();
}

int stfs_metadata_entry(const stfs_model* model, std::uint64_t entry, stfs_text* key, stfs_text* value,
                        stfs_error* error) {
  return answer(error, [&]() -> Result<void> {
    const Metadata& metadata = model->model->metadata();
    if (entry >= metadata.size()) return refuse(fmt::format("stfs_metadata_entry: no entry {}", entry));
    const auto [its_key, its_value] = metadata[static_cast<std::size_t>(entry)];
    *key = {its_key.data(), its_key.size()};
    *value = {its_value.data(), its_value.size()};
    return {};
  });
}

std::uint64_t stfs_not_shown_count(const stfs_model* model) {
  return model->not_shown.size();
}

int stfs_not_shown(const stfs_model* model, std::uint64_t entry, stfs_text* why, stfs_error* error) {
  return answer(error, [&]() -> Result<void> {
    if (entry >= model->not_shown.size()) return refuse(fmt::format("stfs_not_shown: no entry {}", entry));
    const std::string& text = model->not_shown[static_cast<std::size_t>(entry)];
    *why = {text.data(), text.size()};
    return {};
  });
}

int stfs_generation(const stfs_model* model, std::uint64_t* generation, stfs_error* error) {
  return answer(error, [&] {
    *generation = 0;
    return for_each_archive(*model, [&](const ArchiveReader& archive) -> Result<void> {
      auto status = archive.status();
      if (!status) return pass_on(std::move(status));
      *generation = std::max(*generation, static_cast<std::uint64_t>(status->identity.mtime_ns));
      return {};
    });
  });
}

int stfs_check_current(const stfs_model* model, stfs_error* error) {
  return answer(error, [&]() -> Result<void> {
    if (model->model->is_index_changed()) {
      return fail(ErrorCode::ArchiveChanged, ESTALE,
                  model->model->path().string() + ": the index has changed");
    }
    return for_each_archive(*model, check_current);
  });
}

int stfs_describe(const stfs_model* model, std::uint64_t position, stfs_tensor_info* info,
                  stfs_error* error) {
  return answer(error, [&]() -> Result<void> {
    if (position >= model->count()) return refuse(fmt::format("stfs_describe: no tensor {}", position));
    const std::uint32_t at = model->tensor(position);
    const Tensor tensor = model->model->tensors()[at];
    const ArchiveReader& archive = model->model->archive_of(at);
    stfs_tensor_info known{};
    known.name = {tensor.name.data(), tensor.name.size()};
    known.dtype = static_cast<std::int32_t>(tensor.dtype);
    known.rank = static_cast<std::uint32_t>(tensor.shape.size());
    known.shape = tensor.shape.data();
    known.size_bytes = tensor.data.size_bytes;
    known.archive = archive.path().c_str();
    known.offset = model->model->file_range(at).offset;
    if (archive.bytes().is_mapped()) known.flags |= STFS_MAPPED;
    return give_struct(known, info);
  });
}
