// stfs slice writes exactly the requested elements, or nothing.
#include <sys/stat.h>

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "core/tensor/npy.h"
#include "tests/support/archive_bytes.h"
#include "tests/support/catch.h"
#include "tests/support/plain.h"
#include "tests/support/temporary_directory.h"
#include "tests/support/text_archive.h"
#include "tests/support/tool_run.h"

using namespace stfs;
using test::run_verb;

namespace {

// m[i][j] is the byte 10 * i + j; the halves are 256 and 512; the last are F4, two in a byte.
const std::string kSliceHeader = R"({"m":{"dtype":"U8","shape":[3,4],"data_offsets":[0,12]},)"
                                 R"("m[0]":{"dtype":"U8","shape":[2],"data_offsets":[12,14]},)"
                                 R"("":{"dtype":"U8","shape":[2],"data_offsets":[14,16]},)"
                                 R"("half":{"dtype":"BF16","shape":[2],"data_offsets":[16,20]},)"
                                 R"("four":{"dtype":"F4","shape":[2,4],"data_offsets":[20,24]}})";
const std::string kSliceData("\0\1\2\3\12\13\14\15\24\25\26\27xyde\0\1\0\2abcd", 24);

struct SliceModel {
  test::TemporaryDirectory directory;
  std::string path = directory.write("m.safetensors", test::archive_bytes(kSliceHeader, kSliceData));
};

std::string bytes(std::initializer_list<int> values) {
  std::string text;
  for (const int value : values) text += static_cast<char>(value);
  return text;
}

NpyHeader header_of(const std::string& file) {
  const auto header = parse_npy_header(std::as_bytes(std::span(file)));
  REQUIRE(header);
  return *header;
}

}  // namespace

TEST_CASE("slice writes the elements that NumPy's indexing selects", "[tools][slice]") {
  const SliceModel model;
  const auto slice = [&](const std::string& selected) {
    const auto run = run_verb(tools::slice, {model.path, selected});
    CAPTURE(selected, run.err);
    CHECK(run.code == 0);
    return run.out;
  };
  CHECK(slice("m[1]") == bytes({10, 11, 12, 13}));
  CHECK(slice("m[:, 1]") == bytes({1, 11, 21}));
  CHECK(slice("m[::-2, ::3]") == bytes({20, 23, 0, 3}));
  CHECK(slice("m[..., -1]") == bytes({3, 13, 23}));
  CHECK(slice("m[...]").size() == 12);
  CHECK(slice("m[5:]").empty());
  CHECK(run_verb(tools::slice, {model.path, "m[1]", "-o", "-"}).out == bytes({10, 11, 12, 13}));
  CHECK(run_verb(tools::slice, {"--json", model.path, "m[1]", "-o", "-"}).code == 2);
  CHECK(slice("half[1:]") == bytes({0, 2}));
  CHECK(slice("four[:, 2:]") == "bd");
}

TEST_CASE("slice splits the name from the indices at the last bracket", "[tools][slice]") {
  const SliceModel model;
  CHECK(run_verb(tools::slice, {model.path, "m[0][1]"}).out == "y");
  CHECK(run_verb(tools::slice, {model.path, "m[0]"}).out == bytes({0, 1, 2, 3}));
  CHECK(run_verb(tools::slice, {model.path, "[0]"}).out == "d");
}

TEST_CASE("slice of a tensor larger than what is read at a time is whole", "[tools][slice]") {
  const test::TemporaryDirectory directory;
  constexpr std::size_t kRows = 3001;
  constexpr std::size_t kColumns = 4001;
  std::string data(kRows * kColumns, '\0');
  for (std::size_t at = 0; at < data.size(); ++at) data[at] = static_cast<char>(at * 31 + at / 4093);
  const std::string path = directory.write(
      "m.safetensors", test::archive_bytes(R"({"t":{"dtype":"U8","shape":[3001,4001],"data_offsets":[0,)" +
                                               std::to_string(data.size()) + "]}}",
                                           data));
  CHECK((run_verb(tools::slice, {path, "t[1:]"}).out == data.substr(kColumns)));
  std::string backwards;
  for (std::size_t row = kRows; row-- > 0;) {
    for (std::size_t column = 0; column < kColumns; column += 2) backwards += data[row * kColumns + column];
  }
  CHECK((run_verb(tools::slice, {path, "t[::-1, ::2]"}).out == backwards));
}

TEST_CASE("slice ends with an error where the archive ends while it is read", "[tools][slice]") {
  constexpr std::uint64_t kBytes = std::uint64_t{9} << 20U;  // three pieces
  const test::TemporaryDirectory directory;
  const std::string path =
      directory.write("m.safetensors", test::archive_of({{"big", std::string(kBytes, 'b')}}));
  /// Cuts the archive when the first piece is written.
  struct CuttingBuffer : std::stringbuf {
    explicit CuttingBuffer(const std::string& file) : path(file) {}
    std::streamsize xsputn(const char*, std::streamsize count) override {
      std::filesystem::resize_file(path, std::filesystem::file_size(path) - 1);
      written += count;
      return count;
    }
    const std::string& path;
    std::streamsize written = 0;
  };
  CuttingBuffer cutting(path);
  std::istringstream in;
  std::ostream out(&cutting);
  std::ostringstream err;
  tools::Streams streams{in, out, err, false, false};
  CHECK(tools::slice({path, "big[:]"}, streams) == 1);
  CHECK(test::contains(err.str(), "the file ends at byte "));
  CHECK(cutting.written < static_cast<std::streamsize>(kBytes));
}

TEST_CASE("slice writes a NumPy file where it is asked to or where the file's name says so",
          "[tools][slice]") {
  const SliceModel model;
  const auto streamed = run_verb(tools::slice, {"--npy", model.path, "m[1:, 1:3]"});
  const NpyHeader header = header_of(streamed.out);
  CHECK(header.type_text() == "|u1");
  CHECK(header.shape == std::vector<std::uint64_t>{2, 2});
  CHECK(streamed.out.substr(header.data_offset) == bytes({11, 12, 21, 22}));

  const std::string file = model.directory / "x.npy";
  CHECK(run_verb(tools::slice, {model.path, "half[::-1]", "-o", file}).code == 0);
  const std::string written = test::content_of(file);
  CHECK(header_of(written).type_text() == "<u2");
  CHECK(written.substr(header_of(written).data_offset) == bytes({0, 2, 0, 1}));
  const auto refused = run_verb(tools::slice, {"--raw", model.path, "half[::-1]", "-o", file});
  CHECK(refused.code == 1);
  CHECK(refused.err.find(file + ": exists already: --force replaces it") != std::string::npos);
  CHECK(test::content_of(file) == written);
  CHECK(run_verb(tools::slice, {"--raw", "-f", model.path, "half[::-1]", "-o", file}).code == 0);
  CHECK(test::content_of(file) == bytes({0, 2, 0, 1}));

  const std::string scalar = run_verb(tools::slice, {"--npy", model.path, "m[2,3]"}).out;
  CHECK(header_of(scalar).shape.empty());
  CHECK(scalar.back() == 23);
}

TEST_CASE("slice says what it wrote", "[tools][slice]") {
  const SliceModel model;
  const std::string file = model.directory / "x.bin";
  const auto text = run_verb(tools::slice, {model.path, "m[1:, ::2]", "-o", file});
  CHECK(text.out == "wrote " + file + ": m[1:, ::2]: U8 [2,2], 4 B\n");
  const auto json = run_verb(tools::slice, {"--json", "--force", model.path, "m[1:, ::2]", "-o", file});
  CHECK(nlohmann::json::parse(json.out) == nlohmann::json({{"schema", 1},
                                                           {"path", model.path},
                                                           {"name", "m"},
                                                           {"slice", "1:, ::2"},
                                                           {"dtype", "U8"},
                                                           {"shape", {2, 2}},
                                                           {"size_bytes", 4},
                                                           {"output", file},
                                                           {"format", "raw"}}));
  const auto dry = run_verb(tools::slice, {"--json", model.path, "half[0]"}, test::Output::Terminal);
  CHECK(nlohmann::json::parse(dry.out)["shape"] == nlohmann::json::array());
  CHECK_FALSE(nlohmann::json::parse(dry.out).contains("output"));
}

TEST_CASE("slice says where in the text and why a slice is none, and writes nothing", "[tools][slice]") {
  const SliceModel model;
  const std::string file = model.directory / "x.bin";
  const auto refused = [&](const std::string& selected, const std::string& why) {
    const auto run = run_verb(tools::slice, {model.path, selected, "-o", file});
    CAPTURE(selected);
    CHECK(run.code == 1);
    CHECK(run.out.empty());
    CHECK(run.err == "stfs slice: " + model.path + ": " + why + "\n");
  };
  refused("m[3]", "m[3]: index 3 is out of range for dimension 0, which has 3 elements\n  m[3]\n    ^");
  refused("m[0, ::0]", "m[0, ::0]: a step of 0\n  m[0, ::0]\n       ^");
  refused("m[1,2,3]", "m[1,2,3]: more indices than the 2 dimensions of [3,4]\n  m[1,2,3]\n        ^");
  refused("hlaf[0]", "hlaf: no such tensor, did you mean half?");
  CHECK(run_verb(tools::slice, {model.path, "four[0, 1]"}).code == 1);
  CHECK(run_verb(tools::slice, {model.path, "m[]"}).code == 1);
  CHECK(test::count_files(model.directory.path()) == 1);
}

TEST_CASE("slice without brackets, with two tensors or with two formats is wrong usage", "[tools][slice]") {
  const SliceModel model;
  for (const tools::Arguments& arguments : {tools::Arguments{model.path},
                                            {model.path, "m"},
                                            {model.path, "m[0"},
                                            {model.path, "m[0]", "m[1]"},
                                            {"--npy", "--raw", model.path, "m[0]"}}) {
    const auto run = run_verb(tools::slice, arguments);
    CHECK(run.code == 2);
    CHECK(run.out.empty());
    CHECK(run.err.find("Try 'stfs slice --help'.") != std::string::npos);
  }
}

TEST_CASE("slice refuses a terminal unless forced", "[tools][slice]") {
  const SliceModel model;
  const auto refused = run_verb(tools::slice, {model.path, "m[0]"}, test::Output::Terminal);
  CHECK(refused.code == 1);
  CHECK(refused.out.empty());
  CHECK(run_verb(tools::slice, {"-f", model.path, "m[0]"}, test::Output::Terminal).out.size() == 4);
}

TEST_CASE("slice replaces a file only when all is written, and never one of the model", "[tools][slice]") {
  const SliceModel model;
  const std::string file = model.directory.write("x.bin", "old");
  std::filesystem::create_hard_link(model.path, model.directory / "other-name");
  for (const std::string& own : {model.path, model.directory / "other-name"}) {
    const auto run = run_verb(tools::slice, {model.path, "m[0]", "-o", own});
    CHECK(run.code == 1);
    CHECK(run.err == "stfs slice: " + own + ": is a file of the input model and is not replaced\n");
  }
  CHECK(test::content_of(model.path) == test::archive_bytes(kSliceHeader, kSliceData));

  CHECK(run_verb(tools::slice, {model.path, "m[0]", "-o", file}).code == 1);
  CHECK(test::content_of(file) == "old");
  CHECK(run_verb(tools::slice, {"--force", model.path, "m[0]", "-o", file}).code == 0);
  CHECK(test::content_of(file) == bytes({0, 1, 2, 3}));
  CHECK(run_verb(tools::slice, {model.path, "m[0]", "-o", model.directory / "none/x"}).code == 1);
  CHECK(run_verb(tools::slice, {model.path, "m[0]", "-o", model.directory.path().string()}).code == 1);
  CHECK(test::count_files(model.directory.path()) == 3);
}

TEST_CASE("slice finds the tensor in whichever shard has it", "[tools][slice]") {
  const test::TemporaryDirectory directory;
  directory.write("1.safetensors", test::archive_of({{"a", "ab"}}));
  directory.write("2.safetensors", test::archive_of({{"b", "cd"}}));
  const std::string index = directory.write("model.safetensors.index.json",
                                            R"({"weight_map":{"a":"1.safetensors","b":"2.safetensors"}})");
  CHECK(run_verb(tools::slice, {index, "b[::-1]"}).out == "dc");
  CHECK(run_verb(tools::slice, {directory.path().string(), "a[1]"}).out == "b");
  for (const char* own : {"1.safetensors", "2.safetensors", "model.safetensors.index.json"}) {
    CHECK(run_verb(tools::slice, {index, "b[0]", "-o", directory / own}).code == 1);
  }
}

TEST_CASE("a slice is no more readable than the shard that it comes from", "[tools][slice]") {
  const SliceModel model;
  const mode_t mask = ::umask(0);
  for (const mode_t mode : {0600U, 0640U, 0444U, 0666U}) {
    CAPTURE(mode);
    REQUIRE(::chmod(model.path.c_str(), mode) == 0);
    for (const auto& words : {std::vector<std::string>{"m[1]", "-o"}, {"m[1]", "--npy", "-o"}}) {
      const std::string out = model.directory / "out";
      std::vector<std::string> arguments = {model.path};
      arguments.insert(arguments.end(), words.begin(), words.end());
      arguments.push_back(out);
      REQUIRE(run_verb(tools::slice, arguments).code == 0);
      struct stat made {};
      REQUIRE(::stat(out.c_str(), &made) == 0);
      CHECK((made.st_mode & 07777U) == (mode | 0600U));
      std::filesystem::remove(out);
    }
  }
  if (::geteuid() == 0) {
    REQUIRE(::chown(model.path.c_str(), 12345, 12345) == 0);
    REQUIRE(::chmod(model.path.c_str(), 0664) == 0);
    const std::string out = model.directory / "of another group";
    REQUIRE(run_verb(tools::slice, {model.path, "m[1]", "-o", out}).code == 0);
    CHECK(std::filesystem::status(out).permissions() == std::filesystem::perms{0644});
  }
  ::umask(mask);
}
