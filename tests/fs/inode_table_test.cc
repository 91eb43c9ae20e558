// Tests that the tree hides no tensor, whatever the tensor's name is.
#include "fs/tree/inode_table.h"

#include <fmt/format.h>

#include <set>

#include "core/format/header.h"
#include "core/format/json_string.h"
#include "fs/tree/names.h"
#include "tests/support/catch.h"

using namespace stfs;

namespace {

/// Returns a header of tensors of one byte each, in this order.
Header header_of(const std::vector<std::string>& names) {
  std::string json = "{";
  for (std::size_t at = 0; at < names.size(); ++at) {
    if (at > 0) json += ',';
    append_json_string(json, names[at]);
    json += fmt::format(":{{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[{},{}]}}", at, at + 1);
  }
  return parse_header(json + "}", names.size()).value();
}

/// Follows a path from the root. Returns 0 if a step is missing.
Ino follow(const InodeTable& table, const std::vector<std::string>& path) {
  Ino at = kRootIno;
  for (const std::string& step : path) {
    if (!table.is_directory(at)) return 0;
    at = table.find(at, step).value_or(0);
    if (at == 0) return 0;
  }
  return at;
}

/// Checks a property of every table: a walk from the root meets each inode once, finds it again by its name,
/// and meets each tensor.
void check_walk(const InodeTable& table, std::uint32_t tensors) {
  std::vector<Ino> waiting = {kRootIno};
  std::set<Ino> met;
  std::set<TensorId> tensors_met;
  bool is_sound = true;
  while (!waiting.empty()) {
    const Ino ino = waiting.back();
    waiting.pop_back();
    is_sound &= met.insert(ino).second;
    if (!table.is_directory(ino)) {
      tensors_met.insert(table.tensor(ino));
      is_sound &= InodeTable::ino_of_tensor(table.tensor(ino)) == ino;
      continue;
    }
    for (std::size_t at = 0; at < table.child_count(ino); ++at) {
      const Ino child = table.child(ino, at);
      const std::string_view name = table.file_name(child);
      is_sound &= table.parent(child) == ino && table.find(ino, name) == child;
      is_sound &= !name.empty() && name.size() <= kMaxFileNameBytes && name != "." && name != ".." &&
                  name.find('/') == std::string_view::npos;
      waiting.push_back(child);
    }
  }
  CHECK(is_sound);
  CHECK(met.size() == table.size());
  CHECK(tensors_met.size() == tensors);
}

}  // namespace

TEST_CASE("flat: every tensor lies in the root, in the order of the archive", "[fs][inode_table]") {
  const Header header = header_of({"z.weight", "a.weight", "a"});
  const InodeTable table(header.tensors, Layout::Flat);
  CHECK(table.size() == 4);
  CHECK(table.is_directory(kRootIno));
  CHECK(table.parent(kRootIno) == kRootIno);
  REQUIRE(table.child_count(kRootIno) == 3);
  CHECK(table.file_name(table.child(kRootIno, 0)) == "z.weight");
  CHECK(table.file_name(table.child(kRootIno, 2)) == "a");
  CHECK(table.tensor(*table.find(kRootIno, "a.weight")) == TensorId{1});
  CHECK(*table.find(kRootIno, "z.weight") == InodeTable::ino_of_tensor(TensorId{}));
  check_walk(table, 3);
}

TEST_CASE("an archive without tensors is an empty directory", "[fs][inode_table]") {
  const Header header = header_of({});
  for (const Layout layout : {Layout::Flat, Layout::Tree}) {
    const InodeTable table(header.tensors, layout);
    CHECK(table.child_count(kRootIno) == 0);
    CHECK_FALSE(table.find(kRootIno, "a"));
    CHECK(table.exists(kRootIno));
    CHECK_FALSE(table.exists(0));
    CHECK_FALSE(table.exists(2));
  }
}

TEST_CASE("look-up goes by the exact file name, never by decoding", "[fs][inode_table]") {
  const Header header = header_of({"a/b", "c", "d.e"});
  const InodeTable table(header.tensors, Layout::Flat);
  CHECK(table.find(kRootIno, "a%2Fb"));
  for (const char* name : {"a/b", "a%2fb", "%63", "", ".", "C", "c ", "d", "d.", "d.e.", ".safetensorsx"}) {
    CAPTURE(name);
    CHECK_FALSE(table.find(kRootIno, name));
  }
}

TEST_CASE("tree: the dots become directories", "[fs][inode_table]") {
  const Header header = header_of({"model.0.w", "model.0.b", "model.1.w", "head"});
  const InodeTable table(header.tensors, Layout::Tree);
  CHECK(table.tensor(follow(table, {"model", "0", "w"})) == TensorId{0});
  CHECK(table.tensor(follow(table, {"model", "1", "w"})) == TensorId{2});
  CHECK(table.tensor(follow(table, {"head"})) == TensorId{3});
  CHECK(table.subdirectories(kRootIno) == 1);
  CHECK(table.subdirectories(follow(table, {"model"})) == 2);
  CHECK(table.child_count(follow(table, {"model", "0"})) == 2);
  CHECK(table.size() == 1 + 4 + 3);
  check_walk(table, 4);
}

TEST_CASE("tree: a tensor whose name a directory has taken is told apart, in either order",
          "[fs][inode_table]") {
  for (const auto& names : {std::vector<std::string>{"a", "a.b"}, std::vector<std::string>{"a.b", "a"}}) {
    const Header header = header_of(names);
    const InodeTable table(header.tensors, Layout::Tree);
    CAPTURE(names);
    const Ino a = follow(table, {"a"});
    REQUIRE(a != 0);
    CHECK(table.is_directory(a));
    CHECK(follow(table, {"a", "b"}) != 0);
    const Ino told = follow(table, {told_apart("a", "a")});
    REQUIRE(told != 0);
    CHECK_FALSE(table.is_directory(told));
    check_walk(table, 2);
  }
}

TEST_CASE("tree: the told-apart form may be taken as well", "[fs][inode_table]") {
  const std::string taken = told_apart("a", "a");
  for (const auto& names :
       {std::vector<std::string>{"a.b", "a", taken}, std::vector<std::string>{taken, "a", "a.b"},
        std::vector<std::string>{"a.b", "a", taken + ".c"}}) {
    const Header header = header_of(names);
    check_walk(InodeTable(header.tensors, Layout::Tree), 3);
  }
}

TEST_CASE("flat: a name that looks like another's cut form hides nothing", "[fs][inode_table]") {
  const std::string long_name(300, 'x');
  const std::string lookalike = file_name_of(long_name);
  for (const auto& names :
       {std::vector<std::string>{long_name, lookalike}, std::vector<std::string>{lookalike, long_name},
        std::vector<std::string>{lookalike, long_name, told_apart(lookalike, lookalike)}}) {
    const Header header = header_of(names);
    check_walk(InodeTable(header.tensors, Layout::Flat), static_cast<std::uint32_t>(names.size()));
  }
}

TEST_CASE("tree: empty parts, dots alone and the views' name are tensors like others", "[fs][inode_table]") {
  const Header header =
      header_of({"", ".", "..", "...", ".safetensors", "a.", "a..", ".a", "a..b", "%", "a/b.c/d", "a"});
  check_walk(InodeTable(header.tensors, Layout::Tree), 12);
  check_walk(InodeTable(header.tensors, Layout::Flat), 12);
  const InodeTable flat(header.tensors, Layout::Flat);
  CHECK_FALSE(flat.find(kRootIno, kViewsDirectory));
  const InodeTable tree(header.tensors, Layout::Tree);
  CHECK_FALSE(tree.find(kRootIno, kViewsDirectory));
}

TEST_CASE("tree: the parts of a name are encoded as names are", "[fs][inode_table]") {
  const std::vector<std::string> names = {"x..y", ".first", "last.", "p/q.r", "s.%", "t.\n"};
  const std::vector<std::vector<std::string>> paths = {{"x", "%", "y"}, {"%", "first"}, {"last", "%"},
                                                       {"p%2Fq", "r"},  {"s", "%25"},   {"t", "%0A"}};
  const Header header = header_of(names);
  const InodeTable table(header.tensors, Layout::Tree);
  for (std::uint32_t tensor = 0; tensor < names.size(); ++tensor) {
    CAPTURE(names[tensor]);
    CHECK(follow(table, paths[tensor]) == InodeTable::ino_of_tensor(TensorId{tensor}));
  }
}

TEST_CASE("tree: long directory names that are cut alike stay apart", "[fs][inode_table]") {
  const std::string part(300, 'd');
  const Header header = header_of({part + "1.w", part + "2.w", file_name_of(part + "1") + ".w"});
  check_walk(InodeTable(header.tensors, Layout::Tree), 3);
}

TEST_CASE("tree: a name of a million dots costs 64 directories", "[fs][inode_table]") {
  const Header header =
      header_of({std::string(1'000'000, '.'), std::string(999'999, '.'), std::string(64, '.')});
  const InodeTable table(header.tensors, Layout::Tree);
  CHECK(table.size() == 1 + 3 + kMaxDepth);
  check_walk(table, 3);
}

TEST_CASE("tree: many directories and tensors are all found", "[fs][inode_table]") {
  std::vector<std::string> names;
  for (int at = 0; at < 20'000; ++at) names.push_back(fmt::format("l{}.{}.w", at / 10, at % 10));
  const Header header = header_of(names);
  const InodeTable table(header.tensors, Layout::Tree);
  CHECK(table.subdirectories(kRootIno) == 2'000);
  check_walk(table, 20'000);
}

TEST_CASE("a tensor keeps its number in the table of a later header, whatever its position and name",
          "[fs][inode_table]") {
  const Header first = header_of({"a.x", "a.y", "b.z"});
  const Header later = header_of({"new", "b.renamed", "a.x"});
  const TensorIds ids(3);
  const std::vector<std::optional<std::uint32_t>> before = {std::nullopt, 2U, 0U};
  for (const Layout layout : {Layout::Flat, Layout::Tree}) {
    const InodeTable one(first.tensors, ids, layout);
    const InodeTable two(later.tensors, ids.next(before), layout);
    check_walk(two, 3);
    const bool is_flat = layout == Layout::Flat;
    const auto at = [&](const InodeTable& table, const char* above, const char* name) {
      return is_flat ? follow(table, {std::string(above) + "." + name}) : follow(table, {above, name});
    };
    CHECK(at(two, "a", "x") == at(one, "a", "x"));
    CHECK(at(two, "b", "renamed") == at(one, "b", "z"));
    CHECK_FALSE(two.exists(at(one, "a", "y")));
    CHECK_FALSE(one.exists(follow(two, {"new"})));
  }
}

TEST_CASE("tree: directories that were moved into each other without end are numbered", "[fs][inode_table]") {
  constexpr Ino kDepth = 200'000;  // a recursion would need more than a thread's stack
  constexpr Ino kFirst = kFirstDirectoryIno;
  const Header header = header_of({"t"});
  DirectoryNumbers numbers(kFirst);
  for (Ino at = 0; at < kDepth; ++at) numbers.number(kRootIno, fmt::format("d{}", at));
  for (Ino at = 0; at + 1 < kDepth; ++at) numbers.move(kFirst + at, kFirst + at + 1, fmt::format("d{}", at));
  const InodeTable table(header.tensors, TensorIds(1), Layout::Tree, numbers);
  CHECK(table.directory_count() == kDepth);
  CHECK(table.subdirectories(kRootIno) == 1);
  CHECK(table.find(kRootIno, fmt::format("d{}", kDepth - 1)) == kFirst + kDepth - 1);
  CHECK(table.parent(kFirst) == kFirst + 1);
  CHECK(table.file_name(kFirst) == "d0");
}
