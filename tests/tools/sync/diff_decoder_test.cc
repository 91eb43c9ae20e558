// The decoder applies diffs of published versions in pieces of any size, and refuses diffs that are not
// exactly right.
#include "tools/sync/diff_decoder.h"

#include <algorithm>
#include <cerrno>
#include <string>
#include <vector>

#include "tests/support/catch.h"
#include "tests/support/choices.h"
#include "tests/support/plain.h"
#include "tests/support/published_diff.h"

namespace stfs::test {
namespace {

using sync::DiffDecoder;
using sync::DiffEncoding;

struct Applied {
  std::string bytes;
  std::string error;  // empty: the diff was applied to its end
  bool has_changed = false;
};

Applied apply_frame(DiffDecoder& decoder, DiffEncoding encoding, const std::string& frame, std::string bytes,
                    std::size_t piece_bytes = 1U << 20U) {
  Applied applied;
  const auto run = [&]() -> Result<void> {
    if (auto ok = decoder.start(encoding, compressed_diff(frame), bytes.size()); !ok) return ok;
    for (std::size_t at = 0; at < bytes.size(); at += piece_bytes) {
      const auto piece = std::as_writable_bytes(std::span(bytes)).subspan(at);
      const auto changed = decoder.apply(piece.first(std::min(piece.size(), piece_bytes)));
      if (!changed) return tl::unexpected(changed.error());
      applied.has_changed |= *changed;
    }
    return decoder.finish();
  };
  if (auto ok = run(); !ok) {
    applied.error = ok.error().message;
    CHECK(ok.error().errno_value == EINVAL);
  }
  applied.bytes = std::move(bytes);
  return applied;
}

Applied apply_frame(DiffEncoding encoding, const std::string& frame, std::string bytes) {
  DiffDecoder decoder;
  return apply_frame(decoder, encoding, frame, std::move(bytes));
}

struct Change {
  std::string before;
  std::string after;
};

/// Random bytes, and a copy in which one byte in `one_in` is changed.
Change change_of(std::size_t size, std::size_t one_in) {
  RandomChoices choices(size * 31 + one_in);
  Change change{std::string(size, '\0'), {}};
  for (char& byte : change.before) byte = static_cast<char>(choices.below(256));
  change.after = change.before;
  for (char& byte : change.after) {
    if (choices.one_in(one_in)) byte = static_cast<char>(byte ^ static_cast<char>(1 + choices.below(255)));
  }
  return change;
}

constexpr DiffEncoding kEncodings[] = {DiffEncoding::Xor, DiffEncoding::Overwrite};

}  // namespace

TEST_CASE("decoder turns old bytes into new ones, whatever the sizes of tensor and pieces", "[tools][sync]") {
  DiffDecoder decoder;  // shared by all diffs: it keeps nothing of an earlier diff
  for (const DiffEncoding encoding : kEncodings) {
    for (const std::size_t size : {0U, 1U, 2U, 3U, 63U, 64U, 65U, 4097U, 131072U, 131073U, 400001U}) {
      for (const std::size_t one_in : {1U, 2U, 50U}) {
        const Change change = change_of(size, one_in);
        const std::string frame = zstd_frame(diff_of(encoding, change.before, change.after));
        for (const std::size_t piece_bytes : {1U, 5U, 4096U, 131072U, 1000000U}) {
          if (piece_bytes < 5 && size > 131072) continue;
          const Applied applied = apply_frame(decoder, encoding, frame, change.before, piece_bytes);
          INFO(name_of(encoding) << " " << size << " " << one_in << " " << piece_bytes);
          REQUIRE(applied.error == "");
          REQUIRE(applied.bytes == change.after);
          REQUIRE(applied.has_changed == (change.before != change.after));
        }
      }
    }
  }
}

TEST_CASE("decoder takes every piece size from 1 to beyond the tensor", "[tools][sync]") {
  DiffDecoder decoder;
  const Change change = change_of(257, 3);
  for (const DiffEncoding encoding : kEncodings) {
    const std::string frame = zstd_frame(diff_of(encoding, change.before, change.after));
    for (std::size_t piece_bytes = 1; piece_bytes < 260; ++piece_bytes) {
      REQUIRE(apply_frame(decoder, encoding, frame, change.before, piece_bytes).bytes == change.after);
    }
  }
}

TEST_CASE("decoder reads large overwrite diffs with two cursors", "[tools][sync]") {
  const Change change = change_of(3U << 20U, 5);
  const std::string frame = zstd_frame(overwrite_diff_of(change.before, change.after));
  DiffDecoder decoder;
  for (const std::size_t piece_bytes : {1000U, 262144U, 4194304U}) {
    const Applied applied = apply_frame(decoder, DiffEncoding::Overwrite, frame, change.before, piece_bytes);
    CHECK(applied.error == "");
    CHECK(applied.bytes == change.after);
  }
}

TEST_CASE("decoder tells pieces without a change", "[tools][sync]") {
  const std::string before(1000, 'a');
  std::string after = before;
  after[700] = 'b';
  for (const DiffEncoding encoding : kEncodings) {
    const std::string frame = zstd_frame(diff_of(encoding, before, after));
    DiffDecoder decoder;
    REQUIRE(decoder.start(encoding, compressed_diff(frame), before.size()));
    std::string bytes = before;
    for (std::size_t at = 0; at < bytes.size(); at += 100) {
      const auto changed = decoder.apply(std::as_writable_bytes(std::span(bytes)).subspan(at, 100));
      REQUIRE(changed);
      CHECK(*changed == (at == 700));
    }
    CHECK(decoder.finish());
  }
}

TEST_CASE("decoder takes frames with a checksum, and without a content size", "[tools][sync]") {
  const Change change = change_of(300000, 10);
  for (const DiffEncoding encoding : kEncodings) {
    const std::string diff = diff_of(encoding, change.before, change.after);
    for (const FrameForm form : {FrameForm{.has_checksum = true}, FrameForm{.has_content_size = false}}) {
      const Applied applied = apply_frame(encoding, zstd_frame(diff, form), change.before);
      CHECK(applied.error == "");
      CHECK(applied.bytes == change.after);
    }
  }
}

TEST_CASE("decoder refuses a diff that expands to more or less than its tensor", "[tools][sync]") {
  const std::string before(1000, 'a');
  for (const bool has_content_size : {true, false}) {
    const FrameForm form{.has_content_size = has_content_size};
    const auto error_of = [&](DiffEncoding encoding, const std::string& diff) {
      return apply_frame(encoding, zstd_frame(diff, form), before).error;
    };
    CHECK(contains(error_of(DiffEncoding::Xor, std::string(999, '\0')), "expands to"));
    CHECK(contains(error_of(DiffEncoding::Xor, std::string(1001, '\0')), "expands to"));
    CHECK(contains(error_of(DiffEncoding::Xor, ""), "expands to"));
    CHECK(contains(error_of(DiffEncoding::Overwrite, ""), "expands to less than the 4 bytes"));
    CHECK(contains(error_of(DiffEncoding::Overwrite, overwrite_diff({1, 2}, "x")), "expands to"));
    CHECK(contains(error_of(DiffEncoding::Overwrite, overwrite_diff({1, 2}, "xyz")), "expands to"));
    CHECK(contains(error_of(DiffEncoding::Overwrite, std::string("\x02\0\0\0\x01", 5)), "expands to"));
  }
}

TEST_CASE("decoder expands no more of a bomb than the tensor needs", "[tools][sync]") {
  const std::string bomb = zstd_frame(std::string(64U << 20U, '\0'), {.has_content_size = false});
  REQUIRE(bomb.size() < 16384);
  CHECK(contains(apply_frame(DiffEncoding::Xor, bomb, std::string(1000, 'a')).error,
                 "more than the 1000 bytes"));
  CHECK(contains(apply_frame(DiffEncoding::Overwrite, bomb, std::string(1000, 'a')).error,
                 "more than the 4 bytes"));
}

TEST_CASE("decoder refuses positions that do not fit, and counts that contradict the size", "[tools][sync]") {
  const std::string before(10, 'a');
  const auto error_of = [&](const std::string& diff) {
    return apply_frame(DiffEncoding::Overwrite, zstd_frame(diff), before).error;
  };
  CHECK(error_of(overwrite_diff({0, 9}, "xy")) == "");
  CHECK(contains(error_of(overwrite_diff({0, 10}, "xy")), "position 10 is outside of the tensor of 10"));
  CHECK(contains(error_of(overwrite_diff({0, 0xffffffff}, "xy")), "position 4294967295 is outside"));
  CHECK(contains(error_of(overwrite_diff({3, 3}, "xy")), "position 3 follows position 3"));
  CHECK(contains(error_of(overwrite_diff({5, 3}, "xy")), "position 3 follows position 5"));
  std::string too_many;
  append_u32(too_many, 11);
  CHECK(contains(error_of(too_many), "changes 11 bytes, the tensor has 10"));
  std::string most;
  append_u32(most, 0xffffffff);
  CHECK(contains(error_of(most), "changes 4294967295 bytes"));
}

TEST_CASE("decoder checks positions of the second batch too", "[tools][sync]") {
  constexpr std::uint32_t kCount = 300000;
  std::vector<std::uint32_t> positions(kCount);
  for (std::uint32_t at = 0; at < kCount; ++at) positions[at] = at;
  const std::string values(kCount, 'x');
  const std::string before(kCount, 'a');
  const auto apply_positions = [&] {
    return apply_frame(DiffEncoding::Overwrite, zstd_frame(overwrite_diff(positions, values)), before);
  };
  CHECK(apply_positions().bytes == values);
  std::swap(positions[200000], positions[200001]);
  CHECK(contains(apply_positions().error, "positions must ascend"));
  std::swap(positions[200000], positions[200001]);
  positions.back() = kCount;
  CHECK(contains(apply_positions().error, "position 300000 is outside"));
  const std::string less = zstd_frame(overwrite_diff(positions, "x"), {.has_content_size = false});
  CHECK(contains(apply_frame(DiffEncoding::Overwrite, less, before).error, "expands to less"));
}

TEST_CASE("decoder refuses a frame that is cut short anywhere", "[tools][sync]") {
  DiffDecoder decoder;
  const Change change = change_of(3000, 4);
  for (const DiffEncoding encoding : kEncodings) {
    for (const bool has_content_size : {true, false}) {
      const FrameForm form{.has_content_size = has_content_size, .has_checksum = true};
      const std::string frame = zstd_frame(diff_of(encoding, change.before, change.after), form);
      for (std::size_t size = 0; size < frame.size(); ++size) {
        INFO(size);
        REQUIRE(apply_frame(decoder, encoding, frame.substr(0, size), change.before).error != "");
      }
    }
  }
  CHECK(contains(apply_frame(DiffEncoding::Xor, "", "a").error, "the diff is empty"));
}

TEST_CASE("decoder refuses what is no frame, and what follows one", "[tools][sync]") {
  const std::string before(100, 'a');
  const std::string frame = zstd_frame(std::string(100, '\1'));
  for (const DiffEncoding encoding : kEncodings) {
    const std::string good = encoding == DiffEncoding::Xor ? frame : zstd_frame(overwrite_diff({4}, "x"));
    REQUIRE(apply_frame(encoding, good, before).error == "");
    CHECK(contains(apply_frame(encoding, good + "x", before).error, "1 bytes follow the zstd frame"));
    CHECK_FALSE(contains(apply_frame(encoding, good + "xxxx", before).error, "a second frame"));
    CHECK(contains(apply_frame(encoding, good + good, before).error, "a second frame"));
    CHECK(contains(apply_frame(encoding, good + zstd_frame(""), before).error, "follow the zstd frame"));
    const std::string skippable("\x50\x2a\x4d\x18\x04\0\0\0abcd", 12);
    CHECK(contains(apply_frame(encoding, skippable + good, before).error, "no zstd frame"));
    CHECK(contains(apply_frame(encoding, std::string(100, 'a'), before).error, "no zstd frame"));
  }
  // Bytes that are read with a later piece of the frame.
  const std::string large = zstd_frame(change_of(400000, 1).after);
  CHECK(contains(
      apply_frame(DiffEncoding::Xor, large + std::string(300000, '?'), std::string(400000, 'a')).error,
      "300000 bytes follow"));
}

TEST_CASE("decoder refuses a frame whose checksum is wrong", "[tools][sync]") {
  std::string frame = zstd_frame(std::string(100, '\1'), {.has_checksum = true});
  frame.back() = static_cast<char>(frame.back() ^ 1);
  CHECK(contains(apply_frame(DiffEncoding::Xor, frame, std::string(100, 'a')).error, "checksum"));
}

TEST_CASE("decoder limits the window of a frame to 8 MiB", "[tools][sync]") {
  const std::string content(9U << 20U, '\0');
  const auto error_of = [&](int window_log) {
    const FrameForm form{.has_content_size = false, .window_log = window_log};
    return apply_frame(DiffEncoding::Xor, zstd_frame(content, form), content).error;
  };
  CHECK(error_of(23) == "");
  CHECK(contains(error_of(24), "memory"));
}

TEST_CASE("decoder wants all bytes of the tensor, and no more", "[tools][sync]") {
  const std::string frame = zstd_frame(std::string(10, '\1'));
  DiffDecoder decoder;
  std::string bytes(11, 'a');
  REQUIRE(decoder.start(DiffEncoding::Xor, compressed_diff(frame), 10));
  CHECK_FALSE(decoder.apply(std::as_writable_bytes(std::span(bytes))));
  REQUIRE(decoder.start(DiffEncoding::Xor, compressed_diff(frame), 10));
  CHECK(decoder.apply(std::as_writable_bytes(std::span(bytes)).first(9)));
  CHECK_FALSE(decoder.finish());
}

TEST_CASE("decoder passes errors of reading on", "[tools][sync]") {
  DiffDecoder decoder;
  const sync::CompressedDiff broken{.size_bytes = 100,
                                    .read = [](std::uint64_t, std::span<std::byte>) -> Result<void> {
                                      return fail(ErrorCode::System, EIO, "broken");
                                    }};
  CHECK(errno_of(decoder.start(DiffEncoding::Xor, broken, 10)) == EIO);
}

}  // namespace stfs::test
