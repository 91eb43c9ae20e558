// The hash of names for tables in memory. The names come from files of other users.
//
// Each process has its own seed. Without one, another user can make a file whose names all have one hash: it
// takes quadratic time to open. (std::hash has no seed.) The hash is different in the next process: never
// write it to a file, and make no file name of it.
#pragma once

#include <cstdint>
#include <functional>
#include <string_view>
#include <unordered_map>
#include <unordered_set>

namespace stfs {

/// @param place  distinguishes equal names in one table, for example by the number of a file's directory
std::uint64_t name_hash(std::string_view name, std::uint64_t place = 0);

/// For standard containers. A look-up makes no string.
struct NameHash {
  using is_transparent = void;
  std::size_t operator()(std::string_view name) const { return name_hash(name); }
};

/// @tparam Name  std::string, or std::string_view if the names outlive the table
template <class Name, class Value>
using NameMap = std::unordered_map<Name, Value, NameHash, std::equal_to<>>;
template <class Name>
using NameSet = std::unordered_set<Name, NameHash, std::equal_to<>>;

}  // namespace stfs
