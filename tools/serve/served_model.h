// A generation that is served: its arenas are written, sealed and described.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/base/error.h"
#include "core/base/unique_fd.h"
#include "tools/device/arena.h"
#include "tools/serve/serve_manifest.h"
#include "tools/serve/served_layout.h"
#include "tools/upload/plan.h"

namespace stfs::serve {

/// Immutable; any number of threads may use it. The newest generation and each lease share its ownership. An
/// arena is freed when it is in neither the newest nor a leased generation.
class ServedModel {
 public:
  /// Seals the arenas.
  /// @param layout  of the plan's tensors.
  /// @return the errors of Arena::share() and manifest_of().
  static Result<std::shared_ptr<const ServedModel>> make(const ServedIdentity& identity,
                                                         const ServedLayout& layout,
                                                         const upload::Plan& plan);

  [[nodiscard]] std::uint64_t generation() const { return generation_; }
  [[nodiscard]] const std::string& version() const { return version_; }
  /// The descriptor of the manifest, then one for each arena.
  [[nodiscard]] std::span<const int> descriptors() const { return numbers_; }
  /// Returns the descriptor of the manifest, then the descriptors of the arenas that a holder of `held`
  /// lacks, in order.
  [[nodiscard]] std::vector<int> descriptors_beyond(const ServedModel& held) const;
  [[nodiscard]] std::uint64_t manifest_bytes() const { return manifest_bytes_; }
  [[nodiscard]] const std::vector<ServedArena>& arenas() const { return layout_.arenas; }
  [[nodiscard]] std::uint64_t size_bytes() const { return layout_.size_bytes(); }
  /// The size of the arenas that were made for this generation. The others are shared with the previous one.
  [[nodiscard]] std::uint64_t own_bytes() const { return layout_.own_bytes(generation_); }
  [[nodiscard]] std::uint64_t tensor_count() const { return layout_.places.size(); }

 private:
  ServedModel() = default;

  std::uint64_t generation_ = 0;
  std::string version_;
  std::uint64_t manifest_bytes_ = 0;
  ServedLayout layout_;
  std::vector<UniqueFd> descriptors_;
  std::vector<int> numbers_;  // of descriptors_
};

}  // namespace stfs::serve
