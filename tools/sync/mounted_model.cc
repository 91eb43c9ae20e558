// Reads attributes, and reads the tensors' files past the kernel's page cache.
#include "tools/sync/mounted_model.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <charconv>
#include <system_error>
#include <utility>

#include "core/base/unique_fd.h"
#include "core/format/json_string.h"
#include "core/storage/attribute_names.h"
#include "core/storage/system_file.h"
#include "tools/target/target.h"

namespace stfs::sync {
namespace {

namespace fs = std::filesystem;

constexpr const char* kGenerationAttribute = "user.safetensors.generation";
constexpr const char* kFirstGenerationAttribute = "user.safetensors.first_generation";
constexpr const char* kChecksumAttribute = "user.safetensors.checksum";
constexpr std::string_view kChecksumKind = "xxh128:";  // XXH3, 128 bits

/// Returns the number in an attribute of a file in a mount.
std::optional<std::uint64_t> number_at(const fs::path& path, const char* attribute) {
  const auto text = tools::read_mount_attribute(path, attribute);
  if (!text) return std::nullopt;
  std::uint64_t number = 0;
  const auto [end, failed] = std::from_chars(text->data(), text->data() + text->size(), number);
  return failed == std::errc() && end == text->data() + text->size() ? std::optional(number) : std::nullopt;
}

/// Bypasses the page cache: the mount notifies the kernel of a change only after the change.
UniqueFd open_past_cache(const fs::path& path) {
  constexpr int kFlags = O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC;
  UniqueFd file(::open(path.c_str(), kFlags | O_DIRECT));
  if (!file && errno == EINVAL) file = UniqueFd(::open(path.c_str(), kFlags));
  return file;
}

}  // namespace

bool is_mounted_model(const fs::path& path) {
  return tools::read_mount_attribute(path, kArchiveAttribute) &&
         !tools::read_mount_attribute(path, kNameAttribute) &&
         !tools::read_mount_attribute(path, kViewAttribute);
}

Result<void> MountedTensor::read(std::uint64_t offset, std::span<std::byte> to) {
  if (offset == 0) {
    stream_ = std::make_unique<Checksum>();
    read_bytes_ = 0;
  }
  if (auto read = file_->read(to, offset); !read) {
    if (read.error().code != ErrorCode::ArchiveCut) return read;
    return fail(ErrorCode::ArchiveChanged, ESTALE, path_.string() + ": has become shorter");
  }
  stream_->update(to);
  read_bytes_ += to.size();
  if (read_bytes_ < size_bytes_) return {};
  std::string checksum = stream_->hex();
  has_other_ = has_other_ || (!checksum_.empty() && checksum_ != checksum);
  checksum_ = std::move(checksum);
  return {};
}

Result<bool> MountedTensor::is_whole() const {
  if (size_bytes_ == 0) return true;
  if (has_other_ || read_bytes_ != size_bytes_) return false;
  constexpr std::size_t kMostBytes = 256;
  std::array<char, kMostBytes> text{};
  const ssize_t size = ::fgetxattr(file_->descriptor(), kChecksumAttribute, text.data(), text.size());
  if (size < 0 && errno == EBUSY) return false;  // it changes all the time
  if (size < 0) return fail_system(errno, path_.string(), "read its checksum");
  std::string_view theirs(text.data(), static_cast<std::size_t>(size));
  if (!theirs.starts_with(kChecksumKind)) {
    return fail(ErrorCode::System, EIO, fmt::format("{}: its checksum is {}", path_.string(), theirs));
  }
  theirs.remove_prefix(kChecksumKind.size());
  return theirs == checksum_;
}

Result<MountedModel> MountedModel::look(const fs::path& root, const Model& archive) {
  MountedModel model;
  const auto generation = number_at(root, kGenerationAttribute);
  const auto first = number_at(root, kFirstGenerationAttribute);
  if (!generation || !first) {
    return fail(
        ErrorCode::System, EOPNOTSUPP,
        root.string() + ": the mount tells no generation: unmount it, and mount it with this version");
  }
  model.generation_ = *generation;
  model.first_generation_ = *first;
  std::error_code failed;
  // Files without a form may be among the tensors. Another user's mount could list names without end.
  constexpr std::uint64_t kMostOthers = 1U << 20U;
  std::uint64_t left = archive.tensors().size() + kMostOthers;
  auto entry = fs::recursive_directory_iterator(root, failed);
  for (; !failed && entry != fs::recursive_directory_iterator(); entry.increment(failed)) {
    if (left-- == 0) {
      return fail(ErrorCode::InvalidArgument, EOVERFLOW,
                  root.string() + ": lists far more files than its archive has tensors: name the archive");
    }
    std::error_code unknown;
    if (entry->is_directory(unknown)) {
      if (entry.depth() == 0 && entry->path().filename() == ".safetensors") entry.disable_recursion_pending();
      continue;
    }
    if (!entry->is_regular_file(unknown)) continue;
    auto name = tools::read_mount_attribute(entry->path(), kNameAttribute);
    const auto of_tensor = number_at(entry->path(), kGenerationAttribute);
    if (name && of_tensor && archive.find(*name))
      model.tensors_.emplace(std::move(*name), Entry{entry->path(), *of_tensor});
  }
  if (failed) return fail_system(failed.value(), root.string(), "list");
  return model;
}

std::optional<bool> MountedModel::may_have_changed(std::string_view name, std::uint64_t since) const {
  const auto found = tensors_.find(std::string(name));
  if (found == tensors_.end()) return std::nullopt;
  return since < first_generation_ || found->second.generation > since;
}

Result<MountedTensor> MountedModel::open(std::string_view name, std::uint64_t size_bytes) const {
  const auto found = tensors_.find(std::string(name));
  if (found == tensors_.end()) {
    return fail(ErrorCode::ArchiveChanged, ESTALE,
                fmt::format("the mount has no tensor {}: it was edited meanwhile", in_quotes(name)));
  }
  const fs::path& path = found->second.path;
  UniqueFd opened = open_past_cache(path);
  if (!opened) return fail_system(errno, path.string(), "open");
  auto file = make_system_file(std::move(opened), path.string());
  const auto now_bytes = file->size_bytes();
  RETURN_IF_ERROR(now_bytes);
  if (*now_bytes != size_bytes) {
    return fail(ErrorCode::ArchiveChanged, ESTALE,
                fmt::format("{}: has {} bytes, and had {}: it was edited meanwhile", path.string(),
                            *now_bytes, size_bytes));
  }
  return MountedTensor(path, std::move(file), size_bytes);
}

}  // namespace stfs::sync
