// What the edits of a delta need: a delta to begin with, and something that tells whether its base changes.
#include <algorithm>
#include <system_error>
#include <utility>

#include "core/archive/archive_writer.h"
#include "core/model/common_mode.h"
#include "core/model/delta_base.h"

namespace stfs {
namespace {

Result<std::string> digest_if_needed(const Model& base, const BeginDigest& begin, const GoesOn& goes_on) {
  if (has_proving_times(base)) return std::string();
  begin(base);
  return digest_of_all_bytes(base, goes_on);
}

}  // namespace

bool has_proving_times(const Model& model) {
  return std::ranges::none_of(base_files_of(model), [](const BaseFile& file) { return file.mtime_ns == 0; });
}

bool is_provable(const Model& model) {
  return !model.delta()->all_base_bytes.empty() || has_proving_times(*model.base());
}

Result<void> make_provable(Model& model, const BeginDigest& begin, const GoesOn& goes_on) {
  if (is_provable(model)) return {};
  auto digest = digest_if_needed(*model.base(), begin, goes_on);
  if (!digest) return pass_on(std::move(digest));
  model.keep_all_base_bytes(std::move(*digest));
  return {};
}

Result<void> create_delta(const std::filesystem::path& path, const Model& base,
                          const std::string& all_base_bytes) {
  if (auto whole = base.check_whole("a delta"); !whole) return whole;
  const Delta delta{.base = base.path().filename(),
                    .base_tensors = digest_of_tensors(base.tensors()),
                    .base_bytes = {},
                    .removed = {},
                    .metadata = base.metadata(),
                    .base_files = base_files_of(base),
                    .all_base_bytes = all_base_bytes};
  // Who may not read the base must not read what is made of it.
  auto writer = ArchiveWriter::create(path, {}, metadata_of(delta), false, {.mode = common_mode(base)});
  return writer ? writer->finish() : pass_on(std::move(writer));
}

Result<bool> make_delta(const std::filesystem::path& source, const ModelOptions& options,
                        const BeginDigest& begin, const GoesOn& goes_on) {
  const std::filesystem::path& path = options.deltas.back();
  const auto there = options.storage->status_of_name(path);
  if (there || there.error().errno_value == EXDEV) return false;  // opening a mount tells why not
  ModelOptions below = options;
  below.access = Access::ReadOnly;
  below.deltas.pop_back();
  auto base = Model::open(source, below);
  if (!base) return pass_on(std::move(base));
  // A change in this tick of the clock would leave the same time.
  wait_for_later_times(**base);
  base = Model::open(source, below);
  if (!base) return pass_on(std::move(base));
  auto digest = digest_if_needed(**base, begin, goes_on);
  if (!digest) return pass_on(std::move(digest));
  if (auto made = create_delta(path, **base, *digest); !made) return pass_on(std::move(made));
  return true;
}

}  // namespace stfs
