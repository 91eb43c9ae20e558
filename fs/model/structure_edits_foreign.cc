// Follows edits of other processes (structure_edits.h). An edit by another process moves, cuts and reuses no
// byte that this mount reads, because the mount holds the readers' byte of each archive
// (journal/file_lock.h). Therefore the new headers show everything that has changed. A program that ignores
// the locks may have changed bytes that this mount reads. In this case, and if index and shards disagree,
// the model is reopened.
#include <algorithm>
#include <chrono>
#include <map>
#include <optional>
#include <set>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "core/base/cancellation.h"
#include "core/base/name_hash.h"
#include "core/model/model_index.h"
#include "core/storage/file.h"
#include "fs/base/log.h"
#include "fs/model/mounted_model.h"

namespace stfs {
namespace {

using Turns = std::vector<std::unique_lock<CommitTurn>>;
using Headers = std::map<std::uint32_t, std::shared_ptr<const ArchiveHeader>>;

/// Locks the headers of these shards, in the order in which commits do. Busy: another process is in an edit.
Result<std::vector<ArchiveLocks>> lock_headers(const Model& model, const Committers::Shards& shards) {
  std::vector<Archive*> archives;
  for (const std::uint32_t shard : shards) archives.push_back(&model.archive(shard));
  std::ranges::sort(archives, {}, [](const Archive* archive) { return archive->real_path(); });
  std::vector<ArchiveLocks> locks;
  for (Archive* const archive : archives) {
    auto lock = ArchiveLocks::for_patch(archive->file(), archive->path(), {}, {}, std::nullopt);
    RETURN_IF_ERROR(lock);
    locks.push_back(std::move(*lock));
  }
  return locks;
}

/// True if the bytes of a tensor of an earlier header still are the bytes of one tensor, or are inside a
/// filler.
/// @param place  absolute.
bool leaves(const ArchiveHeader& now, ByteRange place) {
  if (place.size_bytes == 0) return true;
  if (place.offset < now.data_offset()) return false;
  const ByteRange data = {place.offset - now.data_offset(), place.size_bytes};
  return now.content.tensors.find(data) ||
         std::ranges::any_of(now.content.fillers, [&](ByteRange filler) { return filler.contains(data); });
}

/// Returns the header that another process has given a shard, or null if no process has. Returns an error if
/// the model must be reopened to show the change.
Result<std::shared_ptr<const ArchiveHeader>> header_to_follow(const Model& model, std::uint32_t shard) {
  Archive& archive = model.archive(shard);
  auto change = archive.check_for_change();
  RETURN_IF_ERROR(change);
  const auto lose = [&] { return fail(ErrorCode::ArchiveChanged, ESTALE, archive.path().string()); };
  if (change->is_replaced || !archive.is_as_in_file()) return lose();
  if (!change->is_broken) return nullptr;
  if (!change->header) return lose();
  const ArchiveVersion& before = model.version(shard);
  for (std::uint32_t at = 0; at < before.tensors().size(); ++at) {
    if (!leaves(*change->header, before.file_range(before.tensors()[at].data))) return lose();
  }
  for (const auto& [tensor, removed] : model.removed()) {
    if (removed.place.shard == shard && !leaves(*change->header, removed.file_range)) return lose();
  }
  return std::move(change->header);
}

bool has_form_of(const Tensor& one, const Tensor& other) {
  return one.dtype == other.dtype && std::ranges::equal(one.shape, other.shape);
}

/// Returns the tensors of the new header whose bytes have the same place and the same form as before.
std::vector<Archive::KeptTensor> left_in_place(const ArchiveVersion& before, const ArchiveHeader& now) {
  std::vector<Archive::KeptTensor> left;
  const TensorIndex& tensors = now.content.tensors;
  for (std::uint32_t at = 0; at < tensors.size(); ++at) {
    const Tensor tensor = tensors[at];
    std::optional<std::uint32_t> same = before.tensors().find(tensor.name);
    const std::uint64_t offset = now.data_offset() + tensor.data.offset;
    if (tensor.data.size_bytes != 0) {
      if (offset < before.data_offset()) continue;
      same = before.tensors().find(ByteRange{offset - before.data_offset(), tensor.data.size_bytes});
    }
    if (same && has_form_of(before.tensors()[*same], tensor))
      left.push_back({tensor.name, before.ids.of(*same)});
  }
  return left;
}

/// True if the model's index names exactly the model's tensors, each in its shard.
Result<bool> agrees_with_index(const Model& model) {
  const auto text = model.read_index();
  RETURN_IF_ERROR(text);
  const auto index = parse_model_index(*text);
  if (!index || index->size() != model.tensors().size()) return false;
  for (std::uint32_t at = 0; at < index->size(); ++at) {
    const ModelIndex::Entry entry = (*index)[at];
    const auto found = model.tensors().find(entry.tensor);
    if (!found) return false;
    const Shard& shard = model.shards()[model.place(*found).shard];
    if (shard.path.filename() != index->shards()[entry.shard]) return false;
  }
  return true;
}

bool has_id_twice(const TensorIds& ids) {
  std::set<TensorId> known;
  for (std::uint32_t at = 0; at < ids.size(); ++at) {
    if (!known.insert(ids.of(at)).second) return true;
  }
  return false;
}

}  // namespace

Result<void> StructureEdits::following(const std::function<Result<void>()>& attempt,
                                       const std::function<Followed()>& follow) const {
  constexpr std::chrono::milliseconds kBetweenLooks{2};
  const auto deadline = std::chrono::steady_clock::now() + mounted_.options_.commit.lock_patience;
  const auto is_over = [&] { return std::chrono::steady_clock::now() >= deadline; };
  for (;;) {
    const Snapshot::Pin pin = mounted_.snapshots_.pin();
    const Model* const before = &mounted_.model();
    auto done = attempt();
    if (done || done.error().code != ErrorCode::ArchiveChanged || is_over()) return done;
    auto followed = follow();
    while (followed == Followed::Unsettled && !is_over() && !Cancellation::is_end()) {
      std::this_thread::sleep_for(kBetweenLooks);
      followed = follow();
    }
    // Another thread may have followed the edit first.
    if (followed != Followed::Shown && &mounted_.model() == before) return done;
  }
}

bool StructureEdits::follows() const {
  return !mounted_.options_.is_read_only && mounted_.options_.commit.uses_locks && !mounted_.is_refused_ &&
         !mounted_.reader_.is_any_broken();
}

StructureEdits::Followed StructureEdits::follow() {
  const MutexLock structure(mutex_);
  return follow_with_mutex();
}

StructureEdits::Followed StructureEdits::follow_with_mutex() {
  const Snapshot::Pin pin = mounted_.snapshots_.pin();
  if (!follows() || !mounted_.model().check_whole("an edit")) return Followed::Lost;
  const Committers::Shards shards = shards_to_edit();
  Committers::Shards edited;
  Result<Outdated> outdated;
  {
    Turns turns;
    for (const std::uint32_t shard : shards) turns.emplace_back(mounted_.committers_.of(shard).turn);
    // The locks keep out the next edit until the index is read.
    std::vector<ArchiveLocks> locks;
    const Followed adopted = adopt_edits(shards, locks, edited);
    if (adopted != Followed::Shown) return adopted;
    outdated = guard_memory([&]() REQUIRES(mutex_) { return show_adopted(edited); });
    if (!outdated) {
      log::error("{}: edited by another program, but this mount can't show it: {}",
                 mounted_.model().path().string(), outdated.error().message);
      for (const std::uint32_t shard : edited) mounted_.reader_.note_broken(shard);
      return Followed::Lost;
    }
  }
  log::info("{}: edited by another program: the mount shows the new model, {} tensors",
            mounted_.model().path().string(), mounted_.model().tensors().size());
  mounted_.tell_outdated_(*outdated);
  mounted_.wake_janitor_();
  return Followed::Shown;
}

StructureEdits::Followed StructureEdits::adopt_edits(const Committers::Shards& shards,
                                                     std::vector<ArchiveLocks>& locks,
                                                     Committers::Shards& edited) {
  const Model& model = mounted_.model();
  auto locked = lock_headers(model, shards);
  if (!locked) return locked.error().code == ErrorCode::Busy ? Followed::Unsettled : Followed::Lost;
  locks = std::move(*locked);
  const auto has_dead_commit = [&](std::uint32_t shard) { return model.archive(shard).has_dead_commit(); };
  if (std::ranges::any_of(shards, has_dead_commit)) {
    // A process has died in a commit, which may have changed several shards.
    locks.clear();
    for (const std::uint32_t shard : shards) {
      if (!model.archive(shard).finish_dead_commits()) return Followed::Lost;
    }
    return Followed::Unsettled;
  }
  Headers headers;
  for (const std::uint32_t shard : shards) {
    auto header = header_to_follow(model, shard);
    if (!header) return Followed::Lost;
    if (*header) headers.emplace(shard, std::move(*header));
  }
  for (const auto& [shard, header] : headers) {
    edited.insert(shard);
    mounted_.committers_.of(shard).retire_journal();
    const auto adopt = [&archive = model.archive(shard), &now = header] {
      return archive.adopt_edit(now, left_in_place(*archive.version(), *now));
    };
    if (guard_memory(adopt)) continue;
    for (const std::uint32_t broken : edited) mounted_.reader_.note_broken(broken);
    return Followed::Lost;
  }
  return headers.empty() ? Followed::Nothing : Followed::Shown;
}

Result<Outdated> StructureEdits::show_adopted(const Committers::Shards& edited) {
  const Model& before = mounted_.model();  // pinned
  const bool is_index_changed = before.is_index_changed();
  // A tensor that has another place now, with the same name and form, keeps its id. Another tensor may be in
  // its old place.
  const auto next_model = [&](bool keeps_names) {
    const auto id_of_new = [&](std::string_view name) {
      const auto same = keeps_names ? before.find(name) : std::nullopt;
      return same ? *same : mounted_.give_id();
    };
    return before.next({.id_of_new = id_of_new,
                        .is_open = [](TensorId) { return true; },
                        .end_of_ids = [this] { return mounted_.next_id_.load(); }});
  };
  auto next = next_model(true);
  const auto is_another = [&](const Model& model) {
    for (std::uint32_t at = 0; at < model.ids().size(); ++at) {
      const TensorId tensor = model.ids().of(at);
      const bool is_known = before.ids().position(tensor).has_value();
      if (is_known && !has_form_of(before.tensor(tensor), model.tensors()[at])) return true;
    }
    return has_id_twice(model.ids());
  };
  if (next && is_another(**next)) next = next_model(false);
  RETURN_IF_ERROR(next);
  if (before.has_index()) {
    const auto agrees = agrees_with_index(**next);
    RETURN_IF_ERROR(agrees);
    if (!*agrees) return fail(ErrorCode::InvalidArgument, EINVAL, "its index and its shards disagree");
  }
  if (is_index_changed) has_new_index_ = true;
  // The tensors that were deleted or renamed.
  std::vector<TensorId> changed;
  for (std::uint32_t at = 0; at < before.ids().size(); ++at) {
    const TensorId tensor = before.ids().of(at);
    const bool stays =
        (*next)->ids().position(tensor) && (*next)->tensor(tensor).name == before.tensor(tensor).name;
    if (!stays) changed.push_back(tensor);
  }
  Outdated found;
  const InodeTable& names = mounted_.tree_.table();  // pinned
  std::set<Ino> directories = {kRootIno};
  for (const TensorId tensor : changed) {
    for (auto& [directory, name] : mounted_.views_.drop_names(tensor))
      found.entries.emplace_back(mounted_.space_.in_mount(directory), std::move(name));
    const Ino ino = InodeTable::ino_of_tensor(tensor);
    if (!names.exists(ino)) continue;
    directories.insert(names.parent(ino));
    found.entries.emplace_back(mounted_.space_.in_mount(names.parent(ino)), names.file_name(ino));
  }
  for (const FixedEntry& entry : Views::kEntries) {
    if (Views::whole(entry.ino)) found.entries.emplace_back(mounted_.space_.in_mount(kHiddenIno), entry.name);
  }
  show(std::move(*next), true);
  // Tensors with new bytes may have left their places.
  mounted_.reader_.wait_for_readers();
  const InodeTable& after = mounted_.tree_.table();
  for (std::uint32_t at = 0; at < mounted_.model().ids().size(); ++at) {
    const Ino ino = InodeTable::ino_of_tensor(mounted_.model().ids().of(at));
    if (!names.exists(ino) || names.parent(ino) != after.parent(ino)) directories.insert(after.parent(ino));
  }
  for (const std::uint32_t shard : edited) {
    mounted_.states_.note_foreign_change(shard, mounted_.model().reader(shard).identity().mtime_ns);
    mounted_.tell_stale_(mounted_.stale_shard(shard, Stale::What::Content));
  }
  for (const TensorId tensor : changed)
    found.stale.push_back(mounted_.stale(InodeTable::ino_of_tensor(tensor), Stale::What::Attributes));
  for (const Ino directory : directories) {
    if (names.exists(directory)) found.stale.push_back(mounted_.stale(directory, Stale::What::Content));
  }
  found.stale.push_back(mounted_.stale(Views::kNpy, Stale::What::Content));
  found.stale.push_back(mounted_.stale(Views::kFloat32, Stale::What::Content));
  return found;
}

}  // namespace stfs
