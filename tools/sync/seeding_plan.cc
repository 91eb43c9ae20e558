// The present model has the archives that its index names, or its only archive.
#include "tools/sync/seeding_plan.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <optional>
#include <set>
#include <string_view>
#include <utility>

#include "core/model/model_directory.h"
#include "core/model/model_index.h"
#include "core/storage/file.h"
#include "core/storage/new_file.h"
#include "tools/sync/file_switch.h"
#include "tools/sync/version_format.h"
#include "tools/target/target.h"

namespace stfs::sync {
namespace {

/// Returns the archives that an open index names; empty if the index is not valid.
Result<std::set<std::string>> archives_of(const File& file, std::uint64_t size_bytes) {
  std::set<std::string> archives;
  if (size_bytes > kMaxModelIndexBytes) return archives;
  const auto text = read_text(file, {0, size_bytes});
  RETURN_IF_ERROR(text);
  const auto index = parse_model_index(*text);
  if (index) archives.insert(index->shards().begin(), index->shards().end());
  return archives;
}

/// Returns the names of the archives that an index names; empty if the index is missing or not valid.
Result<std::set<std::string>> archives_of(Storage& storage, const std::filesystem::path& path) {
  const auto file = storage.open(path, Access::ReadOnly);
  if (!file && file.error().errno_value == ENOENT) return std::set<std::string>();
  RETURN_IF_ERROR(file);
  const auto size_bytes = (*file)->size_bytes();
  return size_bytes ? archives_of(**file, *size_bytes) : tl::unexpected(size_bytes.error());
}

/// Returns a name for a new archive that no file in the directory has.
std::string free_name(Storage& storage, const std::filesystem::path& directory, const std::string& name,
                      const std::string& version) {
  if (!is_taken_name(storage, directory / name)) return name;
  const std::string stem = name.substr(0, name.size() - kArchiveSuffix.size());
  std::string other = fmt::format("{}.v{}{}", stem, version, kArchiveSuffix);
  for (int number = 2; is_taken_name(storage, directory / other); ++number)
    other = fmt::format("{}.v{}-{}{}", stem, version, number, kArchiveSuffix);
  return other;
}

/// The present model.
struct Present {
  std::string index{kVersionIndex};      // the name that its index has, or would have
  std::set<std::string> archives;        // archives of this model alone
  std::optional<std::string> archive{};  // the model is this archive, without an index
};

Result<Present> look_at(const std::filesystem::path& model, const PublishedVersion& version,
                        const SyncState& state) {
  Present present;
  Storage& storage = state.storage();
  const auto located = tools::locate_target(model, tools::Use::Change, tools::read_mount_attribute, storage);
  // A model that can't be looked at is not missing: otherwise its archives would stay for ever.
  const bool is_missing =
      !located && (located.error().code != ErrorCode::System || located.error().errno_value == ENOENT);
  if (is_missing) return present;
  RETURN_IF_ERROR(located);
  const auto archive = storage.status(located->archive);
  const auto owner = archive ? std::optional(archive->uid) : std::nullopt;
  RETURN_IF_ERROR(tools::check_naming_mount(*located, model, owner));
  if (!located->deltas.empty()) {
    return fail(
        ErrorCode::ReadOnly, EROFS,
        model.string() + ": has deltas on top: a weight sync changes the model itself, so name the base");
  }
  const std::string name = located->archive.filename();
  if (name.ends_with(kModelIndexSuffix)) {
    present.index = name;
    auto archives = archives_of(storage, state.place().model_file(name));
    RETURN_IF_ERROR(archives);
    present.archives = std::move(*archives);
    return present;
  }
  const auto there = storage.status(model);
  const bool is_named = located->is_mounted || !there || !S_ISDIR(there->mode);
  if (is_named && (version.has_index() || version.shards().size() > 1)) {
    return fail(
        ErrorCode::InvalidArgument, EISDIR,
        fmt::format("{}: is one archive, and version {} has an index: name the directory, or pull into a new "
                    "one",
                    model.string(), version.version().text));
  }
  // Any other archive in the directory may be another user's model.
  if (is_named || state.version() || name == version.shards().front().path.filename()) {
    present.archive = name;
    present.archives.insert(name);
  }
  return present;
}

/// Keeps archives that indexes of other users name. If the index is false, the pull succeeds nevertheless: an
/// index that names all archives keeps all of them. Too many or too long indexes, which would take long to
/// read, also keep all archives. A file with several names is read once.
void spare_named_by_strangers(Storage& storage, const std::filesystem::path& directory,
                              const ModelDirectory& listed, const std::string& index,
                              std::set<std::string>& archives) {
  constexpr std::size_t kMostNames = 1000;
  constexpr std::uint64_t kMostBytes = 32 << 20;
  if (listed.ignored_indexes.size() > kMostNames) return archives.clear();
  std::set<std::pair<std::uint64_t, std::uint64_t>> known;
  std::uint64_t left_bytes = kMostBytes;
  for (const std::string& other : listed.ignored_indexes) {
    if (archives.empty()) return;
    if (other == index) continue;
    const auto file = storage.open(directory / other, Access::ReadOnly);
    const auto status = file ? (*file)->status() : tl::unexpected(file.error());
    if (!status || !known.emplace(status->identity.device, status->identity.inode).second) continue;
    const std::uint64_t size_bytes = status->identity.size_bytes;
    if (size_bytes > kMaxModelIndexBytes) continue;  // too large for an index
    if (size_bytes > left_bytes) return archives.clear();
    left_bytes -= size_bytes;
    if (const auto theirs = archives_of(**file, size_bytes)) {
      for (const std::string& name : *theirs) archives.erase(name);
    }
  }
}

/// Keeps archives that other indexes in the directory name.
Result<void> spare_others(Storage& storage, const std::filesystem::path& directory, const std::string& index,
                          std::set<std::string>& archives) {
  const auto listed = list_model_directory(directory, storage);
  RETURN_IF_ERROR(listed);
  for (const std::string& other : listed->indexes) {
    if (other == index) continue;
    const auto theirs = archives_of(storage, directory / other);
    RETURN_IF_ERROR(theirs);
    for (const std::string& name : *theirs) archives.erase(name);
  }
  spare_named_by_strangers(storage, directory, *listed, index, archives);
  return {};
}

/// The names by which the common libraries find a model's other files beside its archives, in order. A file
/// of such a name is part of the model, whichever user has put it there. No such file is a program.
constexpr std::array<std::string_view, 20> kModelFiles{"added_tokens.json",
                                                       "chat_template.jinja",
                                                       "chat_template.json",
                                                       "config.json",
                                                       "generation_config.json",
                                                       "hf_quant_config.json",
                                                       "image_processor.json",
                                                       "merges.txt",
                                                       "params.json",
                                                       "preprocessor_config.json",
                                                       "processor_config.json",
                                                       "quantization_config.json",
                                                       "quantize_config.json",
                                                       "special_tokens_map.json",
                                                       "tekken.json",
                                                       "tokenizer.json",
                                                       "tokenizer.model",
                                                       "tokenizer_config.json",
                                                       "vocab.json",
                                                       "vocab.txt"};
static_assert(std::ranges::is_sorted(kModelFiles));

Result<bool> has_same_bytes(const File& one, const File& other) {
  const auto size_bytes = one.size_bytes();
  const auto other_bytes = other.size_bytes();
  if (!size_bytes || !other_bytes)
    return tl::unexpected(size_bytes ? other_bytes.error() : size_bytes.error());
  if (*size_bytes != *other_bytes) return false;
  constexpr std::uint64_t kAtATime = 1 << 20;
  for (std::uint64_t at = 0; at < *size_bytes; at += kAtATime) {
    const ByteRange piece = {at, std::min(kAtATime, *size_bytes - at)};
    const auto first = read_text(one, piece);
    const auto second = read_text(other, piece);
    if (!first || !second) return tl::unexpected(first ? second.error() : first.error());
    if (*first != *second) return false;
  }
  return true;
}

/// Returns true if the model has a file of the version already: then the file stays. EEXIST: another file has
/// this name, which is not part of the model and which no earlier version has brought.
Result<bool> has_already(Storage& storage, const std::filesystem::path& directory,
                         const PublishedVersion& version, const std::string& name, bool is_replaceable) {
  const std::filesystem::path path = directory / name;
  const auto there = storage.status_of_name(path);
  if (!there && there.error().errno_value == ENOENT) return false;
  RETURN_IF_ERROR(there);
  if (is_replaceable && S_ISREG(there->mode)) return false;
  const auto theirs = version.files().open(version.directory() / name, Access::ReadOnly);
  RETURN_IF_ERROR(theirs);
  const auto ours = S_ISREG(there->mode) ? storage.open_no_link(path, Access::ReadOnly)
                                         : Result<std::unique_ptr<File>>(nullptr);
  if (ours && *ours != nullptr) {
    const auto is_same = has_same_bytes(**theirs, **ours);
    if (is_same && *is_same) return true;
  }
  return fail(ErrorCode::InvalidArgument, EEXIST,
              fmt::format("{}: version {} has another file of this name, and no earlier version has brought "
                          "the one here: rename or remove it, then pull again",
                          path.string(), version.version().text));
}

/// Returns the regular files of a version, its archives first and its index last. Hidden and temporary files
/// are left out. ELOOP: a file is a link.
Result<std::vector<std::string>> files_of(const PublishedVersion& version) {
  Storage& storage = version.files();
  auto names = storage.list(version.directory(), "");
  RETURN_IF_ERROR(names);
  std::erase_if(
      *names, [](const std::string& name) { return name.starts_with('.') || name.ends_with(kTemporaryEnd); });
  std::vector<std::string> files;
  for (std::string& name : *names) {
    const auto there = storage.status(version.directory() / name);
    // If a file can't be looked at, the pull fails: without a copy, the model would lack the file.
    RETURN_IF_ERROR(there);
    if (S_ISREG(there->mode)) files.push_back(std::move(name));
  }
  const auto rank = [](const std::string& name) {
    return name == kVersionIndex ? 2 : name.ends_with(kArchiveSuffix) ? 0 : 1;
  };
  std::ranges::sort(files, [&](const std::string& a, const std::string& b) {
    return std::pair(rank(a), std::string_view(a)) < std::pair(rank(b), std::string_view(b));
  });
  return files;
}

}  // namespace

bool has_model(const std::filesystem::path& directory, Storage& storage) {
  const auto listed = list_model_directory(directory, storage);
  return listed && !listed->archives.empty();
}

Result<SeedingPlan> plan_seeding(const std::filesystem::path& model, const PublishedVersion& version,
                                 const SyncState& state) {
  Storage& storage = state.storage();
  const std::filesystem::path directory = state.model_directory();
  const auto files = files_of(version);
  RETURN_IF_ERROR(files);
  auto present = look_at(model, version, state);
  RETURN_IF_ERROR(present);
  SeedingPlan plan;
  plan.present.assign(present->archives.begin(), present->archives.end());
  const bool is_one = version.shards().size() == 1 && !version.has_index();
  plan.has_index = !is_one || (!present->archive && has_model(directory, storage));
  if (plan.has_index) {
    plan.files.step = {new_temporary_file_name(), present->index};
    for (const Shard& shard : version.shards()) {
      const std::string name = shard.path.filename();
      const std::string& given =
          plan.archives.emplace(name, free_name(storage, directory, name, version.version().text))
              .first->second;
      plan.files.archives.push_back(given);
    }
  } else {
    const std::string name = version.shards().front().path.filename();
    plan.files.step = {new_temporary_file_name(), present->archive.value_or(name)};
    plan.archives.emplace(name, plan.files.step.to);
  }
  RETURN_IF_ERROR(spare_others(storage, directory, present->index, present->archives));
  present->archives.erase(plan.files.step.to);
  const std::set<std::string> brought = state.brought();
  for (const std::string& name : *files) {
    if (name == kVersionIndex || plan.archives.contains(name)) continue;
    const bool is_replaceable =
        name != plan.files.step.to && (brought.contains(name) || present->archives.contains(name) ||
                                       std::ranges::binary_search(kModelFiles, name));
    const auto has = has_already(storage, directory, version, name, is_replaceable);
    RETURN_IF_ERROR(has);
    if (*has) continue;
    plan.brought.insert(name);
    plan.files.after.push_back({new_temporary_file_name(), name});
    present->archives.erase(name);
  }
  plan.files.removed.assign(present->archives.begin(), present->archives.end());
  return plan;
}

}  // namespace stfs::sync
