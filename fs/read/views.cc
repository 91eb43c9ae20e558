// Finds, lists and reads views.
#include "fs/read/views.h"

#include <algorithm>
#include <utility>

#include "core/storage/attribute_names.h"
#include "core/tensor/float_conversion.h"
#include "core/tensor/npy_writer.h"
#include "fs/read/views_float32.h"

namespace stfs {
namespace {

constexpr std::size_t kMostSlices = 1024;  // that the kernel may know; more only while they are open

tl::unexpected<Error> not_found() {
  return fail(ErrorCode::NotFound, ENOENT, "no such view");
}

bool is_npy(Ino ino) {
  return ino >= Views::kNpyFiles && ino < Views::kFloat32Files;
}

bool is_float32(Ino ino) {
  return ino >= Views::kFloat32Files && ino < Views::kCounted;
}

TensorId tensor_from(Ino ino, Ino first) {
  return TensorId{static_cast<std::uint32_t>(ino - first)};
}

Result<Bytes> part_of(std::string_view text, ByteRange range) {
  const auto part =
      std::as_bytes(std::span(text))
          .subspan(static_cast<std::size_t>(range.offset), static_cast<std::size_t>(range.size_bytes));
  return Bytes(std::vector<std::byte>(part.begin(), part.end()));
}

/// Extracts the tensor's flat file name from a view's name, or returns nothing if the view's name contains
/// none. Does not undo the cutting of names that `.npy` makes too long.
std::optional<std::string_view> flat_name_in(Ino directory, std::string_view name) {
  if (directory == Views::kSlice) {
    const auto parts = split_slice_name(name);
    return parts ? std::optional(parts->tensor) : std::nullopt;
  }
  constexpr std::string_view kNpySuffix = ".npy";
  if (!name.ends_with(kNpySuffix)) return std::nullopt;
  return name.substr(0, name.size() - kNpySuffix.size());
}

}  // namespace

Views::Views(const Model& model, const TensorTree& tree, Layout layout, ViewSource source, Activity& activity)
    : model_(model),
      unserved_(tree.unserved()),
      names_(model, tree.table(), layout),
      source_(std::move(source)),
      whole_(model_, source_),
      activity_(activity),
      marks_(model.ids().end()) {
  const TensorIndex& tensors = model.tensors();
  for (std::uint32_t position = 0; position < tensors.size(); ++position) {
    if (is_floating(tensors[position].dtype)) floating_.push_back(model.ids().of(position));
  }
}

std::string_view Views::kind(Ino ino) {
  if (is_npy(ino)) return kNpyView;
  if (is_float32(ino)) return kFloat32View;
  if (ino == kArchive) return kArchiveView;
  return is_counted(ino) && !is_stats(ino) ? kSliceView : kDocumentView;
}

bool Views::exists(Ino ino) const {
  if (is_npy(ino)) return model_.ids().position(tensor_from(ino, kNpyFiles)).has_value();
  if (is_float32(ino)) {
    const auto position = model_.ids().position(tensor_from(ino, kFloat32Files));
    return position && is_floating(model_.tensors()[*position].dtype);
  }
  if (!is_counted(ino)) return ino >= kNpy && ino <= kArchive;
  const std::scoped_lock lock(mutex_);
  return counted_.contains(ino);
}

Node Views::node(Ino ino) const {
  if (!exists(ino)) return {};
  return {.ino = ino, .kind = is_directory(ino) ? Node::Kind::ViewDirectory : Node::Kind::View};
}

Result<Ino> Views::find_top(std::string_view name) {
  const auto entry = std::ranges::find(kEntries, name, &FixedEntry::name);
  if (entry == kEntries.end()) return not_found();
  return entry->ino == kStatsJson ? add_stats() : entry->ino;
}

Result<Ino> Views::find(Ino directory, std::string_view name) {
  auto found = directory == kSlice ? find_slice(name) : find_tensor(directory, name);
  if (found || found.error().code != ErrorCode::NotFound) return found;
  const auto flat = flat_name_in(directory, name);
  const auto* const unserved = flat ? unserved_.find_flat(*flat) : nullptr;
  return unserved != nullptr ? Result<Ino>(unserved_.why_missing(unserved)) : found;
}

Result<Ino> Views::find_tensor(Ino directory, std::string_view name) {
  const auto tensor = names_.tensor_of_npy(name);
  if (!tensor) return not_found();
  if (directory == kNpy) return kNpyFiles + number_of(*tensor);
  if (!is_floating(model_.tensor(*tensor).dtype)) return not_found();
  return kFloat32Files + number_of(*tensor);
}

Result<Ino> Views::find_slice(std::string_view name) {
  const auto parts = split_slice_name(name);
  if (!parts) return not_found();
  const auto tensor = names_.tensor_of_flat(parts->tensor);
  if (!tensor) return not_found();
  const std::scoped_lock lock(mutex_);
  const auto known = slices_.find(name);
  if (known != slices_.end()) {
    Counted& found = counted_.at(known->second);
    ++found.lookups;
    // The slice has left the queue if the kernel was asked to forget it and did not, for it was open perhaps.
    if (!std::exchange(found.is_queued, true)) queue_.push_back(known->second);
    return known->second;
  }
  auto file = slice_file(*parts, *tensor, model_.tensor(*tensor));
  if (!file) return pass_on(std::move(file));
  const Ino ino = next_slice_++;
  Counted& made = counted_[ino];
  made.lookups = 1;
  made.name = name;
  made.slice = std::make_shared<const SliceFile>(std::move(*file));
  slices_.emplace(made.name, ino);
  made.is_queued = true;
  queue_.push_back(ino);
  return ino;
}

Ino Views::add_stats() {
  const std::scoped_lock lock(mutex_);
  Counted& made = counted_[next_stats_];
  made.lookups = 1;
  made.stats = std::make_shared<const Activity::Snapshot>(
      activity_.take_snapshot(model_.tensors().size(), slices_.size(), is_broken_));
  return next_stats_++;
}

void Views::forget(Ino ino, std::uint64_t lookups) {
  if (!is_counted(ino)) return;
  const std::scoped_lock lock(mutex_);
  const auto found = counted_.find(ino);
  if (found == counted_.end()) return;
  Counted& file = found->second;
  file.lookups -= std::min(file.lookups, lookups);
  if (file.lookups != 0) return;
  if (file.slice) slices_.erase(file.name);
  counted_.erase(found);
}

std::optional<std::string> Views::slice_to_forget() {
  const std::scoped_lock lock(mutex_);
  while (queue_.size() > kMostSlices) {
    const auto oldest = counted_.find(queue_.front());
    queue_.pop_front();
    if (oldest == counted_.end()) continue;
    oldest->second.is_queued = false;
    return oldest->second.name;
  }
  return std::nullopt;
}

void Views::visit_known(const std::function<void(Ino directory, std::string_view name)>& visit) const {
  for (std::uint32_t number = 0; number < marks_.size(); ++number) {
    const std::uint8_t marks = marks_[number];
    if ((marks & kNpyName) != 0) visit(kNpy, names_.npy_name(TensorId{number}));
    if ((marks & kFloat32Name) != 0) visit(kFloat32, names_.npy_name(TensorId{number}));
  }
  const std::scoped_lock lock(mutex_);
  for (const auto& [name, ino] : slices_) visit(kSlice, name);
}

void Views::list(Ino directory, std::uint64_t position, const VisitEntry& visit) const {
  const bool is_npy = directory == kNpy;
  const std::size_t count = is_npy ? model_.tensors().size() : directory == kFloat32 ? floating_.size() : 0;
  visit_entries(directory, kHiddenIno, count, position, visit, [&](std::size_t at) {
    const TensorId tensor = is_npy ? model_.ids().of(static_cast<std::uint32_t>(at)) : floating_[at];
    return std::pair(names_.npy_name(tensor), (is_npy ? kNpyFiles : kFloat32Files) + number_of(tensor));
  });
}

std::shared_ptr<const SliceFile> Views::slice_of(Ino ino) const {
  if (!is_counted(ino)) return nullptr;
  const std::scoped_lock lock(mutex_);
  const auto found = counted_.find(ino);
  return found == counted_.end() ? nullptr : found->second.slice;
}

std::optional<TensorId> Views::tensor(Ino ino) const {
  if (is_npy(ino)) return tensor_from(ino, kNpyFiles);
  if (is_float32(ino)) return tensor_from(ino, kFloat32Files);
  const auto slice = slice_of(ino);
  return slice ? std::optional(slice->tensor) : std::nullopt;
}

std::optional<std::vector<std::uint64_t>> Views::slice_shape(Ino ino) const {
  const auto slice = slice_of(ino);
  return slice ? std::optional(slice->slice.shape) : std::nullopt;
}

std::string Views::head_of(Ino ino) const {
  const Tensor tensor = model_.tensor(*this->tensor(ino));
  return is_float32(ino) ? float32_header(tensor)
                         : npy_header(npy_form(tensor.dtype, tensor.shape, tensor.data.size_bytes));
}

Result<std::uint64_t> Views::size_bytes(Ino ino) const {
  if (ino == kHeaderJson) return whole_.header_json_bytes();
  if (ino == kMetadataJson) return whole_.metadata_json().size();
  if (ino == kArchive) return whole_.size_bytes();
  if (is_stats(ino)) {
    const auto stats = stats_of(ino);
    if (!stats) return not_found();
    return stats->text.size();
  }
  mark(ino, {});
  if (is_counted(ino)) {
    const auto slice = slice_of(ino);
    if (!slice) return not_found();
    return slice->size_bytes();
  }
  const Tensor tensor = model_.tensor(*this->tensor(ino));
  const std::uint64_t data =
      is_float32(ino) ? element_count(tensor.shape) * sizeof(float) : tensor.data.size_bytes;
  return head_of(ino).size() + data;
}

Result<Bytes> Views::read(Ino ino, std::uint64_t offset, std::size_t wanted_bytes) {
  const auto size = size_bytes(ino);
  if (!size) return tl::unexpected(size.error());
  if (offset >= *size) return Bytes();
  const ByteRange range{offset, std::min<std::uint64_t>(wanted_bytes, *size - offset)};
  if (ino == kHeaderJson) return whole_.read_header_json(range);
  if (ino == kMetadataJson) return part_of(whole_.metadata_json(), range);
  if (is_stats(ino)) {
    const auto stats = stats_of(ino);
    if (!stats) return not_found();
    activity_.note_snapshot_read(*stats);
    return part_of(stats->text, range);
  }
  mark(ino, range);
  if (ino == kArchive) return whole_.read(range);
  const auto slice = slice_of(ino);
  const std::string head = slice ? slice->head : head_of(ino);
  const ByteRange in_head = range.intersection({0, head.size()});
  const TensorId tensor = *this->tensor(ino);
  if (in_head.empty() && !is_float32(ino) && (!slice || slice->slice.is_contiguous())) {
    const std::uint64_t first_byte = slice ? slice->slice.first_byte : 0;
    return source_.read(tensor, {first_byte + range.offset - head.size(), range.size_bytes});
  }
  std::vector<std::byte> bytes = Bytes::buffer(range.size_bytes);
  if (!in_head.empty()) {
    const auto from = std::as_bytes(std::span(head)).subspan(static_cast<std::size_t>(in_head.offset));
    std::ranges::copy(from.first(static_cast<std::size_t>(in_head.size_bytes)), bytes.begin());
  }
  const auto body = std::span(bytes).subspan(static_cast<std::size_t>(in_head.size_bytes));
  if (!body.empty()) {
    const std::uint64_t at = range.offset + in_head.size_bytes - head.size();
    auto copied = slice             ? copy_slice(*slice, at, source_, body)
                  : is_float32(ino) ? copy_float32(model_.tensor(tensor), tensor, at, source_, body)
                                    : source_.copy(tensor, at, body);
    if (!copied) return pass_on(std::move(copied));
  }
  return Bytes(std::move(bytes));
}

std::shared_ptr<const Activity::Snapshot> Views::stats_of(Ino ino) const {
  const std::scoped_lock lock(mutex_);
  const auto found = counted_.find(ino);
  return found == counted_.end() ? nullptr : found->second.stats;
}

void Views::mark(Ino ino, ByteRange range) const {
  if (is_npy(ino)) {
    marks_[ino - kNpyFiles] |= kNpyMark | kNpyName;
  } else if (is_float32(ino)) {
    marks_[ino - kFloat32Files] |= kFloat32Mark | kFloat32Name;
  } else if (ino == kArchive) {
    whole_.for_each_tensor(range, [this](TensorId tensor) { marks_[number_of(tensor)] |= kArchiveMark; });
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
  if ((all & kArchiveMark) != 0) add(kArchive);
  if (is_broken_) add(kHeaderJson);
  const std::scoped_lock lock(mutex_);
  for (const auto& [name, ino] : slices_) {
    const TensorId tensor = counted_.at(ino).slice->tensor;
    if (tensor >= first && tensor <= last) add(ino);
  }
  return stale;
}

}  // namespace stfs
