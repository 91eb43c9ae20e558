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
#include <set>
#include <string>
#include <vector>

#include "fs/close_decision.h"
#include "tests/simulation/kernel.h"
#include "tests/simulation/pending_change.h"

namespace stfs::test {

class Truth final : public Witness {
 public:
  /// @param stored  what the archive at the path holds now.
  Truth(const ProcessTable& processes, std::function<Contents()> stored)
      : processes_(processes), stored_(std::move(stored)) {}

  // What happens beside the requests.
  void begin(Contents contents);
  /// Another archive lies at the path.
  void replace(Contents contents);
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

  // Transactions: before a commit's rename, and after its reply.
  void make_transaction(const std::string& name) {
    transactions_[name] = {};
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

  /// The next open is of this.
  void note_target(Target target) { target_ = std::move(target); }
  [[nodiscard]] const Target& noted_target() const { return target_; }
  /// Of a file that is open.
  [[nodiscard]] Target target_of(const Description& file) const;
  [[nodiscard]] const EditionPointer& edition() const { return edition_; }
  /// The archive was replaced, and the mount may still show the one before.
  [[nodiscard]] bool is_turning() const { return before_ != nullptr; }
  [[nodiscard]] bool is_settled() const { return also_.empty() && !is_turning(); }
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
    std::vector<std::pair<std::uint64_t, Buffer>> beside;
    bool is_synchronous = false;
    bool is_behind_end = false;  // of the tensor, as the end of a mapped page is
  };

  [[nodiscard]] PendingPointer shared_of(const Target& target) const;
  [[nodiscard]] Buffer shown(const Target& target) const;
  [[nodiscard]] CloseFacts facts_of(const Program& program, const File& file) const;
  [[nodiscard]] bool is_alive(pid_t process) const;
  void check(const Target& target, const Buffer& right, std::uint64_t offset, const Buffer& got,
             std::uint64_t begins_at);
  void expect_due(const Frame& frame, int error, const std::string& what);
  void add_commit(Frame& frame, const PendingPointer& pending) const;
  /// @return whether it was done.
  bool end_commit(const Frame& frame, int error, const std::string& what);
  Frame pop();

  const ProcessTable& processes_;
  const std::function<Contents()> stored_;
  EditionPointer edition_;
  EditionPointer before_;                // while the mount may show it
  std::map<std::uint64_t, File> files_;  // by the serial number of the description
  std::map<std::pair<const Edition*, std::string>, PendingPointer> shared_;
  std::map<std::string, std::map<std::string, PendingPointer>> transactions_;
  std::map<std::string, std::uint64_t> begun_;
  /// Who had it open sees what was staged, as of any file that was removed. By number of the transaction.
  std::set<std::pair<std::uint64_t, std::string>> unstaged_;
  std::uint64_t transactions_begun_ = 0;
  std::vector<Also> also_;
  std::vector<Frame> frames_;
  std::vector<Frame> lost_;
  Target target_;
  bool is_lost_ = false;
  std::uint64_t commits_done_ = 0;
  std::string wrong_;
};

}  // namespace stfs::test
