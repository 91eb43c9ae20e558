#include "core/model/model_directory.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "core/format/json_string.h"
#include "core/storage/file_attributes.h"

namespace stfs {
namespace {

/// Returns true if the name ends in the suffix and does not begin with a dot.
bool has_suffix(std::string_view name, std::string_view suffix) {
  return !name.starts_with('.') && name.ends_with(suffix);
}

}  // namespace

bool is_archive_name(std::string_view file_name) {
  return has_suffix(file_name, kArchiveSuffix);
}

bool is_called_as_model(const std::filesystem::path& path) {
  const std::string name = path.filename();
  return name.ends_with(kArchiveSuffix) || name.ends_with(kModelIndexSuffix);
}

Result<FollowedFile> follow_named_path(const std::filesystem::path& path) {
  auto found = follow_all_links(path);
  if (found || found.error().errno_value != EXDEV || is_called_as_model(path)) return found;
  return follow_all_links(path / "");
}

bool is_directory_of_models(const std::filesystem::path& path) {
  const auto found = follow_named_path(path);
  return found && S_ISDIR(found->status.st_mode);
}

Result<ModelDirectory> list_model_directory(const std::filesystem::path& directory, Storage& storage) {
  auto names = storage.list(directory, "");
  RETURN_IF_ERROR(names);
  ModelDirectory found;
  for (std::string& name : *names) {
    if (has_suffix(name, kModelIndexSuffix)) {
      const bool is_planted = may_be_planted(storage, directory / name);
      (is_planted ? found.ignored_indexes : found.indexes).push_back(std::move(name));
    } else if (is_archive_name(name)) {
      found.archives.push_back(std::move(name));
    }
  }
  std::ranges::sort(found.indexes);
  std::ranges::sort(found.archives);
  std::ranges::sort(found.ignored_indexes);
  return found;
}

void leave_out_planted(const Storage& storage, const std::filesystem::path& directory,
                       std::vector<std::string>& archives) {
  if (archives.size() < 2) return;
  const auto is_planted = [&](const std::string& name) { return may_be_planted(storage, directory / name); };
  std::vector<std::string> others;
  std::ranges::remove_copy_if(archives, std::back_inserter(others), is_planted);
  if (!others.empty()) archives = std::move(others);
}

std::string ModelDirectory::ignored_text(const std::filesystem::path& directory, Storage& storage) const {
  if (ignored_indexes.empty()) return {};
  const auto there = storage.status_of_name(directory / ignored_indexes.front());
  std::string why = "is gone now";
  if (there) {
    why = fmt::format("belongs to user {}{}", there->uid,
                      there->links > 1 ? fmt::format(" and has {} names", there->links) : "");
  } else if (there.error().errno_value == EXDEV) {
    why = "is a mount of another file system";
  }
  return fmt::format(
      "the index {}{} is ignored: other users may write the directory, and it {}: name the index to use it",
      in_quotes(ignored_indexes.front()),
      ignored_indexes.size() > 1 ? fmt::format(" (and {} more)", ignored_indexes.size() - 1) : "", why);
}

Result<std::filesystem::path> find_model_index(const std::filesystem::path& directory, Storage& storage) {
  constexpr std::size_t kShown = 5;
  const auto found = list_model_directory(directory, storage);
  RETURN_IF_ERROR(found);
  const auto& indexes = found->indexes;
  if (indexes.size() == 1) return directory / indexes.front();
  if (indexes.empty()) {
    const std::string ignored = found->ignored_text(directory, storage);
    return fail(ErrorCode::NotFound, ENOENT,
                fmt::format("{}: is a directory without a *{}{}{}", directory.string(), kModelIndexSuffix,
                            ignored.empty() ? "" : "; ", ignored));
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
