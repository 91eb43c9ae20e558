// libFuzzer on journals: no bytes beside an archive may crash its recovery, hang it, or change the archive
// but as a valid journal says. Inputs are scripts that bend a valid journal (tests/crash/journal_check.h), so
// no corpus is needed. Built by clang with -DSTFS_FUZZ=ON:
//
//   build/fuzz/tests/journal_fuzz -max_len=256
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <span>

#include "tests/crash/journal_check.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto made = stfs::test::make_journal(std::as_bytes(std::span(data, size)));
  if (const auto wrong = stfs::test::check_journal(made.bytes, made.is_forged)) {
    std::fprintf(stderr, "%s\n", wrong->c_str());
    std::abort();
  }
  return 0;
}
