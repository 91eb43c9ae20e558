// Keeps the stages of one archive, and the journal that they lie in.
#include "core/commit/transaction.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "core/commit/commit_protocol.h"

namespace stfs {

Result<Staging*> Transaction::stage(TensorId tensor) {
  return guard_memory([&] { return begin_stage(tensor); });
}

Result<Staging*> Transaction::begin_stage(TensorId tensor) {
  if (auto opened = archive_.open_for_writing(); !opened) return pass_on(std::move(opened));
  if (!journal_) {
    const bool is_kept = archive_.lane_journal().is_ready();
    auto journal = Journal::create(archive_.storage(), archive_.real_path(),
                                   is_kept ? Journal::Place::Memory : Journal::Place::Disk);
    if (!journal) return pass_on(std::move(journal));
    journal_ = std::move(*journal);
  }
  const auto found = stages_.find(tensor);
  if (found != stages_.end()) return found->second.get();
  auto stage = std::make_unique<Staging>(*journal_, version_->file_range(tensor));
  return stages_.emplace(tensor, std::move(stage)).first->second.get();
}

void Transaction::drop(TensorId tensor) {
  stages_.erase(tensor);
  // An empty journal is no loss, and a journal that a failed sync has spoiled must not outlive its stages.
  if (stages_.empty()) journal_.reset();
}

bool Transaction::is_dirty() const {
  return std::ranges::any_of(stages_, [](const auto& entry) { return entry.second->is_dirty(); });
}

Result<void> Transaction::commit(const CommitOptions& options, const LockOf& lock_of) {
  return guard_memory([&] {
    CommitProtocol protocol;
    protocol.add(*this, options, lock_of);
    return protocol.commit();
  });
}

Result<void> Transaction::check_sizes() const {
  for (const auto& [id, stage] : stages_) {
    if (stage->is_whole()) continue;
    const Tensor tensor = version_->tensor(id);
    return fail(
        ErrorCode::WrongSize, EINVAL,
        fmt::format("tensor \"{}\": {} bytes were written, {} {} needs {}", tensor.name, stage->size_bytes(),
                    name_of(tensor.dtype), shape_text(tensor.shape), tensor.data.size_bytes));
  }
  return {};
}

}  // namespace stfs
