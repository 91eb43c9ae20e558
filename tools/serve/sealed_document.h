// Passes a text of any length to another process: a memfd that nobody can change or truncate any more.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "core/base/error.h"
#include "core/base/unique_fd.h"

namespace stfs::upload {

Result<UniqueFd> seal_document(std::string_view text);

/// @param descriptor  from an untrusted peer: it may be anything.
/// @return EPROTO if the descriptor is not sealed or not of that size.
Result<std::string> read_document(int descriptor, std::uint64_t size_bytes);

}  // namespace stfs::upload
