// Compares a sparse file in memory with a plain vector after the same calls.
#include "core/journal/staging_buffer.h"

#include <algorithm>
#include <string>
#include <vector>

#include "tests/support/catch.h"
#include "tests/support/choices.h"
#include "tests/support/faulty_storage.h"
#include "tests/support/temporary_directory.h"

using namespace stfs;
using namespace stfs::test;

namespace {

void put(StagingBuffer& file, std::string_view text, std::uint64_t offset) {
  REQUIRE(file.write(std::as_bytes(std::span(text.data(), text.size())), offset));
}

std::string get(const StagingBuffer& file, ByteRange range) {
  std::string text(range.size_bytes, '?');
  REQUIRE(file.read(std::as_writable_bytes(std::span(text)), range.offset));
  return text;
}

template <class T>
bool is_unsupported(const Result<T>& result) {
  return !result && result.error().errno_value == EOPNOTSUPP && !result.error().message.empty();
}

}  // namespace

TEST_CASE("what was not written to a memory file reads as zeros", "[core][staging_buffer]") {
  StagingBuffer file;
  CHECK(get(file, {0, 10'000}) == std::string(10'000, '\0'));
  CHECK(get(file, {std::uint64_t{1} << 60U, 5}) == std::string(5, '\0'));
  put(file, "abc", 2 * kBlockBytes + 1);
  CHECK(get(file, {0, 2 * kBlockBytes + 1}) == std::string(2 * kBlockBytes + 1, '\0'));
  CHECK(get(file, {2 * kBlockBytes, 6}) == std::string("\0abc\0\0", 6));
  CHECK(get(file, {3 * kBlockBytes - 1, kBlockBytes}) == std::string(kBlockBytes, '\0'));
  CHECK(get(file, {7, 0}).empty());
  CHECK(file.blocks_with({}) == 1);  // reading makes no block
}

TEST_CASE("a write of a part of a block leaves the rest of it", "[core][staging_buffer]") {
  StagingBuffer file;
  put(file, std::string(3 * kBlockBytes, 'o'), 0);
  put(file, "across", kBlockBytes - 3);
  put(file, "y", 3 * kBlockBytes - 1);
  put(file, "", 17);
  std::string expected(3 * kBlockBytes, 'o');
  expected.replace(kBlockBytes - 3, 6, "across").replace(3 * kBlockBytes - 1, 1, "y");
  CHECK(get(file, {0, 3 * kBlockBytes}) == expected);
}

TEST_CASE("any writes read back as from a plain file", "[core][staging_buffer]") {
  RandomChoices choices(1);
  StagingBuffer file;
  std::string expected(6 * kBlockBytes, '\0');
  for (int round = 0; round < 300; ++round) {
    const std::size_t at = choices.below(expected.size());
    const std::size_t longest = choices.one_in(3) ? 3 * kBlockBytes : 50;
    const std::string text(choices.below(std::min(longest, expected.size() - at)),
                           static_cast<char>('a' + round % 26));
    put(file, text, at);
    expected.replace(at, text.size(), text);
    const std::size_t from = choices.below(expected.size());
    const std::size_t size_bytes = choices.below(expected.size() - from);
    REQUIRE(get(file, {from, size_bytes}) == expected.substr(from, size_bytes));
  }
  CHECK(get(file, {0, expected.size()}) == expected);
}

TEST_CASE("the blocks with a range are those held and those that it would add, each once",
          "[core][staging_buffer]") {
  StagingBuffer file;
  CHECK(file.blocks_with({}) == 0);
  CHECK(file.blocks_with({5 * kBlockBytes, 1}) == 1);
  CHECK(file.blocks_with({kBlockBytes - 1, 2}) == 2);
  CHECK(file.blocks_with({kBlockBytes, kBlockBytes}) == 1);
  CHECK(file.blocks_with({kBlockBytes - 1, kBlockBytes + 2}) == 3);
  put(file, "xy", kBlockBytes - 1);  // blocks 0 and 1
  put(file, "z", 4 * kBlockBytes);   // block 4
  CHECK(file.blocks_with({}) == 3);
  CHECK(file.blocks_with({10, 1}) == 3);
  CHECK(file.blocks_with({0, 2 * kBlockBytes}) == 3);
  CHECK(file.blocks_with({2 * kBlockBytes, 1}) == 4);
  CHECK(file.blocks_with({0, 4 * kBlockBytes}) == 5);
  CHECK(file.blocks_with({0, 4 * kBlockBytes + 1}) == 5);
  CHECK(file.blocks_with({100 * kBlockBytes, 16 * kBlockBytes}) == 19);
  CHECK(file.blocks_with({}) == 3);  // asking adds none
}

TEST_CASE("a copy has every block that is held at its offset, and nothing else", "[core][staging_buffer]") {
  const TemporaryDirectory directory;
  const std::string path = directory.write("copy", std::string(6 * kBlockBytes, 'x'));
  StagingBuffer file;
  put(file, "abc", kBlockBytes + 10);
  put(file, std::string(kBlockBytes + 1, 'd'), 3 * kBlockBytes);
  const auto to = system_storage().open(path, Access::ReadWrite).value();
  REQUIRE(file.copy_to(*to));
  std::string expected(6 * kBlockBytes, 'x');
  expected.replace(kBlockBytes, kBlockBytes, std::string(kBlockBytes, '\0'));
  expected.replace(kBlockBytes + 10, 3, "abc");
  expected.replace(3 * kBlockBytes, 2 * kBlockBytes,
                   std::string(kBlockBytes + 1, 'd') + std::string(kBlockBytes - 1, '\0'));
  CHECK(content_of(path) == expected);
}

TEST_CASE("a copy that fails says so", "[core][staging_buffer]") {
  const TemporaryDirectory directory;
  FaultyStorage storage;
  const auto to = storage.open(directory.write("copy", ""), Access::ReadWrite).value();
  StagingBuffer file;
  put(file, std::string(3 * kBlockBytes, 'x'), 0);
  storage.plan().fail_call(FileCall::Write, 3, ENOSPC);
  const auto copied = file.copy_to(*to);
  REQUIRE_FALSE(copied);
  CHECK(copied.error().errno_value == ENOSPC);
  CHECK(get(file, {0, 3 * kBlockBytes}) == std::string(3 * kBlockBytes, 'x'));
}

TEST_CASE("what a file in memory can't do says so", "[core][staging_buffer]") {
  StagingBuffer file;
  const StagingBuffer other;
  CHECK(is_unsupported(file.clone_from(other, 0, {0, kBlockBytes})));
  CHECK(is_unsupported(file.sync()));
  CHECK(is_unsupported(file.status()));
  CHECK(is_unsupported(file.size_bytes()));
  const auto locked = file.try_lock({0, 1}, LockKind::Exclusive);
  CHECK(is_unsupported(locked));
  CHECK(lacks_locks(locked.error()));
  file.unlock({0, 1});
  CHECK_FALSE(file.lock_holder({0, 1}));
  CHECK_FALSE(file.has_staged_name());
  CHECK(file.descriptor() == -1);
  // Staged bytes in memory need no disk space, so reserve() succeeds and does nothing.
  CHECK(file.reserve({0, 1 << 20}));
  CHECK(file.blocks_with({}) == 0);
}
