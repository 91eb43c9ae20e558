// Finds the archive behind a path. Each kind of failure has its own message.
#include "tools/target/target.h"

#include <fmt/format.h>
#include <linux/magic.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/vfs.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <algorithm>
#include <string_view>
#include <system_error>
#include <vector>

#include "core/base/absolute_path.h"
#include "core/model/model_directory.h"
#include "core/remote/remote_storage.h"
#include "core/storage/attribute_names.h"
#include "core/storage/group_members.h"
#include "core/storage/mount_record.h"
#include "core/storage/mount_table.h"
#include "core/storage/trusted_links.h"
#include "tools/target/mounted_path.h"
#include "tools/text/near_names.h"
#include "tools/text/printable.h"

namespace stfs::tools {
namespace {

namespace fs = std::filesystem;

/// Returns true if the error is about the content of the file, not about access to the file.
bool is_about_format(ErrorCode code) {
  return code <= ErrorCode::MetadataIncompleteBuffer || code == ErrorCode::DuplicateKey;
}

/// Rewrites the error of opening `archive` so that its message names the path that the user gave.
Error told_about(Error error, const fs::path& archive, const fs::path& named) {
  std::string_view why = error.message;
  const auto absolute = absolute_path(archive);
  for (const std::string& prefix : {archive.string(), absolute ? absolute->string() : std::string()}) {
    if (why.starts_with(prefix + ": ")) {
      why.remove_prefix(prefix.size() + 2);
      break;
    }
  }
  std::string subject = named.string();
  if (archive != named) {
    const bool is_index = archive.native().ends_with(".index.json");
    subject += fmt::format(": its {} {}", is_index ? "index" : "archive", archive.string());
  }
  error.message = is_about_format(error.code) ? fmt::format("{}: not a safetensors archive: {}", subject, why)
                                              : fmt::format("{}: {}", subject, why);
  return error;
}

/// Lists names for a message: "a.safetensors, b.safetensors and 3 more".
std::string listed(std::vector<std::string> names) {
  constexpr std::size_t kShown = 3;
  std::sort(names.begin(), names.end());
  std::string text;
  for (std::size_t at = 0; at < std::min(names.size(), kShown); ++at) {
    text += (at == 0 ? "" : ", ") + printable_name(names[at]);
  }
  if (names.size() > kShown) text += fmt::format(" and {} more", names.size() - kShown);
  return text;
}

/// Returns the names of an open directory's entries that satisfy `is_wanted`.
template <class Predicate>
std::vector<std::string> names_in(const FollowedFile& opened, Predicate is_wanted) {
  std::vector<std::string> names;
  std::error_code error;
  const fs::path directory = fmt::format("/proc/self/fd/{}", opened.fd.get());
  for (auto entry = fs::directory_iterator(directory, error); !error && entry != fs::directory_iterator();
       entry.increment(error)) {
    if (is_wanted(entry->path())) names.push_back(entry->path().filename().string());
  }
  return names;
}

/// Asks the file system of a found file, even if another user's program serves that file system.
Result<struct statfs> file_system_of(const FollowedFile& found, const fs::path& named) {
  struct statfs status {};
  if (::fstatfs(found.fd.get(), &status) == 0) return status;
  return fail_system(errno, named.string(), "look at the file system");
}

Result<struct statfs> file_system_at(const fs::path& named) {
  auto found = follow_named_path(named);
  return found ? file_system_of(*found, named) : pass_on(std::move(found));
}

bool is_served_by_a_program(const Result<struct statfs>& status) {
  return status && status->f_type == FUSE_SUPER_MAGIC;
}

/// Refuses a directory inside a mount, and a directory that is a mount of several models.
Result<void> refuse_mounted_directory(const fs::path& named, const AttributeReader& attributes) {
  if (const auto mount = mount_above(named, attributes)) {
    return fail(ErrorCode::InvalidArgument, EISDIR,
                fmt::format("{}: is a directory of a mount: name the mount, {}, or the file of a tensor",
                            named.string(), mount->string()));
  }
  // Look at the entries of FUSE file systems only. Elsewhere an entry may be another mount that does not
  // answer.
  const auto found = follow_named_path(named);
  if (!found || !is_served_by_a_program(file_system_of(*found, named))) return {};
  const auto models = names_in(
      *found, [&](const fs::path& entry) { return attributes(entry, kArchiveAttribute).has_value(); });
  if (models.empty()) return {};
  return fail(ErrorCode::InvalidArgument, EISDIR,
              fmt::format("{}: is a mount of several models: name the directory of one in it: {}",
                          named.string(), listed(models)));
}

/// Returns the addition to a message about a directory in which another user may have planted an index.
std::string ignored_in(const fs::path& directory, Storage& storage) {
  const auto found = list_model_directory(directory, storage);
  const std::string text = found ? found->ignored_text(directory, storage) : std::string();
  return text.empty() ? text : "; " + text;
}

/// Returns the one model of a directory by its index, or else its archives. The result has at least one
/// element.
Result<std::vector<TargetPath>> locate_in_directory(const fs::path& named, const AttributeReader& attributes,
                                                    Storage& storage) {
  RETURN_IF_ERROR(refuse_mounted_directory(named, attributes));
  const auto found = list_model_directory(named, storage);
  RETURN_IF_ERROR(found);
  std::vector<TargetPath> paths;
  if (!found->indexes.empty()) {
    auto index = find_model_index(named, storage);
    RETURN_IF_ERROR(index);
    paths.push_back({.archive = std::move(*index)});
    return paths;
  }
  std::optional<Error> foreign;  // an error about another user's mount, which is left out
  std::vector<std::string> archives;
  for (const std::string& archive : found->archives) {
    const auto there = storage.status(named / archive);
    if (!there && there.error().errno_value == EXDEV) foreign = there.error();
    if (there && S_ISREG(there->mode)) archives.push_back(archive);
  }
  leave_out_planted(storage, named, archives);
  for (const std::string& archive : archives) paths.push_back({.archive = named / archive});
  if (!paths.empty()) return paths;
  if (foreign) return tl::unexpected(std::move(*foreign));
  return fail(ErrorCode::InvalidArgument, EISDIR,
              fmt::format("{}: is a directory, not a mount of safetensorsfs, and holds no archive{}",
                          named.string(), ignored_in(named, storage)));
}

/// Refuses a path that cannot be an archive, before anything is opened: opening a FIFO would block for ever.
/// @return true if the path is a directory.
Result<bool> check_kind(const fs::path& named, Storage& storage) {
  if (named.empty()) return fail(ErrorCode::InvalidArgument, ENOENT, "the name of the target is empty");
  // stat(2) may still be answered from the kernel's caches, so ask with statfs(2).
  if (const auto mount = file_system_at(named); !mount && mount.error().errno_value == ENOTCONN) {
    return fail(
        ErrorCode::System, ENOTCONN,
        fmt::format("{}: lies in a dead mount (its daemon has ended): unmount it with `fusermount3 -u`",
                    named.string()));
  }
  auto there = storage.status(named);
  // A person may mean the directory that another user's program serves.
  const auto is_foreign = [&] { return !there && there.error().errno_value == EXDEV; };
  if (is_foreign() && !is_called_as_model(named)) there = storage.status(named / "");
  if (is_foreign()) return tl::unexpected(there.error());
  if (!there) {
    const int why = there.error().errno_value;
    return fail(ErrorCode::System, why,
                fmt::format("{}: {}", named.string(), std::generic_category().message(why)));
  }
  if (S_ISDIR(there->mode)) return true;
  if (S_ISREG(there->mode)) return false;
  return fail(ErrorCode::InvalidArgument, EINVAL,
              fmt::format("{}: is not a regular file, so it cannot be mapped", named.string()));
}

bool is_on_read_only_mount(const fs::path& path) {
  const auto status = file_system_at(path);
  return status && (status->f_flags & ST_RDONLY) != 0;
}

/// Calls check_naming_mount() for the archives that are open for writing, and for private archives whose
/// bytes others may get (Links::Trusted).
Result<void> check_named_archives(const TargetPath& path, const fs::path& named, const Model& model,
                                  Links links) {
  if (!path.is_mounted) return {};
  for (std::uint32_t at = 0; at < model.shards().size(); ++at) {
    if (!model.shards()[at].archive) continue;
    const auto there = model.reader(at).status();
    RETURN_IF_ERROR(there);
    const bool is_private = (there->mode & S_IRGRP) == 0 || (there->mode & S_IROTH) == 0;
    const bool is_read_only = model.archive(at).access() == Access::ReadOnly;
    if (is_read_only && (links == Links::All || !is_private)) continue;
    RETURN_IF_ERROR(check_naming_mount(path, named, there->uid));
  }
  return {};
}

}  // namespace

Result<void> check_naming_mount(const TargetPath& path, const fs::path& named,
                                std::optional<std::uint32_t> owner) {
  if (!path.is_mounted) return {};
  auto opened = follow_named_path(named);
  RETURN_IF_ERROR(opened);
  // The name may lead to another mount by now: that mount must name the same archive.
  const fs::path file = fmt::format("/proc/self/fd/{}", opened->fd.get());
  auto archive = read_mount_attribute(file, kArchiveAttribute);
  const auto again = archive ? locate_in_mount(file, std::move(*archive), Use::Model, read_mount_attribute)
                             : Result<TargetPath>(TargetPath{});
  RETURN_IF_ERROR(again);
  const auto mount = mount_of(opened->fd.get());
  const bool is_ours = mount && mount->user && mount->type == kMountType && again->archive == path.archive &&
                       again->deltas == path.deltas;
  const std::string instead = fmt::format("name {} itself", path.archive.string());
  if (!is_ours) {
    return fail(ErrorCode::System, EACCES,
                fmt::format("{}: lies in no mount of safetensorsfs that names this archive: {}",
                            named.string(), instead));
  }
  const std::uint32_t user = *mount->user;
  if (user == 0 || is_same_user(user, ::geteuid()) || (owner && is_same_user(user, *owner))) return {};
  return fail(ErrorCode::System, EACCES,
              fmt::format("{}: is a mount of user {}, to whom the archive that it names does not belong: {}",
                          named.string(), user, instead));
}

std::optional<std::string> read_mount_attribute(const fs::path& path, const char* name) {
  const auto found = follow_named_path(path);
  if (!found || !is_served_by_a_program(file_system_of(*found, path))) return std::nullopt;
  // Uses the file that was checked: the path may lead to another mount by now.
  const std::string file = fmt::format("/proc/self/fd/{}", found->fd.get());
  std::string value(64 * 1024, '\0');  // the most that the kernel passes on (XATTR_SIZE_MAX)
  const ssize_t size_bytes = ::getxattr(file.c_str(), name, value.data(), value.size());
  if (size_bytes < 0) return std::nullopt;
  value.resize(static_cast<std::size_t>(size_bytes));
  return value;
}

Result<std::vector<TargetPath>> locate_targets(const fs::path& named, Use use,
                                               const AttributeReader& attributes, Storage& storage) {
  RETURN_IF_ERROR(check_scheme(named));
  TargetPath path{.archive = named};
  if (is_url(named)) {
    const auto address = named_address(named);
    RETURN_IF_ERROR(address);
    path.archive = *address;
    if (use != Use::Change) return std::vector<TargetPath>(1, std::move(path));
    return fail(ErrorCode::ReadOnly, EROFS, named.native() + ": is on a web server, so it can only be read");
  }
  if (auto archive = attributes(named, kArchiveAttribute)) {
    auto found = locate_in_mount(named, std::move(*archive), use, attributes);
    RETURN_IF_ERROR(found);
    path = std::move(*found);
  } else {
    const auto is_directory = check_kind(named, storage);
    RETURN_IF_ERROR(is_directory);
    if (*is_directory) return locate_in_directory(named, attributes, storage);
  }
  std::vector<TargetPath> paths;
  paths.push_back(std::move(path));
  return paths;
}

Result<TargetPath> locate_target(const fs::path& named, Use use, const AttributeReader& attributes,
                                 Storage& storage) {
  auto paths = locate_targets(named, use, attributes, storage);
  RETURN_IF_ERROR(paths);
  if (paths->size() == 1) return std::move(paths->front());
  std::vector<std::string> names;
  for (const TargetPath& path : *paths) names.push_back(path.archive.filename().string());
  return fail(ErrorCode::InvalidArgument, EISDIR,
              fmt::format("{}: is a directory: name an archive in it: {}{}", named.string(), listed(names),
                          ignored_in(named, storage)));
}

Result<Target> open_target(const fs::path& named, Use use, const ModelOptions& options,
                           const AttributeReader& attributes) {
  const auto path = locate_target(named, use, attributes);
  RETURN_IF_ERROR(path);
  return open_located(*path, named, options);
}

Result<std::unique_ptr<Model>> open_whole(const fs::path& named, Use use, const ModelOptions& options) {
  auto target = open_target(named, use, options);
  RETURN_IF_ERROR(target);
  if (!target->tensor) return std::move(target->model);
  return fail(ErrorCode::InvalidArgument, EINVAL,
              named.string() + ": is a tensor's file: name the mount or the archive");
}

Result<Target> open_located(const TargetPath& path, const fs::path& named, const ModelOptions& options) {
  if (path.view) return Target{.view = path.view};
  if (options.access == Access::ReadWrite && path.is_mounted && is_on_read_only_mount(named)) {
    return fail(ErrorCode::ReadOnly, EROFS,
                path.deltas.empty()
                    ? fmt::format("{}: lies in a read-only mount: to change its archive, name {}",
                                  named.string(), path.archive.string())
                    : fmt::format("{}: lies in a mount of {} on top of {}, which is read-only",
                                  named.string(), join_deltas(path.deltas), path.archive.string()));
  }
  // Another user's program may name an address in its mount, so that this process asks a server.
  if (path.is_mounted && is_url(path.archive)) {
    RETURN_IF_ERROR(check_naming_mount(path, named, std::nullopt));
  }
  ModelOptions how = options;
  how.deltas.insert(how.deltas.begin(), path.deltas.begin(), path.deltas.end());
  auto model = Model::open(path.archive, how);
  if (!model) return tl::unexpected(told_about(std::move(model).error(), path.archive, named));
  RETURN_IF_ERROR(check_named_archives(path, named, **model, options.links));
  const auto tensor = named_tensor(path, named, **model);
  RETURN_IF_ERROR(tensor);
  return Target{.model = std::move(*model), .tensor = *tensor};
}

Result<std::optional<std::uint32_t>> named_tensor(const TargetPath& path, const fs::path& named,
                                                  const Model& model) {
  if (!path.tensor) return std::nullopt;
  if (const auto position = model.tensors().find(*path.tensor)) return position;
  return fail(ErrorCode::NotFound, ENOENT,
              fmt::format("{}: its archive {}: has no tensor {} any more", named.string(),
                          path.archive.string(), printable_name(*path.tensor)));
}

Result<std::uint32_t> find_tensor(const Model& model, const fs::path& named, const std::string& name) {
  const TensorIndex& tensors = model.tensors();
  if (const auto position = tensors.find(name)) return *position;
  for (const Model::Unserved& tensor : model.unserved()) {
    if (tensor.name != name) continue;
    return fail(ErrorCode::NotFound, ENOENT,
                fmt::format("{}: {}", named.string(), model.why_unserved(tensor)));
  }
  NearNames near(name);
  near.offer(tensors);
  return fail(ErrorCode::NotFound, ENOENT,
              fmt::format("{}: {}: no such tensor{}", named.string(), printable_name(name), near.question()));
}

Result<std::vector<std::uint32_t>> find_tensors(const Target& target, const fs::path& named,
                                                const std::vector<std::string>& names) {
  if (target.tensor) return std::vector{*target.tensor};
  std::vector<std::uint32_t> positions;
  for (const std::string& name : names) {
    auto position = find_tensor(*target.model, named, name);
    RETURN_IF_ERROR(position);
    positions.push_back(*position);
  }
  return positions;
}

}  // namespace stfs::tools
