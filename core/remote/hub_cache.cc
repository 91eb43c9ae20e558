#include "core/remote/hub_cache.h"

#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cerrno>
#include <climits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/remote/settings.h"

namespace stfs {
namespace {

namespace fs = std::filesystem;

constexpr int kDirectory = O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC;
constexpr std::size_t kCommitDigits = 40;

bool is_hexadecimal(std::string_view text) {
  const auto is_digit = [](unsigned char c) { return std::isdigit(c) != 0 || (c >= 'a' && c <= 'f'); };
  return std::ranges::all_of(text, is_digit);
}

fs::path hub_cache() {
  for (const char* name : {"HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"}) {
    if (const std::string path = variable(name); !path.empty()) return path;
  }
  return hub_home() / "hub";
}

fs::path cached_model(std::string_view model) {
  std::string name = "models--" + std::string(model);
  name.replace(name.find('/'), 1, "--");
  return hub_cache() / name;
}

tl::unexpected<Error> may_be_written(const fs::path& path) {
  return fail(ErrorCode::System, EPERM,
              fmt::format("another user may have made {}, or may write it", path.native()));
}

/// Opens the directory of the cache. Its name may be a link.
/// @return EPERM: another user may give the models in it other names.
Result<UniqueFd> open_cache() {
  const fs::path path = hub_cache();
  UniqueFd opened(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  struct stat status {};
  if (!opened || ::fstat(opened.get(), &status) != 0) return fail_system(errno, path.native(), "open");
  // In a directory with the sticky bit, users rename only what is theirs.
  if ((status.st_mode & S_ISVTX) != 0) status.st_mode &= ~mode_t{S_IWGRP | S_IWOTH};
  if (!is_own(opened.get(), status)) return may_be_written(path);
  return opened;
}

/// Opens the entry of a directory, and no link.
/// @param path  for messages.
/// @return EPERM: another user may write it.
Result<UniqueFd> open_own(int directory, const std::string& name, int flags, const fs::path& path) {
  UniqueFd opened(::openat(directory, name.c_str(), flags | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
  struct stat status {};
  if (!opened || ::fstat(opened.get(), &status) != 0) return fail_system(errno, path.native(), "open");
  if (!is_own(opened.get(), status)) return may_be_written(path);
  return opened;
}

/// Opens a directory in a directory, step by step.
/// @param path  relative. Names no other place.
Result<UniqueFd> open_own_directory(int directory, const fs::path& path, const fs::path& shown) {
  UniqueFd reached(::openat(directory, ".", kDirectory));
  if (!reached) return fail_system(errno, shown.native(), "open");
  fs::path now = shown;
  for (const fs::path& part : path) {
    now /= part;
    auto next = open_own(reached.get(), part, kDirectory, now);
    RETURN_IF_ERROR(next);
    reached = std::move(*next);
  }
  return reached;
}

/// Reads which commit a revision had last.
Result<std::string> commit_of(int model, const std::string& revision, const fs::path& shown) {
  const fs::path ref = fs::path("refs") / revision;
  const auto directory = open_own_directory(model, ref.parent_path(), shown);
  RETURN_IF_ERROR(directory);
  const auto file = open_own(directory->get(), ref.filename(), O_RDONLY, shown / ref);
  RETURN_IF_ERROR(file);
  std::array<char, kCommitDigits + 2> text{};
  const ssize_t size_bytes = ::read(file->get(), text.data(), text.size());
  if (size_bytes < 0) return fail_system(errno, (shown / ref).native(), "read");
  return trimmed_text(std::string_view(text.data(), static_cast<std::size_t>(size_bytes)));
}

/// Lists the links of a snapshot.
class Snapshot {
 public:
  Snapshot(int blobs, HubModel& model) : blobs_(blobs), model_(model) {}

  /// Adds the files of a directory, and of its directories.
  /// @param prefix  the directory's path in the snapshot, with a slash at the end; empty: the top.
  Result<void> add(UniqueFd directory, const std::string& prefix, const fs::path& shown, unsigned depth = 0) {
    constexpr unsigned kMostDepth = 32;
    const std::unique_ptr<DIR, int (*)(DIR*)> entries(::fdopendir(directory.get()), &::closedir);
    if (!entries) return fail_system(errno, shown.native(), "list");
    const int opened = directory.release();  // closedir() closes it
    if (depth > kMostDepth) return fail_system(ELOOP, shown.native(), "list");
    while (const dirent* entry = ::readdir(entries.get())) {
      const std::string name = entry->d_name;
      if (name == "." || name == "..") continue;
      struct stat status {};
      if (::fstatat(opened, name.c_str(), &status, AT_SYMLINK_NOFOLLOW) != 0) continue;
      if (S_ISLNK(status.st_mode)) add_link(opened, name, prefix + name);
      if (!S_ISDIR(status.st_mode)) continue;
      auto inner = open_own(opened, name, kDirectory, shown / name);
      RETURN_IF_ERROR(inner);
      RETURN_IF_ERROR(add(std::move(*inner), prefix + name + "/", shown / name, depth + 1));
    }
    return {};
  }

 private:
  void add_link(int directory, const std::string& name, const std::string& path) {
    std::array<char, PATH_MAX> target{};
    const ssize_t size = ::readlinkat(directory, name.c_str(), target.data(), target.size());
    if (size <= 0) return;
    const std::string digest =
        fs::path(std::string_view(target.data(), static_cast<std::size_t>(size))).filename();
    struct stat status {};
    if (is_digest(digest) && ::fstatat(blobs_, digest.c_str(), &status, AT_SYMLINK_NOFOLLOW) == 0)
      model_.files[path] = {digest, static_cast<std::uint64_t>(status.st_size)};
  }

  const int blobs_;
  HubModel& model_;
};

Result<void> list_snapshot(const HubName& name, HubModel& model) {
  const fs::path place = cached_model(name.model);
  const auto cache = open_cache();
  RETURN_IF_ERROR(cache);
  const auto directory = open_own(cache->get(), place.filename(), kDirectory, place);
  RETURN_IF_ERROR(directory);
  auto commit = is_commit(name.revision) ? Result<std::string>(name.revision)
                                         : commit_of(directory->get(), name.revision, place);
  RETURN_IF_ERROR(commit);
  if (!is_commit(*commit)) return fail_system(ENOENT, place.native(), "find its commit");
  const auto blobs = open_own(directory->get(), "blobs", kDirectory, place / "blobs");
  RETURN_IF_ERROR(blobs);
  const fs::path path = fs::path("snapshots") / *commit;
  auto snapshot = open_own_directory(directory->get(), path, place);
  RETURN_IF_ERROR(snapshot);
  RETURN_IF_ERROR(Snapshot(blobs->get(), model).add(std::move(*snapshot), "", place / path));
  model.commit = std::move(*commit);
  return model.files.empty() ? Result<void>(fail_system(ENOENT, place.native(), "find a file in it"))
                             : Result<void>();
}

}  // namespace

fs::path hub_home() {
  if (const std::string home = variable("HF_HOME"); !home.empty()) return home;
  const std::string cache = variable("XDG_CACHE_HOME");
  const fs::path above = cache.empty() ? fs::path(variable("HOME")) / ".cache" : fs::path(cache);
  // Without a home directory, the working directory is not meant: it may be another user's.
  return (above.is_absolute() ? above : fs::path("/.cache")) / "huggingface";
}

bool is_commit(std::string_view text) {
  return text.size() == kCommitDigits && is_hexadecimal(text);
}

bool is_digest(std::string_view text) {
  constexpr std::size_t kSha256Digits = 64;
  return (text.size() == kSha256Digits || text.size() == kCommitDigits) && is_hexadecimal(text);
}

Result<void> find_in_hub_snapshots(const HubName& name, HubModel& model) {
  const auto listed = list_snapshot(name, model);
  if (listed) return {};
  const std::string why = listed.error().errno_value == EPERM ? ": " + listed.error().message : "";
  return fail(ErrorCode::System, ENETUNREACH,
              fmt::format("hf://{}@{}: HF_HUB_OFFLINE is set, and {} does not have it{}", name.model,
                          name.revision, hub_cache().native(), why));
}

std::optional<UniqueFd> find_in_hub_cache(const HubModel& model, const HubModel::File& file) {
  if (!is_digest(file.digest)) return std::nullopt;
  const fs::path place = cached_model(model.model);
  const UniqueFd cache(::open(place.parent_path().c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!cache) return std::nullopt;
  const auto blobs =
      open_own_directory(cache.get(), place.filename() / fs::path("blobs"), place.parent_path());
  if (!blobs) return std::nullopt;
  auto blob = open_own(blobs->get(), file.digest, O_RDONLY, place / "blobs" / file.digest);
  struct stat status {};
  if (!blob || ::fstat(blob->get(), &status) != 0 || !S_ISREG(status.st_mode) ||
      static_cast<std::uint64_t>(status.st_size) != file.size_bytes)
    return std::nullopt;
  return std::move(*blob);
}

}  // namespace stfs
