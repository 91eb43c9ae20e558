// The top level of stfs.
#include "tools/cli/dispatch.h"

#include <array>
#include <new>
#include <ostream>
#include <stdexcept>
#include <string>

#include "core/base/version.h"
#include "tests/support/catch.h"
#include "tests/support/tool_run.h"

using namespace stfs;

namespace {

int echo(const tools::Arguments& arguments, tools::Streams& streams) {
  for (const std::string& argument : arguments) streams.out << '<' << argument << '>';
  return 7;
}
int no_memory(const tools::Arguments&, tools::Streams&) {
  throw std::bad_alloc();
}

constexpr std::array kVerbs = {tools::Verb{"echo", "prints its arguments", echo},
                               tools::Verb{"swell", "needs too much", no_memory}};

int run_top(const tools::Arguments& arguments, tools::Streams& streams) {
  return tools::dispatch(kVerbs, arguments, streams);
}

}  // namespace

TEST_CASE("dispatch gives the verb its arguments and returns its code", "[tools][dispatch]") {
  const auto run = test::run_verb(run_top, {"echo", "a", "", "--x"});
  CHECK(run.code == 7);
  CHECK(run.out == "<a><><--x>");
}

TEST_CASE("dispatch lists the verbs for --help, help and nothing", "[tools][dispatch]") {
  for (const tools::Arguments& arguments :
       {tools::Arguments{"--help"}, {"-h"}, {"help"}, {"help", "--help"}}) {
    const auto run = test::run_verb(run_top, arguments);
    CHECK(run.code == 0);
    CHECK(run.out.find("prints its arguments") != std::string::npos);
    CHECK(run.out.find("Examples:") != std::string::npos);
  }
  const auto run = test::run_verb(run_top, {});
  CHECK(run.code == 2);
  CHECK(run.out.empty());
  CHECK(run.err.find("prints its arguments") != std::string::npos);
}

TEST_CASE("dispatch answers help VERB by the verb's own help", "[tools][dispatch]") {
  CHECK(test::run_verb(run_top, {"help", "echo"}).out == "<--help>");
  CHECK(test::run_verb(run_top, {"help", "none"}).code == 2);
  CHECK(test::run_verb(run_top, {"help", "echo", "swell"}).err ==
        "stfs: help: swell: one argument too many\nTry 'stfs --help'.\n");
}

TEST_CASE("dispatch prints the version", "[tools][dispatch]") {
  CHECK(test::run_verb(run_top, {"--version"}).out == "stfs " + std::string(build_version()) + "\n");
}

TEST_CASE("dispatch asks each verb for its definitions, and ends with the first that fails",
          "[tools][dispatch]") {
  const auto run = test::run_verb(run_top, {"--definitions"});
  CHECK(run.code == 7);
  CHECK(run.out == "<--definitions>");
}

TEST_CASE("dispatch suggests the nearest verb for an unknown one", "[tools][dispatch]") {
  const auto run = test::run_verb(run_top, {"ecoh"});
  CHECK(run.code == 2);
  CHECK(run.err == "stfs: ecoh: no such verb, did you mean echo?\nTry 'stfs --help'.\n");
  CHECK(test::run_verb(run_top, {"xyzzy"}).err == "stfs: xyzzy: no such verb\nTry 'stfs --help'.\n");
  CHECK(test::run_verb(run_top, {"--colour"}).err.find("no such option") != std::string::npos);
}

TEST_CASE("dispatch knows what other tools call a verb", "[tools][dispatch]") {
  const std::array verbs = {tools::Verb{"ls", "", tools::ls}, tools::Verb{"rm", "", tools::rm},
                            tools::Verb{"put", "", tools::put}};
  const auto answer_to = [&](const std::string& word) {
    std::istringstream in;
    std::ostringstream out;
    std::ostringstream err;
    tools::Streams streams{in, out, err};
    CHECK(tools::dispatch(verbs, {word}, streams) == 2);
    return err.str();
  };
  CHECK(answer_to("list") == "stfs: list: no such verb, did you mean ls?\nTry 'stfs --help'.\n");
  CHECK(answer_to("delete").starts_with("stfs: delete: no such verb, did you mean rm?\n"));
  CHECK(answer_to("cp").starts_with("stfs: cp: no such verb, did you mean put?\n"));
  CHECK(answer_to("rename") == "stfs: rename: no such verb\nTry 'stfs --help'.\n");  // there is no mv here
}

TEST_CASE("dispatch turns an exception into a message and exit code 1", "[tools][dispatch]") {
  const auto run = test::run_verb(run_top, {"swell"});
  CHECK(run.code == 1);
  CHECK(run.err == "stfs swell: not enough memory\n");
}
