// Makes a committed journal beside an archive of a test. Its owner is dead, or lives as long as the test
// wants.
#pragma once

#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "core/journal/group_record.h"
#include "core/journal/journal.h"
#include "core/journal/recovery.h"

namespace stfs::test {

/// Promises `bytes` at a multiple of 4096 of the archive, with durability=process.
/// @param change_stamp  changes the archive's stamp in the journal's record.
/// @param storage  gives the boot and the host of the journal's owner.
/// @param group_record  the journal waits for this group record; empty: the journal commits alone.
/// @return the journal; its owner lives until the journal is destroyed.
inline std::unique_ptr<Journal> plant_living_journal(
    const std::filesystem::path& archive_path, std::uint64_t offset, const std::string& bytes,
    const std::function<void(ArchiveStamp&)>& change_stamp = {}, Storage& storage = system_storage(),
    const std::string& group_record = {}) {
  const auto check = [](auto&& result) -> decltype(auto) {
    if (!result) throw std::runtime_error(result.error().message);
    return std::forward<decltype(result)>(result);
  };
  auto archive = *check(storage.open(archive_path, Access::ReadOnly));
  std::unique_ptr<Journal> journal = *check(Journal::create(storage, archive_path, *archive));
  JournalRange range{
      .archive = {offset, bytes.size()}, .journal_offset = 0, .new_hashes = {}, .old_hashes = {}};
  range.journal_offset = journal->allocate(bytes.size());
  check(journal->file().write(std::as_bytes(std::span(bytes)), range.journal_offset));
  append_block_hashes(std::as_bytes(std::span(bytes)), range.new_hashes);
  std::string old(bytes.size(), '\0');
  check(archive->read(std::as_writable_bytes(std::span(old)), offset));
  append_block_hashes(std::as_bytes(std::span(old)), range.old_hashes);
  JournalRecord record{.id = {},
                       .archive = *check(stamp_of(*archive)),
                       .owner_pid = 0,
                       .group_record = group_record,
                       .boot = {},
                       .ranges = {range}};
  if (change_stamp) change_stamp(record.archive);
  check(journal->seal(std::move(record), Durability::Process));
  check(journal->publish(Durability::Process));
  return journal;
}

/// Plants the journal of a dead owner. @return the journal's path.
inline std::filesystem::path plant_journal(const std::filesystem::path& archive_path, std::uint64_t offset,
                                           const std::string& bytes,
                                           const std::function<void(ArchiveStamp&)>& change_stamp = {},
                                           Storage& storage = system_storage(),
                                           const std::string& group_record = {}) {
  return plant_living_journal(archive_path, offset, bytes, change_stamp, storage, group_record)->path();
}

/// Makes an empty file if there is none. @return the bytes of a group record in it.
inline std::string group_record_for(const std::filesystem::path& path, std::vector<std::string> journals) {
  std::ofstream(path, std::ios::app).close();
  const auto status = (*system_storage().open(path, Access::ReadOnly))->status();
  if (!status) throw std::runtime_error(status.error().message);
  return encode_group_record({std::move(journals), FileNumbers::of(*status)});
}

}  // namespace stfs::test
