#include "fs/tree/snapshot.h"

namespace stfs {

Snapshot::Snapshot(std::shared_ptr<const Model> of, Layout layout)
    : model(std::move(of)), table(model->tensors(), model->ids(), layout), is_flat_(layout == Layout::Flat) {}

Snapshot::Snapshot(std::shared_ptr<const Model> of, DirectoryNumbers& numbers)
    : model(std::move(of)), table(model->tensors(), model->ids(), Layout::Tree, numbers), is_flat_(false) {}

const InodeTable& Snapshot::flat() const {
  if (is_flat_) return table;
  std::call_once(has_flat_, [this] {
    own_flat_ = std::make_unique<InodeTable>(model->tensors(), model->ids(), Layout::Flat);
  });
  return *own_flat_;
}

void Snapshot::LetGo::operator()(const Snapshot* held) const noexcept {
  // Each snapshot holds the next one. A loop needs no stack for each of them.
  while (held != nullptr && held->holders_.fetch_sub(1, std::memory_order_acq_rel) == 1) {
    const Snapshot* const next = held->next_.release();
    if (next != nullptr) next->is_oldest_ = true;
    delete held;
    held = next;
  }
}

void Snapshots::replace(std::unique_ptr<const Snapshot> next) noexcept {
  Snapshot::Pin before;  // let go without the lock
  const MutexLock lock(mutex_);
  before.reset(&**this);
  next->holders_ = 2;  // this object and before->next_
  next->is_oldest_ = false;
  before->next_.reset(next.get());
  present_.store(next.release(), std::memory_order_release);
}

}  // namespace stfs
