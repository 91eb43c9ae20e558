// The note is a JSON object, replaced as a whole.
#include "tools/sync/file_switch.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <optional>
#include <span>
#include <utility>

#include "core/base/utf8.h"
#include "core/journal/journal_format.h"
#include "core/storage/file.h"
#include "tools/sync/switch_names.h"
#include "tools/text/json_document.h"

namespace stfs::sync {
namespace {

constexpr const char* kNoteName = "switch.json";
constexpr const char* kNextNote = "switch.tmp";  // the note's name until it is whole
constexpr const char* kStateBefore = "state.before";
constexpr const char* kStateAfter = "state.after";
constexpr const char* kVersionOfState = "version";  // a member of each state.json
// The size of about 100,000 names. Another user may have written the text, and its JSON tree takes 25 times
// as much memory.
constexpr std::uint64_t kMostNoteBytes = 4 << 20;

struct Note {
  FileSwitch files;
  bool is_ready = false;
  std::uint32_t maker = 0;  // the user whose process has written it
};

/// Returns true if the text is a name in the directory, which leads nowhere else.
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

/// Throws the exception of nlohmann_json for another form.
std::string name_in(const tools::Json& value) {
  auto name = value.get<std::string>();
  if (!is_name(name)) throw tools::Json::other_error::create(0, "no name", nullptr);
  return name;
}

FileSwitch::Move move_in(const tools::Json& value) {
  return {name_in(value.at(0)), name_in(value.at(1))};
}

Note note_in(const tools::Json& document) {
  // A user who may write the model may also write the text of its state, and may rename that file to the
  // note's name.
  if (document.contains(kVersionOfState)) throw tools::Json::other_error::create(0, "a state", nullptr);
  Note note;
  note.is_ready = document.at("ready").get<bool>();
  for (const tools::Json& name : document.at("archives")) note.files.archives.push_back(name_in(name));
  note.files.step = move_in(document.at("step"));
  for (const tools::Json& move : document.at("after")) note.files.after.push_back(move_in(move));
  for (const tools::Json& name : document.at("removed")) note.files.removed.push_back(name_in(name));
  return note;
}

/// Returns nothing if there is no note.
Result<std::optional<Note>> read_note(Storage& storage, const SyncPlace& place) {
  const std::filesystem::path path = place.file(kNoteName);
  const auto file = storage.open_no_link(path, Access::ReadOnly);
  if (!file && file.error().errno_value == ENOENT) return std::optional<Note>();
  RETURN_IF_ERROR(file);
  RETURN_IF_ERROR(check_maker(storage, place, kNoteName, **file, RightTo::Directory));
  const auto status = (*file)->status();
  RETURN_IF_ERROR(status);
  auto text = read_text(**file, kMostNoteBytes);
  RETURN_IF_ERROR(text);
  try {
    Note note = note_in(tools::parse_json(*text));
    note.maker = status->uid;
    return std::optional(std::move(note));
  } catch (const tools::Json::exception&) {
    return fail(ErrorCode::InvalidArgument, EINVAL,
                fmt::format("{}: damaged: it should say which files a full version replaces; pull into a new "
                            "directory",
                            path.string()));
  }
}

Result<void> write_note(Storage& storage, const SyncPlace& place, const FileSwitch& files, bool is_ready) {
  const std::string text = text_of(files, is_ready);
  return storage.replace(place.file(kNoteName), place.file(kNextNote), std::as_bytes(std::span(text)),
                         Durability::Power);
}

/// Returns the note of this process's own switch. Its maker is the user that the file system shows as the
/// owner of this process's files.
Note own_note(Storage& storage, const SyncPlace& place, const FileSwitch& files, bool is_ready) {
  const auto noted = read_note(storage, place);
  const std::uint32_t maker = noted && *noted ? (*noted)->maker : storage.user();
  return {.files = files, .is_ready = is_ready, .maker = maker};
}

/// Replaces a file of the other name. Does nothing if there is no file to rename: an earlier call has renamed
/// it.
Result<void> rename_file(Storage& storage, const std::filesystem::path& from,
                         const std::filesystem::path& to) {
  auto renamed = storage.rename(from, to, true);
  return renamed || renamed.error().errno_value == ENOENT ? Result<void>{} : renamed;
}

Result<void> sync_all(Storage& storage, const SyncPlace& place) {
  auto synced = storage.sync_directory(place.open_folder());
  return synced ? storage.sync_directory(place.model_folder()) : synced;
}

/// Returns true if the step of a noted switch was taken. Another user may have made an entry with the
/// temporary name since.
Result<bool> is_step_taken(Storage& storage, const SyncPlace& place, const Note& note) {
  if (!note.is_ready) return false;
  const auto is_left = is_made(storage, place, note.files.step.from, note.maker);
  RETURN_IF_ERROR(is_left);
  return !*is_left;
}

/// Gives the files that follow the step their names. Returns the files whose names are taken.
Result<std::vector<FileSwitch::Move>> place_files(Storage& storage, const SyncPlace& place,
                                                  const Note& note) {
  std::vector<FileSwitch::Move> left;
  for (const FileSwitch::Move& move : note.files.after) {
    const auto is_there = is_made(storage, place, move.from, note.maker);
    RETURN_IF_ERROR(is_there);
    if (!*is_there) continue;  // an earlier call has renamed the file
    const auto renamed = rename_file(storage, place.model_file(move.from), place.model_file(move.to));
    if (renamed) continue;
    const auto obstacle = find_obstacle(storage, place, move.to);
    RETURN_IF_ERROR(obstacle);
    if (!*obstacle) return tl::unexpected(renamed.error());
    left.push_back(move);
  }
  return left;
}

/// Makes all changes that follow the step. May be repeated. If names are taken, the note stays for these
/// files alone: the next process that takes the lock tries again. The new state is then written nevertheless,
/// because it names the version of the tensors, and all tensors are of the new version.
Result<void> finish(Storage& storage, const SyncPlace& place, const Note& note) {
  const FileSwitch& files = note.files;
  auto left = place_files(storage, place, note);
  RETURN_IF_ERROR(left);
  RETURN_IF_ERROR(rename_file(storage, next_sync_state(place), place.state_file()));
  RETURN_IF_ERROR(sync_all(storage, place));
  for (const std::string& name : files.removed) {
    // A file that this process may not remove, and that is not the model's, stays.
    if (!remove_if_there(storage, place.model_file(name))) {
      RETURN_IF_ERROR(remove_made(storage, place, name, note.maker));
    }
  }
  RETURN_IF_ERROR(remove_if_there(storage, place.file(kStateBefore)));
  RETURN_IF_ERROR(sync_all(storage, place));
  if (left->empty()) return remove_if_there(storage, place.file(kNoteName));
  const bool is_noted = files.archives.empty() && files.removed.empty();
  if (is_noted && left->size() == files.after.size()) return {};
  // The names of the removed files may be used again before the last file is placed.
  return write_note(storage, place,
                    {.archives = {}, .step = files.step, .after = std::move(*left), .removed = {}}, true);
}

/// Removes the new files and the note.
Result<void> undo(Storage& storage, const SyncPlace& place, const Note& made) {
  const FileSwitch& files = made.files;
  const std::filesystem::path state = place.state_file();
  if (!is_taken_name(storage, state)) {
    RETURN_IF_ERROR(rename_file(storage, place.file(kStateBefore), state));
  }
  std::vector<std::string> names = files.archives;
  for (const FileSwitch::Move& move : files.after) names.push_back(move.from);
  RETURN_IF_ERROR(remove_if_there(storage, next_sync_state(place)));
  for (const std::string& name : names) {
    RETURN_IF_ERROR(remove_made(storage, place, name, made.maker));
  }
  // A ready note without `step.from` means that the step was taken. The next process would then finish the
  // switch, and remove the model.
  const auto note = read_note(storage, place);
  RETURN_IF_ERROR(note);
  if (*note && (*note)->is_ready) {
    RETURN_IF_ERROR(write_note(storage, place, files, false));
  }
  RETURN_IF_ERROR(remove_made(storage, place, files.step.from, made.maker));
  RETURN_IF_ERROR(sync_all(storage, place));
  return remove_if_there(storage, place.file(kNoteName));
}

/// @param is_taken  set once the step is taken.
Result<void> step(Storage& storage, const SyncPlace& place, const FileSwitch& files, bool& is_taken) {
  RETURN_IF_ERROR(sync_all(storage, place));
  RETURN_IF_ERROR(write_note(storage, place, files, true));
  const std::filesystem::path state = place.state_file();
  RETURN_IF_ERROR(rename_file(storage, state, place.file(kStateBefore)));
  RETURN_IF_ERROR(storage.sync_directory(place.open_folder()));
  // Later only obstacles are possible that other users make from now on.
  RETURN_IF_ERROR(check_final_name(storage, place, files.step.to));
  for (const FileSwitch::Move& move : files.after) {
    RETURN_IF_ERROR(check_final_name(storage, place, move.to));
  }
  const std::filesystem::path to = place.model_file(files.step.to);
  RETURN_IF_ERROR(storage.rename(place.model_file(files.step.from), to, true));
  is_taken = true;
  return storage.sync_directory(place.model_folder());
}

}  // namespace

std::filesystem::path next_sync_state(const SyncPlace& place) {
  return place.file(kStateAfter);
}

bool is_taken_name(Storage& storage, const std::filesystem::path& path) {
  const auto there = storage.status(path);
  return there || (there.error().errno_value != ENOENT && there.error().errno_value != ENOTDIR);
}

Result<void> note_switch(Storage& storage, const SyncPlace& place, const FileSwitch& files) {
  const auto is_text = [](const FileSwitch::Move& move) { return is_utf8(move.to); };
  const auto wrong = std::ranges::find_if_not(files.after, is_text);
  if (wrong != files.after.end()) {
    return fail(ErrorCode::InvalidArgument, EILSEQ,
                (place.directory / wrong->to).string() +
                    ": its name is not UTF-8: a full version can't have this file");
  }
  if (text_of(files, false).size() > kMostNoteBytes) {
    return fail(ErrorCode::InvalidArgument, EFBIG,
                fmt::format("{}: the names of its old and new files have more than {} bytes: a full version "
                            "can't replace so many files",
                            place.directory.native(), kMostNoteBytes));
  }
  const auto pending = read_note(storage, place);
  RETURN_IF_ERROR(pending);
  if (*pending && (*pending)->is_ready) {
    for (const FileSwitch::Move& move : (*pending)->files.after) {
      RETURN_IF_ERROR(remove_made(storage, place, move.from, (*pending)->maker));
    }
  }
  return write_note(storage, place, files, false);
}

Result<void> take_switch(Storage& storage, const SyncPlace& place, const FileSwitch& files) {
  bool is_taken = false;
  auto done = step(storage, place, files, is_taken);
  if (!done && !is_taken) {
    static_cast<void>(undo_switch(storage, place, files));  // else the next receiver does
    return done;
  }
  if (done) done = finish(storage, place, own_note(storage, place, files, true));
  if (done) return done;
  return tl::unexpected(std::move(done).error().within(place.directory.string() +
                                                       ": it has the new version; the next pull finishes"));
}

Result<void> undo_switch(Storage& storage, const SyncPlace& place, const FileSwitch& files) {
  return undo(storage, place, own_note(storage, place, files, false));
}

Result<void> recover_switch(Storage& storage, const SyncPlace& place) {
  const auto note = read_note(storage, place);
  RETURN_IF_ERROR(note);
  RETURN_IF_ERROR(remove_if_there(storage, place.file(kNextNote)));
  if (!*note) return {};
  const auto is_taken = is_step_taken(storage, place, **note);
  RETURN_IF_ERROR(is_taken);
  return *is_taken ? finish(storage, place, **note) : undo(storage, place, **note);
}

Result<void> check_placed(Storage& storage, const SyncPlace& place) {
  const auto note = read_note(storage, place);
  RETURN_IF_ERROR(note);
  if (!*note || !(*note)->is_ready || (*note)->files.after.empty()) return {};
  const std::string& name = (*note)->files.after.front().to;
  const auto obstacle = find_obstacle(storage, place, name);
  RETURN_IF_ERROR(obstacle);
  return fail(ErrorCode::NotFound, EAGAIN,
              fmt::format("{}: {} has the name of this file of the model, which has its new version without "
                          "the file: rename or remove it: the next pull puts the file there",
                          (place.directory / name).native(), obstacle->value_or("an entry of another user")));
}

std::optional<std::string> model_in_switch(Storage& storage, const SyncPlace& named) {
  const auto place = open_place(named, storage);
  if (!place) return std::nullopt;
  const auto note = read_note(storage, *place);
  if (!note || !*note) return std::nullopt;
  return (*note)->files.step.to;
}

std::filesystem::path present_sync_state(Storage& storage, const SyncPlace& place) {
  std::filesystem::path state = place.state_file();
  if (is_taken_name(storage, state)) return state;
  const auto note = read_note(storage, place);
  if (!note || !*note || !(*note)->is_ready) return state;
  const auto is_taken = is_step_taken(storage, place, **note);
  std::filesystem::path hidden = place.file(is_taken && *is_taken ? kStateAfter : kStateBefore);
  return is_taken_name(storage, hidden) ? hidden : state;
}

}  // namespace stfs::sync
