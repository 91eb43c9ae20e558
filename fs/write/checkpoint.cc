// Compares a checkpoint with the model, block by block.
#include "fs/write/checkpoint.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "core/format/json_string.h"
#include "core/journal/journal_file.h"
#include "core/journal/journal_format.h"

namespace stfs {
namespace {

constexpr std::uint64_t kBegin = kBlockBytes;  // as in new_tensor.cc

tl::unexpected<Error> refuse_checkpoint(std::string_view why) {
  return fail(ErrorCode::WrongSize, EINVAL, fmt::format("not a checkpoint: {}", why));
}

}  // namespace

Result<void> Checkpoint::write(std::span<const std::byte> from, std::uint64_t offset) {
  if (offset != size_bytes_) {
    return refuse_checkpoint(fmt::format(
        "byte {} comes after byte {}: write it from its beginning to its end", offset, size_bytes_));
  }
  while (!from.empty() && !header_) {
    const auto taken = take_head(from);
    if (!taken) return tl::unexpected(taken.error());
    from = from.subspan(*taken);
    size_bytes_ += *taken;
  }
  if (from.empty()) return {};
  if (from.size() > end_ - size_bytes_) {
    return refuse_checkpoint(fmt::format("its header gives {} bytes, and more have come", end_));
  }
  if (auto taken = take_data(from, size_bytes_ - head_bytes_); !taken) return taken;
  size_bytes_ += from.size();
  return {};
}

Result<std::size_t> Checkpoint::take_head(std::span<const std::byte> from) {
  const std::uint64_t due = head_.size() < kHeaderLengthBytes ? kHeaderLengthBytes : head_bytes_;
  const std::size_t taken =
      static_cast<std::size_t>(std::min<std::uint64_t>(due - head_.size(), from.size()));
  head_.append(reinterpret_cast<const char*>(from.data()), taken);
  if (head_.size() < due) return taken;
  if (due == kHeaderLengthBytes && head_bytes_ == 0) {
    const auto length = header_length(std::as_bytes(std::span(head_)), ~std::uint64_t{0});
    if (!length) return tl::unexpected(length.error());
    head_bytes_ = kHeaderLengthBytes + *length;
  }
  if (head_.size() < head_bytes_) return taken;
  if (auto begun = begin_data(); !begun) return tl::unexpected(begun.error());
  return taken;
}

Result<void> Checkpoint::begin_data() {
  auto header = parse_header(std::string_view(head_).substr(kHeaderLengthBytes), std::nullopt);
  if (!header) return pass_on(std::move(header));
  head_ = std::string();
  end_ = head_bytes_;
  const TensorIndex& tensors = header->tensors;
  if (tensors.size() > 0) end_ = std::max(end_, head_bytes_ + tensors[tensors.size() - 1].data.end());
  for (const ByteRange filler : header->fillers) end_ = std::max(end_, head_bytes_ + filler.end());
  const Model& model = *model_;
  saved_.resize(tensors.size());
  for (std::uint32_t at = 0; at < tensors.size(); ++at) {
    const Tensor tensor = tensors[at];
    const auto known = model.find(tensor.name);
    if (!known) continue;
    const Tensor there = model.tensor(*known);
    if (there.dtype != tensor.dtype || !std::ranges::equal(there.shape, tensor.shape)) continue;
    saved_[at] = {.same = known, .generation = states_.of(*known).generation};
  }
  header_ = std::move(*header);
  return {};
}

Result<void> Checkpoint::take_data(std::span<const std::byte> from, std::uint64_t at) {
  const ByteRange came{at, from.size()};
  for (; next_ < header_->tensors.size(); ++next_) {
    const ByteRange data = header_->tensors[next_].data;
    const ByteRange part = data.intersection(came);  // fillers are passed over
    if (!part.empty()) {
      const auto bytes =
          from.subspan(static_cast<std::size_t>(part.offset - at), static_cast<std::size_t>(part.size_bytes));
      if (auto taken = take_piece(next_, bytes, part.offset - data.offset); !taken) return taken;
    }
    if (data.end() > came.end()) break;
  }
  return {};
}

Result<void> Checkpoint::take_piece(std::uint32_t position, std::span<const std::byte> bytes,
                                    std::uint64_t offset) {
  const Saved& saved = saved_[position];
  if (!saved.same) return keep_new(position, bytes, offset);
  buffer_.resize(bytes.size());
  if (!model_->has(*saved.same)) return refuse_checkpoint("a tensor was deleted while it came");
  if (auto read = reader_.copy(*saved.same, offset, buffer_); !read) return read;
  if (std::memcmp(buffer_.data(), bytes.data(), bytes.size()) == 0) return {};
  for (std::size_t begin = 0; begin < bytes.size();) {
    // To the end of a block of the tensor.
    const std::size_t end = std::min<std::size_t>(
        bytes.size(), begin + static_cast<std::size_t>(kBlockBytes - (offset + begin) % kBlockBytes));
    const auto block = bytes.subspan(begin, end - begin);
    if (std::memcmp(buffer_.data() + begin, block.data(), block.size()) != 0) {
      if (auto staged = stage_changed(position, block, offset + begin); !staged) return staged;
    }
    begin = end;
  }
  return {};
}

Result<void> Checkpoint::stage_changed(std::uint32_t position, std::span<const std::byte> bytes,
                                       std::uint64_t offset) {
  Saved& saved = saved_[position];
  if (saved.stage == nullptr) {
    if (!group_) group_ = std::make_unique<TransactionGroup>(*model_);
    auto stage = group_->stage(model_->place(*saved.same));
    if (!stage) return pass_on(std::move(stage));
    saved.stage = *stage;
  }
  return saved.stage->write(bytes, offset);
}

Result<void> Checkpoint::keep_new(std::uint32_t position, std::span<const std::byte> bytes,
                                  std::uint64_t offset) {
  if (!file_) {
    auto made = create_journal_file(beside_.storage(), beside_.real_path());
    if (!made) return pass_on(std::move(made));
    file_ = std::move(made->file);
  }
  return file_->write(bytes, kBegin + header_->tensors[position].data.offset + offset);
}

Result<void> Checkpoint::resize(std::uint64_t size_bytes) {
  if (size_bytes == size_bytes_) return {};
  if (size_bytes == 0) {
    forget();
    return {};
  }
  // safetensors announces the size before the first byte.
  if (size_bytes_ != 0) return refuse_checkpoint("its size can't be set after its first byte");
  announced_bytes_ = size_bytes;
  return {};
}

Result<void> Checkpoint::read(std::span<std::byte>, std::uint64_t) const {
  return fail(ErrorCode::InvalidArgument, EOPNOTSUPP, "a checkpoint can't be read while it is written");
}

Result<void> Checkpoint::check() const {
  if (!header_) {
    return refuse_checkpoint(fmt::format("it ends after {} bytes, within its header", size_bytes_));
  }
  if (announced_bytes_ && *announced_bytes_ != end_) {
    return refuse_checkpoint(
        fmt::format("its size was set to {}, its header gives {}", *announced_bytes_, end_));
  }
  if (size_bytes_ == end_) return {};
  return refuse_checkpoint(fmt::format("it ends after {} bytes, its header gives {}", size_bytes_, end_));
}

void Checkpoint::forget() {
  file_.reset();
  group_.reset();
  header_.reset();
  saved_.clear();
  head_.clear();
  size_bytes_ = head_bytes_ = end_ = 0;
  announced_bytes_.reset();
  next_ = 0;
}

Result<void> Checkpoint::copy_to(Staging& to, std::uint32_t position) const {
  constexpr std::uint64_t kPieceBytes = 4 << 20;
  const Saved& saved = saved_[position];
  const ByteRange data = header_->tensors[position].data;
  std::vector<std::byte> buffer;
  for (std::uint64_t done = 0; done < data.size_bytes; done += buffer.size()) {
    buffer.resize(static_cast<std::size_t>(std::min(kPieceBytes, data.size_bytes - done)));
    // Bytes that do not differ come from the tensor of before.
    const auto read_base = [&](std::span<std::byte> part, std::uint64_t at) {
      return reader_.copy(*saved.same, at, part);
    };
    auto read = saved.same ? saved.stage->read(buffer, done, read_base)
                           : file_->read(buffer, kBegin + data.offset + done);
    if (!read) return read;
    if (auto written = to.write(buffer, done); !written) return written;
  }
  return {};
}

}  // namespace stfs
