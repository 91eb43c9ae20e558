#include "fs/write/scratch_bytes.h"

#include <sys/stat.h>
#include <sys/xattr.h>

#include <cerrno>
#include <utility>

#include "core/base/byte_range.h"
#include "core/base/mutex.h"
#include "core/storage/attribute_names.h"
#include "fs/write/staging_file.h"

namespace stfs {
namespace {

std::string name_of_attribute(std::string_view key) {
  return std::string(kAttributePrefix).append(key);
}

}  // namespace

std::string ScratchBytes::name() const {
  const MutexLock lock(mutex_);
  return name_;
}

void ScratchBytes::take_name(std::string name) {
  const MutexLock lock(mutex_);
  name_ = std::move(name);
}

Result<std::shared_ptr<File>> ScratchBytes::file() const {
  const MutexLock lock(mutex_);
  if (file_) return file_;
  auto share = take_descriptor(requesting_user());
  RETURN_IF_ERROR(share);
  auto opened = directory_.open(name_);
  RETURN_IF_ERROR(opened);
  file_ = std::move(*opened);
  share_ = std::move(*share);
  return file_;
}

Result<void> ScratchBytes::write(std::span<const std::byte> from, std::uint64_t offset) {
  const auto range = ByteRange::checked(offset, from.size());
  if (!range || range->end() > kMostFileBytes) return fail_system(EFBIG, name(), "write");
  const auto opened = file();
  return opened ? (*opened)->write(from, offset) : tl::unexpected(opened.error());
}

Result<void> ScratchBytes::resize(std::uint64_t size_bytes) {
  if (size_bytes > kMostFileBytes) return fail_system(EFBIG, name(), "resize");
  const auto opened = file();
  return opened ? (*opened)->resize(size_bytes) : tl::unexpected(opened.error());
}

Result<void> ScratchBytes::read(std::span<std::byte> to, std::uint64_t offset) const {
  if (to.empty()) return {};
  const auto opened = file();
  return opened ? (*opened)->read(to, offset) : tl::unexpected(opened.error());
}

Result<void> ScratchBytes::open() const {
  const auto opened = file();
  return opened ? Result<void>() : tl::unexpected(opened.error());
}

void ScratchBytes::close() {
  const MutexLock lock(mutex_);
  file_.reset();
  share_.reset();
}

Result<void> ScratchBytes::sync() const {
  const auto opened = file();
  RETURN_IF_ERROR(opened);
  RETURN_IF_ERROR((*opened)->sync());
  auto named = directory_.sync();
  // A file whose name was removed has no name to sync.
  return named || named.error().errno_value == ENOENT ? Result<void>() : named;
}

std::optional<ScratchDirectory::Status> ScratchBytes::status() const {
  std::shared_ptr<File> opened;
  std::string name;
  {
    const MutexLock lock(mutex_);
    opened = file_;
    name = name_;
  }
  return opened ? ScratchDirectory::status_of(opened->descriptor()) : directory_.status(name);
}

Result<void> ScratchBytes::set_mtime(std::int64_t mtime_ns) {
  const auto opened = file();
  RETURN_IF_ERROR(opened);
  constexpr std::int64_t kSecondNs = 1'000'000'000;
  const struct timespec times[2] = {{.tv_sec = 0, .tv_nsec = UTIME_OMIT},
                                    {.tv_sec = mtime_ns / kSecondNs, .tv_nsec = mtime_ns % kSecondNs}};
  if (::futimens((*opened)->descriptor(), times) == 0) return {};
  return fail_system(errno, name(), "set the time");
}

Result<std::shared_ptr<File>> ScratchBytes::file_once() const {
  const MutexLock lock(mutex_);
  if (file_) return file_;
  auto opened = directory_.open(name_);
  RETURN_IF_ERROR(opened);
  return std::shared_ptr<File>(std::move(*opened));
}

std::optional<std::string> ScratchBytes::attribute(std::string_view key) const {
  const auto opened = file_once();
  if (!opened) return std::nullopt;
  constexpr std::size_t kMostBytes = 4096;
  std::string value(kMostBytes, '\0');
  const ssize_t size =
      ::fgetxattr((*opened)->descriptor(), name_of_attribute(key).c_str(), value.data(), value.size());
  if (size < 0) return std::nullopt;
  value.resize(static_cast<std::size_t>(size));
  return value;
}

Result<void> ScratchBytes::set_attribute(std::string_view key, const std::string& value) {
  const auto opened = file_once();
  RETURN_IF_ERROR(opened);
  const std::string attribute = name_of_attribute(key);
  if (::fsetxattr((*opened)->descriptor(), attribute.c_str(), value.data(), value.size(), 0) == 0) return {};
  const int why = errno;
  return fail_system(why, name(), "set " + attribute);
}

}  // namespace stfs
