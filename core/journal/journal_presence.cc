// Lists the names beside the archive.
#include "core/journal/journal_presence.h"

#include "core/journal/journal_format.h"

namespace stfs {

Result<bool> has_journal_beside(Storage& storage, const std::filesystem::path& archive_path) {
  auto names = storage.list(archive_path.parent_path(), journal_prefix(archive_path.filename().string()));
  if (!names) return pass_on(std::move(names));
  return !names->empty();
}

}  // namespace stfs
