// core/base/shell_word.h: a path in an advised command is one word for a shell, whatever its name.
#include "core/base/shell_word.h"

#include <cstdio>
#include <string>

#include "support/catch.h"
#include "support/temporary_directory.h"

using namespace stfs;

namespace {

/// Returns the argument that a shell makes of the word.
std::string read_by(const char* shell, const std::string& word) {
  test::TemporaryDirectory directory;
  const auto script = directory.path() / "script";
  directory.write("script", "printf %s " + word + "\n");
  std::string read;
  FILE* const pipe = ::popen((std::string(shell) + " " + script.string()).c_str(), "r");
  REQUIRE(pipe != nullptr);
  for (int c = std::fgetc(pipe); c != EOF; c = std::fgetc(pipe)) read += static_cast<char>(c);
  CHECK(::pclose(pipe) == 0);
  return read;
}

}  // namespace

TEST_CASE("a common path stays as it is in an advised command", "[core][shell_word]") {
  CHECK(shell_word("/srv/models/model-00001-of-00002.safetensors") ==
        "/srv/models/model-00001-of-00002.safetensors");
  CHECK(shell_word("my model") == "'my model'");
  CHECK(shell_word("") == "''");
}

TEST_CASE("a name with quotes starts no command", "[core][shell_word]") {
  CHECK(shell_word(".x'; touch PWN; '.scratch") == R"('.x'\''; touch PWN; '\''.scratch')");
  for (const char* name : {".x'; echo PWN; '.scratch", "$(echo PWN)", "`echo PWN`", "a\\", "a b\"c", "~", "*",
                           "a;b", "#a", "重み", "a&b", "'", "!x"})
    CHECK(read_by("sh", shell_word(name)) == name);
}

TEST_CASE("a name that begins as an option is a path", "[core][shell_word]") {
  CHECK(shell_word("-rf") == "./-rf");
  CHECK(shell_word("-r f") == "./'-r f'");
}

TEST_CASE("control characters in a word are escaped, and a shell still reads them", "[core][shell_word]") {
  CHECK(shell_word("a\x1b[2J\n'b\\") == R"($'a\x1b[2J\n\'b\\')");
  CHECK(shell_word("a\xff") == R"($'a\xff')");
  for (const char* name : {"a\x1b[2J\n'b\\", "a\xff", "\t'; echo PWN; '"})
    CHECK(read_by("bash", shell_word(name)) == name);
}
