// Plans, compares, uploads, and checks that nothing has changed in between.
#include "tools/serve/generation_maker.h"

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

#include "core/base/name_hash.h"
#include "tools/serve/serve_protocol.h"
#include "tools/upload/difference.h"

namespace stfs::serve {
namespace {

/// Half of the protocol's limit: the generation after this one needs arenas also.
constexpr std::size_t kMostArenas = kMaxServeArenas / 2;

}  // namespace

GenerationMaker::GenerationMaker(upload::PlanRequest request, upload::UploadOptions options)
    : request_(std::move(request)), options_(std::move(options)) {
  options_.is_shareable = true;
}

Result<void> GenerationMaker::check(const Generation& generation) {
  return check_unchanged(generation.plan, generation.states);
}

std::vector<std::filesystem::path> GenerationMaker::files(const Generation& generation) {
  std::vector<std::filesystem::path> files;
  for (const auto& model : generation.plan.models) {
    if (model->has_index()) files.push_back(model->path());
    for (const Shard& shard : model->shards()) files.push_back(shard.path);
    files.push_back(state_file_of(*model));
  }
  return files;
}

Result<Generation> GenerationMaker::make(Work& work, const Generation* before) {
  return guard_memory([&]() -> Result<Generation> {
    // Asks the open files first. The files are opened again only when no process writes to them.
    if (before != nullptr) {
      RETURN_IF_ERROR(check_settled(before->plan));
    }
    Generation next;
    next.number = before != nullptr ? before->number + 1 : 1;
    auto plan = upload::make_plan(request_);
    RETURN_IF_ERROR(plan);
    next.plan = std::move(*plan);
    next.states = read_states(next.plan);
    RETURN_IF_ERROR(check_settled(next.plan));
    RETURN_IF_ERROR(check_shown(next.plan));
    const bool can_share = before != nullptr && has_same_structure(before->plan, next.plan);
    auto made = can_share ? make_next(std::move(next), work, *before) : make_whole(std::move(next), work);
    RETURN_IF_ERROR(made);
    RETURN_IF_ERROR(check_unchanged(made->plan, made->states));
    return made;
  });
}

Result<Generation> GenerationMaker::make_whole(Generation next, Work& work) {
  RETURN_IF_ERROR(check_no_receiver(next.states));
  auto resident = upload(std::move(next.plan), work);
  RETURN_IF_ERROR(resident);
  next.plan = std::move(resident->plan);
  next.report = resident->report;
  next.changed_tensors = next.plan.tensors.size();
  next.layout = whole_layout(next.plan, std::move(resident->arenas), next.number);
  return next;
}

Result<Generation> GenerationMaker::make_next(Generation next, Work& work, const Generation& before) {
  auto changed = find_changed(next, work, before);
  RETURN_IF_ERROR(changed);
  PartOfPlan part = part_to_upload(next.plan, before.layout, *changed, kMostArenas);
  std::vector<std::shared_ptr<device::Arena>> arenas;
  if (!part.positions.empty()) {
    auto resident = upload(std::move(part.plan), work);
    RETURN_IF_ERROR(resident);
    part.plan = std::move(resident->plan);
    next.report = resident->report;
    arenas = std::move(resident->arenas);
  }
  next.changed_tensors = static_cast<std::uint64_t>(std::ranges::count(*changed, true));
  next.layout = next_layout(before.layout, *changed, part, std::move(arenas), next.number);
  return next;
}

Result<std::vector<bool>> GenerationMaker::find_changed(const Generation& next, Work& work,
                                                        const Generation& before) {
  std::vector<std::vector<ArchiveChange>> changes;  // by model, then by shard
  std::vector<NameSet<std::string_view>> names(next.states.size());
  for (std::size_t at = 0; at < next.states.size(); ++at) {
    const ModelState& state = next.states[at];
    changes.push_back(changes_between(before.states[at], *next.plan.models[at], state));
    if (state.changes) names[at].insert(state.changes->tensors.begin(), state.changes->tensors.end());
  }

  std::vector<bool> changed(next.plan.tensors.size(), false);
  upload::Plan suspects;
  suspects.models = next.plan.models;
  suspects.devices = next.plan.devices;
  std::vector<std::shared_ptr<device::Arena>> arenas;
  std::vector<std::uint32_t> positions;
  for (std::uint32_t at = 0; at < next.plan.tensors.size(); ++at) {
    const upload::PlannedTensor& tensor = next.plan.tensors[at];
    const ArchiveChange change =
        changes[tensor.model][next.plan.models[tensor.model]->place(tensor.tensor).shard];
    changed[at] = change == ArchiveChange::Named && names[tensor.model].contains(tensor.name);
    if (change != ArchiveChange::Unknown) continue;
    const ServedPlace& present = before.layout.places[at];
    suspects.tensors.push_back(tensor);
    suspects.tensors.back().place = present.place;
    arenas.push_back(before.layout.arenas[present.arena].arena);
    positions.push_back(at);
  }
  if (positions.empty()) return changed;
  RETURN_IF_ERROR(check_no_receiver(next.states));
  auto differs = upload::find_different(
      suspects, arenas, {.readers = options_.readers, .open_backend = options_.open_backend}, work);
  if (!differs) {
    // A read of an archive that is being changed can fail in many ways. Report the change as the reason.
    RETURN_IF_ERROR(upload::check_unchanged(next.plan));
    return differs;
  }
  for (std::size_t at = 0; at < positions.size(); ++at) changed[positions[at]] = (*differs)[at];
  return changed;
}

Result<upload::Resident> GenerationMaker::upload(upload::Plan plan, Work& work) {
  upload::UploadOptions options = options_;
  options.work = &work;
  auto upload = upload::Upload::start(std::move(plan), options);
  RETURN_IF_ERROR(upload);
  // The upload has its own threads. This thread checks its progress, at first often, because few bytes need
  // little time.
  auto pause = std::chrono::microseconds(50);
  constexpr std::chrono::microseconds kLongestPause(2000);
  while (!(*upload)->is_done()) {
    if (work.is_stopped()) (*upload)->cancel();
    std::this_thread::sleep_for(pause);
    pause = std::min(2 * pause, kLongestPause);
  }
  return (*upload)->wait();
}

}  // namespace stfs::serve
