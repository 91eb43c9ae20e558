#include "fs/read/pretrained_directory.h"

#include <sys/stat.h>

#include "core/model/model_directory.h"
#include "core/storage/new_file.h"

namespace stfs {
namespace {

bool is_same_directory(int one, int other) {
  struct stat first {};
  struct stat second {};
  return ::fstat(one, &first) == 0 && ::fstat(other, &second) == 0 && first.st_dev == second.st_dev &&
         first.st_ino == second.st_ino;
}

}  // namespace

PretrainedDirectory::PretrainedDirectory(const std::filesystem::path& model,
                                         const std::vector<std::filesystem::path>& deltas,
                                         std::function<Ino()> archive)
    : SourceTree(model.parent_path(), deltas, [this](std::string_view name) { return is_left_out(name); }),
      archive_(std::move(archive)),
      own_names_{model.filename().string()} {
  const UniqueFd source = open_directory_path(model.parent_path());
  for (const std::filesystem::path& delta : deltas) {
    if (!is_same_directory(open_directory_path(delta.parent_path()).get(), source.get())) continue;
    own_names_.insert(delta.filename().string());
    own_names_.insert(private_directory_name(delta.filename().string()));
  }
}

bool PretrainedDirectory::is_left_out(std::string_view name) const {
  return name.ends_with(kArchiveSuffix) || name.ends_with(kModelIndexSuffix) ||
         is_temporary_file_name(name) || own_names_.contains(name);
}

Result<Ino> PretrainedDirectory::find(Ino directory, std::string_view name) {
  if (directory == kDirectory && name == kArchiveName) return archive_();
  return SourceTree::find(directory, name);
}

void PretrainedDirectory::list(Ino directory, std::uint64_t position, const VisitEntry& visit) const {
  if (directory != kDirectory) return SourceTree::list(directory, position, visit);
  if (position < 1 && !visit(".", directory, 1)) return;
  if (position < 2 && !visit("..", kHiddenIno, 2)) return;
  if (position < kFixedEntries && !visit(kArchiveName, archive_(), kFixedEntries)) return;
  list_names(directory, position, visit);
}

void PretrainedDirectory::visit_known(
    const std::function<void(Ino directory, std::string_view name)>& visit) const {
  SourceTree::visit_known(visit);
  visit(kDirectory, kArchiveName);
}

}  // namespace stfs
