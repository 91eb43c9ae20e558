// Deltas: stfs diff --out writes them, stfs repack --delta and stfs apply read them.
#include <sys/stat.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "tests/support/catch.h"
#include "tests/support/plain.h"
#include "tests/support/skip.h"
#include "tests/tools/diff_models.h"

using namespace stfs;
using test::contains;
using test::diff_json;
using test::DiffModels;
using test::run_verb;

TEST_CASE("diff --out writes what repack --delta needs to write B again", "[tools][diff][delta]") {
  const DiffModels models;
  const std::string delta = models.directory / "delta.safetensors";
  const std::string again = models.directory / "again.safetensors";
  const auto run = run_verb(tools::diff, {models.a, models.b, "--out", delta});
  CHECK(run.err.empty());
  CHECK(run.code == 0);
  CHECK(contains(run.out, "wrote " + delta + ": 5 tensors, 30 B; 1 removed\n"));
  const auto rebuilt = run_verb(tools::repack, {"--delta", delta, models.a, again});
  CHECK(rebuilt.err.empty());
  CHECK(rebuilt.code == 0);
  CHECK(run_verb(tools::diff, {models.b, again}).out == "compared 6 tensors, 34 B: equal\n");
  // A dry run shows it too, and options choose among the variant's tensors.
  const auto planned = run_verb(
      tools::repack, {"-n", "--drop", "w", "--delta", delta, models.a, models.directory / "n.safetensors"});
  CHECK(contains(planned.out, "retyped   BF16  [2]    4 B\n"));
  CHECK(contains(planned.out, "left out 1 tensor\n"));

  const auto document = diff_json({models.a, models.a, "--out", models.directory / "empty.safetensors"}, 0);
  CHECK(document["delta"]["tensors"] == 0);
  CHECK(document["delta"]["removed"] == 0);
  REQUIRE(run_verb(tools::repack, {"-f", "--delta", models.directory / "empty.safetensors", models.a, again})
              .code == 0);
  CHECK(run_verb(tools::diff, {models.a, again}).code == 0);
}

TEST_CASE("a delta is refused on a base whose kept bytes have changed", "[tools][diff][delta]") {
  const DiffModels models;
  const std::string delta = models.directory / "delta.safetensors";
  const std::string again = models.directory / "again.safetensors";
  REQUIRE(run_verb(tools::diff, {models.a, models.b, "--out", delta}).code == 0);
  // The base may have any bytes in a tensor that the delta replaces.
  REQUIRE(run_verb(tools::put, {models.a, "w", models.directory.write("raw", std::string(16, 'w'))}).code ==
          0);
  CHECK(run_verb(tools::repack, {"--delta", delta, models.a, again}).code == 0);
  REQUIRE(run_verb(tools::put, {models.a, "same", models.directory.write("raw", "dcba")}).code == 0);
  const auto refused = run_verb(tools::repack, {"-f", "--delta", delta, models.a, again});
  CHECK(refused.code == 1);
  CHECK(contains(refused.err, models.a + ": is not the base of " + delta));
  CHECK(run_verb(tools::diff, {models.b, again}).code == 0);  // as it was
}

TEST_CASE("a delta allows what both of its models allow", "[tools][diff][delta]") {
  const DiffModels models;
  const auto mode_of_delta = [&](mode_t a, mode_t b) {
    REQUIRE(::chmod(models.a.c_str(), a) == 0);
    REQUIRE(::chmod(models.b.c_str(), b) == 0);
    const std::string delta = models.directory / "delta.safetensors";
    REQUIRE(run_verb(tools::diff, {models.a, models.b, "--out", delta}).code == 0);
    struct stat made {};
    REQUIRE(::stat(delta.c_str(), &made) == 0);
    std::filesystem::remove(delta);
    return made.st_mode & 0777U;
  };
  CHECK(mode_of_delta(0600, 0644) == 0600);
  CHECK(mode_of_delta(0644, 0600) == 0600);
  CHECK((mode_of_delta(0644, 0644) & ~0022U) == 0644);
}

TEST_CASE("diff --out refuses what makes no delta, and then writes none", "[tools][diff][delta]") {
  const DiffModels models;
  const std::string delta = models.directory / "delta.safetensors";
  CHECK(run_verb(tools::diff, {models.a, models.b, "w", "--out", delta}).code == 2);
  CHECK(run_verb(tools::diff, {models.a, models.b, "--out", ""}).code == 2);
  CHECK_FALSE(std::filesystem::exists(delta));
  REQUIRE(run_verb(tools::diff, {models.a, models.b, "--out", delta}).code == 0);
  const auto exists = run_verb(tools::diff, {models.a, models.b, "--out", delta});
  CHECK(exists.code == 1);
  CHECK(contains(exists.err, delta + ": exists already: --force replaces it\n"));
  CHECK(run_verb(tools::diff, {models.a, models.b, "-f", "--out", delta}).code == 0);
  const auto of_delta =
      run_verb(tools::diff, {models.a, delta, "--out", models.directory / "d2.safetensors"});
  CHECK(of_delta.code == 1);
  CHECK(contains(of_delta.err, "is a delta itself: write the variant first, with stfs repack --delta\n"));
  CHECK_FALSE(std::filesystem::exists(models.directory / "d2.safetensors"));
  // A or B itself is not replaced.
  for (const std::string& same : {models.a, models.b}) {
    const auto refused = run_verb(tools::diff, {models.a, models.b, "-f", "--out", same});
    CHECK(refused.code == 1);
    CHECK(contains(refused.err, "belongs to " + std::string(same == models.a ? "A" : "B") + ": "));
  }
}

TEST_CASE("diff finds tensors of another name, and stores them as renamed", "[tools][diff][delta]") {
  const test::TemporaryDirectory directory;
  const std::string a = directory.write("a.safetensors", test::diff_archive({{"z", "U8", "[4]", "same"},
                                                                             {"twin.1", "U8", "[2]", "00"},
                                                                             {"twin.2", "U8", "[2]", "00"},
                                                                             {"form", "U8", "[4]", "form"},
                                                                             {"gone", "U8", "[4]", "gone"},
                                                                             {"none", "U8", "[0]", ""}}));
  const std::string b =
      directory.write("b.safetensors", test::diff_archive({{"a", "U8", "[4]", "same"},
                                                           {"twin.2", "U8", "[2]", "00"},
                                                           {"other", "U8", "[2]", "00"},
                                                           {"form.2", "U8", "[2,2]", "form"},
                                                           {"new", "U8", "[4]", "news"},
                                                           {"none.2", "U8", "[0]", ""}}));
  const std::string delta = directory / "delta.safetensors";
  const auto run = run_verb(tools::diff, {a, b, "--out", delta});
  CHECK(run.err.empty());
  CHECK(run.code == 0);
  CHECK(contains(run.out, "renamed     z and a           U8 [4]"));
  CHECK(contains(run.out, "renamed     twin.1 and other  U8 [2]"));
  CHECK(contains(run.out, "3 only in A, 3 only in B, 2 renamed\n"));
  CHECK(contains(run.out, "wrote " + delta + ": 3 tensors, 8 B; 3 removed; 2 renamed\n"));
  const auto document = diff_json({a, b}, 1);
  CHECK(document["differences"][0]["kinds"] == nlohmann::json::array({"renamed"}));
  CHECK(document["differences"][0]["a"]["name"] == "z");
  CHECK(document["differences"][0]["b"]["name"] == "a");

  const std::string again = directory / "again.safetensors";
  REQUIRE(run_verb(tools::repack, {"--delta", delta, a, again}).code == 0);
  CHECK(run_verb(tools::diff, {b, again}).code == 0);
  // The base must still have the bytes of a tensor that the delta only renames.
  REQUIRE(run_verb(tools::put, {a, "z", directory.write("raw", "SAME")}).code == 0);
  CHECK(run_verb(tools::repack, {"-f", "--delta", delta, a, again}).code == 1);
  REQUIRE(run_verb(tools::put, {a, "z", directory.write("raw", "same")}).code == 0);

  // stfs apply changes the archive in place, as stfs commit does.
  const auto applied = run_verb(tools::apply, {a, delta});
  CHECK(applied.err.empty());
  CHECK(applied.code == 0);
  CHECK(
      contains(applied.out, "added 3 tensors, removed 3 tensors, renamed or retyped 2 tensors, 8 B in " + a));
  CHECK(run_verb(tools::diff, {a, b}).code == 0);
}

TEST_CASE("commit finds the base where it was used last", "[tools][commit][delta]") {
  const DiffModels models;
  const test::TemporaryDirectory elsewhere;
  const std::string delta = elsewhere / "delta.safetensors";
  REQUIRE(run_verb(tools::diff, {models.a, models.b, "--out", delta}).code == 0);
  const auto unknown = run_verb(tools::commit, {delta});
  CHECK(unknown.code == 1);
  CHECK(contains(unknown.err, "its base a.safetensors does not lie beside it: give the base with --base"));
  REQUIRE(run_verb(tools::commit, {"--dry-run", "--base", models.a, delta}).code == 0);  // as a mount does
  // A file with the base's name is not the base if the delta does not fit.
  elsewhere.write("a.safetensors", test::diff_archive({{"w", "U8", "[1]", "x"}}));
  const auto found = run_verb(tools::commit, {delta});
  if (contains(found.err, "another base")) {
    test::note_skip("the file system of the temporary directory has no user attributes");
    return;
  }
  CHECK(found.err.empty());
  CHECK(found.code == 0);
  CHECK(run_verb(tools::diff, {models.a, models.b}).code == 0);
}

TEST_CASE("apply takes a delta of its base, and refuses one of another", "[tools][apply][delta]") {
  const DiffModels models;
  const std::string patched = models.directory / "patched.safetensors";
  const std::string delta = models.directory / "delta.safetensors";
  std::filesystem::copy_file(models.a, patched);
  REQUIRE(run_verb(tools::put, {patched, "w", models.directory.write("raw", std::string(16, 'w'))}).code ==
          0);
  REQUIRE(run_verb(tools::diff, {models.a, patched, "--out", delta}).code == 0);

  const auto other = run_verb(tools::apply, {models.b, delta});
  CHECK(other.code == 1);
  CHECK(contains(other.err,
                 delta + ": not usable as a delta: it was made for another base, \"a.safetensors\""));
  CHECK(run_verb(tools::apply, {models.a, delta}).code == 0);
  CHECK(run_verb(tools::diff, {models.a, patched}).code == 0);

  const std::string fewer = models.directory / "fewer.safetensors";
  REQUIRE(run_verb(tools::repack, {"--drop", "old", models.a, fewer}).code == 0);
  REQUIRE(run_verb(tools::diff, {models.a, fewer, "-f", "--out", delta}).code == 0);
  const auto planned = run_verb(tools::apply, {"-n", models.a, delta});
  CHECK(planned.code == 0);
  CHECK(contains(planned.out, "remove old\n"));
  const auto removed = run_verb(tools::apply, {"--json", models.a, delta});
  CHECK(removed.code == 0);
  CHECK(nlohmann::json::parse(removed.out)["removed"] == nlohmann::json::array({"old"}));
  CHECK(run_verb(tools::diff, {models.a, fewer}).code == 0);
}
