// Journals of other boots and hosts, on stores without birth times, and journals that this process may not
// remove.
#include "core/journal/journal_verdict.h"

#include <unistd.h>

#include <algorithm>
#include <string>
#include <vector>

#include "core/archive/archive.h"
#include "core/commit/transaction.h"
#include "core/journal/group_record.h"
#include "core/journal/journal_access.h"
#include "core/journal/journal_file.h"
#include "tests/core/planted_scene.h"
#include "tests/support/catch.h"

using namespace stfs;
using namespace stfs::test;

TEST_CASE("what a lost boot has left empty is removed", "[core][recovery]") {
  const Scene scene;
  const bool is_lane_journal = GENERATE(false, true);
  const std::size_t size = is_lane_journal ? 0 : GENERATE(0, 100, 4096, 20000);
  const std::string name = journal_prefix("m.safetensors") + JournalId::random().text() +
                           std::string(is_lane_journal ? kLaneJournalSuffix : "");
  const std::string journal = scene.directory.write(name, std::string(size, '\0'));
  CHECK(scene.obstacle().value() == Obstacle::DeadOwner);
  CHECK(scene.recover_one().action == JournalAction::Removed);
  CHECK_FALSE(std::filesystem::exists(journal));
  CHECK(scene.obstacle().value() == Obstacle::None);
}

TEST_CASE_METHOD(Planted,
                 "a commit of an earlier boot with durability=process finishes what it had begun, no more",
                 "[core][recovery]") {
  WatchedStorage later({}, later_boot());
  SECTION("the archive has only old blocks") {
    CHECK(scene.recover_one(later).action == JournalAction::Removed);
    CHECK(content_of(scene.path) == scene.before);
  }
  SECTION("it has a block of each") {
    scene.write(kBlockBytes, std::string(kBlockBytes, 'n'));
    CHECK(scene.recover_one(later).action == JournalAction::Applied);
    CHECK(content_of(scene.path) == scene.patched());
  }
  SECTION("it has newer bytes") {
    scene.write(2 * kBlockBytes + 50, "newer");
    const std::string now = content_of(scene.path);
    CHECK(scene.obstacle(later).value() == Obstacle::DeadOwner);
    CHECK(scene.recover_one(later).action == JournalAction::Removed);
    CHECK(content_of(scene.path) == now);
  }
  SECTION("its own bytes did not reach the disk") {
    overwrite(journal, 2 * kBlockBytes, "X");
    CHECK(scene.recover_one(later).action == JournalAction::Removed);
    CHECK(content_of(scene.path) == scene.before);
  }
  SECTION("its record did not reach the disk") {
    overwrite(journal, std::filesystem::file_size(journal) - 8, std::string(8, '\0'));
    CHECK(scene.recover_one(later).action == JournalAction::Removed);
  }
  SECTION("in the boot that made it, it counts whatever the archive has") {
    scene.write(2 * kBlockBytes + 50, "newer");
    CHECK(scene.recover_one().action == JournalAction::Applied);
    CHECK(content_of(scene.path) == scene.patched());
    return;
  }
  CHECK_FALSE(std::filesystem::exists(journal));
}

TEST_CASE("a copy of a group record commits nothing", "[core][recovery][group_record]") {
  const Scene scene;
  const std::string name = ".m.safetensors.stj." + std::string(32, '0') + ".group";
  const auto journal =
      plant_journal(scene.path, kBlockBytes, std::string(2 * kBlockBytes, 'n'), {}, system_storage(), name);
  scene.directory.write(name, group_record_for(scene.directory / name, {journal.filename().string()}));
  const bool is_copy = GENERATE(false, true);
  if (is_copy) {
    std::filesystem::copy_file(scene.directory / name, scene.directory / "copy");
    std::filesystem::rename(scene.directory / "copy", scene.directory / name);
  }
  const std::vector<JournalReport> reports = scene.recover_all().value();
  for (const JournalReport& report : reports) {
    if (report.path != journal) continue;
    CHECK(report.state == (is_copy ? JournalState::Damaged : JournalState::Committed));
    CHECK((report.explanation.find(kOfOtherFile) != std::string::npos) == is_copy);
  }
  CHECK(content_of(scene.path) == (is_copy ? scene.before : scene.patched()));
}

TEST_CASE("a second journal of an archive that names the same group record is damaged",
          "[core][recovery][group_record]") {
  const Scene scene;
  const std::string name = ".m.safetensors.stj." + std::string(32, '0') + ".group";
  std::vector<std::string> journals;
  for (int at = 0; at < 3; ++at) {
    journals.push_back(
        plant_journal(scene.path, kBlockBytes, std::string(2 * kBlockBytes, 'n'), {}, system_storage(), name)
            .filename());
  }
  scene.directory.write(name, group_record_for(scene.directory / name, journals));
  const auto found = scan_journals(system_storage(), scene.path, *scene.open()).value();
  const auto count = [&](JournalState state) {
    return std::ranges::count(found, state, [](const FoundJournal& one) { return one.report.state; });
  };
  CHECK(found.size() == 3);
  CHECK(count(JournalState::Committed) == 1);
  CHECK(count(JournalState::Damaged) == 2);
}

TEST_CASE("a commit that waits for a group record which was lost with its boot is lost with it",
          "[core][recovery][group_record]") {
  const Scene scene;
  const std::string name = ".m.safetensors.stj." + std::string(32, '0') + ".group";
  const auto journal =
      plant_journal(scene.path, kBlockBytes, std::string(2 * kBlockBytes, 'n'), {}, system_storage(), name);
  const std::string whole = group_record_for(scene.directory / name, {journal.filename().string()});
  const bool is_empty = GENERATE(true, false);
  const std::string group_record =
      scene.directory.write(name, is_empty ? "" : whole.substr(0, whole.size() - 1));
  // In the boot that made it, a damaged record is not the result of a power loss.
  CHECK(scene.obstacle().has_value() == is_empty);
  WatchedStorage later({}, later_boot());
  CHECK(scene.obstacle(later).value() == (is_empty ? Obstacle::None : Obstacle::DeadOwner));
  const auto file = later.open(scene.path, Access::ReadWrite).value();
  REQUIRE(recover(later, scene.path, *file));
  CHECK_FALSE(std::filesystem::exists(journal));
  CHECK(std::filesystem::exists(group_record) != is_empty);
  CHECK(content_of(scene.path) == scene.before);
  CHECK(scene.obstacle(later).value() == Obstacle::None);
}

TEST_CASE("part of a transaction that was never committed goes, also when the archive was edited since",
          "[core][recovery][group_record]") {
  const Scene scene;
  const std::string name = ".m.safetensors.stj." + std::string(32, '0') + ".group";
  const bool is_committed = GENERATE(false, true);
  const auto journal = plant_journal(
      scene.path, kBlockBytes, std::string(2 * kBlockBytes, 'n'),
      [](ArchiveStamp& stamp) { stamp.header_hash ^= 1U; }, system_storage(), name);
  if (is_committed) {
    scene.directory.write(name, group_record_for(scene.directory / name, {journal.filename().string()}));
  }
  const JournalReport report = scene.recover_one();
  CHECK(report.state == (is_committed ? JournalState::Foreign : JournalState::Unfinished));
  CHECK(report.action == (is_committed ? JournalAction::None : JournalAction::Removed));
  CHECK(std::filesystem::exists(journal) == is_committed);
  CHECK(scene.is_untouched());
}

TEST_CASE("a journal whose name may not be removed here is made void, and is in nobody's way",
          "[core][recovery]") {
  const Scene scene;
  const int why = GENERATE(EPERM, EACCES);
  const bool is_part = GENERATE(false, true);  // of a transaction that was never committed
  const bool is_lost = is_part || GENERATE(false, true);
  const std::string group_record = is_part ? ".m.safetensors.stj." + std::string(32, '0') + ".group" : "";
  const auto journal = plant_journal(scene.path, kBlockBytes, std::string(2 * kBlockBytes, 'n'), {},
                                     system_storage(), group_record);
  WatchedStorage sticky(fails(FileCall::Remove, why),
                        is_lost && !is_part ? later_boot() : system_storage().boot());
  const JournalReport report = scene.recover_one(sticky);
  CHECK(report.action == (is_lost ? JournalAction::None : JournalAction::Applied));
  CHECK(report.is_left_void);
  CHECK(report.settlers == settlers_of(status_of(::geteuid(), 0, 0)));
  CHECK(content_of(scene.path) == (is_lost ? scene.before : scene.patched()));
  CHECK(content_of(journal.string()).substr(0, kBlockBytes) == std::string(kBlockBytes, '\0'));
  // A process that has not made the journal void itself does not trust a void head.
  CHECK(scene.obstacle(sticky).value() == Obstacle::DeadOwner);
  const auto file = sticky.open(scene.path, Access::ReadWrite).value();
  const ByteRange block{kBlockBytes, kBlockBytes};
  CHECK(find_obstacle(sticky, scene.path, *file, std::span(&block, 1), {}, std::span(&journal, 1)).value() ==
        Obstacle::None);
  const JournalReport again = scene.recover_one(sticky);
  CHECK(again.state == JournalState::Unfinished);
  CHECK(again.is_left_void);
  CHECK(scene.recover_one().action == JournalAction::Removed);
  CHECK_FALSE(std::filesystem::exists(journal));
}

TEST_CASE("commits go on beside journals that may not be removed here", "[core][recovery][transaction]") {
  const Scene scene;
  const auto first = scene.plant();
  int refused = 1;  // the number of refused removals; a commit removes its own journal
  WatchedStorage sticky([&](const SeamCall& call) {
    const bool is_refused = call.kind == FileCall::Remove && refused-- > 0;
    return is_refused ? Verdict{Verdict::Kind::Fail, EPERM} : Verdict{};
  });
  const auto archive = Archive::open(scene.path, Access::ReadWrite, sticky).value();
  CHECK(archive->recovered().at(0).is_left_void);
  const auto commit = [&](char fill) {
    Transaction transaction(*archive);
    const std::string bytes(3 * kBlockBytes, fill);
    ReaderWriterLock lock;
    REQUIRE(transaction.stage(TensorId{}).value()->write(std::as_bytes(std::span(bytes)), 0));
    REQUIRE(transaction.commit({}, [&](TensorId) -> ReaderWriterLock& { return lock; }));
    CHECK(content_of(scene.path).substr(kBlockBytes) == bytes);
  };
  commit('a');
  const auto second = scene.plant();
  refused = 2;
  commit('b');
  commit('c');
  CHECK(std::filesystem::exists(first));
  CHECK(std::filesystem::exists(second));
}

TEST_CASE("another host's commit with durability=process is no lost one", "[core][recovery]") {
  const Scene scene;
  WatchedStorage here({}, boot_of_host(1));
  const auto journal = scene.plant({}, here);
  WatchedStorage elsewhere({}, boot_of_host(2));
  SECTION("where that may be this host, it is lost") {
    WatchedStorage unknown({}, boot_of_host(0));
    CHECK(scene.recover_one(unknown).action == JournalAction::Removed);
    CHECK(content_of(scene.path) == scene.before);
  }
  SECTION("its blocks are known") {
    CHECK(scene.recover_one(elsewhere).action == JournalAction::Applied);
    CHECK(content_of(scene.path) == scene.patched());
  }
  SECTION("they are not") {
    scene.write(2 * kBlockBytes + 50, "newer");
    const JournalReport report = scene.recover_one(elsewhere);
    CHECK(report.state == JournalState::Foreign);
    CHECK(report.blocks_commits);
    CHECK_FALSE(scene.obstacle(elsewhere));
    CHECK(std::filesystem::exists(journal));
  }
}

TEST_CASE("without birth times the archive's blocks tell whose journal it is, and never the device",
          "[core][recovery]") {
  const Scene scene;
  SECTION("each block is old or new, on another host") {
    const auto journal = scene.plant([](ArchiveStamp& stamp) {
      stamp.birth_ns = 0;
      stamp.device += 5;
      stamp.inode += 5;
    });
    scene.write(kBlockBytes, std::string(kBlockBytes, 'n'));
    CHECK(scene.recover_one().action == JournalAction::Applied);
    CHECK(content_of(scene.path) == scene.patched());
  }
  SECTION("a block is neither") {
    const auto journal = scene.plant([](ArchiveStamp& stamp) { stamp.birth_ns = 0; });
    scene.write(2 * kBlockBytes, std::string(kBlockBytes, 'x'));
    const std::string now = content_of(scene.path);
    const JournalReport report = scene.recover_one();
    CHECK(report.state == JournalState::Foreign);
    CHECK(report.blocks_commits);
    CHECK_FALSE(report.next_step.empty());
    CHECK_FALSE(scene.obstacle());
    CHECK(content_of(scene.path) == now);
    CHECK(std::filesystem::exists(journal));
  }
  SECTION("a loss of power has torn a block at a sector") {
    const auto journal = scene.plant([](ArchiveStamp& stamp) { stamp.birth_ns = 0; });
    scene.write(2 * kBlockBytes, std::string(512, 'n') + std::string(512, 'x'));
    CHECK(scene.recover_one().action == JournalAction::Applied);
    CHECK(content_of(scene.path) == scene.patched());
  }
  SECTION("the same bytes in another inode are no torn block") {
    const auto journal = scene.plant([](ArchiveStamp& stamp) {
      stamp.birth_ns = 0;
      stamp.inode += 5;
    });
    scene.write(2 * kBlockBytes, std::string(512, 'n') + std::string(512, 'x'));
    CHECK(scene.recover_one().blocks_commits);
  }
  SECTION("another size is another archive") {
    const auto journal = scene.plant([](ArchiveStamp& stamp) {
      stamp.birth_ns = 0;
      stamp.size_bytes += kBlockBytes;
    });
    const JournalReport report = scene.recover_one();
    CHECK(report.state == JournalState::Foreign);
    CHECK_FALSE(report.blocks_commits);
  }
}
