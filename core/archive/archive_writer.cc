#include "core/archive/archive_writer.h"

#include <fmt/format.h>

#include <cerrno>
#include <utility>

namespace stfs {

Result<ArchiveWriter> ArchiveWriter::create(const std::filesystem::path& path,
                                            std::span<const TensorSpec> tensors, const Metadata& metadata,
                                            bool replace, const NewArchiveOptions& options) {
  Result<std::string> header = format_header(tensors, metadata, options.alignment, options.slack_bytes);
  if (!header) return tl::unexpected(std::move(header).error().within(path.native()));
  std::uint64_t expected_bytes = 0;
  for (const TensorSpec& tensor : tensors) {  // format_header has checked for overflow
    expected_bytes += data_size_bytes(tensor.dtype, tensor.shape).value_or(0);
  }
  Result<NewFile> file = NewFile::create(path, replace, options.mode);
  RETURN_IF_ERROR(file);
  // Reserve first: a full disk then fails before the caller has produced a byte.
  RETURN_IF_ERROR(file->reserve(header->size() + expected_bytes));
  RETURN_IF_ERROR(file->append(std::as_bytes(std::span(*header))));
  return ArchiveWriter(path, std::move(*file), expected_bytes);
}

Result<void> ArchiveWriter::append(std::span<const std::byte> bytes) {
  if (file_.is_open() && bytes.size() > expected_bytes_ - written_bytes_) {
    file_.discard();
    return fail(ErrorCode::WrongSize, EFBIG,
                fmt::format("{}: write: more data than the {} bytes that its header gives", path_.native(),
                            expected_bytes_));
  }
  written_bytes_ += bytes.size();
  return file_.append(bytes);
}

Result<void> ArchiveWriter::settle() {
  if (file_.is_open() && written_bytes_ != expected_bytes_) {
    file_.discard();
    return fail(ErrorCode::WrongSize, EINVAL,
                fmt::format("{}: finish: {} bytes of data were written, expected {}", path_.native(),
                            written_bytes_, expected_bytes_));
  }
  return file_.settle();
}

Result<void> ArchiveWriter::finish() {
  if (file_.is_open()) {
    RETURN_IF_ERROR(settle());
  }
  return file_.finish();
}

}  // namespace stfs
