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
  /// Bounds the time of a pull: hard links let a publisher make thousands of versions of one long file.
  static constexpr std::size_t kMostSteps = 10'000;

  /// Lists the versions by the names of their directories. ENOENT: there is no such directory.
  /// @param storage  must outlive it and its versions.
  /// @param most_steps  the most versions on a way; tests choose fewer.
  static Result<Publication> look(const std::filesystem::path& directory, Storage& storage = system_storage(),
                                  std::size_t most_steps = kMostSteps);

  /// The versions that may be used, ascending.
  [[nodiscard]] const std::vector<std::uint64_t>& versions() const { return versions_; }
  [[nodiscard]] std::filesystem::path path_of(std::uint64_t version) const;

  /// A version on a way. It is closed: the publisher decides how much memory an open version takes.
  struct Step {
    VersionNumber version;
    std::optional<VersionNumber> base;  // nothing: the version is full
    std::uint64_t index_hash = 0;       // of PublishedVersion
  };
  /// The versions to apply one after the other, ascending. Empty: the model has the target already. The first
  /// one may be full. Each of the others changes the one before it.
  struct Way {
    std::vector<Step> steps;
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
  ///   (ESTALE): a version was withdrawn while it was read: look again. EINVAL: the way has too
  ///   many versions. Damage: the errors of PublishedVersion::open().
  [[nodiscard]] Result<Way> way(const std::optional<std::uint64_t>& present,
                                const std::optional<std::uint64_t>& target) const;
  /// Opens the version of a step. Open one at a time.
  /// @return NotFound (ESTALE): the version is not the one that way() has found: look again. The errors of
  ///   PublishedVersion::open().
  [[nodiscard]] Result<PublishedVersion> open(const Step& step) const;

 private:
  /// Opens a version. NotFound (ESTALE): it was withdrawn. The errors of PublishedVersion::open().
  [[nodiscard]] Result<PublishedVersion> open(std::uint64_t version) const;

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

  Publication(Storage& storage, std::size_t most_steps) : storage_(&storage), most_steps_(most_steps) {}

  Storage* storage_;
  std::size_t most_steps_;
  std::filesystem::path directory_;
  std::shared_ptr<const OpenDirectory> shared_;  // null: all versions may be used
  std::vector<std::uint64_t> versions_;
  std::vector<std::uint64_t> left_out_;  // ascending; versions that may not be used
};

}  // namespace stfs::sync
