#include "fs/tree/inode_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <stdexcept>
#include <utility>

#include "core/base/name_hash.h"
#include "fs/tree/names.h"

namespace stfs {

tl::unexpected<Error> no_such_inode(Ino ino) {
  return fail(ErrorCode::NotFound, ENOENT, fmt::format("inode {}: no such file", ino));
}

void throw_no_such_inode(Ino ino) {
  throw std::out_of_range(fmt::format("inode {} is not in the tree of tensors", ino));
}

InodeTable::InodeTable(const TensorIndex& tensors, TensorIds ids, Layout layout) : ids_(std::move(ids)) {
  build(tensors, layout, nullptr);
}

InodeTable::InodeTable(const TensorIndex& tensors, TensorIds ids, Layout layout, DirectoryNumbers& numbers)
    : ids_(std::move(ids)) {
  build(tensors, layout, &numbers);
}

void InodeTable::build(const TensorIndex& tensors, Layout layout, DirectoryNumbers* numbers) {
  const std::uint32_t count = ids_.size();
  nodes_.resize(1 + std::size_t{count});
  grow_slots(nodes_.size());

  // All directories get their names before all files. If a tensor and a directory want the same name (`a`
  // beside `a.b`), the tensor gets the name with a hash, whatever their order in the archive.
  if (layout == Layout::Flat) {
    for (std::uint32_t position = 0; position < count; ++position)
      name_tensor(tensors, position, kRoot, tensors[position].name);
  } else {
    std::vector<std::pair<Place, std::string_view>> places;
    places.reserve(count);
    for (std::uint32_t position = 0; position < count; ++position) {
      const auto parts = dotted_parts(tensors[position].name);
      Place parent = kRoot;
      for (const std::string_view part : std::span(parts).first(parts.size() - 1))
        parent = directory_named(parent, part, numbers);
      places.emplace_back(parent, parts.back());
    }
    if (numbers != nullptr) {
      for (const auto& [number, place] : numbers->all()) add_numbered(number, *numbers);
    }
    for (std::uint32_t position = 0; position < count; ++position)
      name_tensor(tensors, position, places[position].first, places[position].second);
  }
  link_children();
}

bool InodeTable::exists(Ino ino) const {
  if (ino >= kFirstDirectoryIno) {
    return numbers_.empty() ? ino < kFirstDirectoryIno + directory_count() : numbered_places_.contains(ino);
  }
  return ino == kRootIno || (may_be_tensor(ino) && ids_.position(tensor(ino)).has_value());
}

InodeTable::Place InodeTable::place_of(Ino ino) const {
  if (!exists(ino)) throw_no_such_inode(ino);
  if (ino == kRootIno) return kRoot;
  if (ino >= kFirstDirectoryIno) {
    return numbers_.empty() ? static_cast<Place>(1 + ids_.size() + (ino - kFirstDirectoryIno))
                            : numbered_places_.at(ino);
  }
  return place_of_tensor(*ids_.position(tensor(ino)));
}

Ino InodeTable::ino_of(Place place) const {
  if (place == kRoot) return kRootIno;
  if (place > ids_.size()) return directory(place - 1 - ids_.size());
  return ino_of_tensor(ids_.of(place - 1));
}

std::optional<Ino> InodeTable::find(Ino directory, std::string_view file_name) const {
  const auto found = exists(directory) ? find_in(place_of(directory), file_name) : std::nullopt;
  return found ? std::optional(ino_of(*found)) : std::nullopt;
}

std::optional<InodeTable::Place> InodeTable::find_in(Place directory, std::string_view file_name) const {
  const Place found = slots_[slot_of(directory, file_name)];
  return found == 0 ? std::nullopt : std::optional(found);
}

std::span<const InodeTable::Place> InodeTable::children(Ino directory) const {
  if (!is_directory(directory) || !exists(directory)) return {};
  const std::size_t group = group_of(place_of(directory));
  return std::span(children_).subspan(child_begin_[group], child_begin_[group + 1] - child_begin_[group]);
}

std::uint32_t InodeTable::subdirectories(Ino ino) const {
  const auto all = children(ino);
  return static_cast<std::uint32_t>(
      std::ranges::count_if(all, [this](Place child) { return child > ids_.size(); }));
}

std::uint64_t InodeTable::slot_of(Place directory, std::string_view file_name) const {
  const std::uint64_t mask = slots_.size() - 1;
  std::uint64_t slot = name_hash(file_name, directory) & mask;
  for (;; slot = (slot + 1) & mask) {
    if (slots_[slot] == 0) return slot;
    const Node& there = nodes_[slots_[slot]];
    if (there.parent == directory && there.file_name == file_name) return slot;
  }
}

void InodeTable::grow_slots(std::uint64_t nodes) {
  const std::vector<Place> before = std::exchange(slots_, std::vector<Place>(std::bit_ceil(2 * nodes + 1)));
  for (const Place place : before) {
    if (place != 0) insert(place);
  }
}

void InodeTable::insert(Place place) {
  slots_[slot_of(nodes_[place].parent, nodes_[place].file_name)] = place;
}

std::string_view InodeTable::keep(std::string name) {
  return own_names_.emplace_back(std::move(name));
}

InodeTable::Place InodeTable::directory_named(Place parent, std::string_view part,
                                              DirectoryNumbers* numbers) {
  const bool is_plain = is_plain_file_name(part);
  std::string encoded = is_plain ? std::string() : file_name_of(part);
  const std::string_view file_name = is_plain ? part : std::string_view(encoded);
  if (const auto there = find_in(parent, file_name)) return *there;
  const Ino number = numbers == nullptr ? 0 : numbers->number(ino_of(parent), file_name);
  const Place place = add_directory(parent, is_plain ? part : keep(std::move(encoded)));
  if (numbers == nullptr) return place;
  numbers_.push_back(number);
  numbered_places_.emplace(number, place);
  return place;
}

InodeTable::Place InodeTable::add_directory(Place parent, std::string_view file_name) {
  if (2 * (nodes_.size() + 1) > slots_.size()) grow_slots(nodes_.size() + 1);
  const auto place = static_cast<Place>(nodes_.size());
  nodes_.push_back({.file_name = file_name, .parent = parent});
  insert(place);
  return place;
}

void InodeTable::add_numbered(Ino directory, const DirectoryNumbers& numbers) {
  // No recursion: a user may nest directories in any depth.
  std::vector<Ino> missing;
  for (Ino above = directory; above != kRootIno && !numbered_places_.contains(above);
       above = numbers.all().at(above).parent)
    missing.push_back(above);
  for (; !missing.empty(); missing.pop_back()) {
    const Ino next = missing.back();
    const DirectoryNumbers::Place& wanted = numbers.all().at(next);
    const Place parent = wanted.parent == kRootIno ? kRoot : numbered_places_.at(wanted.parent);
    const Place place = add_directory(parent, keep(wanted.file_name));
    numbers_.push_back(next);
    numbered_places_.emplace(next, place);
  }
}

void InodeTable::name_tensor(const TensorIndex& tensors, std::uint32_t position, Place parent,
                             std::string_view part) {
  const bool is_plain = is_plain_file_name(part);
  std::string_view file_name = is_plain ? part : keep(file_name_of(part));
  // A directory may have the name, or the name may look like the cut form of another name.
  for (std::string seed(tensors[position].name); find_in(parent, file_name); seed += '~') {
    file_name = keep(told_apart(is_plain ? part : std::string_view(file_name_of(part)), seed));
  }
  const Place place = place_of_tensor(position);
  nodes_[place] = {.file_name = file_name, .parent = parent};
  insert(place);
}

void InodeTable::link_children() {
  const std::size_t directories = nodes_.size() - ids_.size();
  child_begin_.assign(directories + 1, 0);
  for (Place place = 1; place < nodes_.size(); ++place) ++child_begin_[group_of(nodes_[place].parent) + 1];
  for (std::size_t group = 0; group < directories; ++group) child_begin_[group + 1] += child_begin_[group];
  children_.resize(nodes_.size() - 1);
  std::vector<std::uint32_t> next(child_begin_.begin(), child_begin_.end() - 1);
  for (Place place = 1; place < nodes_.size(); ++place)
    children_[next[group_of(nodes_[place].parent)]++] = place;
}

}  // namespace stfs
