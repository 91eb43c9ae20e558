// Untrusted text is printed without control sequences for the terminal.
#include "tools/text/printable.h"

#include "tests/support/catch.h"

using namespace stfs::tools;

TEST_CASE("printable names of two different names differ", "[tools][printable]") {
  CHECK(printable_name("") == "\"\"");
  CHECK(printable_name("\\n") == "\\\\n");
  CHECK(printable_name("\n") == "\\n");
  CHECK(printable_name(" a b ") == "\\x20a b\\x20");
  CHECK(printable_name(" ") == "\\x20");
  CHECK(printable_name("  ") == "\\x20\\x20");
}
