// stfs repack: what is kept, in which order, as which dtype and in which files; and what is refused.
#include <sys/resource.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "core/model/model.h"
#include "tests/support/archive_bytes.h"
#include "tests/support/catch.h"
#include "tests/support/plain.h"
#include "tests/support/temporary_directory.h"
#include "tests/support/tool_run.h"
#include "tools/cli/repack_output.h"

using namespace stfs;
using test::contains;
using test::run_verb;

namespace {

/// Eight tensors without alignment, in no order.
struct RepackSource {
  test::TemporaryDirectory directory;
  std::string path =
      directory.write("m.safetensors",
                      test::archive_bytes(R"({"__metadata__":{"format":"pt"},)"
                                          R"("odd":{"dtype":"U8","shape":[3],"data_offsets":[0,3]},)"
                                          R"("layer.10.w":{"dtype":"F32","shape":[2],"data_offsets":[3,11]},)"
                                          R"("layer.2.w":{"dtype":"F32","shape":[2],"data_offsets":[11,19]},)"
                                          R"("layer.2.b":{"dtype":"F16","shape":[2],"data_offsets":[19,23]},)"
                                          R"("count":{"dtype":"I64","shape":[],"data_offsets":[23,31]},)"
                                          R"("empty":{"dtype":"F32","shape":[0],"data_offsets":[31,31]}})",
                                          std::string("odd") + floats({1, 1e30F}) + floats({-2, 0.5F}) +
                                              std::string("\x00\x3C\x00\x7B", 4) + "12345678"));

  static std::string floats(const std::vector<float>& values) {
    std::string bytes(values.size() * sizeof(float), '\0');
    std::memcpy(bytes.data(), values.data(), bytes.size());
    return bytes;
  }
  [[nodiscard]] std::string at(const std::string& name) const { return directory / name; }
  /// The names of all files beside the source.
  [[nodiscard]] std::vector<std::string> others() const {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(directory / ".")) {
      if (entry.path().filename() != "m.safetensors") names.push_back(entry.path().filename());
    }
    std::ranges::sort(names);
    return names;
  }
};

std::unique_ptr<Model> repacked(const std::string& path) {
  auto model = Model::open(path, {});
  REQUIRE(model);
  return std::move(*model);
}

std::vector<std::string> names_of(const Model& model) {
  std::vector<std::string> names;
  for (std::uint32_t at = 0; at < model.tensors().size(); ++at) names.emplace_back(model.tensors()[at].name);
  return names;
}

std::string bytes_of(const Model& model, std::string_view name) {
  const auto position = model.tensors().find(name);
  REQUIRE(position);
  const ByteRange range = model.file_range(*position);
  std::string bytes(range.size_bytes, '\0');
  if (!bytes.empty()) {
    REQUIRE(model.archive_of(*position).read_through(std::as_writable_bytes(std::span(bytes)), range.offset));
  }
  return bytes;
}

using Names = std::vector<std::string>;

}  // namespace

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
  for (const std::string& name : names_of(*before)) CHECK(bytes_of(*after, name) == bytes_of(*before, name));
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

TEST_CASE("repack sorts by name with numbers, and as the reference does", "[tools][repack]") {
  const RepackSource source;
  const std::string out = source.at("out.safetensors");
  REQUIRE(run_verb(tools::repack, {"--order", "name", source.path, out}).code == 0);
  // The tensor without bytes shares its offset with its neighbour, and readers sort by offset.
  CHECK(names_of(*repacked(out)) == Names{"count", "empty", "layer.2.b", "layer.2.w", "layer.10.w", "odd"});
  REQUIRE(run_verb(tools::repack, {"-f", "--order", "reference", source.path, out}).code == 0);
  const auto model = repacked(out);
  CHECK(names_of(*model) == Names{"count", "empty", "layer.10.w", "layer.2.w", "layer.2.b", "odd"});
  for (std::uint32_t at = 0; at < model->tensors().size(); ++at) {
    CHECK(model->file_range(at).offset * 8 % bits_of(model->tensors()[at].dtype) == 0);
  }
}

TEST_CASE("numbers inside names compare as numbers", "[tools][repack]") {
  const Names sorted = {"",
                        "a",
                        "a.0",
                        "a.1",
                        "a.1.b",
                        "a.2",
                        "a.10",
                        "a.10.c",
                        "a.99999999999999999999",
                        "a.100000000000000000000",
                        "ab",
                        "b",
                        "\xC3\xA4"};
  for (std::size_t a = 0; a < sorted.size(); ++a) {
    for (std::size_t b = 0; b < sorted.size(); ++b) {
      INFO(sorted[a] << " before " << sorted[b]);
      CHECK(tools::is_before_by_number(sorted[a], sorted[b]) == (a < b));
    }
  }
  CHECK(tools::is_before_by_number("a.01", "a.1"));
  CHECK_FALSE(tools::is_before_by_number("a.1", "a.01"));
  CHECK(tools::is_before_by_number("a.01.x", "a.1.y"));
}

TEST_CASE("repack keeps and drops by globs", "[tools][repack]") {
  const RepackSource source;
  const std::string out = source.at("out.safetensors");
  const auto kept = run_verb(tools::repack, {"--keep", "layer.*", "--drop", "*.b", source.path, out});
  CHECK(contains(kept.out, ": 2 tensors, 16 B\nleft out 4 tensors\n"));
  CHECK(names_of(*repacked(out)) == Names{"layer.10.w", "layer.2.w"});
  CHECK(bytes_of(*repacked(out), "layer.2.w") == RepackSource::floats({-2, 0.5F}));

  const auto unknown =
      run_verb(tools::repack, {"-f", "--drop", "layer.3.*", "--keep", "od", source.path, out});
  CHECK(unknown.code == 1);
  CHECK(contains(unknown.err, ": od: no tensor matches, did you mean odd?\n"));
  const auto nothing = run_verb(tools::repack, {"-f", "--drop", "*", source.path, out});
  CHECK(nothing.code == 1);
  CHECK(contains(nothing.err, "no tensor is left to write"));
  CHECK(names_of(*repacked(out)) == Names{"layer.10.w", "layer.2.w"});
}

TEST_CASE("repack converts by the first rule that matches", "[tools][repack]") {
  const RepackSource source;
  const std::string out = source.at("out.safetensors");
  const auto run =
      run_verb(tools::repack, {"--dtype", "layer.2.b=F32", "--dtype", "F16", "--json", source.path, out});
  REQUIRE(run.code == 0);
  const auto document = nlohmann::json::parse(run.out);
  CHECK(document["overflows"] == 1);  // 1e30
  CHECK(document["written"] == true);
  CHECK(document["tensors"][1]["dtype"] == "F16");
  CHECK(document["tensors"][1]["source_dtype"] == "F32");
  const auto model = repacked(out);
  CHECK(bytes_of(*model, "layer.2.b") == RepackSource::floats({1, 57344}));
  CHECK(bytes_of(*model, "layer.2.w") == std::string("\x00\xC0\x00\x38", 4));
  CHECK(bytes_of(*model, "layer.10.w") == std::string("\x00\x3C\x00\x7C", 4));
  CHECK(bytes_of(*model, "count") == "12345678");  // no floating-point number
  CHECK(model->tensors()[*model->tensors().find("empty")].dtype == Dtype::F16);

  const auto told = run_verb(tools::repack, {"-f", "--dtype", "f16", source.path, out});
  CHECK(contains(told.out, "converted 3 tensors\n1 element did not fit the new dtype\n"));
  CHECK(run_verb(tools::repack, {"--dtype", "x=y=F17", source.path, out}).code == 2);
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
  // A tensor that is larger than a shard has one of its own.
  REQUIRE(run_verb(tools::repack, {"-f", "--shard-size", "1", source.path, index}).code == 0);
  CHECK(repacked(index)->shards().size() == 5);  // the empty tensor takes no room
  CHECK(run_verb(tools::diff, {source.path, index}).code == 0);
}

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
  // The shards of an index, too.
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
  };
  for (const tools::Arguments& arguments : wrong) {
    const auto run = run_verb(tools::repack, arguments);
    INFO(run.err);
    CHECK(run.code == 2);
    CHECK_FALSE(run.err.empty());
  }
  CHECK(source.others().empty());
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
  // The index gets its name last: here another program has taken it meanwhile.
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
