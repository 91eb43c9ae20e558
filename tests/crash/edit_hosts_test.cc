// Several users edit a model in hundreds of orders. Other tests replay single moments that went wrong once.
#include <functional>

#include "core/journal/recovery.h"
#include "core/model/model_edit.h"
#include "tests/crash/edit_hosts_run.h"
#include "tests/crash/edit_log.h"
#include "tests/crash/edited_model.h"
#include "tests/crash/workload.h"
#include "tests/support/catch.h"
#include "tests/support/plain.h"
#include "tests/support/share_of_day.h"

namespace stfs::test {
namespace {

constexpr std::uint64_t kSchedulesOfScenario = 70;  // a seventh of them a day

/// Runs a function before each call.
class Before final : public Interceptor {
 public:
  explicit Before(std::function<void(const SeamCall&)> act) : act_(std::move(act)) {}
  Verdict before(const SeamCall& call) override {
    act_(call);
    return {};
  }

 private:
  std::function<void(const SeamCall&)> act_;
};

EditedModel two_shards() {
  EditedModel model;
  model.shards.resize(2);
  for (std::size_t shard = 0; shard < 2; ++shard) {
    for (const char* name : {"a", "b"})
      model.shards[shard].tensors[name + std::to_string(shard)] = {"U8", {5000}, std::string(5000, name[0])};
  }
  return model;
}

/// An opened model, and an edit of it.
struct OpenEdit {
  OpenEdit(const EditedModel& layout, Storage& storage)
      : model(open_model(layout, Access::ReadWrite, storage).value()), edit(ModelEdit::of(*model).value()) {}

  std::unique_ptr<Model> model;
  ModelEdit edit;
};

void recover_shards(const EditedModel& layout, Storage& storage) {
  for (std::size_t shard = 0; shard < layout.shards.size(); ++shard) {
    const auto path = path_of_shard(layout, shard);
    const auto file = storage.open(path, Access::ReadWrite).value();
    REQUIRE(recover(storage, path, *file));
  }
}

}  // namespace

TEST_CASE("edits of hosts and users survive every crash, and no plain reader is misled",
          "[crash][edit][hosts][exhaustive]") {
  EditHostsCounts all;
  for (const EditHostsScenario& scenario : edit_hosts_scenarios()) {
    INFO(scenario.name);
    EditHostsCounts counts;
    for (std::uint64_t seed = 0; seed < kSchedulesOfScenario; ++seed) {
      if (!is_todays(seed)) continue;
      if (const auto wrong = run_edit_hosts(scenario, seed, counts)) {
        FAIL_CHECK("seed " << seed << ": " << *wrong);
        break;
      }
    }
    CHECK(counts.schedules >= kSchedulesOfScenario / kShares);
    CHECK(counts.edits > 0);
    CHECK(counts.patches > 0);
    CHECK((counts.kills > 0) == (scenario.kills_one_in > 0));
    CHECK((counts.host_crashes > 0) == (scenario.crashes_one_in > 0));
    CHECK(counts.judged.in_recovery > 0);
    all += counts;
  }
  CHECK(all.compactions > 0);
  CHECK(all.stale > 0);
  CHECK(all.judged.hidden > 0);
  WARN(all.schedules << " schedules, " << all.edits << " edits, " << all.patches << " patches, "
                     << all.compactions << " compactions, " << all.refused << " refused for a time ("
                     << all.stale << " because others had changed the structure), " << all.kills << " kills, "
                     << all.host_crashes << " crashes of a host; " << all.judged.states << " states, "
                     << all.judged.in_recovery << " after a crash of a recovery, " << all.judged.hidden
                     << " hidden archives");
}

TEST_CASE("an edit of one shard finds what a dead one of another shard has committed to the index",
          "[crash][edit]") {
  const EditedModel layout = two_shards();
  DiskModel disk;
  RandomChoices choices(1);
  put_model(disk, layout, {}, choices);
  const auto victim = disk.start_process();
  Before dies([&](const SeamCall& call) {
    if (call.kind == FileCall::Rename) victim->kill();
  });
  InterceptedStorage storage(*victim, dies);
  const auto survivor = disk.start_process();
  OpenEdit late(layout, *survivor);
  REQUIRE(late.edit.rename(std::vector<ModelEdit::Renaming>{{"a1", "c1"}}));
  REQUIRE(late.edit.begin(true));
  {
    OpenEdit dead(layout, storage);
    REQUIRE(dead.edit.rename(std::vector<ModelEdit::Renaming>{{"a0", "c0"}}));
    REQUIRE(dead.edit.begin(true));
    REQUIRE_FALSE(dead.edit.commit(commit_options(Durability::Power)));
  }
  CHECK(errno_of(late.edit.commit(commit_options(Durability::Power))) == ESTALE);
  recover_shards(layout, *survivor);
  const auto plain = model_in(disk.image(), layout);
  REQUIRE(plain);
  CHECK(plain->shards[0].tensors.contains("c0"));
  CHECK_FALSE(index_mistake(disk.image(), *plain));
}

TEST_CASE("an archive opens while somebody recovers the edit of a dead writer", "[crash][edit]") {
  const EditedModel layout{{two_shards().shards[0]}};
  DiskModel disk;
  RandomChoices choices(1);
  put_model(disk, layout, {}, choices);
  const auto set = [&](Storage& storage, const char* value) {
    OpenEdit edit(layout, storage);
    REQUIRE(edit.edit.set_metadata("key", value));
    REQUIRE(edit.edit.begin(true));
    return edit.edit.commit(commit_options(Durability::Power)).has_value();
  };
  const auto other = disk.start_process();
  REQUIRE(set(*other, "first"));  // the header has room from then on
  const auto victim = disk.start_process();
  unsigned synced = 0;
  Before dies([&](const SeamCall& call) {
    // The last sync but one: only the length of the header is missing.
    if (call.kind == FileCall::Sync && call.role == FileRole::Archive && ++synced == 3) victim->kill();
  });
  InterceptedStorage dying(*victim, dies);

  const auto late = disk.start_process();
  unsigned locked = 0;
  bool is_unlocked = false;
  Before meanwhile([&](const SeamCall& call) {
    // The process has looked for journals, and is about to read the header.
    if (call.kind == FileCall::Lock && ++locked == 2) REQUIRE_FALSE(set(dying, "second"));
    if (locked == 2 && call.kind == FileCall::Read && std::exchange(is_unlocked, false))
      recover_shards(layout, *other);
    is_unlocked = is_unlocked || call.kind == FileCall::Unlock;
  });
  InterceptedStorage watched(*late, meanwhile);
  const auto opened = open_model(layout, Access::ReadWrite, watched);
  INFO((opened ? "" : text_of(opened.error())));
  REQUIRE(opened);
  CHECK((*opened)->metadata() == Metadata{{"key", "second"}});
}

TEST_CASE("the judge of edits finds what is lost and what is torn", "[crash][edit][hosts]") {
  const EditedModel first = two_shards();
  EditLog log(first);
  const auto patch = [&](std::uint32_t shard, const std::string& name, char byte) {
    ModelStep step{.is_patch = true, .before = first};
    step.parts[shard].after = first.shards[shard];
    for (const auto& [other, value] : first.shards[shard].tensors)
      if (other != name) step.parts[shard].kept[other] = other;
    step.parts[shard].after.tensors[name].bytes = std::string(5000, byte);
    return step;
  };
  const auto with = [&](EditedModel model, std::uint32_t shard, const std::string& name, char byte) {
    model.shards[shard].tensors[name].bytes = std::string(5000, byte);
    return model;
  };
  const auto allows = [](const EditLog& one, const EditedModel& model) {
    const auto allowed = one.allowed();
    return std::ranges::find(allowed, model) != allowed.end();
  };
  const std::size_t one = log.begin(patch(0, "a0", '1'));
  CHECK(allows(log, first));
  CHECK(allows(log, with(first, 0, "a0", '1')));
  log.end(one, EditLog::Fate::Done);
  CHECK_FALSE(allows(log, first));
  const std::size_t two = log.begin(patch(0, "a0", '2'));
  log.end(two, EditLog::Fate::Unknown);
  CHECK(allows(log, with(first, 0, "a0", '1')));
  CHECK(allows(log, with(first, 0, "a0", '2')));
  EditLog settled = log;
  settled.settle(log.dead());
  CHECK(allows(settled, with(first, 0, "a0", '2')));
  const std::size_t three = log.begin(patch(0, "b0", '3'));
  log.end(three, EditLog::Fate::Done);
  CHECK(allows(log, with(with(first, 0, "a0", '2'), 0, "b0", '3')));
  CHECK_FALSE(allows(log, with(first, 0, "a0", '2')));
  const std::size_t four = log.begin(patch(1, "a1", '4'));
  log.end(four, EditLog::Fate::Refused);
  CHECK_FALSE(allows(log, with(with(with(first, 0, "a0", '2'), 0, "b0", '3'), 1, "a1", '4')));

  // An edit that was made for another structure can't be done.
  ModelStep renaming{.changes_index = true, .before = first};
  renaming.parts[1].after.tensors = {{"c1", first.shards[1].tensors.at("a1")},
                                     {"b1", first.shards[1].tensors.at("b1")}};
  renaming.parts[1].kept = {{"c1", "a1"}, {"b1", "b1"}};
  const std::size_t five = log.begin(renaming);
  const std::size_t six = log.begin(renaming);
  log.end(five, EditLog::Fate::Done);
  CHECK_FALSE(log.allowed().empty());
  log.end(six, EditLog::Fate::Done);
  CHECK(log.allowed().empty());
}

}  // namespace stfs::test
