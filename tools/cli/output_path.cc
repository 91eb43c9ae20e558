// Compares files, not names: a link to an archive is the archive.
#include "tools/cli/output_path.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>

namespace stfs::tools {
namespace {

bool has_file(const Model& model, const std::filesystem::path& path) {
  const auto there = system_storage().status(path);
  const auto is_same = [&](const std::filesystem::path& other) {
    const auto its = there ? system_storage().status(other) : there;
    return its && its->identity.same_file(there->identity);
  };
  return is_same(model.path()) ||
         std::ranges::any_of(model.shards(), [&](const Shard& shard) { return is_same(shard.path); });
}

}  // namespace

std::optional<std::string> obstacle_at(const std::filesystem::path& path,
                                       std::initializer_list<ReadModel> models, bool is_replacing) {
  const auto there = system_storage().status(path);
  if (there && S_ISDIR(there->mode)) return "is a directory: name the file to write";
  const auto named = system_storage().status_of_name(path);  // a dangling link is also an obstacle
  if (!named && named.error().errno_value == EXDEV) return "lies in another mount, which is not entered";
  if (!named) return std::nullopt;
  for (const auto& [model, argument] : models) {
    if (has_file(*model, path)) {
      return fmt::format("belongs to {}: write a new file, then rename it", argument);
    }
  }
  if (!is_replacing) return "exists already: --force replaces it";
  return std::nullopt;
}

Result<NewFile> create_output(const std::string& path, const Model& model, bool is_replacing,
                              const NewFileMode& mode) {
  if (path.empty()) return fail(ErrorCode::InvalidArgument, ENOENT, "the name of the output file is empty");
  if (has_file(model, path)) {
    return fail(ErrorCode::InvalidArgument, EEXIST,
                path + ": is a file of the input model and is not replaced");
  }
  if (const auto why = obstacle_at(path, {}, is_replacing))
    return fail(ErrorCode::InvalidArgument, EEXIST, path + ": " + *why);
  return NewFile::create(path, is_replacing, mode);
}

}  // namespace stfs::tools
