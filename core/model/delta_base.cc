#include "core/model/delta_base.h"

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/xattr.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <climits>
#include <ctime>
#include <numeric>
#include <span>
#include <string_view>
#include <thread>
#include <utility>

#include "core/archive/archive_writer.h"
#include "core/base/absolute_path.h"
#include "core/base/checksum.h"
#include "core/base/name_hash.h"
#include "core/base/wall_clock.h"
#include "core/model/common_mode.h"
#include "core/remote/digest.h"

namespace stfs {
namespace {

constexpr std::uint64_t kPieceBytes = 4U << 20U;
constexpr std::int64_t kSecondNs = 1'000'000'000;
constexpr std::string_view kSha256 = "sha256:";  // a version that is a digest of all bytes

/// Returns all shards except the delta on top, if there is one.
std::span<const Shard> base_shards(const Model& model) {
  return model.shards().first(model.shards().size() - (model.delta() ? 1 : 0));
}

bool proves_something(std::int64_t mtime_ns) {
  return mtime_ns > 0 && mtime_ns % kSecondNs != 0;
}

std::string time_text(std::int64_t mtime_ns) {
  return fmt::format("{:%F %T}.{:09}", fmt::gmtime(static_cast<std::time_t>(mtime_ns / kSecondNs)),
                     mtime_ns % kSecondNs);
}

/// Returns File::version() of a shard that is open.
std::string version_of(const Shard& shard) {
  const File* file = shard.archive ? shard.archive->local_file() : nullptr;
  return file == nullptr ? std::string() : file->version();
}

/// Describes how a file differs from its record. Empty: it does not differ.
std::string difference_of(const Shard& shard, const BaseFile& was) {
  const FileIdentity is = shard.archive->identity();
  const std::string name = shard.path.string();
  if (is.size_bytes != was.size_bytes) {
    return fmt::format("{}: has {} bytes, and {} then", name, is.size_bytes, was.size_bytes);
  }
  if (!was.version.empty()) {
    const std::string version = version_of(shard);
    if (version == was.version) return {};
    return fmt::format("{}: has {}, and {} then", name,
                       version.empty() ? "no version of a server" : "version " + version, was.version);
  }
  if (!shard.archive->is_as_in_file()) return name + ": a commit to it is not in the file yet";
  if (!proves_something(was.mtime_ns)) return name + ": the time of its last change was not recorded";
  if (is.mtime_ns == was.mtime_ns) return {};
  return fmt::format("{}: was last changed at {} UTC, and the delta's base at {}", name,
                     time_text(is.mtime_ns), time_text(was.mtime_ns));
}

/// Returns a digest of all facts that show whether a file of the base was replaced or changed, even if its
/// mtime was set back. Nothing if a file does not give these facts. The digest has no device number, because
/// that may change with each boot.
std::optional<std::string> facts_of_base(const Model& model) {
  Checksum checksum;
  const auto add = [&checksum](std::string_view text) { checksum.update(std::as_bytes(std::span(text))); };
  add(model.delta()->base_bytes);
  add(model.delta()->all_base_bytes);
  add(model.delta()->base_tensors);
  for (const Shard& shard : base_shards(model)) {
    const File* file = shard.archive->local_file();
    struct stat status {};
    if (file == nullptr || !shard.archive->is_as_in_file()) return std::nullopt;
    if (::fstat(file->descriptor(), &status) != 0) return std::nullopt;
    const std::array<std::uint64_t, 6> facts = {static_cast<std::uint64_t>(status.st_ino),
                                                static_cast<std::uint64_t>(status.st_size),
                                                static_cast<std::uint64_t>(status.st_mtim.tv_sec),
                                                static_cast<std::uint64_t>(status.st_mtim.tv_nsec),
                                                static_cast<std::uint64_t>(status.st_ctim.tv_sec),
                                                static_cast<std::uint64_t>(status.st_ctim.tv_nsec)};
    checksum.update(std::as_bytes(std::span(facts)));
  }
  return "1 " + checksum.hex();
}

int descriptor_of_delta(const Model& model) {
  const File* file = model.shards().back().archive->local_file();
  return file == nullptr ? -1 : file->descriptor();
}

bool is_remembered(const Model& model, const std::string& facts) {
  std::array<char, 64> value{};
  const ssize_t size_bytes =
      ::fgetxattr(descriptor_of_delta(model), kRememberedBase, value.data(), value.size());
  return size_bytes >= 0 && std::string_view(value.data(), static_cast<std::size_t>(size_bytes)) == facts;
}

bool remember(const Model& model, const std::string& facts) {
  return ::fsetxattr(descriptor_of_delta(model), kRememberedBase, facts.data(), facts.size(), 0) == 0;
}

Result<std::string> digest_if_needed(const Model& base, const BeginDigest& begin, Work& work) {
  if (has_proving_times(base)) return std::string();
  begin(base);
  return digest_of_all_bytes(base, work);
}

/// Returns true if the delta has the SHA-256 of each file of its base, and the base has as many.
bool has_digests(const Model& model) {
  const std::vector<BaseFile>& were = model.delta()->base_files;
  const auto has_digest = [](const BaseFile& file) { return file.version.starts_with(kSha256); };
  return were.size() == base_shards(model).size() && std::ranges::all_of(were, has_digest);
}

/// Reads the files of the base, such as copies of files of the Hub, and compares them with the digests that
/// the delta has. One pass of the work.
/// @return false if one of them differs.
Result<bool> have_digests(const Model& model, Work& work) {
  const auto shards = base_shards(model);
  std::uint64_t total_bytes = 0;
  for (const Shard& shard : shards) total_bytes += shard.archive->identity().size_bytes;
  work.begin(total_bytes);
  std::vector<std::byte> buffer(kPieceBytes);
  for (std::size_t at = 0; at < shards.size(); ++at) {
    const std::uint64_t size_bytes = shards[at].archive->identity().size_bytes;
    const BaseFile& was = model.delta()->base_files[at];
    if (size_bytes != was.size_bytes) return false;
    auto digest = Digest::begin(Digest::Kind::Sha256);
    RETURN_IF_ERROR(digest);
    for (std::uint64_t done = 0; done < size_bytes; done += kPieceBytes) {
      const auto piece = std::span(buffer).first(
          static_cast<std::size_t>(std::min<std::uint64_t>(kPieceBytes, size_bytes - done)));
      RETURN_IF_ERROR(shards[at].archive->read_through(piece, done));
      digest->update(piece);
      if (!work.advance(piece.size()))
        return fail(ErrorCode::System, EINTR, model.path().native() + ": interrupted, nothing was written");
    }
    if (std::string(kSha256) + digest->finish() != was.version) return false;
  }
  return true;
}

/// Adds the whole merge except new bytes and new tensors.
Result<void> add_structure(ModelEdit& edit, const DeltaMerge& merge) {
  for (const std::string& name : merge.removed) {
    RETURN_IF_ERROR(edit.remove(name));
  }
  std::vector<ModelEdit::Renaming> renamings;
  for (const Delta::Renamed& renamed : merge.renamed) renamings.push_back({renamed.from, renamed.name});
  RETURN_IF_ERROR(edit.rename(renamings));
  for (const Delta::Renamed& renamed : merge.renamed) {
    RETURN_IF_ERROR(edit.reinterpret(renamed.name, renamed.dtype, renamed.shape));
  }
  for (const auto& [key, value] : merge.metadata) {
    RETURN_IF_ERROR(edit.set_metadata(key, value));
  }
  return {};
}

}  // namespace

std::vector<BaseFile> base_files_of(const Model& model) {
  std::vector<BaseFile> files;
  for (const Shard& shard : model.shards()) {
    // The identity at the time when the model was opened, and perhaps compared with a delta.
    const FileIdentity& is = shard.version->status.identity;
    const bool counts = shard.archive->is_as_in_file() && proves_something(is.mtime_ns);
    files.push_back({shard.path.filename(), is.size_bytes, counts ? is.mtime_ns : 0, version_of(shard)});
  }
  return files;
}

Result<std::string> digest_of_all_bytes(const Model& model, Work& work) {
  std::vector<std::uint32_t> all(model.tensors().size());
  std::iota(all.begin(), all.end(), 0U);
  return digest_of_bytes(model, std::move(all), work);
}

void wait_for_later_times(const Model& model) {
  constexpr std::chrono::milliseconds kLongestTick{20};
  std::int64_t newest_ns = 0;
  for (const Shard& shard : model.shards()) {
    if (shard.archive) newest_ns = std::max(newest_ns, shard.archive->identity().mtime_ns);
  }
  const auto begin = std::chrono::steady_clock::now();
  while (newest_ns >= wall_clock_ns(Clock::Coarse) &&
         std::chrono::steady_clock::now() - begin < kLongestTick) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

Result<std::string> digest_of_bytes(const Model& model, std::vector<std::uint32_t> positions, Work& work) {
  std::ranges::sort(positions, {}, [&](std::uint32_t position) { return model.tensors()[position].name; });
  std::uint64_t total_bytes = 0;
  for (const std::uint32_t position : positions) total_bytes += model.file_range(position).size_bytes;
  work.begin(total_bytes);
  Checksum checksum;
  std::vector<std::byte> scratch;
  for (const std::uint32_t position : positions) {
    const ByteRange whole = model.file_range(position);
    for (std::uint64_t done = 0; done < whole.size_bytes; done += kPieceBytes) {
      const auto bytes = model.archive_of(position).read(
          {whole.offset + done, std::min(kPieceBytes, whole.size_bytes - done)}, scratch);
      RETURN_IF_ERROR(bytes);
      checksum.update(*bytes);
      if (!work.advance(bytes->size()))
        return fail(ErrorCode::System, EINTR, model.path().native() + ": interrupted, nothing was written");
    }
  }
  work.look();
  return checksum.hex();
}

void keep_path_of_base(const Model& model) {
  const ArchiveReader& delta = *model.shards().back().archive;
  const auto absolute = absolute_path(model.path());
  if (!absolute || delta.local_file() == nullptr) return;
  const std::string& path = absolute->native();
  if (known_path_of_base(delta) == path) return;
  static_cast<void>(::fsetxattr(delta.local_file()->descriptor(), kBasePath, path.data(), path.size(), 0));
}

std::optional<std::string> known_path_of_base(const ArchiveReader& delta) {
  if (delta.local_file() == nullptr) return std::nullopt;
  std::string path(PATH_MAX, '\0');
  const ssize_t size_bytes =
      ::fgetxattr(delta.local_file()->descriptor(), kBasePath, path.data(), path.size());
  if (size_bytes <= 0 || path.front() != '/') return std::nullopt;
  path.resize(static_cast<std::size_t>(size_bytes));
  return path;
}

std::vector<std::uint32_t> kept_tensors(const Model& model) {
  std::vector<std::uint32_t> positions;
  for (std::uint32_t position = 0; position < model.tensors().size(); ++position) {
    if (model.is_of_base(model.place(position).shard)) positions.push_back(position);
  }
  return positions;
}

std::string differences_of_base(const Model& model) {
  constexpr std::size_t kShown = 3;
  const auto shards = base_shards(model);
  const std::vector<BaseFile>& were = model.delta()->base_files;
  if (were.empty()) return "the delta does not record the times of its base's files";
  if (were.size() != shards.size()) {
    return fmt::format("the base has {} file{}, and {} then", shards.size(), shards.size() == 1 ? "" : "s",
                       were.size());
  }
  std::string text;
  std::size_t count = 0;
  for (std::size_t at = 0; at < shards.size(); ++at) {
    const std::string difference = difference_of(shards[at], were[at]);
    if (difference.empty() || ++count > kShown) continue;
    text += (text.empty() ? "" : "; ") + difference;
  }
  if (count > kShown) text += fmt::format("; and {} more files", count - kShown);
  return text;
}

Result<void> check_base_bytes(const Model& model, Work& work) {
  const Delta& delta = *model.delta();
  const std::string differences = differences_of_base(model);
  const auto refuse = [&](std::string_view why) {
    return fail(
        ErrorCode::InvalidArgument, EINVAL,
        fmt::format("{}: is not the base of {}: {}{}{}", model.path().native(),
                    model.shards().back().path.native(), why, differences.empty() ? "" : ": ", differences));
  };
  const bool is_edited = delta.base_bytes.empty();
  if (is_edited && delta.all_base_bytes.empty()) {
    if (differences.empty()) return {};
    if (has_digests(model)) {
      const auto are_same = have_digests(model, work);
      RETURN_IF_ERROR(are_same);
      if (*are_same) return {};
      return refuse("its files have other bytes");
    }
    return refuse(
        "the delta knows it by the sizes and times of its files only (a copy needs the same times: "
        "cp -p, touch -r), or by their versions on a server");
  }
  const auto found = is_edited ? digest_of_all_bytes(*model.base(), work)
                               : digest_of_bytes(model, kept_tensors(model), work);
  RETURN_IF_ERROR(found);
  if (*found == (is_edited ? delta.all_base_bytes : delta.base_bytes)) return {};
  return refuse("the bytes of some tensors have changed since");
}

Result<BaseCheck> check_base(const Model& model,
                             const std::function<void(std::uint64_t size_bytes, std::string_view why)>& begin,
                             Work& work) {
  const std::string why = differences_of_base(model);
  if (why.empty()) {
    keep_path_of_base(model);
    return BaseCheck::Known;
  }
  auto facts = facts_of_base(model);
  if (facts && is_remembered(model, *facts)) {
    keep_path_of_base(model);
    return BaseCheck::Known;
  }
  std::uint64_t size_bytes = 0;
  if (!model.delta()->base_bytes.empty()) {
    for (const std::uint32_t position : kept_tensors(model))
      size_bytes += model.file_range(position).size_bytes;
  } else if (!model.delta()->all_base_bytes.empty() || has_digests(model)) {
    size_bytes = model.base()->data_size_bytes();
  }
  if (size_bytes > 0) begin(size_bytes, why);
  wait_for_later_times(model);
  facts = facts_of_base(model);
  RETURN_IF_ERROR(check_base_bytes(model, work));
  if (facts != facts_of_base(model)) {
    return fail(ErrorCode::ArchiveChanged, ESTALE,
                model.path().native() + ": was changed while it was compared with the delta");
  }
  keep_path_of_base(model);
  return facts && remember(model, *facts) ? BaseCheck::Remembered : BaseCheck::Read;
}

bool has_proving_times(const Model& model) {
  return std::ranges::none_of(
      base_files_of(model), [](const BaseFile& file) { return file.mtime_ns == 0 && file.version.empty(); });
}

bool is_provable(const Model& model) {
  return !model.delta()->all_base_bytes.empty() || has_proving_times(*model.base());
}

Result<void> make_provable(Model& model, const BeginDigest& begin, Work& work) {
  if (is_provable(model)) return {};
  auto digest = digest_if_needed(*model.base(), begin, work);
  RETURN_IF_ERROR(digest);
  model.keep_all_base_bytes(std::move(*digest));
  return {};
}

Result<void> create_delta(const std::filesystem::path& path, const Model& base,
                          const std::string& all_base_bytes) {
  RETURN_IF_ERROR(base.check_whole("a delta"));
  const Delta delta{.base = base.path().filename(),
                    .base_tensors = digest_of_tensors(base.tensors()),
                    .base_bytes = {},
                    .removed = {},
                    .metadata = base.metadata(),
                    .base_files = base_files_of(base),
                    .all_base_bytes = all_base_bytes};
  // Users who may not read the base must not read a file that is made from it.
  auto writer = ArchiveWriter::create(path, {}, metadata_of(delta), false, {.mode = common_mode(base)});
  return writer ? writer->finish() : pass_on(std::move(writer));
}

Result<bool> make_delta(const std::filesystem::path& source, const ModelOptions& options,
                        const BeginDigest& begin, Work& work) {
  const std::filesystem::path& path = options.deltas.back();
  const auto there = options.storage->status_of_name(path);
  if (there || there.error().errno_value == EXDEV) return false;  // opening a mount gives the reason
  ModelOptions below = options;
  below.access = Access::ReadOnly;
  below.deltas.pop_back();
  auto base = Model::open(source, below);
  RETURN_IF_ERROR(base);
  // A change in this tick of the clock would leave the same time.
  wait_for_later_times(**base);
  base = Model::open(source, below);
  RETURN_IF_ERROR(base);
  auto digest = digest_if_needed(**base, begin, work);
  RETURN_IF_ERROR(digest);
  RETURN_IF_ERROR(create_delta(path, **base, *digest));
  return true;
}

Result<DeltaMerge> merge_of(const Delta& delta, const Model& changed, const Model& base) {
  return guard_memory([&]() -> Result<DeltaMerge> {
    RETURN_IF_ERROR(check_delta(delta, changed.tensors(), base.tensors()));
    DeltaMerge merge;
    merge.removed = delta.removed;
    merge.renamed = delta.renamed;
    NameSet<std::string_view> gone;  // names that are free in the base after the renames
    for (const Delta::Renamed& renamed : merge.renamed) gone.insert(renamed.from);
    for (std::uint32_t at = 0; at < changed.tensors().size(); ++at) {
      const Tensor tensor = changed.tensors()[at];
      merge.size_bytes += tensor.data.size_bytes;  // no overflow: less than the file's size
      const auto known = base.tensors().find(tensor.name);
      if (!known || gone.contains(tensor.name)) {
        merge.added.push_back(at);
        continue;
      }
      const Tensor before = base.tensors()[*known];
      const bool is_same = before.dtype == tensor.dtype && std::ranges::equal(before.shape, tensor.shape);
      (is_same ? merge.replaced : merge.remade).push_back(at);
    }
    for (const auto& [key, value] : base.metadata()) {
      if (!delta.metadata.find(key)) merge.metadata.emplace_back(key, std::nullopt);
    }
    for (const auto& [key, value] : delta.metadata) {
      if (base.metadata().find(key) != value) merge.metadata.emplace_back(key, value);
    }
    return merge;
  });
}

Result<void> add_to(ModelChange& change, const DeltaMerge& merge, const Model& changed) {
  // This precedes the new tensors, whose names may be names of tensors that are removed or renamed.
  if (!merge.removed.empty() || !merge.renamed.empty() || !merge.metadata.empty()) {
    const auto edit = change.edit();
    RETURN_IF_ERROR(edit);
    RETURN_IF_ERROR(add_structure(**edit, merge));
  }
  for (const auto* positions : {&merge.replaced, &merge.remade, &merge.added}) {
    for (const std::uint32_t at : *positions) {
      const Tensor tensor = changed.tensors()[at];
      auto done =
          change.put(std::string(tensor.name), tensor.dtype, {tensor.shape.begin(), tensor.shape.end()});
      RETURN_IF_ERROR(done);
    }
  }
  return {};
}

}  // namespace stfs
