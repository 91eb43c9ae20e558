#include "fs/read/views.h"

#include <fmt/format.h>

#include <algorithm>
#include <climits>
#include <utility>

#include "core/base/mutex.h"
#include "core/storage/attribute_names.h"
#include "fs/base/log.h"

namespace stfs {
namespace {

constexpr std::size_t kMostSlices = 1024;  // that the kernel may know; more only while they are open

tl::unexpected<Error> not_found() {
  return fail(ErrorCode::NotFound, ENOENT, "no such view");
}

bool is_float32(Ino ino) {
  return ino >= Views::kFloat32Files && ino < Views::kCounted;
}

TensorId tensor_from(Ino ino, Ino first) {
  return TensorId{static_cast<std::uint32_t>(ino - first)};
}

/// Extracts the tensor's flat file name from a view's name, or returns nothing if the view's name contains
/// none. Does not undo the cutting of names that `.npy` makes too long.
std::optional<std::string_view> flat_name_in(Ino directory, std::string_view name) {
  if (directory == Views::kSlice) {
    const auto parts = split_slice_name(name);
    return parts ? std::optional(parts->tensor) : std::nullopt;
  }
  return without_npy_suffix(name);
}

}  // namespace

Views::Views(const Snapshots& snapshots, const UnservedTensors& unserved, const TensorReader& reader,
             Activity& activity, const UserLimits& limits)
    : snapshots_(snapshots),
      unserved_(unserved),
      reader_(reader),
      whole_(snapshots->model, reader_, kNpy),
      stats_(kStatsFiles, "states of stats.json that programs have open", limits.texts),
      logs_(kLogFiles, "states of the log that programs have open", limits.texts),
      activity_(activity),
      marks_(snapshots->model->ids().end()),
      counts_("slices that programs have open", limits.slices) {}

bool Views::shows(TensorId tensor) const {
  if (whole_.has_before(tensor)) return true;
  const MutexLock lock(mutex_);
  return std::ranges::any_of(slices_,
                             [&](const auto& slice) { return slice.second.view->tensor() == tensor; });
}

std::vector<std::pair<Ino, std::string>> Views::drop_names(TensorId tensor) {
  std::vector<std::pair<Ino, std::string>> entries;
  const std::uint8_t marks = marks_[number_of(tensor)];
  if ((marks & (kNpyName | kFloat32Name)) != 0) {
    const std::string name = snapshots_->view_names.npy_name(tensor);
    if ((marks & kNpyName) != 0) entries.emplace_back(kNpy, name);
    if ((marks & kFloat32Name) != 0) entries.emplace_back(kFloat32, name);
  }
  const MutexLock lock(mutex_);
  for (auto named = slice_names_.begin(); named != slice_names_.end();) {
    const bool is_its = slices_.at(named->second).view->tensor() == tensor;
    if (is_its) entries.emplace_back(kSlice, named->first);
    named = is_its ? slice_names_.erase(named) : std::next(named);
  }
  return entries;
}

std::string_view Views::kind(Ino ino) {
  if (is_npy(ino)) return kNpyView;
  if (is_float32(ino)) return kFloat32View;
  if (is_archive(ino)) return kArchiveView;
  return is_counted(ino) && remade_entry(ino) == 0 ? kSliceView : kDocumentView;
}

bool Views::exists(Ino ino) const {
  if (is_npy(ino) || is_float32(ino)) {
    const Model& model = *snapshots_->model;
    const TensorId tensor = tensor_from(ino, is_npy(ino) ? kNpyFiles : kFloat32Files);
    if (!model.has(tensor)) return false;
    return is_npy(ino) ? ViewNames::has_npy(model.tensor(tensor))
                       : ViewNames::has_float32(model.tensor(tensor));
  }
  if (whole(ino)) return whole_.view(ino) != nullptr;
  if (!is_counted(ino)) return is_directory(ino);
  if (const auto* texts = this->texts(ino)) return texts->exists(ino);
  const MutexLock lock(mutex_);
  return slices_.contains(ino);
}

Node Views::node(Ino ino) const {
  if (!exists(ino)) return {};
  return {.ino = ino, .kind = is_directory(ino) ? Node::Kind::ViewDirectory : Node::Kind::View};
}

Result<Ino> Views::find_top(std::string_view name) {
  const auto entry = std::ranges::find(kEntries, name, &FixedEntry::name);
  if (entry == kEntries.end()) return not_found();
  if (entry->ino == kLog) return logs_.make(log::recent_lines());
  return entry->ino == kStatsJson ? make_stats() : present(entry->ino);
}

Result<Ino> Views::find(Ino directory, std::string_view name) {
  auto found = directory == kSlice ? find_slice(name) : find_tensor(directory, name);
  if (found || found.error().code != ErrorCode::NotFound) return found;
  const auto flat = flat_name_in(directory, name);
  const auto* const unserved = flat ? unserved_.find_flat(*flat) : nullptr;
  return unserved != nullptr ? Result<Ino>(unserved_.why_missing(unserved)) : found;
}

Result<Ino> Views::find_tensor(Ino directory, std::string_view name) {
  const auto tensor = snapshots_->view_names.tensor_of_npy(name);
  if (!tensor) return not_found();
  const Tensor found = snapshots_->model->tensor(*tensor);
  if (!(directory == kNpy ? ViewNames::has_npy(found) : ViewNames::has_float32(found))) return not_found();
  if (directory == kNpy) return kNpyFiles + number_of(*tensor);
  return kFloat32Files + number_of(*tensor);
}

Result<Ino> Views::find_slice(std::string_view name) {
  const auto parts = split_slice_name(name);
  if (!parts) return not_found();
  const auto tensor = snapshots_->view_names.tensor_of_flat(parts->tensor);
  if (!tensor) return not_found();
  const MutexLock lock(mutex_);
  const auto known = slice_names_.find(name);
  if (known != slice_names_.end()) {
    KnownSlice& found = slices_.at(known->second);
    ++found.lookups;
    // The slice has left the queue if the kernel was asked to forget it but kept it, for example because it
    // was open.
    if (!std::exchange(found.is_queued, true)) queue_.push_back(known->second);
    return known->second;
  }
  auto view = TensorView::slice(*parts, *tensor, snapshots_->model->tensor(*tensor));
  RETURN_IF_ERROR(view);
  auto share = counts_.take(requesting_user());
  RETURN_IF_ERROR(share);
  const Ino ino = next_slice_++;
  KnownSlice& made = slices_[ino];
  made.share = std::move(*share);
  made.lookups = 1;
  made.name = name;
  made.view = std::make_shared<const TensorView>(std::move(*view));
  slice_names_.emplace(made.name, ino);
  made.is_queued = true;
  queue_.push_back(ino);
  return ino;
}

Result<Ino> Views::make_stats() {
  std::size_t open_slices = 0;
  {
    const MutexLock lock(mutex_);
    open_slices = slice_names_.size();
  }
  const Model& model = *snapshots_->model;
  Activity::State state{.tensors = model.ids().size(), .open_slices = open_slices, .is_broken = is_broken_};
  constexpr std::size_t kMostHot = 5;
  for (const auto& [tensor, share] : reader_.recent_reads().hottest(kMostHot)) {
    if (model.ids().position(tensor))  // it is not deleted
      state.hot_tensors.push_back({std::string(model.tensor(tensor).name.substr(0, NAME_MAX)), share});
  }
  const auto made = std::make_shared<const Activity::Report>(activity_.report(state));
  return stats_.make({std::shared_ptr<const std::string>(made, &made->text)},
                     [this, made] { activity_.note_report_read(*made); });
}

bool Views::forget(Ino ino, std::uint64_t lookups) {
  if (whole(ino)) return whole_.forget(ino, lookups);
  if (is_stats(ino)) stats_.forget(ino, lookups);
  if (is_log(ino)) logs_.forget(ino, lookups);
  if (!is_counted(ino)) return false;
  const MutexLock lock(mutex_);
  const auto found = slices_.find(ino);
  if (found == slices_.end()) return false;
  KnownSlice& slice = found->second;
  slice.lookups -= std::min(slice.lookups, lookups);
  if (slice.lookups != 0) return false;
  // Another slice may have this name now: a slice of a tensor that was added after this tensor was deleted.
  if (const auto named = slice_names_.find(slice.name); named != slice_names_.end() && named->second == ino)
    slice_names_.erase(named);
  slices_.erase(found);
  return true;
}

std::optional<std::string> Views::slice_to_forget() {
  const MutexLock lock(mutex_);
  while (queue_.size() > kMostSlices) {
    const auto oldest = slices_.find(queue_.front());
    queue_.pop_front();
    if (oldest == slices_.end()) continue;
    oldest->second.is_queued = false;
    return oldest->second.name;
  }
  return std::nullopt;
}

void Views::visit_known(const std::function<void(Ino directory, std::string_view name)>& visit) const {
  const Snapshot& shown = *snapshots_;
  const TensorIds& ids = shown.model->ids();
  for (std::uint32_t position = 0; position < ids.size(); ++position) {
    const TensorId tensor = ids.of(position);
    const std::uint8_t marks = marks_[number_of(tensor)];
    if ((marks & kNpyName) != 0) visit(kNpy, shown.view_names.npy_name(tensor));
    if ((marks & kFloat32Name) != 0) visit(kFloat32, shown.view_names.npy_name(tensor));
  }
  const MutexLock lock(mutex_);
  for (const auto& [name, ino] : slice_names_) visit(kSlice, name);
}

void Views::list(Ino directory, std::uint64_t position, const VisitEntry& visit) const {
  const Snapshot& shown = *snapshots_;
  const bool is_npy = directory == kNpy;
  const std::vector<TensorId>* const some = directory == kFloat32 ? &shown.view_names.floating()
                                            : is_npy && shown.view_names.in_npy()
                                                ? &*shown.view_names.in_npy()
                                                : nullptr;
  const std::size_t count = some != nullptr ? some->size() : is_npy ? shown.model->ids().size() : 0;
  visit_entries(directory, kHiddenIno, count, position, visit, [&](std::size_t at) {
    const TensorId tensor =
        some != nullptr ? (*some)[at] : shown.model->ids().of(static_cast<std::uint32_t>(at));
    return std::pair(shown.view_names.npy_name(tensor),
                     (is_npy ? kNpyFiles : kFloat32Files) + number_of(tensor));
  });
}

std::shared_ptr<const TensorView> Views::slice_of(Ino ino) const {
  if (!is_counted(ino)) return nullptr;
  const MutexLock lock(mutex_);
  const auto found = slices_.find(ino);
  return found == slices_.end() ? nullptr : found->second.view;
}

std::shared_ptr<const TensorView> Views::tensor_view(Ino ino) const {
  if (!is_npy(ino) && !is_float32(ino)) return slice_of(ino);
  const TensorId id = *tensor(ino);
  const Tensor shown = snapshots_->model->tensor(id);
  return std::make_shared<const TensorView>(is_npy(ino) ? TensorView::npy(id, shown)
                                                        : TensorView::float32(id, shown));
}

std::optional<TensorId> Views::tensor(Ino ino) const {
  if (is_npy(ino)) return tensor_from(ino, kNpyFiles);
  if (is_float32(ino)) return tensor_from(ino, kFloat32Files);
  const auto slice = slice_of(ino);
  return slice ? std::optional(slice->tensor()) : std::nullopt;
}

std::optional<std::vector<std::uint64_t>> Views::slice_shape(Ino ino) const {
  const auto slice = slice_of(ino);
  return slice ? std::optional(slice->slice_shape()) : std::nullopt;
}

std::string Views::path(Ino ino) const {
  const Ino remade = remade_entry(ino);
  for (const FixedEntry& entry : kEntries) {
    if (entry.ino == ino || entry.ino == remade || (whole(ino) && whole(ino) == whole(entry.ino)))
      return std::string(entry.name);
  }
  const Snapshot& shown = *snapshots_;
  if (is_npy(ino) || is_float32(ino)) {
    const TensorId tensor = tensor_from(ino, is_npy(ino) ? kNpyFiles : kFloat32Files);
    const bool is_there = shown.model->ids().position(tensor).has_value();
    return fmt::format("{}/{}", is_npy(ino) ? "npy" : "float32",
                       is_there ? shown.view_names.npy_name(tensor) : std::string("(deleted)"));
  }
  const MutexLock lock(mutex_);
  const auto found = slices_.find(ino);
  return fmt::format("slice/{}", found == slices_.end() ? std::string() : found->second.name);
}

Result<std::uint64_t> Views::size_bytes(Ino ino) const {
  if (whole(ino)) return whole_.size_bytes(ino);
  if (const auto* texts = this->texts(ino)) return texts->size_bytes(ino);
  mark(ino, {});
  const auto view = tensor_view(ino);
  return view ? view->size_bytes() : Result<std::uint64_t>(not_found());
}

Result<Bytes> Views::read(Ino ino, std::uint64_t offset, std::size_t wanted_bytes) {
  const auto size = size_bytes(ino);
  RETURN_IF_ERROR(size);
  if (offset >= *size) return Bytes();
  const ByteRange range{offset, std::min<std::uint64_t>(wanted_bytes, *size - offset)};
  if (const auto* texts = this->texts(ino)) return texts->read(ino, range);
  mark(ino, range);
  if (whole(ino)) return whole_.read(ino, range);
  const auto view = tensor_view(ino);
  return view ? view->read(range, reader_) : not_found();
}

void Views::mark(Ino ino, ByteRange range) const {
  if (is_npy(ino)) {
    marks_[ino - kNpyFiles] |= kNpyMark | kNpyName;
  } else if (is_float32(ino)) {
    marks_[ino - kFloat32Files] |= kFloat32Mark | kFloat32Name;
  } else if (const auto view = is_archive(ino) ? whole_.view(ino) : nullptr) {
    view->for_each_tensor(range, [this](TensorId tensor) { marks_[number_of(tensor)] |= kArchiveMark; });
  }
}

void Views::note_told(Ino ino) const {
  if (is_npy(ino)) marks_[ino - kNpyFiles] |= kNpyName;
  if (is_float32(ino)) marks_[ino - kFloat32Files] |= kFloat32Name;
}

std::vector<Stale> Views::told(TensorId first, TensorId last) const {
  std::vector<Stale> told;
  const auto add = [&told](Ino ino) { told.push_back(Stale::one(ino, Stale::What::Attributes)); };
  for (std::uint32_t number = number_of(first); number <= number_of(last); ++number) {
    const std::uint8_t marks = marks_[number];
    if ((marks & kNpyName) != 0) add(kNpyFiles + number);
    if ((marks & kFloat32Name) != 0) add(kFloat32Files + number);
  }
  return told;
}

std::vector<Stale> Views::stale(TensorId first, TensorId last) {
  std::vector<Stale> stale;
  const auto add = [&stale](Ino ino) { stale.push_back(Stale::one(ino, Stale::What::Content)); };
  std::uint8_t all = 0;
  for (std::uint32_t number = number_of(first); number <= number_of(last); ++number) {
    constexpr std::uint8_t kNames = kNpyName | kFloat32Name;
    if ((marks_[number].load() & ~kNames) == 0) continue;
    const std::uint8_t marks = marks_[number].fetch_and(kNames);
    if ((marks & kNpyMark) != 0) add(kNpyFiles + number);
    if ((marks & kFloat32Mark) != 0) add(kFloat32Files + number);
    all |= marks;
  }
  if ((all & kArchiveMark) != 0) {
    for (const Ino archive : whole_.archives()) add(archive);
  }
  if (is_broken_) add(present(kHeaderJson));
  const MutexLock lock(mutex_);
  for (const auto& [ino, slice] : slices_) {
    if (slice.view->tensor() >= first && slice.view->tensor() <= last) add(ino);
  }
  return stale;
}

}  // namespace stfs
