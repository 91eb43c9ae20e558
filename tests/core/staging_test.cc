// Compares the pending bytes of one tensor with a plain vector after the same calls.
#include "core/commit/staging.h"

#include <algorithm>
#include <memory>
#include <random>

#include "tests/support/catch.h"
#include "tests/support/faulty_storage.h"
#include "tests/support/gone_archive.h"
#include "tests/support/plain.h"
#include "tests/support/temporary_directory.h"

using namespace stfs;
using namespace stfs::test;

namespace {

using Bytes = std::vector<std::byte>;

/// A tensor's old content, and the bytes that are staged over it.
class StagedTensor {
 public:
  StagedTensor(std::uint64_t offset, std::string_view old, Storage& storage = system_storage())
      : old_(bytes_of(old).begin(), bytes_of(old).end()),
        journal_(Journal::create(storage, directory_ / "model.safetensors", gone_archive()).value()),
        staging_(*journal_, {offset, old.size()}) {}

  Staging* operator->() { return &staging_; }
  [[nodiscard]] const TemporaryDirectory& directory() const { return directory_; }

  [[nodiscard]] Result<void> read(std::span<std::byte> to, std::uint64_t offset) {
    return staging_.read(to, offset, [this](std::span<std::byte> part, std::uint64_t at) -> Result<void> {
      std::copy_n(old_.begin() + static_cast<std::ptrdiff_t>(at), part.size(), part.begin());
      return {};
    });
  }
  [[nodiscard]] std::string content() {
    std::string text(static_cast<std::size_t>(staging_.size_bytes()), '?');
    if (!read(std::as_writable_bytes(std::span(text)), 0)) return "read failed";
    return text;
  }
  /// Returns the bytes that a commit leaves in the archive, or nothing if it fails.
  [[nodiscard]] Bytes committed() {
    const auto pieces = staging_.pieces();
    if (!pieces) return {};
    Bytes result = old_;
    std::uint64_t last_end = staging_.target().offset;
    for (const ByteRange piece : *pieces) {
      if (piece.offset < last_end || piece.empty() || piece.end() > staging_.target().end()) return {};
      last_end = piece.end();
      Bytes part(static_cast<std::size_t>(piece.size_bytes));
      if (!journal_->file().read(part, staging_.journal_offset(piece.offset))) return {};
      std::ranges::copy(
          part, result.begin() + static_cast<std::ptrdiff_t>(piece.offset - staging_.target().offset));
    }
    return result;
  }

 private:
  TemporaryDirectory directory_;
  Bytes old_;
  std::unique_ptr<Journal> journal_;
  Staging staging_;
};

}  // namespace

TEST_CASE("a fresh stage shows the old content and is clean", "[core][staging]") {
  StagedTensor staged(100, "0123456789");
  CHECK(staged->size_bytes() == 10);
  CHECK(staged->target() == ByteRange{100, 10});
  CHECK_FALSE(staged->is_dirty());
  CHECK(staged->is_whole());
  CHECK(staged.content() == "0123456789");
  CHECK(staged->pieces()->empty());
}

TEST_CASE("what was written covers the old content, and only it is a piece", "[core][staging]") {
  StagedTensor staged(4095, "0123456789");
  REQUIRE(staged->write(bytes_of("ab"), 2));
  REQUIRE(staged->write(bytes_of("cd"), 7));
  CHECK(staged->is_dirty());
  CHECK(staged.content() == "01ab456cd9");
  CHECK(*staged->pieces() == std::vector<ByteRange>{{4097, 2}, {4102, 2}});
  REQUIRE(staged->write(bytes_of("XYZ"), 4));
  CHECK(*staged->pieces() == std::vector<ByteRange>{{4097, 7}});
}

TEST_CASE("a cut hides the old content for good; what is behind it reads as zeros", "[core][staging]") {
  StagedTensor staged(0, "0123456789");
  REQUIRE(staged->resize(3));
  CHECK_FALSE(staged->is_whole());
  CHECK(staged.content() == "012");
  REQUIRE(staged->resize(6));
  CHECK(staged.content() == std::string("012\0\0\0", 6));
  REQUIRE(staged->write(bytes_of("z"), 9));
  CHECK(staged->is_whole());
  CHECK(staged.content() == std::string("012\0\0\0\0\0\0z", 10));
  CHECK(*staged->pieces() == std::vector<ByteRange>{{3, 7}});
  CHECK(staged.content() == std::string("012\0\0\0\0\0\0z", 10));
}

TEST_CASE("bytes staged before a cut do not come back", "[core][staging]") {
  StagedTensor staged(0, "0123456789");
  REQUIRE(staged->write(bytes_of("secretsssss").first(10), 0));
  REQUIRE(staged->resize(0));
  REQUIRE(staged->resize(10));
  CHECK(staged.content() == std::string(10, '\0'));
  CHECK(staged.committed() == Bytes(10));
}

TEST_CASE("a resize to the present size has changed nothing", "[core][staging]") {
  StagedTensor staged(0, "0123456789");
  REQUIRE(staged->resize(10));
  CHECK_FALSE(staged->is_dirty());
  CHECK(staged.content() == "0123456789");
}

TEST_CASE("what passes the tensor's end is EFBIG, with nothing staged", "[core][staging]") {
  StagedTensor staged(50, "0123456789");
  CHECK(errno_of(staged->write(bytes_of("x"), 10)) == EFBIG);
  CHECK(errno_of(staged->write(bytes_of("xxxxxxxxxxx"), 0)) == EFBIG);
  CHECK(errno_of(staged->write(bytes_of("xx"), ~std::uint64_t{0})) == EFBIG);
  CHECK(errno_of(staged->resize(11)) == EFBIG);
  CHECK(errno_of(staged->resize(~std::uint64_t{0})) == EFBIG);
  CHECK_FALSE(staged->is_dirty());
  CHECK(staged.content() == "0123456789");
}

TEST_CASE("empty writes change nothing, and a tensor without bytes has nothing to write", "[core][staging]") {
  StagedTensor staged(0, "0123456789");
  REQUIRE(staged->write({}, 5));
  CHECK_FALSE(staged->is_dirty());
  StagedTensor none(0, "");
  CHECK(none->is_whole());
  REQUIRE(none->write({}, 0));
  CHECK(errno_of(none->write(bytes_of("x"), 0)) == EFBIG);
  CHECK(none->pieces()->empty());
}

TEST_CASE("a stage leaves nothing in the archive's directory", "[core][staging]") {
  StagedTensor staged(0, "0123456789");
  REQUIRE(staged->write(bytes_of("abcdefghij"), 0));
  CHECK(std::filesystem::is_empty(staged.directory().path()));
}

TEST_CASE("a byte's place in the journal is aligned as it is in the archive", "[core][staging]") {
  const std::uint64_t offset = GENERATE(0U, 1U, 4095U, 4096U, 10'000U);
  StagedTensor staged(offset, std::string(9000, 'x'));
  for (const std::uint64_t at : {offset, offset + 1, offset + 8999, round_down_to_block(offset),
                                 round_up_to_block(offset + 9000) - 1}) {
    CHECK(staged->journal_offset(at) % kBlockBytes == at % kBlockBytes);
    CHECK(staged->journal_offset(at) >= kBlockBytes);
  }
}

TEST_CASE("two stages of one journal keep apart", "[core][staging]") {
  const TemporaryDirectory directory;
  const auto journal =
      Journal::create(system_storage(), directory / "model.safetensors", gone_archive()).value();
  Staging first(*journal, {100, 3});
  Staging second(*journal, {103, 3});
  REQUIRE(first.write(bytes_of("abc"), 0));
  REQUIRE(second.write(bytes_of("xyz"), 0));
  std::string text(3, '?');
  const auto read_base = [](auto, auto) { return fail_system(EIO, "archive", "read"); };
  REQUIRE(first.read(std::as_writable_bytes(std::span(text)), 0, read_base));
  CHECK(text == "abc");
  REQUIRE(second.read(std::as_writable_bytes(std::span(text)), 0, read_base));
  CHECK(text == "xyz");
}

TEST_CASE("cutting to nothing reserves the space of the whole tensor", "[core][staging]") {
  FaultyStorage storage;
  StagedTensor staged(0, "0123456789", storage);
  storage.plan().fail_call(FileCall::Reserve, 1, ENOSPC);
  CHECK(errno_of(staged->resize(0)) == ENOSPC);
  CHECK_FALSE(staged->is_dirty());
  CHECK(staged.content() == "0123456789");
  REQUIRE(staged->resize(0));
}

TEST_CASE("only bytes whose space is reserved and was never written can be promised before they are staged",
          "[core][staging]") {
  constexpr std::size_t kMib = 1 << 20;
  StagedTensor staged(10, std::string(12 * kMib, '-'));
  const std::string piece(2 * kMib, 'x');
  const auto write = [&](std::size_t at, std::size_t size) {
    return staged->write(bytes_of(piece).first(size), at).has_value();
  };
  SECTION("in order, up to what was written before") {
    REQUIRE(write(8 * kMib, kMib));
    for (std::size_t at = 0; at < 4; ++at) {
      CHECK_FALSE(staged->takes_halves({at * kMib, kMib}));
      REQUIRE(write(at * kMib, kMib));
    }
    CHECK(staged->takes_halves({4 * kMib, kMib}));
    CHECK_FALSE(staged->takes_halves({4 * kMib, 0}));
    CHECK_FALSE(staged->takes_halves({3 * kMib, kMib}));
    CHECK_FALSE(staged->takes_halves({8 * kMib, kMib}));
    for (std::size_t at = 4; at < 7; ++at) REQUIRE(write(at * kMib, kMib));
    CHECK(staged->takes_halves({7 * kMib, kMib}));
    REQUIRE(write(7 * kMib, kMib + kMib / 2));
    CHECK_FALSE(staged->takes_halves({8 * kMib + kMib / 2, 100}));
    REQUIRE(write(8 * kMib + kMib / 2, kMib / 2));
    REQUIRE(write(9 * kMib, kMib));
    CHECK(staged->takes_halves({10 * kMib, kMib}));
  }
  SECTION("all of it once it is cut to nothing, and no longer when that comes again") {
    REQUIRE(staged->resize(0));
    CHECK(staged->takes_halves({5 * kMib, kMib}));
    REQUIRE(write(0, kMib));
    CHECK_FALSE(staged->takes_halves({0, kMib}));
    CHECK(staged->takes_halves({kMib, kMib}));
    REQUIRE(staged->resize(0));
    CHECK_FALSE(staged->takes_halves({0, kMib}));
    CHECK_FALSE(staged->takes_halves({kMib, kMib}));
  }
}

TEST_CASE("a failure of the store is the caller's, and a failed write is no piece", "[core][staging]") {
  FaultyStorage storage;
  StagedTensor staged(0, "0123456789", storage);
  storage.plan().fail_call(FileCall::Write, 1, ENOSPC);
  CHECK(errno_of(staged->write(bytes_of("x"), 0)) == ENOSPC);
  CHECK_FALSE(staged->is_dirty());
  CHECK(staged.content() == "0123456789");
  REQUIRE(staged->resize(5));
  REQUIRE(staged->resize(10));
  storage.plan().fail_call(FileCall::Write, 1, ENOSPC);
  CHECK(errno_of(staged->pieces()) == ENOSPC);
  REQUIRE(staged->pieces());
  storage.plan().fail_call(FileCall::Read, 1, EIO);
  CHECK(staged.content() == "read failed");
  CHECK(staged.content() == std::string("01234\0\0\0\0\0", 10));
}

TEST_CASE("a failing read of the old content is the caller's", "[core][staging]") {
  StagedTensor staged(0, "0123456789");
  Bytes to(10);
  const auto read = staged->read(to, 0, [](auto, auto) { return fail_system(EIO, "archive", "read"); });
  CHECK(errno_of(read) == EIO);
}

TEST_CASE("random writes, resizes and reads give what a plain vector gives", "[core][staging]") {
  const unsigned seed = GENERATE(take(40, random(1U, 1'000'000U)));
  CAPTURE(seed);
  std::mt19937 random(seed);
  const auto below = [&](std::size_t limit) {
    return static_cast<std::size_t>(std::uniform_int_distribution<std::uint64_t>(0, limit - 1)(random));
  };
  const std::size_t size = below(2) == 0 ? 1 + below(64) : 1 + below(200'000);
  std::string old(size, '\0');
  for (char& c : old) c = static_cast<char>(below(255) + 1);
  StagedTensor staged(below(10'000), old);
  std::string model = old;
  if (below(2) == 0) {  // as O_TRUNC does
    REQUIRE(staged->resize(0));
    model.clear();
  }

  for (int step = 0; step < 150; ++step) {
    const std::size_t action = below(10);
    if (action < 5) {
      // Half of the writes begin where the content ends.
      const std::size_t offset = below(2) == 0 && model.size() < size ? model.size() : below(size);
      const std::string text(1 + below(std::min<std::size_t>(size - offset, 1 + below(5000))),
                             static_cast<char>('A' + step % 26));
      if (model.size() < offset + text.size()) model.resize(offset + text.size(), '\0');
      model.replace(offset, text.size(), text);
      if (staged->takes_halves({offset, text.size()})) {
        REQUIRE(staged->note(bytes_of(text), offset));
        REQUIRE(staged->put(bytes_of(text), offset));
      } else {
        REQUIRE(staged->write(bytes_of(text), offset));
      }
    } else if (action < 7) {
      const std::size_t to = below(3) == 0 ? size : below(size + 1);
      model.resize(to, '\0');
      REQUIRE(staged->resize(to));
    } else if (action < 9 && !model.empty()) {
      const std::size_t offset = below(model.size());
      std::string part(1 + below(model.size() - offset), '?');
      REQUIRE(staged.read(std::as_writable_bytes(std::span(part)), offset));
      REQUIRE(part == model.substr(offset, part.size()));
    }
    REQUIRE(staged->size_bytes() == model.size());
    REQUIRE(staged->is_whole() == (model.size() == size));
    if (step % 10 == 0 && model.size() == size) {
      REQUIRE(staged.committed() == Bytes(bytes_of(model).begin(), bytes_of(model).end()));
    }
  }
  REQUIRE(staged.content() == model);
}
