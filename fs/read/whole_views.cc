// Makes the header of archive.safetensors, reads its data, and makes header.json and metadata.json. Keeps a
// version's view for as long as the kernel knows one of its files.
#include "fs/read/whole_views.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "core/base/mutex.h"
#include "core/base/printable.h"
#include "core/format/json_string.h"

namespace stfs {
namespace {

constexpr std::uint64_t kPageBytes = 4096;

std::uint64_t header_bytes_of(const Model& model) {
  std::uint64_t sum = 0;
  for (std::uint32_t shard = 0; shard < model.shards().size(); ++shard)
    if (model.shards()[shard].archive) sum += model.version(shard).data_offset();
  return sum;
}

}  // namespace

Result<std::string_view> ArchiveView::merged_head() const {
  const MutexLock lock(mutex_);
  if (!merged_head_) {
    const TensorIndex& tensors = model_->tensors();
    std::vector<TensorSpec> specs;
    specs.reserve(tensors.size());
    for (std::uint32_t at = 0; at < tensors.size(); ++at) {
      const Tensor tensor = tensors[at];
      specs.push_back({std::string(tensor.name), tensor.dtype, {tensor.shape.begin(), tensor.shape.end()}});
    }
    merged_head_ = format_header(specs, model_->metadata(), kPageBytes, 0);
  }
  if (!*merged_head_) return tl::unexpected(Error(merged_head_->error()).within(model_->path().string()));
  return **merged_head_;
}

Result<std::uint64_t> ArchiveView::data_offset() const {
  if (model_->is_rearranged()) {
    const auto head = merged_head();
    RETURN_IF_ERROR(head);
    return head->size();
  }
  const std::uint64_t as_it_is = model_->front_version().data_offset();
  const std::uint64_t aligned = (as_it_is + kPageBytes - 1) / kPageBytes * kPageBytes;
  // If the padding would make the header larger than readers accept, the header stays as it is.
  return aligned - kHeaderLengthBytes <= kMaxHeaderBytes ? aligned : as_it_is;
}

bool ArchiveView::is_the_archive() const {
  if (model_->is_rearranged()) return false;
  const auto data_at = data_offset();
  return data_at && *data_at == model_->front_version().data_offset();
}

Result<std::uint64_t> ArchiveView::size_bytes() const {
  const auto data_at = data_offset();
  RETURN_IF_ERROR(data_at);
  return *data_at + model_->data_size_bytes();
}

std::uint32_t ArchiveView::first_tensor_at(std::uint64_t data_offset) const {
  // Tensors are also sorted by the ends of their ranges, because ranges neither overlap nor leave gaps.
  const TensorIndex& tensors = model_->tensors();
  std::uint32_t low = 0;
  std::uint32_t high = tensors.size();
  while (low < high) {
    const std::uint32_t middle = low + (high - low) / 2;
    if (tensors[middle].data.end() <= data_offset) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low;
}

Result<void> ArchiveView::append_head(ByteRange part, std::uint64_t data_at,
                                      std::vector<std::byte>& to) const {
  if (model_->is_rearranged()) {
    const auto head = merged_head();
    RETURN_IF_ERROR(head);
    const auto bytes = std::as_bytes(std::span(head->substr(part.offset, part.size_bytes)));
    to.insert(to.end(), bytes.begin(), bytes.end());
    return {};
  }
  const std::uint64_t length = data_at - kHeaderLengthBytes;
  std::uint64_t at = part.offset;
  for (; at < std::min(part.end(), kHeaderLengthBytes); ++at) {
    to.push_back(static_cast<std::byte>(length >> (8 * at) & 0xff));
  }
  const ByteRange json = ByteRange{at, part.end() - at}.intersection(
      {kHeaderLengthBytes, model_->front_version().header->size_bytes});
  if (!json.empty()) {
    const auto bytes = read_header(json);
    RETURN_IF_ERROR(bytes);
    to.insert(to.end(), bytes->begin(), bytes->end());
  }
  to.resize(static_cast<std::size_t>(part.size_bytes), std::byte{' '});
  return {};
}

Result<void> ArchiveView::keep_head() {
  if (model_->is_rearranged()) return {};  // merged_head() needs only the model
  RETURN_IF_ERROR(header_json_bytes());
  auto bytes = reader_.read_header({0, model_->front_version().data_offset()});
  RETURN_IF_ERROR(bytes);
  auto kept = std::make_shared<const std::vector<std::byte>>(std::move(*bytes));
  const MutexLock lock(mutex_);
  kept_head_ = std::move(kept);
  return {};
}

Result<std::vector<std::byte>> ArchiveView::read_header(ByteRange range) const {
  const auto kept_head = [this] {
    const MutexLock lock(mutex_);
    return kept_head_;
  };
  auto kept = kept_head();
  if (!kept && model_->front_version().header != model_->front().version()->header) {
    return fail(ErrorCode::ArchiveChanged, EIO,
                model_->path().string() + ": another program has changed the archive's header");
  }
  if (!kept) {
    auto read = reader_.read_header(range);
    // An edit may have changed the file during the read. In this case the edit has kept the header first.
    kept = kept_head();
    if (!kept) return read;
  }
  const auto part = std::span(*kept).subspan(static_cast<std::size_t>(range.offset),
                                             static_cast<std::size_t>(range.size_bytes));
  return std::vector<std::byte>(part.begin(), part.end());
}

Result<Bytes> ArchiveView::read(ByteRange range) const {
  const TensorIndex& tensors = model_->tensors();
  const auto begin = data_offset();
  RETURN_IF_ERROR(begin);
  const std::uint64_t data_at = *begin;
  const ByteRange head = range.intersection({0, data_at});
  if (head.empty() && !range.empty()) {
    // Most reads are inside one tensor, so the reply can refer to the map.
    const std::uint32_t position = first_tensor_at(range.offset - data_at);
    const ByteRange data = tensors[position].data;
    if (data.contains({range.offset - data_at, range.size_bytes}))
      return reader_.read(model_->ids().of(position),
                          {range.offset - data_at - data.offset, range.size_bytes});
  }
  std::vector<std::byte> bytes;
  bytes.reserve(static_cast<std::size_t>(range.size_bytes));
  if (!head.empty()) {
    RETURN_IF_ERROR(append_head(head, data_at, bytes));
  }
  const ByteRange wanted = range.intersection({data_at, model_->data_size_bytes()});
  Result<void> failed;
  for_each_tensor(range, [&](TensorId tensor) {
    if (!failed) return;
    const ByteRange data = model_->tensor(tensor).data;
    const ByteRange part = data.intersection({wanted.offset - data_at, wanted.size_bytes});
    const std::size_t begin_bytes = bytes.size();
    bytes.resize(begin_bytes + static_cast<std::size_t>(part.size_bytes));
    reader_.recent_reads().note(tensor, part.size_bytes);
    failed = reader_.copy(tensor, part.offset - data.offset, std::span(bytes).subspan(begin_bytes));
  });
  RETURN_IF_ERROR(failed);
  return Bytes(std::move(bytes));
}

Result<std::uint64_t> ArchiveView::header_json_bytes() const {
  if (model_->is_rearranged()) {
    const auto head = merged_head();
    RETURN_IF_ERROR(head);
    return head->find_last_not_of(' ') + 1 - kHeaderLengthBytes;
  }
  const MutexLock lock(mutex_);
  if (header_json_bytes_) return *header_json_bytes_;
  std::uint64_t end = model_->front_version().header->size_bytes;
  while (end > 0) {
    const std::uint64_t part_bytes = std::min(end, kPageBytes);
    const auto bytes = reader_.read_header({kHeaderLengthBytes + end - part_bytes, part_bytes});
    RETURN_IF_ERROR(bytes);
    const std::string_view text(reinterpret_cast<const char*>(bytes->data()), bytes->size());
    const std::size_t last = text.find_last_not_of(" \t\r\n");
    end -= part_bytes;
    if (last == std::string_view::npos) continue;
    end += last + 1;
    break;
  }
  header_json_bytes_ = end;
  return end;
}

Result<Bytes> ArchiveView::read_header_json(ByteRange range) const {
  if (model_->is_rearranged()) {
    std::vector<std::byte> bytes;
    if (auto put = append_head({kHeaderLengthBytes + range.offset, range.size_bytes}, 0, bytes); !put)
      return pass_on(std::move(put));
    return Bytes(std::move(bytes));
  }
  auto bytes = read_header({kHeaderLengthBytes + range.offset, range.size_bytes});
  RETURN_IF_ERROR(bytes);
  return Bytes(std::move(*bytes));
}

const std::string& ArchiveView::metadata_json() const {
  const MutexLock lock(mutex_);
  if (metadata_json_) return *metadata_json_;
  std::string text = "{";
  for (const auto& [key, value] : model_->metadata()) {
    if (text.size() > 1) text += ',';
    append_json_string(text, key);
    text += ':';
    append_json_string(text, value);
  }
  metadata_json_ = printable_json(text + "}");
  return *metadata_json_;
}

WholeViews::WholeViews(std::shared_ptr<const Model> model, const TensorReader& reader, Ino first)
    : reader_(reader), first_(first) {
  show(next(std::move(model)));
}

tl::unexpected<Error> WholeViews::version_has_ended() {
  return fail(ErrorCode::ArchiveChanged, ESTALE,
              "the archive was changed too often since this file was opened: open it again");
}

Ino WholeViews::present(Part part) const {
  const MutexLock lock(mutex_);
  return number(versions_.rbegin()->first, part);
}

std::shared_ptr<const ArchiveView> WholeViews::view(Ino ino) const {
  const MutexLock lock(mutex_);
  const auto found = versions_.find(version_of(ino));
  return found == versions_.end() ? nullptr : found->second.view;
}

Result<std::uint64_t> WholeViews::size_bytes(Ino ino) const {
  const auto its = view(ino);
  if (!its) return version_has_ended();
  switch (*part(ino, first_)) {
    case Part::HeaderJson: return its->header_json_bytes();
    case Part::MetadataJson: return its->metadata_json().size();
    case Part::Archive: break;
  }
  return its->size_bytes();
}

Result<Bytes> WholeViews::read(Ino ino, ByteRange range) const {
  const auto its = view(ino);
  if (!its) return version_has_ended();
  switch (*part(ino, first_)) {
    case Part::HeaderJson: return its->read_header_json(range);
    case Part::MetadataJson: {
      const auto text = std::as_bytes(std::span(its->metadata_json()));
      const auto* const from = text.data() + range.offset;
      return Bytes(std::vector<std::byte>(from, from + range.size_bytes));
    }
    case Part::Archive: break;
  }
  return its->read(range);
}

Ino WholeViews::note_found(Ino ino) {
  const MutexLock lock(mutex_);
  auto found = versions_.find(version_of(ino));
  if (found == versions_.end()) found = std::prev(versions_.end());
  ++found->second.lookups;
  return number(found->first, *part(ino, first_));
}

bool WholeViews::forget(Ino ino, std::uint64_t lookups) {
  const MutexLock lock(mutex_);
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
  const MutexLock lock(mutex_);
  for (const auto& [version, its] : versions_) numbers.push_back(number(version, Part::Archive));
  return numbers;
}

bool WholeViews::has_before(TensorId tensor) const {
  const MutexLock lock(mutex_);
  return std::any_of(versions_.begin(), std::prev(versions_.end()), [&](const auto& version) {
    return version.second.view->model().ids().position(tensor).has_value();
  });
}

Result<void> WholeViews::prepare_next() {
  std::shared_ptr<ArchiveView> present;
  {
    const MutexLock lock(mutex_);
    present = versions_.rbegin()->second.view;
  }
  return present->keep_head();
}

WholeViews::Versions::node_type WholeViews::next(std::shared_ptr<const Model> model) const {
  Versions made;
  made[0].header_bytes = header_bytes_of(*model);
  made[0].view = std::make_shared<ArchiveView>(std::move(model), reader_);
  return made.extract(made.begin());
}

void WholeViews::show(Versions::node_type next) noexcept {
  const MutexLock lock(mutex_);
  next.key() = versions_.empty() ? 0 : versions_.rbegin()->first + 1;
  const auto shown = versions_.insert(std::move(next)).position;
  if (shown == versions_.begin()) return;
  const auto before = std::prev(shown);
  if (before->second.lookups == 0) {
    versions_.erase(before);
    return;
  }
  before->second.kept.begin(before->second.header_bytes);
  while (Kept::is_too_much() && versions_.size() > 1 + kAlwaysKept) versions_.erase(versions_.begin());
}

}  // namespace stfs
