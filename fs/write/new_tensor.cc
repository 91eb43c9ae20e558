#include "fs/write/new_tensor.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "core/base/mutex.h"
#include "core/format/header.h"
#include "core/format/json_string.h"
#include "fs/base/log.h"

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
    : is_npy_(is_npy),
      bytes_(std::make_shared<StagedBytes>(std::move(file))),
      mtime_ns_(now_ns()),
      name_(std::move(name)) {}

NewTensor::NewTensor(std::string name, const ScratchDirectory& directory, std::string file_name)
    : is_npy_(false),
      scratch_(std::make_unique<ScratchBytes>(directory, std::move(file_name))),
      mtime_ns_(now_ns()),
      is_scratch_(true),
      name_(std::move(name)) {}

void NewTensor::take_name(std::string name, bool is_possible) {
  waits_for_name_ = !is_possible;
  const MutexLock lock(mutex_);
  name_ = std::move(name);
}

std::string NewTensor::name() const {
  const MutexLock lock(mutex_);
  return name_;
}

std::string NewTensor::label() const {
  return "tensor " + in_quotes(name());
}

Result<void> NewTensor::check() const {
  // A file without a form keeps any bytes.
  if (!is_npy_ && !replaced_shard_ && !has_whole_form()) return {};
  auto form = this->form();
  return form ? Result<void>() : pass_on(std::move(form));
}

std::uint64_t NewTensor::size_bytes() const {
  if (!scratch_) return size_bytes_;
  const auto status = scratch_->status();
  return status ? status->size_bytes : 0;
}

bool NewTensor::is_dirty() const {
  return is_scratch_ ? has_whole_form() && !waits_for_name_ : is_dirty_;
}

std::int64_t NewTensor::mtime_ns() const {
  const auto status = scratch_ ? scratch_->status() : std::nullopt;
  return status ? status->mtime_ns : mtime_ns_.load();
}

void NewTensor::set_mtime(std::int64_t mtime_ns) {
  mtime_ns_ = mtime_ns;
  if (!scratch_) return;
  if (auto set = scratch_->set_mtime(mtime_ns); !set) log::warning("{}", set.error().message);
}

void NewTensor::leave_scratch() {
  is_scratch_ = false;
  const MutexLock lock(mutex_);
  is_adopted_ = false;
}

void NewTensor::note_change() {
  is_dirty_ = has_news_ = true;
  mtime_ns_ = now_ns();
  drop_adopted_form();
}

void NewTensor::drop_adopted_form() {
  const MutexLock lock(mutex_);
  if (!std::exchange(is_adopted_, false)) return;
  dtype_.reset();
  shape_.reset();
}

Result<void> NewTensor::unshare() {
  if (bytes_.use_count() == 1) return {};
  auto own = std::make_shared<StagedBytes>(bytes_->file());
  RETURN_IF_ERROR(bytes_->copy_to(*own, begin_));
  bytes_ = std::move(own);
  begin_ = 0;
  return {};
}

Result<void> NewTensor::write(std::span<const std::byte> from, std::uint64_t offset) {
  note_change();
  if (scratch_) return scratch_->write(from, offset);
  RETURN_IF_ERROR(unshare());
  RETURN_IF_ERROR(bytes_->write(from, begin_ + offset));
  size_bytes_ = bytes_->size_bytes() - begin_;
  return {};
}

Result<void> NewTensor::resize(std::uint64_t size_bytes) {
  note_change();
  if (scratch_) return scratch_->resize(size_bytes);
  if (size_bytes == 0) {
    drop_bytes();  // no shared byte is left to copy
    base_.reset();
  }
  RETURN_IF_ERROR(unshare());
  if (size_bytes > kMostFileBytes - begin_) return fail_system(EFBIG, label(), "resize");
  bytes_->resize(begin_ + size_bytes);
  size_bytes_ = size_bytes;
  return {};
}

Result<void> NewTensor::read(std::span<std::byte> to, std::uint64_t offset) const {
  return scratch_ ? scratch_->read(to, offset) : bytes_->read(to, begin_ + offset);
}

void NewTensor::drop_bytes() {
  bytes_ = std::make_shared<StagedBytes>(bytes_->file());
  begin_ = 0;
}

void NewTensor::drop() {
  is_dirty_ = false;
  drop_adopted_form();
  if (scratch_) return;
  drop_bytes();
  size_bytes_ = 0;
}

void NewTensor::adopt(const Form& form) {
  const MutexLock lock(mutex_);
  dtype_ = form.dtype;
  shape_ = form.shape;
  is_adopted_ = true;
}

void NewTensor::set_dtype(Dtype dtype) {
  const MutexLock lock(mutex_);
  is_adopted_ = false;
  dtype_ = dtype;
}

void NewTensor::set_shape(std::vector<std::uint64_t> shape) {
  const MutexLock lock(mutex_);
  is_adopted_ = false;
  shape_ = std::move(shape);
}

bool NewTensor::has_form() const {
  const MutexLock lock(mutex_);
  return dtype_ || shape_;
}

bool NewTensor::has_whole_form() const {
  const MutexLock lock(mutex_);
  return dtype_ && shape_;
}

std::optional<Dtype> NewTensor::dtype() const {
  const MutexLock lock(mutex_);
  return dtype_;
}

std::optional<std::vector<std::uint64_t>> NewTensor::shape() const {
  const MutexLock lock(mutex_);
  return shape_;
}

void NewTensor::put_form_back(std::optional<Dtype> dtype, std::optional<std::vector<std::uint64_t>> shape) {
  const MutexLock lock(mutex_);
  dtype_ = dtype;
  shape_ = std::move(shape);
  is_adopted_ = false;
}

Result<NewTensor::Form> NewTensor::form() const {
  if (is_npy_) return npy_form();
  const std::uint64_t size_bytes = this->size_bytes();
  const MutexLock lock(mutex_);
  if (!replaced_shard_ && (!dtype_ || !shape_)) {
    return refuse_form(name_, fmt::format("it has no {}: set the attributes user.safetensors.dtype and "
                                          "user.safetensors.shape, or rename it over a tensor of {} bytes",
                                          dtype_   ? "shape"
                                          : shape_ ? "dtype"
                                                   : "dtype and shape",
                                          size_bytes));
  }
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
  RETURN_IF_ERROR(read(start, 0));
  auto header = parse_npy_header(start);
  const MutexLock lock(mutex_);
  if (!header) return refuse_form(name_, header.error().message);
  const auto dtype = dtype_ ? dtype_ : dtype_of(*header);
  if (!dtype) {
    return refuse_form(
        name_, fmt::format("no dtype is meant by {} alone: set user.safetensors.dtype before the close, or "
                           "use stfs put --dtype",
                           header->type_text()));
  }
  Form form{.dtype = *dtype, .shape = shape_.value_or(header->shape), .data_offset = header->data_offset};
  // NumPy's open_memmap() closes a new file that has only its header, and then maps it: the rest reads as
  // zeros.
  const bool is_only_header = size_bytes == header->data_offset && !replaced_shard_;
  const std::uint64_t file_bytes =
      is_only_header ? header->data_offset + header->data_size_bytes : size_bytes;
  if (auto fits = check_npy(*header, file_bytes, form.dtype, form.shape); !fits)
    return refuse_form(name_, fits.error().message);
  return form;
}

Result<void> NewTensor::copy_to(Staging& stage, const Form& form) const {
  const std::uint64_t end = size_bytes() - form.data_offset;
  if (end == 0) return stage.resize(stage.target().size_bytes);
  return stage.write_all(
      end, [&](std::span<std::byte> part, std::uint64_t at) { return read(part, form.data_offset + at); });
}

Result<std::unique_ptr<NewTensor>> NewTensor::data(const Form& form) const {
  const auto due = data_size_bytes(form.dtype, form.shape);
  if (!due) return tl::unexpected(Error(due.error()).within(label()));
  auto data = std::make_unique<NewTensor>(name(), false, bytes_->file());
  data->set_dtype(form.dtype);
  data->set_shape(form.shape);
  data->bytes_ = bytes_;
  data->begin_ = begin_ + form.data_offset;
  data->size_bytes_ = size_bytes_ - form.data_offset;
  data->is_dirty_ = true;
  // A NumPy header alone means a tensor of zeros.
  RETURN_IF_ERROR(data->size_bytes_ == *due ? Result<void>() : data->resize(*due));
  return data;
}

}  // namespace stfs
