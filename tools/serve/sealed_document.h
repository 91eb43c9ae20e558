// Passes a text of any length to another process: a memfd that no process can change or truncate any more.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "core/base/error.h"
#include "core/base/unique_fd.h"

namespace stfs::serve {

Result<UniqueFd> seal_document(std::string_view text);

/// @param descriptor  from an untrusted peer: it may be any file.
/// @return EPROTO: the descriptor is not sealed, or the file is smaller than size_bytes.
Result<std::string> read_document(int descriptor, std::uint64_t size_bytes);

}  // namespace stfs::serve
