// To the model and back.
#include "fs/forest.h"

#include <fmt/format.h>

#include <algorithm>

namespace stfs {
namespace {

tl::unexpected<Error> no_such_inode(Ino ino) {
  return fail(ErrorCode::NotFound, ENOENT, fmt::format("inode {}: no such file", ino));
}

tl::unexpected<Error> not_here() {
  return fail(ErrorCode::InvalidArgument, EPERM, "models are neither made, moved nor removed");
}

}  // namespace

Forest::Forest(std::unique_ptr<Filesystem> only) {
  members_.push_back({"", std::move(only)});
  by_number_ = {members_.front().filesystem.get()};
}

Forest::Forest(std::vector<Member> members, std::vector<Absent> absent)
    : members_(std::move(members)), absent_(std::move(absent)), by_number_{nullptr} {
  for (const Member& member : members_) by_number_.push_back(member.filesystem.get());
}

Result<struct stat> Forest::lookup(Ino parent, std::string_view name) const {
  if (const Filesystem* member = member_of(parent)) return lift(member->lookup(local(parent), name), parent);
  if (parent != kRootIno) return no_such_inode(parent);
  const auto found = std::ranges::find(members_, name, &Member::name);
  if (found != members_.end()) {
    const auto number = static_cast<std::size_t>(found - members_.begin()) + 1;
    return lift(found->filesystem->attributes(kRootIno), root_of(number));
  }
  const auto absent = std::ranges::find(absent_, name, &Absent::name);
  if (absent != absent_.end()) return fail(absent->why.code, EIO, absent->why.message);
  return fail(ErrorCode::NotFound, ENOENT, "no such model");
}

void Forest::forget(Ino ino, std::uint64_t lookups) {
  if (Filesystem* member = member_of(ino)) member->forget(local(ino), lookups);
}

std::optional<std::string> Forest::slice_to_forget(Ino directory) {
  Filesystem* member = member_of(directory);
  return member == nullptr ? std::nullopt : member->slice_to_forget();
}

Result<struct stat> Forest::attributes(Ino ino) const {
  if (const Filesystem* member = member_of(ino)) return lift(member->attributes(local(ino)), ino);
  if (ino != kRootIno) return no_such_inode(ino);
  return stat_of_root();
}

struct stat Forest::stat_of_root() const {
  // Who may read the first model may list them all.
  struct stat st = members_.front().filesystem->attributes(kRootIno).value_or(Filesystem::Stat{});
  st.st_nlink = 2 + members_.size();
  return st;
}

Result<void> Forest::read_directory(Ino directory, std::uint64_t position,
                                    const Filesystem::VisitEntry& visit) const {
  if (const Filesystem* member = member_of(directory)) {
    return member->read_directory(local(directory), position,
                                  [&](std::string_view name, Ino ino, std::uint64_t next) {
                                    const bool leads_out = name == ".." && local(directory) == kRootIno;
                                    return visit(name, leads_out ? kRootIno : lift(ino, directory), next);
                                  });
  }
  if (directory != kRootIno) return no_such_inode(directory);
  constexpr std::uint64_t kDots = 2;
  for (; position < kDots + members_.size(); ++position) {
    const bool goes_on = position < kDots ? visit(position == 0 ? "." : "..", kRootIno, position + 1)
                                          : visit(members_[position - kDots].name,
                                                  root_of(position - kDots + 1), position + 1);
    if (!goes_on) break;
  }
  return {};
}

bool Forest::is_directory(Ino ino) const {
  const Filesystem* member = member_of(ino);
  return member == nullptr || member->is_directory(local(ino));
}

struct statvfs Forest::statistics() const {
  struct statvfs all = members_.front().filesystem->statistics();
  for (const Member& member : std::span(members_).subspan(1)) {
    const struct statvfs one = member.filesystem->statistics();
    all.f_blocks += one.f_blocks;
    all.f_files += one.f_files;
  }
  return all;
}

Result<struct stat> Forest::make_directory(Ino parent, std::string_view name) {
  Filesystem* member = member_of(parent);
  if (member == nullptr) return not_here();
  return lift(member->make_directory(local(parent), name), parent);
}

Result<void> Forest::remove_directory(Ino parent, std::string_view name) {
  Filesystem* member = member_of(parent);
  if (member == nullptr) return not_here();
  return member->remove_directory(local(parent), name);
}

Result<void> Forest::remove_file(Ino parent, std::string_view name) {
  Filesystem* member = member_of(parent);
  if (member == nullptr) return not_here();
  return member->remove_file(local(parent), name);
}

Result<std::vector<Stale>> Forest::rename(Ino parent, std::string_view name, Ino new_parent,
                                          std::string_view new_name) {
  Filesystem* member = member_of(parent);
  if (member == nullptr) return not_here();
  if (member_of(new_parent) != member)
    return fail(ErrorCode::InvalidArgument, EXDEV, "a transaction belongs to one model");
  auto renamed = member->rename(local(parent), name, local(new_parent), new_name);
  if (!renamed) return renamed;
  for (Stale& stale : *renamed) stale = lift(stale, parent);
  return renamed;
}

Result<std::string> Forest::extended_attribute(Ino ino, std::string_view name) const {
  if (const Filesystem* member = member_of(ino)) return member->extended_attribute(local(ino), name);
  return fail(ErrorCode::NotFound, ENODATA, "no such attribute");
}

Result<std::vector<std::string>> Forest::list_extended_attributes(Ino ino) const {
  if (const Filesystem* member = member_of(ino)) return member->list_extended_attributes(local(ino));
  return std::vector<std::string>{};
}

Result<OpenFile*> Forest::open(Ino ino, int flags, pid_t opener) {
  if (Filesystem* member = member_of(ino)) return member->open(local(ino), flags, opener);
  return fail(ErrorCode::InvalidArgument, EISDIR, "is a directory");
}

Result<Bytes> Forest::read(Ino ino, std::uint64_t offset, std::size_t size_bytes) const {
  if (const Filesystem* member = member_of(ino)) return member->read(local(ino), offset, size_bytes);
  return fail(ErrorCode::InvalidArgument, EISDIR, "is a directory");
}

// A descriptor, and a page that is written back, are always of a model.

Result<Stale> Forest::write(Ino ino, OpenFile& file, std::span<const std::byte> from, std::uint64_t offset,
                            Owner owner, const std::function<void()>& accept) {
  return lift(member_of(ino)->write(file, from, offset, owner, accept), ino);
}

Result<void> Forest::write_back(Ino ino, std::span<const std::byte> from, std::uint64_t offset) {
  return member_of(ino)->write_back(local(ino), from, offset);
}

Result<void> Forest::resize(Ino ino, OpenFile& file, std::uint64_t size_bytes, Owner owner) {
  return member_of(ino)->resize(file, size_bytes, owner);
}

Result<void> Forest::resize_by_name(Ino ino, std::uint64_t size_bytes, pid_t caller) {
  if (Filesystem* member = member_of(ino)) return member->resize_by_name(local(ino), size_bytes, caller);
  return fail(ErrorCode::InvalidArgument, EISDIR, "is a directory");
}

void Forest::set_mtime(Ino ino, struct timespec mtime) {
  if (Filesystem* member = member_of(ino)) member->set_mtime(local(ino), mtime);
}

Result<Stale> Forest::flush(Ino ino, OpenFile& file, Owner owner, pid_t closer) {
  return lift(member_of(ino)->flush(file, owner, closer), ino);
}

Result<Stale> Forest::sync(Ino ino, OpenFile& file) {
  return lift(member_of(ino)->sync(file), ino);
}

Stale Forest::release(Ino ino, OpenFile* file) {
  return lift(member_of(ino)->release(file), ino);
}

std::vector<Forest::WatchedFile> Forest::watched_files() const {
  std::vector<WatchedFile> files;
  for (std::size_t at = 0; at < members_.size(); ++at) {
    const Model& model = members_[at].filesystem->model();
    if (model.is_sharded()) files.push_back({model.path(), at, std::nullopt});
    for (std::uint32_t shard = 0; shard < model.shards().size(); ++shard) {
      if (model.shards()[shard].archive) files.push_back({model.shards()[shard].path, at, shard});
    }
  }
  return files;
}

Stale Forest::check_for_change(const WatchedFile& file) {
  Filesystem& member = *members_[file.member].filesystem;
  const Ino like = root_of(file.member + by_number_.size() - members_.size());
  if (file.shard) return lift(member.check_for_change(*file.shard), like);
  member.note_index_change();
  return {};
}

void Forest::tidy() {
  for (const Member& member : members_) member.filesystem->tidy();
}

void Forest::end() {
  for (const Member& member : members_) member.filesystem->end();
}

std::vector<Stale> Forest::stale_views(const Stale& stale) const {
  const Filesystem* member = member_of(stale.first);
  if (member == nullptr) return {};
  auto views = member->stale_views({local(stale.first), local(stale.last), stale.what});
  for (Stale& view : views) view = lift(view, stale.first);
  return views;
}

void Forest::tell_stale_to(const std::function<void(Stale)>& forget) {
  for (std::size_t number = 0; number < by_number_.size(); ++number) {
    if (by_number_[number] == nullptr) continue;
    by_number_[number]->tell_stale_to(
        [forget, number](Stale stale) { forget(lift(stale, root_of(number))); });
  }
}

void Forest::tell_commits_to(const std::function<void()>& note) {
  for (const Member& member : members_) member.filesystem->tell_commits_to(note);
}

Activity& Forest::activity(Ino ino) const {
  const Filesystem* member = member_of(ino);
  return member == nullptr ? members_.front().filesystem->activity() : member->activity();
}

bool Forest::is_read_only() const {
  return std::ranges::all_of(members_,
                             [](const Member& member) { return member.filesystem->is_read_only(); });
}

bool Forest::is_read_only(Ino ino) const {
  const Filesystem* member = member_of(ino);
  return member == nullptr ? is_read_only() : member->is_read_only();
}

}  // namespace stfs
