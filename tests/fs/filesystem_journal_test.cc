// Tests the journal that a mount keeps between small commits, and the notifications to its readers.
#include <fmt/format.h>

#include <optional>
#include <string>
#include <vector>

#include "core/journal/lane_scan.h"
#include "tests/fs/descriptor.h"
#include "tests/support/captured_stderr.h"
#include "tests/support/catch.h"
#include "tests/support/faulty_storage.h"

using namespace stfs;
using namespace stfs::test;

namespace {

std::string content(int round) {
  return fmt::format("round {:10}", round);
}

/// Writes and closes a file. Returns the result of the close, or throws.
Stale put(const DrivenFilesystem& mount, std::string_view name, std::string_view bytes,
          int access = O_WRONLY) {
  Descriptor writer(mount, name, access);
  if (auto written = writer.write(bytes, 0); !written) throw std::runtime_error(written.error().message);
  const auto closed = writer.close();
  if (!closed) throw std::runtime_error(closed.error().message);
  return *closed;
}

/// The journals beside the archive.
std::vector<std::filesystem::path> journals(const DrivenFilesystem& mount) {
  std::vector<std::filesystem::path> found;
  for (const auto& entry : std::filesystem::directory_iterator(mount.directory().path())) {
    if (entry.path().filename().string().find(".stj.") != std::string::npos) found.push_back(entry.path());
  }
  return found;
}

std::size_t records_in(const std::filesystem::path& journal) {
  const auto file = system_storage().open(journal, Access::ReadOnly).value();
  return read_lanes(*file).value().size();
}

/// Makes commits, of which the last ones use a journal that the mount keeps.
void commit_in_series(const DrivenFilesystem& mount) {
  for (int round = 0; round < 4; ++round) static_cast<void>(put(mount, "second", content(round)));
}

MountedModelOptions quick() {
  MountedModelOptions options;
  options.commit.durability = Durability::Process;
  return options;
}

}  // namespace

TEST_CASE("the journal of an archive that is renamed, replaced or deleted goes at once",
          "[fs][filesystem][journal]") {
  DrivenFilesystem mount(kTwoTensors, quick());
  commit_in_series(mount);
  REQUIRE(journals(mount).size() == 1);
  const std::filesystem::path path = mount.path();
  SECTION("renamed") {
    std::filesystem::rename(path, mount.directory() / "other.safetensors");
  }
  SECTION("deleted") {
    std::filesystem::remove(path);
  }
  SECTION("replaced") {
    const std::string copy = mount.directory() / "copy.safetensors";
    std::filesystem::copy(path, copy);
    std::filesystem::rename(copy, path);
  }
  static_cast<void>(mount->check_for_change(0));
  CHECK(journals(mount).empty());
}

TEST_CASE("a mount that commits little and often keeps one journal, void when tidied, gone in the end",
          "[fs][filesystem][journal]") {
  MountedModelOptions options;
  options.commit.durability = GENERATE(Durability::Power, Durability::Process);
  DrivenFilesystem mount(kTwoTensors, options);
  static_cast<void>(put(mount, "first", content(0)));
  CHECK(journals(mount).empty());  // a single commit leaves no journal
  for (int round = 1; round < 6; ++round) {
    static_cast<void>(put(mount, round % 2 == 0 ? "first" : "second", content(round)));
    REQUIRE(journals(mount).size() == 1);
    CHECK(mount.stored(round % 2 == 0 ? "first" : "second") == content(round));
  }
  const std::filesystem::path journal = journals(mount)[0];
  CHECK(journal.extension() == ".standing");
  CHECK(std::filesystem::file_size(journal) == kLaneJournalBytes);
  CHECK(records_in(journal) == 1);
  mount->tidy();
  CHECK(journals(mount) == std::vector{journal});
  CHECK(records_in(journal) == 0);
  static_cast<void>(put(mount, "first", content(6)));
  CHECK(journals(mount) == std::vector{journal});
  CHECK(records_in(journal) == 1);
  mount->end();
  CHECK(journals(mount).empty());
  CHECK(mount.read("first") == content(6));
  CHECK(mount.stored("first") == content(6));
  CHECK(mount.stored("second") == content(5));
}

TEST_CASE_METHOD(Mounted, "the end of a mount that has kept no journal is none either",
                 "[fs][filesystem][journal]") {
  mount->tidy();
  static_cast<void>(put(mount, "first", content(0)));
  mount->tidy();
  mount->end();
  CHECK(journals(mount).empty());
}

TEST_CASE("a mount that dies leaves its journal to the next, who finds every byte",
          "[fs][filesystem][journal]") {
  DrivenFilesystem mount;
  for (int round = 0; round < 4; ++round) static_cast<void>(put(mount, "first", content(round)));
  CHECK(journals(mount).size() == 1);
  mount.close();
  mount.overwrite(mount.offset_of("first"), kOld);  // as if the disk had lost what the journal has
  mount.open();
  CHECK(journals(mount).empty());
  CHECK(mount.read("first") == content(3));
}

TEST_CASE_METHOD(Mounted, "each commit tells whoever tidies", "[fs][filesystem][journal]") {
  int told = 0;
  mount->tell_commits_to([&] { ++told; });
  for (int round = 0; round < 4; ++round) {
    static_cast<void>(put(mount, "first", content(round)));
    CHECK(told == round + 1);
  }
  Descriptor idle(mount, "first", O_WRONLY);
  REQUIRE(idle.close());
  CHECK(told == 4);  // nothing was committed
}

TEST_CASE("where no journal can be kept each commit has one of its own", "[fs][filesystem][journal]") {
  const CapturedStderr captured;
  FaultyStorage storage;
  const DrivenFilesystem mount(kTwoTensors, {}, storage);
  static_cast<void>(put(mount, "first", content(0)));
  // The first file is the journal of the second commit, the second one is the journal to be kept.
  storage.plan().fail_call(FileCall::CreateUnnamed, 2, ENOSPC);
  static_cast<void>(put(mount, "first", content(1)));
  CHECK(storage.plan().failed() == FileCall::CreateUnnamed);
  CHECK(journals(mount).empty());
  CHECK_FALSE(captured.text().empty());
  CHECK(mount.stored("first") == content(1));
  static_cast<void>(put(mount, "first", content(2)));
  CHECK(mount.stored("first") == content(2));
  CHECK(journals(mount).size() == 1);  // there was room again
}

TEST_CASE("a settlement that fails is said, and the next commits go on", "[fs][filesystem][journal]") {
  const CapturedStderr captured;
  FaultyStorage storage;
  const DrivenFilesystem mount(kTwoTensors, {}, storage);
  for (int round = 0; round < 4; ++round) static_cast<void>(put(mount, "first", content(round)));
  storage.plan().fail_call(FileCall::Sync, 1, EIO);
  mount->tidy();
  CHECK(captured.contains("injected fault"));
  CHECK(journals(mount).empty());
  for (int round = 4; round < 8; ++round) {
    static_cast<void>(put(mount, "first", content(round)));
    CHECK(mount.stored("first") == content(round));
  }
  mount->end();
  CHECK(journals(mount).empty());
}

TEST_CASE("a mount that commits in series takes none of its own commits for somebody else's",
          "[fs][filesystem][journal]") {
  const CapturedStderr captured;
  const DrivenFilesystem mount(kTwoTensors, quick());
  std::vector<Stale> told;
  mount->tell_stale_to([&](Stale stale) { told.push_back(stale); });
  for (int series = 0; series < 3; ++series) {
    commit_in_series(mount);
    CHECK_FALSE(mount.notices_change());
    mount->tidy();
    CHECK_FALSE(mount.notices_change());
  }
  CHECK(told.empty());
  CHECK(captured.text().empty());
}

TEST_CASE("the next commit of a series notices a foreign change", "[fs][filesystem][journal]") {
  const CapturedStderr captured;
  const DrivenFilesystem mount(kTwoTensors, quick());
  commit_in_series(mount);
  mount.overwrite(mount.offset_of("first") + 9, "foreign");
  const std::uint64_t before = mount.generation("first");
  const Stale stale = put(mount, "second", content(999));
  CHECK(stale.what == Stale::What::Content);
  CHECK(stale.first == mount.ino("first"));
  CHECK(stale.last == mount.ino("second"));
  CHECK(mount.generation("first") > before);
  CHECK(mount.stored("first") == "AAAAAAAAAforeign");
  CHECK(mount.stored("second") == content(999));
  CHECK(captured.contains("changed by another program"));
}

TEST_CASE("a header that somebody else has changed is followed, after a series of commits too",
          "[fs][filesystem][journal]") {
  const CapturedStderr captured;
  const DrivenFilesystem mount(kTwoTensors, quick());
  commit_in_series(mount);
  mount.overwrite(8, R"({"FIRST")");
  if (GENERATE(false, true)) mount->tidy();
  const std::string foreign = content_of(mount.path());
  put(mount, "second", content(999));
  const std::uint64_t at = mount.offset_of("second");
  CHECK(content_of(mount.path()).substr(0, at) == foreign.substr(0, at));
  CHECK(mount.stored("second") == content(999));
  CHECK(mount.read("FIRST") == mount.stored("first"));
}

TEST_CASE("an archive that is replaced amid a series is not committed into", "[fs][filesystem][journal]") {
  const CapturedStderr captured;
  const DrivenFilesystem mount(kTwoTensors, quick());
  commit_in_series(mount);
  const std::string replacement = archive_of({{"first", kOld}, {"second", "replacement!!!!!"}});
  std::filesystem::rename(mount.directory().write("new", replacement), mount.path());
  CHECK_THROWS(put(mount, "second", content(999)));
  CHECK(content_of(mount.path()) == replacement);
}

TEST_CASE_METHOD(Mounted, "readers' cached pages are stale after a commit only where somebody has read",
                 "[fs][filesystem][journal]") {
  const auto is_about = [&](const Stale& stale, std::string_view name, Stale::What what) {
    return stale.what == what && stale.first == mount.ino(name) && stale.last == mount.ino(name);
  };
  CHECK(is_about(put(mount, "first", content(0)), "first", Stale::What::Attributes));
  CHECK(mount.read("first") == content(0));
  CHECK(is_about(put(mount, "second", content(1)), "second", Stale::What::Attributes));  // another tensor
  CHECK(is_about(put(mount, "first", content(2)), "first", Stale::What::Content));
  CHECK(is_about(put(mount, "first", content(3)), "first", Stale::What::Attributes));  // once
  for (int round = 4; round < 8; ++round) {
    CHECK(mount.read("first") == content(round - 1));
    CHECK(is_about(put(mount, "first", content(round)), "first", Stale::What::Content));
  }
}

TEST_CASE_METHOD(
    Mounted,
    "what a shared descriptor has written lies in the cache, so that another's commit makes it stale",
    "[fs][filesystem][journal]") {
  CHECK(put(mount, "first", content(0), O_RDWR).what == Stale::What::Attributes);  // by the same writes
  CHECK(put(mount, "first", content(1)).what == Stale::What::Content);
  CHECK(put(mount, "first", content(2)).what == Stale::What::Attributes);
  CHECK(put(mount, "first", content(3), O_RDWR).what == Stale::What::Attributes);
  CHECK(put(mount, "first", content(4)).what == Stale::What::Content);
}

TEST_CASE_METHOD(Mounted, "what is read while a writer is at work is stale when he has committed",
                 "[fs][filesystem][journal]") {
  Descriptor writer(mount, "first", O_WRONLY);
  REQUIRE(writer.write(content(0), 0));
  CHECK(mount.read("first") == kOld);
  CHECK(writer.close()->what == Stale::What::Content);
}

TEST_CASE("a commit that fails makes the tensor stale: it may show what was committed behind",
          "[fs][filesystem][journal]") {
  const CapturedStderr captured;
  FaultyStorage storage;
  const DrivenFilesystem mount(kTwoTensors, {}, storage);
  for (int round = 0; round < 4; ++round) static_cast<void>(put(mount, "first", content(round)));
  std::vector<Stale> told;
  mount->tell_stale_to([&](Stale stale) { told.push_back(stale); });
  storage.plan().fail_call(FileCall::Sync, 2, EIO);  // the archive's, behind the commit point
  CHECK_THROWS(put(mount, "first", content(4)));
  REQUIRE(told.size() == 1);
  CHECK(told[0].what == Stale::What::Content);
  CHECK(told[0].first == mount.ino("first"));
  CHECK(mount.read("first") == content(4));
  CHECK(journals(mount).size() == 1);
  storage.plan().fail_call(0, 0);
  CHECK_THROWS(put(mount, "second", content(5)));
  mount->tidy();
  mount->end();
  // The journal has the only whole copy of the change until a recovery.
  CHECK(journals(mount).size() == 1);
}

TEST_CASE("what another process commits during a series is noticed, by the next commit or the next look",
          "[fs][filesystem][journal]") {
  const bool goes_on = GENERATE(true, false);
  CAPTURE(goes_on);
  const CapturedStderr captured;
  // The tensors share no block. Otherwise the other process would have to wait for tidy().
  const DrivenFilesystem mount({{"first", kOld}, {"between", std::string(8192, '-')}, {"second", kOld}});
  std::vector<Stale> told;
  mount->tell_stale_to([&](Stale stale) { told.push_back(stale); });
  CHECK(mount.read("first") == kOld);
  commit_in_series(mount);
  REQUIRE(told.empty());
  {
    const auto other = Archive::open(mount->archive().path(), Access::ReadWrite).value();
    Transaction change(*other);
    REQUIRE((*change.stage(other->version()->find("first").value()))->write(bytes_of("from afar......."), 0));
    ReaderWriterLock lock;
    REQUIRE(change.commit({}, [&](TensorId) -> ReaderWriterLock& { return lock; }));
  }
  Stale seen;
  if (goes_on) {
    seen = put(mount, "second", content(999));
  } else {
    seen = mount->check_for_change().stale;
  }
  CHECK(seen.what == Stale::What::Content);
  CHECK(seen.first <= mount.ino("first"));
  CHECK(seen.last >= mount.ino("first"));
  CHECK(mount.read("first") == "from afar.......");

  // The mount is alone again: the next series is as fast as the first.
  mount->tidy();
  told.clear();
  commit_in_series(mount);
  mount->tidy();
  CHECK(told.empty());
}

TEST_CASE_METHOD(
    Mounted,
    "a kept journal is for those who could write the archive when it was made: another mode makes another "
    "one",
    "[fs][filesystem][journal]") {
  const auto mode_of = [](const std::filesystem::path& path) {
    return std::filesystem::status(path).permissions();
  };
  for (const auto mode : {std::filesystem::perms(0600), std::filesystem::perms(0666)}) {
    std::filesystem::permissions(mount.path(), mode);
    static_cast<void>(mount->check_for_change());
    CHECK(journals(mount).empty());
    commit_in_series(mount);
    REQUIRE(journals(mount).size() == 1);
    CHECK(mode_of(journals(mount).front()) == mode);
  }
}
