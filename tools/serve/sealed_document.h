// A text for another process, however long: a memfd that nobody can change or cut any more.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "core/base/error.h"
#include "core/base/unique_fd.h"

namespace stfs::upload {

Result<UniqueFd> seal_document(std::string_view text);

/// @param descriptor  of a stranger: it may be anything.
/// @return EPROTO where it is not sealed or not of that size.
Result<std::string> read_document(int descriptor, std::uint64_t size_bytes);

}  // namespace stfs::upload
