// stfs repack: its files, its output and its refusals.
#include <fstream>
#include <nlohmann/json.hpp>

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

TEST_CASE("repack keeps all tensors and their order, and aligns the data", "[tools][repack]") {
  const RepackSource source;
  const auto run = run_verb(tools::repack, {source.path, source.at("out.safetensors")});
  CHECK(run.err.empty());
  REQUIRE(run.code == 0);
  CHECK(run.out == "wrote " + source.at("out.safetensors") + ": 6 tensors, 31 B\n");
  const auto before = repacked(source.path);
  const auto after = repacked(source.at("out.safetensors"));
  CHECK(names_of(*after) == names_of(*before));
  CHECK(after->metadata() == before->metadata());
  for (const std::string& name : names_of(*before))
    CHECK(tensor_content(*after, name) == tensor_content(*before, name));
  CHECK(after->front().data_offset() % 4096 == 0);
  CHECK(after->front().header_size_bytes() >= 64 << 10);
}

TEST_CASE("repack places the data and leaves slack as asked", "[tools][repack]") {
  const RepackSource source;
  const std::string out = source.at("out.safetensors");
  REQUIRE(run_verb(tools::repack, {"--align", "64K", "--slack", "0", source.path, out}).code == 0);
  CHECK(repacked(out)->front().data_offset() == 64 << 10);
  REQUIRE(run_verb(tools::repack, {"-f", "--align", "8", "--slack", "0", source.path, out}).code == 0);
  CHECK(repacked(out)->front().data_offset() < 1000);
}

TEST_CASE("repack splits a model into shards and joins them again", "[tools][repack]") {
  const RepackSource source;
  const std::string index = source.at("s.safetensors.index.json");
  const auto run = run_verb(tools::repack, {"--shard-size", "12", source.path, index});
  CHECK(run.err.empty());
  CHECK(run.out == "wrote " + index + ": 6 tensors, 31 B in 3 shards\n");
  CHECK(source.others() == Names{"s-00001-of-00003.safetensors", "s-00002-of-00003.safetensors",
                                 "s-00003-of-00003.safetensors", "s.safetensors.index.json"});
  std::ifstream file(index);
  const auto document = nlohmann::json::parse(file);
  CHECK(document["metadata"]["total_size"] == 31);
  CHECK(document["weight_map"]["layer.2.b"] == "s-00002-of-00003.safetensors");
  const auto split = repacked(index);
  CHECK(split->problems().empty());
  REQUIRE(split->shards().size() == 3);
  CHECK(split->metadata() == Metadata{{"format", "pt"}});

  const std::string joined = source.at("joined.safetensors");
  REQUIRE(run_verb(tools::repack, {index, joined}).code == 0);
  CHECK(run_verb(tools::diff, {source.path, joined}).code == 0);
  // A tensor that is larger than the shard size gets a separate shard.
  REQUIRE(run_verb(tools::repack, {"-f", "--shard-size", "1", source.path, index}).code == 0);
  CHECK(repacked(index)->shards().size() == 5);  // the empty tensor takes no room
  CHECK(run_verb(tools::diff, {source.path, index}).code == 0);
}

TEST_CASE("a dry run of repack writes nothing and names each tensor", "[tools][repack]") {
  const RepackSource source;
  const auto run = run_verb(tools::repack, {"-n", "--dtype", "*w=BF16", "--shard-size", "1K", source.path,
                                            source.at("out.safetensors.index.json")});
  CHECK(run.code == 0);
  CHECK(contains(run.out, "layer.10.w  BF16 from F32  [2]  4 B\n"));
  CHECK(contains(run.out, "would write " + source.at("out.safetensors.index.json") +
                              ": 6 tensors, 23 B in 1 shard\nwould convert 2 tensors\n"));
  CHECK(source.others().empty());
}

TEST_CASE("repack explains a command line that it can't use", "[tools][repack]") {
  const RepackSource source;
  const std::string out = source.at("out.safetensors");
  const std::vector<tools::Arguments> wrong = {
      {source.path},
      {source.path, out, out},
      {source.path, ""},
      {"--align", "100", source.path, out},
      {"--align", "4", source.path, out},
      {"--align", "128M", source.path, out},
      {"--align", "many", source.path, out},
      {"--slack", "1G", source.path, out},
      {"--slack", "x", source.path, out},
      {"--shard-size", "2G", source.path, out},
      {"--shard-size", "0", source.path, source.at("o.safetensors.index.json")},
      {"--order", "size", source.path, out},
      {"--dtype", "I8", source.path, out},
      {"--delta", "", source.path, out},
      {"--align", "", source.path, out},
      {"--shard-size", "", source.path, source.at("o.safetensors.index.json")},
      {source.path, source.at("o.index.json")},
  };
  for (const tools::Arguments& arguments : wrong) {
    const auto run = run_verb(tools::repack, arguments);
    INFO(run.err);
    CHECK(run.code == 2);
    CHECK_FALSE(run.err.empty());
  }
  CHECK(source.others().empty());
}

TEST_CASE("repack joins shards whose metadata differs, says so, and keeps the first value",
          "[tools][repack]") {
  const RepackSource source;
  const auto shard = [&](const std::string& name, const std::string& tensor, const std::string& step) {
    source.directory.write(name,
                           test::archive_bytes("{\"__metadata__\":{\"step\":\"" + step + "\"},\"" + tensor +
                                                   R"(":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})",
                                               "x"));
  };
  shard("s-1.safetensors", "a", "1");
  shard("s-2.safetensors", "b", "2");
  const std::string index = source.directory.write(
      "s.safetensors.index.json", R"({"weight_map":{"a":"s-1.safetensors","b":"s-2.safetensors"}})");
  const auto run = run_verb(tools::repack, {index, source.at("joined.safetensors")});
  CHECK(run.code == 0);
  CHECK(contains(run.err, "__metadata__ key \"step\""));
  CHECK(repacked(source.at("joined.safetensors"))->metadata() == Metadata{{"step", "1"}});
}
