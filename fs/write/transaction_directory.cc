// Begins and rolls back transactions, and finds their files. transaction_files.cc edits them,
// transaction_npy.cc has their NumPy files, and transaction_commit.cc commits them.
#include "fs/write/transaction_directory.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <bit>
#include <chrono>

#include "core/base/mutex.h"
#include "core/format/json_string.h"
#include "fs/tree/names.h"

namespace stfs {
namespace {

constexpr Ino kFirstRun = kHiddenIno + 16;
constexpr std::string_view kNpyName = "npy";

/// The number of inodes of each transaction. Edits make more ids, so there is room for many.
std::uint64_t run_of(std::uint32_t ids) {
  constexpr std::uint64_t kLeast = 1 << 21;
  return std::max(kLeast, std::bit_ceil(std::uint64_t{ids} * 8));
}

tl::unexpected<Error> no_such_file() {
  return fail(ErrorCode::NotFound, ENOENT, "no such file");
}

tl::unexpected<Error> refuse(int errno_value, std::string_view why) {
  return fail(ErrorCode::InvalidArgument, errno_value, std::string(why));
}

}  // namespace

TransactionDirectory::TransactionDirectory(const Snapshots& snapshots, VersionOf version_of,
                                           const UserLimits& limits)
    : snapshots_(snapshots),
      version_of_(std::move(version_of)),
      limits_(limits),
      run_(run_of(snapshots->model->ids().end())),
      half_(run_ / 2) {}

TransactionDirectory::Place TransactionDirectory::place_of(Ino ino) const {
  return {(ino - kFirstRun) / run_, (ino - kFirstRun) % run_};
}

Ino TransactionDirectory::ino_of(std::uint64_t number, std::uint64_t in_run) const {
  return kFirstRun + number * run_ + in_run;
}

bool TransactionDirectory::is_directory(Ino ino) const {
  return ino < kFirstRun || place_of(ino).in_run % half_ == 0 || is_npy_directory(ino);
}

Node TransactionDirectory::node(Ino ino) const {
  if (ino < kFirstRun) {
    const bool exists = ino == kTransactions || ino == kCommitted;
    return exists ? Node{.ino = ino, .kind = Node::Kind::StagedDirectory} : Node{};
  }
  const MutexLock lock(mutex_);
  const auto begun = begun_.find(place_of(ino).number);
  if (begun == begun_.end()) return {};
  if (is_directory(ino)) {
    if (is_hidden(ino) && begun->second.is_committed) return {};
    return {.ino = ino, .kind = Node::Kind::StagedDirectory};
  }
  const StagedTensor* const staged = begun->second.staged.at(tensor(ino));
  const bool is_made = staged != nullptr && staged->new_tensor() != nullptr;
  if (!is_made && !snapshots_->model->has(tensor(ino))) return {};  // a new one that was removed
  if (is_hidden(ino)) return {.ino = ino, .kind = Node::Kind::StagedNpy, .tensor = tensor(ino)};
  return {.ino = ino, .kind = is_made ? Node::Kind::Draft : Node::Kind::Staged, .tensor = tensor(ino)};
}

Ino TransactionDirectory::parent(Ino directory) const {
  if (directory < kFirstRun) return kHiddenIno;
  const std::uint64_t run = place_of(directory).number;
  if (is_npy_directory(directory)) return ino_of(run, half_);
  if (is_hidden(directory)) return ino_of(run, 0);
  const MutexLock lock(mutex_);
  const auto found = begun_.find(run);
  return found != begun_.end() && found->second.is_committed ? kCommitted : kTransactions;
}

const TransactionDirectory::Begun* TransactionDirectory::begun_at(Ino ino) const {
  if (ino < kFirstRun) return nullptr;
  const auto found = begun_.find(place_of(ino).number);
  return found == begun_.end() || found->second.is_committed ? nullptr : &found->second;
}

TransactionDirectory::Begun* TransactionDirectory::begun_at(Ino ino) {
  return const_cast<Begun*>(static_cast<const TransactionDirectory*>(this)->begun_at(ino));
}

bool TransactionDirectory::is_in_transaction(Ino ino) {
  return ino >= kFirstRun;
}

std::optional<std::uint64_t> TransactionDirectory::number_named(Ino directory, std::string_view name) const {
  for (const auto& [number, begun] : begun_) {
    if (begun.name == name && begun.is_committed == (directory == kCommitted)) return number;
  }
  return std::nullopt;
}

std::optional<Ino> TransactionDirectory::find_top(std::string_view name) {
  const auto entry = std::ranges::find(kEntries, name, &FixedEntry::name);
  return entry == kEntries.end() ? std::nullopt : std::optional(entry->ino);
}

Result<Ino> TransactionDirectory::find(Ino directory, std::string_view name) {
  const MutexLock lock(mutex_);
  if (directory < kFirstRun) {
    if (const auto number = number_named(directory, name)) return ino_of(*number, 0);
    return fail(ErrorCode::NotFound, ENOENT, "no such transaction");
  }
  const Begun* const begun = begun_at(directory);
  if (begun == nullptr) return fail(ErrorCode::NotFound, ENOENT, "the transaction has ended");
  const std::uint64_t number = place_of(directory).number;
  if (directory == ino_of(number, 0) && name == kViewsDirectory) return ino_of(number, half_);
  if (directory == ino_of(number, half_))
    return name == kNpyName ? Result<Ino>(npy_directory(directory)) : no_such_file();
  if (is_npy_directory(directory)) {
    const auto tensor = find_npy(*begun, name);
    return tensor && begun->staged.has_npy(*tensor) ? Result<Ino>(npy_file(directory, *tensor))
                                                    : no_such_file();
  }
  const auto tensor = begun->staged.find(name);
  if (!tensor) return fail(ErrorCode::NotFound, ENOENT, "no such tensor");
  return file_of(number, *tensor);
}

void TransactionDirectory::list(Ino directory, std::uint64_t position, const VisitEntry& visit) const {
  const auto all = entries(directory);
  visit_entries(directory, parent(directory), all.size(), position, visit,
                [&](std::size_t at) { return all[at]; });
}

std::vector<std::pair<std::string, Ino>> TransactionDirectory::entries(Ino directory) const {
  std::vector<std::pair<std::string, Ino>> entries;
  const MutexLock lock(mutex_);
  if (directory < kFirstRun) {
    for (const auto& [number, begun] : begun_) {
      if (begun.is_committed == (directory == kCommitted))
        entries.emplace_back(begun.name, ino_of(number, 0));
    }
    return entries;
  }
  const auto begun = begun_.find(place_of(directory).number);
  if (begun == begun_.end()) return entries;
  if (is_hidden(directory) && !is_npy_directory(directory)) {
    entries.emplace_back(kNpyName, npy_directory(directory));
    return entries;
  }
  for (const auto& [tensor, staged] : begun->second.staged.tensors()) {
    if (!staged.is_listed()) continue;
    std::string name = begun->second.staged.file_name(tensor);
    if (!is_npy_directory(directory)) {
      entries.emplace_back(std::move(name), file_of(begun->first, tensor));
    } else if (name.size() + kNpySuffix.size() <= kMaxFileNameBytes && begun->second.staged.has_npy(tensor)) {
      entries.emplace_back(name.append(kNpySuffix), npy_file(directory, tensor));
    }
  }
  return entries;
}

Permissions TransactionDirectory::restricted(Ino directory, Permissions shown) const {
  if (directory == kTransactions || directory == kCommitted) shown.mode |= S_ISVTX;
  if (directory < kFirstRun) return shown;
  const MutexLock lock(mutex_);
  const auto found = begun_.find(place_of(directory).number);
  if (found == begun_.end()) return shown;
  return {.mode = S_IRWXU, .uid = found->second.maker.uid, .gid = found->second.maker.gid};
}

Result<Ino> TransactionDirectory::begin(Ino directory, std::string_view name, Maker maker) {
  if (directory != kTransactions)
    return refuse(EPERM, "directories can be created in .safetensors/transactions only");
  const MutexLock lock(mutex_);
  if (number_named(directory, name)) return refuse(EEXIST, "a transaction of this name exists");
  auto share = open_.take(maker.uid);
  if (!share) {
    return over_user_limit(maker.uid, limits_.transactions, "open transactions",
                           "commit or remove one (rm -r)");
  }
  const std::uint64_t number = next_number_++;
  const auto take = [user = maker.uid] { return take_descriptor(requesting_user(user)); };
  begun_.emplace(number, Begun{.name = std::string(name),
                               .maker = std::move(maker),
                               .group = std::make_shared<TransactionGroup>(*snapshots_->model, take),
                               .staged = StagedChanges(snapshots_),
                               .open_share = std::move(*share)});
  return ino_of(number, 0);
}

Result<void> TransactionDirectory::remove_directory(Ino directory, std::string_view name) {
  if (directory != kTransactions && directory != kCommitted) return refuse(EPERM, "not a transaction");
  const MutexLock lock(mutex_);
  const auto number = number_named(directory, name);
  if (!number) return fail(ErrorCode::NotFound, ENOENT, "no such transaction");
  const Begun& begun = begun_.at(*number);
  if (begun.is_committing) return refuse(EBUSY, "the transaction is being committed");
  // Deletions and metadata are not listed, so a transaction with only these may be removed by `rm -r`.
  if (std::ranges::any_of(begun.staged.tensors(), [](const auto& entry) { return entry.second.is_listed(); }))
    return refuse(ENOTEMPTY, "the transaction has staged tensors");
  std::erase(committed_, *number);
  begun_.erase(*number);
  return {};
}

Result<void> TransactionDirectory::rename(Ino from, std::string_view name, Ino to, std::string_view new_name,
                                          const Calls& calls) {
  if (from != kTransactions || (to != kTransactions && to != kCommitted)) {
    return refuse(EPERM, "only transactions can be renamed; a move to .safetensors/committed commits");
  }
  std::uint64_t number = 0;
  std::optional<Begun> committing;
  {
    const MutexLock lock(mutex_);
    if (to == kCommitted) {
      wait_for_closes([&]() REQUIRES(mutex_) {
        const auto found = number_named(from, name);
        return !found || std::ranges::all_of(begun_.at(*found).staged.tensors(),
                                             [](const auto& entry) { return entry.second.writers == 0; });
      });
    }
    const auto found = number_named(from, name);
    if (!found) return fail(ErrorCode::NotFound, ENOENT, "no such transaction");
    number = *found;
    Begun& begun = begun_.at(number);
    if (begun.is_committing) return refuse(EBUSY, "the transaction is being committed");
    if (to == kTransactions) {
      if (number_named(to, new_name)) return refuse(EEXIST, "a transaction of this name exists");
      begun.name = new_name;
      return {};
    }
    for (const auto& [tensor, staged] : begun.staged.tensors()) {
      if (staged.writers == 0) continue;
      return refuse(EBUSY,
                    fmt::format("tensor {} is still open for writing", in_quotes(begun.staged.name(tensor))));
    }
    // The commit may wait long for the disk, so the mutex is released for its duration.
    committing = begun;
    begun.is_committing = true;
  }
  auto committed = guard_memory([&] {
    return is_edit(*committing) ? commit_edit(*committing, calls) : commit_patches(*committing, calls);
  });
  // EINVAL of rename(2) means that a directory is moved into itself, and mv(1) prints this. Therefore the
  // error is ENODATA.
  if (!committed && committed.error().errno_value == EINVAL) committed.error().errno_value = ENODATA;
  const MutexLock lock(mutex_);
  begun_.at(number).is_committing = false;
  if (committed) show_committed(number, new_name);
  return committed;
}

void TransactionDirectory::show_committed(std::uint64_t number, std::string_view name) {
  const auto earlier = number_named(kCommitted, name);
  if (earlier) std::erase(committed_, *earlier);
  if (earlier) begun_.erase(*earlier);
  Begun& begun = begun_.at(number);
  begun.staged = StagedChanges(snapshots_);
  begun.group.reset();
  begun.name = name;
  begun.is_committed = true;
  begun.open_share.reset();
  committed_.push_back(number);
  if (committed_.size() <= kMostCommitted) return;
  begun_.erase(committed_.front());
  committed_.pop_front();
}

Result<std::shared_ptr<PendingFile>> TransactionDirectory::open(Ino ino, bool is_for_writing) {
  const TensorId id = tensor(ino);
  auto base = is_for_writing ? base_of(ino) : Result<TensorVersion>(TensorVersion{});
  RETURN_IF_ERROR(base);
  const MutexLock lock(mutex_);
  Begun* const begun = begun_at(ino);
  if (begun == nullptr) return fail(ErrorCode::ArchiveChanged, ESTALE, "the transaction has ended");
  if (!is_for_writing) return std::shared_ptr<PendingFile>();
  if (begun->is_committing) return refuse(EBUSY, "the transaction is being committed");
  StagedTensor* staged = begun->staged.at(id);
  if (staged != nullptr ? staged->fate != StagedTensor::Fate::Stays : !snapshots_->model->has(id))
    return fail(ErrorCode::ArchiveChanged, ESTALE, "the tensor was deleted in the transaction");
  if (staged == nullptr) {
    RETURN_IF_ERROR(check_share(*begun));
    staged = &begun->staged.stage(id);
  }
  if (!staged->content) {
    staged->content =
        std::make_shared<PendingFile>(id, std::make_unique<TensorPatch>(snapshots_, id, begun->group));
    staged->base = std::move(*base);
  }
  ++staged->writers;
  return staged->content;
}

std::shared_ptr<PendingFile> TransactionDirectory::content(Ino ino) const {
  const auto staged = this->staged(ino);
  return staged ? staged->content : nullptr;
}

void TransactionDirectory::wait_for_closes(const std::function<bool()>& are_closed) {
  constexpr std::chrono::seconds kPatience{2};
  closes_.wait_for(mutex_, kPatience, are_closed);
}

void TransactionDirectory::close(Ino ino) {
  Contents unused;
  {
    const MutexLock lock(mutex_);
    Begun* const begun = begun_at(ino);
    StagedTensor* const staged = begun == nullptr ? nullptr : begun->staged.at(tensor(ino));
    if (staged == nullptr) return;
    if (staged->writers == 1) begun->staged.adopt_form(*staged);
    if (--staged->writers == 0 && staged->new_tensor() != nullptr && !staged->is_new &&
        !staged->content->is_dirty()) {
      // The tensor got another form for a write, but no bytes were written.
      unused.push_back(std::exchange(staged->content, nullptr));
      begun->staged.tidy(tensor(ino));
    }
    closes_.notify_all();
  }
  drop(unused);
}

void TransactionDirectory::note_read(Ino ino) {
  const MutexLock lock(mutex_);
  const auto begun = begun_.find(place_of(ino).number);
  if (begun != begun_.end()) begun->second.cached.insert(tensor(ino));
}

std::vector<Ino> TransactionDirectory::take_cached(TensorId first, TensorId last) {
  std::vector<Ino> taken;
  const MutexLock lock(mutex_);
  for (auto& [number, begun] : begun_) {
    const auto begin = begun.cached.lower_bound(first);
    const auto end = begun.cached.upper_bound(last);
    for (auto tensor = begin; tensor != end; ++tensor) taken.push_back(file_of(number, *tensor));
    begun.cached.erase(begin, end);
  }
  return taken;
}

bool TransactionDirectory::has(TensorId tensor) const {
  const MutexLock lock(mutex_);
  return std::ranges::any_of(begun_, [&](const auto& begun) {
    const StagedTensor* const staged = begun.second.staged.at(tensor);
    return staged != nullptr && staged->content != nullptr;
  });
}

bool TransactionDirectory::needs_place(TensorId tensor) const {
  const MutexLock lock(mutex_);
  return std::ranges::any_of(begun_, [&](const auto& begun) {
    const StagedTensor* const staged = begun.second.staged.at(tensor);
    return staged != nullptr && staged->content != nullptr && !begun.second.staged.has_structure();
  });
}

bool TransactionDirectory::holds(TensorId tensor) const {
  const MutexLock lock(mutex_);
  return std::ranges::any_of(begun_,
                             [&](const auto& begun) { return begun.second.staged.at(tensor) != nullptr; });
}

std::vector<std::string> TransactionDirectory::unfinished() const {
  std::vector<std::string> names;
  const MutexLock lock(mutex_);
  for (const auto& [number, begun] : begun_) {
    if (!begun.staged.is_empty()) names.push_back(begun.name);
  }
  return names;
}

bool TransactionDirectory::is_any_open() const {
  const MutexLock lock(mutex_);
  return std::ranges::any_of(begun_, [](const auto& begun) { return !begun.second.is_committed; });
}

}  // namespace stfs
