// Numbers as people read and write them.
#include "tools/text/quantity.h"

#include "tests/support/catch.h"

using namespace stfs::tools;

TEST_CASE("human size has one decimal and never reads 1024", "[tools][quantity]") {
  CHECK(human_size(0) == "0 B");
  CHECK(human_size(1023) == "1023 B");
  CHECK(human_size(1024) == "1.0 KiB");
  CHECK(human_size(1536) == "1.5 KiB");
  CHECK(human_size((1U << 20U) - 1) == "1.0 MiB");
  CHECK(human_size(~0ULL) == "16.0 EiB");
}

TEST_CASE("grouped puts a comma before every third digit", "[tools][quantity]") {
  CHECK(grouped(0) == "0");
  CHECK(grouped(999) == "999");
  CHECK(grouped(1000) == "1,000");
  CHECK(grouped(1234567) == "1,234,567");
}

TEST_CASE("human count names millions to trillions", "[tools][quantity]") {
  CHECK(human_count(999'999).empty());
  CHECK(human_count(1'000'000) == "1.00 million");
  CHECK(human_count(999'999'999) == "1.00 billion");
  CHECK(human_count(6'738'415'616) == "6.74 billion");
  CHECK(human_count(5'000'000'000'000'000) == "5000.00 trillion");
}

TEST_CASE("human duration counts seconds, minutes and hours", "[tools][quantity]") {
  using std::chrono::seconds;
  CHECK(human_duration(seconds(0)) == "0 s");
  CHECK(human_duration(seconds(119)) == "119 s");
  CHECK(human_duration(seconds(120)) == "2 min");
  CHECK(human_duration(seconds(7199)) == "119 min");
  CHECK(human_duration(seconds(7200)) == "2 h");
}

TEST_CASE("parse size reads plain numbers, fractions and both kinds of units", "[tools][quantity]") {
  CHECK(parse_size("0") == 0);
  CHECK(parse_size("4096") == 4096);
  CHECK(parse_size("7B") == 7);
  CHECK(parse_size("1K") == 1024);
  CHECK(parse_size("1k") == 1024);
  CHECK(parse_size("1KiB") == 1024);
  CHECK(parse_size("1KB") == 1000);
  CHECK(parse_size("1.5G") == 1610612736);
  CHECK(parse_size("10MB") == 10'000'000);
}

TEST_CASE("parse size refuses what is no size", "[tools][quantity]") {
  for (const char* text :
       {"", "G", "-1", "+1", "1 G", "1X", "1iB", "1GG", "1.2.3", "0x10", "inf", "99999P", "1e3"}) {
    CAPTURE(text);
    CHECK_FALSE(parse_size(text));
  }
}
