// The content that a simulated mount must show and keep: a model in memory that is compared with each reply.
// The model is made from the requests and replies alone (Witness), and from other programs' changes.
//
// close_decision.h decides the effect of a close. The simulation knows the facts for that decision, which the
// driver must find out.
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
  /// @param stored  returns the present content of the archive at the path.
  /// @param recovered  returns the content that a mount would find there after a kill of this mount.
  Truth(const ProcessTable& processes, std::function<Contents()> stored, std::function<Contents()> recovered)
      : processes_(processes), stored_(std::move(stored)), recovered_(std::move(recovered)) {}

  // Events other than requests.
  void begin(Contents contents, const DiskAccess& access);
  /// Another archive replaces the one at the path.
  void replace(Contents contents, const DiskAccess& access);
  /// The owner or the mode of the archive has changed.
  void change_access(const DiskAccess& access) { accesses_.push_back(access); }
  /// Another program has changed a part of a tensor.
  void change(const std::string& tensor, std::uint64_t offset, const Buffer& bytes);
  /// Until settle(), any content of this target is allowed.
  void doubt(const Target& target) { also_.push_back({target, {}}); }
  [[nodiscard]] bool is_doubtful(const Target& target) const;
  /// The driver has looked at the archive, and the caches have been told: nothing old is shown any more.
  void settle();
  /// The mount has ended: pending content is lost, and a commit in progress is done or not done.
  void lose_mount();
  /// Takes over the content of the archive after lose_mount(). Each commit must be there completely or not at
  /// all.
  void adopt(const Contents& found);

  // Faults of the store. A call with a fault succeeds, or reports the fault and does nothing. If a commit
  // reports a fault behind its commit point, it is done, and no other commit succeeds until a recovery.
  /// Returns true if the reply to the present request shows the result of a fault.
  [[nodiscard]] bool takes_faults() const;
  void note_fault(const SeamCall& call, int errno_value);
  /// A fault may have left work for the next process that opens the archive.
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
  /// The target is of a transaction that does not exist any more.
  [[nodiscard]] bool has_ended(const Target& target) const {
    return !target.transaction.empty() &&
           !(transactions_.contains(target.transaction) && begun_.at(target.transaction) == target.begun);
  }
  [[nodiscard]] bool is_empty(const std::string& name) const { return transactions_.at(name).empty(); }
  void unstage(const std::string& transaction, const std::string& tensor, int error);
  void commits(const std::string& transaction);
  void committed(const std::string& transaction, int error);
  /// Called in place of committed(), if the kernel has refused the request.
  void not_committed() { pop(); }

  // The errors that modes and owners require; 0 is one of them. There are several possible errors if modes or
  // owners have changed since the mount certainly knew them.
  using Dues = std::set<int>;
  /// For the look-up of a file with the rights `wanted`, which is the sum of kMayRead and kMayWrite.
  [[nodiscard]] Dues dues(const Program& program, const Target& target, std::uint32_t wanted) const;
  /// The same for a view, and for the directories that all users share.
  [[nodiscard]] Dues dues_of_view(const Program& program, std::uint32_t wanted) const;
  [[nodiscard]] Dues dues_of_begin(const Program& program, const std::string& transaction) const;
  [[nodiscard]] Dues dues_of_commit(const Program& program, const std::string& transaction) const;
  [[nodiscard]] Dues dues_of_entering(const Program& program, const std::string& transaction) const;
  [[nodiscard]] Dues dues_of_removal(const Program& program, const std::string& transaction) const;
  /// Checks that stat(2) shows the archive's mode and owner.
  void check_access(const fuse_attr& shown, std::uint32_t of_mode, const std::string& path);
  /// The mount certainly knows the present mode and owner.
  [[nodiscard]] bool is_access_certain() const { return accesses_.size() == 1; }
  /// Returns the present access of the archive.
  [[nodiscard]] const DiskAccess& access() const { return accesses_.back(); }

  /// The next open is for this target.
  void note_target(Target target) { target_ = std::move(target); }
  [[nodiscard]] const Target& noted_target() const { return target_; }
  /// Returns the target of an open file.
  [[nodiscard]] Target target_of(const Description& file) const;
  [[nodiscard]] const EditionPointer& edition() const { return edition_; }
  /// The archive was replaced, and the mount may still show the earlier one.
  [[nodiscard]] bool is_turning() const { return before_ != nullptr; }
  /// A request that changes the target has no reply yet.
  [[nodiscard]] bool is_busy(const Target& target) const;
  /// A commit is under way.
  [[nodiscard]] bool is_committing() const;
  /// Checks the bytes that a reader got.
  void check_read(const Target& target, std::uint64_t offset, const Buffer& got);
  /// Does the same for a view of the committed content.
  /// @param begins_at  the first byte's offset in its page.
  void check_view(const Target& target, std::uint64_t offset, const Buffer& got, std::uint64_t begins_at);
  /// Returns the size that stat(2) shows.
  [[nodiscard]] std::uint64_t size_of(const Target& target) const { return shown(target).size(); }
  void expect(bool holds, const std::string& what);

  /// Returns the first failure, or an empty string.
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
    PendingPointer pending;  // null: open for reading only
    pid_t opener = 0;
    bool is_untouched = true;
    bool opener_has_closed = false;
    int flags = 0;
  };
  struct Also {  // a content that is also allowed
    Target target;
    Buffer content;  // empty: anything, since bytes of the page cache were refused
  };
  struct Change {
    std::string tensor;
    std::uint64_t offset = 0;
    Buffer bytes;
  };
  struct Frame {  // a request without a reply; the last one gets its reply first
    PendingPointer pending;
    CloseDecision decision = CloseDecision::Wait;
    std::vector<PendingPointer> commits;
    std::vector<Buffer> before;  // of each of these commits
    std::uint64_t offset = 0;
    Buffer bytes;
    int due = 0;                     // the error that is due; -1: any
    std::set<int> or_due{};          // these are also possible
    bool is_changed_beside = false;  // by another program, in the meantime:
    std::vector<Change> beside;
    bool is_synchronous = false;
    bool is_behind_end = false;  // of the tensor, as the end of a mapped page is
    bool is_release = false;
    int fault = 0;  // the errno of its fault
    SeamCall failed{};
  };
  struct Stop {  // no commit to this archive succeeds
    EditionPointer edition;
    int errno_value = 0;
    bool is_for_good = false;  // otherwise until a recovery
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
  /// Returns the stop that applies to this commit, or null.
  [[nodiscard]] const Stop* stop_of(const Frame& frame) const;
  [[nodiscard]] Dues dues_of(const Frame& frame) const;
  /// Handles a commit that has met a fault and has reported it.
  void end_fault(const Frame& frame, const std::string& what);
  /// Returns the possible contents of a commit's tensor: the changes by other programs came before the commit
  /// or after it.
  [[nodiscard]] static std::vector<Buffer> outcomes_of(const Frame& frame, std::size_t at);
  /// @return whether the commit was done.
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
  std::map<std::string, std::uint32_t> committed_;  // makers of transactions in committed/
  std::vector<DiskAccess> accesses_;  // the mount may know any of them; the last is the present one
  /// Files of removed members, by the number of the transaction. A program that has one open still sees the
  /// staged bytes.
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
