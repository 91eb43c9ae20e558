// core/format/metadata.h
#include "core/format/metadata.h"

#include <algorithm>

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
