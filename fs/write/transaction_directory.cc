// Begins, stages, commits and rolls back transactions.
#include "fs/write/transaction_directory.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <bit>
#include <chrono>

#include "fs/base/log.h"
#include "fs/tree/names.h"

namespace stfs {
namespace {

constexpr Ino kFirstRun = kHiddenIno + 16;

/// The numbers that each transaction gets. Edits make more ids: there is room for many.
std::uint64_t run_of(std::uint32_t ids) {
  constexpr std::uint64_t kLeast = 1 << 20;
  return std::max(kLeast, std::bit_ceil(std::uint64_t{ids} * 4));
}

tl::unexpected<Error> refuse(int errno_value, std::string_view why) {
  return fail(ErrorCode::InvalidArgument, errno_value, std::string(why));
}

}  // namespace

TransactionDirectory::TransactionDirectory(const Versioned<Model>& model, const TensorTree& tree,
                                           VersionOf version_of)
    : model_(model), version_of_(std::move(version_of)), tree_(tree), run_(run_of(model->ids().end())) {}

TransactionDirectory::Place TransactionDirectory::place_of(Ino ino) const {
  return {(ino - kFirstRun) / run_, (ino - kFirstRun) % run_};
}

Ino TransactionDirectory::ino_of(std::uint64_t number, std::uint64_t in_run) const {
  return kFirstRun + number * run_ + in_run;
}

bool TransactionDirectory::is_directory(Ino ino) const {
  return ino < kFirstRun || place_of(ino).in_run == 0;
}

bool TransactionDirectory::exists(Ino ino) const {
  if (ino < kFirstRun) return ino == kTransactions || ino == kCommitted;
  const std::scoped_lock lock(mutex_);
  return begun_.contains(place_of(ino).number);
}

Node TransactionDirectory::node(Ino ino) const {
  if (!exists(ino)) return {};
  if (is_directory(ino)) return {.ino = ino, .kind = Node::Kind::StagedDirectory};
  return {.ino = ino, .kind = Node::Kind::Staged, .tensor = tensor(ino)};
}

Ino TransactionDirectory::parent(Ino directory) const {
  if (directory < kFirstRun) return kHiddenIno;
  const std::scoped_lock lock(mutex_);
  const auto found = begun_.find(place_of(directory).number);
  return found != begun_.end() && found->second.is_committed ? kCommitted : kTransactions;
}

std::optional<TensorId> TransactionDirectory::tensor_named(const Begun* begun,
                                                           std::string_view file_name) const {
  const auto ino = tree_.version().flat().find(kRootIno, file_name);
  if (ino) return InodeTable::tensor(*ino);
  if (begun == nullptr) return std::nullopt;
  // One that is staged and was deleted since.
  for (const auto& [tensor, member] : begun->members) {
    if (this->file_name(tensor) == file_name) return tensor;
  }
  return std::nullopt;
}

std::string TransactionDirectory::file_name(TensorId tensor) const {
  const InodeTable& flat = tree_.version().flat();
  const Ino ino = InodeTable::ino_of_tensor(tensor);
  return flat.exists(ino) ? std::string(flat.file_name(ino)) : file_name_of(model_->tensor(tensor).name);
}

const TransactionDirectory::Begun* TransactionDirectory::begun_at(Ino directory) const {
  const auto found = begun_.find(place_of(directory).number);
  return found == begun_.end() ? nullptr : &found->second;
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
  const std::scoped_lock lock(mutex_);
  if (directory < kFirstRun) {
    if (const auto number = number_named(directory, name)) return ino_of(*number, 0);
    return fail(ErrorCode::NotFound, ENOENT, "no such transaction");
  }
  const auto begun = begun_.find(place_of(directory).number);
  const auto tensor = tensor_named(begun_at(directory), name);
  if (begun == begun_.end() || begun->second.is_committed || !tensor)
    return fail(ErrorCode::NotFound, ENOENT, "no such tensor");
  return file_of(begun->first, *tensor);
}

void TransactionDirectory::list(Ino directory, std::uint64_t position, const VisitEntry& visit) const {
  const auto all = entries(directory);
  visit_entries(directory, parent(directory), all.size(), position, visit,
                [&](std::size_t at) { return all[at]; });
}

std::vector<std::pair<std::string, Ino>> TransactionDirectory::entries(Ino directory) const {
  std::vector<std::pair<std::string, Ino>> entries;
  const std::scoped_lock lock(mutex_);
  if (directory < kFirstRun) {
    for (const auto& [number, begun] : begun_) {
      if (begun.is_committed == (directory == kCommitted))
        entries.emplace_back(begun.name, ino_of(number, 0));
    }
    return entries;
  }
  const auto begun = begun_.find(place_of(directory).number);
  if (begun == begun_.end()) return entries;
  for (const auto& [tensor, member] : begun->second.members) {
    entries.emplace_back(file_name(tensor), file_of(begun->first, tensor));
  }
  return entries;
}

Permissions TransactionDirectory::restricted(Ino directory, Permissions shown) const {
  if (directory == kTransactions || directory == kCommitted) shown.mode |= S_ISVTX;
  if (directory < kFirstRun) return shown;
  const std::scoped_lock lock(mutex_);
  const auto found = begun_.find(place_of(directory).number);
  if (found == begun_.end()) return shown;
  return {.mode = S_IRWXU, .uid = found->second.maker.uid, .gid = found->second.maker.gid};
}

Result<Ino> TransactionDirectory::begin(Ino directory, std::string_view name, Maker maker) {
  if (directory != kTransactions)
    return refuse(EPERM, "directories can be created in .safetensors/transactions only");
  const std::scoped_lock lock(mutex_);
  if (number_named(directory, name)) return refuse(EEXIST, "a transaction of this name exists");
  const std::uint64_t number = next_number_++;
  Begun& begun = begun_[number];
  begun.name = name;
  begun.maker = maker;
  begun.group = std::make_shared<TransactionGroup>(*model_);
  return ino_of(number, 0);
}

Result<void> TransactionDirectory::remove_directory(Ino directory, std::string_view name) {
  if (directory != kTransactions && directory != kCommitted) return refuse(EPERM, "not a transaction");
  const std::scoped_lock lock(mutex_);
  const auto number = number_named(directory, name);
  if (!number) return fail(ErrorCode::NotFound, ENOENT, "no such transaction");
  if (begun_[*number].is_committing) return refuse(EBUSY, "the transaction is being committed");
  if (!begun_[*number].members.empty()) return refuse(ENOTEMPTY, "the transaction has staged tensors");
  std::erase(committed_, *number);
  begun_.erase(*number);
  return {};
}

Result<void> TransactionDirectory::remove_file(Ino directory, std::string_view name) {
  if (directory < kFirstRun) return refuse(EPERM, "not a tensor of a transaction");
  std::shared_ptr<PendingContent> content;
  {
    std::unique_lock lock(mutex_);
    const auto tensor = tensor_named(begun_at(directory), name);
    wait_for_closes(lock, [&] {
      const auto begun = begun_.find(place_of(directory).number);
      if (begun == begun_.end() || !tensor) return true;
      const auto member = begun->second.members.find(*tensor);
      return member == begun->second.members.end() || member->second.writers == 0;
    });
    const auto begun = begun_.find(place_of(directory).number);
    if (begun == begun_.end() || !tensor) return fail(ErrorCode::NotFound, ENOENT, "no such tensor");
    const auto member = begun->second.members.find(*tensor);
    if (member == begun->second.members.end()) return fail(ErrorCode::NotFound, ENOENT, "not staged");
    if (member->second.writers > 0) return refuse(EBUSY, "the tensor is open for writing");
    if (begun->second.is_committing) return refuse(EBUSY, "the transaction is being committed");
    content = member->second.content;
    begun->second.members.erase(member);
  }
  const std::scoped_lock content_lock(content->mutex);
  content->forget();
  return {};
}

Result<void> TransactionDirectory::rename(Ino from, std::string_view name, Ino to, std::string_view new_name,
                                          const Calls& calls) {
  if (from != kTransactions || (to != kTransactions && to != kCommitted)) {
    return refuse(EPERM, "only transactions can be renamed; a move to .safetensors/committed commits");
  }
  std::uint64_t number = 0;
  Begun committing;
  {
    std::unique_lock lock(mutex_);
    if (to == kCommitted) {
      wait_for_closes(lock, [&] {
        const auto found = number_named(from, name);
        return !found || std::ranges::all_of(begun_[*found].members,
                                             [](const auto& member) { return member.second.writers == 0; });
      });
    }
    const auto found = number_named(from, name);
    if (!found) return fail(ErrorCode::NotFound, ENOENT, "no such transaction");
    number = *found;
    Begun& begun = begun_[number];
    if (begun.is_committing) return refuse(EBUSY, "the transaction is being committed");
    if (to == kTransactions) {
      if (number_named(to, new_name)) return refuse(EEXIST, "a transaction of this name exists");
      begun.name = new_name;
      return {};
    }
    for (const auto& [tensor, member] : begun.members) {
      if (member.writers == 0) continue;
      return refuse(EBUSY,
                    fmt::format("tensor \"{}\" is still open for writing", model_->tensor(tensor).name));
    }
    // The commit may wait long for the disk, so the mutex is free meanwhile.
    begun.is_committing = true;
    committing = begun;
  }
  auto committed = commit(committing, calls);
  const std::scoped_lock lock(mutex_);
  begun_[number].is_committing = false;
  if (committed) show_committed(number, new_name);
  return committed;
}

void TransactionDirectory::show_committed(std::uint64_t number, std::string_view name) {
  const auto earlier = number_named(kCommitted, name);
  if (earlier) std::erase(committed_, *earlier);
  if (earlier) begun_.erase(*earlier);
  Begun& begun = begun_[number];
  begun.members.clear();
  begun.group.reset();
  begun.name = name;
  begun.is_committed = true;
  committed_.push_back(number);
  if (committed_.size() <= kMostCommitted) return;
  begun_.erase(committed_.front());
  committed_.pop_front();
}

Result<void> TransactionDirectory::commit(const Begun& committing, const Calls& calls) {
  std::vector<TensorId> changed;
  Committers::Shards shards;
  Contents contents;
  for (const auto& [tensor, member] : committing.members) {
    const std::scoped_lock content_lock(member.content->mutex);
    if (member.content->failure) return tl::unexpected(*member.content->failure);
    if (!member.content->is_dirty()) continue;
    changed.push_back(tensor);
    shards.insert(model_->place(tensor).shard);
    contents.push_back(member.content);
  }
  const auto look = [&] { return check_for_conflicts(committing, changed); };
  const auto each = [&](const auto& act) {
    for (const auto& [tensor, member] : committing.members) {
      const std::scoped_lock content_lock(member.content->mutex);
      act(*member.content);
    }
  };
  // The first check, before the turn: it reads the tensors that it needs while other commits go on.
  if (auto same = look(); !same) return same;
  each([](PendingContent& content) { content.park(); });
  const auto attempt = [&](const TransactionGroup::OptionsOf& options_of) -> Result<void> {
    if (auto same = look(); !same) return same;
    const auto checked = [&](std::uint32_t shard) {
      auto options = options_of(shard);
      if (!options) return options;
      options->on_foreign_change = [&, note = std::move(options->on_foreign_change)]() -> Result<void> {
        // This check is the final one: with the archive's locks held, no other change can come before the
        // commit.
        if (note) static_cast<void>(note());
        return look();
      };
      return options;
    };
    const std::scoped_lock group_lock(committing.group->mutex);
    auto done = committing.group->commit(checked, calls.lock_of);
    if (done) calls.note_committed(contents);
    return done;
  };
  auto committed = calls.in_turn(shards, attempt);
  if (!committed) {
    const bool has_ended = committing.group->is_empty();
    each([&](PendingContent& content) {
      if (has_ended) {
        content.end(committed.error());
      } else {
        content.unpark();
      }
    });
    if (has_ended) calls.note_shown(contents);
    // EINVAL of rename(2) means that a directory is moved into itself, and mv(1) prints that. Hence ENODATA.
    if (committed.error().code == ErrorCode::WrongSize) committed.error().errno_value = ENODATA;
    return committed;
  }
  each([](PendingContent& content) {
    content.fail({ErrorCode::ArchiveChanged, ESTALE, "the transaction has been committed"});
  });
  return {};
}

Result<void> TransactionDirectory::check_for_conflicts(const Begun& begun,
                                                       const std::vector<TensorId>& changed) const {
  for (const TensorId tensor : changed) {
    const Member& member = begun.members.at(tensor);
    auto now = version_of_(tensor);
    if (!now) return pass_on(std::move(now));
    if (now->generation == member.base.generation || now->checksum == member.base.checksum) continue;
    return fail(
        ErrorCode::ArchiveChanged, ESTALE,
        fmt::format("transaction {}: tensor \"{}\" was changed by another program since it was staged",
                    begun.name, model_->tensor(tensor).name));
  }
  return {};
}

Result<std::shared_ptr<PendingContent>> TransactionDirectory::open(Ino ino, bool is_for_writing) {
  const Place place = place_of(ino);
  const TensorId id = tensor(ino);
  // version_of_() reads the whole tensor the first time, so it is called before the lock is taken.
  auto base = is_for_writing ? version_of_(id) : Result<TensorVersion>(TensorVersion{});
  if (!base) return pass_on(std::move(base));
  const std::scoped_lock lock(mutex_);
  const auto begun = begun_.find(place.number);
  if (begun == begun_.end() || begun->second.is_committed) {
    return fail(ErrorCode::ArchiveChanged, ESTALE, "the transaction has ended");
  }
  if (!is_for_writing) return std::shared_ptr<PendingContent>();
  if (begun->second.is_committing) return refuse(EBUSY, "the transaction is being committed");
  Member& member = begun->second.members[id];
  if (!member.content) {
    member.content = std::make_shared<PendingContent>(model_, id, begun->second.group);
    member.base = std::move(*base);
  }
  ++member.writers;
  return member.content;
}

std::shared_ptr<PendingContent> TransactionDirectory::content(Ino ino) const {
  const Place place = place_of(ino);
  const std::scoped_lock lock(mutex_);
  const auto begun = begun_.find(place.number);
  if (begun == begun_.end()) return nullptr;
  const auto member = begun->second.members.find(tensor(ino));
  return member == begun->second.members.end() ? nullptr : member->second.content;
}

void TransactionDirectory::wait_for_closes(std::unique_lock<std::mutex>& lock,
                                           const std::function<bool()>& are_closed) {
  constexpr std::chrono::seconds kPatience{2};
  closes_.wait_for(lock, kPatience, are_closed);
}

void TransactionDirectory::close(Ino ino) {
  const std::scoped_lock lock(mutex_);
  const auto begun = begun_.find(place_of(ino).number);
  if (begun == begun_.end()) return;
  const auto member = begun->second.members.find(tensor(ino));
  if (member == begun->second.members.end()) return;
  --member->second.writers;
  closes_.notify_all();
}

void TransactionDirectory::note_read(Ino ino) {
  const std::scoped_lock lock(mutex_);
  const auto begun = begun_.find(place_of(ino).number);
  if (begun != begun_.end()) begun->second.cached.insert(tensor(ino));
}

std::vector<Ino> TransactionDirectory::take_cached(TensorId first, TensorId last) {
  std::vector<Ino> taken;
  const std::scoped_lock lock(mutex_);
  for (auto& [number, begun] : begun_) {
    const auto begin = begun.cached.lower_bound(first);
    const auto end = begun.cached.upper_bound(last);
    for (auto tensor = begin; tensor != end; ++tensor) taken.push_back(file_of(number, *tensor));
    begun.cached.erase(begin, end);
  }
  return taken;
}

bool TransactionDirectory::has(TensorId tensor) const {
  const std::scoped_lock lock(mutex_);
  return std::ranges::any_of(begun_,
                             [&](const auto& begun) { return begun.second.members.contains(tensor); });
}

std::vector<std::string> TransactionDirectory::unfinished() const {
  std::vector<std::string> names;
  const std::scoped_lock lock(mutex_);
  for (const auto& [number, begun] : begun_) {
    if (!begun.members.empty()) names.push_back(begun.name);
  }
  return names;
}

}  // namespace stfs
