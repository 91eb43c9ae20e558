// Whether a journal lies beside an archive. Asks for names only: neither the archive nor a journal is opened.
#pragma once

#include <filesystem>

#include "core/base/error.h"
#include "core/storage/file.h"

namespace stfs {

/// Something lies there that has a journal's name. Without, recover() has nothing to do.
/// @param archive_path  without links.
Result<bool> has_journal_beside(Storage& storage, const std::filesystem::path& archive_path);

}  // namespace stfs
