// `header.json`, `metadata.json` and `archive.safetensors`, of the present version of the model and of those
// before that the kernel still knows.
//
// An edit changes all three: names, places, sizes. A program that reads one of them must not get a mix, so
// each version has files of its own, with numbers of its own. Names lead to the present ones. The files of a
// version before stay until the kernel has forgotten them, and all of its tensors keep their bytes.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string_view>
#include <vector>

#include "core/model/model.h"
#include "fs/read/tensor_reader.h"
#include "fs/read/views_archive.h"
#include "fs/tree/inode_table.h"

namespace stfs {

/// Any thread may call; one thread at a time makes the next version. No lock is taken while its mutex is
/// held.
class WholeViews {
 public:
  enum class Part : std::uint8_t { HeaderJson = 3, MetadataJson = 4, Archive = 5 };
  /// The numbers are first + kStride * version + part, below end.
  static constexpr Ino kStride = 8;

  /// @param reader  must outlive this object.
  WholeViews(std::shared_ptr<Model> model, const TensorReader& reader, Ino first);

  /// The part that a number from `first` on stands for, of any version; nothing for others.
  [[nodiscard]] static std::optional<Part> part(Ino ino, Ino first) {
    const Ino at = (ino - first) % kStride;
    const bool is_part = at >= 3 && at <= static_cast<Ino>(Part::Archive);
    return is_part ? std::optional(static_cast<Part>(at)) : std::nullopt;
  }
  /// The number of the present version's file.
  [[nodiscard]] Ino present(Part part) const;
  /// Of the file's version; null if it has gone.
  [[nodiscard]] std::shared_ptr<const ArchiveView> view(Ino ino) const;

  /// Counts a look-up that the kernel gets.
  void note_lookup(Ino ino);
  /// @return whether that was the last one of a version before.
  bool forget(Ino ino, std::uint64_t lookups);
  /// The numbers of all archive.safetensors.
  [[nodiscard]] std::vector<Ino> archives() const;
  /// Whether a version before, which the kernel still knows, has the tensor.
  [[nodiscard]] bool has_before(TensorId tensor) const;

  /// Call before an edit changes the header, which files of the present version show.
  Result<void> prepare_next();
  struct Version {
    std::shared_ptr<Model> model;
    std::shared_ptr<ArchiveView> view;
    std::uint64_t lookups = 0;
  };
  using Versions = std::map<std::uint64_t, Version>;
  /// Makes the files of the model that is shown next.
  [[nodiscard]] Versions::node_type next(std::shared_ptr<Model> model) const;
  /// Shows them. One thread at a time.
  void show(Versions::node_type next) noexcept;

 private:
  [[nodiscard]] std::uint64_t version_of(Ino ino) const { return (ino - first_) / kStride; }
  [[nodiscard]] Ino number(std::uint64_t version, Part part) const {
    return first_ + kStride * version + static_cast<Ino>(part);
  }

  const TensorReader& reader_;
  const Ino first_;
  mutable std::mutex mutex_;  // guards what follows
  Versions versions_;         // the last one is the present one
};

}  // namespace stfs
