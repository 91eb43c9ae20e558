// Compares a delta with its base: checks whether the base still has the bytes that the delta was made for,
// makes deltas that are edited, and lists the changes that merging a delta makes in its base.
//
// Reading the whole base takes minutes if the base is large. In most cases the sizes and times of the files
// suffice:
//   1. The delta's metadata have them from the time when the delta was written.
//   2. An extended attribute of the delta's file has a digest of them, from a base that was found right.
// Otherwise the tensors that the delta keeps are read.
//
// A file of a web server has a version instead of a time (File::version()): the same version proves the same
// bytes.
//
// A file's time proves something only if no program has set it for many files at once, as tools that unpack
// archives do. A time of whole seconds therefore proves nothing. The time of a file that a journal overrides
// also proves nothing.
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
#include "core/model/model_change.h"

namespace stfs {

/// The extended attribute of a delta's file that records a base that was found right.
inline constexpr char kRememberedBase[] = "user.safetensorsfs.base";

/// The extended attribute of a delta's file that has the absolute path of its base. A delta from a stranger
/// may have this attribute, so the path is a hint: the caller checks the file at the path.
inline constexpr char kBasePath[] = "user.safetensorsfs.base_path";

/// Returns the files of a model as the base of a new delta, in the order of shards().
std::vector<BaseFile> base_files_of(const Model& model);
/// Waits until the present tick of the kernel's file clock has passed, at most 20 ms. Before Linux 6.13 this
/// clock is coarse: a second write to a file in the same tick may leave the file's time unchanged. The caller
/// reads the bytes after this call.
void wait_for_later_times(const Model& model);
/// Returns the digest "base_bytes" of the bytes of these tensors, one after the other, in order of their
/// names. One pass of the work. EINTR: the work was stopped.
Result<std::string> digest_of_bytes(const Model& model, std::vector<std::uint32_t> positions, Work& work);
/// Returns the digest "all_base_bytes" of a model as the base of a delta.
Result<std::string> digest_of_all_bytes(const Model& model, Work& work);

// These functions take a model with a delta on top.

/// Stores the path of the base in the file of the delta on top, if possible. stfs commit uses it.
void keep_path_of_base(const Model& model);
/// Returns the path that the delta's file stores, or nothing.
std::optional<std::string> known_path_of_base(const ArchiveReader& delta);

/// Returns the tensors that the delta keeps from its base.
std::vector<std::uint32_t> kept_tensors(const Model& model);
/// Describes how the files of the base differ from the files that the delta was made for. Empty: they are the
/// same.
std::string differences_of_base(const Model& model);
/// Reads the kept tensors, or for an edited delta all of the base. EINVAL names the files that differ: the
/// bytes have changed, or the delta has only the times of the files to compare.
Result<void> check_base_bytes(const Model& model, Work& work);

enum class BaseCheck : std::uint8_t {
  Known,       // files with these sizes and times are known to be right
  Read,        // the tensors were read and are right
  Remembered,  // the tensors are right, and the next check is quick
};
/// Checks the base in the quickest way. Remembers a base that was read, if the delta's file accepts an
/// extended attribute.
/// @param begin  runs before the tensors are read, with their size and the reason.
/// @return also ESTALE: a file was changed during the check.
Result<BaseCheck> check_base(const Model& model,
                             const std::function<void(std::uint64_t size_bytes, std::string_view why)>& begin,
                             Work& work);

// These functions concern deltas that are edited (model_edit.h). For such a delta only the times of the
// base's files or a digest of all of its bytes show whether the base has changed.

/// Is called before a base is read for that digest.
using BeginDigest = std::function<void(const Model& base)>;

/// Returns true if the times or versions of a model's files show later changes of the files.
bool has_proving_times(const Model& model);
/// Returns true if an edited delta on top of the model can detect later changes of its base.
bool is_provable(const Model& model);
/// Reads the base if is_provable() needs that.
Result<void> make_provable(Model& model, const BeginDigest& begin, Work& work);
/// Makes a delta without changes. The delta gets its name once it is whole and on stable storage. Users
/// without read access to the base get none to the delta. EEXIST: the path exists.
/// @param all_base_bytes  empty if has_proving_times().
Result<void> create_delta(const std::filesystem::path& path, const Model& base,
                          const std::string& all_base_bytes);
/// Makes the last one of the deltas, if it does not exist.
/// @param options  as for Model::open() of the source with its deltas.
/// @return true if the delta was made.
Result<bool> make_delta(const std::filesystem::path& source, const ModelOptions& options,
                        const BeginDigest& begin, Work& work);

// These functions concern a delta that is merged into its base.

/// The changes that a commit of a delta makes in its base. Immutable once made. Positions count the tensors
/// of the delta's archive.
struct DeltaMerge {
  std::vector<std::uint32_t> replaced;  // the base has them with the same dtype and shape
  std::vector<std::uint32_t> remade;    // the base has them with another dtype or shape
  std::vector<std::uint32_t> added;     // the base lacks them
  std::vector<std::string> removed;     // names of tensors of the base
  std::vector<Delta::Renamed> renamed;
  /// Keys that change, each with its new value; nothing: the key is removed.
  std::vector<std::pair<std::string, std::optional<std::string>>> metadata;
  std::uint64_t size_bytes = 0;  // of all tensors of the delta

  /// Returns true if only bytes change. The merge then moves nothing in the base.
  [[nodiscard]] bool is_patch() const {
    return remade.empty() && added.empty() && removed.empty() && renamed.empty() && metadata.empty();
  }
};

/// @param delta  the keys of `changed`.
/// @param changed  the delta's archive, opened as a separate model.
/// @return InvalidArgument: check_delta() refuses the base.
Result<DeltaMerge> merge_of(const Delta& delta, const Model& changed, const Model& base);

/// Adds all changes of the merge to a change of the base. The caller writes the bytes of the delta's tensors.
Result<void> add_to(ModelChange& change, const DeltaMerge& merge, const Model& changed);

}  // namespace stfs
