// An archive with a journal that a dead process has left beside it, and a storage that runs in any boot.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/journal/recovery.h"
#include "tests/support/archive_bytes.h"
#include "tests/support/overwrite.h"
#include "tests/support/planted_journal.h"
#include "tests/support/temporary_directory.h"
#include "tests/support/watched_storage.h"

namespace stfs::test {

inline Boot later_boot() {
  Boot boot = system_storage().boot();
  boot.id[0] ^= 1U;
  return boot;
}

/// Returns the boot of a host. Each host has its own boot id. Host 0 has no identity, such as a container
/// without /etc/machine-id.
inline Boot boot_of_host(std::uint64_t host) {
  Boot boot = system_storage().boot();
  boot.id[0] ^= static_cast<std::uint8_t>(host + 1);
  boot.host = host;
  return boot;
}

/// An archive with a header of exactly one block, and one tensor of three blocks.
struct Scene {
  Scene() {
    std::string header = R"({"t":{"dtype":"U8","shape":[12288],"data_offsets":[0,12288]}})";
    header.resize(kBlockBytes - 8, ' ');
    path = directory.write("m.safetensors", archive_bytes(header, std::string(3 * kBlockBytes, 'o')));
    before = content_of(path);
  }
  /// Plants a journal with two blocks of new bytes.
  std::filesystem::path plant(const std::function<void(ArchiveStamp&)>& change_stamp = {},
                              Storage& storage = system_storage()) const {
    return plant_journal(path, kBlockBytes, std::string(2 * kBlockBytes, 'n'), change_stamp, storage);
  }
  [[nodiscard]] std::unique_ptr<File> open() const {
    return system_storage().open(path, Access::ReadOnly).value();
  }
  void write(std::uint64_t offset, std::string_view bytes) const { overwrite(path, offset, bytes); }
  [[nodiscard]] std::string patched() const {
    return std::string(before).replace(kBlockBytes, 2 * kBlockBytes, std::string(2 * kBlockBytes, 'n'));
  }
  [[nodiscard]] bool is_untouched() const { return content_of(path) == before; }
  Result<std::vector<JournalReport>> recover_all(Storage& storage = system_storage(),
                                                 const RecoveryOptions& options = {}) const {
    auto file = storage.open(path, Access::ReadWrite).value();
    return recover(storage, path, *file, options);
  }
  JournalReport recover_one(Storage& storage = system_storage(), const RecoveryOptions& options = {}) const {
    auto reports = recover_all(storage, options);
    if (!reports) throw std::runtime_error(reports.error().message);
    if (reports->size() != 1) throw std::runtime_error("one journal expected");
    return reports->front();
  }
  /// Returns the obstacle that a commit finds.
  [[nodiscard]] Result<Obstacle> obstacle(Storage& storage = system_storage()) const {
    const auto file = storage.open(path, Access::ReadWrite).value();
    const ByteRange block{kBlockBytes, kBlockBytes};
    return find_obstacle(storage, path, *file, std::span(&block, 1));
  }

  TemporaryDirectory directory;
  std::string path;
  std::string before;
};

/// An archive, and the journal of a dead owner with two blocks of new bytes.
struct Planted {
  Scene scene;
  std::filesystem::path journal = scene.plant();
};

inline FileStatus status_of(std::uint32_t uid, std::uint32_t gid, std::uint32_t mode) {
  FileStatus status;
  status.uid = uid;
  status.gid = gid;
  status.mode = mode;
  return status;
}

}  // namespace stfs::test
