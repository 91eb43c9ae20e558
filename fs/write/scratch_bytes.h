// The bytes of a scratch file: an ordinary file in the scratch directory (core/model/scratch_directory.h). It
// is opened at its first use.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "core/base/error.h"
#include "core/base/mutex.h"
#include "core/model/scratch_directory.h"
#include "core/storage/file.h"
#include "fs/base/user_counts.h"

namespace stfs {

/// Any thread may call.
class ScratchBytes {
 public:
  /// @param directory  must outlive this object. @param name  the file's name in it.
  ScratchBytes(const ScratchDirectory& directory, std::string name)
      : directory_(directory), name_(std::move(name)) {}

  /// The file's name in the directory.
  [[nodiscard]] std::string name() const;
  void take_name(std::string name);

  // These functions open the file, which then stays open. EDQUOT if the user has too many
  // (take_descriptor()).
  Result<void> write(std::span<const std::byte> from, std::uint64_t offset);
  Result<void> resize(std::uint64_t size_bytes);
  Result<void> read(std::span<std::byte> to, std::uint64_t offset) const;
  /// Opens the file. An open file keeps its bytes when another program removes its name.
  Result<void> open() const;
  /// Closes the file. The next use opens it again.
  void close();
  /// Brings the bytes and the name to stable storage.
  Result<void> sync() const;

  /// Nothing if the file was removed.
  [[nodiscard]] std::optional<ScratchDirectory::Status> status() const;
  /// @param mtime_ns  nanoseconds since 1970.
  Result<void> set_mtime(std::int64_t mtime_ns);
  /// An attribute `user.safetensors.KEY` of the file, if the store has such attributes.
  [[nodiscard]] std::optional<std::string> attribute(std::string_view key) const;
  Result<void> set_attribute(std::string_view key, const std::string& value);

 private:
  [[nodiscard]] Result<std::shared_ptr<File>> file() const;
  /// Opens the file for one use: the file does not stay open.
  [[nodiscard]] Result<std::shared_ptr<File>> file_once() const;

  const ScratchDirectory& directory_;
  mutable Mutex mutex_;  // innermost
  std::string name_ GUARDED_BY(mutex_);
  mutable UserCounts::Share share_ GUARDED_BY(mutex_);  // of file_
  mutable std::shared_ptr<File> file_ GUARDED_BY(mutex_);
};

}  // namespace stfs
