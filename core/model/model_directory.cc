// Lists a directory and sorts the names by kind.
#include "core/model/model_directory.h"

#include <fmt/format.h>

#include <algorithm>

namespace stfs {
namespace {

/// Whether the name ends in the suffix, and does not begin with a dot.
bool has_suffix(std::string_view name, std::string_view suffix) {
  return !name.starts_with('.') && name.ends_with(suffix);
}

}  // namespace

bool is_archive_name(std::string_view file_name) {
  return has_suffix(file_name, kArchiveSuffix);
}

Result<ModelDirectory> list_model_directory(const std::filesystem::path& directory, Storage& storage) {
  auto names = storage.list(directory, "");
  if (!names) return pass_on(std::move(names));
  ModelDirectory found;
  for (std::string& name : *names) {
    if (has_suffix(name, kModelIndexSuffix)) {
      found.indexes.push_back(std::move(name));
    } else if (is_archive_name(name)) {
      found.archives.push_back(std::move(name));
    }
  }
  std::ranges::sort(found.indexes);
  std::ranges::sort(found.archives);
  return found;
}

Result<std::filesystem::path> find_model_index(const std::filesystem::path& directory, Storage& storage) {
  constexpr std::size_t kShown = 5;
  const auto found = list_model_directory(directory, storage);
  if (!found) return tl::unexpected(found.error());
  const auto& indexes = found->indexes;
  if (indexes.size() == 1) return directory / indexes.front();
  if (indexes.empty()) {
    return fail(ErrorCode::NotFound, ENOENT,
                fmt::format("{}: is a directory without a *{}", directory.string(), kModelIndexSuffix));
  }
  std::string list;
  for (std::size_t at = 0; at < std::min(kShown, indexes.size()); ++at)
    list += (at > 0 ? ", " : "") + (directory / indexes[at]).string();
  if (indexes.size() > kShown) list += fmt::format(" and {} more", indexes.size() - kShown);
  return fail(ErrorCode::InvalidArgument, EINVAL,
              fmt::format("{}: is a directory of {} models; name one of their indexes: {}",
                          directory.string(), indexes.size(), list));
}

}  // namespace stfs
