// Names, attributes and directories, and the kernel's caches of them.
#include <fcntl.h>

#include <algorithm>
#include <cerrno>

#include "tests/simulation/kernel.h"
#include "tests/support/disk_user.h"

namespace stfs::test {

void Kernel::learn(Node node, const fuse_attr& attributes, bool may_keep) {
  Inode& inode = inodes_[node];
  inode.attributes = attributes;
  inode.knows_attributes = may_keep;
}

Answer<Node> Kernel::look_up(Program& program, Node parent, std::string_view name) {
  if (const int error = permit(program, parent, kMaySearch); error != 0) return {.error = error};
  const Name key(parent, name);
  if (const auto known = names_.find(key); known != names_.end()) {
    if (known->second == 0) return {.error = ENOENT};
    return {.value = known->second};
  }
  Buffer body;
  append_name(body, name);
  const Reply reply = call(FUSE_LOOKUP, parent, asker(program), body);
  if (reply.error != 0) return {.error = reply.error};
  const auto entry = taken_from<fuse_entry_out>(reply.body);
  const bool may_keep = entry.entry_valid > 0;
  if (entry.nodeid == 0) {
    if (may_keep) names_[key] = 0;
    return {.error = ENOENT};
  }
  ++inodes_[entry.nodeid].lookups;
  learn(entry.nodeid, entry.attr, entry.attr_valid > 0);
  if (may_keep) names_[key] = entry.nodeid;
  return {.value = entry.nodeid};
}

Answer<Node> Kernel::walk(Program& program, std::string_view path) {
  Answer<Node> at{.value = FUSE_ROOT_ID};
  while (!path.empty() && at.error == 0) {
    const std::size_t slash = path.find('/');
    at = look_up(program, at.value, path.substr(0, slash));
    path = slash == std::string_view::npos ? std::string_view() : path.substr(slash + 1);
  }
  return at;
}

Answer<std::pair<Node, std::string>> Kernel::walk_to_parent(Program& program, std::string_view path) {
  const std::size_t slash = path.rfind('/');
  const auto parent =
      walk(program, slash == std::string_view::npos ? std::string_view() : path.substr(0, slash));
  if (parent.error != 0) return {.error = parent.error};
  return {.value = {parent.value, std::string(path.substr(slash + 1))}};
}

Answer<fuse_attr> Kernel::stat(Program& program, std::string_view path) {
  const auto node = walk(program, path);
  if (node.error != 0) return {.error = node.error};
  if (!inodes_[node.value].knows_attributes) {
    if (const int error = get_attributes(program, node.value); error != 0) return {.error = error};
  }
  return {.value = inodes_[node.value].attributes};
}

int Kernel::get_attributes(Program& program, Node node) {
  Buffer body;
  append_to(body, fuse_getattr_in{});
  const Reply reply = call(FUSE_GETATTR, node, asker(program), body);
  if (reply.error != 0) return reply.error;
  const auto out = taken_from<fuse_attr_out>(reply.body);
  learn(node, out.attr, out.attr_valid > 0);
  return 0;
}

Answer<std::string> Kernel::attribute(Program& program, std::string_view path, std::string_view name) {
  const auto node = walk(program, path);
  if (node.error != 0) return {.error = node.error};
  if (const int error = permit(program, node.value, kMayRead); error != 0) return {.error = error};
  fuse_getxattr_in wanted{};
  wanted.size = kPageBytes;
  Buffer body;
  append_to(body, wanted);
  append_name(body, name);
  const Reply reply = call(FUSE_GETXATTR, node.value, asker(program), body);
  if (reply.error != 0) return {.error = reply.error};
  return {.value = std::string(reinterpret_cast<const char*>(reply.body.data()), reply.body.size())};
}

Answer<std::vector<std::string>> Kernel::list(Program& program, std::string_view path) {
  const auto node = walk(program, path);
  if (node.error != 0) return {.error = node.error};
  if (const int error = permit(program, node.value, kMayRead); error != 0) return {.error = error};
  Buffer body;
  append_to(body, fuse_open_in{.flags = O_RDONLY | O_DIRECTORY, .open_flags = 0});
  const Reply opened = call(FUSE_OPENDIR, node.value, asker(program), body);
  if (opened.error != 0) return {.error = opened.error};
  Answer<std::vector<std::string>> answer;
  fuse_read_in wanted{};
  wanted.fh = taken_from<fuse_open_out>(opened.body).fh;
  wanted.size = kPageBytes;
  for (;;) {
    body.clear();
    append_to(body, wanted);
    const Reply reply = call(FUSE_READDIRPLUS, node.value, asker(program), body);
    answer.error = reply.error;
    if (reply.error != 0 || reply.body.empty()) break;
    for (std::size_t at = 0; at + FUSE_NAME_OFFSET_DIRENTPLUS < reply.body.size();) {
      const auto entry = taken_from<fuse_direntplus>(reply.body, at);
      const auto* start = reinterpret_cast<const char*>(reply.body.data()) + at + FUSE_NAME_OFFSET_DIRENTPLUS;
      const std::string name(start, entry.dirent.namelen);
      answer.value.push_back(name);
      wanted.offset = entry.dirent.off;
      at += FUSE_DIRENTPLUS_SIZE(&entry);
      const fuse_entry_out& known = entry.entry_out;
      if (known.nodeid == 0 || name == "." || name == "..") continue;
      ++inodes_[known.nodeid].lookups;
      // A known name keeps its node.
      const auto [at_name, is_new] = names_.emplace(Name(node.value, name), known.nodeid);
      if (is_new && known.entry_valid == 0) names_.erase(at_name);
      learn(known.nodeid, known.attr, known.attr_valid > 0);
    }
  }
  body.clear();
  append_to(body, fuse_release_in{.fh = wanted.fh, .flags = 0, .release_flags = 0, .lock_owner = 0});
  call(FUSE_RELEASEDIR, node.value, {}, body);
  return answer;
}

int Kernel::change_name(Program& program, std::uint32_t opcode, std::string_view path) {
  const auto place = walk_to_parent(program, path);
  if (place.error != 0) return place.error;
  const auto& [directory, name] = place.value;
  const auto there = look_up(program, directory, name);
  if (opcode == FUSE_MKDIR) {
    if (there.error != ENOENT) return there.error == 0 ? EEXIST : there.error;
    if (const int error = may_make(program, directory); error != 0) return error;
  } else {
    if (there.error != 0) return there.error;
    if (const int error = may_remove(program, directory, there.value); error != 0) return error;
  }
  Buffer body;
  if (opcode == FUSE_MKDIR) append_to(body, fuse_mkdir_in{.mode = 0755, .umask = 022});
  append_name(body, place.value.second);
  const Reply reply = call(opcode, place.value.first, asker(program), body);
  if (reply.error != 0) return reply.error;
  names_.erase(place.value);
  if (opcode != FUSE_MKDIR) return 0;
  const auto entry = taken_from<fuse_entry_out>(reply.body);
  ++inodes_[entry.nodeid].lookups;
  learn(entry.nodeid, entry.attr, entry.attr_valid > 0);
  if (entry.entry_valid > 0) names_[place.value] = entry.nodeid;
  return 0;
}

int Kernel::make_directory(Program& program, std::string_view path) {
  return change_name(program, FUSE_MKDIR, path);
}

int Kernel::remove_directory(Program& program, std::string_view path) {
  return change_name(program, FUSE_RMDIR, path);
}

int Kernel::unlink(Program& program, std::string_view path) {
  return change_name(program, FUSE_UNLINK, path);
}

int Kernel::rename(Program& program, std::string_view from, std::string_view to) {
  const auto old_place = walk_to_parent(program, from);
  if (old_place.error != 0) return old_place.error;
  const auto new_place = walk_to_parent(program, to);
  if (new_place.error != 0) return new_place.error;
  const auto moved = look_up(program, old_place.value.first, old_place.value.second);
  if (moved.error != 0) return moved.error;
  const auto replaced = look_up(program, new_place.value.first, new_place.value.second);
  if (replaced.error != 0 && replaced.error != ENOENT) return replaced.error;
  const Node to_directory = new_place.value.first;
  int error = may_remove(program, old_place.value.first, moved.value);
  if (error == 0)
    error = replaced.error == ENOENT ? may_make(program, to_directory)
                                     : may_remove(program, to_directory, replaced.value);
  // A move to another directory writes the directory's `..`.
  if (error == 0 && to_directory != old_place.value.first) error = permit(program, moved.value, kMayWrite);
  if (error != 0) return error;
  Buffer body;
  append_to(body, fuse_rename2_in{.newdir = new_place.value.first, .flags = 0, .padding = 0});
  append_name(body, old_place.value.second);
  append_name(body, new_place.value.second);
  error = call(FUSE_RENAME2, old_place.value.first, asker(program), body).error;
  if (error != 0) return error;
  names_.erase(old_place.value);
  names_.erase(new_place.value);
  return 0;
}

void Kernel::reclaim(std::size_t which) {
  if (which % 2 == 0) {
    for (auto& [node, inode] : inodes_)
      std::erase_if(inode.pages, [](const auto& page) { return !page.second.is_dirty; });
    return;
  }
  names_.clear();
  std::vector<Node> unused;
  for (const auto& [node, inode] : inodes_) {
    const bool is_dirty =
        std::ranges::any_of(inode.pages, [](const auto& page) { return page.second.is_dirty; });
    if (node != FUSE_ROOT_ID && inode.users == 0 && !is_dirty) unused.push_back(node);
  }
  for (const Node node : unused) forget(node);
}

void Kernel::forget(Node node) {
  Buffer body;
  append_to(body, fuse_forget_in{.nlookup = inodes_[node].lookups});
  inodes_.erase(node);
  if (!is_aborted()) wire_->send(FUSE_FORGET, node, {}, body);
}

}  // namespace stfs::test
