#include "tests/crash/model_step.h"

#include <algorithm>
#include <iterator>
#include <set>
#include <type_traits>

#include "core/model/model_edit.h"
#include "core/model/transaction_group.h"

namespace stfs::test {
namespace {

constexpr std::size_t kManyTensors = 14;  // of all shards; with more tensors, more are removed than added

/// An edit that is being drawn. Its effect on shards follows the text of core/model/model_edit.h.
class Draft {
 public:
  Draft(const EditedModel& before, Choices& choices) : choices_(choices) {
    step_.before = before;
    for (std::uint32_t shard = 0; shard < before.shards.size(); ++shard) {
      metadata_.push_back(before.shards[shard].metadata);
      for (const auto& [name, value] : before.shards[shard].tensors) rows_[name] = {shard, value, name};
      if (!before.has_index() || !before.shards[shard].tensors.empty()) listed_.push_back(shard);
    }
  }

  void change() {
    const bool may_remove = rows_.size() > (step_.before.has_index() ? 1U : 0U);
    if (rows_.empty()) return choices_.one_in(2) ? put_new() : set_metadata();
    if (rows_.size() > kManyTensors && choices_.one_in(3)) return remove();
    if (step_.before.has_index() && choices_.one_in(6))
      return choices_.one_in(3) ? rename_shard() : empty_shard();
    switch (choices_.below(6)) {
      case 0: return put_new();
      case 1: return put_over();
      case 2: return set_metadata();
      case 3: return may_remove ? remove() : put_new();
      case 4: return rename();
      default: return reinterpret_one();
    }
  }

  [[nodiscard]] bool is_empty() const { return touched_.empty(); }

  ModelStep finish() && {
    keep_metadata();
    for (const std::uint32_t shard : touched_) step_.parts[shard].after.metadata = metadata_[shard];
    for (const auto& [name, row] : rows_) {
      if (!touched_.contains(row.shard)) continue;
      EditStep& part = step_.parts[row.shard];
      part.after.tensors[name] = row.value;
      if (row.from) part.kept[name] = *row.from;
    }
    return std::move(step_);
  }

 private:
  struct Row {
    std::uint32_t shard = 0;
    EditedContent::Value value;
    std::optional<std::string> from;  // the old name of the tensor, if the bytes are kept
  };

  /// Moves metadata of shards that lose all tensors to the first remaining shard, unless a remaining shard
  /// has the key.
  void keep_metadata() {
    if (!step_.before.has_index() || !step_.changes_index || rows_.empty()) return;
    std::set<std::uint32_t> named;
    for (const auto& [name, row] : rows_) named.insert(row.shard);
    for (const std::uint32_t shard : listed_) {
      if (named.contains(shard)) continue;
      for (const auto& [key, value] : metadata_[shard]) {
        const auto has_key = [&, &key = key](std::uint32_t other) { return metadata_[other].contains(key); };
        if (std::ranges::any_of(named, has_key)) continue;
        metadata_[*named.begin()].emplace(key, value);
        touched_.insert(*named.begin());
      }
    }
  }

  std::string new_name() {
    for (;;) {
      std::string name = random_name(choices_);
      if (!rows_.contains(name)) return name;
    }
  }

  std::string known_name() {
    auto at = rows_.begin();
    std::advance(at, static_cast<std::ptrdiff_t>(choices_.below(rows_.size())));
    return at->first;
  }

  void put_new() {
    const std::string name = new_name();
    const EditedContent::Value value = random_value(choices_);
    rows_[name] = {listed_.back(), value, std::nullopt};
    touched_.insert(listed_.back());
    step_.changes_index = true;
    step_.changes.emplace_back(ModelStep::Put{name, value});
  }

  void put_over() {
    const std::string name = known_name();
    Row& row = rows_[name];
    row.value = random_value(choices_);
    row.from.reset();
    touched_.insert(row.shard);
    step_.changes_index = true;
    step_.changes.emplace_back(ModelStep::Put{name, row.value});
  }

  void set_metadata() {
    const auto [key, value] = random_entry(choices_);
    const auto has_key = [&, &key = key](std::uint32_t shard) { return metadata_[shard].contains(key); };
    const bool is_anywhere = std::ranges::any_of(listed_, has_key);
    for (const std::uint32_t shard : listed_) {
      if (is_anywhere ? !has_key(shard) : !value || shard != listed_.front()) continue;
      if (value && has_key(shard) && metadata_[shard][key] == *value) continue;
      touched_.insert(shard);
      if (value) {
        metadata_[shard][key] = *value;
      } else {
        metadata_[shard].erase(key);
      }
    }
    step_.changes.emplace_back(ModelStep::SetMetadata{key, value});
  }

  void remove() { remove(known_name()); }
  void remove(const std::string& name) {
    touched_.insert(rows_[name].shard);
    rows_.erase(name);
    step_.changes_index = true;
    step_.changes.emplace_back(ModelStep::Remove{name});
  }

  /// The names of all tensors of any shard.
  std::vector<std::string> names_of_shard() {
    const std::uint32_t shard = rows_.at(known_name()).shard;
    std::vector<std::string> names;
    for (const auto& [name, row] : rows_)
      if (row.shard == shard) names.push_back(name);
    return names;
  }

  /// Removes all tensors of a shard, so the index no longer names the shard.
  void empty_shard() {
    const std::vector<std::string> names = names_of_shard();
    if (names.size() == rows_.size()) return rename_shard();  // an index names at least one tensor
    for (const std::string& name : names) remove(name);
  }

  void rename_shard() {
    ModelStep::Rename change;
    for (const std::string& from : names_of_shard()) {
      const std::string to = new_name();
      auto row = rows_.extract(from);
      row.key() = to;
      touched_.insert(row.mapped().shard);
      rows_.insert(std::move(row));
      change.names.emplace_back(from, to);
    }
    step_.changes_index = true;
    step_.changes.emplace_back(std::move(change));
  }

  void rename() {
    const std::string from = known_name();
    const std::string to = choices_.one_in(3) ? known_name() : new_name();
    if (from == to) return;
    ModelStep::Rename change{{{from, to}}};
    auto first = rows_.extract(from);
    auto second = rows_.extract(to);
    if (!second.empty()) change.names.emplace_back(to, from);
    first.key() = to;
    touched_.insert(first.mapped().shard);
    rows_.insert(std::move(first));
    if (!second.empty()) {
      second.key() = from;
      touched_.insert(second.mapped().shard);
      rows_.insert(std::move(second));
    }
    step_.changes_index = true;
    step_.changes.emplace_back(std::move(change));
  }

  void reinterpret_one() {
    const std::string name = known_name();
    Row& row = rows_[name];
    EditedContent::Value value = row.value;
    reinterpret(value, choices_);
    if (value == row.value) return;
    row.value = value;
    touched_.insert(row.shard);
    step_.changes.emplace_back(ModelStep::Reinterpret{name, value});
  }

  Choices& choices_;
  ModelStep step_;
  std::map<std::string, Row> rows_;
  std::vector<std::map<std::string, std::string>> metadata_;  // by shard
  std::vector<std::uint32_t> listed_;                         // shards that the index names
  std::set<std::uint32_t> touched_;
};

/// Nothing if no tensor has bytes. A patch of empty tensors changes no shard, so the commit does not compare
/// the shard's structure.
std::optional<ModelStep> random_patch(const EditedModel& before, Choices& choices) {
  ModelStep step{.is_patch = true, .before = before};
  std::vector<std::pair<std::uint32_t, std::string>> all;
  for (std::uint32_t shard = 0; shard < before.shards.size(); ++shard) {
    for (const auto& [name, value] : before.shards[shard].tensors) {
      if (!value.bytes.empty()) all.emplace_back(shard, name);
    }
  }
  if (all.empty()) return std::nullopt;
  for (std::size_t tensors = 1 + choices.below(3); tensors > 0; --tensors) {
    const auto& [shard, name] = all[choices.below(all.size())];
    EditStep& part = step.parts[shard];
    if (part.after.tensors.empty()) {
      part.after = before.shards[shard];
      part.is_patch = true;
      for (const auto& [other, value] : part.after.tensors) part.kept[other] = other;
    }
    std::string& bytes = part.after.tensors[name].bytes;
    bytes = random_bytes(bytes.size(), choices);
    part.kept.erase(name);
  }
  return step;
}

Result<void> stage_bytes(Staging* stage, const std::string& bytes) {
  return stage == nullptr ? Result<void>{} : stage->write(std::as_bytes(std::span(bytes)), 0);
}

Result<void> change(ModelEdit& edit, const ModelStep::Change& change) {
  return std::visit(
      [&](const auto& what) -> Result<void> {
        using What = std::decay_t<decltype(what)>;
        if constexpr (std::is_same_v<What, ModelStep::Remove>) {
          return edit.remove(what.name);
        } else if constexpr (std::is_same_v<What, ModelStep::Rename>) {
          std::vector<ModelEdit::Renaming> renamings;
          for (const auto& [from, to] : what.names) renamings.push_back({from, to});
          return edit.rename(renamings);
        } else if constexpr (std::is_same_v<What, ModelStep::Reinterpret>) {
          return edit.reinterpret(what.name, *dtype_named(what.value.dtype), what.value.shape);
        } else if constexpr (std::is_same_v<What, ModelStep::Put>) {
          return edit.put(what.name, *dtype_named(what.value.dtype), what.value.shape);
        } else {
          return edit.set_metadata(what.key, what.value);
        }
      },
      change);
}

Result<void> carry_out_edit(const Model& model, const ModelStep& step, const CommitOptions& options) {
  auto edit = ModelEdit::of(model);
  if (!edit) return pass_on(std::move(edit));
  for (const ModelStep::Change& next : step.changes) {
    if (auto changed = change(*edit, next); !changed) return changed;
  }
  if (auto begun = edit->begin(options.uses_locks); !begun) return begun;
  for (const auto& [shard, part] : step.parts) {
    for (const auto& [name, value] : part.after.tensors) {
      if (part.kept.contains(name)) continue;
      if (auto staged = stage_bytes(edit->stage(name), value.bytes); !staged) return staged;
    }
  }
  return edit->commit(options);
}

Result<void> carry_out_patch(const Model& model, const ModelStep& step, const CommitOptions& options) {
  TransactionGroup group(model);
  for (const auto& [shard, part] : step.parts) {
    for (const auto& [name, value] : part.after.tensors) {
      if (part.kept.contains(name)) continue;
      auto stage = group.stage(model.place(*model.find(name)));
      if (!stage) return pass_on(std::move(stage));
      if (auto staged = stage_bytes(*stage, value.bytes); !staged) return staged;
    }
  }
  ReaderWriterLock lock;
  return group.commit([&](std::uint32_t) -> Result<CommitOptions> { return options; },
                      [&](TensorPlace) -> ReaderWriterLock& { return lock; });
}

}  // namespace

ModelStep random_model_step(const EditedModel& before, Choices& choices) {
  if (choices.one_in(6)) return {.is_compaction = true, .before = before};
  if (choices.one_in(3)) {
    if (auto patch = random_patch(before, choices)) return std::move(*patch);
  }
  for (;;) {
    Draft draft(before, choices);
    for (std::size_t changes = 1 + choices.below(3); changes > 0; --changes) draft.change();
    if (!draft.is_empty()) return std::move(draft).finish();
  }
}

std::optional<EditedModel> content_after(const ModelStep& step, const EditedModel& before) {
  if (step.changes_index && !have_same_index(step.before, before)) return std::nullopt;
  EditedModel after = before;
  for (const auto& [shard, part] : step.parts) {
    const EditedContent& there = before.shards[shard];
    if (!have_same_structure(step.before.shards[shard], there)) return std::nullopt;
    after.shards[shard] = part.after;
    for (const auto& [name, from] : part.kept)
      after.shards[shard].tensors.at(name).bytes = there.tensors.at(from).bytes;
  }
  return after;
}

Result<void> carry_out(const Model& model, const ModelStep& step, const CommitOptions& options) {
  return step.is_patch ? carry_out_patch(model, step, options) : carry_out_edit(model, step, options);
}

}  // namespace stfs::test
