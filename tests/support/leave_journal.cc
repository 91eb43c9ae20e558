// leave_journal ARCHIVE OFFSET [GROUP_RECORD] < BYTES: promises the bytes, whole blocks at a multiple of 4096
// of the archive, in a committed journal, and dies as an owner that was killed behind the commit point.
// Prints the journal's path. With the name of a group record, the journal waits for that record.
#include <cstdio>
#include <exception>
#include <iostream>
#include <iterator>
#include <string>

#include "tests/support/planted_journal.h"

int main(int argc, char** argv) {
  if (argc != 3 && argc != 4) {
    std::fputs("usage: leave_journal ARCHIVE OFFSET [GROUP_RECORD] < BYTES\n", stderr);
    return 2;
  }
  try {
    const std::string bytes{std::istreambuf_iterator<char>(std::cin), {}};
    const std::string group_record = argc == 4 ? argv[3] : "";
    const auto journal = stfs::test::plant_journal(argv[1], std::stoull(argv[2]), bytes, {},
                                                   stfs::system_storage(), group_record);
    std::puts(journal.c_str());
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "leave_journal: %s\n", error.what());
    return 1;
  }
}
