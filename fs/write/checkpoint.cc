#include "fs/write/checkpoint.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "core/commit/archive_replacement.h"
#include "core/commit/edit_space.h"
#include "core/format/json_string.h"
#include "core/journal/journal_file.h"
#include "core/journal/journal_format.h"
#include "fs/base/log.h"

namespace stfs {
namespace {

constexpr std::uint64_t kDataBegin = kBlockBytes;  // as in new_tensor.cc

bool has_form_of(const Tensor& one, const Tensor& other) {
  return one.dtype == other.dtype && std::ranges::equal(one.shape, other.shape);
}

/// Returns the bytes before the data, with room for later edits.
std::string with_room(std::string_view text) {
  const auto data_at = data_offset_with_room(text.size(), kHeaderRoomBytes);
  return data_at ? pad_header(std::string(text.substr(kHeaderLengthBytes)), *data_at) : std::string(text);
}

tl::unexpected<Error> refuse_checkpoint(std::string_view why) {
  return fail(ErrorCode::WrongSize, EINVAL, fmt::format("not a checkpoint: {}", why));
}

}  // namespace

Checkpoint::Checkpoint(const Snapshots& snapshots, const TensorReader& reader, const TensorStates& states,
                       Archive& beside, bool waits_for_name, UserCounts& header_bytes,
                       CheckRewriting check_rewriting)
    : snapshots_(snapshots),
      reader_(reader),
      states_(states),
      beside_(beside),
      waits_for_name_(waits_for_name),
      stream_({.take_header = [this](const Header& header,
                                     std::string_view text) { return begin_data(header, text); },
               .take_data = [this](auto bytes, std::uint64_t at) { return take_data(bytes, at); },
               .take_length = [this](std::uint64_t head_bytes) -> Result<void> {
                 auto share = header_bytes_.take(requesting_user(user_), head_bytes);
                 RETURN_IF_ERROR(share);
                 header_share_ = std::move(*share);
                 return {};
               }}),
      header_bytes_(header_bytes),
      check_rewriting_(std::move(check_rewriting)) {}

Result<void> Checkpoint::write(std::span<const std::byte> from, std::uint64_t offset) {
  return stream_.write(from, offset);
}

Result<void> Checkpoint::begin_data(const Header& header, std::string_view text) {
  const TensorIndex& tensors = header.tensors;
  const Model& model = *snapshots_->model;
  saved_.resize(tensors.size());
  for (std::uint32_t at = 0; at < tensors.size(); ++at) {
    const Tensor tensor = tensors[at];
    data_bytes_ += tensor.data.size_bytes;
    const auto known = model.find(tensor.name);
    const bool is_same = known && has_form_of(model.tensor(*known), tensor);
    if (is_same) saved_[at] = {.same = known, .generation = states_.of(*known).noted};
    if (!is_same) unknown_bytes_ += tensor.data.size_bytes;
  }
  may_rewrite_ = header.fillers.empty();
  if (may_rewrite_) head_ = text;
  consider_rewriting(header, 0);
  return {};
}

Result<void> Checkpoint::take_data(std::span<const std::byte> from, std::uint64_t at) {
  const ByteRange came{at, from.size()};
  if (rewritten_) {
    auto written = rewritten_->file->write(from, head_bytes_ + at);
    if (written) writeback_.follow(*rewritten_->file, {head_bytes_ + at, from.size()});
    return written;
  }
  for (; next_ < header().tensors.size(); ++next_) {
    const ByteRange data = header().tensors[next_].data;
    const ByteRange part = data.intersection(came);  // fillers are passed over
    if (!part.empty()) {
      const auto bytes =
          from.subspan(static_cast<std::size_t>(part.offset - at), static_cast<std::size_t>(part.size_bytes));
      RETURN_IF_ERROR(take_piece(next_, bytes, part.offset - data.offset));
    }
    if (data.end() > came.end()) break;
  }
  consider_rewriting(header(), came.end());
  return {};
}

Result<void> Checkpoint::take_piece(std::uint32_t position, std::span<const std::byte> bytes,
                                    std::uint64_t offset) {
  const Saved& saved = saved_[position];
  if (!saved.same) {
    differing_bytes_ += bytes.size();
    return keep_new(position, bytes, offset);
  }
  thread_local std::vector<std::byte> known;
  known.resize(bytes.size());
  if (!snapshots_->model->has(*saved.same)) return refuse_checkpoint("a tensor was deleted while it came");
  RETURN_IF_ERROR(reader_.copy(*saved.same, offset, known));
  if (std::memcmp(known.data(), bytes.data(), bytes.size()) == 0) return {};
  for (std::size_t begin = 0; begin < bytes.size();) {
    // To the end of a block of the tensor.
    const std::size_t end = std::min<std::size_t>(
        bytes.size(), begin + static_cast<std::size_t>(kBlockBytes - (offset + begin) % kBlockBytes));
    const auto block = bytes.subspan(begin, end - begin);
    if (std::memcmp(known.data() + begin, block.data(), block.size()) != 0) {
      RETURN_IF_ERROR(stage_changed(position, block, offset + begin));
      differing_bytes_ += block.size();
    }
    begin = end;
  }
  return {};
}

Result<void> Checkpoint::stage_changed(std::uint32_t position, std::span<const std::byte> bytes,
                                       std::uint64_t offset) {
  Saved& saved = saved_[position];
  if (saved.stage == nullptr) {
    if (!group_)
      group_ = std::make_unique<TransactionGroup>(
          *snapshots_->model, [user = user_] { return take_descriptor(requesting_user(user)); });
    auto stage = group_->stage(snapshots_->model->place(*saved.same));
    RETURN_IF_ERROR(stage);
    saved.stage = *stage;
  }
  return saved.stage->write(bytes, offset);
}

Result<void> Checkpoint::keep_new(std::uint32_t position, std::span<const std::byte> bytes,
                                  std::uint64_t offset) {
  if (!file_) {
    auto share = take_descriptor(requesting_user(user_));
    RETURN_IF_ERROR(share);
    auto made = create_journal_file(beside_.storage(), beside_.real_path(), beside_.file());
    RETURN_IF_ERROR(made);
    file_ = std::move(made->file);
    share_ = std::move(*share);
  }
  return file_->write(bytes, kDataBegin + header().tensors[position].data.offset + offset);
}

Result<void> Checkpoint::resize(std::uint64_t size_bytes) {
  if (size_bytes == 0) {
    drop();
    return {};
  }
  return stream_.resize(size_bytes);
}

Result<void> Checkpoint::read(std::span<std::byte> /*to*/, std::uint64_t /*offset*/,
                              const Staging::ReadBase& /*read_base*/) const {
  return fail(ErrorCode::InvalidArgument, EOPNOTSUPP, "a checkpoint can't be read while it is written");
}

void Checkpoint::note_committed() {
  is_committed_ = true;
  writeback_.finish();
  rewritten_.reset();  // else the archive would be open for writing, and its first byte locked
}

void Checkpoint::keep() {
  is_kept_ = true;
  // All bytes have arrived, so rewriting does not begin any more.
  may_rewrite_ = false;
  head_ = std::string();
}

void Checkpoint::drop() {
  file_.reset();
  share_.reset();
  group_.reset();
  saved_.clear();
  writeback_.finish();
  rewritten_.reset();
  may_rewrite_ = true;
  head_ = std::string();
  data_bytes_ = unknown_bytes_ = differing_bytes_ = 0;
  stream_.forget();
  header_share_.reset();
  next_ = 0;
  is_kept_ = false;
}

Result<void> Checkpoint::copy_to(Staging& to, std::uint32_t position) const {
  const ByteRange data = header().tensors[position].data;
  return to.write_all(data.size_bytes, [&](std::span<std::byte> part, std::uint64_t at) {
    return rewritten_ ? rewritten_->file->read(part, head_bytes_ + data.offset + at)
                      : read_saved(position, part, data.offset, at);
  });
}

Result<void> Checkpoint::read_saved(std::uint32_t position, std::span<std::byte> to, std::uint64_t begin,
                                    std::uint64_t offset) const {
  const Saved& saved = saved_[position];
  if (!saved.same) return file_->read(to, kDataBegin + begin + offset);
  // Bytes that do not differ come from the tensor of the model.
  const auto read_base = [&](std::span<std::byte> part, std::uint64_t at) {
    return reader_.copy(*saved.same, at, part);
  };
  return saved.stage != nullptr ? saved.stage->read(to, offset, read_base) : read_base(to, offset);
}

void Checkpoint::consider_rewriting(const Header& header, std::uint64_t came_bytes) {
  if (!may_rewrite_) return;
  const bool is_mostly_unknown = unknown_bytes_ > data_bytes_ / 2;
  const auto all = static_cast<double>(data_bytes_);
  const auto came = static_cast<double>(came_bytes);
  const auto differing = static_cast<double>(differing_bytes_);
  const bool is_cheaper = differing * 8 >= all && came > 0 && differing * (2 * all - came) > all * came;
  if (!is_mostly_unknown && !is_cheaper) return;
  may_rewrite_ = false;
  const auto begun = guard_memory([&] { return begin_rewriting(header, came_bytes); });
  head_ = std::string();
  if (begun) return;
  log::info("{}: a checkpoint of which most bytes differ is saved in place: {}", beside_.path().string(),
            begun.error().message);
}

Result<void> Checkpoint::begin_rewriting(const Header& header, std::uint64_t came_bytes) {
  RETURN_IF_ERROR(check_rewriting_(*this));
  if (!share_) {
    auto share = take_descriptor(requesting_user(user_));
    RETURN_IF_ERROR(share);
    share_ = std::move(*share);
  }
  head_ = with_room(head_);
  head_bytes_ = head_.size();
  auto made = begin_replacement(beside_, head_bytes_ + data_bytes_);
  RETURN_IF_ERROR(made);
  RETURN_IF_ERROR(bring_over(*made->file, header, came_bytes));
  rewritten_ = std::move(*made);
  for (Saved& saved : saved_) saved.stage = nullptr;
  group_.reset();
  file_.reset();
  return {};
}

Result<void> Checkpoint::sync_rewritten(Durability durability) {
  writeback_.finish();
  return durability == Durability::Power ? rewritten_->file->sync() : Result<void>();
}

Result<void> Checkpoint::bring_over(File& to, const Header& header, std::uint64_t came_bytes) const {
  constexpr std::uint64_t kPieceBytes = 1 << 20;
  RETURN_IF_ERROR(to.write(std::as_bytes(std::span(head_)), 0));
  std::vector<std::byte> piece;
  for (std::uint32_t position = 0; position < header.tensors.size(); ++position) {
    const ByteRange data = header.tensors[position].data;
    const ByteRange came = data.intersection({0, came_bytes});
    for (std::uint64_t done = 0; done < came.size_bytes; done += piece.size()) {
      piece.resize(static_cast<std::size_t>(std::min(kPieceBytes, came.size_bytes - done)));
      auto moved = read_saved(position, piece, data.offset, done);
      if (moved) moved = to.write(piece, head_bytes_ + data.offset + done);
      RETURN_IF_ERROR(moved);
    }
  }
  return {};
}

}  // namespace stfs
