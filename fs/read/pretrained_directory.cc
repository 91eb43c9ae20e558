// Shows the model among the links to the entries of its directory.
#include "fs/read/pretrained_directory.h"

#include <sys/stat.h>

#include <utility>

#include "core/model/model_directory.h"
#include "core/storage/new_file.h"

namespace stfs {
namespace {

constexpr std::uint64_t kFixedEntries = 3;  // ".", ".." and model.safetensors

bool is_same_file(int one, int other) {
  struct stat first {};
  struct stat second {};
  return ::fstat(one, &first) == 0 && ::fstat(other, &second) == 0 && first.st_dev == second.st_dev &&
         first.st_ino == second.st_ino;
}

}  // namespace

PretrainedDirectory::PretrainedDirectory(const std::filesystem::path& model,
                                         const std::vector<std::filesystem::path>& deltas,
                                         std::function<Ino()> archive)
    : archive_(std::move(archive)),
      own_names_{model.filename().string()},
      links_(model.parent_path(), [this](std::string_view name) { return is_left_out(name); }) {
  for (const std::filesystem::path& delta : deltas) {
    if (is_same_file(open_directory_path(delta.parent_path()).get(), links_.descriptor()))
      own_names_.insert(delta.filename().string());
  }
}

Node PretrainedDirectory::node(Ino ino) const {
  if (ino == kDirectory) return {.ino = ino, .kind = Node::Kind::ViewDirectory};
  if (!links_.has(ino - kLinks)) return {};
  return {.ino = ino, .kind = Node::Kind::Link};
}

Result<Ino> PretrainedDirectory::find(Ino, std::string_view name) {
  if (name == kArchiveName) return archive_();
  if (const auto link = links_.find(name)) return kLinks + *link;
  return fail(ErrorCode::NotFound, ENOENT, "no such file in the directory of the model");
}

void PretrainedDirectory::list(Ino, std::uint64_t position, const VisitEntry& visit) const {
  if (position < 1 && !visit(".", kDirectory, 1)) return;
  if (position < 2 && !visit("..", kHiddenIno, 2)) return;
  if (position < kFixedEntries && !visit(kArchiveName, archive_(), kFixedEntries)) return;
  // Positions count by the links' numbers, which never change: the source directory may change meanwhile.
  for (const auto& [link, name] : links_.list()) {
    const std::uint64_t at = kFixedEntries + link;
    if (at >= position && !visit(name, kLinks + link, at + 1)) return;
  }
}

void PretrainedDirectory::visit_known(
    const std::function<void(Ino directory, std::string_view name)>& visit) const {
  visit(kDirectory, kArchiveName);
  links_.visit_known([&](std::string_view name) { visit(kDirectory, name); });
}

bool PretrainedDirectory::is_left_out(std::string_view name) const {
  return name.ends_with(kArchiveSuffix) || name.ends_with(kModelIndexSuffix) || own_names_.contains(name) ||
         is_temporary_file_name(name);
}

}  // namespace stfs
