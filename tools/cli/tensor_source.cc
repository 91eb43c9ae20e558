// Reads each kind of source.
#include "tools/cli/tensor_source.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <istream>

#include "core/model/model_directory.h"
#include "core/tensor/npy.h"
#include "tools/cli/mismatch.h"
#include "tools/target/source_readers.h"
#include "tools/text/printable.h"

namespace stfs::tools {
namespace {

constexpr const char* kStreamName = "standard input";

bool is_archive(const SourceName& name) {
  return name.from_tensor || name.file.ends_with(".safetensors") || is_directory_of_models(name.file);
}

std::string wanted_text(const Tensor& wanted) {
  return fmt::format("{} {} needs exactly {}", name_of(wanted.dtype), shape_text(wanted.shape),
                     wanted.data.size_bytes);
}

}  // namespace

Result<TensorSource> TensorSource::open(const SourceName& name, const Tensor& wanted, std::istream& in) {
  TensorSource source;
  source.path_ = name.file;
  source.due_bytes_ = wanted.data.size_bytes;
  Result<void> opened;
  if (name.file == "-" && !name.from_tensor) {
    source.path_ = kStreamName;
    source.in_ = &in;
  } else if (!name.is_raw && is_archive(name)) {
    opened = source.open_archive(name, wanted);
  } else {
    auto file = system_storage().open_behind(name.file, Links::Trusted);
    if (!file && file.error().errno_value == EINVAL) file.error().message += ": - reads standard input";
    RETURN_IF_ERROR(file);
    source.file_ = std::move(*file);
    opened =
        !name.is_raw && name.file.ends_with(".npy") ? source.open_npy(wanted) : source.check_raw_size(wanted);
  }
  RETURN_IF_ERROR(opened);
  return source;
}

Result<void> TensorSource::open_archive(const SourceName& name, const Tensor& wanted) {
  auto target = open_target(name.file, Use::Tensors, {.links = Links::Trusted});
  RETURN_IF_ERROR(target);
  std::uint32_t position = 0;
  if (target->tensor && !name.from_tensor) {
    position = *target->tensor;
  } else {
    auto found = find_tensor(*target->model, name.file, name.from_tensor.value_or(std::string(wanted.name)));
    RETURN_IF_ERROR(found);
    position = *found;
  }
  model_ = std::move(target->model);
  const Tensor tensor = model_->tensors()[position];
  if (const Mismatch mismatch = mismatch_of(tensor, wanted); !mismatch.kinds.empty()) {
    return fail(ErrorCode::WrongSize, EINVAL,
                fmt::format("{}: {}: {}", path_, printable_name(tensor.name), mismatch.text));
  }
  archive_ = &model_->archive_of(position);
  data_offset_ = model_->file_range(position).offset;
  return {};
}

Result<void> TensorSource::open_npy(const Tensor& wanted) {
  const auto status = file_->status();
  RETURN_IF_ERROR(status);
  const std::uint64_t size_bytes = status->identity.size_bytes;
  std::vector<std::byte> start(static_cast<std::size_t>(std::min(size_bytes, kNpyStartBytes)));
  RETURN_IF_ERROR(file_->read(start, 0));
  const auto header = parse_npy_header(start);
  if (!header) return tl::unexpected(Error(header.error()).within(path_));
  if (auto fits = check_npy(*header, size_bytes, wanted.dtype, wanted.shape); !fits) {
    return tl::unexpected(std::move(fits).error().within(path_));
  }
  data_offset_ = header->data_offset;
  return {};
}

Result<void> TensorSource::check_raw_size(const Tensor& wanted) {
  const auto status = file_->status();
  RETURN_IF_ERROR(status);
  if (status->identity.size_bytes == due_bytes_) return {};
  std::array<std::byte, 6> start{};
  const bool looks_like_npy = status->identity.size_bytes >= start.size() && file_->read(start, 0) &&
                              start[0] == std::byte{0x93} && start[1] == std::byte{'N'};
  return fail(ErrorCode::WrongSize, EINVAL,
              fmt::format("{}: has {} bytes: {}{}", path_, status->identity.size_bytes, wanted_text(wanted),
                          looks_like_npy ? "; the name of a NumPy file must end in .npy" : ""));
}

Result<void> TensorSource::read_stream(std::uint64_t offset) {
  in_->read(reinterpret_cast<char*>(buffer_.data()), static_cast<std::streamsize>(buffer_.size()));
  const auto came_bytes = static_cast<std::uint64_t>(in_->gcount());
  if (came_bytes == buffer_.size()) return {};
  return fail(ErrorCode::WrongSize, EINVAL,
              fmt::format("{}: ended after {} bytes: the tensor needs exactly {}", path_, offset + came_bytes,
                          due_bytes_));
}

Result<void> TensorSource::check_readers(const Model& target) const {
  if (file_) return check_source_readers(target, *file_, path_);
  return model_ ? check_source_readers(target, *model_, path_) : Result<void>();
}

Result<std::span<const std::byte>> TensorSource::read(ByteRange piece) {
  if (archive_) return archive_->read({data_offset_ + piece.offset, piece.size_bytes}, buffer_);
  buffer_.resize(static_cast<std::size_t>(piece.size_bytes));
  RETURN_IF_ERROR(in_ != nullptr ? read_stream(piece.offset)
                                 : file_->read(buffer_, data_offset_ + piece.offset));
  return std::span<const std::byte>(buffer_);
}

Result<void> TensorSource::check_end() {
  if (in_ == nullptr || in_->peek() == std::istream::traits_type::eof()) return {};
  return fail(ErrorCode::WrongSize, EINVAL,
              fmt::format("{}: has more than {} bytes, the size of the tensor", path_, due_bytes_));
}

}  // namespace stfs::tools
