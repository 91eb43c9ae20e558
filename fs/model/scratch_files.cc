#include "fs/model/scratch_files.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <set>

#include "core/base/mutex.h"
#include "core/format/json_string.h"
#include "fs/base/log.h"
#include "fs/model/tensor_forms.h"

namespace stfs {
namespace {

std::string encoded(std::string_view part) {
  std::string text;
  for (const char character : part) {
    if (character == '%') {
      text += "%25";
    } else if (character == '/') {
      text += "%2F";
    } else {
      text += character;
    }
  }
  return text;
}

std::vector<std::string> decoded_path(std::string_view file_name) {
  std::vector<std::string> parts(1);
  while (!file_name.empty()) {
    if (file_name.starts_with("%2F")) {
      parts.emplace_back();
    } else {
      parts.back() += file_name.front();
    }
    const bool is_encoded = file_name.starts_with("%2F") || file_name.starts_with("%25");
    file_name.remove_prefix(is_encoded ? 3 : 1);
  }
  return parts;
}

NewTensor* made_of(const Drafts::Draft& draft) {
  return draft.content->made()->tensor();
}

}  // namespace

bool is_scratch(const Drafts::Draft& draft) {
  const NewTensor* const made = made_of(draft);
  return made != nullptr && made->is_scratch();
}

std::string ScratchFiles::file_name_of(Ino directory, std::string_view name) const {
  const InodeTable& table = parts_.tree.table();
  std::string path = encoded(name);
  for (; directory != kRootIno && table.exists(directory); directory = table.parent(directory))
    path = fmt::format("{}%2F{}", encoded(table.file_name(directory)), path);
  return path;
}

std::optional<ScratchFiles::Place> ScratchFiles::place_of(const std::string& file_name) const {
  const auto parts = decoded_path(file_name);
  const InodeTable& table = parts_.tree.table();
  Ino directory = kRootIno;
  std::string dotted;
  bool is_found = true;
  for (const std::string& part : parts) {
    if (!dotted.empty()) dotted += '.';
    dotted += part;
    if (&part == &parts.back()) break;
    const auto found = is_found ? table.find(directory, part) : std::nullopt;
    is_found = found && InodeTable::is_directory(*found);
    if (is_found) directory = *found;
  }
  Place place = is_found ? Place(directory, parts.back()) : Place(kRootIno, dotted);
  // Another program may have made a file of any name.
  const auto& [parent, name] = place;
  const bool is_name = !name.empty() && name != "." && name != "..";
  const bool is_ours = parent == kRootIno && name == kViewsDirectory;
  return is_name && !is_ours ? std::optional(std::move(place)) : std::nullopt;
}

std::optional<std::string> ScratchFiles::find_file(Ino directory, std::string_view name) const {
  std::string file_name = file_name_of(directory, name);
  if (parts_.scratch.status(file_name)) return file_name;
  if (directory != kRootIno || name.find('.') == std::string_view::npos) return std::nullopt;
  for (const std::string& other : parts_.scratch.list().value_or(std::vector<std::string>())) {
    if (other.find("%2F") != std::string::npos && place_of(other) == Place(kRootIno, std::string(name)))
      return other;
  }
  return std::nullopt;
}

std::optional<Drafts::Draft> ScratchFiles::add(Ino directory, std::string_view name, std::string file_name,
                                               UserCounts::Share share) const {
  const TensorId id = parts_.give_id();
  auto made = std::make_unique<NewTensor>(std::string(name), parts_.scratch, std::move(file_name));
  const auto tensor_name = parts_.tree.name_in(directory, name);
  made->take_name(tensor_name.value_or(std::string(name)), tensor_name.has_value());
  Drafts::Draft draft{.ino = InodeTable::ino_of_tensor(id),
                      .directory = directory,
                      .file_name = std::string(name),
                      .content = std::make_shared<PendingContent>(parts_.model, id, std::move(made)),
                      .share = std::move(share)};
  for (const std::string_view key : {"dtype", "shape"}) {
    // Another program may have written anything there.
    if (const auto kept = made_of(draft)->scratch()->attribute(key))
      static_cast<void>(set_form(*draft.content, key, *kept));
  }
  if (parts_.drafts.add(draft)) return draft;
  return parts_.drafts.find(directory, name);
}

void ScratchFiles::keep_attribute(const Drafts::Draft& draft, std::string_view key,
                                  const std::string& value) {
  if (!is_scratch(draft) || draft.content->is_unlinked) return;
  const auto kept = made_of(draft)->scratch()->set_attribute(key, value);
  if (kept) return;
  log::warning("{}: its {} is forgotten when this mount ends: {}", in_quotes(draft.file_name), key,
               kept.error().message);
}

bool ScratchFiles::is_in_use(const Drafts::Draft& draft) const {
  return draft.content->descriptors != 0 || parts_.lookups[number_of(draft.content->tensor())] != 0;
}

void ScratchFiles::drop(const Drafts::Draft& draft) const {
  draft.content->is_unlinked = true;
  if (is_in_use(draft)) {
    parts_.drafts.unlink(draft.ino);
  } else {
    parts_.drafts.remove(draft.ino);
  }
}

std::optional<Drafts::Draft> ScratchFiles::find(Ino directory, std::string_view name) const {
  const auto known = parts_.drafts.find(directory, name);
  if (!is_on() || !InodeTable::is_directory(directory) || !parts_.tree.table().exists(directory))
    return known;
  if (known) {
    if (!is_scratch(*known) || is_there(*known)) return known;
    drop(*known);
  }
  auto file_name = find_file(directory, name);
  return file_name ? add(directory, name, std::move(*file_name)) : std::nullopt;
}

bool ScratchFiles::is_there(const Drafts::Draft& draft) const {
  const ScratchBytes& own = *made_of(draft)->scratch();
  const auto named = parts_.scratch.status(own.name());
  // Another mount may have removed the file that programs of this one have open, and made another one.
  const auto opened = named ? own.status() : std::nullopt;
  return named && (!opened || opened->inode == named->inode);
}

void ScratchFiles::load() const {
  if (!is_on()) return;
  const auto listed = parts_.scratch.list();
  if (!listed) {
    if (!was_refused_.exchange(true)) log::warning("{}", listed.error().message);
    return;
  }
  std::set<std::string> known;
  for (const auto& draft : parts_.drafts.all()) {
    if (!is_scratch(draft)) continue;
    std::string file_name = made_of(draft)->scratch()->name();
    if (!std::ranges::binary_search(*listed, file_name)) {
      // It may have been made after the listing, or get another name just now.
      const std::unique_lock lock(draft.content->mutex, std::try_to_lock);
      if (lock && is_scratch(draft) && !is_there(draft)) drop(draft);
    }
    known.insert(std::move(file_name));
  }
  for (const std::string& file_name : *listed) {
    if (known.contains(file_name) || !parts_.scratch.status(file_name)) continue;
    if (const auto place = place_of(file_name))
      static_cast<void>(add(place->first, place->second, file_name));
  }
}

bool ScratchFiles::has_in(Ino directory) const {
  load();
  return parts_.drafts.has_in(directory);
}

void ScratchFiles::list(Ino directory, std::uint64_t position, const Directory::VisitEntry& visit) const {
  for (const auto& draft : parts_.drafts.in(directory)) {
    const std::uint64_t at = kFirstPosition + draft.ino;
    const bool is_shown =
        at >= position && is_scratch(draft) && !parts_.tree.table().find(directory, draft.file_name);
    if (is_shown && !visit(draft.file_name, draft.ino, at + 1)) return;
  }
}

bool ScratchFiles::may_be_listed() const {
  const bool has_any = is_on() && !parts_.scratch.list().value_or(std::vector<std::string>()).empty();
  return was_listed_.exchange(has_any) || has_any;
}

Result<Drafts::Draft> ScratchFiles::create(Ino directory, std::string_view name, mode_t mode) {
  auto share = counts_.take(requesting_user());
  if (!share) return pass_on(std::move(share));
  std::string file_name = file_name_of(directory, name);
  auto made = parts_.scratch.create(file_name, mode);
  if (!made) return pass_on(std::move(made));
  auto draft = add(directory, name, std::move(file_name), std::move(*share));
  if (!draft) return fail(ErrorCode::Busy, EBUSY, "another program is making this file");
  if (NewTensor* const own = made_of(*draft)) own->note_news();
  return std::move(*draft);
}

Result<void> ScratchFiles::rename(const Drafts::Draft& draft, Ino new_directory, std::string_view new_name,
                                  const std::optional<Drafts::Draft>& replaced) {
  NewTensor& made = *made_of(draft);
  const MutexLock lock(draft.content->mutex);
  if (!made.is_scratch()) return fail(ErrorCode::Busy, EBUSY, "the file has just become a tensor");
  if (replaced) {
    if (auto kept = keep_bytes(*replaced); !kept) return kept;
  }
  std::string file_name = file_name_of(new_directory, new_name);
  if (replaced) file_name = made_of(*replaced)->scratch()->name();
  if (auto renamed = parts_.scratch.rename(made.scratch()->name(), file_name, replaced.has_value()); !renamed)
    return renamed;
  if (replaced) drop(*replaced);
  made.scratch()->take_name(std::move(file_name));
  const auto tensor_name = parts_.tree.name_in(new_directory, new_name);
  made.take_name(tensor_name.value_or(std::string(new_name)), tensor_name.has_value());
  static_cast<void>(parts_.drafts.rename(draft.ino, new_directory, new_name));
  return {};
}

Result<void> ScratchFiles::keep_bytes(const Drafts::Draft& draft) {
  return draft.content->descriptors == 0 ? Result<void>() : made_of(draft)->scratch()->open();
}

Result<void> ScratchFiles::remove(const Drafts::Draft& draft) {
  NewTensor& made = *made_of(draft);
  const MutexLock lock(draft.content->mutex);
  if (!made.is_scratch()) return fail(ErrorCode::Busy, EBUSY, "the file has just become a tensor");
  if (auto kept = keep_bytes(draft); !kept) return kept;
  if (auto removed = parts_.scratch.remove(made.scratch()->name()); !removed) return removed;
  drop(draft);
  return {};
}

void ScratchFiles::note_tensor(const Drafts::Draft& draft) {
  NewTensor& made = *made_of(draft);
  const std::string file_name = made.scratch()->name();
  made.leave_scratch();
  // Its tensor hides a file that stays, and the next mount removes it.
  if (auto removed = parts_.scratch.remove(file_name); !removed) log::warning("{}", removed.error().message);
  if (draft.content->descriptors == 0) {
    parts_.drafts.remove(draft.ino);
  } else {
    parts_.drafts.unlink(draft.ino);
  }
}

void ScratchFiles::let_go(Ino ino) const {
  const auto draft = parts_.drafts.find(ino);
  if (draft && draft->content->is_unlinked && !is_in_use(*draft)) parts_.drafts.remove(ino);
}

void ScratchFiles::follow_directories() const {
  for (const auto& draft : parts_.drafts.all()) {
    if (!is_scratch(draft) || draft.content->is_unlinked) continue;
    NewTensor& made = *made_of(draft);
    std::string file_name = file_name_of(draft.directory, draft.file_name);
    const std::string before = made.scratch()->name();
    if (file_name == before || place_of(before) == Place(draft.directory, draft.file_name)) continue;
    if (auto renamed = parts_.scratch.rename(before, file_name, false); !renamed) {
      log::warning("{}", renamed.error().message);
      continue;
    }
    made.scratch()->take_name(std::move(file_name));
    if (auto name = parts_.tree.name_in(draft.directory, draft.file_name)) made.take_name(*name, true);
  }
}

bool ScratchFiles::is_the_same(const std::string& file_name, TensorId tensor) const {
  const std::uint64_t size_bytes = parts_.model->tensor(tensor).data.size_bytes;
  const auto file = parts_.scratch.open(file_name);
  const auto own_bytes = file ? (*file)->size_bytes() : tl::unexpected(file.error());
  if (!own_bytes || *own_bytes != size_bytes) return false;
  constexpr std::uint64_t kPieceBytes = 1 << 20;
  for (std::uint64_t at = 0; at < size_bytes; at += kPieceBytes) {
    std::vector<std::byte> scratch(static_cast<std::size_t>(std::min(kPieceBytes, size_bytes - at)));
    std::vector<std::byte> stored(scratch.size());
    if (!(*file)->read(scratch, at) || !parts_.reader.copy(tensor, at, stored) || scratch != stored)
      return false;
  }
  return true;
}

void ScratchFiles::begin() {
  if (!is_on()) return;
  const auto pin = parts_.epochs.pin();
  for (const std::string& file_name : parts_.scratch.list().value_or(std::vector<std::string>())) {
    const auto place = place_of(file_name);
    const auto found = place ? parts_.tree.table().find(place->first, place->second) : std::nullopt;
    if (!found || InodeTable::is_directory(*found)) continue;
    if (is_the_same(file_name, InodeTable::tensor(*found)))
      static_cast<void>(parts_.scratch.remove(file_name));
  }
  parts_.scratch.tidy();
  if (const std::string all = names(); !all.empty())
    log::info("{}: scratch files, which are no tensors: {}", parts_.model->path().string(), all);
}

std::string ScratchFiles::names() const {
  constexpr std::size_t kMost = 20;
  std::string all;
  const auto listed =
      is_on() ? parts_.scratch.list().value_or(std::vector<std::string>()) : std::vector<std::string>();
  for (std::size_t at = 0; at < std::min(kMost, listed.size()); ++at) {
    const auto place = place_of(listed[at]);
    all += (all.empty() ? "" : ", ") + in_quotes(place ? place->second : listed[at]);
  }
  if (listed.size() > kMost) all += fmt::format(" and {} others", listed.size() - kMost);
  return all;
}

}  // namespace stfs
