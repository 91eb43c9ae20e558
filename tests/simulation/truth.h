// What a simulated mount has to show and to keep: the model in memory that each reply is compared with. Made
// of the requests and the replies alone (Witness), and of what other programs do to the archive.
//
// close_decision.h says what a close does; here are its facts, which the simulation knows and the driver has
// to find out.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "fs/write/close_decision.h"
#include "tests/simulation/kernel.h"
#include "tests/simulation/pending_change.h"
#include "tests/support/disk_user.h"
#include "tests/support/intercepted_storage.h"

namespace stfs::test {

class Truth final : public Witness {
 public:
  /// @param stored  what the archive at the path holds now.
  /// @param recovered  what a mount would find there, if this one was killed now.
  Truth(const ProcessTable& processes, std::function<Contents()> stored, std::function<Contents()> recovered)
      : processes_(processes), stored_(std::move(stored)), recovered_(std::move(recovered)) {}

  // What happens beside the requests.
  void begin(Contents contents, const DiskAccess& access);
  /// Another archive lies at the path.
  void replace(Contents contents, const DiskAccess& access);
  /// Who may do what with the archive has changed.
  void change_access(const DiskAccess& access) { accesses_.push_back(access); }
  /// Another program has changed a part of a tensor.
  void change(const std::string& tensor, std::uint64_t offset, const Buffer& bytes);
  /// Until settle() nobody knows what is shown of it.
  void doubt(const Target& target) { also_.push_back({target, {}}); }
  [[nodiscard]] bool is_doubtful(const Target& target) const;
  /// The driver has looked at the archive, and the caches have been told: nothing old is shown any more.
  void settle();
  /// The mount has gone: what was pending is lost, and a commit that was under way is done or is not.
  void lose_mount();
  /// What the archive holds afterwards. Commits are whole or not there.
  void adopt(const Contents& found);

  // Faults of the store. What meets one is done, or reports it and is not done; where it reports it behind
  // its commit point, it is done, and nothing more is committed until somebody has recovered it.
  /// The answer to what is under way tells what came of it.
  [[nodiscard]] bool takes_faults() const;
  void note_fault(const SeamCall& call, int errno_value);
  /// Something may be left for the next one who opens the archive.
  [[nodiscard]] bool has_met_fault() const { return has_met_fault_; }
  /// Another program has opened the archive for writing.
  void note_recovery();
  [[nodiscard]] bool is_lost() const { return is_lost_; }

  // Transactions: before a commit's rename, and after its reply.
  void make_transaction(const Program& maker, const std::string& name) {
    transactions_[name] = {};
    makers_[name] = maker.uid;
    begun_[name] = ++transactions_begun_;
  }
  void remove_transaction(const std::string& name) { transactions_.erase(name); }
  [[nodiscard]] bool has_transaction(const std::string& name) const { return transactions_.contains(name); }
  [[nodiscard]] std::uint64_t begun(const std::string& name) const { return begun_.at(name); }
  /// It is of a transaction that there is no more.
  [[nodiscard]] bool has_ended(const Target& target) const {
    return !target.transaction.empty() &&
           !(transactions_.contains(target.transaction) && begun_.at(target.transaction) == target.begun);
  }
  [[nodiscard]] bool is_empty(const std::string& name) const { return transactions_.at(name).empty(); }
  void unstage(const std::string& transaction, const std::string& tensor, int error);
  void commits(const std::string& transaction);
  void committed(const std::string& transaction, int error);
  /// In place of committed(): the kernel has refused it.
  void not_committed() { pop(); }

  // Which errors are due, 0 among them, as far as modes and owners decide. There are several where these have
  // changed since they were known for sure.
  using Dues = std::set<int>;
  /// Of a file's look-up, with `wanted` rights to the file (kMayRead and kMayWrite, added up).
  [[nodiscard]] Dues dues(const Program& program, const Target& target, std::uint32_t wanted) const;
  /// The same of a view, and of the directories that everybody shares.
  [[nodiscard]] Dues dues_of_view(const Program& program, std::uint32_t wanted) const;
  [[nodiscard]] Dues dues_of_begin(const Program& program, const std::string& transaction) const;
  [[nodiscard]] Dues dues_of_commit(const Program& program, const std::string& transaction) const;
  [[nodiscard]] Dues dues_of_entering(const Program& program, const std::string& transaction) const;
  [[nodiscard]] Dues dues_of_removal(const Program& program, const std::string& transaction) const;
  /// What stat(2) shows is what the archive's mode and owner say.
  void check_access(const fuse_attr& shown, std::uint32_t of_mode, const std::string& path);
  /// The mount knows who may do what.
  [[nodiscard]] bool is_access_certain() const { return accesses_.size() == 1; }
  /// The archive's, now.
  [[nodiscard]] const DiskAccess& access() const { return accesses_.back(); }

  /// The next open is of this.
  void note_target(Target target) { target_ = std::move(target); }
  [[nodiscard]] const Target& noted_target() const { return target_; }
  /// Of a file that is open.
  [[nodiscard]] Target target_of(const Description& file) const;
  [[nodiscard]] const EditionPointer& edition() const { return edition_; }
  /// The archive was replaced, and the mount may still show the one before.
  [[nodiscard]] bool is_turning() const { return before_ != nullptr; }
  /// A request that changes it has not been answered.
  [[nodiscard]] bool is_busy(const Target& target) const;
  /// A commit is under way.
  [[nodiscard]] bool is_committing() const;
  /// What a reader gets from there is right.
  void check_read(const Target& target, std::uint64_t offset, const Buffer& got);
  /// The same where a view shows what is committed.
  /// @param begins_at  offset in its page of the first byte.
  void check_view(const Target& target, std::uint64_t offset, const Buffer& got, std::uint64_t begins_at);
  /// What stat(2) shows.
  [[nodiscard]] std::uint64_t size_of(const Target& target) const { return shown(target).size(); }
  void expect(bool holds, const std::string& what);

  /// The first thing that was wrong; empty where nothing was.
  [[nodiscard]] const std::string& wrong() const { return wrong_; }
  [[nodiscard]] std::uint64_t commits_done() const { return commits_done_; }

  void opened(const Program& program, const DescriptionPointer& file) override;
  void writes(const Program* program, const Description& file, std::uint64_t offset,
              std::span<const std::byte> bytes) override;
  void wrote(const Description& file, int error) override;
  void resizes(const Program& program, Node node, const Description* file, std::uint64_t size_bytes) override;
  void resized(Node node, int error) override;
  void flushes(const Program& program, const Description& file) override;
  void flushed(const Program& program, const Description& file, int error) override;
  void syncs(const Program& program, const Description& file) override;
  void synced(const Description& file, int error) override;
  void releases(const Description& file) override;
  void released(const Description& file) override;

 private:
  using PendingPointer = std::shared_ptr<PendingChange>;
  struct File {
    Target target;
    PendingPointer pending;  // null: for reading only
    pid_t opener = 0;
    bool is_untouched = true;
    bool opener_has_closed = false;
    int flags = 0;
  };
  struct Also {  // may be seen in place of what is
    Target target;
    Buffer content;  // empty: anything, since bytes of the page cache were refused
  };
  struct Change {
    std::string tensor;
    std::uint64_t offset = 0;
    Buffer bytes;
  };
  struct Frame {  // a request that was not answered; they end in the order of a stack
    PendingPointer pending;
    CloseDecision decision = CloseDecision::Wait;
    std::vector<PendingPointer> commits;
    std::vector<Buffer> before;  // of each of them
    std::uint64_t offset = 0;
    Buffer bytes;
    int due = 0;                     // the error that is due; -1: any
    std::set<int> or_due{};          // as well as these
    bool is_changed_beside = false;  // by another program, meanwhile:
    std::vector<Change> beside;
    bool is_synchronous = false;
    bool is_behind_end = false;  // of the tensor, as the end of a mapped page is
    bool is_release = false;
    int fault = 0;  // that it has met
    SeamCall failed{};
  };
  struct Stop {  // of all commits to an archive
    EditionPointer edition;
    int errno_value = 0;
    bool is_for_good = false;  // else until somebody has recovered what is left
    bool may_be_over = false;
  };

  template <class DueOf>
  [[nodiscard]] Dues all_dues(const Program& program, const DueOf& due_of) const;
  [[nodiscard]] PendingPointer shared_of(const Target& target) const;
  [[nodiscard]] Buffer shown(const Target& target) const;
  [[nodiscard]] static bool concerns(const Also& also, const Target& target);
  [[nodiscard]] CloseFacts facts_of(const Program& program, const File& file) const;
  [[nodiscard]] bool is_alive(pid_t process) const;
  void check(const Target& target, const Buffer& right, std::uint64_t offset, const Buffer& got,
             std::uint64_t begins_at);
  void expect_due(const Frame& frame, int error, const std::string& what);
  void add_commit(Frame& frame, const PendingPointer& pending) const;
  /// What stops that commit, or null.
  [[nodiscard]] const Stop* stop_of(const Frame& frame) const;
  [[nodiscard]] Dues dues_of(const Frame& frame) const;
  /// A commit has met a fault and has reported it.
  void end_fault(const Frame& frame, const std::string& what);
  /// What a commit's tensor may hold after the commit: other programs' changes came before the commit or
  /// behind it.
  [[nodiscard]] static std::vector<Buffer> outcomes_of(const Frame& frame, std::size_t at);
  /// @return whether it was done.
  bool end_commit(const Frame& frame, int error, const std::string& what);
  Frame pop();

  const ProcessTable& processes_;
  const std::function<Contents()> stored_;
  const std::function<Contents()> recovered_;
  EditionPointer edition_;
  EditionPointer before_;                // while the mount may show it
  std::map<std::uint64_t, File> files_;  // by the serial number of the description
  std::map<std::pair<const Edition*, std::string>, PendingPointer> shared_;
  std::map<std::string, std::map<std::string, PendingPointer>> transactions_;
  std::map<std::string, std::uint64_t> begun_;
  std::map<std::string, std::uint32_t> makers_;     // of the last transaction of a name
  std::map<std::string, std::uint32_t> committed_;  // makers of those that committed/ shows
  std::vector<DiskAccess> accesses_;                // that the mount may know, and the present one
  /// Who had it open sees what was staged, as of any file that was removed. By number of the transaction.
  std::set<std::pair<std::uint64_t, std::string>> unstaged_;
  std::uint64_t transactions_begun_ = 0;
  std::vector<Also> also_;
  std::vector<Frame> frames_;
  std::vector<Frame> lost_;
  Target target_;
  bool is_lost_ = false;
  bool has_met_fault_ = false;
  std::optional<Stop> stop_;
  std::uint64_t commits_done_ = 0;
  std::string wrong_;
};

}  // namespace stfs::test
