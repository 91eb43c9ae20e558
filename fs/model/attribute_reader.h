// The extended attributes of a model's file system: a tensor's name, dtype, shape and place, and the model's
// metadata.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/error.h"
#include "fs/model/foreign_changes.h"
#include "fs/model/model_parts.h"

namespace stfs {

/// Any thread may call. ENODATA if there is no attribute of that name. E2BIG for a value that is longer than
/// the kernel passes on (kMostAttributeBytes): no text of it is made.
class AttributeReader {
 public:
  /// Must not outlive the parts.
  AttributeReader(ModelParts& parts, const ForeignChanges& foreign) : parts_(parts), foreign_(foreign) {}

  [[nodiscard]] Result<std::string> get(Ino ino, std::string_view name) const;
  /// Leaves out what the kernel can't pass on: values over 64 KiB, and what makes the list longer than that.
  /// The kernel asks no right for a list of attributes. The keys of the metadata are listed only to a caller
  /// who may read them.
  [[nodiscard]] Result<std::vector<std::string>> list(Ino ino, const Maker& caller) const;

 private:
  [[nodiscard]] Result<std::string> of_root(std::string_view key) const;
  [[nodiscard]] Result<std::string> of_tensor(TensorId tensor, std::string_view key) const;
  /// Is the same before and after a reading only if no bytes of the tensor have changed meanwhile.
  [[nodiscard]] std::uint64_t generation_of(TensorId tensor) const;
  /// @param ino  of the model.
  [[nodiscard]] Result<std::string> of_view(Ino ino, std::string_view key) const;
  [[nodiscard]] Result<std::string> of_staged(const Node& node, std::string_view key) const;
  [[nodiscard]] static Result<std::string> of_draft(const PendingContent& content, std::string_view key);
  [[nodiscard]] Result<std::string> delta_attribute() const;
  /// A JSON list.
  [[nodiscard]] Result<std::string> deleted_names(Ino transaction) const;
  /// The path of a tensor's file from the mount's root. ENODATA if it was deleted.
  [[nodiscard]] Result<std::string> own_file(TensorId tensor) const;
  /// EACCES if some users may read one shard but not all.
  [[nodiscard]] Result<void> check_metadata_readable() const;
  [[nodiscard]] bool may_read_metadata(const Maker& caller) const;

  ModelParts& parts_;
  const ForeignChanges& foreign_;
};

}  // namespace stfs
