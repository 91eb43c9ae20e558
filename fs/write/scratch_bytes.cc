#include "fs/write/scratch_bytes.h"

#include <sys/stat.h>

#include <cerrno>
#include <utility>

#include "core/base/byte_range.h"
#include "fs/write/staging_file.h"

namespace stfs {

std::string ScratchBytes::name() const {
  const std::scoped_lock lock(mutex_);
  return name_;
}

void ScratchBytes::take_name(std::string name) {
  const std::scoped_lock lock(mutex_);
  name_ = std::move(name);
}

Result<std::shared_ptr<File>> ScratchBytes::file() const {
  const std::scoped_lock lock(mutex_);
  if (file_) return file_;
  auto opened = directory_.open(name_);
  if (!opened) return pass_on(std::move(opened));
  file_ = std::move(*opened);
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
  const std::scoped_lock lock(mutex_);
  file_.reset();
}

Result<void> ScratchBytes::sync() const {
  const auto opened = file();
  if (!opened) return tl::unexpected(opened.error());
  if (auto synced = (*opened)->sync(); !synced) return synced;
  auto named = directory_.sync();
  // A file whose name was removed has no name to sync.
  return named || named.error().errno_value == ENOENT ? Result<void>() : named;
}

std::optional<ScratchDirectory::Status> ScratchBytes::status() const {
  std::shared_ptr<File> opened;
  std::string name;
  {
    const std::scoped_lock lock(mutex_);
    opened = file_;
    name = name_;
  }
  return opened ? ScratchDirectory::status_of(opened->descriptor()) : directory_.status(name);
}

Result<void> ScratchBytes::set_mtime(std::int64_t mtime_ns) {
  const auto opened = file();
  if (!opened) return tl::unexpected(opened.error());
  constexpr std::int64_t kSecondNs = 1'000'000'000;
  const struct timespec times[2] = {{.tv_sec = 0, .tv_nsec = UTIME_OMIT},
                                    {.tv_sec = mtime_ns / kSecondNs, .tv_nsec = mtime_ns % kSecondNs}};
  if (::futimens((*opened)->descriptor(), times) == 0) return {};
  return fail_system(errno, name(), "set the time");
}

}  // namespace stfs
