// What the crash tests do to an archive: its layout, and transactions one after the other.
//
// The expected content is kept as plain bytes, computed without the code under test.
#pragma once

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/archive/archive.h"
#include "core/commit/transaction.h"
#include "tests/support/disk_model.h"

namespace stfs::test {

inline constexpr std::string_view kArchivePath = "/models/model.safetensors";
inline constexpr std::string_view kDirectory = "/models";

using Content = std::vector<std::byte>;

struct TestTensor {
  std::string_view name;
  std::uint64_t offset;  // absolute in the file
  std::uint64_t size_bytes;
};

/// An archive whose tensors show every case of how a tensor lies in blocks.
class TestArchive {
 public:
  /// @param large_bytes  size of the tensor "large".
  explicit TestArchive(std::uint64_t large_bytes);

  /// In the order of the file.
  [[nodiscard]] const std::vector<TestTensor>& tensors() const { return tensors_; }
  [[nodiscard]] const TestTensor& operator[](std::string_view name) const { return tensors_[position(name)]; }
  [[nodiscard]] std::uint32_t position(std::string_view name) const;
  /// The bytes at the beginning.
  [[nodiscard]] const Content& content() const { return content_; }

 private:
  std::vector<TestTensor> tensors_;
  Content content_;
};

const TestArchive& small_archive();
/// Its tensor "large" touches as many blocks as a lane of a lane journal has.
const TestArchive& lane_archive();
/// Its tensor "large" is one that is cloned, where the disk can.
const TestArchive& large_archive();

/// Bytes written into a tensor.
struct Piece {
  std::string_view tensor;
  std::uint64_t offset = 0;                      // in the tensor
  std::optional<std::uint64_t> size_bytes = {};  // all there is, without it
};

/// When the commit of a step lends its turn (CommitOptions::lend_turn).
enum class Lent : std::uint8_t { WhileHashed, WhileSynced, WhileApplied };

struct Step {
  std::vector<Piece> pieces;
  /// Cuts the first piece's tensor before, tries to commit, which must fail, and then writes.
  bool tries_wrong_size = false;
  /// A new Archive object for this step.
  bool reopens = false;
  /// Settles the journal that is kept, afterwards.
  bool settles = false;
  /// Commits the bytes that differ (Transaction::begin_patches()), not whole blocks.
  bool is_patch = false;
  /// The pieces of another commit, of other blocks, that runs inside of this step's; none: there is no such
  /// commit.
  std::vector<Piece> beside = {};
  Lent beside_when = Lent::WhileHashed;
};

struct Workload {
  std::string_view name;
  const TestArchive* archive;
  std::vector<Step> steps;
  DiskOptions disk;
  Durability durability = Durability::Power;
  /// Small commits go through a lane journal.
  bool keeps_journal = false;
  DiskUser writer = {};
};

const std::vector<Workload>& workloads();
const Workload& workload(std::string_view name);
/// Any pieces, in any order, on any kind of disk that survives a loss of power.
Workload random_workload(std::uint64_t seed);

/// std::equal() would take them one by one.
inline bool are_same(std::span<const std::byte> one, std::span<const std::byte> other) {
  return one.size() == other.size() && std::memcmp(one.data(), other.data(), one.size()) == 0;
}

/// What a step writes there: bytes that tell step and position.
Content piece_bytes(const TestArchive& archive, const Piece& piece, std::uint64_t step);
/// The archive after the step.
Content content_after(const TestArchive& archive, const Content& before, const Step& step,
                      std::uint64_t number);
/// The commit inside of a step's.
Step beside_of(const Step& step);
inline constexpr std::uint64_t kBeside = 1000;  // is added to the step's number for it, without other notes

/// The content at the beginning and after each commit: of each step, and of the one inside of it, in the
/// order of their commit points.
std::vector<Content> contents_of(const Workload& workload);

/// Makes the pieces patches of a transaction.
Result<void> stage_patches(Transaction& transaction, const Archive& archive, const TestArchive& layout,
                           std::span<const Piece> pieces, std::uint64_t number, const CommitOptions& options);

/// The seam as one program sees it, with an archive open.
class Writer {
 public:
  Writer(Storage& storage, const TestArchive& layout, CommitOptions options, bool keeps_journal = false,
         std::string_view path = kArchivePath)
      : storage_(storage),
        layout_(layout),
        options_(std::move(options)),
        keeps_journal_(keeps_journal),
        path_(path) {}
  ~Writer() { close(); }
  Writer(const Writer&) = delete;
  Writer& operator=(const Writer&) = delete;

  /// Opens it where it is not open.
  Result<void> open();
  /// Removes the journal that was kept; what can't be done is left to recovery.
  void close();
  Result<void> settle();
  /// A failure behind a commit point has ended all writing.
  [[nodiscard]] bool has_stopped() const { return archive_ && !archive_->check_writable(); }
  [[nodiscard]] Archive& archive() const { return *archive_; }
  /// Called around the commit inside of a step's. begins() returns its number.
  struct Notes {
    std::function<std::uint64_t()> begins;
    std::function<void(const Result<void>&)> ends;
  };
  void note_beside(Notes notes) { notes_ = std::move(notes); }
  /// Stages and commits one step. A failed commit is tried again as often as told, on the same transaction.
  Result<void> run(const Step& step, std::uint64_t number, unsigned retries = 0);

 private:
  Result<void> stage(Transaction& transaction, std::span<const Piece> pieces, std::uint64_t number);
  Result<void> patch(const Step& step, std::uint64_t number, unsigned retries);
  /// Sets lend_turn for a step with a commit inside of it.
  void let_in(CommitOptions& options, const Step& step, std::uint64_t number_beside);
  Result<void> run_beside(const Step& step, std::uint64_t number);

  Storage& storage_;
  const TestArchive& layout_;
  CommitOptions options_;
  const bool keeps_journal_;
  const std::filesystem::path path_;
  std::unique_ptr<Archive> archive_;
  ReaderWriterLock readers_;
  ReaderWriterLock readers_beside_;
  Notes notes_;
};

/// Who may write the archive that put_archive() makes: root, its owner and the others of its group.
const std::vector<DiskUser>& people();
/// Puts the archive at the beginning onto the disk.
void put_archive(DiskModel& disk, const TestArchive& archive = small_archive());
CommitOptions commit_options(Durability durability);

}  // namespace stfs::test
