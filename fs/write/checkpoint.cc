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

constexpr std::uint64_t kDataBegin = kBlockBytes;  // as in new_tensor.cc

tl::unexpected<Error> refuse_checkpoint(std::string_view why) {
  return fail(ErrorCode::WrongSize, EINVAL, fmt::format("not a checkpoint: {}", why));
}

}  // namespace

Checkpoint::Checkpoint(const Versioned<Model>& model, const TensorReader& reader, const TensorStates& states,
                       Archive& beside, bool waits_for_name)
    : model_(model),
      reader_(reader),
      states_(states),
      beside_(beside),
      waits_for_name_(waits_for_name),
      stream_("a checkpoint",
              {.take_header = [this](const Header& header) { return begin_data(header); },
               .take_data = [this](auto bytes, std::uint64_t at) { return take_data(bytes, at); }}) {}

Result<void> Checkpoint::write(std::span<const std::byte> from, std::uint64_t offset) {
  return stream_.write(from, offset);
}

Result<void> Checkpoint::begin_data(const Header& header) {
  const TensorIndex& tensors = header.tensors;
  const Model& model = *model_;
  saved_.resize(tensors.size());
  for (std::uint32_t at = 0; at < tensors.size(); ++at) {
    const Tensor tensor = tensors[at];
    const auto known = model.find(tensor.name);
    if (!known) continue;
    const Tensor there = model.tensor(*known);
    if (there.dtype != tensor.dtype || !std::ranges::equal(there.shape, tensor.shape)) continue;
    saved_[at] = {.same = known, .generation = states_.of(*known).noted};
  }
  return {};
}

Result<void> Checkpoint::take_data(std::span<const std::byte> from, std::uint64_t at) {
  const ByteRange came{at, from.size()};
  for (; next_ < header().tensors.size(); ++next_) {
    const ByteRange data = header().tensors[next_].data;
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
  return file_->write(bytes, kDataBegin + header().tensors[position].data.offset + offset);
}

Result<void> Checkpoint::resize(std::uint64_t size_bytes) {
  if (size_bytes == 0) {
    forget();
    return {};
  }
  return stream_.resize(size_bytes);
}

Result<void> Checkpoint::read(std::span<std::byte>, std::uint64_t) const {
  return fail(ErrorCode::InvalidArgument, EOPNOTSUPP, "a checkpoint can't be read while it is written");
}

void Checkpoint::forget() {
  file_.reset();
  group_.reset();
  saved_.clear();
  stream_.forget();
  next_ = 0;
  is_kept_ = false;
}

Result<void> Checkpoint::copy_to(Staging& to, std::uint32_t position) const {
  const Saved& saved = saved_[position];
  const ByteRange data = header().tensors[position].data;
  // Bytes that do not differ come from the tensor of before.
  const auto read_base = [&](std::span<std::byte> part, std::uint64_t at) {
    return reader_.copy(*saved.same, at, part);
  };
  return to.write_all(data.size_bytes, [&](std::span<std::byte> part, std::uint64_t at) {
    return saved.same ? saved.stage->read(part, at, read_base)
                      : file_->read(part, kDataBegin + data.offset + at);
  });
}

}  // namespace stfs
