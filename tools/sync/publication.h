// The directory in which training publishes its versions, weight_v000000 and on, and the way from one version
// to another.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <set>
#include <vector>

#include "core/base/error.h"
#include "core/storage/file.h"
#include "tools/sync/published_version.h"

namespace stfs::sync {

/// One look at the directory. Versions may come and go at any time.
class Publication {
 public:
  /// Lists the versions by the names of their directories. ENOENT: there is no such directory.
  /// @param storage  must outlive it and its versions.
  static Result<Publication> look(const std::filesystem::path& directory,
                                  Storage& storage = system_storage());

  /// Ascending.
  [[nodiscard]] const std::vector<std::uint64_t>& versions() const { return versions_; }
  [[nodiscard]] std::filesystem::path path_of(std::uint64_t version) const;

  /// The versions to apply one after the other, ascending. Empty: the model has the target already. The first
  /// one may be full; the others change the one before each.
  struct Way {
    std::vector<PublishedVersion> versions;
    /// A newer version that is not whole yet, and why. Only without a target.
    std::optional<Error> unfinished{};
  };
  /// Finds the way to a version: back from the target along base_version, up to the model's version or to a
  /// full version.
  /// @param present  the model's version. Nothing: it is not known, so a chain may begin with any base, whose
  ///                 tensors the checksums prove.
  /// @param target   nothing: the newest version that is whole.
  /// @return EAGAIN (is_unfinished): the target is not published yet, or a version on the way is not whole
  /// yet.
  ///   NotFound (ENOENT): a version on the way is not published. NotFound (ESTALE): a version went away while
  ///   it was read: look again. Damage as PublishedVersion::open().
  [[nodiscard]] Result<Way> way(const std::optional<std::uint64_t>& present,
                                const std::optional<std::uint64_t>& target) const;

 private:
  /// @param looked_at  versions on ways that are not whole: a way that leads to one of them is not, either.
  ///                   Those of this way are added.
  [[nodiscard]] Result<Way> way_to(const std::optional<std::uint64_t>& present, std::uint64_t target,
                                   std::set<std::uint64_t>& looked_at) const;

  explicit Publication(Storage& storage) : storage_(&storage) {}

  Storage* storage_;
  std::filesystem::path directory_;
  std::vector<std::uint64_t> versions_;
};

}  // namespace stfs::sync
