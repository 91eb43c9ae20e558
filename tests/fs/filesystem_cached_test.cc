// Tests that only entries that the kernel may have in its caches are invalidated, and that a refused request
// makes nothing stale.
#include <vector>

#include "tests/fs/transacted.h"
#include "tests/support/catch.h"
#include "tests/support/faulty_storage.h"

using namespace stfs;
using namespace stfs::test;

namespace {

using Told = std::vector<std::pair<Ino, Stale::What>>;

Told cached_of(const MountedModel& filesystem, Stale::What what, std::uint32_t tensors) {
  Told told;
  filesystem.visit_cached(
      {InodeTable::ino_of_tensor(TensorId{}), InodeTable::ino_of_tensor(TensorId{tensors}) - 1, what},
      [&](Ino ino, Stale::What its) { told.emplace_back(ino, its); });
  return told;
}

}  // namespace

TEST_CASE("of many tensors those are forgotten that the kernel was told of", "[fs][filesystem][cached]") {
  Tensors tensors;
  for (int at = 0; at < 1000; ++at) tensors.emplace_back(fmt::format("t{}", at), "bytes");
  const DrivenFilesystem mount(tensors);
  constexpr auto kAttributes = Stale::What::Attributes;
  constexpr auto kContent = Stale::What::Content;
  CHECK(cached_of(*mount, kContent, 1000).empty());
  const Ino looked_up = mount.ino("t17");
  const Ino read = mount.ino("t500");
  REQUIRE(mount->read(read, 0, 5));
  CHECK(cached_of(*mount, kAttributes, 1000) == Told{{looked_up, kAttributes}, {read, kAttributes}});
  // The attributes are dropped. Until the next reply only the bytes can be invalidated.
  CHECK(cached_of(*mount, kAttributes, 1000).empty());
  mount->note_told(looked_up);
  CHECK(cached_of(*mount, kContent, 1000) == Told{{looked_up, kAttributes}, {read, kContent}});
  CHECK(cached_of(*mount, kContent, 1000).empty());
  // Files that are not tensors are always reported.
  Told told;
  mount->visit_cached({kViews, kCommitted, kAttributes},
                      [&](Ino ino, Stale::What what) { told.emplace_back(ino, what); });
  CHECK(told == Told{{kViews, kAttributes}, {kTransactions, kAttributes}, {kCommitted, kAttributes}});
}

TEST_CASE("the directory of a file is known while a look-up of the file counts", "[fs][filesystem][cached]") {
  MountedModelOptions options;
  options.layout = Layout::Tree;
  const DrivenFilesystem mount({{"a.b", "bytes"}, {"c", "bytes"}}, options);
  const Ino directory = mount.ino("a");
  const Ino tensor = mount.ino("b", directory);
  CHECK(mount->directory_looked_up(tensor) == 0);
  mount->note_lookup(tensor);
  CHECK(mount->directory_looked_up(tensor) == directory);
  mount->forget(tensor, 1);
  CHECK(mount->directory_looked_up(tensor) == 0);
  // Look-ups of directories are not counted.
  CHECK(mount->directory_looked_up(directory) == kRootIno);
  CHECK(mount->directory_looked_up(kHiddenIno) == kRootIno);
  CHECK(mount->directory_looked_up(kRootIno) == kRootIno);
  CHECK(mount->directory_looked_up(Views::kNpy) == kHiddenIno);
  CHECK(mount->directory_looked_up(Views::kHeaderJson) == kHiddenIno);
  // The kernel keeps no attributes of these.
  CHECK(mount->directory_looked_up(kTransactions) == 0);
  CHECK(mount->directory_looked_up(PretrainedDirectory::kDirectory) == 0);
}

TEST_CASE_METHOD(Mounted, "a change is counted before it is told", "[fs][filesystem][cached]") {
  const std::uint64_t before = MountedModel::changes();
  mount.overwrite(mount.offset_of("first"), "x");
  CHECK(mount.notices_change());
  CHECK(MountedModel::changes() > before);
}

TEST_CASE("a refused transaction makes nothing stale", "[fs][filesystem][cached]") {
  const Transacted t;
  std::vector<Stale> told;
  t.mount->tell_stale_to([&](Stale stale) { told.push_back(stale); });
  const Ino directory = t.begin();
  CHECK(t.commit("absent") == ENOENT);
  {
    Member member(t.mount, directory, "first");
    CHECK(member.write(kNew, 0) == 0);
    CHECK(t.commit() == EBUSY);
    CHECK(member.close() == 0);
  }
  CHECK(t.stage(directory, "second", "short") == EINVAL);
  CHECK(t.commit() == ENODATA);
  CHECK(told.empty());
  CHECK(t.is_untouched());
}

TEST_CASE("a transaction that others were faster than makes only their change stale",
          "[fs][filesystem][cached]") {
  const Transacted t;
  std::vector<Stale> told;
  t.mount->tell_stale_to([&](Stale stale) { told.push_back(stale); });
  const Ino directory = t.begin();
  REQUIRE(t.stage(directory, "first") == 0);
  t.mount.overwrite(t.mount.offset_of("first"), "by others");
  CHECK(t.commit() == ESTALE);
  REQUIRE(told.size() == 1);
  CHECK(told.front().first == t.mount.ino("first"));
  CHECK(told.front().last == t.mount.ino("second"));
  told.clear();
  CHECK(t.commit() == ESTALE);
  CHECK(told.empty());
}
