// New archives: the header and the order of the reference library, in a file or in memory.
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/format/header.h"
#include "core/storage/new_file.h"
#include "tools/libstfs/c_struct.h"
#include "tools/libstfs/c_work.h"
#include "tools/libstfs/stfs.h"
#include "tools/text/printable.h"

using namespace stfs;
using namespace stfs::interface;

struct stfs_new_archive {
  std::string header;                             // its length, its JSON and its padding
  std::vector<std::span<const std::byte>> parts;  // the caller's data, in the order of the header
  std::uint64_t size_bytes = 0;
};

namespace {

constexpr std::uint64_t kDefaultAlignment = kHeaderLengthBytes;
constexpr mode_t kDefaultMode = 0666;

struct NewTensor {
  TensorSpec spec;
  std::span<const std::byte> data;
};

Result<NewTensor> take_tensor(const stfs_new_tensor& given) {
  NewTensor tensor;
  tensor.spec.name.assign(given.name.data == nullptr ? "" : given.name.data, given.name.size_bytes);
  const std::string shown = tools::printable_name(tensor.spec.name);
  if (tensor.spec.name.starts_with(kFillerPrefix)) {
    return refuse(fmt::format("tensor {}: the name is reserved for unused space", shown));
  }
  if (given.dtype < 0 || given.dtype >= static_cast<std::int32_t>(kDtypeCount)) {
    return refuse(fmt::format("tensor {}: there is no dtype {}", shown, given.dtype));
  }
  tensor.spec.dtype = static_cast<Dtype>(given.dtype);
  if (given.rank > 0) tensor.spec.shape.assign(given.shape, given.shape + given.rank);
  const auto needed_bytes = data_size_bytes(tensor.spec.dtype, tensor.spec.shape);
  if (!needed_bytes) return tl::unexpected(Error(needed_bytes.error()).within("tensor " + shown));
  if (*needed_bytes != given.data_bytes) {
    return fail(ErrorCode::WrongSize, EINVAL,
                fmt::format("tensor {}: its dtype and shape need {} bytes, {} came", shown, *needed_bytes,
                            given.data_bytes));
  }
  tensor.data = {static_cast<const std::byte*>(given.data), static_cast<std::size_t>(given.data_bytes)};
  return tensor;
}

Result<std::string> make_header(std::span<const TensorSpec> specs, const Metadata& metadata,
                                const stfs_new_archive_options& options) {
  const std::uint64_t alignment = options.alignment == 0 ? kDefaultAlignment : options.alignment;
  if (!std::has_single_bit(alignment) || alignment < kHeaderLengthBytes || alignment > kMaxHeaderBytes ||
      options.slack_bytes > kMaxHeaderBytes) {
    return refuse(fmt::format("data can't be aligned to {} bytes with {} bytes of slack", alignment,
                              options.slack_bytes));
  }
  auto json = format_header_json(specs, metadata);
  RETURN_IF_ERROR(json);
  if (options.has_metadata != 0 && metadata.empty()) {
    json->insert(1, specs.empty() ? R"("__metadata__":{})" : R"("__metadata__":{},)");
  }
  const std::uint64_t least_bytes = kHeaderLengthBytes + json->size() + options.slack_bytes;
  const std::uint64_t data_offset = (least_bytes + alignment - 1) / alignment * alignment;
  if (data_offset - kHeaderLengthBytes > kMaxHeaderBytes) {
    return fail(ErrorCode::HeaderTooLarge, EFBIG,
                fmt::format("a header of {} bytes with its padding, at most {} are allowed",
                            data_offset - kHeaderLengthBytes, kMaxHeaderBytes));
  }
  return pad_header(std::move(*json), data_offset);
}

Result<void> write_parts(const stfs_new_archive& archive, NewFile& file, Work& work) {
  constexpr std::size_t kPieceBytes = 4U << 20U;
  for (std::span<const std::byte> rest : archive.parts) {
    while (!rest.empty()) {
      const auto piece = rest.first(std::min(kPieceBytes, rest.size()));
      RETURN_IF_ERROR(file.append(piece));
      rest = rest.subspan(piece.size());
      if (!work.advance(piece.size())) return {};
    }
  }
  return {};
}

Result<void> save(const stfs_new_archive& archive, const std::filesystem::path& path,
                  const stfs_save_options& options) {
  Work work(watch_of(options.progress, options.context));
  const mode_t mode = options.mode == 0 ? kDefaultMode : static_cast<mode_t>(options.mode & 0777U);
  auto file = NewFile::create(path, options.is_new == 0, {.mode = mode});
  RETURN_IF_ERROR(file);
  RETURN_IF_ERROR(file->reserve(archive.size_bytes));
  RETURN_IF_ERROR(file->append(std::as_bytes(std::span(archive.header))));
  work.begin(archive.size_bytes);
  if (work.advance(archive.header.size())) {
    RETURN_IF_ERROR(write_parts(archive, *file, work));
  }
  if (work.goes_on()) work.look();
  if (work.is_stopped()) {
    return fail(ErrorCode::System, ECANCELED, path.native() + ": the save was cancelled, nothing is left");
  }
  return file->finish(options.is_process_durable != 0 ? Durability::Process : Durability::Power);
}

}  // namespace

stfs_new_archive* stfs_new_archive_make(const stfs_new_tensor* tensors, std::size_t count,
                                        const stfs_metadata_pair* metadata, std::size_t metadata_count,
                                        const stfs_new_archive_options* options, stfs_error* error) {
  return answer(error, [&]() -> Result<stfs_new_archive*> {
    const auto given = options == nullptr ? Result<stfs_new_archive_options>() : take_struct(options);
    RETURN_IF_ERROR(given);
    std::vector<NewTensor> taken;
    taken.reserve(count);
    for (const stfs_new_tensor& tensor : std::span(tensors, count)) {
      auto known = take_tensor(tensor);
      RETURN_IF_ERROR(known);
      taken.push_back(std::move(*known));
    }
    std::sort(taken.begin(), taken.end(), [](const NewTensor& a, const NewTensor& b) {
      return is_written_before(a.spec.dtype, a.spec.name, b.spec.dtype, b.spec.name);
    });
    Metadata pairs;
    for (const stfs_metadata_pair& pair : std::span(metadata, metadata_count)) {
      pairs.emplace_back({pair.key.data, pair.key.size_bytes}, {pair.value.data, pair.value.size_bytes});
    }
    auto archive = std::make_unique<stfs_new_archive>();
    std::vector<TensorSpec> specs;
    specs.reserve(count);
    archive->parts.reserve(count);
    for (NewTensor& tensor : taken) {
      specs.push_back(std::move(tensor.spec));
      archive->parts.push_back(tensor.data);
      archive->size_bytes += tensor.data.size();
    }
    auto header = make_header(specs, pairs, *given);
    RETURN_IF_ERROR(header);
    archive->header = std::move(*header);
    archive->size_bytes += archive->header.size();
    return archive.release();
  });
}

void stfs_new_archive_close(stfs_new_archive* archive) {
  delete archive;
}

std::uint64_t stfs_new_archive_size(const stfs_new_archive* archive) {
  return archive->size_bytes;
}

void stfs_new_archive_copy(const stfs_new_archive* archive, void* to) {
  auto* at = static_cast<std::byte*>(to);
  std::memcpy(at, archive->header.data(), archive->header.size());
  at += archive->header.size();
  for (const std::span<const std::byte> part : archive->parts) {
    if (!part.empty()) std::memcpy(at, part.data(), part.size());
    at += part.size();
  }
}

int stfs_new_archive_save(const stfs_new_archive* archive, const char* path, const stfs_save_options* options,
                          stfs_error* error) {
  return answer(error, [&]() -> Result<void> {
    if (path == nullptr) return refuse("stfs_new_archive_save: no path");
    const auto given = options == nullptr ? Result<stfs_save_options>() : take_struct(options);
    RETURN_IF_ERROR(given);
    return save(*archive, path, *given);
  });
}
