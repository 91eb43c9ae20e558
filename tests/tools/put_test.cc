// stfs put takes every kind of source, checks it, and writes the whole tensor or nothing.
#include <nlohmann/json.hpp>

#include "tests/support/archive_bytes.h"
#include "tests/support/catch.h"
#include "tests/support/plain.h"
#include "tests/support/tool_run.h"
#include "tests/tools/sample_model.h"

using namespace stfs;
using test::content_of;
using test::run_verb;

namespace {

/// A NumPy file of version 1, byte by byte.
std::string npy(const std::string& type, const std::string& shape, const std::string& data) {
  std::string dict = "{'descr': '" + type + "', 'fortran_order': False, 'shape': " + shape + ", }";
  dict.resize(117, ' ');
  return std::string("\x93NUMPY\1\0\x76\0", 10) + dict + "\n" + data;
}

}  // namespace

TEST_CASE("put writes raw bytes and leaves all other bytes as they were", "[tools][put]") {
  const test::SampleModel model;
  const auto run = run_verb(tools::put, {model.path, "x", model.directory.write("x.bin", "new")});
  CHECK(run.code == 0);
  CHECK(run.err.empty());
  CHECK(run.out == "changed x: U8 [3], 3 B\n");
  CHECK(content_of(model.path) == model.archive(std::string(32, '.') + "new"));
  CHECK(test::count_files(model.directory.path()) == 2);
}

TEST_CASE("put reads raw bytes from standard input", "[tools][put]") {
  const test::SampleModel model;
  CHECK(run_verb(tools::put, {model.path, "x", "-"}, test::Output::Pipe, "new").code == 0);
  CHECK(content_of(model.path) == model.archive(std::string(32, '.') + "new"));
}

TEST_CASE("put refuses an input that is too short or too long, and changes nothing", "[tools][put]") {
  const test::SampleModel model;
  const auto cut = run_verb(tools::put, {model.path, "x", "-"}, test::Output::Pipe, "ne");
  CHECK(cut.code == 1);
  CHECK(cut.err == "stfs put: standard input: ended after 2 bytes: the tensor needs exactly 3\n");
  const auto longer = run_verb(tools::put, {model.path, "x", "-"}, test::Output::Pipe, "news");
  CHECK(longer.code == 1);
  CHECK(longer.err == "stfs put: standard input: has more than 3 bytes, the size of the tensor\n");
  const std::string file = model.directory.write("x.bin", "news");
  CHECK(run_verb(tools::put, {model.path, "x", file}).err ==
        "stfs put: " + file + ": has 4 bytes: U8 [3] needs exactly 3\n");
  CHECK(model.is_untouched());
}

TEST_CASE("put takes a directory with one model, also with --create", "[tools][put]") {
  const test::SampleModel model;
  const std::string directory = model.directory.path();
  const test::TemporaryDirectory elsewhere;
  const std::string file = elsewhere.write("x.bin", "new");
  CHECK(run_verb(tools::put, {directory, "x", file}).out == "changed x: U8 [3], 3 B\n");
  const auto made = run_verb(tools::put, {"--create", "--dtype", "U8", directory, "y", file});
  CHECK(made.err.empty());
  CHECK(made.out == "changed y: U8 [3], 3 B\n");
  CHECK(run_verb(tools::put, {directory, "y", file}).code == 0);
}

TEST_CASE("put names the models of a directory with several, also with --create", "[tools][put]") {
  const test::SampleModel model;
  const std::string directory = model.directory.path();
  const test::TemporaryDirectory elsewhere;
  const std::string file = elsewhere.write("x.bin", "new");
  model.directory.write("other.safetensors", content_of(model.path));
  for (const std::vector<std::string>& options :
       {std::vector<std::string>{}, std::vector<std::string>{"--create", "--dtype", "U8"}}) {
    std::vector<std::string> words = options;
    words.insert(words.end(), {directory, "x", file});
    const auto run = run_verb(tools::put, words);
    CHECK(run.code == 1);
    CHECK(run.err == "stfs put: " + directory + ": is a directory: name an archive in it: " +
                         std::filesystem::path(model.path).filename().string() + ", other.safetensors\n");
  }
  CHECK(model.is_untouched());
}

TEST_CASE("put --create without a name says what is missing", "[tools][put]") {
  const test::SampleModel model;
  const auto run = run_verb(tools::put, {"--create", std::string(model.directory.path()), "x.bin"});
  CHECK(run.code == 2);
  CHECK(run.err.starts_with(
      "stfs put: NAME and FILE are required with --create, and TARGET is the model, not a "
      "tensor's file\n"));
  CHECK(model.is_untouched());
}

TEST_CASE("put takes a tensor of no bytes", "[tools][put]") {
  const test::SampleModel model;
  CHECK(run_verb(tools::put, {model.path, "none", "-"}).code == 0);
  CHECK(run_verb(tools::put, {model.path, "none", "-"}, test::Output::Pipe, "x").code == 1);
  CHECK(model.is_untouched());
}

TEST_CASE("put copies a tensor larger than a piece", "[tools][put]") {
  const test::TemporaryDirectory directory;
  const std::string header = R"({"a":{"dtype":"U8","shape":[5],"data_offsets":[0,5]},)"
                             R"("t":{"dtype":"U8","shape":[3000001],"data_offsets":[5,3000006]}})";
  const std::string path = directory.write("m", test::archive_bytes(header, std::string(3'000'006, '.')));
  std::string data(3'000'001, '\0');
  for (std::size_t at = 0; at < data.size(); ++at) data[at] = static_cast<char>(at * 31 + at / 4093);
  for (const char* durability : {"power", "process"}) {
    CHECK(run_verb(tools::put, {"--durability", durability, path, "t", "-"}, test::Output::Pipe, data).code ==
          0);
    CHECK((content_of(path) == test::archive_bytes(header, "....." + data)));
    std::reverse(data.begin(), data.end());
  }
}

TEST_CASE("put takes a NumPy file of the same dtype and shape", "[tools][put]") {
  const test::SampleModel model;
  const std::string data = "abcdefghijklmnopqrstuvwx";
  const std::string file = model.directory.write("f.npy", npy("<f4", "(2, 3)", data));
  const auto run = run_verb(tools::put, {model.path, "f", file});
  CHECK(run.err.empty());
  CHECK(run.code == 0);
  CHECK(content_of(model.path) == model.archive(data + std::string(11, '.')));
  const std::string bf16 = model.directory.write("b.npy", npy("|V2", "(4,)", "12345678"));
  CHECK(run_verb(tools::put, {model.path, "b", bf16}).code == 0);
  CHECK(content_of(model.path) == model.archive(data + "12345678..."));
}

TEST_CASE("put refuses a NumPy file that is another array, and changes nothing", "[tools][put]") {
  const test::SampleModel model;
  const std::string data(24, 'x');
  for (const auto& [content, why] :
       {std::pair(npy("<i4", "(2, 3)", data), "holds <i4, expected F32"),
        std::pair(npy("<f4", "(3, 2)", data), "has the shape [3,2], expected [2,3]"),
        std::pair(npy("<f4", "(2, 3)", data + "x"), "has 25 bytes of data, its header gives 24"),
        std::pair(data, "is not a NumPy file: it does not begin like one")}) {
    const std::string file = model.directory.write("f.npy", content);
    const auto run = run_verb(tools::put, {model.path, "f", file});
    CHECK(run.code == 1);
    CHECK(run.err == "stfs put: " + file + ": " + why + "\n");
  }
  CHECK(model.is_untouched());
  const std::string misnamed = model.directory.write("f.bin", npy("<f4", "(2, 3)", data));
  CHECK(run_verb(tools::put, {model.path, "f", misnamed}).err.find("must end in .npy") != std::string::npos);
  const std::string raw = model.directory.write("raw.npy", data);
  CHECK(run_verb(tools::put, {"--raw", model.path, "f", raw}).code == 0);
  CHECK(content_of(model.path) == model.archive(data + std::string(11, '.')));
}

TEST_CASE("put takes a tensor of another archive, of the same name or another", "[tools][put]") {
  const test::SampleModel model;
  const std::string other = model.directory.write(
      "o.safetensors", test::archive_bytes(R"({"x":{"dtype":"U8","shape":[3],"data_offsets":[0,3]},)"
                                           R"("[y]":{"dtype":"U8","shape":[3],"data_offsets":[3,6]},)"
                                           R"("f":{"dtype":"F16","shape":[2,3],"data_offsets":[6,18]}})",
                                           "onetwo" + std::string(12, 'f')));
  CHECK(run_verb(tools::put, {model.path, "x", other}).code == 0);
  CHECK(content_of(model.path) == model.archive(std::string(32, '.') + "one"));
  CHECK(run_verb(tools::put, {model.path, "x", other, "--from-tensor", "[y]"}).code == 0);
  CHECK(content_of(model.path) == model.archive(std::string(32, '.') + "two"));
  CHECK(run_verb(tools::put, {model.path, "f", other}).err ==
        "stfs put: " + other +
            ": f: other dtype and size: found F16 [2,3], 12 bytes; expected F32 [2,3], 24 bytes\n");
  CHECK(run_verb(tools::put, {model.path, "b", other}).err ==
        "stfs put: " + other + ": b: no such tensor, did you mean x or f?\n");
  CHECK(content_of(model.path) == model.archive(std::string(32, '.') + "two"));
}

TEST_CASE("put tells in JSON what it changed", "[tools][put]") {
  const test::SampleModel model;
  const auto run = run_verb(tools::put, {"--json", model.path, "x", "-"}, test::Output::Pipe, "new");
  const auto document = nlohmann::json::parse(run.out);
  CHECK(document == nlohmann::json{{"schema", 1},
                                   {"path", model.path},
                                   {"changed", true},
                                   {"name", "x"},
                                   {"dtype", "U8"},
                                   {"shape", {3}},
                                   {"size_bytes", 3}});
}

TEST_CASE("put with wrong arguments exits with 2", "[tools][put]") {
  const test::SampleModel model;
  for (const tools::Arguments& wrong : {tools::Arguments{model.path},
                                        {model.path, "x"},
                                        {model.path, "x", "-", "y"},
                                        {model.path, "x", "-", "--durability", "luck"},
                                        {model.path, "x", "-", "--wait", "-1"},
                                        {model.path, "x", "-", "--raw", "--from-tensor", "y"}}) {
    CAPTURE(wrong);
    CHECK(run_verb(tools::put, wrong).code == 2);
  }
  CHECK(run_verb(tools::put, {model.path, "y", "-"}).code == 1);
  CHECK(model.is_untouched());
}
