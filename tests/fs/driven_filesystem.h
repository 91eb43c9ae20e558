// The driver without a kernel: an archive in its own directory, the file system of the archive, and file
// descriptors that send the kernel's requests for open, write and close.
//
// The archive is built and its bytes are read without the code under test.
#pragma once

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "fs/model/mounted_model.h"
#include "tests/support/captured_stderr.h"
#include "tests/support/plain.h"
#include "tests/support/temporary_directory.h"
#include "tests/support/text_archive.h"

namespace stfs::test {

inline const std::string kOld(16, 'A');     // of "first"
inline const std::string kSecond(16, 'B');  // of "second"
inline const std::string kNew = "0123456789abcdef";
inline const Tensors kTwoTensors = {{"first", kOld}, {"second", kSecond}};

inline const MountedModelOptions kTreeLayout = [] {
  MountedModelOptions options;
  options.layout = Layout::Tree;
  return options;
}();
inline const MountedModelOptions kReadOnly = [] {
  MountedModelOptions options;
  options.is_read_only = true;
  return options;
}();

class DrivenFilesystem {
 public:
  explicit DrivenFilesystem(Tensors tensors = kTwoTensors, const MountedModelOptions& options = {},
                            Storage& storage = system_storage(), std::string_view metadata = "")
      : tensors_(std::move(tensors)) {
    const std::string bytes = archive_of(tensors_, metadata);
    data_offset_ = bytes.size();
    for (const auto& [name, content] : tensors_) data_offset_ -= content.size();
    path_ = directory_.write("model.safetensors", bytes);
    open(options, storage);
  }

  /// Ends the mount. Its descriptors must be closed.
  void close() { filesystem_.reset(); }
  /// Mounts the archive again, as it is now. Files that an earlier mount has open stay in use until close().
  void open(const MountedModelOptions& options = {}, Storage& storage = system_storage()) {
    auto archive = Archive::open(path_, options.is_read_only ? Access::ReadOnly : Access::ReadWrite, storage);
    if (!archive) throw std::runtime_error(archive.error().message);
    filesystem_ = std::make_unique<MountedModel>(std::move(*archive), options);
  }

  MountedModel& operator*() const { return *filesystem_; }
  MountedModel* operator->() const { return filesystem_.get(); }
  [[nodiscard]] const std::string& path() const { return path_; }
  [[nodiscard]] const TemporaryDirectory& directory() const { return directory_; }

  [[nodiscard]] Ino ino(std::string_view file_name, Ino parent = kRootIno) const {
    const auto found = filesystem_->lookup(parent, file_name);
    if (!found) throw std::runtime_error("no file " + std::string(file_name));
    return found->st_ino;
  }
  /// Returns the bytes that a reader of the whole file gets.
  [[nodiscard]] Result<std::string> read(std::string_view file_name) const {
    constexpr std::size_t kMoreThanAny = 1 << 26;
    const auto bytes = filesystem_->read(ino(file_name), 0, kMoreThanAny);
    if (!bytes) return tl::unexpected(bytes.error());
    return text_of(bytes->copy().value());
  }
  /// The attribute `user.safetensors.KEY`.
  [[nodiscard]] Result<std::string> attribute(std::string_view file_name, std::string_view key) const {
    return filesystem_->extended_attribute(ino(file_name), fmt::format("user.safetensors.{}", key));
  }
  [[nodiscard]] std::uint64_t generation(std::string_view file_name) const {
    return std::stoull(attribute(file_name, "generation").value());
  }

  /// Checks for a foreign change. Returns true if the content of every tensor may be different now.
  [[nodiscard]] bool notices_change() const {
    const Stale stale = filesystem_->check_for_change().stale;
    return stale.what == Stale::What::Content && stale.first == kRootIno + 1 &&
           stale.last == kRootIno + tensors_.size();
  }

  /// Returns the offset in the archive of this tensor's data. `tensor` is the tensor's true name.
  [[nodiscard]] std::uint64_t offset_of(std::string_view tensor) const {
    std::uint64_t offset = data_offset_;
    for (const auto& [name, content] : tensors_) {
      if (name == tensor) return offset;
      offset += content.size();
    }
    throw std::runtime_error("no tensor " + std::string(tensor));
  }
  /// The tensor's bytes in the archive's file.
  [[nodiscard]] std::string stored(std::string_view tensor) const {
    for (const auto& [name, content] : tensors_) {
      if (name == tensor) return content_of(path_).substr(offset_of(tensor), content.size());
    }
    throw std::runtime_error("no tensor " + std::string(tensor));
  }
  /// Writes into the archive without the mount. The archive's mtime is certainly different afterwards.
  void overwrite(std::uint64_t offset, std::string_view bytes) const {
    const int fd = ::open(path_.c_str(), O_WRONLY | O_CLOEXEC);
    const ssize_t put = ::pwrite(fd, bytes.data(), bytes.size(), static_cast<off_t>(offset));
    const struct timespec later[2] = {{0, UTIME_OMIT}, {next_mtime_++, 0}};
    const int changed = ::futimens(fd, later);
    ::close(fd);
    if (put != static_cast<ssize_t>(bytes.size()) || changed != 0) throw std::runtime_error("overwrite");
  }

 private:
  TemporaryDirectory directory_;
  Tensors tensors_;
  std::uint64_t data_offset_ = 0;
  std::string path_;
  mutable std::time_t next_mtime_ = ::time(nullptr) + 60;
  std::unique_ptr<MountedModel> filesystem_;
};

/// A mount of kTwoTensors, and its messages.
struct Mounted {
  DrivenFilesystem mount;
  CapturedStderr captured;
};

}  // namespace stfs::test
