// stfs repack writes all of its files, or none.
#include "tools/cli/repack_output.h"

#include <sys/resource.h>
#include <sys/stat.h>

#include <algorithm>
#include <sstream>

#include "tests/support/catch.h"
#include "tests/support/model_content.h"
#include "tests/support/plain.h"
#include "tests/support/tool_run.h"
#include "tests/tools/repack_source.h"

using namespace stfs;
using test::contains;
using test::Names;
using test::names_of;
using test::repacked;
using test::RepackSource;
using test::run_verb;
using test::tensor_content;

TEST_CASE("repack writes more shards than it may have files open", "[tools][repack]") {
  const test::TemporaryDirectory directory;
  constexpr int kShards = 300;
  std::string header = "{";
  for (int at = 0; at < kShards; ++at) {
    header += "\"" + std::to_string(at) + R"(":{"dtype":"U8","shape":[1],"data_offsets":[)" +
              std::to_string(at) + "," + std::to_string(at + 1) + "]},";
  }
  header.back() = '}';
  const std::string path =
      directory.write("m.safetensors", test::archive_bytes(header, std::string(kShards, 'x')));
  rlimit before{};
  REQUIRE(::getrlimit(RLIMIT_NOFILE, &before) == 0);
  rlimit few = before;
  few.rlim_cur = 100;
  REQUIRE(::setrlimit(RLIMIT_NOFILE, &few) == 0);
  const auto run = run_verb(tools::repack, {"--shard-size", "1", "--slack", "0", "--align", "8", path,
                                            directory / "s.safetensors.index.json"});
  REQUIRE(::setrlimit(RLIMIT_NOFILE, &before) == 0);
  CHECK(run.err.empty());
  CHECK(contains(run.out, " in 300 shards\n"));
  CHECK(run_verb(tools::diff, {path, directory / "s.safetensors.index.json"}).code == 0);
}

TEST_CASE("repack refuses to write over files, and always over its source", "[tools][repack]") {
  const RepackSource source;
  const std::string out = source.directory.write("out.safetensors", "mine");
  const auto exists = run_verb(tools::repack, {source.path, out});
  CHECK(exists.code == 1);
  CHECK(contains(exists.err, out + ": exists already: --force replaces it\n"));
  std::filesystem::create_symlink("m.safetensors", source.at("link.safetensors"));
  for (const std::string& same : {source.path, source.at("link.safetensors")}) {
    const auto refused = run_verb(tools::repack, {"--force", source.path, same});
    CHECK(refused.code == 1);
    CHECK(contains(refused.err, "belongs to SOURCE: write a new file, then rename it\n"));
  }
  // The shards of an index are also part of the source.
  const std::string index = source.at("s.safetensors.index.json");
  REQUIRE(run_verb(tools::repack, {"--shard-size", "30", source.path, index}).code == 0);
  const auto shard = run_verb(tools::repack, {"-f", index, source.at("s-00002-of-00002.safetensors")});
  CHECK(contains(shard.err, "s-00002-of-00002.safetensors: belongs to SOURCE"));
  CHECK(
      contains(run_verb(tools::repack, {"-f", "--shard-size", "30", index, index}).err, "belongs to SOURCE"));
  const auto split =
      run_verb(tools::repack, {"--shard-size", "30", source.path, source.at("s.safetensors.index.json")});
  CHECK(std::ranges::count(split.err, '\n') == 3);
  CHECK(contains(run_verb(tools::repack, {source.path, source.directory.path().string()}).err,
                 "is a directory"));
  CHECK(repacked(source.path)->tensors().size() == 6);
}

TEST_CASE("repack of a model that lacks a shard writes nothing", "[tools][repack]") {
  const RepackSource source;
  const std::string index = source.at("s.safetensors.index.json");
  REQUIRE(run_verb(tools::repack, {"--shard-size", "12", source.path, index}).code == 0);
  std::filesystem::remove(source.at("s-00002-of-00003.safetensors"));
  const auto run = run_verb(tools::repack, {index, source.at("out.safetensors")});
  CHECK(run.code == 1);
  CHECK(contains(run.err, "is not whole: nothing was written\n"));
  CHECK_FALSE(std::filesystem::exists(source.at("out.safetensors")));
}

TEST_CASE("repack leaves no shard behind where the last file can't be written", "[tools][repack]") {
  const RepackSource source;
  // The index gets its name last. Another program creates a file of that name before.
  const std::string index = source.at("s.safetensors.index.json");
  auto model = repacked(source.path);
  const tools::RepackOptions options{.out = index, .keep = {}, .drop = {}, .dtypes = {}, .shard_bytes = 12};
  const auto plan = tools::plan_repack(*model, options);
  REQUIRE(plan);
  source.directory.write("s.safetensors.index.json", "another's");
  std::istringstream in;
  std::ostringstream out;
  tools::Streams streams{in, out, out};
  const auto written = tools::write_repacked(*model, *plan, {}, streams);
  REQUIRE_FALSE(written);
  CHECK(written.error().errno_value == EEXIST);
  CHECK(source.others() == Names{"s.safetensors.index.json"});
}

TEST_CASE("a new archive can be read by those only who can read all of its source", "[tools][repack]") {
  const RepackSource source;
  const mode_t umask_before = ::umask(022);
  using std::filesystem::perms;
  const auto repacked_mode = [&](const std::string& from, const std::string& to) {
    CHECK(run_verb(tools::repack, {from, source.at(to)}).code == 0);
    return std::filesystem::status(source.at(to)).permissions();
  };
  std::filesystem::permissions(source.path, perms{0755});
  CHECK(repacked_mode(source.path, "open.safetensors") == perms{0644});
  std::filesystem::permissions(source.path, perms{0640});
  CHECK(repacked_mode(source.path, "group.safetensors") == perms{0640});
  std::filesystem::permissions(source.path, perms{0400});
  CHECK(repacked_mode(source.path, "own.safetensors") == perms{0600});
  const std::string index = source.at("s.safetensors.index.json");
  CHECK(run_verb(tools::repack, {"--shard-size", "12", source.at("open.safetensors"), index}).code == 0);
  std::filesystem::permissions(source.at("s-00002-of-00003.safetensors"), perms{0600});
  CHECK(repacked_mode(index, "joined.safetensors") == perms{0600});
  ::umask(umask_before);
}
