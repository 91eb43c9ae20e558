// The directory in which training publishes its versions, weight_v000000 and on, and the way from one version
// to another.
//
// If the directory has the sticky bit and other users may write it, any of these users may make a version
// there, but may not replace the versions of others. A version is then used only if check_publisher() accepts
// its owner. Without the sticky bit the owner proves nothing: each user who may write the directory may
// replace any version.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <set>
#include <vector>

#include "core/base/error.h"
#include "core/storage/file.h"
#include "core/storage/open_directory.h"
#include "tools/sync/published_version.h"

namespace stfs::sync {

/// Fails (EPERM) unless this process's user, root or the owner of the published directory has made the
/// directory of a version: any other owner can change the version, and read it whatever its mode.
/// @param owner            of the version's directory.
/// @param published_owner  of the directory of all versions.
/// @param version          the path of the version's directory, for the message.
Result<void> check_publisher(std::uint32_t owner, std::uint32_t published_owner,
                             const std::filesystem::path& version, const Storage& storage);

/// The content of the directory at one moment. Versions may come and go at any time.
class Publication {
 public:
  /// Lists the versions by the names of their directories. ENOENT: there is no such directory.
  /// @param storage  must outlive it and its versions.
  static Result<Publication> look(const std::filesystem::path& directory,
                                  Storage& storage = system_storage());

  /// The versions that may be used, ascending.
  [[nodiscard]] const std::vector<std::uint64_t>& versions() const { return versions_; }
  [[nodiscard]] std::filesystem::path path_of(std::uint64_t version) const;

  /// The versions to apply one after the other, ascending. Empty: the model has the target already. The first
  /// one may be full. Each of the others changes the one before it.
  struct Way {
    std::vector<PublishedVersion> versions;
    /// The reason why a newer version is not whole yet; or else why the newest version is left out. Only
    /// without a target.
    std::optional<Error> unfinished{};
  };
  /// Finds the way to a version: back from the target along base_version, up to the model's version or to a
  /// full version.
  /// @param present  the model's version. Nothing: it is not known, so a chain may begin with any base, whose
  ///                 tensors the checksums prove.
  /// @param target   nothing: the newest version that is whole.
  /// @return EAGAIN (is_unfinished): the target is not published yet or is left out, or a version on the way
  ///   is not whole yet. NotFound (ENOENT): a version on the way is not published or is left out. NotFound
  ///   (ESTALE): a version was withdrawn while it was read: look again. Damage: the errors of
  ///   PublishedVersion::open().
  [[nodiscard]] Result<Way> way(const std::optional<std::uint64_t>& present,
                                const std::optional<std::uint64_t>& target) const;

 private:
  /// @param looked_at  versions on ways that are not whole: a way that leads to one of them is not whole
  /// either. The call adds the versions of this way.
  [[nodiscard]] Result<Way> way_to(const std::optional<std::uint64_t>& present, std::uint64_t target,
                                   std::set<std::uint64_t>& looked_at) const;

  /// Fails unless the version may be used. ENOENT: it does not exist. EXDEV: another user's mount.
  [[nodiscard]] Result<void> check_version(std::uint64_t version) const;
  /// Returns the reason why look() has left a version out. Nothing for other versions.
  [[nodiscard]] std::optional<Error> why_left_out(std::uint64_t version) const;
  /// Returns the same for the newest version, if it is newer than the model's version.
  [[nodiscard]] std::optional<Error> why_newest_left_out(const std::optional<std::uint64_t>& present) const;

  explicit Publication(Storage& storage) : storage_(&storage) {}

  Storage* storage_;
  std::filesystem::path directory_;
  std::shared_ptr<const OpenDirectory> shared_;  // null: all versions may be used
  std::vector<std::uint64_t> versions_;
  std::vector<std::uint64_t> left_out_;  // ascending; versions that may not be used
};

}  // namespace stfs::sync
