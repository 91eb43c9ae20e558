// The views in `.safetensors/`: the model in other forms. This class only reads; npy/ and archive.safetensors
// are written elsewhere (fs/model/mounted_model.h). A tensor's view is not kept in memory: each read makes
// its bytes.
//
//   npy/NAME.npy           a tensor with a NumPy header before it; at most kMaxNpyRank dimensions
//   float32/NAME.npy       a floating tensor of npy/, converted to float32
//   slice/NAME[0:10,:,3]   some elements of a tensor; with `.npy` appended, a NumPy file; never listed
//   header.json metadata.json stats.json archive.safetensors log
//
// NAME is the tensor's flat file name, also in layout=tree. If `.npy` makes the name too long for a
// directory, the name is cut and ends in a hash, as in names.h.
//
// The inode numbers of views are between the numbers of the tree and the numbers of the transactions. Files
// that always exist have computed numbers. A slice gets a number when it is looked up. stats.json and the log
// get a new number at each look-up (text_views.h). Slices and texts need memory until the kernel forgets
// them, so their look-ups are counted. (Look-ups of other views are not counted, and forgetting them does
// nothing.) The mount asks the kernel to forget the oldest slices, so that a million slices do not stay in
// memory. Open slices stay.
#pragma once

#include <array>
#include <atomic>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/base/mutex.h"
#include "core/base/name_hash.h"
#include "core/model/model.h"
#include "fs/base/activity.h"
#include "fs/base/user_counts.h"
#include "fs/read/tensor_reader.h"
#include "fs/read/tensor_views.h"
#include "fs/read/text_views.h"
#include "fs/read/whole_views.h"
#include "fs/tree/directory.h"
#include "fs/tree/inode_table.h"
#include "fs/tree/per_tensor.h"
#include "fs/tree/snapshot.h"
#include "fs/tree/tensor_tree.h"

namespace stfs {

/// Any thread may call. No function takes another lock while it holds the mutex of this class.
class Views final : public Directory {
 public:
  static constexpr Ino kNpy = Ino{1} << 40U;
  static constexpr Ino kSlice = kNpy + 1;
  static constexpr Ino kFloat32 = kNpy + 2;
  static constexpr Ino kHeaderJson = kNpy + 3;
  static constexpr Ino kMetadataJson = kNpy + 4;
  static constexpr Ino kArchive = kNpy + 5;
  static constexpr Ino kStatsJson = kNpy + 6;  // in listings, and st_ino of each file of kStatsFiles
  static constexpr Ino kLog = kNpy + 7;        // the same for kLogFiles
  static constexpr Ino kNpyFiles = Ino{1} << 41U;
  static constexpr Ino kFloat32Files = Ino{1} << 42U;
  static constexpr Ino kCounted = Ino{1} << 43U;  // slices
  static constexpr Ino kStatsFiles = Ino{1} << 47U;
  static constexpr Ino kLogFiles = kStatsFiles + (Ino{1} << 46U);
  static constexpr Ino kEnd = Ino{1} << 48U;

  static constexpr std::string_view kArchiveName = "archive.safetensors";
  static constexpr std::string_view kLogName = "log";
  /// The entries of `.safetensors`, except `pretrained` (fs/read/pretrained_directory.h) and the entries of
  /// the transactions.
  static constexpr std::array<FixedEntry, 8> kEntries = {{{"npy", kNpy},
                                                          {"slice", kSlice},
                                                          {"float32", kFloat32},
                                                          {"header.json", kHeaderJson},
                                                          {"metadata.json", kMetadataJson},
                                                          {"stats.json", kStatsJson},
                                                          {kArchiveName, kArchive},
                                                          {kLogName, kLog}}};

  /// Snapshots, unserved, reader and activity must outlive the views.
  Views(const Snapshots& snapshots, const UnservedTensors& unserved, const TensorReader& reader,
        Activity& activity, const UserLimits& limits);

  static bool owns(Ino ino) { return ino >= kNpy && ino < kEnd; }
  /// The part if the number is of header.json, metadata.json or archive.safetensors of any version
  /// (whole_views.h).
  static std::optional<WholeViews::Part> whole(Ino ino) {
    return ino >= kNpy && ino < kNpyFiles ? WholeViews::part(ino, kNpy) : std::nullopt;
  }
  static bool is_archive(Ino ino) { return whole(ino) == WholeViews::Part::Archive; }
  /// True for a slice and a text (text_views.h). forget() frees the number of such a file, and the kernel
  /// must not cache its name.
  static bool is_counted(Ino ino) { return ino >= kCounted && ino < kEnd; }
  static bool is_npy(Ino ino) { return ino >= kNpyFiles && ino < kFloat32Files; }
  static bool is_stats(Ino ino) { return ino >= kStatsFiles && ino < kLogFiles; }
  static bool is_log(Ino ino) { return ino >= kLogFiles && ino < kEnd; }
  /// The entry of kEntries if each look-up of the entry makes a new file: stats.json or the log. 0 for other
  /// entries.
  /// @param ino  of the entry, or of one of its files.
  static Ino remade_entry(Ino ino) {
    if (ino == kStatsJson || is_stats(ino)) return kStatsJson;
    return ino == kLog || is_log(ino) ? kLog : 0;
  }
  /// The value of a file's attribute `view` (core/storage/attribute_names.h).
  static std::string_view kind(Ino ino);
  /// The directory of a view that is not counted.
  static Ino directory(Ino ino) {
    if (ino < kNpyFiles) return kHiddenIno;
    return is_npy(ino) ? kNpy : kFloat32;
  }
  static bool is_directory(Ino ino) { return ino == kNpy || ino == kSlice || ino == kFloat32; }
  [[nodiscard]] Node node(Ino ino) const override;

  /// Also adds one look-up if the view is counted. EINVAL for a slice that its tensor does not have, and
  /// EDQUOT if the user has too many slices (UserLimits).
  Result<Ino> find(Ino directory, std::string_view name) override;
  /// Finds an entry of `.safetensors` itself. EDQUOT if the user has too many texts.
  Result<Ino> find_top(std::string_view name);
  /// npy/ lists each tensor that NumPy can represent, float32/ the floating tensors of npy/, slice/ nothing.
  void list(Ino directory, std::uint64_t position, const VisitEntry& visit) const override;
  /// Counts a look-up of a file by name, unless find() has counted it. @return the file's present number.
  Ino note_found(Ino ino) { return whole(ino) ? whole_.note_found(ino) : ino; }
  /// @return true if tensors may have lost the last file that shows them.
  bool forget(Ino ino, std::uint64_t lookups);
  /// Returns the name of a slice that the kernel should forget, if the kernel knows too many slices. Without
  /// a request the kernel forgets slices only when memory runs short. Call after each look-up in slice/.
  std::optional<std::string> slice_to_forget();

  /// Visits the entries of this class's directories that the kernel may have cached.
  void visit_known(const std::function<void(Ino directory, std::string_view name)>& visit) const;

  /// The view's size. Also notes that the kernel may cache the part of the view's tensors that the view
  /// shows.
  [[nodiscard]] Result<std::uint64_t> size_bytes(Ino ino) const;
  Result<Bytes> read(Ino ino, std::uint64_t offset, std::size_t wanted_bytes);
  /// True if this view shows the file of a single archive byte for byte.
  [[nodiscard]] bool is_the_archive(Ino ino) const {
    const auto view = is_archive(ino) ? whole_.view(ino) : nullptr;
    return view && view->is_the_archive();
  }
  /// The tensor that a view shows; nothing for a view of the whole model.
  [[nodiscard]] std::optional<TensorId> tensor(Ino ino) const;
  /// The shape of a slice's selection.
  [[nodiscard]] std::optional<std::vector<std::uint64_t>> slice_shape(Ino ino) const;

  /// Returns the cached views of the tensors from `first` to `last`, which the kernel must now forget.
  std::vector<Stale> stale(TensorId first, TensorId last);

  /// Call when the kernel gets a reply that names the file.
  void note_told(Ino ino) const;
  /// Returns the views of these tensors whose attributes the kernel may have cached.
  [[nodiscard]] std::vector<Stale> told(TensorId first, TensorId last) const;

  /// The path of a file or directory, relative to `.safetensors`.
  [[nodiscard]] std::string path(Ino ino) const;
  /// The user for whom a look-up made a log: only this user may read it.
  [[nodiscard]] uid_t reader_of_log(Ino ino) const { return logs_.user(ino); }

  void note_broken() { is_broken_ = true; }
  /// Call before any tensor gets an id below this number.
  void grow(std::uint32_t end_of_ids) { marks_.grow(end_of_ids); }

  /// The present number of an entry of kEntries.
  [[nodiscard]] Ino present(Ino entry) const {
    const auto part = whole(entry);
    return part ? whole_.present(*part) : entry;
  }
  /// True if a file that the kernel knows shows the tensor: a slice, or a whole view of an earlier version.
  [[nodiscard]] bool shows(TensorId tensor) const;
  /// Call before an edit changes the archive.
  Result<void> prepare_next() { return whole_.prepare_next(); }
  /// Makes the whole views of the next model. Only one thread at a time may call.
  [[nodiscard]] WholeViews::Versions::node_type next(std::shared_ptr<const Model> model) const {
    return whole_.next(std::move(model));
  }
  /// Shows the next whole views. Call after the next snapshot is shown.
  void show(WholeViews::Versions::node_type next) noexcept { whole_.show(std::move(next)); }
  /// Call before an edit changes the name or the form of a tensor, or deletes the tensor. After this call no
  /// name of a view leads to the tensor until the name is looked up again.
  /// @return the entries of this class's directories that the kernel may have cached.
  std::vector<std::pair<Ino, std::string>> drop_names(TensorId tensor);

 private:
  // The views of a tensor that the kernel may have cached. The last two marks are never removed.
  enum Mark : std::uint8_t {
    kNpyMark = 1,
    kFloat32Mark = 2,
    kArchiveMark = 4,
    kNpyName = 8,
    kFloat32Name = 16
  };
  struct KnownSlice {
    std::uint64_t lookups = 0;
    std::string name;
    std::shared_ptr<const TensorView> view;
    bool is_queued = false;   // queue_ contains it
    UserCounts::Share share;  // share of the user who looked up the slice first
  };

  [[nodiscard]] bool exists(Ino ino) const;
  Result<Ino> find_tensor(Ino directory, std::string_view name);
  Result<Ino> find_slice(std::string_view name);
  Result<Ino> make_stats();
  /// Returns the files of stats.json or of the log if the number is in one of their ranges; null otherwise.
  [[nodiscard]] const TextViews* texts(Ino ino) const {
    return is_stats(ino) ? &stats_ : is_log(ino) ? &logs_ : nullptr;
  }
  [[nodiscard]] std::shared_ptr<const TensorView> slice_of(Ino ino) const;
  /// A file of npy/, float32/ or slice/. Null if the number is of a forgotten slice.
  [[nodiscard]] std::shared_ptr<const TensorView> tensor_view(Ino ino) const;
  /// Notes that the kernel is about to get bytes of the view, and may cache them.
  void mark(Ino ino, ByteRange range) const;

  const Snapshots& snapshots_;
  const UnservedTensors& unserved_;
  const TensorReader& reader_;
  WholeViews whole_;
  TextViews stats_;
  TextViews logs_;
  Activity& activity_;
  std::atomic<bool> is_broken_ = false;
  PerTensor<std::atomic<std::uint8_t>> marks_;  // by id; set before the view's bytes are read
  UserCounts counts_;

  mutable Mutex mutex_;
  std::unordered_map<Ino, KnownSlice> slices_ GUARDED_BY(mutex_);
  NameMap<std::string_view, Ino> slice_names_ GUARDED_BY(mutex_);  // the key refers to KnownSlice::name
  // Slices, oldest first. Includes slices that are already forgotten.
  std::deque<Ino> queue_ GUARDED_BY(mutex_);
  Ino next_slice_ GUARDED_BY(mutex_) = kCounted;
};

}  // namespace stfs
