// core/format/metadata.h
#include "core/format/metadata.h"

#include <algorithm>
#include <optional>
#include <string>

#include "support/catch.h"

using stfs::Metadata;

TEST_CASE("metadata keep their pairs in order", "[core][metadata]") {
  Metadata metadata{{"format", "pt"}, {"", ""}};
  metadata.emplace_back("note", "two\nlines");
  REQUIRE(metadata.size() == 3);
  CHECK(!metadata.empty());
  CHECK(metadata[0] == Metadata::value_type("format", "pt"));
  CHECK(metadata[1] == Metadata::value_type("", ""));
  CHECK(metadata[2] == Metadata::value_type("note", "two\nlines"));
  const auto found = std::ranges::find(metadata, "note", &Metadata::value_type::first);
  REQUIRE(found != metadata.end());
  CHECK(found->second == "two\nlines");
  CHECK(std::ranges::find(metadata, "none", &Metadata::value_type::first) == metadata.end());
}

TEST_CASE("metadata differ where only the border of key and value does", "[core][metadata]") {
  CHECK(Metadata{{"ab", "c"}} != Metadata{{"a", "bc"}});
  CHECK(Metadata{{"a", "b"}} == Metadata{{"a", "b"}});
  CHECK(Metadata{}.empty());
}

TEST_CASE("a key of sorted metadata is found, whatever was added before and after", "[core][metadata]") {
  Metadata metadata;
  for (int number = 0; number < 1000; ++number) metadata.emplace_back(std::to_string(number * 7), "v");
  metadata.sort_keys();
  for (int number = 0; number < 1000; ++number) metadata.emplace_back(std::to_string(number * 7 + 1), "w");
  CHECK(metadata.find("8") == "w");  // also before the keys are sorted
  metadata.sort_keys();
  for (int number = 0; number < 1000; ++number) {
    CHECK(metadata.find(std::to_string(number * 7)) == "v");
    CHECK(metadata.find(std::to_string(number * 7 + 1)) == "w");
    CHECK(metadata.find(std::to_string(number * 7 + 2)) == std::nullopt);
  }
  CHECK(metadata.find("") == std::nullopt);
  CHECK(metadata.find("~") == std::nullopt);
}

TEST_CASE("metadata that are sorted are the same metadata", "[core][metadata]") {
  Metadata sorted{{"b", "1"}, {"a", "2"}};
  sorted.sort_keys();
  CHECK(sorted == Metadata{{"b", "1"}, {"a", "2"}});
  CHECK(sorted[0].first == "b");
}

TEST_CASE("of equal keys the first is found, and the last is kept", "[core][metadata]") {
  Metadata metadata{{"a", "1"}, {"b", "2"}, {"a", "3"}, {"a", "4"}};
  metadata.sort_keys();
  CHECK(metadata.find("a") == "1");
  metadata.keep_last_values();
  CHECK(metadata == Metadata{{"b", "2"}, {"a", "4"}});
  CHECK(metadata.find("a") == "4");
}
