// Opens models for writing, or for reading if writing is not allowed, and logs their problems.
#include "fs/mount/source.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <span>
#include <system_error>
#include <thread>
#include <vector>

#include "core/base/absolute_path.h"
#include "core/format/json_string.h"
#include "core/model/delta_base.h"
#include "core/model/model_directory.h"
#include "core/model/neighbours.h"
#include "core/model/settled_model.h"
#include "core/remote/remote_notes.h"
#include "core/remote/remote_storage.h"
#include "fs/base/log.h"
#include "fs/base/user_counts.h"
#include "fs/model/listed_archive.h"
#include "fs/model/mount_root.h"
#include "fs/tree/names.h"

namespace stfs {
namespace {

constexpr std::size_t kShown = 10;

/// Logs the journals that recovery has found beside the archive, except journals that living writers use.
void log_journals(const Archive& archive) {
  std::size_t ignored = 0;
  for (const JournalReport& report : archive.recovered()) {
    ignored += report.more_ignored;
    if (report.is_ignored && ++ignored > kShown) continue;
    std::string_view why = report.explanation;
    const std::string path = report.path.string();
    if (why.starts_with(path + ": ")) why.remove_prefix(path.size() + 2);
    if (report.action == JournalAction::Applied) {
      log::info("{}: {}: applied, {} bytes of {}", path, why, report.size_bytes, archive.path().string());
    }
    if (report.is_left_void) {
      log::info("{}: made void: in this directory only {}, or the directory's owner, may remove it", path,
                report.settlers);
    }
    if (report.action == JournalAction::Applied || report.is_left_void) continue;
    if (report.action == JournalAction::Removed) {
      log::info("{}: {}: removed", path, why);
    } else if (report.blocks_commits) {
      log::error("{}: {}: nothing is written to {} while it exists, and a newer commit may not be shown{}{}",
                 path, why, archive.path().string(), report.next_step.empty() ? "" : ": ", report.next_step);
    } else if (report.is_ignored) {
      log::warning("{}: {}: ignored", path, why);
    } else if (report.state != JournalState::InUse) {
      log::warning("{}: {}: not changed", path, why);
    }
  }
  if (ignored > kShown) {
    log::warning("{}: ... and {} more names that are no journals: `stfs recover` lists some",
                 archive.path().string(), ignored - kShown);
  }
}

void log_problems(const Model& model) {
  const std::string path = model.path().string();
  const auto problems = model.problems();
  for (const ModelProblem& problem : problems.first(std::min(kShown, problems.size())))
    log::warning("{}: {}", path, problem.message);
  if (problems.size() > kShown)
    log::warning("{}: ... and {} more of the kind", path, problems.size() - kShown);
  const auto unserved = model.unserved();
  if (unserved.empty()) return;
  std::string names;
  for (const Model::Unserved& tensor : unserved.first(std::min(kShown, unserved.size())))
    names += " " + in_quotes(tensor.name);
  if (unserved.size() > kShown) names += fmt::format(" ... and {} more", unserved.size() - kShown);
  log::error("{}: {} tensor{} can't be read (EIO):{}", path, unserved.size(), unserved.size() == 1 ? "" : "s",
             names);
}

/// Logs why shards are not mapped, once per model, because the shards usually are in one directory.
void log_io(const Model& model) {
  for (const Shard& shard : model.shards()) {
    if (!shard.archive || shard.archive->bytes().why_not_mapped().empty()) continue;
    log::info("{}: lies on {}: read, not mapped (io=pread)", shard.archive->path().string(),
              shard.archive->bytes().why_not_mapped());
    return;
  }
}

std::string megabytes(std::uint64_t size_bytes) {
  constexpr double kMega = 1e6;
  return fmt::format("{:.1f} MB", static_cast<double>(size_bytes) / kMega);
}

/// The work continues until the mount ends.
Work::Watch until_end(const std::function<bool()>& is_ending) {
  return [&is_ending](std::uint64_t, std::uint64_t) { return is_ending == nullptr || !is_ending(); };
}

/// Checks that a base has the bytes that the delta on top was made for.
Result<void> check_base_of(const Model& model, const std::function<bool()>& is_ending) {
  const std::string base = model.path().string();
  const std::string delta = model.shards().back().path.string();
  const auto begin = [&](std::uint64_t size_bytes, std::string_view why) {
    log::info("{}: {}: comparing {} of {} with what the delta was made for", delta, why,
              megabytes(size_bytes), base);
  };
  Work work(until_end(is_ending));
  const auto found = check_base(model, begin, work);
  RETURN_IF_ERROR(found);
  if (*found == BaseCheck::Known) return {};
  log::info("{}: fits {}{}", delta, base,
            *found == BaseCheck::Remembered ? ", which is remembered"
                                            : ", which can't be remembered: each mount compares them");
  return {};
}

/// Returns the archives to mount of a directory with too many archives. Each owner gets the same number of
/// places, so no owner can take the places of others.
std::vector<std::string> not_too_many(const std::filesystem::path& directory,
                                      std::vector<std::string> archives) {
  if (archives.size() <= MountRoot::kMostAtFirst) return archives;
  std::map<uid_t, std::size_t> of_owner;
  std::vector<std::pair<std::size_t, std::string>> ranked;
  for (std::string& archive : archives) {
    const auto there = system_storage().status_of_name(directory / archive);
    ranked.emplace_back(there ? of_owner[there->uid]++ : archives.size(), std::move(archive));
  }
  std::ranges::sort(ranked);
  std::vector<std::string> mounted;
  for (auto& [rank, archive] : std::span(ranked).first(MountRoot::kMostAtFirst))
    mounted.push_back(std::move(archive));
  std::ranges::sort(mounted);
  log::warning("{}: is a directory of {} archives, only {} of them are mounted together", directory.string(),
               ranked.size(), mounted.size());
  return mounted;
}

/// Counts the bytes of opened headers for each owner (UserLimits::header_bytes).
class HeaderShares {
 public:
  /// EDQUOT if the archive's owner has reached the limit.
  [[nodiscard]] Result<void> check(const std::filesystem::path& archive) const {
    const auto owner = owner_of(archive);
    if (!owner || counts_.count(*owner) < UserLimits().header_bytes) return {};
    auto over =
        over_user_limit(*owner, UserLimits().header_bytes, "bytes in headers of models", "delete some");
    return tl::unexpected(std::move(over.value()).within(archive.string()));
  }
  void add(const std::filesystem::path& archive, const Model& model) {
    if (const auto owner = owner_of(archive))
      taken_.push_back(counts_.take(*owner, header_bytes_of(model)).value_or(nullptr));
  }

 private:
  /// Nothing for users without a limit.
  static std::optional<uid_t> owner_of(const std::filesystem::path& archive) {
    const auto there = system_storage().status_of_name(archive);
    return there && !is_unlimited(there->uid) ? std::optional<uid_t>(there->uid) : std::nullopt;
  }

  UserCounts counts_{"bytes in headers of models", UserLimits().header_bytes};
  std::vector<UserCounts::Share> taken_;
};

Result<Source> open_directory(Source source, const ModelDirectory& found, const SourceOptions& options) {
  const std::vector<std::string>& archives = found.archives;
  if (archives.empty()) {
    const std::string ignored = found.ignored_text(source.path);
    return fail(ErrorCode::NotFound, ENOENT,
                fmt::format("{}: is a directory without .safetensors archives{}{}", source.path.string(),
                            ignored.empty() ? "" : "; ", ignored));
  }
  const std::vector<std::string> mounted = not_too_many(source.path, archives);
  HeaderShares shares;
  // A file may have thousands of names: its header is refused only once.
  std::map<std::pair<std::uint64_t, std::uint64_t>, Error> refused;  // by device and inode
  // Reading a directory may take longer than an edit.
  constexpr std::chrono::milliseconds kLeastPatience{20};
  const Deadline wait_until = options.wait_until.value_or(deadline_in(kEditPatience));
  SourceOptions how = options;
  for (const std::string& archive : mounted) {
    std::string name =
        file_name_of(std::string_view(archive).substr(0, archive.size() - kArchiveSuffix.size()));
    if (auto hides = check_hides_nothing(source.path / archive, name); !hides) {
      log::warning("{}: not shown: {}", archive, hides.error().message);
      continue;
    }
    Source::Member member{.name = std::move(name), .path = source.path / archive};
    auto within = shares.check(member.path);
    how.wait_until = std::max(wait_until, deadline_in(kLeastPatience));
    const auto there = system_storage().status_of_name(member.path);
    const auto file = there ? std::pair(there->identity.device, there->identity.inode)
                            : std::pair<std::uint64_t, std::uint64_t>();
    if (const auto twin = refused.find(file); there && twin != refused.end()) {
      within = fail(twin->second.code, twin->second.errno_value,
                    member.path.string() + ": another name of this file: " + twin->second.message);
    }
    auto model = within ? open_model(member.path, how) : tl::unexpected(within.error());
    if (!model && there && model.error().code <= ErrorCode::DuplicateKey)
      refused.emplace(file, model.error());
    if (model) shares.add(member.path, **model);
    if (model) {
      member.model = std::move(*model);
    } else if (options.is_strict) {
      return pass_on(std::move(model));
    } else {
      log::error("{}: not mounted", model.error().message);
      member.why_absent = std::move(model).error();
    }
    source.members.push_back(std::move(member));
  }
  if (std::ranges::any_of(source.members, [](const auto& member) { return member.model != nullptr; }))
    return source;
  if (source.members.empty())
    return fail(ErrorCode::NotFound, ENOENT, source.path.string() + ": none of its archives may be shown");
  const Error& first = *source.members.front().why_absent;
  return fail(first.code, first.errno_value,
              fmt::format("{}: none of its {} archives can be opened: {}", source.path.string(),
                          archives.size(), first.message));
}

/// Fails with EAGAIN unless the model shows the bytes of one moment.
Result<void> check_one_moment(const Model& model) {
  RETURN_IF_ERROR(check_settled(model));
  for (const Shard& shard : model.shards()) {
    if (shard.archive && !shard.archive->is_as_known())
      return fail(ErrorCode::Busy, EAGAIN, shard.path.string() + ": another process has just changed it");
  }
  return check_shown(model);
}

/// Checks that this mount can write to the directories of the archives that it writes to. Otherwise an
/// archive is read-only in practice, even if its file may be written.
Result<void> check_journals_possible(const Model& model) {
  const std::span<const Shard> shards = model.shards();
  for (const Shard& shard : model.delta() ? shards.last(1) : shards) {
    if (!shard.archive) continue;
    const Archive& archive = model.archive(static_cast<std::uint32_t>(&shard - shards.data()));
    RETURN_IF_ERROR(archive.storage().check_replaceable(archive.real_path()));
  }
  return {};
}

Result<std::unique_ptr<Model>> open_settled(const std::filesystem::path& source, const ModelOptions& how,
                                            const SourceOptions& options) {
  constexpr std::chrono::milliseconds kPause{5};
  const Deadline wait_until = options.wait_until.value_or(deadline_in(kEditPatience));
  for (;;) {
    auto model = Model::open(source, how);
    if (!model || !options.must_be_settled) return model;
    auto settled = check_one_moment(**model);
    if (settled) return model;
    if (settled.error().errno_value != EAGAIN) return pass_on(std::move(settled));
    if (options.is_ending != nullptr && options.is_ending())
      return fail(ErrorCode::System, EINTR, settled.error().message);
    if (time_left(wait_until).count() == 0) {
      return fail(ErrorCode::Busy, EBUSY,
                  settled.error().message + ": on_change=fail waits until it has ended; try again then");
    }
    std::this_thread::sleep_for(kPause);
  }
}

}  // namespace

Result<std::unique_ptr<Model>> open_model(const std::filesystem::path& source, const SourceOptions& options) {
  ModelOptions how{.access = options.is_read_only ? Access::ReadOnly : Access::ReadWrite,
                   .is_strict = options.is_strict,
                   .io = options.io,
                   .links = Links::Trusted,
                   .wait_until = options.wait_until,
                   .deltas = options.deltas,
                   .check_base = [&](const Model& model) { return check_base_of(model, options.is_ending); }};
  const auto begin = [](const Model& base) {
    log::info("{}: the times of its files prove nothing: reading {} for the delta", base.path().string(),
              megabytes(base.data_size_bytes()));
  };
  if (options.makes_delta && !options.is_read_only && !options.deltas.empty()) {
    Work work(until_end(options.is_ending));
    auto made = make_delta(source, how, begin, work);
    RETURN_IF_ERROR(made);
    if (*made) {
      log::info("{}: made, as a delta without changes of {}", options.deltas.back().string(),
                source.string());
    }
  }
  auto model = open_settled(source, how, options);
  std::string why_read_only;
  if (!model && how.access == Access::ReadWrite && is_refusal_to_write(model.error())) {
    why_read_only = std::generic_category().message(model.error().errno_value);
    how.access = Access::ReadOnly;
    model = Model::open(source, how);
  }
  if (model && how.access == Access::ReadWrite) {
    if (auto beside = check_journals_possible(**model); !beside) {
      why_read_only = fmt::format("{}: a commit makes a journal there", beside.error().message);
      how.access = Access::ReadOnly;
      model->reset();
      model = Model::open(source, how);
    }
  }
  RETURN_IF_ERROR(model);
  if ((*model)->delta() && how.access == Access::ReadWrite) {
    Work work(until_end(options.is_ending));
    RETURN_IF_ERROR(make_provable(**model, begin, work));
  }
  if (!why_read_only.empty()) log::info("{}: {}: mounted read-only", source.string(), why_read_only);
  for (const Shard& shard : (*model)->shards()) {
    if (shard.archive) log_journals(*shard.archive);
  }
  log_problems(**model);
  for (const std::string& text : take_remote_notes()) log::warning("{}", text);
  if (const std::string text = models_beside_text(**model); !text.empty()) log::info("{}", text);
  log_io(**model);
  return model;
}

Result<Source> open_source(const std::filesystem::path& source, const SourceOptions& options) {
  RETURN_IF_ERROR(check_scheme(source));
  Source opened;
  auto absolute = absolute_path(source);
  RETURN_IF_ERROR(absolute);
  opened.path = std::move(*absolute);
  if (is_url(opened.path)) {
    auto address = named_address(opened.path);
    RETURN_IF_ERROR(address);
    opened.path = std::move(*address);
  }
  if (!is_url(opened.path) && is_directory_of_models(opened.path)) {
    const auto found = list_model_directory(source);
    RETURN_IF_ERROR(found);
    if (found->indexes.empty() && !options.deltas.empty()) {
      return fail(ErrorCode::InvalidArgument, EINVAL,
                  opened.path.string() +
                      ": is a directory of archives: a delta needs one model: name its archive or index");
    }
    const std::string ignored = found->ignored_text(opened.path);
    if (!ignored.empty()) log::warning("{}: {}", opened.path.string(), ignored);
    if (found->indexes.empty()) return open_directory(std::move(opened), *found, options);
  }
  auto model = open_model(opened.path, options);
  RETURN_IF_ERROR(model);
  Source::Member member{.name = "", .path = opened.path};
  opened.path = (*model)->path();
  member.model = std::move(*model);
  opened.members.push_back(std::move(member));
  return opened;
}

}  // namespace stfs
