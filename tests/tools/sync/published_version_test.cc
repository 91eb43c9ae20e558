// A published version is read as its publisher wrote it. A version that is not whole yet has another error
// than a damaged version.
#include "tools/sync/published_version.h"

#include <cerrno>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "tests/support/catch.h"
#include "tests/support/plain.h"
#include "tests/support/temporary_directory.h"
#include "tests/support/text_archive.h"
#include "tools/cli/version_change.h"
#include "tools/sync/version_format.h"

namespace stfs::test {
namespace {

using sync::PublishedVersion;

const std::string kFirst = "model-00001-of-00002.safetensors";
const std::string kSecond = "model-00002-of-00002.safetensors";
const std::string kIndexName(sync::kVersionIndex);

/// A version whose parts a test changes before it is written.
struct Draft {
  TemporaryDirectory directory;
  std::string name = "weight_v000042";
  std::string metadata = R"({"version":"000042","base_version":"000041","delta_encoding":"xor",)"
                         R"("compression_format":"zstd","checksum_format":"adler32"})";
  std::string weight_map = R"({"a":")" + kFirst + R"(","c":")" + kFirst + R"(","b":")" + kSecond + R"("})";
  std::map<std::string, std::string> files = {
      {kFirst, archive_of({{"c", "sea"}, {"a", "ay"}}, R"({"c":"0000000c","a":"0000000a"})")},
      {kSecond, archive_of({{"b", "bee"}}, R"({"b":"0000000B","format":"pt"})")}};
  bool has_index = true;

  [[nodiscard]] std::filesystem::path path() const { return directory.path() / name; }
  [[nodiscard]] std::string index() const {
    return R"({"metadata":)" + metadata + R"(,"weight_map":)" + weight_map + "}";
  }
  [[nodiscard]] Result<PublishedVersion> open() const {
    std::filesystem::create_directories(path());
    for (const auto& [file, content] : files) directory.write(name + "/" + file, content);
    if (has_index) directory.write(name + "/" + kIndexName, index());
    return PublishedVersion::open(path());
  }
  [[nodiscard]] std::string error() const {
    const auto opened = open();
    if (opened) return "opened";
    if (sync::is_unfinished(opened.error())) return "unfinished: " + opened.error().message;
    return opened.error().message;
  }
};

std::string replaced(std::string text, const std::string& what, const std::string& with) {
  return text.replace(text.find(what), what.size(), with);
}

std::string content_of(const PublishedVersion& version, const sync::PublishedTensor& tensor) {
  const sync::CompressedDiff diff = version.diff(tensor);
  std::string content(diff.size_bytes, '?');
  const auto read = diff.read(0, std::as_writable_bytes(std::span(content)));
  return read ? content : read.error().message;
}

}  // namespace

TEST_CASE("version names have six digits or more", "[tools][sync]") {
  CHECK(sync::version_directory_name(42) == "weight_v000042");
  CHECK(sync::version_directory_name(1234567) == "weight_v1234567");
  CHECK(sync::version_of_directory("weight_v000042")->number == 42);
  CHECK(sync::version_of_directory("weight_v1234567")->text == "1234567");
  for (const char* other : {"weight_v42", "weight_v0000042", "weight_v", "weight_v00004x", "weight_v-00042",
                            "weight_v000042.tmp", "weights_v000042", "000042", ""}) {
    CHECK_FALSE(sync::version_of_directory(other));
  }
  CHECK(sync::parse_version("42")->number == 42);
  CHECK(sync::parse_version("000042")->text == "000042");
  for (const char* other : {"", "+1", "-1", " 1", "1 ", "0x1", "1234567890123456789"}) {
    CHECK_FALSE(sync::parse_version(other));
  }
}

TEST_CASE("version is read as it was published", "[tools][sync]") {
  const Draft draft;
  const auto opened = draft.open();
  REQUIRE(opened);
  PublishedVersion moved = std::move(const_cast<PublishedVersion&>(*opened));
  CHECK(moved.version().text == "000042");
  CHECK(moved.version().number == 42);
  REQUIRE_FALSE(moved.is_full());
  CHECK(moved.base_version()->number == 41);
  CHECK(moved.encoding() == sync::DiffEncoding::Xor);
  CHECK(moved.checksum_format() == sync::ChecksumFormat::Adler32);
  REQUIRE(moved.tensors().size() == 3);
  const char* const kDiffs[] = {"ay", "bee", "sea"};
  const char* const kChecksums[] = {"0000000a", "0000000B", "0000000c"};
  for (std::size_t at = 0; at < 3; ++at) {
    const sync::PublishedTensor& tensor = moved.tensors()[at];
    CHECK(tensor.name == std::string(1, static_cast<char>('a' + at)));
    CHECK(tensor.checksum == kChecksums[at]);
    CHECK(content_of(moved, tensor) == kDiffs[at]);
    CHECK(moved.shards()[tensor.shard].path.filename() == (at == 1 ? kSecond : kFirst));
    CHECK(moved.find(tensor.name) == &tensor);
  }
  CHECK(moved.find("d") == nullptr);
}

TEST_CASE("metadata of an index are read from any text", "[tools][sync]") {
  // Some that once were read beyond their ends, or without one.
  for (const char* text : {R"({"metadata":{"\)", "[]", R"({"a":[)", R"({"a":{)", R"({"a":])", "", " ", "7",
                           "{", R"({"metadata":{"version":"1"}}})"}) {
    CAPTURE(text);
    const auto metadata = sync::parse_version_metadata(text);
    REQUIRE_FALSE(metadata);
    CHECK(metadata.error().errno_value == EINVAL);
    CHECK(metadata.error().message.starts_with("byte "));
  }
  CHECK(sync::parse_version_metadata(R"({"metadata":{"version":"1"}})")->version->number == 1);
  CHECK(sync::parse_version_metadata(R"({"metadata":[]})"));
}

TEST_CASE("directory is that of a version by its name or by its index", "[tools][sync]") {
  Draft draft;
  draft.name = "any";
  REQUIRE(draft.open());
  CHECK(tools::is_version_directory(draft.path()));
  CHECK_FALSE(tools::is_version_directory(draft.directory.path()));
  CHECK_FALSE(tools::is_version_directory(draft.path() / kFirst));
  for (const char* text : {R"({"metadata":{"\)", "[]", R"({"a":[)", R"({"a":])", ""}) {
    draft.directory.write("any/" + kIndexName, text);
    CHECK_FALSE(tools::is_version_directory(draft.path()));
  }
  // Sparse: it takes no disk, and must take no memory.
  draft.directory.write("any/" + kIndexName, draft.index());
  std::filesystem::resize_file(draft.path() / kIndexName, std::uintmax_t{6} << 30);
  CHECK_FALSE(tools::is_version_directory(draft.path()));
  std::filesystem::create_directory(draft.directory.path() / "weight_v000001");
  CHECK(tools::is_version_directory(draft.directory.path() / "weight_v000001"));
}

TEST_CASE("version without a changed tensor has no files", "[tools][sync]") {
  Draft draft;
  draft.files.clear();
  draft.weight_map = "{}";
  const auto opened = draft.open();
  REQUIRE(opened);
  CHECK(opened->tensors().empty());
  CHECK_FALSE(opened->is_full());
}

TEST_CASE("version behind a link, and under another name, has the version of its index", "[tools][sync]") {
  Draft draft;
  draft.name = "copy";
  CHECK(draft.open()->version().number == 42);
  Draft named;
  REQUIRE(named.open());
  const auto link = named.directory.path() / "latest";
  std::filesystem::create_directory_symlink(named.path(), link);
  CHECK(PublishedVersion::open(link)->version().number == 42);
  named.metadata = replaced(named.metadata, "000042", "000043");
  REQUIRE_FALSE(named.open());
  CHECK_FALSE(PublishedVersion::open(link));
}

TEST_CASE("full version: an index without an encoding, or one archive without an index", "[tools][sync]") {
  Draft indexed;
  for (const char* metadata : {R"({"version":"000042"})", R"({"total_size":8})", "null", "{}"}) {
    indexed.metadata = metadata;
    indexed.files[kFirst] = archive_of({{"c", "sea"}, {"a", "ay"}});
    const auto opened = indexed.open();
    REQUIRE(opened);
    CHECK(opened->is_full());
    CHECK(opened->version().number == 42);
    CHECK(opened->tensors().size() == 3);
    CHECK(opened->tensors()[0].checksum.empty());
  }
  Draft single;
  single.has_index = false;
  single.files = {{"model.safetensors", archive_of({{"a", "ay"}})}, {"config.json", "{}"}};
  const auto opened = single.open();
  REQUIRE(opened);
  CHECK(opened->is_full());
  CHECK_FALSE(opened->has_index());
  CHECK(content_of(*opened, opened->tensors()[0]) == "ay");
  single.name = "elsewhere";
  CHECK(contains(single.error(), "neither its index nor its name tells a version"));
}

TEST_CASE("unfinished version: what is not there yet", "[tools][sync]") {
  const auto error_of = [](const std::function<void(Draft&)>& change) {
    Draft draft;
    change(draft);
    return draft.error();
  };
  const auto is_unfinished = [](const std::string& error) { return error.starts_with("unfinished: "); };
  CHECK(is_unfinished(error_of([](Draft& draft) { draft.has_index = false; })));
  CHECK(is_unfinished(error_of([](Draft& draft) { draft.has_index = false, draft.files.clear(); })));
  CHECK(is_unfinished(error_of([](Draft& draft) {
    draft.has_index = false;
    draft.files = {{"model.safetensors", archive_of({})}, {"model.safetensors.tmp", ""}};
  })));
  CHECK(is_unfinished(error_of([](Draft& draft) { draft.files.erase(kSecond); })));
  // Shards, cut after any byte.
  const std::string whole = Draft().files.at(kFirst);
  for (std::size_t size = 0; size < whole.size(); ++size) {
    INFO(size);
    REQUIRE(is_unfinished(error_of([&](Draft& draft) { draft.files[kFirst] = whole.substr(0, size); })));
  }
  CHECK_FALSE(is_unfinished(error_of([&](Draft& draft) { draft.files[kFirst] = whole + "x"; })));
}

TEST_CASE("unfinished version: an index that is cut after any byte", "[tools][sync]") {
  const Draft draft;
  REQUIRE(draft.open());
  const std::string whole =
      R"({"metadata": {"version": "000042", "\ud83d\ude00\n": true, "é": -1.5e3}, "weight_map": {"a": "b.safetensors"}})";
  for (std::size_t size = 0; size < whole.size(); ++size) {
    INFO(size);
    REQUIRE(sync::is_cut_short(whole.substr(0, size)));
    REQUIRE(sync::is_cut_short(whole.substr(0, size) + std::string(whole.size() - size, '\0')));
  }
  CHECK_FALSE(sync::is_cut_short(whole));
  CHECK_FALSE(sync::is_cut_short(whole + "\n"));
  CHECK_FALSE(sync::is_cut_short("x"));
  CHECK_FALSE(sync::is_cut_short("\xff\xff\xff\xff\xff"));
  draft.directory.write(draft.name + "/" + kIndexName, whole.substr(0, 20));
  const auto opened = PublishedVersion::open(draft.path());
  REQUIRE_FALSE(opened);
  CHECK(sync::is_unfinished(opened.error()));
}

TEST_CASE("version that does not exist is no unfinished one", "[tools][sync]") {
  const TemporaryDirectory directory;
  CHECK(errno_of(PublishedVersion::open(directory.path() / "weight_v000001")) == ENOENT);
}

TEST_CASE("version is refused where index and files contradict each other", "[tools][sync]") {
  const auto ends_with = [](const std::string& text, const std::string& end) { return text.ends_with(end); };
  const auto error_of = [](const std::function<void(Draft&)>& change) {
    Draft draft;
    change(draft);
    return draft.error();
  };
  CHECK(ends_with(error_of([](Draft& draft) { draft.weight_map.insert(1, R"("d":")" + kFirst + R"(",)"); }),
                  "tensor \"d\": the index names " + kFirst + ", which does not hold it"));
  CHECK(ends_with(
      error_of([](Draft& draft) { draft.weight_map = replaced(draft.weight_map, "\"c\"", "\"d\""); }),
      kFirst + ": tensor \"c\" is in the file, but not in " + kIndexName));
  CHECK(ends_with(error_of([](Draft& draft) {
                    draft.weight_map = replaced(draft.weight_map, "\"a\":\"" + kFirst, "\"a\":\"" + kSecond);
                  }),
                  "tensor \"a\": the index names " + kSecond + ", but " + kFirst + " holds it"));
  CHECK(ends_with(
      error_of([](Draft& draft) {
        draft.files[kSecond] = archive_of({{"b", "bee"}, {"a", "?"}}, R"({"b":"0000000b","a":"0000000a"})");
      }),
      "tensor \"a\" is in " + kSecond + " too"));
}

TEST_CASE("version is refused where an entry is no diff with a checksum", "[tools][sync]") {
  const auto error_of = [](const std::string& second) {
    Draft draft;
    draft.files[kSecond] = second;
    return draft.error();
  };
  CHECK(contains(error_of(archive_of({{"b", "bee"}})), "tensor \"b\" has no checksum"));
  CHECK(contains(error_of(archive_of({{"b", "bee"}}, R"({"B":"0000000b"})")), "has no checksum"));
  CHECK(contains(error_of(archive_of({{"b", "bee"}}, R"({"b":"000000b"})")),
                 "its checksum is \"000000b\", expected the 8 hexadecimal digits of adler32"));
  CHECK(contains(error_of(archive_of({{"b", "bee"}}, R"({"b":"0000000g"})")), "hexadecimal digits"));
  CHECK(contains(error_of(archive_bytes(R"({"__metadata__":{"b":"0000000b"},)"
                                        R"("b":{"dtype":"I8","shape":[3],"data_offsets":[0,3]}})",
                                        "bee")),
                 "tensor \"b\" is I8 [3], expected the bytes of a diff: U8 of one dimension"));
  CHECK(contains(error_of(archive_bytes(R"({"__metadata__":{"b":"0000000b"},)"
                                        R"("b":{"dtype":"U8","shape":[1,3],"data_offsets":[0,3]}})",
                                        "bee")),
                 "is U8 [1,3]"));
  CHECK(contains(error_of("not an archive, but long enough"), kSecond));
}

TEST_CASE("version is refused where its metadata are wrong", "[tools][sync]") {
  const auto error_of = [](const std::string& what, const std::string& with) {
    Draft draft;
    draft.metadata = replaced(draft.metadata, what, with);
    return draft.error();
  };
  CHECK(contains(error_of("xor", "XOR"), "metadata.delta_encoding: \"XOR\" is no encoding"));
  CHECK(contains(error_of("zstd", "gzip"), "\"gzip\" is no compression format: expected zstd"));
  CHECK(contains(error_of("adler32", "crc32"), "metadata.checksum_format: \"crc32\" is no checksum format"));
  CHECK(contains(error_of("000042", "000043"),
                 "metadata.version is 000043, but the directory is of version 000042"));
  CHECK(contains(error_of("000041", "000042"), "base_version is 000042, expected a version before 000042"));
  CHECK(contains(error_of("000041", "000100"), "expected a version before 000042"));
  CHECK(contains(error_of("000041", "41a"), "metadata.base_version is \"41a\", expected decimal digits"));
  CHECK(contains(error_of("\"000042\"", "42"), "metadata.version is \"42\", expected a string"));
  CHECK(contains(error_of("\"000041\"", "[\"000041\"]"), "metadata.base_version is"));
  CHECK(contains(error_of("\"zstd\"", "{}"), "metadata.compression_format is \"{}\", expected a string"));
  CHECK(contains(error_of("\"adler32\"", "null"), "has delta_encoding, but no checksum_format"));
  CHECK(contains(error_of("\"base_version\"", "\"base\""), "but no base_version"));
  CHECK(contains(error_of("\"version\"", "\"number\""), "but no version"));
  CHECK(contains(error_of("{\"version\"", R"({"version":"000042","version")"),
                 "metadata.version is given twice"));
  Draft list;
  list.metadata = "[]";
  CHECK(contains(list.error(), "metadata is not an object"));
  Draft outside;
  outside.weight_map = replaced(outside.weight_map, kFirst, "../" + kFirst);
  CHECK(contains(outside.error(), "leads out of the directory"));
}

}  // namespace stfs::test
