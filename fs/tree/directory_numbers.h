// The inode numbers of the directories of layout=tree, which they keep while tensors come and go. A directory
// stays when its last tensor has gone: rmdir(2) removes it.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>

namespace stfs {

/// For one thread.
class DirectoryNumbers {
 public:
  using Ino = std::uint64_t;
  struct Place {
    Ino parent = 0;
    std::string file_name;
  };

  /// @param first  the first number to give.
  explicit DirectoryNumbers(Ino first) : next_(first) {}

  /// The number of a directory. Gives it one if it has none.
  Ino number(Ino parent, std::string_view file_name) {
    const auto [found, is_new] = by_place_.try_emplace({parent, std::string(file_name)}, next_);
    if (is_new) places_.emplace(next_++, Place{parent, std::string(file_name)});
    return found->second;
  }
  /// Moves a directory that has a number, with all that lies in it.
  void move(Ino directory, Ino parent, std::string_view file_name) {
    remove(directory);
    by_place_.insert_or_assign({parent, std::string(file_name)}, directory);
    places_.insert_or_assign(directory, Place{parent, std::string(file_name)});
  }
  void remove(Ino directory) {
    const auto found = places_.find(directory);
    if (found == places_.end()) return;
    by_place_.erase({found->second.parent, found->second.file_name});
    places_.erase(found);
  }
  /// All directories, by number.
  [[nodiscard]] const std::map<Ino, Place>& all() const { return places_; }

 private:
  Ino next_;
  std::map<std::pair<Ino, std::string>, Ino> by_place_;
  std::map<Ino, Place> places_;
};

}  // namespace stfs
