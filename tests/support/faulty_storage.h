// A disk that fails when a test tells it to: the operating system's files, with a fault put in front of
// one chosen call.
//
// Calls are counted from 1 in the order in which they come, whatever file they are made on, so that a
// sweep over every count makes every step of an operation fail once.
#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include "core/file.h"

namespace stfs::test {

enum class FileCall : std::uint8_t { Open, CreateUnnamed, PathStatus, Read, Write, Reserve, Sync, Status };

/// What is to fail. Shared by the storage and its files; any thread may look at the counts.
class FaultPlan {
 public:
  /// The nth call from now on, of any kind, fails with that errno. 0: none.
  void fail_call(unsigned nth, int errno_value);
  /// The same for the nth call of one kind.
  void fail_call(FileCall kind, unsigned nth, int errno_value);
  /// A write that fails has put the first half of its bytes before.
  void tear_writes() { tears_writes_ = true; }

  /// Calls since the last fail_call().
  [[nodiscard]] unsigned calls() const { return calls_; }
  /// The kind of the call that has failed, if one has.
  [[nodiscard]] std::optional<FileCall> failed() const;
  /// Bytes reached a named file, the archive that is, since the last fail_call(); torn ones count.
  [[nodiscard]] bool has_touched_archive() const { return has_touched_archive_; }

  // For the storage and its files.
  [[nodiscard]] Result<void> before(FileCall kind, const std::string& subject);
  [[nodiscard]] bool tears_writes() const { return tears_writes_; }
  void note_archive_touched() { has_touched_archive_ = true; }

 private:
  void restart(unsigned nth, int errno_value);

  std::optional<FileCall> kind_;
  unsigned nth_ = 0;
  int errno_value_ = 0;
  bool tears_writes_ = false;
  std::atomic<unsigned> calls_ = 0;
  std::atomic<unsigned> matching_calls_ = 0;
  std::atomic<int> failed_kind_ = -1;
  std::atomic<bool> has_touched_archive_ = false;
};

class FaultyStorage final : public Storage {
 public:
  Result<std::unique_ptr<File>> open(const std::filesystem::path& path, Access access) override;
  Result<std::unique_ptr<File>> create_unnamed(const std::filesystem::path& directory) override;
  Result<FileStatus> status(const std::filesystem::path& path) override;

  [[nodiscard]] FaultPlan& plan() { return *plan_; }

 private:
  std::shared_ptr<FaultPlan> plan_ = std::make_shared<FaultPlan>();
};

}  // namespace stfs::test
