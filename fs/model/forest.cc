// Passes calls to the right file system, and translates inode numbers both ways.
#include "fs/model/forest.h"

#include <fmt/format.h>

#include <algorithm>
#include <mutex>

#include "fs/tree/names.h"

namespace stfs {
namespace {

tl::unexpected<Error> not_among_models() {
  return fail(ErrorCode::InvalidArgument, EPERM, "models are neither made, moved nor removed");
}

tl::unexpected<Error> is_a_directory() {
  return fail(ErrorCode::InvalidArgument, EISDIR, "is a directory");
}

constexpr Editions::Number kNumbers = Editions::Number{1} << Forest::kNumberBits;

}  // namespace

Forest::Forest(Member only) : is_lone_(true), editions_(0, kNumbers) {
  add(std::move(only));
}

Forest::Forest(std::vector<Member> members) : is_lone_(false), editions_(1, kNumbers - 1) {
  for (Member& member : members) add(std::move(member));
}

void Forest::add(Member member) {
  auto tree = std::make_unique<Tree>();
  tree->name = std::move(member.name);
  tree->path = std::move(member.path);
  tree->open = std::move(member.open);
  tree->why_absent = std::move(member.why_absent);
  tree->activity = member.filesystem ? member.filesystem->activity() : std::make_shared<Activity>();
  if (member.filesystem) {
    is_read_only_ = is_read_only_ && member.filesystem->is_read_only();
    tree->current = editions_.add(std::move(member.filesystem)).value();
  }
  trees_.push_back(std::move(tree));
}

Forest::Pin Forest::pin(Ino ino) const {
  if (ino != kRootIno) return editions_.pin(static_cast<Number>(ino >> kLocalBits));
  return is_lone_ ? pin_current(*trees_.front()) : Pin();
}

Forest::Pin Forest::pin_current(const Tree& tree) const {
  const std::shared_lock lock(mutex_);
  return editions_.pin(tree.current);
}

bool Forest::is_current(Number number) const {
  const std::shared_lock lock(mutex_);
  return std::ranges::any_of(trees_, [&](const auto& tree) { return tree->current == number; });
}

Forest::Pin Forest::pin_any() const {
  for (const auto& tree : trees_) {
    if (Pin found = pin_current(*tree)) return found;
  }
  return {};
}

Result<struct stat> Forest::lookup(Ino parent, std::string_view name) const {
  auto found = find(parent, name);
  // The limit is checked only after a failed look-up: a slice's name may be longer than 255 bytes.
  if (!found && found.error().errno_value == ENOENT && name.size() > kMaxFileNameBytes)
    return fail(ErrorCode::InvalidArgument, ENAMETOOLONG, "a file's name has at most 255 bytes");
  return found;
}

Result<struct stat> Forest::find(Ino parent, std::string_view name) const {
  if (const Pin member = pin(parent)) {
    auto found = lift(member->lookup(local(parent), name), member);
    if (found) member.note_lookup();
    return found;
  }
  if (parent != kRootIno) return no_such_inode(parent);
  const auto found = std::ranges::find(trees_, name, [](const auto& tree) { return tree->name; });
  if (found == trees_.end()) return fail(ErrorCode::NotFound, ENOENT, "no such model");
  if (const Pin member = pin_current(**found)) {
    member.note_lookup();
    return lift(member->attributes(kRootIno), member);
  }
  const std::shared_lock lock(mutex_);
  return fail((*found)->why_absent->code, EIO, (*found)->why_absent->message);
}

void Forest::note_lookup(Ino ino) const {
  if (ino == kRootIno) return;
  if (const Pin member = pin(ino)) member.note_lookup();
}

void Forest::note_told(Ino ino) const {
  if (const Pin member = pin(ino)) member->note_told(local(ino));
}

void Forest::visit_cached(const Stale& stale, const Filesystem::VisitCached& visit) const {
  const Pin member = pin(stale.first);
  if (!member) return;
  member->visit_cached({local(stale.first), local(stale.last), stale.what},
                       [&](Ino ino, Stale::What what) { visit(lift(ino, member.number()), what); });
}

void Forest::forget(Ino ino, std::uint64_t lookups) const {
  if (ino == kRootIno) return;
  const Pin member = pin(ino);
  if (!member) return;
  member->forget(local(ino), lookups);
  editions_.let_go(member.number(), lookups);
}

std::optional<std::string> Forest::slice_to_forget(Ino directory) {
  const Pin member = pin(directory);
  return member ? member->slice_to_forget() : std::nullopt;
}

Result<struct stat> Forest::attributes(Ino ino) const {
  if (const Pin member = pin(ino)) return lift(member->attributes(local(ino)), member);
  if (ino != kRootIno) return no_such_inode(ino);
  return stat_of_root();
}

struct stat Forest::stat_of_root() const {
  struct stat st {};
  // The right to read one model is enough to list all models.
  std::optional<Permissions> any;
  for (const auto& tree : trees_) {
    const Pin member = pin_current(*tree);
    const auto its = member ? member->attributes(kRootIno) : no_such_inode(kRootIno);
    if (!its) continue;
    const Permissions shown{.mode = its->st_mode & 0777, .uid = its->st_uid, .gid = its->st_gid};
    if (!any) st = *its;
    any = any ? loosest(*any, shown) : shown;
  }
  if (any) st.st_mode = S_IFDIR | any->mode;
  st.st_ino = kRootIno;
  const std::shared_lock lock(mutex_);
  st.st_nlink = 2 + static_cast<nlink_t>(std::ranges::count_if(
                        trees_, [](const auto& tree) { return tree->current != kNone; }));
  return st;
}

Result<void> Forest::read_directory(Ino directory, std::uint64_t position,
                                    const Filesystem::VisitEntry& visit) const {
  if (const Pin member = pin(directory)) {
    return member->read_directory(
        local(directory), position, [&](std::string_view name, Ino ino, std::uint64_t next) {
          const bool leads_out = name == ".." && local(directory) == kRootIno;
          return visit(name, leads_out ? kRootIno : lift(ino, member.number()), next);
        });
  }
  if (directory != kRootIno) return no_such_inode(directory);
  constexpr std::uint64_t kDots = 2;
  for (; position < kDots + trees_.size(); ++position) {
    if (position < kDots) {
      if (!visit(position == 0 ? "." : "..", kRootIno, position + 1)) break;
      continue;
    }
    const Tree& tree = *trees_[position - kDots];
    const Pin member = pin_current(tree);
    if (member && !visit(tree.name, lift(kRootIno, member.number()), position + 1)) break;
  }
  return {};
}

bool Forest::is_directory(Ino ino) const {
  const Pin member = pin(ino);
  return !member || member->is_directory(local(ino));
}

struct statvfs Forest::statistics() const {
  struct statvfs all {};
  for (const auto& tree : trees_) {
    const Pin member = pin_current(*tree);
    if (!member) continue;
    const struct statvfs one = member->statistics();
    const auto blocks = all.f_blocks + one.f_blocks;
    const auto files = all.f_files + one.f_files;
    all = one;
    all.f_blocks = blocks;
    all.f_files = files;
  }
  return all;
}

Result<struct stat> Forest::make_directory(Ino parent, std::string_view name, Maker maker) {
  const Pin member = pin(parent);
  if (!member) return not_among_models();
  auto made = lift(member->make_directory(local(parent), name, maker), member);
  if (made) member.note_lookup();
  return made;
}

Result<void> Forest::remove_directory(Ino parent, std::string_view name) {
  const Pin member = pin(parent);
  return member ? member->remove_directory(local(parent), name) : not_among_models();
}

Result<void> Forest::remove_file(Ino parent, std::string_view name) {
  const Pin member = pin(parent);
  return member ? member->remove_file(local(parent), name) : not_among_models();
}

Result<std::vector<Stale>> Forest::rename(Ino parent, std::string_view name, Ino new_parent,
                                          std::string_view new_name) {
  const Pin member = pin(parent);
  const Pin there = pin(new_parent);
  if (!member) return not_among_models();
  if (!there || there.number() != member.number()) {
    // After EXDEV mv(1) would copy. After a replacement the kernel may know directories of both file systems,
    // so this case is ESTALE.
    const bool is_replaced = !is_current(member.number()) || (there && !is_current(there.number()));
    if (is_replaced) return fail(ErrorCode::ArchiveChanged, ESTALE, "the model has been replaced");
    return fail(ErrorCode::InvalidArgument, EXDEV, "a transaction belongs to one model");
  }
  auto renamed = member->rename(local(parent), name, local(new_parent), new_name);
  if (!renamed) return renamed;
  for (Stale& stale : *renamed) stale = lift(stale, member.number());
  return renamed;
}

Result<std::string> Forest::extended_attribute(Ino ino, std::string_view name) const {
  if (const Pin member = pin(ino)) return member->extended_attribute(local(ino), name);
  return fail(ErrorCode::NotFound, ENODATA, "no such attribute");
}

Result<std::vector<std::string>> Forest::list_extended_attributes(Ino ino) const {
  if (const Pin member = pin(ino)) return member->list_extended_attributes(local(ino));
  return std::vector<std::string>{};
}

Result<OpenFile*> Forest::open(Ino ino, int flags, pid_t opener) {
  if (const Pin member = pin(ino)) return member->open(local(ino), flags, opener);
  return is_a_directory();
}

Result<Bytes> Forest::read(Ino ino, std::uint64_t offset, std::size_t size_bytes) const {
  if (const Pin member = pin(ino)) return member->read(local(ino), offset, size_bytes);
  return is_a_directory();
}

std::optional<int> Forest::same_file(Ino ino) const {
  const Pin member = pin(ino);
  return member ? member->same_file(local(ino)) : std::nullopt;
}

// In the calls for descriptors and for pages that are written back, pin() always finds a model: the kernel's
// look-up holds it.

Result<Stale> Forest::write(Ino ino, OpenFile& file, std::span<const std::byte> from, std::uint64_t offset,
                            Caller caller, const std::function<void()>& accept) {
  const Pin member = pin(ino);
  return lift(member->write(file, from, offset, caller, accept), member);
}

Result<void> Forest::write_back(Ino ino, std::span<const std::byte> from, std::uint64_t offset) {
  return pin(ino)->write_back(local(ino), from, offset);
}

Result<void> Forest::resize(Ino ino, OpenFile& file, std::uint64_t size_bytes, Caller caller) {
  return pin(ino)->resize(file, size_bytes, caller);
}

Result<void> Forest::resize_by_name(Ino ino, std::uint64_t size_bytes, pid_t caller) {
  if (const Pin member = pin(ino)) return member->resize_by_name(local(ino), size_bytes, caller);
  return is_a_directory();
}

void Forest::set_mtime(Ino ino, struct timespec mtime) {
  if (const Pin member = pin(ino)) member->set_mtime(local(ino), mtime);
}

Result<Stale> Forest::flush(Ino ino, OpenFile& file, Owner owner, pid_t closer) {
  const Pin member = pin(ino);
  return lift(member->flush(file, owner, closer), member);
}

Result<Stale> Forest::sync(Ino ino, OpenFile& file) {
  const Pin member = pin(ino);
  return lift(member->sync(file), member);
}

Stale Forest::release(Ino ino, OpenFile* file) {
  const Pin member = pin(ino);
  return lift(member->release(file), member.number());
}

void Forest::tidy() {
  for (const Pin& edition : editions_.all()) edition->tidy();
  for (const auto& ended : editions_.take_ended()) ended->end();
}

void Forest::end() {
  for (const auto& ended : editions_.take_ended()) ended->end();
  for (const Pin& edition : editions_.all()) edition->end();
}

std::vector<Stale> Forest::stale_views(const Stale& stale) const {
  const Pin member = pin(stale.first);
  if (!member) return {};
  auto views = member->stale_views({local(stale.first), local(stale.last), stale.what});
  for (Stale& view : views) view = lift(view, member.number());
  return views;
}

void Forest::connect(Filesystem& filesystem, Number number) const {
  filesystem.tell_stale_to([this, number](const Stale& stale) { surroundings_.forget(lift(stale, number)); });
  filesystem.tell_commits_to(surroundings_.note_commit);
}

void Forest::connect_to(Surroundings surroundings) {
  surroundings_ = std::move(surroundings);
  editions_.tell_ends_to(surroundings_.note_commit);
  for (const auto& tree : trees_) {
    if (const Pin member = pin_current(*tree)) connect(*member.operator->(), member.number());
  }
}

Activity& Forest::activity(Ino ino) const {
  // The counts of a model outlive its file systems.
  if (is_lone_) return *trees_.front()->activity;
  const Pin member = pin(ino);
  return member ? *member->activity() : *trees_.front()->activity;
}

bool Forest::is_read_only(Ino ino) const {
  const Pin member = pin(ino);
  return member ? member->is_read_only() : is_read_only_;
}

}  // namespace stfs
