// The views in `.safetensors/`: the model in other forms. All views are read-only. A tensor's view is not
// kept in memory: each read makes its bytes.
//
//   npy/NAME.npy           a tensor with a NumPy header before it
//   float32/NAME.npy       a floating tensor, converted to float32; other tensors have no file here
//   slice/NAME[0:10,:,3]   some elements of a tensor; with `.npy` appended, a NumPy file; never listed
//   header.json metadata.json stats.json archive.safetensors
//
// NAME is the tensor's flat file name, in layout=tree too. If `.npy` makes the name too long for a directory,
// the name is cut and ends in a hash, as in names.h.
//
// Inode numbers of views lie between those of the tree and those of the transactions. Files that always exist
// have computed numbers. A slice gets a number when it is looked up. stats.json gets a new number at each
// look-up: each look-up makes a file of its own whose text never changes, so that stat, read and mmap agree
// on its size and each open sees new figures. Slices and stats files need memory until the kernel forgets
// them, so their look-ups are counted. (Look-ups of other views are not counted, and forgetting them does
// nothing.) The kernel is asked to forget the oldest slices, so that a million slices do not stay in memory.
// Open slices stay.
#pragma once

#include <array>
#include <atomic>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "core/model/model.h"
#include "fs/read/views_activity.h"
#include "fs/read/views_archive.h"
#include "fs/read/views_names.h"
#include "fs/read/views_slice.h"
#include "fs/read/views_source.h"
#include "fs/tree/directory.h"
#include "fs/tree/inode_table.h"
#include "fs/tree/tensor_tree.h"

namespace stfs {

/// Any thread may call. No other lock is taken while its mutex is held.
class Views final : public Directory {
 public:
  static constexpr Ino kNpy = Ino{1} << 40U;
  static constexpr Ino kSlice = kNpy + 1;
  static constexpr Ino kFloat32 = kNpy + 2;
  static constexpr Ino kHeaderJson = kNpy + 3;
  static constexpr Ino kMetadataJson = kNpy + 4;
  static constexpr Ino kArchive = kNpy + 5;
  static constexpr Ino kStatsJson = kNpy + 6;  // in listings, and st_ino of each file of kStatsFiles
  static constexpr Ino kNpyFiles = Ino{1} << 41U;
  static constexpr Ino kFloat32Files = Ino{1} << 42U;
  static constexpr Ino kCounted = Ino{1} << 43U;  // slices
  static constexpr Ino kStatsFiles = Ino{1} << 47U;
  static constexpr Ino kEnd = Ino{1} << 48U;

  /// The entries of `.safetensors` besides those of the transactions.
  static constexpr std::array<FixedEntry, 7> kEntries = {{{"npy", kNpy},
                                                          {"slice", kSlice},
                                                          {"float32", kFloat32},
                                                          {"header.json", kHeaderJson},
                                                          {"metadata.json", kMetadataJson},
                                                          {"stats.json", kStatsJson},
                                                          {"archive.safetensors", kArchive}}};

  /// @param tree  the mount's. Model, tree and activity must outlive the views.
  Views(const Model& model, const TensorTree& tree, Layout layout, ViewSource source, Activity& activity);

  static bool owns(Ino ino) { return ino >= kNpy && ino < kEnd; }
  /// True for a slice or a stats file. forget() frees its number, and the kernel must not cache its name.
  static bool is_counted(Ino ino) { return ino >= kCounted && ino < kEnd; }
  static bool is_stats(Ino ino) { return ino >= kStatsFiles && ino < kEnd; }
  /// The value of a file's attribute `view` (core/storage/attribute_names.h).
  static std::string_view kind(Ino ino);
  static bool is_directory(Ino ino) { return ino == kNpy || ino == kSlice || ino == kFloat32; }
  [[nodiscard]] Node node(Ino ino) const override;

  /// Adds one look-up if the view is counted. Also EINVAL for a slice that its tensor does not have.
  Result<Ino> find(Ino directory, std::string_view name) override;
  /// Finds an entry of `.safetensors` itself.
  Result<Ino> find_top(std::string_view name);
  /// npy/ lists each tensor, float32/ the floating ones, slice/ nothing.
  void list(Ino directory, std::uint64_t position, const VisitEntry& visit) const override;
  void forget(Ino ino, std::uint64_t lookups);
  /// Returns the name of a slice that the kernel should be asked to forget, if the kernel knows too many: the
  /// kernel by itself forgets only when memory runs short. Call after each look-up in slice/.
  std::optional<std::string> slice_to_forget();

  /// Visits the entries of our directories that the kernel may have cached.
  void visit_known(const std::function<void(Ino directory, std::string_view name)>& visit) const;

  /// The view's size. Also notes that the kernel may cache what the view shows of its tensors.
  [[nodiscard]] Result<std::uint64_t> size_bytes(Ino ino) const;
  Result<Bytes> read(Ino ino, std::uint64_t offset, std::size_t wanted_bytes);
  /// True if this view shows the file of a single archive byte for byte.
  [[nodiscard]] bool is_the_archive(Ino ino) const { return ino == kArchive && whole_.is_the_archive(); }
  /// The tensor that a view shows; nothing for a view of the whole model.
  [[nodiscard]] std::optional<TensorId> tensor(Ino ino) const;
  /// The shape of a slice's selection.
  [[nodiscard]] std::optional<std::vector<std::uint64_t>> slice_shape(Ino ino) const;

  /// The views that the kernel may have cached of the tensors from `first` to `last`, and must now forget.
  std::vector<Stale> stale(TensorId first, TensorId last);

  /// Call when the kernel gets a reply that names that file.
  void note_told(Ino ino) const;
  /// The views of these tensors whose attributes the kernel may have cached.
  [[nodiscard]] std::vector<Stale> told(TensorId first, TensorId last) const;

  void note_broken() { is_broken_ = true; }

 private:
  // What the kernel may have cached of a tensor's views. The last two marks are never taken back.
  enum Mark : std::uint8_t {
    kNpyMark = 1,
    kFloat32Mark = 2,
    kArchiveMark = 4,
    kNpyName = 8,
    kFloat32Name = 16
  };
  struct Counted {
    std::uint64_t lookups = 0;
    std::string name;                                 // only of a slice
    std::shared_ptr<const SliceFile> slice;           // null for stats.json
    bool is_queued = false;                           // queue_ contains it
    std::shared_ptr<const Activity::Snapshot> stats;  // only of stats.json
  };

  [[nodiscard]] bool exists(Ino ino) const;
  Result<Ino> find_tensor(Ino directory, std::string_view name);
  Result<Ino> find_slice(std::string_view name);
  Ino add_stats();
  [[nodiscard]] std::shared_ptr<const SliceFile> slice_of(Ino ino) const;
  /// The bytes before the data of a `.npy` file.
  [[nodiscard]] std::string head_of(Ino ino) const;
  [[nodiscard]] std::shared_ptr<const Activity::Snapshot> stats_of(Ino ino) const;
  /// Notes that the kernel may cache the bytes that it is about to get from the view.
  void mark(Ino ino, ByteRange range) const;

  const Model& model_;
  const UnservedTensors& unserved_;
  const ViewNames names_;
  const ViewSource source_;
  const ArchiveView whole_;
  Activity& activity_;
  std::atomic<bool> is_broken_ = false;
  mutable std::vector<std::atomic<std::uint8_t>> marks_;  // by id; set before its bytes are read
  std::vector<TensorId> floating_;                        // the tensors in float32/

  mutable std::mutex mutex_;  // guards what follows
  std::unordered_map<Ino, Counted> counted_;
  std::unordered_map<std::string_view, Ino> slices_;  // the key refers to Counted::name
  std::deque<Ino> queue_;  // slices, oldest first; includes slices that are already forgotten
  Ino next_slice_ = kCounted;
  Ino next_stats_ = kStatsFiles;
};

}  // namespace stfs
