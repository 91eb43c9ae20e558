// The workloads of the crash tests: the layout of an archive, and transactions one after the other.
//
// The expected content is plain bytes, computed without the code under test.
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

/// An archive whose tensors have every case of a position relative to the blocks.
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
/// An archive whose tensor "large" touches as many blocks as a lane of a lane journal has.
const TestArchive& lane_archive();
/// An archive whose tensor "large" is cloned if the disk can.
const TestArchive& large_archive();

/// Bytes written into a tensor.
struct Piece {
  std::string_view tensor;
  std::uint64_t offset = 0;                      // in the tensor
  std::optional<std::uint64_t> size_bytes = {};  // nothing: the rest of the tensor
};

/// When the commit of a step lends its turn (CommitOptions::lend_turn).
enum class Lent : std::uint8_t { WhileHashed, WhileSynced, WhileApplied };

struct Step {
  std::vector<Piece> pieces;
  /// First cuts the first piece's tensor and tries to commit, which must fail. Then writes all pieces.
  bool tries_wrong_size = false;
  /// Opens a new Archive object for this step.
  bool reopens = false;
  /// Settles the kept journal after the commit.
  bool settles = false;
  /// Commits the bytes that differ (Transaction::begin_patches()), not whole blocks.
  bool is_patch = false;
  /// The pieces of another commit, of other blocks, that runs inside of this step's commit; none: no such
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
/// Random pieces in any order, on any kind of disk, with a durability that survives a loss of power.
Workload random_workload(std::uint64_t seed);

/// Faster than std::equal(), which compares single bytes.
inline bool are_same(std::span<const std::byte> one, std::span<const std::byte> other) {
  return one.size() == other.size() && std::memcmp(one.data(), other.data(), one.size()) == 0;
}

/// The bytes that a step writes for a piece. They depend on the step and on the position.
Content piece_bytes(const TestArchive& archive, const Piece& piece, std::uint64_t step);
/// The archive after the step.
Content content_after(const TestArchive& archive, const Content& before, const Step& step,
                      std::uint64_t number);
/// The commit inside of a step's commit.
Step beside_of(const Step& step);
inline constexpr std::uint64_t kBeside = 1000;  // by default, added to the step's number for the inner commit

/// The content at the beginning and after each commit, outer and inner, in the order of their commit points.
std::vector<Content> contents_of(const Workload& workload);

/// Stages the pieces as patches of a transaction.
Result<void> stage_patches(Transaction& transaction, const Archive& archive, const TestArchive& layout,
                           std::span<const Piece> pieces, std::uint64_t number, const CommitOptions& options);

/// A program that commits to an archive through a storage.
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

  /// Opens the archive unless it is open.
  Result<void> open();
  /// Removes the kept journal and closes the archive. If the removal fails, recovery does it.
  void close();
  Result<void> settle();
  /// True if a failure after a commit point has ended all writing.
  [[nodiscard]] bool has_stopped() const { return archive_ && !archive_->check_writable(); }
  [[nodiscard]] Archive& archive() const { return *archive_; }
  /// Called before and after an inner commit. begins() returns the inner commit's number.
  struct Notes {
    std::function<std::uint64_t()> begins;
    std::function<void(const Result<void>&)> ends;
  };
  void note_beside(Notes notes) { notes_ = std::move(notes); }
  /// Stages and commits one step. Retries a failed commit up to `retries` times, on the same transaction.
  Result<void> run(const Step& step, std::uint64_t number, unsigned retries = 0);

 private:
  Result<void> stage(Transaction& transaction, std::span<const Piece> pieces, std::uint64_t number);
  Result<void> patch(const Step& step, std::uint64_t number, unsigned retries);
  /// Sets lend_turn for a step with an inner commit.
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

/// The users that may write the archive of put_archive(): root, its owner and the members of its group.
const std::vector<DiskUser>& people();
/// Puts the archive at the beginning onto the disk.
void put_archive(DiskModel& disk, const TestArchive& archive = small_archive());
CommitOptions commit_options(Durability durability);

}  // namespace stfs::test
