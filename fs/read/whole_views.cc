// Keeps a version's view for as long as the kernel knows one of its files.
#include "fs/read/whole_views.h"

#include <algorithm>
#include <utility>

namespace stfs {

WholeViews::WholeViews(std::shared_ptr<Model> model, const TensorReader& reader, Ino first)
    : reader_(reader), first_(first) {
  show(next(std::move(model)));
}

Ino WholeViews::present(Part part) const {
  const std::scoped_lock lock(mutex_);
  return number(versions_.rbegin()->first, part);
}

std::shared_ptr<const ArchiveView> WholeViews::view(Ino ino) const {
  const std::scoped_lock lock(mutex_);
  const auto found = versions_.find(version_of(ino));
  return found == versions_.end() ? nullptr : found->second.view;
}

void WholeViews::note_lookup(Ino ino) {
  const std::scoped_lock lock(mutex_);
  const auto found = versions_.find(version_of(ino));
  if (found != versions_.end()) ++found->second.lookups;
}

bool WholeViews::forget(Ino ino, std::uint64_t lookups) {
  const std::scoped_lock lock(mutex_);
  const auto found = versions_.find(version_of(ino));
  if (found == versions_.end()) return false;
  Version& version = found->second;
  version.lookups -= std::min(version.lookups, lookups);
  if (version.lookups != 0 || std::next(found) == versions_.end()) return false;
  versions_.erase(found);
  return true;
}

std::vector<Ino> WholeViews::archives() const {
  std::vector<Ino> numbers;
  const std::scoped_lock lock(mutex_);
  for (const auto& [version, its] : versions_) numbers.push_back(number(version, Part::Archive));
  return numbers;
}

bool WholeViews::has_before(TensorId tensor) const {
  const std::scoped_lock lock(mutex_);
  return std::any_of(versions_.begin(), std::prev(versions_.end()), [&](const auto& version) {
    return version.second.model->ids().position(tensor).has_value();
  });
}

Result<void> WholeViews::prepare_next() {
  std::shared_ptr<ArchiveView> present;
  {
    const std::scoped_lock lock(mutex_);
    present = versions_.rbegin()->second.view;
  }
  return present->keep_head();
}

WholeViews::Versions::node_type WholeViews::next(std::shared_ptr<Model> model) const {
  auto view = std::make_shared<ArchiveView>(*model, reader_);
  Versions made;
  made[0] = {.model = std::move(model), .view = std::move(view)};
  return made.extract(made.begin());
}

void WholeViews::show(Versions::node_type next) noexcept {
  const std::scoped_lock lock(mutex_);
  next.key() = versions_.empty() ? 0 : versions_.rbegin()->first + 1;
  const auto shown = versions_.insert(std::move(next)).position;
  if (shown == versions_.begin()) return;
  const auto before = std::prev(shown);
  if (before->second.lookups == 0) versions_.erase(before);
}

}  // namespace stfs
