// One generation that is served: arenas that are written, sealed and described.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/base/error.h"
#include "core/base/unique_fd.h"
#include "tools/device/arena.h"
#include "tools/upload/plan.h"

namespace stfs::upload {

/// Immutable; any number of threads may use it. The newest generation and each lease share its ownership: the
/// memory is freed when it is no longer the newest and the last lease on it has ended.
class ServedModel {
 public:
  /// Seals the arenas.
  /// @return the errors of Arena::share() and manifest_of().
  static Result<std::shared_ptr<const ServedModel>> make(std::uint64_t generation,
                                                         std::vector<std::string> sources,
                                                         std::vector<std::shared_ptr<Arena>> arenas,
                                                         const Plan& plan);

  [[nodiscard]] std::uint64_t generation() const { return generation_; }
  /// The descriptor of the manifest, then one for each arena.
  [[nodiscard]] std::span<const int> descriptors() const { return numbers_; }
  [[nodiscard]] std::uint64_t manifest_bytes() const { return manifest_bytes_; }
  [[nodiscard]] const std::vector<std::shared_ptr<Arena>>& arenas() const { return arenas_; }
  [[nodiscard]] std::uint64_t size_bytes() const { return size_bytes_; }  // of all arenas
  [[nodiscard]] std::uint64_t tensor_count() const { return tensor_count_; }

 private:
  ServedModel() = default;

  std::uint64_t generation_ = 0;
  std::uint64_t manifest_bytes_ = 0;
  std::uint64_t size_bytes_ = 0;
  std::uint64_t tensor_count_ = 0;
  std::vector<std::shared_ptr<Arena>> arenas_;
  std::vector<UniqueFd> descriptors_;
  std::vector<int> numbers_;  // of descriptors_
};

}  // namespace stfs::upload
