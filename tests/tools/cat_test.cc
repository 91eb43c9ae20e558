// stfs cat writes exactly the tensors' bytes, or nothing.
#include <filesystem>

#include "tests/support/catch.h"
#include "tests/support/temporary_directory.h"
#include "tests/support/text_archive.h"
#include "tests/support/tool_run.h"

using namespace stfs;
using test::run_verb;

namespace {

struct CatModel {
  test::TemporaryDirectory directory;
  std::string path = directory.write("m.safetensors", test::archive_of({{"first", std::string("he\0lo", 5)},
                                                                        {"second", "\n\xff!"},
                                                                        {"", "e"},
                                                                        {"[a,b]", "b"},
                                                                        {"-n", "-"},
                                                                        {"none", ""}}));
};

}  // namespace

TEST_CASE("cat writes the bytes of tensors in the order asked for", "[tools][cat]") {
  const CatModel model;
  CHECK(run_verb(tools::cat, {model.path, "first"}).out == std::string("he\0lo", 5));
  CHECK(run_verb(tools::cat, {model.path, "second", "first"}).out == std::string("\n\xff!he\0lo", 8));
  CHECK(run_verb(tools::cat, {model.path, "second", "second"}).out == "\n\xff!\n\xff!");
}

TEST_CASE("cat of an empty tensor writes nothing and succeeds", "[tools][cat]") {
  const CatModel model;
  const auto run = run_verb(tools::cat, {model.path, "none"});
  CHECK(run.code == 0);
  CHECK(run.out.empty());
}

TEST_CASE("cat takes names that look like lists, options or nothing", "[tools][cat]") {
  const CatModel model;
  CHECK(run_verb(tools::cat, {model.path, ""}).out == "e");
  CHECK(run_verb(tools::cat, {model.path, "[a,b]"}).out == "b");
  CHECK(run_verb(tools::cat, {model.path, "--", "-n"}).out == "-");
}

TEST_CASE("cat writes a tensor larger than one slice whole", "[tools][cat]") {
  const test::TemporaryDirectory directory;
  std::string data(20'000'003, '\0');
  for (std::size_t at = 0; at < data.size(); ++at) data[at] = static_cast<char>(at * 31 + at / 4093);
  const std::string path =
      directory.write("m.safetensors", test::archive_of({{"x", data.substr(0, 1)}, {"t", data.substr(1)}}));
  const auto run = run_verb(tools::cat, {path, "t"});
  CHECK(run.code == 0);
  CHECK((run.out == data.substr(1)));  // the parentheses keep Catch from printing 20 MB
}

TEST_CASE("cat writes nothing where one name is wrong, and suggests the near ones", "[tools][cat]") {
  const CatModel model;
  const auto run = run_verb(tools::cat, {model.path, "first", "secnod"});
  CHECK(run.code == 1);
  CHECK(run.out.empty());
  CHECK(run.err == "stfs cat: " + model.path + ": secnod: no such tensor, did you mean second?\n");
}

TEST_CASE("cat suggests names that contain the wrong one", "[tools][cat]") {
  const CatModel model;
  CHECK(run_verb(tools::cat, {model.path, "irs"}).err ==
        "stfs cat: " + model.path + ": irs: no such tensor, did you mean first?\n");
}

TEST_CASE("cat refuses a terminal unless forced", "[tools][cat]") {
  const CatModel model;
  const auto refused = run_verb(tools::cat, {model.path, "first"}, test::Output::Terminal);
  CHECK(refused.code == 1);
  CHECK(refused.out.empty());
  CHECK(refused.err.find("--force") != std::string::npos);
  const auto forced = run_verb(tools::cat, {"--force", model.path, "first"}, test::Output::Terminal);
  CHECK(forced.code == 0);
  CHECK(forced.out.size() == 5);
}

TEST_CASE("cat without a name is wrong usage", "[tools][cat]") {
  const CatModel model;
  const auto run = run_verb(tools::cat, {model.path});
  CHECK(run.code == 2);
  CHECK(run.err.find("NAME is required") != std::string::npos);
}
