// The bytes of a journal: a written journal is read back, and other bytes are refused.
#include "core/journal/journal_format.h"

#include "tests/support/catch.h"

using namespace stfs;

namespace {

constexpr std::uint64_t kArchiveBytes = 3 * kBlockBytes + 100;
constexpr std::uint64_t kJournalBytes = 16 * kBlockBytes;

JournalRecord sample_record() {
  JournalRecord record{.id = JournalId::random(),
                       .archive = {.device = 1,
                                   .inode = 2,
                                   .birth_ns = 3,
                                   .size_bytes = kArchiveBytes,
                                   .header_size_bytes = 4,
                                   .header_hash = 5},
                       .sequence = 6,
                       .owner_pid = 7,
                       .group_record = {},
                       .boot = {},
                       .ranges = {}};
  record.ranges.push_back(
      {.archive = {0, kBlockBytes}, .journal_offset = kBlockBytes, .new_hashes = {8}, .old_hashes = {9}});
  record.ranges.push_back({.archive = {2 * kBlockBytes, kBlockBytes + 100},
                           .journal_offset = 2 * kBlockBytes,
                           .new_hashes = {10, 11},
                           .old_hashes = {12, 13}});
  return record;
}

bool is_believed(const JournalRecord& record, std::uint64_t journal_size_bytes = kJournalBytes) {
  return decode_record(encode_record(record), journal_size_bytes).has_value();
}

}  // namespace

TEST_CASE("a record is read as it was written", "[core][journal_format]") {
  JournalRecord record = sample_record();
  record.group_record = "other.stj.record";
  const auto read = decode_record(encode_record(record), kJournalBytes);
  REQUIRE(read);
  CHECK(read->id == record.id);
  CHECK(read->archive.compare(record.archive) == Kinship::Same);
  CHECK(read->archive.device == 1);
  CHECK(read->sequence == 6);
  CHECK(read->owner_pid == 7);
  CHECK(read->group_record == record.group_record);
  REQUIRE(read->ranges.size() == 2);
  CHECK(read->ranges[1].archive == record.ranges[1].archive);
  CHECK(read->ranges[1].journal_offset == 2 * kBlockBytes);
  CHECK(read->ranges[1].new_hashes == record.ranges[1].new_hashes);
  CHECK(read->ranges[1].old_hashes == record.ranges[1].old_hashes);
}

TEST_CASE("a range whose old blocks lie in the journal needs no hashes of them", "[core][journal_format]") {
  JournalRecord record = sample_record();
  record.ranges[1].old_offset = 4 * kBlockBytes;
  record.ranges[1].old_hashes.clear();
  const auto read = decode_record(encode_record(record), kJournalBytes);
  REQUIRE(read);
  CHECK(read->ranges[0].old_offset == 0);
  CHECK(read->ranges[1].old_offset == 4 * kBlockBytes);
  CHECK(read->ranges[1].old_hashes.empty());
  // In a lane journal the heads are amid the blocks. A lane journal has no room for old blocks.
  CHECK_FALSE(decode_record(encode_record(record), kJournalBytes, {kJournalBytes, kBlockBytes}));
}

TEST_CASE("a record that is cut anywhere is refused", "[core][journal_format]") {
  const std::string bytes = encode_record(sample_record());
  for (std::size_t size = 0; size < bytes.size(); ++size) {
    CAPTURE(size);
    REQUIRE_FALSE(decode_record(std::string_view(bytes).substr(0, size), kJournalBytes));
  }
}

TEST_CASE("whatever bytes come as a record, every range that is believed lies in archive and journal",
          "[core][journal_format]") {
  const std::string bytes = encode_record(sample_record());
  for (std::size_t at = 0; at < bytes.size(); ++at) {
    for (const unsigned value : {0x00U, 0x01U, 0x7fU, 0x80U, 0xffU}) {
      std::string flipped = bytes;
      flipped[at] = static_cast<char>(value);
      const auto read = decode_record(flipped, kJournalBytes);
      if (!read) continue;
      for (const JournalRange& range : read->ranges) {
        REQUIRE(ByteRange::checked(range.archive.offset, range.archive.size_bytes));
        REQUIRE(range.archive.end() <= read->archive.size_bytes);
        REQUIRE(range.journal_offset <= kJournalBytes);
        REQUIRE(range.archive.size_bytes <= kJournalBytes - range.journal_offset);
        REQUIRE(range.new_hashes.size() == round_up_to_block(range.archive.size_bytes) / kBlockBytes);
        if (range.old_offset == 0) {
          REQUIRE(range.old_hashes.size() == range.new_hashes.size());
        } else {
          REQUIRE(range.old_hashes.empty());
          REQUIRE(range.old_offset <= kJournalBytes);
          REQUIRE(range.archive.size_bytes <= kJournalBytes - range.old_offset);
        }
      }
    }
  }
}

TEST_CASE("an operation of an unknown type is another version's, and not damaged", "[core][journal_format]") {
  JournalRecord record = sample_record();
  record.ranges[1].type = OperationType{GENERATE(0U, 2U, 77U)};
  const auto read = decode_record(encode_record(record), kJournalBytes);
  REQUIRE_FALSE(read);
  CHECK(read.error().errno_value == EPROTONOSUPPORT);
  const std::string head = encode_head_with(record).value();
  const auto place = decode_head(head)->record;
  const auto sealed = decode_sealed_record(std::string_view(head).substr(place.offset, place.size_bytes),
                                           decode_head(head).value(), kJournalBytes);
  REQUIRE_FALSE(sealed);
  CHECK(sealed.error().errno_value == EPROTONOSUPPORT);
}

TEST_CASE("a record of a previous version has no types", "[core][journal_format]") {
  const JournalRecord record = sample_record();
  std::string bytes = encode_beginning(record);
  for (const JournalRange& range : record.ranges) bytes += encode_range(range).substr(8);
  const auto read = decode_record(bytes, kJournalBytes, kHead, kJournalVersion - 1);
  REQUIRE(read);
  CHECK(encode_record(*read) == encode_record(record));
  CHECK_FALSE(decode_record(bytes, kJournalBytes));
  CHECK_FALSE(decode_record(encode_record(record), kJournalBytes, kHead, kJournalVersion - 1));
}

TEST_CASE("a record with a range that can't be is refused", "[core][journal_format]") {
  JournalRecord record = sample_record();
  REQUIRE(is_believed(record));
  JournalRange& last = record.ranges[1];
  SECTION("behind the archive's end") {
    record.archive.size_bytes -= 1;
  }
  SECTION("off the archive's blocks") {
    last.archive.offset += 1;
  }
  SECTION("off the journal's blocks") {
    last.journal_offset += 1;
  }
  SECTION("ending in the middle of the archive, off a block") {
    last.archive.size_bytes -= 1;
  }
  SECTION("in the journal's head") {
    last.journal_offset = 0;
  }
  SECTION("behind the journal's end") {
    last.journal_offset = kJournalBytes;
  }
  SECTION("far behind it") {
    last.journal_offset = ~std::uint64_t{0} - kBlockBytes + 1;
  }
  SECTION("with its old blocks off the journal's") {
    last.old_offset = 2 * kBlockBytes + 1;
    last.old_hashes.clear();
  }
  SECTION("with its old blocks behind the journal's end") {
    last.old_offset = kJournalBytes;
    last.old_hashes.clear();
  }
  SECTION("with its old blocks in the journal and hashes of them as well") {
    last.old_offset = 2 * kBlockBytes;
  }
  SECTION("twice the same blocks") {
    last.archive.offset = 0;
  }
  SECTION("empty") {
    last.archive.size_bytes = 0;
    last.new_hashes.clear();
    last.old_hashes.clear();
  }
  CHECK_FALSE(is_believed(record));
}

TEST_CASE("two patches of a record never lie in the same bytes of its journal", "[core][journal_format]") {
  JournalRecord record = sample_record();
  // Several threads write patches, so the later patch of the archive may be the first one in the journal.
  const std::vector<ByteRange> regions = {{6 * kBlockBytes, 5000}, {4 * kBlockBytes, 5000}};
  for (std::size_t at = 0; at < regions.size(); ++at) {
    record.ranges[at] = {.type = OperationType::PatchBytes,
                         .archive = {at * kBlockBytes, 10},
                         .journal_offset = regions[at].offset,
                         .new_hashes = {},
                         .old_hashes = {},
                         .patch_size_bytes = regions[at].size_bytes,
                         .patch_hash = 42};
  }
  REQUIRE(is_believed(record));
  SECTION("the same region") {
    record.ranges[1].journal_offset = record.ranges[0].journal_offset;
  }
  SECTION("a part of it") {
    record.ranges[1].journal_offset += kBlockBytes;
  }
  SECTION("a longer one around it") {
    record.ranges[1].patch_size_bytes = 4 * kBlockBytes;
  }
  CHECK_FALSE(is_believed(record));
}

TEST_CASE("a head is read as it was written, and any other byte is refused", "[core][journal_format]") {
  const JournalHead head{.id = JournalId::random(),
                         .record = {8 * kBlockBytes, 300},
                         .record_hash = 42,
                         .boot = {.id = {5, 6}, .host = 7}};
  const std::string block = encode_head(head);
  REQUIRE(block.size() == kBlockBytes);
  const auto read = decode_head(block);
  REQUIRE(read);
  CHECK(read->id == head.id);
  CHECK(read->record == head.record);
  CHECK(read->record_hash == 42);
  CHECK(read->boot == head.boot);
  // The rest of the block is padding.
  const std::size_t size = block.find_last_not_of('\0') + 1;
  CHECK(size <= 84);
  for (std::size_t at = 0; at < size; ++at) {
    std::string flipped = block;
    flipped[at] = static_cast<char>(flipped[at] ^ 1);
    CAPTURE(at);
    CHECK_FALSE(decode_head(flipped));
  }
  CHECK_FALSE(decode_head(std::string(kBlockBytes, '\0')));
  CHECK_FALSE(decode_head(std::string_view(block).substr(0, 16)));
}

TEST_CASE("an archive's stamp tells it from others, never by device, and not surely without birth times",
          "[core][journal_format]") {
  const ArchiveStamp stamp = sample_record().archive;
  ArchiveStamp other = stamp;
  CHECK(stamp.compare(other) == Kinship::Same);
  SECTION("inode") {
    other.inode += 1;
  }
  SECTION("birth") {
    other.birth_ns += 1;
  }
  SECTION("size") {
    other.size_bytes += 1;
  }
  SECTION("header's size") {
    other.header_size_bytes += 1;
  }
  SECTION("header's hash") {
    other.header_hash += 1;
  }
  SECTION("device") {
    other.device += 1;
    CHECK(stamp.compare(other) == Kinship::Same);
    return;
  }
  SECTION("one of them without a birth time") {
    other.birth_ns = 0;
    CHECK(stamp.compare(other) == Kinship::Unsure);
    CHECK(other.compare(stamp) == Kinship::Unsure);
    other.inode += 1;
    CHECK(other.compare(other) == Kinship::Unsure);
    CHECK(stamp.compare(other) == Kinship::Unsure);
    other.size_bytes += 1;
  }
  CHECK(stamp.compare(other) == Kinship::Other);
  CHECK(other.compare(stamp) == Kinship::Other);
}

TEST_CASE("an id is 32 hexadecimal digits, never the same twice", "[core][journal_format]") {
  const JournalId id = JournalId::random();
  CHECK(id.text().size() == 32);
  CHECK(id.text().find_first_not_of("0123456789abcdef") == std::string::npos);
  CHECK_FALSE(id == JournalId::random());
  CHECK(journal_prefix("model.safetensors") == ".model.safetensors.stj.");
}

TEST_CASE("a secret part of a name is 16 random digits, and is found again", "[core][journal_format]") {
  const std::string part = secret_name_part();
  CHECK(part.size() == 17);
  CHECK(part.front() == '.');
  CHECK(part.find_first_not_of("0123456789abcdef", 1) == std::string::npos);
  CHECK(part != secret_name_part());
  CHECK(without_secret("a" + part + ".index", ".index") == "a");
  CHECK(without_secret(part + ".index", ".index") == "");
  for (const char* name : {"a.0123456789abcdef", "a.0123456789abcdeg.index", "a.0123456789ABCDEF.index",
                           "a0123456789abcdef.index", "0123456789abcdef.index", ".123456789abcdef.index",
                           "a.index", "", ".index"})
    CHECK_FALSE(without_secret(name, ".index"));
}

TEST_CASE("a name tells that a file is a journal, or belongs to one", "[core][journal_format]") {
  for (const std::string& archive : {std::string("model.safetensors"), std::string(250, 'm')}) {
    for (const std::string_view suffix :
         {std::string_view(), kStagedSuffix, kNewIndexSuffix, kLaneJournalSuffix})
      CHECK(is_journal_file_name(journal_prefix(archive) + JournalId::random().text() + std::string(suffix)));
  }
  for (const char* name : {"", "model.safetensors", ".model.safetensors", "model.stj.0", "config.json"})
    CHECK_FALSE(is_journal_file_name(name));
}

TEST_CASE("one hash per block, the last over what there is of it", "[core][journal_format]") {
  std::vector<std::byte> bytes(2 * kBlockBytes + 1, std::byte{7});
  std::vector<std::uint64_t> hashes;
  append_block_hashes(bytes, hashes);
  REQUIRE(hashes.size() == 3);
  CHECK(hashes[0] == hashes[1]);
  CHECK(hashes[2] != hashes[0]);
  bytes[kBlockBytes] = std::byte{8};
  std::vector<std::uint64_t> changed;
  append_block_hashes(bytes, changed);
  CHECK(changed[0] == hashes[0]);
  CHECK(changed[1] != hashes[1]);
}
