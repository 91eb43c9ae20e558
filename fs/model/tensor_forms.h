// Reads dtypes, shapes and metadata from attributes that programs set.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/error.h"
#include "core/format/dtype.h"
#include "fs/write/new_tensor.h"
#include "fs/write/pending_file.h"

namespace stfs {

// EINVAL with a message for the user, if the text is not valid.
Result<Dtype> dtype_of_text(const std::string& text);
Result<std::vector<std::uint64_t>> shape_of_attribute(const std::string& text);
/// Metadata are UTF-8.
Result<void> check_metadata(std::string_view key, const std::optional<std::string>& value);

/// Returns the form that a tensor's bytes get if its attribute `dtype` or `shape` is set. A shape may need
/// another size.
Result<NewTensor::Form> retyped(std::string_view name, NewTensor::Form now, std::string_view key,
                                const std::string& value);
/// Sets `dtype` or `shape` of a content that becomes a tensor. The caller holds the content's mutex, or the
/// content is a draft's. EPERM for a checkpoint.
Result<void> set_form(const PendingFile& content, std::string_view key, const std::string& value);

}  // namespace stfs
