// stfs recover finishes commits where it can, explains the others, and keeps the archive whole.
#include <filesystem>
#include <nlohmann/json.hpp>

#include "tests/support/archive_bytes.h"
#include "tests/support/catch.h"
#include "tests/support/lock_owner.h"
#include "tests/support/planted_journal.h"
#include "tests/support/temporary_directory.h"
#include "tests/support/tool_run.h"

using namespace stfs;
using test::content_of;
using test::plant_journal;
using test::run_verb;

namespace {

namespace fs = std::filesystem;

/// An archive of one tensor t (U8 [8192]) at offset 4096.
struct RecoverModel {
  test::TemporaryDirectory directory;
  std::string path = directory.write("m.safetensors", archive(std::string(8192, 'o')));
  std::string fresh = std::string(4096, 'n') + std::string(4096, 'm');

  static std::string archive(const std::string& data) {
    std::string header = R"({"t":{"dtype":"U8","shape":[8192],"data_offsets":[0,8192]}})";
    header.resize(4096 - 8, ' ');
    return test::archive_bytes(header, data);
  }
  [[nodiscard]] bool is_old() const { return content_of(path) == archive(std::string(8192, 'o')); }
  [[nodiscard]] bool is_new() const { return content_of(path) == archive(fresh); }
  [[nodiscard]] fs::path plant() const { return plant_journal(path, 4096, fresh); }
  /// A name that a journal of the archive may have.
  [[nodiscard]] fs::path journal_name(char digit) const {
    return directory / (".m.safetensors.stj." + std::string(32, digit));
  }
};

/// The archive with the journal of a dead owner.
struct Planted {
  RecoverModel model;
  fs::path journal = model.plant();
};

void overwrite(const fs::path& file, std::streamoff at, const std::string& bytes) {
  std::fstream stream(file, std::ios::in | std::ios::out | std::ios::binary);
  stream.seekp(at) << bytes;
  REQUIRE(stream.flush());
}

/// The only journal in the output of --json.
nlohmann::json report(const std::string& archive, int code, const tools::Arguments& options = {}) {
  tools::Arguments arguments = {"--json", archive};
  arguments.insert(arguments.end(), options.begin(), options.end());
  const auto run = run_verb(tools::recover, arguments);
  CAPTURE(run.err);
  CHECK(run.code == code);
  const auto document = nlohmann::json::parse(run.out);
  CHECK(document["left_undone"] == code);
  REQUIRE(document["journals"].size() == 1);
  return document["journals"][0];
}

}  // namespace

TEST_CASE_METHOD(Planted, "recover applies a committed journal of a dead owner", "[tools][recover]") {
  const auto run = run_verb(tools::recover, {model.path});
  CHECK(run.code == 0);
  CHECK(run.err.empty());
  CHECK(run.out.find(journal.string() + "\n  state   committed: ") == 0);
  CHECK(run.out.find("  covers  1 range of the archive, 8.0 KiB\n  action  applied\n") != std::string::npos);
  CHECK(model.is_new());
  CHECK_FALSE(fs::exists(journal));
  CHECK(run_verb(tools::recover, {model.path}).out == model.path + ": no journal, nothing to recover\n");
}

TEST_CASE_METHOD(Planted, "recover --dry-run says what it would do, exits with 1 and changes nothing",
                 "[tools][recover]") {
  const auto run = run_verb(tools::recover, {"--dry-run", model.path});
  CHECK(run.code == 1);
  CHECK(run.out.find("  action  would be applied\n") != std::string::npos);
  const auto told = report(model.path, 1, {"--dry-run"});
  CHECK(told["state"] == "committed");
  CHECK(told["action"] == "none");
  CHECK(told["ranges"] == 1);
  CHECK(told["size_bytes"] == 8192);
  CHECK(told["path"] == journal.string());
  CHECK(model.is_old());
  CHECK(fs::exists(journal));
}

TEST_CASE("recover removes what was never committed", "[tools][recover]") {
  const RecoverModel model;
  const std::string staged =
      model.directory.write(model.journal_name('a').filename().string() + ".staged", "x");
  const auto told = report(model.path, 0);
  CHECK(told["state"] == "unfinished");
  CHECK(told["action"] == "removed");
  CHECK_FALSE(fs::exists(staged));
  CHECK(model.is_old());
}

TEST_CASE_METHOD(Planted, "recover says why a damaged journal is not applied, --force or not",
                 "[tools][recover]") {
  const std::string whole = content_of(journal);
  overwrite(journal, 4096, std::string(1, static_cast<char>(whole[4096] ^ 1)));
  CHECK(report(model.path, 1)["state"] == "damaged");
  const auto run = run_verb(tools::recover, {"--force", model.path});
  CHECK(run.code == 1);
  CHECK(run.out.find("  state   damaged: ") != std::string::npos);
  CHECK(run.err.find("stfs recover: " + journal.string() + ": damaged: ") == 0);
  CHECK(model.is_old());
  overwrite(journal, 4096, whole.substr(4096, 1));
  CHECK(run_verb(tools::recover, {model.path}).code == 0);
  CHECK(model.is_new());
}

TEST_CASE_METHOD(Planted, "recover leaves a symbolic link, a directory and another version alone",
                 "[tools][recover]") {
  fs::rename(journal, model.directory / "aside");
  fs::create_symlink(model.directory / "aside", journal);
  auto told = report(model.path, 1);
  CHECK(told["state"] == "unknown");
  CHECK(told["explanation"] == "a symbolic link");
  CHECK(fs::is_symlink(journal));

  fs::remove(journal);
  fs::create_directory(journal);
  told = report(model.path, 1, {"--force"});
  CHECK(told["state"] == "unknown");
  CHECK(told["explanation"].get<std::string>().find("directory") != std::string::npos);
  CHECK(told["explanation"].get<std::string>().find(journal.string()) == std::string::npos);
  CHECK(fs::is_directory(journal));

  fs::remove(journal);
  fs::rename(model.directory / "aside", journal);
  overwrite(journal, 8, "\x7f");
  told = report(model.path, 1, {"--force"});
  CHECK(told["state"] == "unknown");
  CHECK(told["explanation"].get<std::string>().find("version 127") != std::string::npos);
  CHECK(model.is_old());
}

TEST_CASE_METHOD(
    Planted, "recover applies another archive's journal only by force, and only where it knows every block",
    "[tools][recover]") {
  // The archive copied and put in place of itself: the same bytes, another inode.
  fs::copy(model.path, model.directory / "copy");
  fs::rename(model.directory / "copy", model.path);
  CHECK(report(model.path, 1)["state"] == "foreign");
  CHECK(model.is_old());
  overwrite(model.path, 5000, "!");
  const auto unknown_block = report(model.path, 1, {"--force"});
  CHECK(unknown_block["action"] == "none");
  CHECK(unknown_block["explanation"].get<std::string>().find("neither") != std::string::npos);
  CHECK(fs::exists(journal));
  overwrite(model.path, 5000, "o");
  overwrite(model.path, 8192, std::string(4096, 'm'));  // the new block: a half of it was applied
  const auto forced = report(model.path, 0, {"--force"});
  CHECK(forced["action"] == "applied");
  CHECK(model.is_new());
  CHECK_FALSE(fs::exists(journal));
}

TEST_CASE_METHOD(Planted, "recover explains a journal beside a file whose header can't be read",
                 "[tools][recover]") {
  overwrite(model.path, 0, std::string(8, '\xff'));
  const std::string broken = content_of(model.path);
  CHECK(report(model.path, 1)["state"] == "foreign");
  CHECK(content_of(model.path) == broken);
  model.directory.write("m.safetensors", "");
  CHECK(report(model.path, 1, {"--force"})["state"] == "foreign");
  CHECK(content_of(model.path).empty());
}

TEST_CASE_METHOD(Planted, "recover leaves a journal to its living owner and calls nothing undone",
                 "[tools][recover]") {
  const test::LockOwner owner(journal.string(), 0, 1);
  CHECK(report(model.path, 0)["state"] == "in use");
  CHECK(model.is_old());
  CHECK(fs::exists(journal));
}

TEST_CASE_METHOD(Planted, "recover finds the journals of an archive named without a directory",
                 "[tools][recover]") {
  const fs::path before = fs::current_path();
  fs::current_path(model.directory.path());
  const auto run = run_verb(tools::recover, {"m.safetensors"});
  fs::current_path(before);
  CHECK(run.code == 0);
  CHECK(model.is_new());
}

TEST_CASE_METHOD(Planted, "recover takes a directory of one archive for the archive", "[tools][recover]") {
  CHECK(run_verb(tools::recover, {model.directory.path().string()}).code == 0);
  CHECK_FALSE(fs::exists(journal));
  CHECK(model.is_new());
}

TEST_CASE("recover fails where there is no archive", "[tools][recover]") {
  const RecoverModel model;
  CHECK(run_verb(tools::recover, {model.directory / "none"}).code == 1);
  std::filesystem::create_directory(model.directory / "empty");
  CHECK(run_verb(tools::recover, {model.directory / "empty"}).code == 1);
  CHECK(run_verb(tools::recover, {}).code == 2);
}

TEST_CASE_METHOD(Planted, "put says which journals were applied and which can't be used",
                 "[tools][recover]") {
  const std::string odd = model.directory.write(".m.safetensors.stj.odd", "");
  const auto run = run_verb(tools::put, {model.path, "t", "-"}, test::Output::Pipe, std::string(8192, 'p'));
  CHECK(run.code == 0);
  CHECK(run.err.find("stfs put: " + journal.string() + ": applied: committed by process ") !=
        std::string::npos);
  CHECK(run.err.find("stfs put: " + odd + ": ignored: its name is not a journal's name\n") !=
        std::string::npos);
  CHECK(content_of(model.path) == RecoverModel::archive(std::string(8192, 'p')));
}

TEST_CASE_METHOD(Planted, "put writes nothing beside a damaged journal", "[tools][recover]") {
  overwrite(journal, 4096, "?");
  const auto run = run_verb(tools::put, {model.path, "t", "-"}, test::Output::Pipe, std::string(8192, 'p'));
  CHECK(run.code == 1);
  CHECK(run.err.find("stfs recover " + model.path) != std::string::npos);
  CHECK(model.is_old());
}
