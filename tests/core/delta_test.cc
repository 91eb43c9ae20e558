// Deltas: their keys in the metadata, deltas that do not fit a base, and models with a delta on top.
#include "core/model/delta.h"

#include <random>

#include "core/archive/archive_writer.h"
#include "core/model/model.h"
#include "tests/support/catch.h"
#include "tests/support/model_content.h"
#include "tests/support/plain.h"
#include "tests/support/temporary_directory.h"

using namespace stfs;
using test::contains;

namespace {

constexpr const char* kDigest = "0123456789abcdef0123456789abcdef";

struct DeltaTensor {
  std::string name;
  Dtype dtype = Dtype::U8;
  std::string bytes;
};

std::string write_archive(const std::string& path, const std::vector<DeltaTensor>& tensors,
                          const Metadata& metadata) {
  std::vector<TensorSpec> specs;
  for (const auto& [name, dtype, bytes] : tensors) {
    specs.push_back({name, dtype, {bytes.size() * 8 / bits_of(dtype)}});
  }
  auto writer = ArchiveWriter::create(path, specs, metadata, true);
  REQUIRE(writer);
  for (const DeltaTensor& tensor : tensors) REQUIRE(writer->append(std::as_bytes(std::span(tensor.bytes))));
  REQUIRE(writer->finish());
  return path;
}

/// A base of four tensors, in one archive and in two shards, and a delta that changes, adds, retypes and
/// removes.
struct DeltaFiles {
  test::TemporaryDirectory directory;
  std::string base = write_archive(directory / "base.safetensors",
                                   {{"keep", Dtype::U8, "keep"},
                                    {"patch", Dtype::U8, "old"},
                                    {"retype", Dtype::U8, "abcd"},
                                    {"gone", Dtype::U8, "x"}},
                                   {{"format", "pt"}, {"step", "1"}});
  std::string index = write_index();
  std::string delta = write_delta({"gone"}, of_base());

  [[nodiscard]] std::string of_base() const { return digest_of_tensors((*Model::open(base, {}))->tensors()); }
  [[nodiscard]] std::string write_index() const {
    write_archive(directory / "s-1.safetensors", {{"gone", Dtype::U8, "x"}, {"retype", Dtype::U8, "abcd"}},
                  {});
    write_archive(directory / "s-2.safetensors", {{"patch", Dtype::U8, "old"}, {"keep", Dtype::U8, "keep"}},
                  {});
    return directory.write("s.safetensors.index.json",
                           R"({"weight_map":{"gone":"s-1.safetensors","retype":"s-1.safetensors",)"
                           R"("patch":"s-2.safetensors","keep":"s-2.safetensors"}})");
  }
  std::string write_delta(std::vector<std::string> removed, const std::string& base_tensors) const {
    const Delta made{"base.safetensors", base_tensors, kDigest, std::move(removed), {{"step", "2"}}};
    return write_archive(
        directory / "delta.safetensors",
        {{"patch", Dtype::U8, "new"}, {"retype", Dtype::U16, "abcd"}, {"fresh", Dtype::F32, "1234"}},
        metadata_of(made));
  }
};

std::string refusal(const Metadata& metadata) {
  const auto parsed = parse_delta(metadata);
  REQUIRE_FALSE(parsed);
  CHECK(parsed.error().errno_value == EINVAL);
  return parsed.error().message;
}

}  // namespace

TEST_CASE("what a delta's metadata holds comes back", "[core][delta]") {
  const Delta delta{"b",
                    kDigest,
                    "fedcba9876543210fedcba9876543210",
                    {"a", "quote\"\\\n", "größe", ""},
                    {{"format", "pt"}, {"", "x"}},
                    {{"m-1 \"ü\".safetensors", 12, 1'795'581'858'798'325'641}, {"m-2", ~0ULL, 0}}};
  const Metadata metadata = metadata_of(delta);
  CHECK(is_delta(metadata));
  CHECK_FALSE(is_delta(delta.metadata));
  const auto parsed = parse_delta(metadata);
  REQUIRE(parsed);
  CHECK(parsed->base == delta.base);
  CHECK(parsed->base_tensors == delta.base_tensors);
  CHECK(parsed->base_bytes == delta.base_bytes);
  CHECK(parsed->removed == delta.removed);
  CHECK(parsed->metadata == delta.metadata);
  CHECK(parsed->base_files == delta.base_files);
}

TEST_CASE("a delta of version 1, without the files of its base, is read", "[core][delta]") {
  Metadata metadata;
  for (const auto& [key, value] : metadata_of({"b", kDigest, kDigest, {"gone"}, {}, {{"b", 1, 2}}})) {
    if (key.ends_with("base_files")) continue;
    metadata.emplace_back(key, key == kDeltaKey ? "1" : value);
  }
  const auto parsed = parse_delta(metadata);
  REQUIRE(parsed);
  CHECK(parsed->removed == std::vector<std::string>{"gone"});
  CHECK(parsed->base_files.empty());
  metadata.emplace_back("safetensorsfs.delta.base_files", "[]");
  CHECK(contains(refusal(metadata), "keys that version 1 does not know"));
}

TEST_CASE("a list of deltas is split at its colons", "[core][delta]") {
  using Paths = std::vector<std::filesystem::path>;
  CHECK(split_deltas("/a") == Paths{"/a"});
  CHECK(split_deltas("/a:b") == Paths{"/a", "b"});
  CHECK(split_deltas(":a:") == Paths{"", "a", ""});
  CHECK(split_deltas(R"(a\:b\\:c\d\)") == Paths{"a:b\\", "c\\d\\"});
  for (const Paths& paths : {Paths{"/a"}, Paths{"/a", "b:c", "\\:", "d\\"}})
    CHECK(split_deltas(join_deltas(paths)) == paths);
}

TEST_CASE("a delta that is not sound is refused with its reason", "[core][delta]") {
  const std::vector<Metadata::value_type> sound = {{"safetensorsfs.delta", "2"},
                                                   {"safetensorsfs.delta.base", "b"},
                                                   {"safetensorsfs.delta.base_tensors", kDigest},
                                                   {"safetensorsfs.delta.base_bytes", kDigest},
                                                   {"safetensorsfs.delta.removed", "[]"},
                                                   {"safetensorsfs.delta.base_files", "[]"}};
  const auto with = [&](std::size_t at, std::string_view value) {
    Metadata metadata;
    for (std::size_t i = 0; i < sound.size(); ++i)
      metadata.emplace_back(sound[i].first, i == at ? value : sound[i].second);
    return metadata;
  };
  REQUIRE(parse_delta(with(9, "")));
  for (std::size_t left_out = 0; left_out < sound.size(); ++left_out) {
    Metadata metadata;
    for (std::size_t i = 0; i < sound.size(); ++i) {
      if (i != left_out) metadata.emplace_back(sound[i].first, sound[i].second);
    }
    CHECK(contains(refusal(metadata), "its metadata has no key " + std::string(sound[left_out].first)));
  }
  CHECK(contains(refusal(with(0, "4")), "it has version \"4\", this program knows versions 1 to 3"));
  CHECK(contains(refusal(with(2, "0123")), "is no digest"));
  CHECK(contains(refusal(with(3, "0123456789ABCDEF0123456789ABCDEF")), "is no digest"));
  CHECK(contains(refusal(with(4, "{}")), "is not a JSON array"));
  CHECK(contains(refusal(with(4, "[1]")), "an element that is not a name"));
  CHECK(contains(refusal(with(4, "[[\"a\"]]")), "an element that is not a name"));
  CHECK(contains(refusal(with(4, "[\"a\"")), "byte "));
  CHECK(contains(refusal(with(4, "")), "byte "));
  CHECK(contains(refusal(with(4, "[[[]]]")), "byte "));
  Metadata more = with(9, "");
  more.emplace_back("safetensorsfs.delta.later", "");
  CHECK(contains(refusal(more), "keys that version 2 does not know"));
  REQUIRE(parse_delta(with(5, R"([ [ "a" , 0 , 9223372036854775807 ] ])")));
  for (const char* files :
       {"[1]", "[[]]", "[[1,1,1]]", R"([["a",1]])", R"([["a","1",1]])", R"([["a",-1,1]])", R"([["a",1,1.5]])",
        R"([["a",1,1,1]])", R"([["a",18446744073709551616,1]])", R"([["a",1,9223372036854775808]])"}) {
    CAPTURE(files);
    CHECK(contains(refusal(with(5, files)), "an element that is not [name, size, time]"));
  }
  CHECK(contains(refusal(with(5, R"({"a":1})")), "base_files: is not a JSON array"));
  CHECK(contains(refusal(with(5, "[[[[1]]]]")), "base_files: byte "));
}

TEST_CASE("no list of removed names or of files crashes the parser", "[core][delta]") {
  const bool is_of_files = GENERATE(false, true);
  const std::string sound = is_of_files ? R"([["a",12,345],["b\u00e9\\",0,18446744073709551615],["",7,8]])"
                                        : R"(["a","b\u00e9\\","\ud83d\ude00",""])";
  std::mt19937 random(7);  // NOLINT: the same in each run
  std::uint64_t accepted = 0;
  for (int round = 0; round < 20'000; ++round) {
    std::string text = sound;
    for (auto changes = 1 + random() % 3; changes > 0; --changes) {
      const std::size_t at = random() % text.size();
      if (random() % 3 == 0) {
        text.erase(at, 1 + random() % 3);
      } else {
        text.insert(at, 1, "[]\",\\u{}0d\0\x80 "[random() % 14]);
      }
      if (text.empty()) text = "[";
    }
    Metadata metadata = metadata_of({"b", kDigest, kDigest, {}, {}});
    Metadata changed;
    for (const auto& [key, value] : metadata)
      changed.emplace_back(key, key.ends_with(is_of_files ? "base_files" : "removed") ? text : value);
    accepted += parse_delta(changed).has_value() ? 1 : 0;
  }
  CHECK(accepted > 100);
  CHECK(accepted < 15'000);
}

TEST_CASE("the digest of tensors is that of names, dtypes and shapes, in any order", "[core][delta]") {
  const DeltaFiles files;
  CHECK(digest_of_tensors((*Model::open(files.index, {}))->tensors()) == files.of_base());
  const std::vector<std::vector<DeltaTensor>> others = {
      {{"keep", Dtype::U8, "keep"}, {"patch", Dtype::U8, "old"}, {"retype", Dtype::U8, "abcd"}},
      {{"keep", Dtype::I8, "keep"},
       {"patch", Dtype::U8, "old"},
       {"retype", Dtype::U8, "abcd"},
       {"gone", Dtype::U8, "x"}},
      {{"keep", Dtype::U8, "kee"},
       {"patch", Dtype::U8, "old"},
       {"retype", Dtype::U8, "abcd"},
       {"gone", Dtype::U8, "x"}},
      {{"keeP", Dtype::U8, "keep"},
       {"patch", Dtype::U8, "old"},
       {"retype", Dtype::U8, "abcd"},
       {"gone", Dtype::U8, "x"}},
  };
  for (const auto& tensors : others) {
    const auto other = Model::open(write_archive(files.directory / "other.safetensors", tensors, {}), {});
    CHECK(digest_of_tensors((*other)->tensors()) != files.of_base());
  }
}

TEST_CASE("a model shows its delta's changes, whether its base is an archive or shards",
          "[core][delta][model]") {
  const DeltaFiles files;
  for (const std::string& base : {files.base, files.index}) {
    const auto opened = Model::open(base, {.deltas = {files.delta}});
    REQUIRE(opened);
    const Model& model = **opened;
    CHECK(model.problems().empty());
    CHECK(model.tensors().size() == 4);
    CHECK(test::tensor_content(model, "keep") == "keep");
    CHECK(test::tensor_content(model, "patch") == "new");
    CHECK(test::tensor_content(model, "fresh") == "1234");
    CHECK(model.tensors()[*model.tensors().find("retype")].dtype == Dtype::U16);
    CHECK_FALSE(model.tensors().find("gone"));
    CHECK(model.metadata() == Metadata{{"step", "2"}});
    CHECK(model.shards().back().path.filename() == "delta.safetensors");
    REQUIRE(model.delta());
    CHECK(model.delta()->base == "base.safetensors");
    CHECK_FALSE(model.is_index_changed());
  }
  CHECK_FALSE((*Model::open(files.base, {}))->delta());
}

TEST_CASE("a delta that does not fit its base is refused, and both are named", "[core][delta][model]") {
  const DeltaFiles files;
  const auto why = [&](const std::string& base) {
    const auto opened = Model::open(base, {.deltas = {files.directory / "delta.safetensors"}});
    REQUIRE_FALSE(opened);
    CHECK(contains(opened.error().message, "delta.safetensors"));
    return opened.error().message;
  };
  std::filesystem::copy_file(files.delta, files.directory / "copy.safetensors");
  CHECK(contains(why(files.directory / "copy.safetensors"),
                 "it was made for another base, \"base.safetensors\""));
  CHECK(contains(why(files.delta), "it is the same file as "));
  files.write_delta({"absent"}, files.of_base());
  CHECK(contains(why(files.base), "it removes \"absent\", which its base lacks"));
  files.write_delta({"patch"}, files.of_base());
  CHECK(contains(why(files.base), "it removes \"patch\", and has it too"));
  files.write_delta({"gone", "gone"}, files.of_base());
  CHECK(contains(why(files.base), "it removes \"gone\" twice"));
  write_archive(files.directory / "delta.safetensors", {{"patch", Dtype::U8, "new"}}, {});
  CHECK(contains(why(files.base), "its metadata has no key safetensorsfs.delta"));
  std::filesystem::remove(files.directory / "delta.safetensors");
  CHECK(contains(why(files.base), "No such file"));
}

TEST_CASE("a delta on a base that lacks a shard names the shard", "[core][delta][model]") {
  const DeltaFiles files;
  std::filesystem::remove(files.directory / "s-1.safetensors");
  const auto opened = Model::open(files.index, {.deltas = {files.delta}});
  REQUIRE_FALSE(opened);
  CHECK(contains(opened.error().message, "and a delta refuses this:"));
  CHECK(contains(opened.error().message, "s-1.safetensors"));
}

TEST_CASE("a model with a delta is written in the delta alone", "[core][delta][model]") {
  const DeltaFiles files;
  const auto opened = Model::open(files.base, {.access = Access::ReadWrite, .deltas = {files.delta}});
  REQUIRE(opened);
  CHECK((*opened)->access() == Access::ReadWrite);
  CHECK((*opened)->archive(0).access() == Access::ReadOnly);
  CHECK((*opened)->archive(1).access() == Access::ReadWrite);
  CHECK((*opened)->base()->tensors().size() == 4);
}

TEST_CASE("what edits add to a delta's metadata comes back", "[core][delta]") {
  Delta delta{"b", kDigest, "", {"a"}, {{"format", "pt"}}, {{"b", 12, 3}}};
  delta.renamed = {{"new \"ü\"", "old", Dtype::F32, {2, 3}}, {"", "scalar", Dtype::I8, {}}};
  auto parsed = parse_delta(metadata_of(delta));
  REQUIRE(parsed);
  CHECK(parsed->base_bytes.empty());
  CHECK(parsed->all_base_bytes.empty());
  CHECK(parsed->renamed == delta.renamed);
  delta.all_base_bytes = kDigest;
  parsed = parse_delta(metadata_of(delta));
  REQUIRE(parsed);
  CHECK(parsed->all_base_bytes == kDigest);
  const auto with = [&](std::string_view key, const char* value) {
    Metadata metadata;
    for (const auto& [known, old] : metadata_of(delta))
      metadata.emplace_back(known, known == key ? value : old);
    return refusal(metadata);
  };
  for (const char* wrong :
       {"[1]", "[[]]", R"([["a","b","F32"]])", R"([["a","b",[1],"F32"]])", R"([["a","b","F32",[1],1]])",
        R"([["a","b","F32",[-1]]])", R"([["a","b","F32",["1"]]])", R"([["a",1,"F32",[1]]])"}) {
    INFO(wrong);
    CHECK(contains(with("safetensorsfs.delta.renamed", wrong), "not [name, name in the base, dtype, shape]"));
  }
  CHECK(contains(with("safetensorsfs.delta.renamed", R"([["a","b","F31",[1]]])"), "unknown dtype \"F31\""));
  CHECK(contains(with("safetensorsfs.delta.renamed", "[[[[[1]]]]]"), "byte "));
  CHECK(contains(with("safetensorsfs.delta.renamed", "{}"), "is not a JSON array"));
  CHECK(contains(with("safetensorsfs.delta.all_base_bytes", "12"), "is no digest"));
}
