// The note is a JSON object, replaced as a whole.
#include "tools/sync/file_switch.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <optional>
#include <span>
#include <string_view>
#include <system_error>
#include <utility>

#include "core/base/utf8.h"
#include "core/journal/journal_format.h"
#include "core/storage/file.h"
#include "core/storage/new_file.h"
#include "tools/text/json_document.h"

namespace stfs::sync {
namespace {

constexpr const char* kNoteName = ".weight_sync/switch.json";
constexpr const char* kNextNote = ".weight_sync/switch.tmp";  // until it has its name
constexpr const char* kStateBefore = ".weight_sync/state.before";
constexpr std::uint64_t kMostNoteBytes = 64 << 20;

struct Note {
  FileSwitch files;
  bool is_ready = false;
};

/// A name in the directory, which leads nowhere else.
bool is_name(const std::string& name) {
  return !name.empty() && name != "." && name != ".." && name.find('/') == std::string::npos;
}

tools::Json json_of(const FileSwitch::Move& move) {
  return tools::Json::array({move.from, move.to});
}

std::string text_of(const FileSwitch& files, bool is_ready) {
  tools::Json document;
  document["ready"] = is_ready;
  document["archives"] = files.archives;
  document["step"] = json_of(files.step);
  document["after"] = tools::Json::array();
  for (const FileSwitch::Move& move : files.after) document["after"].push_back(json_of(move));
  document["removed"] = files.removed;
  return tools::json_line(document) + "\n";
}

/// Throws what nlohmann_json throws for another form.
std::string name_in(const tools::Json& value) {
  auto name = value.get<std::string>();
  if (!is_name(name)) throw tools::Json::other_error::create(0, "no name", nullptr);
  return name;
}

FileSwitch::Move move_in(const tools::Json& value) {
  return {name_in(value.at(0)), name_in(value.at(1))};
}

Note note_in(const tools::Json& document) {
  Note note;
  note.is_ready = document.at("ready").get<bool>();
  for (const tools::Json& name : document.at("archives")) note.files.archives.push_back(name_in(name));
  note.files.step = move_in(document.at("step"));
  for (const tools::Json& move : document.at("after")) note.files.after.push_back(move_in(move));
  for (const tools::Json& name : document.at("removed")) note.files.removed.push_back(name_in(name));
  return note;
}

/// Nothing if there is no note.
Result<std::optional<Note>> read_note(const std::filesystem::path& directory) {
  const std::filesystem::path path = directory / kNoteName;
  const auto file = system_storage().open_no_link(path, Access::ReadOnly);
  if (!file && file.error().errno_value == ENOENT) return std::optional<Note>();
  if (!file) return tl::unexpected(file.error());
  const auto size_bytes = (*file)->size_bytes();
  if (!size_bytes) return tl::unexpected(size_bytes.error());
  auto text = read_text(**file, {0, std::min(*size_bytes, kMostNoteBytes)});
  if (!text) return pass_on(std::move(text));
  try {
    return std::optional(note_in(tools::parse_json(*text)));
  } catch (const tools::Json::exception&) {
    return fail(ErrorCode::InvalidArgument, EINVAL,
                fmt::format("{}: damaged: it should say which files a full version replaces; pull into a new "
                            "directory",
                            path.string()));
  }
}

Result<void> write_note(const std::filesystem::path& directory, const FileSwitch& files, bool is_ready) {
  const std::string text = text_of(files, is_ready);
  auto file = NewFile::create_as(directory / kNextNote, directory / kNoteName);
  if (!file) return pass_on(std::move(file));
  if (auto appended = file->append(std::as_bytes(std::span(text))); !appended) return appended;
  return file->finish();
}

/// Does nothing if there is no such file.
Result<void> remove_file(const std::filesystem::path& path) {
  auto removed = system_storage().remove(path);
  return removed || removed.error().errno_value == ENOENT ? Result<void>{} : removed;
}

/// Replaces a file of the other name. Does nothing if there is no file to rename: that was done.
Result<void> rename_file(const std::filesystem::path& from, const std::filesystem::path& to) {
  if (::rename(from.c_str(), to.c_str()) == 0 || errno == ENOENT) return {};
  return fail_system(errno, to.string(), "rename");
}

Result<void> sync_all(const std::filesystem::path& directory) {
  Storage& storage = system_storage();
  auto synced = storage.sync_directory((directory / kNoteName).parent_path());
  return synced ? storage.sync_directory(directory) : synced;
}

/// What comes after the step. May be repeated.
Result<void> finish(const std::filesystem::path& directory, const FileSwitch& files) {
  for (const FileSwitch::Move& move : files.after) {
    if (auto named = rename_file(directory / move.from, directory / move.to); !named) return named;
  }
  if (auto named = rename_file(directory / kNextSyncStateName, directory / kSyncStateName); !named)
    return named;
  if (auto synced = sync_all(directory); !synced) return synced;
  for (const std::string& name : files.removed) {
    if (auto removed = remove_file(directory / name); !removed) return removed;
  }
  if (auto removed = remove_file(directory / kStateBefore); !removed) return removed;
  if (auto synced = sync_all(directory); !synced) return synced;
  return remove_file(directory / kNoteName);
}

/// @param is_taken  whether the step was taken.
Result<void> step(const std::filesystem::path& directory, const FileSwitch& files, bool& is_taken) {
  Storage& storage = system_storage();
  if (auto synced = sync_all(directory); !synced) return synced;
  if (auto noted = write_note(directory, files, true); !noted) return noted;
  const std::filesystem::path state = directory / kSyncStateName;
  if (auto hidden = rename_file(state, directory / kStateBefore); !hidden) return hidden;
  if (auto synced = storage.sync_directory(state.parent_path()); !synced) return synced;
  const std::filesystem::path to = directory / files.step.to;
  if (::rename((directory / files.step.from).c_str(), to.c_str()) != 0)
    return fail_system(errno, to.string(), "rename");
  is_taken = true;
  return storage.sync_directory(directory);
}

}  // namespace

bool is_taken_name(const std::filesystem::path& path) {
  std::error_code unknown;
  return std::filesystem::symlink_status(path, unknown).type() != std::filesystem::file_type::not_found;
}

Result<void> note_switch(const std::filesystem::path& directory, const FileSwitch& files) {
  const auto is_text = [](const FileSwitch::Move& move) { return is_utf8(move.to); };
  const auto wrong = std::ranges::find_if_not(files.after, is_text);
  if (wrong != files.after.end()) {
    return fail(
        ErrorCode::InvalidArgument, EILSEQ,
        (directory / wrong->to).string() + ": its name is not UTF-8: a full version can't have this file");
  }
  return write_note(directory, files, false);
}

Result<void> take_switch(const std::filesystem::path& directory, const FileSwitch& files) {
  bool is_taken = false;
  auto done = step(directory, files, is_taken);
  if (!done && !is_taken) {
    static_cast<void>(undo_switch(directory, files));  // else the next receiver does
    return done;
  }
  if (done) done = finish(directory, files);
  if (done) return done;
  return tl::unexpected(std::move(done).error().within(directory.string() +
                                                       ": it has the new version; the next pull finishes"));
}

Result<void> undo_switch(const std::filesystem::path& directory, const FileSwitch& files) {
  const std::filesystem::path state = directory / kSyncStateName;
  if (!is_taken_name(state)) {
    if (auto named = rename_file(directory / kStateBefore, state); !named) return named;
  }
  std::vector<std::string> names = files.archives;
  names.push_back(files.step.from);
  for (const FileSwitch::Move& move : files.after) names.push_back(move.from);
  names.emplace_back(kNextSyncStateName);
  for (const std::string& name : names) {
    if (auto removed = remove_file(directory / name); !removed) return removed;
  }
  if (auto synced = sync_all(directory); !synced) return synced;
  return remove_file(directory / kNoteName);
}

Result<void> recover_switch(const std::filesystem::path& directory) {
  const auto note = read_note(directory);
  if (!note) return tl::unexpected(note.error());
  if (auto removed = remove_file(directory / kNextNote); !removed) return removed;
  if (!*note) return {};
  const FileSwitch& files = (*note)->files;
  const bool is_taken = (*note)->is_ready && !is_taken_name(directory / files.step.from);
  return is_taken ? finish(directory, files) : undo_switch(directory, files);
}

std::filesystem::path present_sync_state(const std::filesystem::path& directory) {
  std::filesystem::path state = directory / kSyncStateName;
  if (is_taken_name(state)) return state;
  const auto note = read_note(directory);
  if (!note || !*note || !(*note)->is_ready) return state;
  std::filesystem::path hidden =
      directory / (is_taken_name(directory / (*note)->files.step.from) ? kStateBefore : kNextSyncStateName);
  return is_taken_name(hidden) ? hidden : state;
}

}  // namespace stfs::sync
