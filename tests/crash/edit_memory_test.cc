// Out of memory at every allocation of an edit and of a commit, once and from then on: no exception leaves
// core, and the model is the old one or the new one, and takes the next edit.
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/archive/archive.h"
#include "core/archive/archive_writer.h"
#include "core/journal/file_lock.h"
#include "core/model/delta_base.h"
#include "core/model/model_edit.h"
#include "core/model/transaction_group.h"
#include "tests/crash/workload.h"
#include "tests/support/allocation_faults.h"
#include "tests/support/catch.h"
#include "tests/support/model_content.h"
#include "tests/support/plain.h"
#include "tests/support/share_of_day.h"
#include "tests/support/temporary_directory.h"

namespace stfs::test {
namespace {

using Tensors = std::map<std::string, std::string>;  // bytes by name

const std::string kNewBytes(5000, 'n');

void write_archive(const std::string& path, const Tensors& tensors) {
  std::vector<TensorSpec> specs;
  for (const auto& [name, bytes] : tensors) specs.push_back({name, Dtype::U8, {bytes.size()}});
  auto writer = ArchiveWriter::create(path, specs, {}, true).value();
  for (const auto& [name, bytes] : tensors) REQUIRE(writer.append(bytes_of(bytes)));
  REQUIRE(writer.finish());
}

/// A model on the disk. Each fault gets a new one.
struct Scene {
  TemporaryDirectory directory;
  std::string source;
  std::vector<std::filesystem::path> deltas = {};

  [[nodiscard]] std::unique_ptr<Model> open() const {
    auto model = Model::open(source, {.access = Access::ReadWrite, .deltas = deltas});
    if (!model) throw std::runtime_error(model.error().message);
    return std::move(*model);
  }
  [[nodiscard]] Tensors tensors() const {
    Tensors found;
    const auto model = open();
    for (const std::string& name : names_of(*model)) found[name] = tensor_content(*model, name);
    return found;
  }
};

const Tensors kFirst = {{"a", std::string(3000, 'a')}, {"b", std::string(6000, 'b')}};
const Tensors kSecond = {{"c", std::string(4000, 'c')}, {"d", std::string(100, 'd')}};

Tensors all_tensors() {
  Tensors all = kFirst;
  all.insert(kSecond.begin(), kSecond.end());
  return all;
}

using MakeScene = std::unique_ptr<Scene> (*)();

std::unique_ptr<Scene> scene_of_archive() {
  auto scene = std::make_unique<Scene>();
  scene->source = scene->directory / "model.safetensors";
  write_archive(scene->source, all_tensors());
  return scene;
}

std::unique_ptr<Scene> scene_of_shards() {
  auto scene = std::make_unique<Scene>();
  write_archive(scene->directory / "s1.safetensors", kFirst);
  write_archive(scene->directory / "s2.safetensors", kSecond);
  scene->source = scene->directory.write("model.safetensors.index.json",
                                         R"({"metadata":{"total_size":13100},"weight_map":{)"
                                         R"("a":"s1.safetensors","b":"s1.safetensors",)"
                                         R"("c":"s2.safetensors","d":"s2.safetensors"}})");
  return scene;
}

std::unique_ptr<Scene> scene_of_delta() {
  auto scene = scene_of_archive();
  scene->deltas = {scene->directory / "delta.safetensors"};
  REQUIRE(create_delta(scene->deltas.front(), *Model::open(scene->source, {}).value(), ""));
  return scene;
}

const std::vector<ModelEdit::Renaming> kRenamings = {{"c", "another, longer name of a tensor"}};
const std::optional<std::string> kValue = "and a value of some length";

Result<void> put_new(ModelEdit& edit) {
  return guard_memory([&] { return edit.put("new", Dtype::U8, {kNewBytes.size()}); });
}

/// Removes all tensors of the first shard, renames a tensor of the second shard, and makes a tensor.
Result<void> change_names(const Model& model) {
  auto edit = ModelEdit::of(model);
  if (!edit) return pass_on(std::move(edit));
  for (const std::string_view name : {"a", "b"}) {
    if (auto removed = edit->remove(name); !removed) return removed;
  }
  if (auto renamed = edit->rename(kRenamings); !renamed) return renamed;
  if (auto made = put_new(*edit); !made) return made;
  if (auto set = edit->set_metadata("a key of some length", kValue); !set) return set;
  if (auto begun = edit->begin(true); !begun) return begun;
  Staging* const stage = edit->stage("new");
  REQUIRE(stage != nullptr);
  if (auto staged = stage->write(bytes_of(kNewBytes), 0); !staged) return staged;
  return edit->commit(commit_options(Durability::Power));
}

const Tensors kOtherNames = {
    {"another, longer name of a tensor", kSecond.at("c")}, {"d", kSecond.at("d")}, {"new", kNewBytes}};

/// Writes one tensor of each shard.
Result<void> write_bytes(const Model& model) {
  static const std::string bytes(6000, 'w');
  static const CommitOptions options = commit_options(Durability::Power);
  static ReaderWriterLock lock;
  static const TransactionGroup::OptionsOf options_of = [](std::uint32_t) -> Result<CommitOptions> {
    return options;
  };
  static const TransactionGroup::LockOf lock_of = [](TensorPlace) -> ReaderWriterLock& { return lock; };
  std::optional<TransactionGroup> group;
  // A constructor has no other way to fail.
  auto made = guard_memory([&]() -> Result<void> {
    group.emplace(model);
    return {};
  });
  if (!made) return made;
  for (const std::string_view name : {"a", "d"}) {
    const TensorId id = model.find(name).value();
    auto stage = group->stage(model.place(id));
    if (!stage) return pass_on(std::move(stage));
    const auto part = bytes_of(bytes).first(model.tensor(id).data.size_bytes);
    if (auto staged = (*stage)->write(part, 0); !staged) return staged;
  }
  return group->commit(options_of, lock_of);
}

Tensors other_bytes() {
  Tensors tensors = all_tensors();
  for (const std::string name : {"a", "d"}) tensors[name] = std::string(tensors[name].size(), 'w');
  return tensors;
}

/// @return whether the fault occurred.
bool fail_once(MakeScene make_scene, Result<void> (*change)(const Model&), const Tensors& after,
               std::uint64_t nth, bool is_for_good) {
  INFO("allocation " << nth << (is_for_good ? ", for good" : ""));
  const auto scene = make_scene();
  auto model = scene->open();
  Result<void> done;
  bool has_failed = false;
  {
    const AllocationFaults faults(nth, is_for_good);
    try {
      done = change(*model);
    } catch (const std::bad_alloc&) {
      done = fail(ErrorCode::CommitUnknown, ENOMEM, "");
    }
    has_failed = AllocationFaults::has_failed();
  }
  if (!done) {
    INFO(done.error().message);
    CHECK(done.error().code != ErrorCode::CommitUnknown);
    // The same program may retry if nothing was committed.
    if (const auto again = change(*model)) done = again;
  }
  model.reset();
  const Tensors found = scene->tensors();
  const bool is_one_of_both = found == after || (!done && found == all_tensors());
  CHECK(is_one_of_both);
  if (found == all_tensors()) CHECK(change(*scene->open()));
  CHECK(scene->tensors() == after);
  for (const auto& entry : std::filesystem::directory_iterator(scene->directory.path()))
    CHECK(entry.path().filename().native().front() != '.');
  return has_failed;
}

void fail_each(MakeScene make_scene, Result<void> (*change)(const Model&), const Tensors& after) {
  for (const bool is_for_good : {false, true}) {
    std::uint64_t nth = 1 + day() % kShares;
    while (fail_once(make_scene, change, after, nth, is_for_good))
      nth += std::getenv("STFS_LONG") != nullptr ? 1 : kShares;
    CHECK(nth > 100);
  }
}

}  // namespace

TEST_CASE("an edit of an archive without memory is done or not", "[crash][memory]") {
  fail_each(scene_of_archive, change_names, kOtherNames);
}

TEST_CASE("an edit of shards without memory is done or not", "[crash][memory]") {
  fail_each(scene_of_shards, change_names, kOtherNames);
}

TEST_CASE("an edit of a delta without memory is done or not", "[crash][memory]") {
  fail_each(scene_of_delta, change_names, kOtherNames);
}

TEST_CASE("a commit of shards without memory is done or not", "[crash][memory]") {
  fail_each(scene_of_shards, write_bytes, other_bytes());
}

TEST_CASE("an archive that can't be opened for writing still tells others that it is read",
          "[crash][memory][archive]") {
  const auto scene = scene_of_archive();
  const auto other = system_storage().open(scene->source, Access::ReadWrite).value();
  std::uint64_t failures = 0;
  for (std::uint64_t nth = 1;; ++nth) {
    CAPTURE(nth);
    const auto archive = Archive::open(scene->source, Access::ReadWrite).value();
    Result<void> opened;
    bool has_failed = false;
    {
      const AllocationFaults faults(nth, false);
      opened = archive->open_for_writing();
      has_failed = AllocationFaults::has_failed();
    }
    CHECK(other->is_locked_by_other(kReadersByte, LockKind::Exclusive) == true);
    REQUIRE(archive->open_for_writing());
    CHECK(other->is_locked_by_other(kReadersByte, LockKind::Exclusive) == true);
    if (!has_failed) break;
    failures += opened ? 0U : 1U;
  }
  CHECK(failures > 3);
}

}  // namespace stfs::test
