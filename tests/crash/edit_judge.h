// Judges the state of a model after a crash: first as a reader without journals, then after a recovery, which
// may also crash.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tests/crash/edit_log.h"
#include "tests/crash/edited_model.h"
#include "tests/support/choices.h"
#include "tests/support/disk_model.h"
#include "tests/support/intercepted_storage.h"

namespace stfs::test {

/// Starts processes, each of any user on any host.
class EditCast {
 public:
  /// All arguments must outlive the object.
  EditCast(const std::vector<DiskUser>& users, const std::vector<DiskMount>& mounts, Choices& choices)
      : users_(users), mounts_(mounts), choices_(choices) {}

  /// @param boot  the number of losses of power of all hosts; the crashes of the process's host are added.
  std::unique_ptr<DiskProcess> start_process(DiskModel& disk, std::size_t boot = 0);
  /// Crashes any of the hosts. @return its number.
  std::uint64_t crash_host(DiskModel& disk);

 private:
  const std::vector<DiskUser>& users_;
  const std::vector<DiskMount>& mounts_;
  Choices& choices_;
  std::map<std::uint64_t, std::size_t> boots_;  // the number of crashes of each host
};

/// Kills a process at one of its calls.
class DiesOnCall final : public Interceptor {
 public:
  /// @param calls  the number of calls before the kill; SIZE_MAX: no kill.
  DiesOnCall(DiskProcess& process, std::size_t calls) : process_(process), calls_left_(calls) {}
  Verdict before(const SeamCall&) override {
    if (calls_left_-- == 0) process_.kill();
    return {};
  }

 private:
  DiskProcess& process_;
  std::size_t calls_left_;
};

struct JudgeCounts {
  std::uint64_t states = 0;       // judged states of the disk
  std::uint64_t in_recovery = 0;  // of these, after a crash of a recovery
  std::uint64_t hidden = 0;       // archives in them that a plain reader refuses until they are recovered

  JudgeCounts& operator+=(const JudgeCounts& other);
};

class EditJudge {
 public:
  /// @param keeps_journal  small patches go through lane journals: a plain reader finds old and new bytes
  ///                       until these are settled.
  EditJudge(const EditedModel& layout, EditCast& cast, const DiskOptions& disk, bool keeps_journal,
            Choices& choices)
      : layout_(layout), cast_(cast), disk_(disk), keeps_journal_(keeps_journal), choices_(choices) {}

  // Each function returns the mistake: content that is torn or lost, misread by a plain reader, or left
  // behind.

  /// @param image  the disk after the crash; on return, the disk after recovery.
  /// @param boot  the number of losses of power; further ones are added.
  std::optional<std::string> recover(DiskImage& image, const EditLog& log, std::size_t& boot);
  /// A plain reader, which knows the format and no journals, refuses an archive or reads an allowed content.
  /// The reader may find a mix of bytes only during a patch.
  std::optional<std::string> check_plainly(const DiskImage& image, const EditLog& log);
  /// Checks the disk after a recovery.
  std::optional<std::string> check_recovered(const DiskImage& image, const std::vector<EditedModel>& allowed);
  /// The model takes the next change.
  std::optional<std::string> follow_up(const DiskImage& image, std::size_t boot);
  /// Whether a plain reader may find a mix of bytes in the shard.
  [[nodiscard]] bool may_be_mixed(const EditLog& log, std::uint32_t shard) const {
    return keeps_journal_ || log.is_patched(shard);
  }

  [[nodiscard]] const JudgeCounts& counts() const { return counts_; }

 private:
  std::optional<std::string> look(DiskModel& disk, const std::vector<EditedModel>& allowed, std::size_t boot);
  std::optional<std::string> look_at_model(DiskModel& disk, const std::vector<EditedModel>& allowed,
                                           std::size_t boot);
  enum class End : std::uint8_t { Recovered, Killed };
  Result<End> recover_all(DiskModel& disk, std::size_t boot, bool is_killed);
  Result<End> recover_model(DiskModel& disk, std::size_t boot, bool is_killed);
  Result<End> note_unnamed(const Model& model, DiskProcess& process);
  void note(const JournalReport& report);

  const EditedModel& layout_;
  EditCast& cast_;
  const DiskOptions& disk_;
  const bool keeps_journal_;
  Choices& choices_;
  std::vector<std::string> may_stay_;
  std::string reports_;  // of the last recovery, for messages
  JudgeCounts counts_;
};

}  // namespace stfs::test
