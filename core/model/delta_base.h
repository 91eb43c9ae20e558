// A delta and its base: whether the base still has the bytes that the delta was made for, the deltas that are
// edited, and what a delta changes in its base when it is merged into it.
//
// Reading the whole base takes minutes if it is large. The sizes and times of its files answer in most cases:
//   1. The delta's metadata has them from the time when the delta was written.
//   2. An extended attribute of the delta's file has those of a base that was read and found right.
// Otherwise the tensors that the delta keeps are read.
//
// A time counts only if nobody sets it for many files at once, as tools that unpack archives do: so not if it
// is a whole second. It does not count either while a journal overrides the file.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/base/error.h"
#include "core/base/work.h"
#include "core/model/delta.h"
#include "core/model/model.h"
#include "core/model/model_edit.h"

namespace stfs {

/// The extended attribute of a delta's file that remembers a base.
inline constexpr char kRememberedBase[] = "user.safetensorsfs.base";

/// The extended attribute of a delta's file with the absolute path of its base. A stranger's delta may have
/// one too, so it is a hint: check what is there.
inline constexpr char kBasePath[] = "user.safetensorsfs.base_path";

/// The files of a model as the base of a new delta, in the order of shards().
std::vector<BaseFile> base_files_of(const Model& model);
/// Waits until the present tick of the kernel's file clock has passed, at most 20 ms. Before Linux 6.13 this
/// clock is coarse: a file that was written to in this tick could be written to again without a change of its
/// time. Call before the bytes are read.
void wait_for_later_times(const Model& model);
/// The digest "base_bytes": of the bytes of these tensors, one after the other, in order of their names. One
/// pass of the work; EINTR if it is stopped.
Result<std::string> digest_of_bytes(const Model& model, std::vector<std::uint32_t> positions, Work& work);
/// The digest "all_base_bytes" of a model as the base of a delta.
Result<std::string> digest_of_all_bytes(const Model& model, Work& work);

// Of a model with a delta on top:

/// Keeps the path of the base in the file of the delta on top, where that is possible: for stfs commit.
void keep_path_of_base(const Model& model);
/// The path that the delta's file keeps; nothing if it keeps none.
std::optional<std::string> known_path_of_base(const ArchiveReader& delta);

/// The tensors that the delta keeps of its base.
std::vector<std::uint32_t> kept_tensors(const Model& model);
/// How the files of the base differ from those that the delta was made for. Empty if they do not.
std::string differences_of_base(const Model& model);
/// Reads the kept tensors; for an edited delta, all of the base. EINVAL, with the names of files that differ:
/// they have other bytes, or nothing but their times could tell.
Result<void> check_base_bytes(const Model& model, Work& work);

enum class BaseCheck : std::uint8_t {
  Known,       // files with these sizes and times are known to be right
  Read,        // the tensors were read and are right
  Remembered,  // ... and the next check is quick
};
/// Checks the base in the quickest way. Remembers a base that was read, if the delta's file can be given an
/// attribute.
/// @param begin  runs before the tensors are read, with their size and the reason.
/// @return also ESTALE: a file was changed during the check.
Result<BaseCheck> check_base(const Model& model,
                             const std::function<void(std::uint64_t size_bytes, std::string_view why)>& begin,
                             Work& work);

// Of deltas that are edited (model_edit.h): nothing but the times of the base's files tells whether it has
// changed, or a digest of all of its bytes.

/// Runs before a base is read for that digest.
using BeginDigest = std::function<void(const Model& base)>;

/// Whether the times of a model's files tell whether they change.
bool has_proving_times(const Model& model);
/// Whether an edited delta on top of the model will tell whether its base has changed.
bool is_provable(const Model& model);
/// Reads the base if that is needed for is_provable().
Result<void> make_provable(Model& model, const BeginDigest& begin, Work& work);
/// Makes a delta without changes. It has no name before it is whole and on stable storage. Nobody may read it
/// who may not read the base. EEXIST: the path exists.
/// @param all_base_bytes  empty if has_proving_times().
Result<void> create_delta(const std::filesystem::path& path, const Model& base,
                          const std::string& all_base_bytes);
/// Makes the last of the deltas, if there is none.
/// @param options  as for Model::open() of the source with its deltas.
/// @return whether it was made.
Result<bool> make_delta(const std::filesystem::path& source, const ModelOptions& options,
                        const BeginDigest& begin, Work& work);

// Of a delta that is merged into its base:

/// What a commit of a delta changes in its base. Immutable once made. Positions are those of tensors of the
/// delta's archive.
struct DeltaMerge {
  std::vector<std::uint32_t> replaced;  // the base has them with the same dtype and shape
  std::vector<std::uint32_t> remade;    // the base has them with another dtype or shape
  std::vector<std::uint32_t> added;     // the base lacks them
  std::vector<std::string> removed;     // names of tensors of the base
  std::vector<Delta::Renamed> renamed;
  /// Keys that change, each with its new value; nothing: the key goes.
  std::vector<std::pair<std::string, std::optional<std::string>>> metadata;
  std::uint64_t size_bytes = 0;  // of all tensors of the delta

  /// Whether only bytes change. An ordinary transaction then does it, which moves nothing in the base.
  [[nodiscard]] bool is_patch() const {
    return remade.empty() && added.empty() && removed.empty() && renamed.empty() && metadata.empty();
  }
};

/// @param delta  the keys of `changed`.
/// @param changed  the delta's archive, as a model of its own.
/// @return InvalidArgument: check_delta() refuses the base.
Result<DeltaMerge> merge_of(const Delta& delta, const Model& changed, const Model& base);

/// Makes all changes of the merge in an edit of the base. The caller stages the bytes of the delta's tensors.
Result<void> add_to(ModelEdit& edit, const DeltaMerge& merge, const Model& changed);

}  // namespace stfs
