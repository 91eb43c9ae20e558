// Tells whether a journal lies beside an archive. Lists names only: opens neither the archive nor a journal.
#pragma once

#include <filesystem>

#include "core/base/error.h"
#include "core/storage/file.h"

namespace stfs {

/// Whether a file with the name of one of the archive's journals exists. If not, recover() has nothing to do.
/// @param archive_path  must have no symbolic links.
Result<bool> has_journal_beside(Storage& storage, const std::filesystem::path& archive_path);

}  // namespace stfs
