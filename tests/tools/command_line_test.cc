// Every verb prints our messages for a wrong command line, not the messages of CLI11.
#include "tools/cli/command_line.h"

#include "tests/support/catch.h"
#include "tests/support/tool_run.h"

using namespace stfs;

namespace {

struct Given {
  std::string target;
  std::string sort;
  std::vector<std::string> rest;
  bool reverse = false;
  std::uint64_t threads = 0;
};
Given given;

int list(const tools::Arguments& arguments, tools::Streams& streams) {
  given = {};
  tools::CommandLine line("list", "Lists.", "Examples:\n  stfs list x");
  line.positional(given.target, "TARGET", "what to list");
  line.choice(given.sort, "--sort", "KEY", "in which order", {"name", "size", "offset"});
  line.flag(given.reverse, "-r,--reverse", "the other way round");
  line.number(given.threads, "--threads", "N", "how many", 1, 8);
  line.texts(given.rest, "--select", "PATTERN", "which");
  return line.parse(arguments, streams).value_or(0);
}

std::vector<std::string> paired;

/// CLI11 2.4 and newer refuse a name with a space, at each call of the verb.
int pair(const tools::Arguments& arguments, tools::Streams& streams) {
  tools::CommandLine line("pair", "Pairs.", "");
  line.positionals(paired, "NAME FILE", "two of them");
  return line.parse(arguments, streams).value_or(0);
}

std::string mistake_in(const tools::Arguments& arguments) {
  const auto run = test::run_verb(list, arguments);
  CHECK(run.code == 2);
  CHECK(run.out.empty());
  const std::string before = "stfs list: ";
  const std::string after = "\nTry 'stfs list --help'.\n";
  REQUIRE(run.err.starts_with(before));
  REQUIRE(run.err.ends_with(after));
  return run.err.substr(before.size(), run.err.size() - before.size() - after.size());
}

}  // namespace

TEST_CASE("what stands for several arguments may have spaces", "[tools][command_line]") {
  CHECK(test::run_verb(pair, {"a", "b"}).code == 0);
  CHECK(paired == std::vector<std::string>{"a", "b"});
  const auto help = test::run_verb(pair, {"--help"});
  CHECK(help.code == 0);
  CHECK(help.err.empty());
  CHECK(help.out.find("Usage: stfs pair [OPTIONS] [NAME FILE") != std::string::npos);
  CHECK(help.out.find("\n  NAME FILE  ") != std::string::npos);
}

TEST_CASE("the help ends with the manual page of the verb", "[tools][command_line]") {
  CHECK(test::run_verb(list, {"--help"})
            .out.ends_with("\n\nExamples:\n  stfs list x\n\nThe manual page: man stfs-list\n"));
  CHECK(test::run_verb(pair, {"--help"}).out.ends_with("\n\nThe manual page: man stfs-pair\n"));
}

TEST_CASE("a wrong option is named, and the nearest one offered", "[tools][command_line]") {
  CHECK(mistake_in({"--sotr", "name", "x"}) == "--sotr: no such option, did you mean --sort?");
  CHECK(mistake_in({"x", "--quick"}) == "--quick: no such option");
  CHECK(mistake_in({"x", "-q"}) == "-q: no such option");
}

TEST_CASE("an argument too many is named", "[tools][command_line]") {
  CHECK(mistake_in({"x", "y"}) == "y: one argument too many");
  CHECK(mistake_in({"x", "[y]", "z"}) == "[y]: one argument too many");
  CHECK(mistake_in({}) == "TARGET is required");
}

TEST_CASE("an option that is given twice, or without its value, says so", "[tools][command_line]") {
  CHECK(mistake_in({"x", "--sort", "name", "--sort", "size"}) == "--sort: is given twice");
  CHECK(mistake_in({"x", "--threads", "1", "--threads", "1"}) == "--threads: is given twice");
  CHECK(mistake_in({"x", "--sort"}) == "--sort: its KEY is missing");
  CHECK(mistake_in({"x", "--threads"}) == "--threads: its N is missing");
  CHECK(mistake_in({"x", "--select"}) == "--select: its PATTERN is missing");
  CHECK(mistake_in({"x", "--reverse=yes"}) == "--reverse: takes no value");
  CHECK(mistake_in({"x", "--reverse=false"}) == "--reverse: takes no value");
  CHECK(test::run_verb(list, {"x", "-r", "-r", "--select", "a", "--select", "b"}).code == 0);
  CHECK(given.rest == std::vector<std::string>{"a", "b"});
}

TEST_CASE("a word or a number that an option does not take names those that it does",
          "[tools][command_line]") {
  CHECK(mistake_in({"x", "--sort", "colour"}) == "--sort: colour: must be name, size or offset");
  CHECK(mistake_in({"x", "--threads", "9"}) == "--threads: 9: must be a whole number from 1 to 8");
}

TEST_CASE("--definitions prints what packaging/generate needs of each option", "[tools][command_line]") {
  const auto run = test::run_verb(list, {"--definitions"});
  CHECK(run.code == 0);
  CHECK(run.out.ends_with("}\n"));
  for (const char* part :
       {R"({"verb":"list","summary":"Lists.","usages":["TARGET"],"options":[)",
        R"({"name":"TARGET","value":"")",
        R"({"name":"--sort","value":"KEY","words":"name|size|offset","description":"in which order",)"
        R"("excludes":[],"repeats":false})",
        R"({"name":"-r,--reverse","value":"","words":"")",
        R"("description":"which","excludes":[],"repeats":true})"}) {
    CAPTURE(part);
    CHECK(run.out.find(part) != std::string::npos);
  }
  CHECK(test::run_verb(pair, {"--definitions"}).out.find(R"({"name":"NAME FILE")") != std::string::npos);
}
