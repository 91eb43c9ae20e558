#include "core/journal/left_journals.h"

#include "core/journal/group_record.h"
#include "core/journal/journal_file.h"
#include "core/journal/journal_format.h"
#include "core/journal/lane_journal.h"
#include "core/model/model.h"
#include "tests/core/journaled_archive.h"
#include "tests/support/catch.h"
#include "tests/support/temporary_directory.h"
#include "tests/support/watched_storage.h"

using namespace stfs;
using namespace stfs::test;

namespace {

std::vector<std::string> hidden_in(const std::filesystem::path& directory) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(directory)) {
    std::string name = entry.path().filename().string();
    if (name.front() == '.') names.push_back(std::move(name));
  }
  return names;
}

std::filesystem::path archive_beside(const std::filesystem::path& journal) {
  const auto names = DirectoryNames::list(system_storage(), journal.parent_path()).value();
  return names.archive_of(journal.filename()).value();
}

/// The name of a journal of an archive that does not exist.
std::string name_of_left(const std::string& archive, std::string_view suffix = "") {
  return "." + archive + ".stj." + JournalId::random().text() + std::string(suffix);
}

/// An archive that was renamed, and files that a process has left beside its old name.
struct Renamed {
  JournaledArchive archive;
  std::string new_path = archive.directory / "renamed.safetensors";

  void rename() const { std::filesystem::rename(archive.path, new_path); }
  void leave(const std::string& suffix, const std::string& content = "") const {
    archive.directory.write(journal_prefix("m.safetensors") + JournalId::random().text() + suffix, content);
  }
  [[nodiscard]] std::vector<std::string> left() const {
    const auto opened = Model::open(new_path, {.access = Access::ReadWrite});
    REQUIRE(opened);
    return hidden_in(archive.directory.path());
  }
};

}  // namespace

TEST_CASE_METHOD(Renamed, "what a dead process has left under an old name goes with the next opening",
                 "[core][left_journals]") {
  rename();
  SECTION("a lane journal") {
    const std::string zeros(kLaneJournalBytes, '\0');
    leave(std::string(kLaneJournalSuffix), zeros);
    CHECK(left().empty());
  }
  SECTION("a journal that is void, or empty") {
    leave("", std::string(3 * kBlockBytes, '\0'));
    leave("");
    CHECK(left().empty());
  }
  SECTION("a staged file, a group record without journals, a new index without its journal") {
    leave(std::string(kStagedSuffix), "bytes");
    leave(".group");
    leave(secret_name_part() + std::string(kNewIndexSuffix), "{}");
    CHECK(left().empty());
  }
  SECTION("void journals, each with its new index") {
    for (int at = 0; at < 4; ++at) {
      const std::string journal = journal_prefix("m.safetensors") + JournalId::random().text();
      archive.directory.write(journal, "");
      archive.directory.write(journal + secret_name_part() + std::string(kNewIndexSuffix), "{}");
    }
    CHECK(left().empty());
  }
}

TEST_CASE_METHOD(Renamed, "a journal under an old name stays while it may be needed",
                 "[core][left_journals]") {
  SECTION("it holds a commit") {
    archive.prepare();
    REQUIRE(archive.commit_block('n'));
    archive.lane_journal->give_up();  // its owner dies
    rename();
    CHECK(left().size() == 1);
    std::filesystem::rename(new_path, archive.path);
    new_path = archive.path;
    CHECK(left().empty());
  }
  SECTION("its owner lives") {
    archive.prepare();
    rename();
    CHECK(left().size() == 1);
    archive.lane_journal->give_up();
    CHECK(left().empty());
  }
  SECTION("it is somebody's own file") {
    rename();
    archive.directory.write(".m.safetensors.stj.notes", "");
    archive.directory.write(".hidden", "");
    CHECK(left().size() == 2);
  }
  SECTION("its archive is there") {
    leave(std::string(kStagedSuffix), "bytes");
    std::filesystem::copy(archive.path, new_path);
    CHECK(left().size() == 1);
  }
}

TEST_CASE_METHOD(Renamed, "an opening for reading leaves everything where it is", "[core][left_journals]") {
  leave(std::string(kStagedSuffix), "bytes");
  rename();
  REQUIRE(Model::open(new_path, {}));
  CHECK(hidden_in(archive.directory.path()).size() == 1);
}

TEST_CASE("journals of an archive with a long name are found", "[core][left_journals]") {
  const TemporaryDirectory directory;
  const std::string name = std::string(220, 'n') + ".safetensors";
  const std::filesystem::path journal = directory / (journal_prefix(name) + JournalId::random().text());
  CHECK(archive_beside(journal).empty());
  const std::string archive = directory.write(name, "");
  CHECK(archive_beside(journal) == archive);
}

TEST_CASE("names that look like those of a long archive cost no listing of the directory each",
          "[core][left_journals]") {
  const TemporaryDirectory directory;
  for (int at = 0; at < 10; ++at) {
    directory.write(name_of_left("zz~0123456789abcdef"), "");
    directory.write(name_of_left("zz~0123456789abcdef", secret_name_part() + std::string(kNewIndexSuffix)),
                    "{}");
  }
  WatchedStorage storage;
  remove_left_journals(storage, directory.path(), {}, false);
  CHECK(storage.count(FileCall::List) <= 2);
  CHECK(hidden_in(directory.path()).empty());
}

TEST_CASE("a file that another user may have linked under the names of group records is not read",
          "[core][left_journals]") {
  const TemporaryDirectory directory;
  const std::string record = directory.write("large", encode_group_record({{".zz.stj.1"}}));
  std::filesystem::create_hard_link(record, directory / name_of_left("zz", kGroupSuffix));
  std::filesystem::create_hard_link(record, directory / name_of_left("zz", kGroupSuffix));
  WatchedStorage storage;
  remove_left_journals(storage, directory.path(), {}, false);
  CHECK(storage.count(FileCall::Read) == 0);
  CHECK(hidden_in(directory.path()).size() == 2);
}

TEST_CASE("a group record stays while one of its journals is there", "[core][left_journals]") {
  const TemporaryDirectory directory;
  const std::string journal = name_of_left("zz");
  directory.write(journal, "bytes that are no zeros");
  const std::string kept =
      directory.write(name_of_left("zz", kGroupSuffix), encode_group_record({{journal}}));
  const std::string left =
      directory.write(name_of_left("zz", kGroupSuffix), encode_group_record({{name_of_left("zz")}}));
  remove_left_journals(system_storage(), directory.path(), {}, false);
  CHECK(std::filesystem::exists(kept));
  CHECK_FALSE(std::filesystem::exists(left));
}
