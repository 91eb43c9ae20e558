// stfs set takes the value of a key from the command line or from a file.
#include <filesystem>
#include <string>

#include "core/format/header.h"
#include "tests/support/catch.h"
#include "tests/support/plain.h"
#include "tests/support/temporary_directory.h"
#include "tests/support/text_archive.h"
#include "tests/support/tool_run.h"

using namespace stfs;
using test::contains;
using test::run_verb;

namespace {

/// Sets the key "card" of a model to the text of a file.
struct Card {
  [[nodiscard]] test::ToolRun set() const {
    return run_verb(tools::set, {model, "--metadata", "card=@" + file});
  }

  const test::TemporaryDirectory directory;
  const std::string model = directory.write("m.safetensors", test::archive_of({{"a", "ab"}}));
  const std::string file = directory.write("card.md", "text of the card");
};

}  // namespace

TEST_CASE("set takes a value from a file, and @@ is an @ of the value", "[tools][set]") {
  const Card card;
  CHECK(card.set().code == 0);
  CHECK(contains(test::content_of(card.model), R"("card":"text of the card")"));
  CHECK(run_verb(tools::set, {card.model, "--metadata", "card=@@file"}).code == 0);
  CHECK(contains(test::content_of(card.model), R"("card":"@file")"));
}

TEST_CASE("set says which file of a value can't be read", "[tools][set]") {
  const Card card;
  std::filesystem::remove(card.file);
  const auto missing = card.set();
  CHECK(missing.code == 1);
  CHECK(contains(missing.err, card.file + ": "));
  CHECK(contains(missing.err, "No such file"));
  // A file of sysfs has fewer bytes than its size says.
  if (const std::string cut = "/sys/kernel/fscaps"; std::filesystem::exists(cut)) {
    const auto unread = run_verb(tools::set, {card.model, "--metadata", "card=@" + cut});
    CHECK(unread.code == 1);
    CHECK(contains(unread.err, cut + ": the file ends at byte "));
  }
  CHECK(test::content_of(card.model) == test::archive_of({{"a", "ab"}}));
}

TEST_CASE("set refuses a file that is too long for any header by its size", "[tools][set]") {
  const Card card;
  const std::string why = card.file + ": has more than the 100000000 bytes that a header can hold";
  static_cast<void>(card.directory.write("card.md", std::string(kMaxHeaderBytes, 'x')));
  const auto too_long_with_its_key = card.set();
  CHECK(too_long_with_its_key.code == 1);
  CHECK_FALSE(contains(too_long_with_its_key.err, why));
  std::filesystem::resize_file(card.file, kMaxHeaderBytes + 1);
  const auto too_long = card.set();
  CHECK(too_long.code == 1);
  CHECK(contains(too_long.err, why));
  CHECK(test::content_of(card.model) == test::archive_of({{"a", "ab"}}));
}
