#include "fs/model/mount_root.h"

#include <fmt/format.h>
#include <linux/fs.h>

#include <algorithm>
#include <array>
#include <map>
#include <utility>

#include "core/base/mutex.h"
#include "fs/base/log.h"
#include "fs/tree/names.h"

namespace stfs {
namespace {

constexpr mode_t kNineBits = 0777;

Permissions permissions_in(const struct stat& st) {
  return {.mode = st.st_mode & kNineBits, .uid = st.st_uid, .gid = st.st_gid};
}

constexpr MountedModels::Number kNumbers = MountedModels::Number{1} << InodeSpace::kNumberBits;

}  // namespace

MountRoot::MountRoot(Member only) : is_lone_(true), mounted_models_(0, kNumbers) {
  add(std::move(only));
}

MountRoot::MountRoot(std::vector<Member> members) : is_lone_(false), mounted_models_(1, kNumbers - 1) {
  for (Member& member : members) add(std::move(member));
}

void MountRoot::add(Member member) {
  auto slot = std::make_shared<ModelSlot>();
  slot->name = std::move(member.name);
  slot->path = std::move(member.path);
  slot->open = std::move(member.open);
  slot->why_absent = std::move(member.why_absent);
  slot->activity = member.mounted ? member.mounted->activity() : std::make_shared<Activity>();
  if (member.mounted) {
    is_read_only_ = is_read_only_ && member.mounted->is_read_only();
    slot->current = mounted_models_.add(std::move(member.mounted)).value();
    connect(mounted_models_.pin(slot->current));
  }
  add(std::move(slot));
}

void MountRoot::add(std::shared_ptr<ModelSlot> slot) {
  const MutexLock lock(mutex_);
  by_file_.emplace(slot->path.filename().string(), slot);
  slots_.push_back(std::move(slot));
}

MountRoot::Pin MountRoot::model_of(Ino ino) const {
  if (is_shared(ino)) return pin_current(*first_slot());
  if (ino == kRootIno) return Pin();
  Pin model = mounted_models_.pin(InodeSpace::number_of(ino));
  if (!model || !model->is_replaced()) return model;
  const Ino local = InodeSpace::local(ino);
  const bool is_same_in_all =
      local == kRootIno || local == kHiddenIno || local == PretrainedDirectory::kDirectory;
  const auto slot = is_same_in_all ? slot_of(model) : nullptr;
  if (slot == nullptr) return model;
  Pin present = pin_current(*slot);
  return present ? std::move(present) : std::move(model);
}

std::shared_ptr<MountRoot::ModelSlot> MountRoot::slot_of(const Pin& model) const {
  return is_lone_ ? first_slot() : slot_of_file(model->model().path().filename().string());
}

MountRoot::Pin MountRoot::pin_current(const ModelSlot& slot) const {
  const SharedLock lock(mutex_);
  return mounted_models_.pin(slot.current);
}

bool MountRoot::is_current(Number number) const {
  const SharedLock lock(mutex_);
  return std::ranges::any_of(slots_, [&](const auto& slot) { return slot->current == number; });
}

Result<struct stat> MountRoot::lookup(Ino parent, std::string_view name) const {
  auto found = find(parent, name);
  // The limit is checked only after a failed look-up: a slice's name may be longer than 255 bytes.
  if (!found && found.error().errno_value == ENOENT && name.size() > kMaxFileNameBytes)
    return fail(ErrorCode::InvalidArgument, ENAMETOOLONG, "a file's name has at most 255 bytes");
  return found;
}

Result<struct stat> MountRoot::find(Ino parent, std::string_view name) const {
  // The kernel asks for these two only for an NFS server, whose file handles outlive the kernel's inodes.
  if (name == "..") return find(parent_of(parent), MountedModel::kSameFile);
  if (const Pin member = model_of(parent)) {
    auto found = member->lookup(parent, name);
    if (found && !is_shared(found->st_ino)) member.note_lookup(found->st_ino);
    return found;
  }
  if (name == MountedModel::kSameFile) {
    if (is_of_hidden(parent) && parent != kHiddenIno) return no_such_inode(parent);  // a log
    auto found = attributes(parent);
    if (found) note_lookup(parent);
    return found;
  }
  if (!is_lone_ && parent == kRootIno && name == kViewsDirectory) return stat_of_hidden(kHiddenIno);
  if (!is_lone_ && parent == kHiddenIno) {
    if (name != Views::kLogName) return fail(ErrorCode::NotFound, ENOENT, "only the log is here");
    const auto log = logs_.make(log::recent_lines());
    return log ? stat_of_hidden(*log) : tl::unexpected(log.error());
  }
  if (serves(parent)) return find_in_source(parent, name);
  if (parent != kRootIno) return no_such_inode(parent);
  return find_in_root(name);
}

Ino MountRoot::parent_of(Ino directory) const {
  Ino parent = directory;
  const auto visit = [&](std::string_view, Ino ino, std::uint64_t) {
    parent = ino;
    return false;
  };
  static_cast<void>(read_directory(directory, 1, visit));  // the second entry is `..`
  return parent;
}

void MountRoot::note_lookup(Ino ino) const {
  if (ino == kRootIno || is_shared(ino)) return;
  if (serves(ino)) return source_->note_lookup(ino);
  if (const Pin member = mounted_models_.pin(InodeSpace::number_of(ino))) member.note_lookup(ino);
}

void MountRoot::forget(Ino ino, std::uint64_t lookups) const {
  if (ino == kRootIno || is_shared(ino)) return;
  if (serves(ino)) return source_->forget(ino, lookups);
  if (is_of_hidden(ino)) return logs_.forget(ino, lookups);
  const Pin member = mounted_models_.pin(InodeSpace::number_of(ino));
  if (!member) return;
  member->forget(ino, lookups);
  mounted_models_.let_go(member.number(), lookups);
}

Result<struct stat> MountRoot::attributes(Ino ino) const {
  if (const Pin member = model_of(ino)) return member->attributes(ino);
  if (serves(ino)) return source_->attributes(ino);
  if (is_of_hidden(ino) && (ino == kHiddenIno || logs_.exists(ino))) return stat_of_hidden(ino);
  if (ino != kRootIno) return no_such_inode(ino);
  return stat_of_root();
}

Ino MountRoot::directory_looked_up(Ino ino) const {
  const Pin member = model_of(ino);
  return member ? member->directory_looked_up(ino) : 0;
}

Result<struct stat> MountRoot::stat_of_hidden(Ino ino) const {
  constexpr mode_t kReadAndSearch = 0555;
  auto root = stat_of_root();
  RETURN_IF_ERROR(root);
  struct stat& st = *root;
  st.st_ino = ino;
  st.st_nlink = 2;
  st.st_mode = S_IFDIR | (st.st_mode & kReadAndSearch);
  if (ino == kHiddenIno) return st;
  st.st_nlink = 1;
  st.st_mode = S_IFREG | S_IRUSR;
  st.st_uid = logs_.user(ino);
  st.st_size = static_cast<off_t>(logs_.size_bytes(ino).value_or(0));
  clock_gettime(CLOCK_REALTIME, &st.st_mtim);
  return st;
}

Result<Bytes> MountRoot::read(Ino ino, std::uint64_t offset, std::size_t size_bytes) const {
  if (const Pin member = model_of(ino)) return member->read(ino, offset, size_bytes);
  if (serves(ino)) return source_->files().read(source_->node(ino), offset, size_bytes);
  if (!is_log_of_root(ino)) return fail(ErrorCode::InvalidArgument, EISDIR, "is a directory");
  const auto end = logs_.size_bytes(ino);
  RETURN_IF_ERROR(end);
  return logs_.read(ino, ByteRange{offset, size_bytes}.intersection({0, *end}));
}

std::optional<struct stat> MountRoot::loosest_of_models() const {
  std::optional<struct stat> any;
  for (const auto& slot : slots()) {
    const Pin member = pin_current(*slot);
    const auto its = member ? member->attributes(kRootIno) : no_such_inode(kRootIno);
    if (!its) continue;
    if (!any) {
      any = *its;
    } else {
      any->st_mode = S_IFDIR | loosest(permissions_in(*any), permissions_in(*its)).mode;
    }
  }
  constexpr mode_t kWrite = 0222;  // the right to write a model is none to write the directory
  if (any) any->st_mode &= ~kWrite;
  return any;
}

Result<struct stat> MountRoot::stat_of_root() const {
  struct stat st {};
  // The right to read one model is enough to list all models.
  const auto any = loosest_of_models();
  if (any) st = *any;
  const auto own = source_ ? source_->status() : Result<std::optional<struct stat>>();
  RETURN_IF_ERROR(own);
  if (*own) {
    constexpr mode_t kWrite = 0222;
    st = **own;
    if (is_read_only_) st.st_mode &= ~kWrite;
    const Permissions shown = any ? loosest(permissions_in(st), permissions_in(*any)) : permissions_in(st);
    st.st_mode = (st.st_mode & ~kNineBits) | shown.mode;
  }
  st.st_ino = kRootIno;
  const SharedLock lock(mutex_);
  st.st_nlink = 2 + static_cast<nlink_t>(std::ranges::count_if(
                        slots_, [](const auto& slot) { return slot->current != kNone; }));
  return st;
}

Result<bool> MountRoot::shows_entries() const {
  const auto status = source_->status();
  RETURN_IF_ERROR(status);
  const auto& own = *status;
  if (!own || !source_->is_shared()) return own.has_value();
  const auto any = loosest_of_models();
  if (!any) return true;
  constexpr mode_t kReadAndSearch = 0555;
  const mode_t entered = loosest(permissions_in(*own), permissions_in(*any)).mode;
  return (entered & kReadAndSearch & ~own->st_mode) == 0;
}

Result<void> MountRoot::read_directory(Ino directory, std::uint64_t position,
                                       const Directory::VisitEntry& visit) const {
  if (const Pin member = model_of(directory)) return member->read_directory(directory, position, visit);
  if (!is_lone_ && directory == kHiddenIno) {
    constexpr std::array<FixedEntry, 3> kEntries = {
        {{".", kHiddenIno}, {"..", kRootIno}, {Views::kLogName, Views::kLog}}};
    for (; position < kEntries.size(); ++position) {
      if (!visit(kEntries[position].name, kEntries[position].ino, position + 1)) break;
    }
    return {};
  }
  if (serves(directory)) {
    source_->list(directory, position, visit);
    return {};
  }
  if (directory != kRootIno) return no_such_inode(directory);
  constexpr std::uint64_t kDots = 2;
  constexpr std::uint64_t kOthers = kDots + kMostMembers;  // after every model, also after models added later
  const auto models = slots();
  for (; position < kDots + models.size(); ++position) {
    if (position < kDots) {
      if (!visit(position == 0 ? "." : "..", kRootIno, position + 1)) return {};
      continue;
    }
    const ModelSlot& slot = *models[position - kDots];
    const Pin member = pin_current(slot);
    if (member && !visit(slot.name, space_of(member.number()).in_mount(kRootIno), position + 1)) return {};
  }
  if (!source_) return {};
  const auto shows = shows_entries();
  RETURN_IF_ERROR(shows);
  if (!*shows) return {};
  source_->list_root(
      position < kOthers ? 0 : position - kOthers,
      [&](std::string_view name, Ino ino, std::uint64_t next) { return visit(name, ino, kOthers + next); });
  return {};
}

mode_t MountRoot::file_type(Ino ino) const {
  const Pin member = model_of(ino);
  if (!member && serves(ino)) return source_->file_type(ino);
  if (!member && (is_log_of_root(ino) || ino == Views::kLog)) return S_IFREG;
  return member ? member->file_type(ino) : S_IFDIR;
}

struct statvfs MountRoot::statistics() const {
  struct statvfs all {};
  std::map<std::uint64_t, FreeSpace> stores;  // by device: models may share one
  for (const auto& slot : slots()) {
    const Pin member = pin_current(*slot);
    if (!member) continue;
    if (const auto space = member->free_space()) stores.emplace(space->device, *space);
    const struct statvfs one = member->statistics();
    const struct statvfs others = std::exchange(all, one);
    all.f_blocks += others.f_blocks;
    all.f_bfree += others.f_bfree;
    all.f_bavail += others.f_bavail;
    all.f_files += others.f_files;
  }
  for (const auto& [device, space] : stores) add_free_space(space, all);
  all.f_flag = is_read_only_ ? all.f_flag | ST_RDONLY : all.f_flag & ~static_cast<unsigned long>(ST_RDONLY);
  return all;
}

Result<Outdated> MountRoot::rename(Ino parent, std::string_view name, Ino new_parent,
                                   std::string_view new_name, unsigned flags) {
  if ((flags & ~(RENAME_NOREPLACE | RENAME_EXCHANGE)) != 0)
    return fail(ErrorCode::InvalidArgument, EINVAL, "unknown flags of renameat2");
  const Pin member = model_of(parent);
  const Pin there = model_of(new_parent);
  if (!member || !there) return tl::unexpected(changes_no_files());
  if (there.number() != member.number()) {
    // After EXDEV mv(1) would copy. After a replacement the kernel may know directories of both editions,
    // so this case is ESTALE.
    const bool is_replaced = !is_current(member.number()) || !is_current(there.number());
    if (is_replaced) return fail(ErrorCode::ArchiveChanged, ESTALE, "the model has been replaced");
    return fail(ErrorCode::InvalidArgument, EXDEV, "a transaction belongs to one model");
  }
  return member->rename(parent, name, new_parent, new_name, flags);
}

void MountRoot::close_gaps() {
  std::vector<Pin> editions = mounted_models_.all();
  for (Pin& edition : editions) edition.let_versions_go();
  for (const Pin& edition : editions) edition->close_gaps();
}

void MountRoot::tidy() {
  for (const Pin& edition : mounted_models_.all()) edition->tidy();
  for (const auto& ended : mounted_models_.take_ended()) ended->end();
}

void MountRoot::end() {
  for (const auto& ended : mounted_models_.take_ended()) ended->end();
  for (const Pin& edition : mounted_models_.all()) edition->end();
}

void MountRoot::connect(const Pin& model) {
  model->number_in(space_of(model.number()));
  model->tell_stale_to([this](const Stale& stale) { surroundings_.forget(stale); });
  model->tell_outdated_to([this](const Outdated& outdated) { surroundings_.forget_outdated(outdated); });
  model->tell_commits_to([this] { surroundings_.note_commit(); });
  model->show_replacement_by([this, number = model.number()] { return show_replacement(number); });
}

void MountRoot::connect_to(Surroundings surroundings) {
  surroundings_ = std::move(surroundings);
  mounted_models_.tell_ends_to(surroundings_.note_commit);
}

std::string MountRoot::label_of(Ino ino, std::string_view name) const {
  if (const Pin member = model_of(ino)) return member->label_of(ino, name);
  if (serves(ino)) {
    const std::filesystem::path path = source_->path_of(ino);
    return (name.empty() ? path : path / name).string();
  }
  const std::string directory = first_slot()->path.parent_path().string();
  const std::string file = ino == kHiddenIno ? std::string(kViewsDirectory) : std::string();
  if (file.empty()) return name.empty() ? directory : fmt::format("{}: {}", directory, name);
  return fmt::format("{}: {}/{}", directory, file, name);
}

Activity& MountRoot::activity(const Pin& model) const {
  // The counts of a model outlive its editions.
  return model ? *model->activity() : *first_slot()->activity;
}

bool MountRoot::is_read_only(const Pin& model) const {
  return model ? model->is_read_only() : is_read_only_;
}

}  // namespace stfs
