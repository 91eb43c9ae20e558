// Text of strangers: nothing of it commands the terminal.
#include "tools/text/printable.h"

#include "tests/support/catch.h"

using namespace stfs::tools;

TEST_CASE("printable leaves text alone and spells control characters out", "[tools][printable]") {
  CHECK(printable("weight 重み \\ ok") == "weight 重み \\ ok");
  CHECK(printable("a\x1b[2J\b\x7f") == "a\\x1b[2J\\x08\\x7f");
  CHECK(printable("\n\t\r") == "\\n\\t\\r");
  CHECK(printable(std::string_view("\0", 1)) == "\\x00");
}

TEST_CASE("printable spells out marks without a glyph, in and beyond the first plane", "[tools][printable]") {
  CHECK(printable("\u202e\u200b\ufeff") == "\\u202e\\u200b\\ufeff");
  CHECK(printable("\U000e0041") == "\\U000e0041");
}

TEST_CASE("printable spells out every byte that is no UTF-8", "[tools][printable]") {
  CHECK(printable("a\xff\xc3") == "a\\xff\\xc3");
  CHECK(printable("\xed\xa0\x80") == "\\xed\\xa0\\x80");  // a surrogate
  CHECK(printable("\xc0\xaf/") == "\\xc0\\xaf/");         // an overlong slash
}

TEST_CASE("printable names of two different names differ", "[tools][printable]") {
  CHECK(printable_name("") == "\"\"");
  CHECK(printable_name("\\n") == "\\\\n");
  CHECK(printable_name("\n") == "\\n");
  CHECK(printable_name(" a b ") == "\\x20a b\\x20");
  CHECK(printable_name(" ") == "\\x20");
  CHECK(printable_name("  ") == "\\x20\\x20");
}
