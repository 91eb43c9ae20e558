// Opening for writing, then for reading.
#include "fs/source.h"

#include <fmt/format.h>

#include <algorithm>
#include <system_error>
#include <vector>

#include "fs/log.h"

namespace stfs {
namespace {

tl::unexpected<Error> refuse_directory(const std::filesystem::path& directory) {
  constexpr std::size_t kShown = 5;
  std::vector<std::string> archives;
  std::error_code failed;
  for (const auto& entry : std::filesystem::directory_iterator(directory, failed)) {
    if (entry.path().extension() == ".safetensors") archives.push_back(entry.path().string());
  }
  const std::string name = directory.string();
  if (failed) return fail_system(failed.value(), name, "list");
  if (archives.empty()) {
    return fail(ErrorCode::NotFound, ENOENT, name + ": is a directory without .safetensors archives");
  }
  std::ranges::sort(archives);
  std::string list;
  for (std::size_t at = 0; at < std::min(kShown, archives.size()); ++at) list += "\n  " + archives[at];
  if (archives.size() > kShown) list += fmt::format("\n  ... and {} more", archives.size() - kShown);
  return fail(ErrorCode::InvalidArgument, EISDIR,
              fmt::format("{}: is a directory; one archive is mounted at a time, so name one of its {}:{}",
                          name, archives.size(), list));
}

/// What recovery has found beside the archive, but for what living writers are at work on.
void log_journals(const Archive& archive) {
  for (const JournalReport& report : archive.recovered()) {
    std::string_view why = report.explanation;
    const std::string path = report.path.string();
    if (why.starts_with(path + ": ")) why.remove_prefix(path.size() + 2);
    if (report.action == JournalAction::Applied) {
      log::info("{}: {}: applied, {} bytes of {}", path, why, report.size_bytes, archive.path().string());
    } else if (report.action == JournalAction::Removed) {
      log::info("{}: {}: removed", path, why);
    } else if (report.state == JournalState::Damaged) {
      log::error("{}: {}: nothing is written to {} while it is there", path, why, archive.path().string());
    } else if (report.state != JournalState::InUse) {
      log::warning("{}: {}: left alone", path, why);
    }
  }
}

}  // namespace

Result<std::unique_ptr<Archive>> open_source(const std::filesystem::path& source, bool is_read_only) {
  std::error_code ignored;
  if (std::filesystem::is_directory(source, ignored)) return refuse_directory(source);
  if (is_read_only) return Archive::open(source, Access::ReadOnly);
  auto archive = Archive::open(source, Access::ReadWrite);
  if (archive) {
    log_journals(**archive);
    return archive;
  }
  const int why = archive.error().errno_value;
  if (archive.error().code != ErrorCode::System) return archive;
  if (why != EACCES && why != EROFS && why != EPERM && why != ETXTBSY) return archive;
  auto read_only = Archive::open(source, Access::ReadOnly);
  if (read_only) {
    log::info("{}: {}: mounted read-only", source.string(), std::generic_category().message(why));
  }
  return read_only;
}

}  // namespace stfs
