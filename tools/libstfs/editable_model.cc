#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "core/base/printable.h"
#include "core/model/delta_base.h"
#include "tools/libstfs/handles.h"
#include "tools/target/journal_text.h"
#include "tools/target/target.h"

using namespace stfs;
using namespace stfs::interface;

namespace {

Result<void> check_archive(ArchiveReader& archive) {
  auto change = archive.check_for_change();
  RETURN_IF_ERROR(change);
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

namespace stfs::interface {

Result<std::shared_ptr<const OpenedModel>> EditableModel::open() const {
  const bool is_writable = options.access == Access::ReadWrite;
  auto target = tools::open_target(named, is_writable ? tools::Use::Change : tools::Use::Tensors, options);
  RETURN_IF_ERROR(target);
  RETURN_IF_ERROR(make_editable(*target->model));
  auto opening = std::make_shared<OpenedModel>();
  opening->model = std::move(target->model);
  opening->only = target->tensor;
  for (const std::string& why : tools::not_shown_beside(*opening->model))
    opening->not_shown.push_back(printable(why));
  if (is_forgiving) opening->maps = std::make_shared<const ForgivingMaps>(*opening->model);
  return opening;
}

Result<void> EditableModel::make_editable(Model& model) const {
  if (options.access != Access::ReadWrite || !model.delta()) return {};
  Work work;
  return make_provable(
      model, [](const Model&) {}, work);
}

void EditableModel::let_go() {
  std::erase_if(former, [](const auto& model) { return model.expired(); });
  if (opened) former.emplace_back(opened->model);
  opened.reset();
}

Result<void> EditableModel::open_again() {
  let_go();
  auto again = open();
  RETURN_IF_ERROR(again);
  opened = std::move(*again);
  return {};
}

bool EditableModel::has_pins() const {
  return std::ranges::any_of(former, [](const auto& model) { return !model.expired(); });
}

Result<void> check_current(const Model& model) {
  if (model.is_index_changed()) {
    return fail(ErrorCode::ArchiveChanged, ESTALE, model.path().string() + ": the index has changed");
  }
  for (std::uint32_t shard = 0; shard < model.shards().size(); ++shard) {
    if (!model.shards()[shard].archive) continue;
    RETURN_IF_ERROR(check_archive(model.reader(shard)));
  }
  return {};
}

}  // namespace stfs::interface

Result<std::shared_ptr<const OpenedModel>> stfs_model::opened() const {
  const MutexLock lock(shared->mutex);
  if (shared->opened) return shared->opened;
  return fail(ErrorCode::ArchiveChanged, ESTALE,
              shared->path + ": could not be opened again after an edit: close the model and open it again");
}
