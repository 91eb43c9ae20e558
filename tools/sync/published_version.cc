// Reads the index, opens the shards, and compares the index with the shards.
#include "tools/sync/published_version.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "core/base/xxh3.h"
#include "core/format/header.h"
#include "core/format/json_string.h"
#include "core/model/model.h"
#include "core/model/model_directory.h"
#include "core/model/model_index.h"
#include "core/storage/enclosed_storage.h"
#include "core/storage/trusted_links.h"

namespace stfs::sync {
namespace {

/// Returns true if a file name is the name of one of several shards: such a checkpoint needs an index.
bool is_shard_name(std::string_view name) {
  return name.find("-of-") != name.npos;
}

/// Returns true if the file ends before the bytes that its header promises, or if the header itself is cut
/// short.
bool is_shard_cut_short(const Shard& shard, Storage& storage) {
  switch (shard.failure->code) {
    case ErrorCode::HeaderTooSmall:
    case ErrorCode::InvalidHeaderLength:
    case ErrorCode::ArchiveCut: return true;
    case ErrorCode::MetadataIncompleteBuffer: break;  // the file may also be too long
    default: return says_gone(*shard.failure);
  }
  const auto file = storage.open(shard.path, Access::ReadOnly);
  const auto size_bytes = file ? (*file)->size_bytes() : tl::unexpected(file.error());
  if (!size_bytes || *size_bytes < kHeaderLengthBytes) return true;
  std::vector<std::byte> first(kHeaderLengthBytes);
  if (!(*file)->read(first, 0)) return true;
  const auto header_bytes = header_length(first, *size_bytes);
  if (!header_bytes) return true;
  const auto json = read_text(**file, {kHeaderLengthBytes, *header_bytes});
  const auto header = json ? parse_header(*json, std::nullopt) : tl::unexpected(json.error());
  if (!header) return false;
  const TensorIndex& tensors = header->tensors;
  std::uint64_t end = tensors.size() == 0 ? 0 : tensors[tensors.size() - 1].data.end();
  if (!header->fillers.empty()) end = std::max(end, header->fillers.back().end());
  return kHeaderLengthBytes + *header_bytes + end > *size_bytes;
}

}  // namespace

bool is_unfinished(const Error& error) {
  return error.errno_value == EAGAIN;
}

tl::unexpected<Error> unfinished(const std::filesystem::path& path, std::string_view why) {
  return fail(ErrorCode::NotFound, EAGAIN,
              fmt::format("{}: unfinished: {}: try again later", path.native(), why));
}

/// Fills a PublishedVersion, step by step.
class VersionOpener {
 public:
  VersionOpener(const std::filesystem::path& directory, std::shared_ptr<Storage> files) : storage_(*files) {
    opened_.directory_ = directory;
    opened_.files_ = std::move(files);
  }

  Result<PublishedVersion> open() {
    const auto names = storage_.list(directory(), "");
    if (!names) return tl::unexpected(Error(names.error()).within(directory().native()));
    opened_.has_index_ = std::ranges::find(*names, kVersionIndex) != names->end();
    RETURN_IF_ERROR(opened_.has_index_ ? read_index() : find_archives(*names));
    RETURN_IF_ERROR(choose_version());
    RETURN_IF_ERROR(open_files());
    RETURN_IF_ERROR(take_tensors());
    RETURN_IF_ERROR(check_index());
    return std::move(opened_);
  }

 private:
  [[nodiscard]] const std::filesystem::path& directory() const { return opened_.directory_; }
  [[nodiscard]] std::filesystem::path index_path() const { return directory() / kVersionIndex; }

  Result<void> read_index() {
    const std::filesystem::path path = index_path();
    const auto file = storage_.open(path, Access::ReadOnly);
    if (!file) return tl::unexpected(Error(file.error()).within(path.native()));
    const auto size_bytes = (*file)->size_bytes();
    if (!size_bytes) return tl::unexpected(Error(size_bytes.error()).within(path.native()));
    if (*size_bytes > kMaxModelIndexBytes) {
      return damaged("{}: has {} bytes, at most {} are allowed", path.native(), *size_bytes,
                     kMaxModelIndexBytes);
    }
    auto text = read_text(**file, {0, *size_bytes});
    if (!text && text.error().code == ErrorCode::ArchiveCut) return unfinished(path, "it is being written");
    if (!text) return tl::unexpected(std::move(text).error().within(path.native()));
    if (is_cut_short(*text)) {
      return unfinished(path, fmt::format("the index ends after {} bytes", text->size()));
    }
    opened_.index_hash_ = XXH3_64bits(text->data(), text->size());
    auto index = parse_model_index(*text);
    if (!index) return tl::unexpected(std::move(index).error().within(path.native()));
    index_ = std::move(*index);
    files_ = index_.shards();
    auto metadata = parse_version_metadata(*text);
    if (!metadata) return tl::unexpected(std::move(metadata).error().within(path.native()));
    opened_.metadata_ = std::move(*metadata);
    return {};
  }

  /// Finds the archives of a directory without an index: a full version, or a version whose index is not
  /// written yet.
  Result<void> find_archives(const std::vector<std::string>& names) {
    for (const std::string& name : names) {
      if (name.ends_with(kTemporaryEnd))
        return unfinished(directory(), fmt::format("{} is being written", name));
      if (!is_archive_name(name)) continue;
      if (is_shard_name(name))
        return unfinished(directory(), fmt::format("there is no {} yet", kVersionIndex));
      files_.push_back(name);
    }
    if (files_.empty()) return unfinished(directory(), "there is no archive yet");
    std::ranges::sort(files_);
    return {};
  }

  /// Compares the index's version with the directory's name.
  Result<void> choose_version() {
    auto named = version_of_directory(directory().filename().native());
    if (!named) {  // a link, or another form of the name: "weight_v000042/."
      named = version_of_directory(real_path(directory()).filename().native());
    }
    std::optional<VersionNumber>& version = opened_.metadata_.version;
    if (!version && !named) {
      return damaged("{}: neither its index nor its name tells a version: expected the name {}",
                     directory().native(), version_directory_name(1));
    }
    if (version && named && version->number != named->number) {
      return damaged("{}: metadata.version is {}, but the directory is of version {}", index_path().native(),
                     version->text, named->text);
    }
    if (!version) version = std::move(named);
    return {};
  }

  Result<void> open_files() {
    auto shards = open_shards(directory(), files_, {.storage = &storage_});
    RETURN_IF_ERROR(shards);
    opened_.shards_ = std::move(*shards);
    for (const Shard& shard : opened_.shards_) {
      if (!shard.failure) continue;
      if (says_gone(*shard.failure)) return unfinished(shard.path, "the file is not there yet");
      if (is_shard_cut_short(shard, storage_)) {
        const std::string_view why = shard.failure->message;
        const std::string path = shard.path.native() + ": ";  // unfinished() adds the path
        return unfinished(shard.path, why.starts_with(path) ? why.substr(path.size()) : why);
      }
      return tl::unexpected(Error(*shard.failure).within(shard.path.native()));
    }
    return {};
  }

  Result<void> take_tensors() {
    for (std::uint32_t shard = 0; shard < opened_.shards_.size(); ++shard) {
      const ArchiveVersion& version = *opened_.shards_[shard].version;
      const std::filesystem::path& path = opened_.shards_[shard].path;
      for (std::uint32_t at = 0; at < version.tensors().size(); ++at) {
        const Tensor tensor = version.tensors()[at];
        PublishedTensor entry{tensor.name, shard, version.file_range(tensor.data), {}};
        if (!opened_.is_full()) {
          RETURN_IF_ERROR(check_form(path, tensor));
          const auto checksum = version.metadata().find(tensor.name);
          if (!checksum) {
            return damaged("{}: tensor {} has no checksum in the metadata", path.native(),
                           in_quotes(tensor.name));
          }
          entry.checksum = *checksum;
          RETURN_IF_ERROR(check_checksum(path, entry));
        }
        opened_.tensors_.push_back(entry);
      }
    }
    std::ranges::sort(opened_.tensors_, {}, &PublishedTensor::name);
    return {};
  }

  static Result<void> check_form(const std::filesystem::path& path, const Tensor& tensor) {
    if (tensor.dtype == Dtype::U8 && tensor.shape.size() == 1) return {};
    return damaged("{}: tensor {} is {} {}, expected the bytes of a diff: U8 of one dimension", path.native(),
                   in_quotes(tensor.name), name_of(tensor.dtype), shape_text(tensor.shape));
  }

  Result<void> check_checksum(const std::filesystem::path& path, const PublishedTensor& entry) const {
    if (is_checksum(opened_.checksum_format(), entry.checksum)) return {};
    return damaged("{}: tensor {}: its checksum is {}, expected the {} hexadecimal digits of {}",
                   path.native(), in_quotes(entry.name), in_quotes(entry.checksum),
                   hex_digits_of(opened_.checksum_format()), name_of(opened_.checksum_format()));
  }

  /// Checks that each tensor is in one file, and that the index names this file.
  Result<void> check_index() {
    const auto path_of = [&](const PublishedTensor& entry) -> const std::filesystem::path& {
      return opened_.shards_[entry.shard].path;
    };
    const auto& tensors = opened_.tensors_;
    const auto twin = std::ranges::adjacent_find(tensors, {}, &PublishedTensor::name);
    if (twin != tensors.end()) {
      return damaged("{}: tensor {} is in {} too", path_of(twin[0]).native(), in_quotes(twin->name),
                     path_of(twin[1]).filename().native());
    }
    if (!opened_.has_index_) return {};
    for (const PublishedTensor& entry : tensors) {
      const auto named = index_.find(entry.name);
      const std::string file = path_of(entry).filename();
      if (!named) {
        return damaged("{}: tensor {} is in the file, but not in {}", path_of(entry).native(),
                       in_quotes(entry.name), kVersionIndex);
      }
      if (index_.shards()[*named] != file) {
        return damaged("{}: tensor {}: the index names {}, but {} holds it", index_path().native(),
                       in_quotes(entry.name), index_.shards()[*named], file);
      }
    }
    if (tensors.size() == index_.size()) return {};
    for (std::uint32_t at = 0; at < index_.size(); ++at) {
      if (opened_.find(index_[at].tensor) != nullptr) continue;
      return damaged("{}: tensor {}: the index names {}, which does not hold it", index_path().native(),
                     in_quotes(index_[at].tensor), index_.shards()[index_[at].shard]);
    }
    return {};
  }

  Storage& storage_;
  PublishedVersion opened_;
  ModelIndex index_;
  std::vector<std::string> files_;
};

Result<PublishedVersion> PublishedVersion::open(const std::filesystem::path& directory, Storage& storage,
                                                const std::filesystem::path& enclosing) {
  return guard_memory([&]() -> Result<PublishedVersion> {
    if (!storage.is_system()) {
      // A test's model of a disk has no links, and outlives the version.
      return VersionOpener(directory, std::shared_ptr<Storage>(&storage, [](Storage*) {})).open();
    }
    auto files = EnclosedStorage::open(enclosing.empty() ? directory : enclosing);
    RETURN_IF_ERROR(files);
    return VersionOpener(directory, std::move(*files)).open();
  });
}

const PublishedTensor* PublishedVersion::find(std::string_view name) const {
  const auto at = std::ranges::lower_bound(tensors_, name, {}, &PublishedTensor::name);
  return at != tensors_.end() && at->name == name ? &*at : nullptr;
}

CompressedDiff PublishedVersion::diff(const PublishedTensor& tensor) const {
  const ArchiveReader* archive = shards_[tensor.shard].archive.get();
  return {.size_bytes = tensor.file_range.size_bytes,
          .read = [archive, from = tensor.file_range.offset](std::uint64_t offset, std::span<std::byte> to) {
            return archive->read_through(to, from + offset);
          }};
}

}  // namespace stfs::sync
