#include "fs/write/drafts.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "core/base/mutex.h"
#include "core/tensor/npy.h"
#include "fs/write/checkpoint.h"

namespace stfs {
namespace {

constexpr std::chrono::seconds kPatience{2};  // drafts.h

/// True if the draft waits for another name. Its close does not end it.
bool is_kept(const Drafts::Draft& draft) {
  const Checkpoint* const saved = draft.content->checkpoint();
  return saved != nullptr && saved->is_kept();
}

}  // namespace

bool Drafts::Draft::is_scratch() const {
  const NewTensor* const made = content->new_tensor();
  return made != nullptr && made->is_scratch();
}

bool Drafts::add(Draft draft) {
  const MutexLock lock(mutex_);
  if (!by_name_.emplace(std::pair(draft.directory, draft.file_name), draft.ino).second) return false;
  const Ino ino = draft.ino;
  drafts_.emplace(ino, std::move(draft));
  count_ = drafts_.size();
  return true;
}

std::optional<Drafts::Draft> Drafts::find(Ino directory, std::string_view file_name) const {
  if (count_ == 0) return std::nullopt;
  const MutexLock lock(mutex_);
  const auto named = by_name_.find(std::pair(directory, std::string(file_name)));
  return named == by_name_.end() ? std::nullopt : std::optional(drafts_.at(named->second));
}

std::optional<Drafts::Draft> Drafts::find(Ino ino) const {
  if (count_ == 0) return std::nullopt;
  const MutexLock lock(mutex_);
  const auto found = drafts_.find(ino);
  return found == drafts_.end() ? std::nullopt : std::optional(found->second);
}

bool Drafts::has_in(Ino directory) const {
  if (count_ == 0) return false;
  const MutexLock lock(mutex_);
  return has_any_in(directory);
}

bool Drafts::has_any_in(Ino directory) const {
  const auto first = by_name_.lower_bound({directory, std::string()});
  return first != by_name_.end() && first->first.first == directory;
}

std::vector<std::string> Drafts::kept() const {
  const MutexLock lock(mutex_);
  std::vector<std::string> names;
  for (const auto& [ino, draft] : drafts_) {
    if (is_kept(draft)) names.push_back(draft.file_name);
  }
  return names;
}

bool Drafts::rename(Ino ino, Ino directory, std::string_view file_name) {
  const MutexLock lock(mutex_);
  const auto found = drafts_.find(ino);
  if (found == drafts_.end()) return false;
  Draft& draft = found->second;
  if (!by_name_.emplace(std::pair(directory, std::string(file_name)), ino).second) return false;
  leave_name(draft);
  draft.directory = directory;
  draft.file_name = file_name;
  return true;
}

void Drafts::unlink(Ino ino) {
  const MutexLock lock(mutex_);
  if (const auto found = drafts_.find(ino); found != drafts_.end()) leave_name(found->second);
}

void Drafts::leave_name(const Draft& draft) {
  const auto named = by_name_.find(std::pair(draft.directory, draft.file_name));
  if (named != by_name_.end() && named->second == draft.ino) by_name_.erase(named);
}

std::vector<Drafts::Draft> Drafts::all() const {
  std::vector<Draft> found;
  if (count_ == 0) return found;
  const MutexLock lock(mutex_);
  for (const auto& [ino, draft] : drafts_) found.push_back(draft);
  return found;
}

std::vector<Drafts::Draft> Drafts::in(Ino directory, Ino first, std::size_t most) const {
  std::vector<Draft> found;
  if (count_ == 0) return found;
  const MutexLock lock(mutex_);
  for (auto draft = drafts_.lower_bound(first); draft != drafts_.end() && found.size() < most; ++draft) {
    const auto named = by_name_.find({draft->second.directory, draft->second.file_name});
    const bool has_name = named != by_name_.end() && named->second == draft->first;
    if (draft->second.directory == directory && has_name) found.push_back(draft->second);
  }
  return found;
}

void Drafts::remove(Ino ino) {
  const MutexLock lock(mutex_);
  const auto found = drafts_.find(ino);
  if (found == drafts_.end()) return;
  leave_name(found->second);
  drafts_.erase(found);
  count_ = drafts_.size();
  ends_.notify_all();
}

bool Drafts::wait_for_ends_in(Ino directory) const {
  if (count_ == 0) return true;
  const MutexLock lock(mutex_);
  return ends_.wait_for(mutex_, kPatience, [&]() REQUIRES(mutex_) { return !has_any_in(directory); });
}

void Drafts::note_vacated(std::string name, TensorForm form) {
  constexpr std::size_t kMostNameBytes = 1024;  // with the bound on dimensions: some kilobytes for each name
  if (form.shape.size() > kMaxNpyRank || name.size() > kMostNameBytes) return;
  const MutexLock lock(mutex_);
  const std::uint64_t number = ++next_vacated_;  // no form has number 0
  vacated_order_.emplace(number, name);
  Vacated& vacated = vacated_[std::move(name)];
  vacated_order_.erase(std::exchange(vacated.number, number));
  vacated.form = std::move(form);
  if (vacated_.size() <= kMostVacated) return;
  const auto oldest = vacated_order_.begin();
  vacated_.erase(oldest->second);
  vacated_order_.erase(oldest);
}

std::optional<TensorForm> Drafts::vacated(const std::string& name) const {
  const MutexLock lock(mutex_);
  const auto found = vacated_.find(name);
  return found == vacated_.end() ? std::nullopt : std::optional(found->second.form);
}

}  // namespace stfs
