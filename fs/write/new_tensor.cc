#include "fs/write/new_tensor.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>

#include "core/format/header.h"
#include "core/format/json_string.h"

namespace stfs {
namespace {

std::int64_t now_ns() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::nanoseconds>(now).count();
}

tl::unexpected<Error> refuse_form(const std::string& name, std::string_view why) {
  return fail(ErrorCode::WrongSize, EINVAL, fmt::format("tensor {}: {}", in_quotes(name), why));
}

}  // namespace

NewTensor::NewTensor(std::string name, bool is_npy, std::shared_ptr<StagingFile> file)
    : name_(std::move(name)),
      is_npy_(is_npy),
      bytes_(std::make_shared<StagedBytes>(std::move(file))),
      mtime_ns_(now_ns()) {}

std::string NewTensor::label() const {
  return "tensor " + in_quotes(name_);
}

Result<void> NewTensor::check() const {
  auto form = this->form();
  return form ? Result<void>() : pass_on(std::move(form));
}

void NewTensor::note_change() {
  is_dirty_ = true;
  is_kept_ = false;
  mtime_ns_ = now_ns();
}

Result<void> NewTensor::unshare() {
  if (bytes_.use_count() == 1) return {};
  auto own = std::make_shared<StagedBytes>(bytes_->file());
  if (auto copied = bytes_->copy_to(*own, begin_); !copied) return copied;
  bytes_ = std::move(own);
  begin_ = 0;
  return {};
}

Result<void> NewTensor::write(std::span<const std::byte> from, std::uint64_t offset) {
  note_change();
  if (auto own = unshare(); !own) return own;
  if (auto written = bytes_->write(from, begin_ + offset); !written) return written;
  size_bytes_ = bytes_->size_bytes() - begin_;
  return {};
}

Result<void> NewTensor::resize(std::uint64_t size_bytes) {
  note_change();
  if (size_bytes == 0) forget_bytes();  // no byte of what is shared is left to copy
  if (auto own = unshare(); !own) return own;
  if (size_bytes > kMostFileBytes - begin_) return fail_system(EFBIG, label(), "resize");
  bytes_->resize(begin_ + size_bytes);
  size_bytes_ = size_bytes;
  return {};
}

Result<void> NewTensor::read(std::span<std::byte> to, std::uint64_t offset) const {
  return bytes_->read(to, begin_ + offset);
}

void NewTensor::forget_bytes() {
  bytes_ = std::make_shared<StagedBytes>(bytes_->file());
  begin_ = 0;
}

void NewTensor::forget() {
  forget_bytes();
  size_bytes_ = 0;
  is_dirty_ = false;
}

void NewTensor::set_dtype(Dtype dtype) {
  const std::scoped_lock lock(mutex_);
  dtype_ = dtype;
}

void NewTensor::set_shape(std::vector<std::uint64_t> shape) {
  const std::scoped_lock lock(mutex_);
  shape_ = std::move(shape);
}

bool NewTensor::has_form() const {
  const std::scoped_lock lock(mutex_);
  return dtype_ || shape_;
}

std::optional<Dtype> NewTensor::dtype() const {
  const std::scoped_lock lock(mutex_);
  return dtype_;
}

std::optional<std::vector<std::uint64_t>> NewTensor::shape() const {
  const std::scoped_lock lock(mutex_);
  return shape_;
}

Result<NewTensor::Form> NewTensor::form() const {
  if (is_npy_) return npy_form();
  const std::uint64_t size_bytes = size_bytes_;
  const std::scoped_lock lock(mutex_);
  Form form{.dtype = dtype_.value_or(Dtype::U8), .shape = {}};
  if (shape_) {
    form.shape = *shape_;
    const auto due = data_size_bytes(form.dtype, form.shape);
    if (!due) return tl::unexpected(Error(due.error()).within("tensor " + in_quotes(name_)));
    if (*due == size_bytes) return form;
    return refuse_form(name_, fmt::format("{} bytes were written, {} {} needs {}", size_bytes,
                                          name_of(form.dtype), shape_text(form.shape), *due));
  }
  constexpr std::uint64_t kByteBits = 8;
  const std::uint64_t bits = bits_of(form.dtype);
  if (size_bytes > UINT64_MAX / kByteBits) {
    return refuse_form(name_, fmt::format("{} bytes are more than a tensor can have", size_bytes));
  }
  if (size_bytes * kByteBits % bits != 0) {
    return refuse_form(name_, fmt::format("{} bytes were written, which is no whole number of {}", size_bytes,
                                          name_of(form.dtype)));
  }
  form.shape = {size_bytes * kByteBits / bits};
  return form;
}

Result<NewTensor::Form> NewTensor::npy_form() const {
  const std::uint64_t size_bytes = size_bytes_;
  std::vector<std::byte> start(static_cast<std::size_t>(std::min(size_bytes, kNpyStartBytes)));
  if (auto got = read(start, 0); !got) return pass_on(std::move(got));
  auto header = parse_npy_header(start);
  if (!header) return refuse_form(name_, header.error().message);
  const std::scoped_lock lock(mutex_);
  const auto dtype = dtype_ ? dtype_ : dtype_of(*header);
  if (!dtype) {
    return refuse_form(
        name_, fmt::format("no dtype is meant by {} alone: set user.safetensors.dtype before the close, or "
                           "use stfs put --dtype",
                           header->type_text()));
  }
  Form form{.dtype = *dtype, .shape = shape_.value_or(header->shape), .data_offset = header->data_offset};
  // NumPy's open_memmap() closes a new file that has its header only, and maps it then: it reads as zeros.
  const bool is_only_header = size_bytes == header->data_offset && !replaces_;
  const std::uint64_t file_bytes =
      is_only_header ? header->data_offset + header->data_size_bytes : size_bytes;
  if (auto fits = check_npy(*header, file_bytes, form.dtype, form.shape); !fits)
    return refuse_form(name_, fits.error().message);
  return form;
}

Result<void> NewTensor::copy_to(Staging& stage, const Form& form) const {
  const std::uint64_t end = size_bytes_ - form.data_offset;
  if (end == 0) return stage.resize(stage.target().size_bytes);
  return stage.write_all(
      end, [&](std::span<std::byte> part, std::uint64_t at) { return read(part, form.data_offset + at); });
}

Result<std::unique_ptr<NewTensor>> NewTensor::data(const Form& form) const {
  const auto due = data_size_bytes(form.dtype, form.shape);
  if (!due) return tl::unexpected(Error(due.error()).within("tensor " + in_quotes(name_)));
  auto data = std::make_unique<NewTensor>(name_, false, bytes_->file());
  data->set_dtype(form.dtype);
  data->set_shape(form.shape);
  data->bytes_ = bytes_;
  data->begin_ = begin_ + form.data_offset;
  data->size_bytes_ = size_bytes_ - form.data_offset;
  data->is_dirty_ = true;
  // A NumPy header alone stands for zeros.
  if (auto filled = data->size_bytes_ == *due ? Result<void>() : data->resize(*due); !filled)
    return pass_on(std::move(filled));
  return data;
}

}  // namespace stfs
