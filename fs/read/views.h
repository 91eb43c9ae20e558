// `.safetensors/`: the model in other shapes, all of them read-only, none of them kept in memory.
//
//   npy/NAME.npy           a tensor with a NumPy header before it
//   float32/NAME.npy       a floating tensor, converted; others are not there
//   slice/NAME[0:10,:,3]   some of its elements, with `.npy` behind it as a NumPy file; never listed
//   header.json metadata.json stats.json archive.safetensors
//
// NAME is the tensor's flat file name, in layout=tree too; where `.npy` makes it longer than a directory can
// hold it is cut and told apart by a hash, as in names.h.
//
// Inode numbers lie between those of the tree and those of the transactions. Those of files that are always
// there are computed. A slice gets one when it is looked up, and so does stats.json each time: a look-up
// makes a file of its own, whose text never changes, so that stat, read and mmap agree on its size and each
// open sees new figures. What these cost is given back when the kernel forgets them, so their look-ups are
// counted. (The others' are not: their forgetting does nothing.) Of slices the kernel is asked to forget the
// oldest, so that a million of them leave nothing behind; what is open stays.
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
#include "fs/tree/inode_table.h"

namespace stfs {

/// Any thread may call. Its mutex is taken last.
class Views {
 public:
  static constexpr Ino kNpy = Ino{1} << 40U;
  static constexpr Ino kSlice = kNpy + 1;
  static constexpr Ino kFloat32 = kNpy + 2;
  static constexpr Ino kHeaderJson = kNpy + 3;
  static constexpr Ino kMetadataJson = kNpy + 4;
  static constexpr Ino kArchive = kNpy + 5;
  static constexpr Ino kStatsJson = kNpy + 6;  // in listings, and what stat says of each of kStatsFiles
  static constexpr Ino kNpyFiles = Ino{1} << 41U;
  static constexpr Ino kFloat32Files = Ino{1} << 42U;
  static constexpr Ino kCounted = Ino{1} << 43U;  // slices
  static constexpr Ino kStatsFiles = Ino{1} << 47U;
  static constexpr Ino kEnd = Ino{1} << 48U;

  struct Entry {
    std::string_view name;
    Ino ino = 0;
  };
  /// What `.safetensors` holds besides the transactions.
  static constexpr std::array<Entry, 7> kEntries = {{{"npy", kNpy},
                                                     {"slice", kSlice},
                                                     {"float32", kFloat32},
                                                     {"header.json", kHeaderJson},
                                                     {"metadata.json", kMetadataJson},
                                                     {"stats.json", kStatsJson},
                                                     {"archive.safetensors", kArchive}}};

  /// @param tree  of the mount; model, tree and activity must outlive the views.
  Views(const Model& model, const InodeTable& tree, Layout layout, ViewSource source, Activity& activity);

  static bool owns(Ino ino) { return ino >= kNpy && ino < kEnd; }
  /// Its number is given back by forget(), and the kernel must not remember it by name.
  static bool is_counted(Ino ino) { return ino >= kCounted && ino < kEnd; }
  static bool is_stats(Ino ino) { return ino >= kStatsFiles && ino < kEnd; }
  /// Of a file: the value of its attribute `view` (core/storage/attribute_names.h).
  static std::string_view kind(Ino ino);
  static bool is_directory(Ino ino) { return ino == kNpy || ino == kSlice || ino == kFloat32; }
  [[nodiscard]] bool exists(Ino ino) const;

  /// ENOENT; EINVAL for a slice that its tensor does not have. Of what is counted, one more look-up.
  /// @param directory  one of ours, or kEntriesOf for what lies in `.safetensors` itself.
  static constexpr Ino kEntriesOf = 0;
  Result<Ino> find(Ino directory, std::string_view name);
  /// The tensor's flat file name in the name of a view of it; nothing where there is none. Not of names that
  /// `.npy` makes too long.
  static std::optional<std::string_view> flat_name_in(Ino directory, std::string_view name);
  void forget(Ino ino, std::uint64_t lookups);
  /// The name in slice/ that the kernel should be asked to forget, because it knows more than enough of them:
  /// by itself it forgets only when memory runs short. To be asked after each look-up there.
  std::optional<std::string> slice_to_forget();

  /// Entries of our directories that the kernel may know.
  void visit_known(const std::function<void(Ino directory, std::string_view name)>& visit) const;

  // Listings: npy/ names each tensor, float32/ the floating ones, slice/ nothing.
  [[nodiscard]] std::uint32_t size(Ino directory) const;
  [[nodiscard]] std::pair<std::string, Ino> child(Ino directory, std::uint32_t at) const;

  /// Also notes that the kernel may keep what the view says of its tensors.
  [[nodiscard]] Result<std::uint64_t> size_bytes(Ino ino) const;
  Result<Bytes> read(Ino ino, std::uint64_t offset, std::size_t wanted_bytes);
  /// Whether it shows the file of a single archive as it is.
  [[nodiscard]] bool is_the_archive(Ino ino) const { return ino == kArchive && whole_.is_the_archive(); }
  /// The tensor that a view is made of; nothing for a view of the whole model.
  [[nodiscard]] std::optional<std::uint32_t> tensor(Ino ino) const;
  /// The shape of what a slice selects.
  [[nodiscard]] std::optional<std::vector<std::uint64_t>> slice_shape(Ino ino) const;

  /// The views of those tensors that the kernel may have in its caches, which it must now forget.
  std::vector<Stale> stale(std::uint32_t first_tensor, std::uint32_t last_tensor);

  /// The kernel has an answer that tells of that file.
  void note_told(Ino ino) const;
  /// The files of those tensors whose attributes the kernel may have in its caches.
  [[nodiscard]] std::vector<Stale> told(std::uint32_t first_tensor, std::uint32_t last_tensor) const;

  void note_broken() { is_broken_ = true; }

 private:
  // What the kernel may have in its caches; the last two for as long as there is the view.
  enum Mark : std::uint8_t {
    kNpyMark = 1,
    kFloat32Mark = 2,
    kArchiveMark = 4,
    kNpyName = 8,
    kFloat32Name = 16
  };
  struct Counted {
    std::uint64_t lookups = 0;
    std::string name;                                 // of a slice
    std::shared_ptr<const SliceFile> slice;           // null: stats.json
    bool is_queued = false;                           // in queue_
    std::shared_ptr<const Activity::Snapshot> stats;  // of stats.json
  };

  Result<Ino> find_slice(std::string_view name);
  Ino add_stats();
  [[nodiscard]] std::shared_ptr<const SliceFile> slice_of(Ino ino) const;
  /// What lies before the data of a `.npy`.
  [[nodiscard]] std::string head_of(Ino ino) const;
  [[nodiscard]] std::shared_ptr<const Activity::Snapshot> stats_of(Ino ino) const;
  /// Notes that the kernel may keep what it is about to hear of the view.
  void mark(Ino ino, ByteRange range) const;

  const Model& model_;
  const ViewNames names_;
  const ViewSource source_;
  const ArchiveView whole_;
  Activity& activity_;
  std::atomic<bool> is_broken_ = false;
  mutable std::vector<std::atomic<std::uint8_t>> marks_;  // by tensor; set before its bytes are read
  std::vector<std::uint32_t> floating_;                   // tensors that float32/ has

  mutable std::mutex mutex_;  // guards what follows
  std::unordered_map<Ino, Counted> counted_;
  std::unordered_map<std::string_view, Ino> slices_;  // by name, a view of the file's own
  std::deque<Ino> queue_;  // slices, in order of their making; those that are forgotten already, too
  Ino next_slice_ = kCounted;
  Ino next_stats_ = kStatsFiles;
};

}  // namespace stfs
