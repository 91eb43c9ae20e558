#include "core/journal/group_record.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <optional>
#include <span>

#include "core/journal/journal_access.h"
#include "core/storage/disk_space.h"
#include "core/storage/permissions.h"

namespace stfs {
namespace {

constexpr std::string_view kGroupMagic = "STFSGRP1";
constexpr std::size_t kHashBytes = 8;
constexpr std::uint64_t kMaxBytes = std::uint64_t{kMaxGroupJournals} * 300;

std::string hash_text(std::string_view bytes) {
  std::uint64_t hash = XXH3_64bits(bytes.data(), bytes.size());
  std::string text;
  for (std::size_t byte = 0; byte < kHashBytes; ++byte, hash >>= 8U) text += static_cast<char>(hash);
  return text;
}

using Names = std::vector<std::string>;

/// The first character of the file's numbers, which follow the names. No name begins with this character.
constexpr char kNumbersMark = '#';

std::string text_of(const FileNumbers& own) {
  return fmt::format("{}{:016x}{:016x}", kNumbersMark, own.inode, static_cast<std::uint64_t>(own.birth_ns));
}

/// Returns nothing if the text has no numbers.
std::optional<FileNumbers> numbers_in(std::string_view text) {
  constexpr std::size_t kDigits = 16;
  if (text.size() != 1 + 2 * kDigits || text.front() != kNumbersMark) return std::nullopt;
  std::array<std::uint64_t, 2> numbers{};
  for (std::size_t at = 0; at < numbers.size(); ++at) {
    const char* const begin = text.data() + 1 + at * kDigits;
    const auto read = std::from_chars(begin, begin + kDigits, numbers[at], 16);
    if (read.ec != std::errc() || read.ptr != begin + kDigits) return std::nullopt;
  }
  return FileNumbers{numbers[0], static_cast<std::int64_t>(numbers[1])};
}

/// Returns false for a long record that is mostly a hole. No commit writes such a record: names have no
/// zeros.
bool may_be_text(const File& file, std::uint64_t size_bytes) {
  constexpr std::uint64_t kShortBytes = 1 << 20;
  if (size_bytes <= kShortBytes || file.descriptor() < 0) return true;
  return has_bytes(file.descriptor(), {0, size_bytes}, size_bytes / 2);
}

/// Returns nothing if the file is void.
Result<std::optional<GroupContent>> content_of(const File& file) {
  auto size_bytes = file.size_bytes();
  RETURN_IF_ERROR(size_bytes);
  if (*size_bytes > kMaxBytes) return damaged("it is longer than the largest record");
  if (!may_be_text(file, *size_bytes)) return damaged("it is a hole");
  const auto text = read_text(file, {0, *size_bytes});
  RETURN_IF_ERROR(text);
  // The file is void: a power loss left it empty, or its owner has taken it back by zeroing the first byte. A
  // write of one byte is never torn.
  if (text->empty() || text->front() == '\0') return std::optional<GroupContent>();
  auto content = decode_group_record(*text);
  RETURN_IF_ERROR(content);
  return std::optional(std::move(*content));
}

/// Returns no names if the record is void.
Result<Names> names_in(const File& record) {
  auto content = content_of(record);
  RETURN_IF_ERROR(content);
  return *content ? std::move((*content)->journals) : Names{};
}

/// Returns no names if no writer of the archive can have made the file.
Result<Names> names_of_writer(Storage& storage, const std::filesystem::path& path,
                              const FileStatus& archive) {
  const auto file = storage.open_no_link(path, Access::ReadOnly);
  RETURN_IF_ERROR(file);
  const auto opened = (*file)->status();
  RETURN_IF_ERROR(opened);
  return is_of_writer(storage, *opened, archive) ? names_in(**file) : Names{};
}

bool is_named_in(const Names& journals, const std::string& journal) {
  return std::ranges::find(journals, journal) != journals.end();
}

GroupVerdict ignored(const std::filesystem::path& path, std::string_view why) {
  return {GroupState::Absent, fmt::format("{} {}: ignored", path.filename().string(), why)};
}

/// Returns the verdict on a record that could not be opened.
Result<GroupVerdict> without_file(Storage& storage, const std::filesystem::path& path, const Error& why,
                                  const FileStatus& archive) {
  switch (why.errno_value) {
    case ENOENT: return GroupVerdict{};
    // No writer has made a file like this.
    case ELOOP: return ignored(path, "is a symbolic link");
    case EISDIR:
    case EINVAL: return ignored(path, "is not a regular file");
    default: break;
  }
  // EAGAIN: its owner holds a lease on it.
  if (is_forbidden(why) || why.errno_value == EAGAIN) {
    if (const auto there = storage.status_of_name(path)) {
      const auto doubt = why_not_believed(storage, *there, -1, archive);
      if (doubt && doubt->is_of_stranger) return ignored(path, doubt->why);
    }
  }
  return tl::unexpected(Error(why).within(path.string()));
}

/// Lets only users who may write each of the archives write the record. All users may read its names.
Result<void> restrict_to_writers_of_all(Storage& storage, File& record, const File& archive,
                                        std::span<const File* const> others) {
  const auto first = strict_status_of(archive);
  RETURN_IF_ERROR(first);
  bool is_same = true;
  bool has_same_users = true;
  std::uint32_t mode = first->mode;
  for (const File* const opened : others) {
    const auto other = strict_status_of(*opened);
    RETURN_IF_ERROR(other);
    is_same = is_same && other->mode == first->mode;
    has_same_users = has_same_users && other->uid == first->uid && other->gid == first->gid;
    mode &= other->mode;
  }
  if (is_same && has_same_users) return {};
  constexpr std::uint32_t kReadableForAll = 0644;
  const auto own = record.status();
  RETURN_IF_ERROR(own);
  if (has_same_users) return record.set_mode((own->mode & mode & 0666U) | kReadableForAll);
  if (own->uid != storage.user()) {
    RETURN_IF_ERROR(record.set_owner(storage.user(), own->gid));
  }
  return record.set_mode(kReadableForAll);
}

}  // namespace

std::string encode_group_record(const GroupContent& content) {
  std::string bytes(kGroupMagic);
  bytes += '\0';
  for (const std::string& journal : content.journals) bytes += journal + '\0';
  if (content.own.inode != 0) bytes += text_of(content.own) + '\0';
  return bytes + hash_text(bytes);
}

Result<GroupContent> decode_group_record(std::string_view bytes) {
  if (bytes.size() < kGroupMagic.size() + 1 + kHashBytes) return damaged("it is too short");
  const std::string_view text = bytes.substr(0, bytes.size() - kHashBytes);
  if (bytes.substr(text.size()) != hash_text(text)) return damaged("its hash does not match");
  if (text.back() != '\0') return damaged("its last name has no end");
  std::string_view rest = text;
  const auto next_name = [&rest] {
    const std::string_view name = rest.substr(0, rest.find('\0'));
    rest.remove_prefix(name.size() + 1);
    return name;
  };
  if (next_name() != kGroupMagic) {
    return fail(ErrorCode::InvalidArgument, EPROTONOSUPPORT,
                "a record of several archives, of another version");
  }
  GroupContent content;
  while (!rest.empty()) {
    const std::string_view name = next_name();
    const auto own = rest.empty() ? numbers_in(name) : std::nullopt;
    if (own) {
      content.own = *own;
      break;
    }
    // Another user may have written millions of names that are empty.
    const bool is_name = name.starts_with('.') && name.find('/') == std::string_view::npos;
    if (!is_name || content.journals.size() == kMaxGroupJournals) {
      return damaged("it names a file that is not a journal");
    }
    content.journals.emplace_back(name);
  }
  return content;
}

bool is_group_record_name(std::string_view name) {
  return name.starts_with('.') && name.ends_with(kGroupSuffix) && name.find('/') == std::string_view::npos;
}

Result<GroupVerdict> look_at_group_record(Storage& storage, const std::filesystem::path& path,
                                          const std::string& journal, const FileStatus& archive) {
  auto file = storage.open_no_link(path, Access::ReadOnly);
  if (!file) return without_file(storage, path, file.error(), archive);
  const auto opened = (*file)->status();
  RETURN_IF_ERROR(opened);
  if (const auto doubt = why_not_believed(storage, *opened, (*file)->descriptor(), archive)) {
    if (doubt->is_of_stranger) return ignored(path, doubt->why);
    return fail(ErrorCode::InvalidArgument, EINVAL, fmt::format("{}: {}", path.string(), doubt->why));
  }
  auto content = content_of(**file);
  if (!content) return tl::unexpected(std::move(content).error().within(path.string()));
  if (!*content) {
    // The owner may have died before the zero was on the disk. A loss of power must not bring the record back
    // after some of its journals were removed.
    RETURN_IF_ERROR((*file)->sync());
    return GroupVerdict{};
  }
  if (is_of_other_file(storage, (*content)->own, path, *opened, (*file)->descriptor(), archive))
    return fail(ErrorCode::InvalidArgument, EINVAL, fmt::format("{}: {}", path.string(), kOfOtherFile));
  if (is_named_in((*content)->journals, journal)) return GroupVerdict{GroupState::Committed};
  return fail(ErrorCode::InvalidArgument, EINVAL, path.string() + ": damaged: it does not name " + journal);
}

Result<std::map<std::string, std::string>> find_group_records(Storage& storage,
                                                              const std::filesystem::path& directory,
                                                              const std::set<std::string>& journals,
                                                              const FileStatus& archive) {
  std::map<std::string, std::string> found;
  if (journals.empty()) return found;
  auto listed = storage.list(directory, ".");
  RETURN_IF_ERROR(listed);
  for (const std::string& name : *listed) {
    if (!is_group_record_name(name)) continue;
    // Skip a group record that can't be read. The recovery of the archive beside it handles that.
    const auto named = names_of_writer(storage, directory / name, archive);
    if (!named) continue;
    for (const std::string& journal : *named) {
      if (journals.contains(journal)) found.emplace(journal, name);
    }
  }
  return found;
}

Result<std::vector<std::string>> journals_of_group(Storage& storage, const std::filesystem::path& path) {
  const auto file = storage.open_no_link(path, Access::ReadOnly);
  if (!file && file.error().errno_value == ENOENT) return Names{};
  RETURN_IF_ERROR(file);
  return names_in(**file);
}

Result<bool> has_journals(const File& record, const DirectoryNames& later) {
  const auto journals = names_in(record);
  RETURN_IF_ERROR(journals);
  return std::ranges::any_of(*journals, [&](const std::string& journal) { return later.has(journal); });
}

Result<bool> has_journals(Storage& storage, const std::filesystem::path& path, const File& record) {
  const auto journals = names_in(record);
  RETURN_IF_ERROR(journals);
  return std::ranges::any_of(*journals, [&](const std::string& journal) {
    const auto there = storage.status(path.parent_path() / journal);
    return there || !says_gone(there.error());
  });
}

Result<void> remove_without_journals(Storage& storage, const std::filesystem::path& path,
                                     const DirectoryNames& later) {
  const auto file = storage.open_no_link(path, Access::ReadOnly);
  if (!file) return file.error().errno_value == ENOENT ? Result<void>{} : tl::unexpected(file.error());
  auto has = has_journals(**file, later);
  if (has && !*has) has = has_journals(storage, path, **file);
  RETURN_IF_ERROR(has);
  if (*has) return {};
  // Another recovery of the group may have removed the record. If only its owner may remove it, it stays:
  // without journals it has no effect.
  auto removed = remove_if_there(storage, path);
  return removed || !is_forbidden(removed.error()) ? Result<void>{} : removed;
}

Result<GroupRecord> GroupRecord::create(Storage& storage, const std::filesystem::path& archive_path,
                                        const File& archive, std::span<const File* const> others) {
  const auto make = [&]() -> Result<JournalFile> {
    auto made = create_journal_file(storage, archive_path, archive, kGroupSuffix);
    RETURN_IF_ERROR(made);
    RETURN_IF_ERROR(restrict_to_writers_of_all(storage, *made->file, archive, others));
    return made;
  };
  auto made = make();
  RETURN_IF_ERROR(made);
  auto empty = make();
  RETURN_IF_ERROR(empty);
  return GroupRecord(storage, std::move(*made), std::move(*empty));
}

std::filesystem::path GroupRecord::staged_path() const {
  std::string name = made_.path.filename();
  name.resize(name.size() - kGroupSuffix.size());
  return made_.path.parent_path() / (name + std::string(kStagedSuffix));
}

Result<void> GroupRecord::seal(const std::vector<std::string>& journals, Durability durability) {
  const std::string bytes = encode_group_record({journals, made_.own});
  RETURN_IF_ERROR(made_.file->write(std::as_bytes(std::span(bytes)), 0));
  if (durability == Durability::Power) {
    RETURN_IF_ERROR(made_.file->sync());
  }
  // Name both files before the journals tell the record's name.
  Result<void> named;
  if (!made_.file->has_staged_name()) named = storage_->publish(*made_.file, staged_path());
  if (named) named = storage_->publish(*empty_.file, made_.path);
  if (!named) give_up();
  return named;
}

Result<void> GroupRecord::publish(Durability durability) {
  // Allocate before publishing, as in Journal::publish().
  const std::filesystem::path directory = made_.path.parent_path();
  RETURN_IF_ERROR(storage_->rename(staged_path(), made_.path, true));
  if (durability == Durability::Process) return {};
  auto done = storage_->sync_directory(directory);
  if (done) return done;
  // A crash may keep or lose the name. Take back the content, or the name.
  const bool is_void = make_void(*made_.file, {0, 1}).has_value();
  const bool is_removed = storage_->remove(made_.path).has_value();
  if (is_void || (is_removed && storage_->sync_directory(directory))) return done;
  return fail(ErrorCode::CommitUnknown, EIO,
              done.error().message +
                  "; the record of the transaction could not be removed either: the next recovery decides "
                  "whether the transaction is committed");
}

void GroupRecord::give_up() {
  // Without success recovery removes them: they promise nothing.
  static_cast<void>(storage_->remove(staged_path()));
  static_cast<void>(storage_->remove(made_.path));
}

Result<void> GroupRecord::remove() {
  return storage_->remove(made_.path);
}

}  // namespace stfs
