#include "tests/crash/edit_log.h"

#include <xxhash.h>

#include <algorithm>
#include <iterator>

namespace stfs::test {
namespace {

std::uint64_t hash_of(const EditedModel& model) {
  std::uint64_t hash = 0;
  const auto add = [&hash](std::string_view text) {
    hash = hash * 31 + XXH3_64bits(text.data(), text.size());
  };
  for (const EditedContent& shard : model.shards) {
    add("shard");
    for (const auto& [name, value] : shard.tensors) {
      add(name);
      add(value.bytes);
    }
  }
  return hash;
}

bool may_any(std::size_t) {
  return true;
}

}  // namespace

EditLog::EditLog(EditedModel first) {
  const std::uint64_t hash = hash_of(first);
  worlds_.push_back({std::move(first), {}, hash});
}

std::size_t EditLog::begin(ModelStep step) {
  const std::size_t number = begun_.size();
  begun_.push_back({std::make_shared<const ModelStep>(std::move(step)), dead_});
  for (World& world : worlds_) world.waiting.insert(number);
  return number;
}

void EditLog::end(std::size_t number, Fate fate) {
  if (fate == Fate::Unknown) {
    dead_.insert(number);
    const ModelStep& step = *begun_[number].step;
    // The first shard takes part in a change of the index.
    const bool has_several = step.parts.size() > 1 || (step.changes_index && step.before.has_index());
    if (!has_several) return;
    std::ranges::move(allowed(), std::back_inserter(former_));
    for (const auto& [shard, part] : step.parts)
      if (step.is_patch) torn_.insert(shard);
    return;
  }
  std::vector<World> left;
  const auto keep = [&](World world) {
    if (std::ranges::find(left, world) == left.end()) left.push_back(std::move(world));
  };
  if (fate == Fate::Refused) {
    for (World& world : worlds_) {
      if (world.waiting.erase(number) > 0) keep(std::move(world));
    }
  } else {
    std::vector<World> before = reachable([number](std::size_t other) { return other != number; });
    for (std::size_t at = 0; at < before.size(); ++at) {
      World& world = before[at];
      if (world.waiting.erase(number) > 0) {
        auto content = content_after(*begun_[number].step, world.content);
        if (!content) continue;
        world.content = std::move(*content);
        world.hash = hash_of(world.content);
      } else if (at >= worlds_.size()) {
        continue;  // a world that is kept leads to this one
      }
      for (const std::size_t dead : begun_[number].dead_before) {
        if (share_shards(dead, number)) world.waiting.erase(dead);
      }
      keep(std::move(world));
    }
  }
  worlds_ = std::move(left);
}

void EditLog::settle(const std::set<std::size_t>& dead) {
  if (dead.empty()) return;
  std::vector<World> left;
  for (World& world : reachable([&dead](std::size_t number) { return dead.contains(number); })) {
    std::erase_if(world.waiting, [&dead](std::size_t number) { return dead.contains(number); });
    if (std::ranges::find(left, world) == left.end()) left.push_back(std::move(world));
  }
  worlds_ = std::move(left);
}

std::vector<EditedModel> EditLog::allowed() const {
  std::vector<EditedModel> contents;
  for (World& world : reachable(may_any)) {
    if (std::ranges::find(contents, world.content) == contents.end())
      contents.push_back(std::move(world.content));
  }
  return contents;
}

bool EditLog::is_patched(std::uint32_t shard) const {
  if (torn_.contains(shard)) return true;
  return std::ranges::any_of(worlds_, [&](const World& world) {
    return std::ranges::any_of(world.waiting, [&](std::size_t number) {
      return begun_[number].step->is_patch && begun_[number].step->parts.contains(shard);
    });
  });
}

std::vector<EditLog::World> EditLog::reachable(const MayBeDone& may_be_done) const {
  std::vector<World> all = worlds_;
  for (std::size_t at = 0; at < all.size(); ++at) {
    for (const std::size_t number : std::set(all[at].waiting)) {
      auto content =
          !may_be_done(number) ? std::nullopt : content_after(*begun_[number].step, all[at].content);
      if (!content) continue;
      const std::uint64_t hash = hash_of(*content);
      World next{std::move(*content), all[at].waiting, hash};
      next.waiting.erase(number);
      if (std::ranges::find(all, next) == all.end()) all.push_back(std::move(next));
    }
  }
  return all;
}

bool EditLog::share_shards(std::size_t one, std::size_t other) const {
  return std::ranges::any_of(begun_[one].step->parts, [&](const auto& part) {
    return begun_[other].step->parts.contains(part.first);
  });
}

}  // namespace stfs::test
