// Scratch files: their names in the tree, and their drafts (fs/write/drafts.h).
// core/model/scratch_directory.h has the files themselves, mounted_model_drafts.cc makes tensors of them.
//
// A file's name in the scratch directory is its path from the mount's root, in which `%` is written as %25
// and `/` as %2F. If the tree does not have the directory of a path, for example with another layout, the
// root shows the file, with dots between the parts, as in a tensor's name.
//
// Only a mount that can make files shows scratch files. It looks into the scratch directory at each look-up
// and listing, so that it shows what other mounts do.
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <mutex>
#include <set>

#include "core/base/mutex.h"
#include "core/format/json_string.h"
#include "fs/base/log.h"
#include "fs/model/mounted_model.h"
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

/// The name that a file of the tree has in the scratch directory.
std::string scratch_name_of(const InodeTable& table, Ino directory, std::string_view name) {
  std::string path = encoded(name);
  for (; directory != kRootIno && table.exists(directory); directory = table.parent(directory))
    path = fmt::format("{}%2F{}", encoded(table.file_name(directory)), path);
  return path;
}

using ScratchPlace = std::pair<Ino, std::string>;

/// The place in the tree of a file in the scratch directory. Nothing: its name leads nowhere.
std::optional<ScratchPlace> scratch_place_of(const InodeTable& table, const std::string& file_name) {
  const auto parts = decoded_path(file_name);
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
  ScratchPlace place = is_found ? ScratchPlace(directory, parts.back()) : ScratchPlace(kRootIno, dotted);
  // Another program may have made a file of any name.
  const auto& [parent, name] = place;
  const bool is_name = !name.empty() && name != "." && name != "..";
  const bool is_ours = parent == kRootIno && name == kViewsDirectory;
  return is_name && !is_ours ? std::optional(std::move(place)) : std::nullopt;
}

/// Call before the file loses its name, so that programs that have the file open keep its bytes.
Result<void> keep_scratch_bytes(const Drafts::Draft& draft) {
  return draft.content->descriptors == 0 ? Result<void>() : draft.content->new_tensor()->scratch()->open();
}

}  // namespace

std::optional<std::string> MountedModel::find_scratch_name(Ino directory, std::string_view name) const {
  std::string file_name = scratch_name_of(tree_.table(), directory, name);
  if (scratch_.status(file_name)) return file_name;
  if (directory != kRootIno || name.find('.') == std::string_view::npos) return std::nullopt;
  for (const std::string& other : scratch_.list().value_or(std::vector<std::string>())) {
    const bool is_of_name =
        scratch_place_of(tree_.table(), other) == ScratchPlace(kRootIno, std::string(name));
    if (is_of_name && scratch_.status(other)) return other;
  }
  return std::nullopt;
}

std::optional<Drafts::Draft> MountedModel::add_scratch(Ino directory, std::string_view name,
                                                       std::string file_name, UserCounts::Share share) const {
  const TensorId id = give_id();
  auto made = std::make_unique<NewTensor>(std::string(name), scratch_, std::move(file_name));
  const auto tensor_name = tree_.name_in(directory, name);
  made->take_name(tensor_name.value_or(std::string(name)), tensor_name.has_value());
  Drafts::Draft draft{.ino = InodeTable::ino_of_tensor(id),
                      .directory = directory,
                      .file_name = std::string(name),
                      .content = std::make_shared<PendingFile>(id, std::move(made)),
                      .share = std::move(share)};
  for (const std::string_view key : {"dtype", "shape"}) {
    // Another program may have written anything there.
    if (const auto kept = draft.content->new_tensor()->scratch()->attribute(key))
      static_cast<void>(set_form(*draft.content, key, *kept));
  }
  if (drafts_.add(draft)) return draft;
  return drafts_.find(directory, name);
}

void MountedModel::keep_attribute(const Drafts::Draft& draft, std::string_view key,
                                  const std::string& value) {
  if (!draft.is_scratch() || draft.content->is_unlinked) return;
  const auto kept = draft.content->new_tensor()->scratch()->set_attribute(key, value);
  if (kept) return;
  log::warning("{}: its {} is forgotten when this mount ends: {}", in_quotes(draft.file_name), key,
               kept.error().message);
}

bool MountedModel::is_in_use(const Drafts::Draft& draft) const {
  return draft.content->descriptors != 0 || lookups_[number_of(draft.content->tensor())] != 0;
}

void MountedModel::drop_scratch(const Drafts::Draft& draft) const {
  draft.content->is_unlinked = true;
  if (is_in_use(draft)) {
    drafts_.unlink(draft.ino);
  } else {
    drafts_.remove(draft.ino);
  }
}

std::optional<Drafts::Draft> MountedModel::find_draft(Ino directory, std::string_view name) const {
  const auto known = drafts_.find(directory, name);
  if (!shows_scratch() || !InodeTable::is_directory(directory) || !tree_.table().exists(directory))
    return known;
  if (known) {
    if (!known->is_scratch() || is_scratch_there(*known)) return known;
    drop_scratch(*known);
  }
  auto file_name = find_scratch_name(directory, name);
  return file_name ? add_scratch(directory, name, std::move(*file_name)) : std::nullopt;
}

bool MountedModel::is_scratch_there(const Drafts::Draft& draft) const {
  const ScratchBytes& own = *draft.content->new_tensor()->scratch();
  const auto named = scratch_.status(own.name());
  // Another mount may have removed a file that programs of this mount have open, and made another file of
  // that name.
  const auto opened = named ? own.status() : std::nullopt;
  return named && (!opened || opened->inode == named->inode);
}

void MountedModel::load_scratch() const {
  if (!shows_scratch()) return;
  const auto listed = scratch_.list();
  if (!listed) {
    if (!was_scratch_refused_.exchange(true)) log::warning("{}", listed.error().message);
    return;
  }
  std::set<std::string> known;
  for (const auto& draft : drafts_.all()) {
    if (!draft.is_scratch()) continue;
    std::string file_name = draft.content->new_tensor()->scratch()->name();
    if (!std::ranges::binary_search(*listed, file_name)) {
      // A program may have made the file after the listing, or may be renaming it now.
      const std::unique_lock lock(draft.content->mutex, std::try_to_lock);
      if (lock && draft.is_scratch() && !is_scratch_there(draft)) drop_scratch(draft);
    }
    known.insert(std::move(file_name));
  }
  for (const std::string& file_name : *listed) {
    if (known.contains(file_name) || !scratch_.status(file_name)) continue;
    if (const auto place = scratch_place_of(tree_.table(), file_name))
      static_cast<void>(add_scratch(place->first, place->second, file_name));
  }
}

bool MountedModel::has_scratch_in(Ino directory) const {
  load_scratch();
  return drafts_.has_in(directory);
}

void MountedModel::list_scratch(Ino directory, std::uint64_t position,
                                const Directory::VisitEntry& visit) const {
  constexpr std::size_t kMost = 256;  // few, because a page of a listing has room for few
  Ino next = position < kFirstScratchPosition ? 0 : position - kFirstScratchPosition;
  for (;;) {
    const auto some = drafts_.in(directory, next, kMost);
    for (const auto& draft : some) {
      const bool is_shown = draft.is_scratch() && !tree_.table().find(directory, draft.file_name);
      if (is_shown && !visit(draft.file_name, draft.ino, kFirstScratchPosition + draft.ino + 1)) return;
    }
    if (some.size() < kMost) return;
    next = some.back().ino + 1;
  }
}

bool MountedModel::reads_scratch(Ino directory, std::string_view name) const {
  const Node node = node_of(directory);
  if (!shows_scratch() || node.kind != Node::Kind::Directory || name == kViewsDirectory) return false;
  const auto pin = snapshots_.pin();
  return name.empty() || !tree_.table().find(node.ino, name);
}

bool MountedModel::lists_scratch(Ino directory) const {
  if (node_of(directory).kind != Node::Kind::Directory) return false;
  const bool has_any = shows_scratch() && !scratch_.list().value_or(std::vector<std::string>()).empty();
  return was_scratch_listed_.exchange(has_any) || has_any;
}

Result<Drafts::Draft> MountedModel::create_scratch(Ino directory, std::string_view name, mode_t mode) {
  auto share = scratch_counts_.take(requesting_user());
  RETURN_IF_ERROR(share);
  std::string file_name = scratch_name_of(tree_.table(), directory, name);
  RETURN_IF_ERROR(scratch_.create(file_name, mode));
  auto draft = add_scratch(directory, name, std::move(file_name), std::move(*share));
  if (!draft) return fail(ErrorCode::Busy, EBUSY, "another program is making this file");
  if (NewTensor* const own = draft->content->new_tensor()) own->note_news();
  return std::move(*draft);
}

Result<void> MountedModel::move_scratch(const Drafts::Draft& draft, Ino new_directory,
                                        std::string_view new_name,
                                        const std::optional<Drafts::Draft>& replaced, bool& is_outdated) {
  std::unique_lock own(draft.content->mutex, std::defer_lock);
  std::unique_lock<ContentLock> other;
  if (replaced) {
    other = std::unique_lock(replaced->content->mutex, std::defer_lock);
    std::lock(own, other);
  } else {
    own.lock();
  }
  NewTensor& made = *draft.content->new_tensor();
  if (!made.is_scratch()) return fail(ErrorCode::Busy, EBUSY, "the file has just become a tensor");
  is_outdated = replaced && !replaced->is_scratch();
  if (is_outdated) return fail(ErrorCode::Busy, ESTALE, "the replaced file has just become a tensor");
  if (replaced) {
    RETURN_IF_ERROR(keep_scratch_bytes(*replaced));
  }
  std::string file_name = scratch_name_of(tree_.table(), new_directory, new_name);
  if (replaced) file_name = replaced->content->new_tensor()->scratch()->name();
  RETURN_IF_ERROR(scratch_.rename(made.scratch()->name(), file_name, replaced.has_value()));
  if (replaced) drop_scratch(*replaced);
  made.scratch()->take_name(std::move(file_name));
  const auto tensor_name = tree_.name_in(new_directory, new_name);
  made.take_name(tensor_name.value_or(std::string(new_name)), tensor_name.has_value());
  static_cast<void>(drafts_.rename(draft.ino, new_directory, new_name));
  return {};
}

Result<void> MountedModel::remove_scratch(const Drafts::Draft& draft) {
  NewTensor& made = *draft.content->new_tensor();
  const MutexLock lock(draft.content->mutex);
  if (!made.is_scratch()) return fail(ErrorCode::Busy, EBUSY, "the file has just become a tensor");
  RETURN_IF_ERROR(keep_scratch_bytes(draft));
  RETURN_IF_ERROR(scratch_.remove(made.scratch()->name()));
  drop_scratch(draft);
  return {};
}

void MountedModel::note_became_tensor(Ino ino, const PendingFile& content) {
  NewTensor& made = *content.new_tensor();
  const std::string file_name = made.scratch()->name();
  made.leave_scratch();
  // If the file cannot be removed, the tensor hides the file, and the next mount removes it.
  if (auto removed = scratch_.remove(file_name); !removed) log::warning("{}", removed.error().message);
  if (content.descriptors == 0) {
    drafts_.remove(ino);
  } else {
    drafts_.unlink(ino);
  }
}

void MountedModel::let_go_of_draft(Ino ino) const {
  const auto draft = drafts_.find(ino);
  if (draft && draft->content->is_unlinked && !is_in_use(*draft)) drafts_.remove(ino);
}

void MountedModel::follow_directories() const {
  for (const auto& draft : drafts_.all()) {
    if (!draft.is_scratch() || draft.content->is_unlinked) continue;
    NewTensor& made = *draft.content->new_tensor();
    std::string file_name = scratch_name_of(tree_.table(), draft.directory, draft.file_name);
    const std::string before = made.scratch()->name();
    if (file_name == before ||
        scratch_place_of(tree_.table(), before) == ScratchPlace(draft.directory, draft.file_name))
      continue;
    if (auto renamed = scratch_.rename(before, file_name, false); !renamed) {
      log::warning("{}", renamed.error().message);
      continue;
    }
    made.scratch()->take_name(std::move(file_name));
    if (auto name = tree_.name_in(draft.directory, draft.file_name)) made.take_name(*name, true);
  }
}

bool MountedModel::has_bytes_of(TensorId tensor, const std::string& file_name,
                                std::uint64_t& most_bytes) const {
  const std::uint64_t size_bytes = model().tensor(tensor).data.size_bytes;
  const auto file = scratch_.open(file_name);
  const auto own_bytes = file ? (*file)->size_bytes() : tl::unexpected(file.error());
  if (!own_bytes || *own_bytes != size_bytes || size_bytes > most_bytes) return false;
  most_bytes -= size_bytes;
  constexpr std::uint64_t kPieceBytes = 1 << 20;
  for (std::uint64_t at = 0; at < size_bytes; at += kPieceBytes) {
    std::vector<std::byte> scratch(static_cast<std::size_t>(std::min(kPieceBytes, size_bytes - at)));
    std::vector<std::byte> stored(scratch.size());
    if (!(*file)->read(scratch, at) || !reader_.copy(tensor, at, stored) || scratch != stored) return false;
  }
  return true;
}

void MountedModel::begin_scratch() {
  if (!shows_scratch()) return;
  const auto pin = snapshots_.pin();
  // The mount serves requests only after this comparison. The tensor hides a larger file, and rm of the
  // tensor removes both.
  std::uint64_t most_bytes = 64 << 20;
  for (const std::string& file_name : scratch_.list().value_or(std::vector<std::string>())) {
    const auto place = scratch_place_of(tree_.table(), file_name);
    const auto found = place ? tree_.table().find(place->first, place->second) : std::nullopt;
    if (!found || InodeTable::is_directory(*found)) continue;
    if (has_bytes_of(InodeTable::tensor(*found), file_name, most_bytes))
      static_cast<void>(scratch_.remove(file_name));
  }
  scratch_.tidy();
  if (const std::string all = scratch_names(); !all.empty())
    log::info("{}: scratch files, which are no tensors: {}", model().path().string(), all);
}

std::string MountedModel::scratch_names() const {
  constexpr std::size_t kMost = 20;
  std::string all;
  const auto listed =
      shows_scratch() ? scratch_.list().value_or(std::vector<std::string>()) : std::vector<std::string>();
  for (std::size_t at = 0; at < std::min(kMost, listed.size()); ++at) {
    const auto place = scratch_place_of(tree_.table(), listed[at]);
    all += (all.empty() ? "" : ", ") + in_quotes(place ? place->second : listed[at]);
  }
  if (listed.size() > kMost) all += fmt::format(" and {} others", listed.size() - kMost);
  return all;
}

}  // namespace stfs
