// Keeps a row for each tensor. begin() turns the rows of each shard that changes into an edit.
#include "core/model/model_edit.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "core/base/name_hash.h"
#include "core/format/json_string.h"
#include "core/model/delta_base.h"
#include "core/model/model_index.h"

namespace stfs {

Result<void> ModelEdit::check(const Model& model) {
  return guard_memory([&]() -> Result<void> {
    if (auto whole = model.check_whole("an edit"); !whole) {
      return tl::unexpected(std::move(whole).error().within(model.path().string()));
    }
    if (!model.delta() || is_provable(model)) return {};
    return fail(ErrorCode::ReadOnly, EROFS,
                fmt::format("{}: can't be edited: the times of the files of its base, {}, prove nothing, and "
                            "their bytes were not read",
                            model.shards().back().path.string(), model.base()->path().string()));
  });
}

Result<ModelEdit> ModelEdit::of(const Model& model) {
  return guard_memory([&]() -> Result<ModelEdit> {
    RETURN_IF_ERROR(check(model));
    ModelEdit edit(model);
    edit.is_touched_.resize(model.shards().size());
    edit.metadata_.resize(model.shards().size());
    if (model.delta()) edit.add_base();
    for (std::uint32_t shard = model.delta() ? model.top() : 0; shard < model.shards().size(); ++shard) {
      ArchiveEdit of_shard = edit_of(model.version(shard));
      edit.first_rows_.resize(shard + 1, static_cast<std::uint32_t>(edit.rows_.size()));
      for (const EditedTensor& tensor : of_shard.tensors) {
        if (model.delta()) edit.by_name_.emplace(tensor.name, static_cast<std::uint32_t>(edit.rows_.size()));
        edit.rows_.push_back({.shard = shard, .tensor = tensor});
      }
      edit.metadata_[shard] = model.delta() ? model.delta()->metadata : std::move(of_shard.metadata);
    }
    return edit;
  });
}

void ModelEdit::add_base() {
  NameMap<std::string_view, std::string_view> renamed;
  for (const Delta::Renamed& one : model_->delta()->renamed) renamed.emplace(one.name, one.from);
  for (std::uint32_t at = 0; at < model_->tensors().size(); ++at) {
    const TensorPlace place = model_->place(at);
    if (!model_->is_of_base(place.shard)) continue;
    const Tensor tensor = model_->tensors()[at];
    const auto other = renamed.find(tensor.name);
    by_name_.emplace(tensor.name, static_cast<std::uint32_t>(rows_.size()));
    rows_.push_back({.shard = place.shard,
                     .tensor = {tensor.name, tensor.dtype, tensor.shape, place.tensor},
                     .base_name = other == renamed.end() ? tensor.name : other->second});
  }
}

Delta ModelEdit::next_delta() const {
  Delta delta = *model_->delta();
  delta.metadata = metadata_[model_->top()];
  delta.removed.clear();
  delta.renamed.clear();
  const TensorIndex& base = model_->base()->tensors();
  NameSet<std::string_view> there;  // names of tensors of the base that are not in `removed`
  std::size_t kept = 0;
  for (const Row& row : rows_) {
    if (row.is_removed) continue;
    if (row.base_name.empty()) {
      there.insert(row.tensor.name);
      continue;
    }
    ++kept;
    there.insert(row.base_name);
    const Tensor before = base[*base.find(row.base_name)];
    if (row.tensor.name == before.name && row.tensor.dtype == before.dtype &&
        std::ranges::equal(row.tensor.shape, before.shape))
      continue;
    delta.renamed.push_back({std::string(row.tensor.name),
                             std::string(row.base_name),
                             row.tensor.dtype,
                             {row.tensor.shape.begin(), row.tensor.shape.end()}});
  }
  for (std::uint32_t at = 0; at < base.size(); ++at) {
    if (!there.contains(base[at].name)) delta.removed.emplace_back(base[at].name);
  }
  // base_bytes stay valid while the same tensors are kept under the same names: the digest reads them in
  // order of names.
  if (kept == kept_tensors(*model_).size() && delta.renamed == model_->delta()->renamed) return delta;
  delta.base_bytes.clear();
  delta.base_files = base_files_of(*model_->base());
  return delta;
}

std::optional<std::uint32_t> ModelEdit::unchanged(std::string_view name) const {
  if (model_->delta()) return std::nullopt;
  const auto tensor = model_->find(name);
  if (!tensor) return std::nullopt;
  const TensorPlace place = model_->place(*tensor);
  const std::uint32_t row =
      first_rows_[place.shard] + *model_->version(place.shard).ids.position(place.tensor);
  const bool is_same = !rows_[row].is_removed && rows_[row].tensor.name == name;
  return is_same ? std::optional(row) : std::nullopt;
}

std::optional<std::uint32_t> ModelEdit::row_of(std::string_view name) const {
  const auto found = by_name_.find(name);
  return found != by_name_.end() ? std::optional(found->second) : unchanged(name);
}

Result<std::uint32_t> ModelEdit::find(std::string_view name) const {
  if (const auto row = row_of(name)) return *row;
  return fail(ErrorCode::NotFound, ENOENT,
              fmt::format("{}: no tensor {}", model_->path().string(), in_quotes(name)));
}

Result<void> ModelEdit::remove(std::string_view name) {
  return guard_memory([&]() -> Result<void> {
    const auto row = find(name);
    RETURN_IF_ERROR(row);
    rows_[*row].is_removed = true;
    by_name_.erase(rows_[*row].tensor.name);
    touch(rows_[*row].shard);
    is_index_changed_ = true;
    return {};
  });
}

Result<void> ModelEdit::rename(std::span<const Renaming> renamings) {
  return guard_memory([&] { return rename_unguarded(renamings); });
}

Result<void> ModelEdit::rename_unguarded(std::span<const Renaming> renamings) {
  RowByName names = by_name_;
  NameSet<std::string_view> left;
  std::vector<std::uint32_t> rows;
  for (const Renaming& renaming : renamings) {
    const auto row = find(renaming.from);
    RETURN_IF_ERROR(row);
    rows.push_back(*row);
    names.erase(renaming.from);
    left.insert(renaming.from);
  }
  std::vector<std::string_view> new_names;
  for (std::size_t at = 0; at < renamings.size(); ++at) {
    new_names.push_back(names_.emplace_back(renamings[at].to));
    const bool is_free = left.contains(new_names[at]) || !unchanged(new_names[at]);
    if (is_free && names.emplace(new_names[at], rows[at]).second) continue;
    return fail(
        ErrorCode::System, EEXIST,
        fmt::format("{}: {} can't be named {}: there is a tensor of that name", model_->path().string(),
                    in_quotes(renamings[at].from), in_quotes(renamings[at].to)));
  }
  for (std::size_t at = 0; at < renamings.size(); ++at) {
    std::string_view& name = rows_[rows[at]].tensor.name;
    if (name == new_names[at]) continue;
    name = new_names[at];
    touch(rows_[rows[at]].shard);
    is_index_changed_ = true;
  }
  by_name_ = std::move(names);
  return {};
}

Result<void> ModelEdit::reinterpret(std::string_view name, Dtype dtype, std::vector<std::uint64_t> shape) {
  return guard_memory([&] { return reinterpret_unguarded(name, dtype, std::move(shape)); });
}

Result<void> ModelEdit::reinterpret_unguarded(std::string_view name, Dtype dtype,
                                              std::vector<std::uint64_t> shape) {
  const auto row = find(name);
  RETURN_IF_ERROR(row);
  EditedTensor& tensor = rows_[*row].tensor;
  auto before = stfs::data_size_bytes(tensor.dtype, tensor.shape);
  auto after = stfs::data_size_bytes(dtype, shape);
  if (!after) return tl::unexpected(std::move(after).error().within("tensor " + in_quotes(name)));
  if (*before != *after) {
    return fail(ErrorCode::WrongSize, EINVAL,
                fmt::format("tensor {}: {} {} needs {} bytes, its data has {}", in_quotes(name),
                            name_of(dtype), shape_text(shape), *after, *before));
  }
  if (tensor.dtype == dtype && std::ranges::equal(tensor.shape, shape)) return {};
  tensor.shape = shapes_.emplace_back(std::move(shape));
  tensor.dtype = dtype;
  touch(rows_[*row].shard);
  return {};
}

Result<void> ModelEdit::put(std::string name, Dtype dtype, std::vector<std::uint64_t> shape) {
  return guard_memory([&] { return put_unguarded(std::move(name), dtype, std::move(shape)); });
}

Result<void> ModelEdit::put_unguarded(std::string name, Dtype dtype, std::vector<std::uint64_t> shape) {
  auto size_bytes = stfs::data_size_bytes(dtype, shape);
  if (!size_bytes) return tl::unexpected(std::move(size_bytes).error().within("tensor " + in_quotes(name)));
  const auto known = row_of(name);
  const std::vector<std::uint64_t>& kept_shape = shapes_.emplace_back(std::move(shape));
  if (!known) {
    const std::uint32_t shard = model_->top();
    const std::string& kept_name = names_.emplace_back(std::move(name));
    if (rows_.size() == rows_.capacity()) rows_.reserve(2 * rows_.size() + 1);
    by_name_.emplace(kept_name, static_cast<std::uint32_t>(rows_.size()));
    rows_.push_back({.shard = shard, .tensor = {kept_name, dtype, kept_shape, std::nullopt}});
    is_index_changed_ = true;
    touch(shard);
    return {};
  }
  Row& row = rows_[*known];
  if (!row.base_name.empty()) row.shard = model_->top();
  row.base_name = {};
  row.tensor.dtype = dtype;
  row.tensor.shape = kept_shape;
  row.tensor.from.reset();
  is_index_changed_ = true;  // the total size changes
  touch(row.shard);
  return {};
}

Result<void> ModelEdit::set_metadata(std::string_view key, const std::optional<std::string>& value) {
  return guard_memory([&]() -> Result<void> {
    set_metadata_unguarded(key, value);
    return {};
  });
}

void ModelEdit::set_metadata_unguarded(std::string_view key, const std::optional<std::string>& value) {
  std::map<std::uint32_t, Metadata> next;
  const auto has_key = [&](const Metadata& metadata) { return metadata.find(key).has_value(); };
  const bool is_anywhere = std::ranges::any_of(metadata_, has_key);
  const std::uint32_t first = model_->delta() ? model_->top() : 0;
  for (std::uint32_t shard = first; shard < metadata_.size(); ++shard) {
    if (is_anywhere ? !has_key(metadata_[shard]) : !value || shard > first) continue;
    Metadata changed;
    bool is_set = false;
    for (const auto& [known, old] : metadata_[shard]) {
      if (known != key) {
        changed.emplace_back(known, old);
      } else if (value && !std::exchange(is_set, true)) {
        changed.emplace_back(key, *value);
      }
    }
    if (value && !is_set) changed.emplace_back(key, *value);
    if (changed != metadata_[shard]) next.emplace(shard, std::move(changed));
  }
  for (auto& [shard, changed] : next) {
    metadata_[shard] = std::move(changed);
    touch(shard);
  }
}

void ModelEdit::keep_metadata() {
  if (!is_index_changed_ || !model_->has_index() || model_->delta() || !keeps_a_tensor()) return;
  std::vector<bool> is_named(metadata_.size());
  for (const Row& row : rows_) {
    if (!row.is_removed) is_named[row.shard] = true;
  }
  const auto is_kept = [&](std::string_view key) {
    for (std::size_t shard = 0; shard < metadata_.size(); ++shard) {
      if (is_named[shard] && metadata_[shard].find(key)) return true;
    }
    return false;
  };
  const std::uint32_t first = first_named();
  for (std::size_t shard = 0; shard < metadata_.size(); ++shard) {
    if (is_named[shard]) continue;
    for (const auto& [key, value] : metadata_[shard]) {
      if (is_kept(key)) continue;
      metadata_[first].emplace_back(key, value);
      touch(first);
    }
  }
}

std::map<std::uint32_t, ArchiveEdit> ModelEdit::edits() {
  keep_metadata();
  std::map<std::uint32_t, ArchiveEdit> edits;
  for (std::uint32_t shard = 0; shard < is_touched_.size(); ++shard) {
    if (!is_touched_[shard]) continue;
    ArchiveEdit& edit = edits[shard];
    edit.metadata = model_->delta() ? metadata_of(next_delta()) : metadata_[shard];
    edit.keeps_deleted = keeps_deleted_;
    edit.makes_room = makes_room_;
  }
  for (const auto& [id, removed] : model_->removed()) {
    const auto edit = edits.find(removed.place.shard);
    if (keeps_deleted_ && edit != edits.end()) edit->second.kept.push_back(removed.file_range);
  }
  for (Row& row : rows_) {
    if (row.is_removed || !is_touched_[row.shard]) continue;
    std::vector<EditedTensor>& tensors = edits[row.shard].tensors;
    row.place = static_cast<std::uint32_t>(tensors.size());
    tensors.push_back(row.tensor);
  }
  return edits;
}

Result<void> ModelEdit::plan(bool uses_locks) {
  return guard_memory([&]() -> Result<void> {
    layouts_.clear();
    changed_.clear();
    for (const auto& [shard, edit] : edits()) {
      Archive& archive = model_->archive(shard);
      RETURN_IF_ERROR(archive.open_for_writing());
      auto layout = lay_out(model_->version(shard), edit, uses_locks && archive.has_other_readers());
      if (!layout) return tl::unexpected(std::move(layout).error().within(archive.path().string()));
      add_layout(shard, std::make_shared<EditLayout>(std::move(*layout)));
    }
    return {};
  });
}

void ModelEdit::add_layout(std::uint32_t shard, std::shared_ptr<const EditLayout> layout) {
  changed_.push_back({shard, layout.get()});
  layouts_.emplace(shard, std::move(layout));
}

std::uint64_t ModelEdit::freed_bytes() const {
  std::uint64_t total = 0;
  for (const auto& [shard, layout] : layouts_) total += layout->freed_bytes;
  return total;
}

std::uint64_t ModelEdit::moved_bytes() const {
  std::uint64_t total = 0;
  for (const auto& [shard, layout] : layouts_) {
    for (const EditLayout::Placed& placed : layout->placed) {
      if (placed.moved_from) total += placed.file_range.size_bytes;
    }
  }
  return total;
}

Result<void> ModelEdit::begin(bool uses_locks) {
  return guard_memory([&]() -> Result<void> {
    layouts_.clear();
    changed_.clear();
    for (auto& [shard, edit] : edits()) {
      Transaction& transaction = transactions_.try_emplace(shard, model_->archive(shard)).first->second;
      RETURN_IF_ERROR(transaction.edit(std::move(edit), uses_locks));
      add_layout(shard, transaction.layout());
    }
    note_moved();
    return is_index_changed_ && model_->has_index() ? begin_index(uses_locks) : Result<void>{};
  });
}

Result<bool> ModelEdit::begin_compaction(std::uint32_t shard, std::span<const ByteRange> left,
                                         const PlanningEffort::Check& check) {
  return guard_memory([&]() -> Result<bool> {
    auto step = next_compaction_step(model_->version(shard), left, check);
    if (!step) return tl::unexpected(std::move(step).error().within(model_->archive(shard).path().string()));
    if (!*step) return false;
    const ArchiveEdit edit = (*step)->edit;
    Transaction& transaction = transactions_.try_emplace(shard, model_->archive(shard)).first->second;
    RETURN_IF_ERROR(transaction.edit(std::move((*step)->edit), std::move((*step)->layout)));
    add_layout(shard, transaction.layout());
    const auto add = [&](std::uint32_t tensor) { moved_.push_back({shard, *edit.tensors[tensor].from}); };
    std::ranges::for_each(transaction.layout()->copied, add);
    for (const EditLayout::Placed& placed : transaction.layout()->placed) {
      if (placed.moved_from) add(placed.tensor);
    }
    return true;
  });
}

Result<void> ModelEdit::begin_index(bool uses_locks) {
  const auto before = model_->read_index();
  RETURN_IF_ERROR(before);
  const auto text = index_text(*before);
  RETURN_IF_ERROR(text);
  const std::uint32_t first = first_named();
  const auto [holder, is_new] = transactions_.try_emplace(first, model_->archive(first));
  if (is_new) {
    RETURN_IF_ERROR(holder->second.edit(edit_of(model_->version(first)), uses_locks));
  }
  return holder->second.replace_index(model_->path(), *before, *text);
}

bool ModelEdit::keeps_a_tensor() const {
  return std::ranges::any_of(rows_, [](const Row& row) { return !row.is_removed; });
}

std::uint32_t ModelEdit::first_named() const {
  std::uint32_t first = model_->top();
  for (const Row& row : rows_) {
    if (!row.is_removed) first = std::min(first, row.shard);
  }
  return first;
}

Staging* ModelEdit::stage(std::string_view name) {
  const auto found = row_of(name);
  if (!found) return nullptr;
  const Row& row = rows_[*found];
  const auto transaction = transactions_.find(row.shard);
  return transaction == transactions_.end() ? nullptr : transaction->second.stage_new(row.place);
}

Result<void> ModelEdit::commit(const CommitOptions& options) {
  return guard_memory([&] {
    ReaderWriterLock lock;  // this program has no readers of the model
    return commit([&](std::uint32_t) -> Result<CommitOptions> { return options; },
                  [&lock](TensorPlace) -> ReaderWriterLock& { return lock; });
  });
}

Result<void> ModelEdit::commit(const TransactionGroup::OptionsOf& options_of,
                               const TransactionGroup::LockOf& lock_of) {
  return commit_together(transactions_, options_of, lock_of);
}

void ModelEdit::note_moved() {
  moved_.clear();
  for (const Row& row : rows_) {
    const auto layout = layouts_.find(row.shard);
    if (row.is_removed || layout == layouts_.end() || !row.tensor.from) continue;
    const bool moves = std::ranges::any_of(layout->second->placed, [&](const EditLayout::Placed& placed) {
      return placed.moved_from && placed.tensor == row.place;
    });
    if (moves) moved_.push_back({row.shard, *row.tensor.from});
  }
}

Result<std::string> ModelEdit::index_text(std::string_view before) const {
  std::map<std::string_view, std::string> shard_of;
  std::uint64_t total_bytes = 0;
  if (!keeps_a_tensor()) {
    return fail(ErrorCode::InvalidArgument, EINVAL,
                model_->path().string() + ": no tensor would be left, and an index must name one");
  }
  for (const Row& row : rows_) {
    if (row.is_removed) continue;
    shard_of[row.tensor.name] = model_->shards()[row.shard].path.filename().string();
    total_bytes += *stfs::data_size_bytes(row.tensor.dtype, row.tensor.shape);
  }
  return rewrite_model_index(before, shard_of, total_bytes);
}

}  // namespace stfs
