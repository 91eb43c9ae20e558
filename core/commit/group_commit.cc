// Runs the steps of several transactions side by side, in the order of the archives' paths.
#include "core/commit/group_commit.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/journal/coordinator.h"

namespace stfs {

void GroupCommit::add(Transaction& transaction, const CommitOptions& options,
                      const Transaction::LockOf& lock_of) {
  parts_.push_back({&transaction, &options, &lock_of, {}});
}

Result<void> GroupCommit::commit() {
  return guard_memory([this] { return commit_unguarded(); });
}

Result<void> GroupCommit::commit_unguarded() {
  std::ranges::sort(parts_, {}, [](const Part& part) { return part.transaction->archive_.real_path(); });
  for (Part& part : parts_) {
    auto prepared = part.transaction->prepare(*part.options, *part.lock_of);
    if (!prepared) return pass_on(std::move(prepared));
    part.prepared = std::move(*prepared);
  }
  std::vector<Part*> changed;
  for (Part& part : parts_) {
    if (!part.prepared.ranges.empty()) changed.push_back(&part);
  }
  if (changed.size() > 1) {
    if (auto committed = commit_several(std::move(changed)); !committed) return committed;
  } else if (changed.size() == 1) {
    Part& part = *changed.front();
    if (auto sealed = part.transaction->seal(part.prepared, *part.options); !sealed) return sealed;
    if (auto published = part.transaction->publish(part.prepared, *part.options); !published)
      return published;
    if (auto finished = part.transaction->finish(std::move(part.prepared), *part.options); !finished)
      return finished;
  }
  for (Part& part : parts_) {
    if (part.transaction->is_empty()) continue;
    if (auto finished = part.transaction->finish({}, *part.options); !finished) return finished;
  }
  return {};
}

Result<void> GroupCommit::commit_several(std::vector<Part*> parts) {
  Archive& first = parts.front()->transaction->archive_;
  const std::filesystem::path directory = first.real_path().parent_path();
  for (const Part* part : parts) {
    const std::filesystem::path& path = part->transaction->archive_.real_path();
    if (path.parent_path() == directory) continue;
    return fail(ErrorCode::InvalidArgument, EOPNOTSUPP,
                fmt::format("{} and {} lie in different directories: one transaction can't span them",
                            first.real_path().string(), path.string()));
  }
  auto coordinator = Coordinator::create(first.storage(), first.real_path());
  if (!coordinator) return pass_on(std::move(coordinator));
  const Durability durability = first.durability(parts.front()->options->durability);

  // Seal all journals before any is published: a full disk fails here, before any file has a name.
  std::vector<std::string> journals;
  for (const Part* part : parts) {
    auto sealed = part->transaction->seal(part->prepared, *part->options, coordinator->name());
    if (!sealed) return sealed;
    journals.push_back(part->transaction->journal_->path().filename().string());
  }
  if (auto sealed = coordinator->seal(journals, durability); !sealed) return sealed;

  std::vector<Transaction*> published;
  published.reserve(parts.size());
  Result<void> done;
  for (auto part = parts.begin(); done && part != parts.end(); ++part) {
    done = (*part)->transaction->publish((*part)->prepared, *(*part)->options);
    if (done) published.push_back((*part)->transaction);
  }
  if (done) done = coordinator->publish(durability);
  if (!done) {
    const bool is_unknown = done.error().code == ErrorCode::CommitUnknown;
    for (Transaction* transaction : published) {
      // If the coordinator may exist after a crash, its journals must exist too.
      if (is_unknown) {
        transaction->archive_.stop_writing(done.error(), transaction->journal_->path());
      } else {
        transaction->journal_->take_back(durability);
      }
    }
    return done;
  }

  for (Part* part : parts) {
    auto finished = part->transaction->finish(std::move(part->prepared), *part->options);
    if (!finished && done) done = std::move(finished);
  }
  // After a failure the coordinator stays: the journals that are left are committed by it. A coordinator
  // without journals says nothing, so failing to remove it is no error: recovery removes it.
  if (done) static_cast<void>(coordinator->remove());
  return done;
}

}  // namespace stfs
