// Archives, transactions and crashes, and the contents that a reader may see.
#include "tests/simulation/truth.h"

#include <fcntl.h>
#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <utility>

namespace stfs::test {

void Truth::begin(Contents contents, const DiskAccess& access) {
  accesses_.push_back(access);
  edition_ = std::make_shared<Edition>(Edition{.committed = std::move(contents)});
}

void Truth::replace(Contents contents, const DiskAccess& access) {
  edition_->is_current = false;
  before_ = edition_;
  begin(std::move(contents), access);
  for (Frame& frame : frames_) frame.is_changed_beside = true;
}

void Truth::change(const std::string& tensor, std::uint64_t offset, const Buffer& bytes) {
  const Target target{.edition = edition_, .tensor = tensor, .transaction = {}};
  Buffer& now = edition_->committed.at(tensor);
  also_.push_back({target, now});
  // The pending content on top of the old one may be in the page cache, and may be dropped before the mount
  // looks.
  if (const auto pending = shared_of(target)) also_.push_back({target, pending->over(now)});
  for (const auto& [name, members] : transactions_) {
    const auto member = members.find(tensor);
    if (member == members.end()) continue;
    also_.push_back({member->second->target, member->second->over(now)});
  }
  // The journal of a stopped commit shows whole blocks until the mount looks. They include parts of adjacent
  // tensors.
  if (stop_ && stop_->edition == edition_) doubt(target);
  for (Frame& frame : frames_) {
    const bool is_same = std::ranges::any_of(
        frame.commits, [&](const PendingPointer& commit) { return commit->target.tensor == tensor; });
    const bool is_synchronous = frame.is_synchronous && frame.pending->target.tensor == tensor;
    if (!is_same && !is_synchronous) continue;
    if (is_synchronous && frame.before.empty()) frame.before.push_back(now);
    frame.is_changed_beside = true;
    if (is_synchronous) frame.beside.push_back({tensor, offset, bytes});
    if (is_same && frame.commits.front()->target.edition == edition_)
      frame.beside.push_back({tensor, offset, bytes});
  }
  std::ranges::copy(bytes, now.begin() + static_cast<std::ptrdiff_t>(offset));
}

void Truth::settle() {
  also_.clear();
  if (before_) transactions_.clear();
  if (before_) committed_.clear();
  before_.reset();
  accesses_.erase(accesses_.begin(), accesses_.end() - 1);
}

void Truth::lose_mount() {
  if (is_lost_) return;
  lost_ = std::exchange(frames_, {});
  for (Frame& frame : lost_) {
    if (!frame.is_synchronous || frame.due != 0) continue;
    frame.pending->write(frame.offset, frame.bytes);
    if (frame.pending->content() == Content::Whole) frame.commits.push_back(frame.pending);
  }
  files_.clear();
  shared_.clear();
  transactions_.clear();
  committed_.clear();
  also_.clear();
  before_.reset();
  accesses_.erase(accesses_.begin(), accesses_.end() - 1);
  has_met_fault_ = false;
  stop_.reset();
  is_lost_ = true;
}

void Truth::adopt(const Contents& found) {
  is_lost_ = false;
  Contents expected = edition_->committed;
  for (const Frame& frame : lost_) {
    std::map<std::string, Buffer> done;  // the contents if the commit is there
    bool is_done = false;
    for (std::size_t at = 0; at < frame.commits.size(); ++at) {
      const PendingChange& pending = *frame.commits[at];
      const std::string& tensor = pending.target.tensor;
      if (pending.target.edition != edition_ || !found.contains(tensor)) continue;
      const Buffer& before = expected.at(tensor);
      Buffer& after = done.emplace(tensor, pending.over(before)).first->second;
      const std::vector<Buffer> outcomes = outcomes_of(frame, at);
      if (std::ranges::find(outcomes, found.at(tensor)) != outcomes.end()) after = found.at(tensor);
      is_done = is_done || (found.at(tensor) == after && after != before);
    }
    if (!is_done) continue;
    for (auto& [tensor, after] : done) expected.at(tensor) = std::move(after);
  }
  lost_.clear();
  expect(found.size() == expected.size(), "the archive has other tensors than before");
  for (const auto& [tensor, content] : expected) {
    if (!found.contains(tensor)) continue;
    const auto [is, due] = std::ranges::mismatch(found.at(tensor), content);
    expect(is == found.at(tensor).end() && due == content.end(),
           fmt::format("LOST OR TORN: tensor {} after the mount has gone: from byte {} on", tensor,
                       due - content.begin()));
  }
  edition_->committed = found;
}

void Truth::unstage(const std::string& transaction, const std::string& tensor, int error) {
  auto& members = transactions_[transaction];
  const auto member = members.find(tensor);
  const int due = member == members.end() ? ENOENT : member->second->files > 0 ? EBUSY : 0;
  expect(error == due, fmt::format("unlink of a staged tensor gives {} in place of {}", error, due));
  if (error != 0 || member == members.end()) return;
  unstaged_.emplace(begun_.at(transaction), tensor);
  members.erase(member);
}

void Truth::commits(const std::string& transaction) {
  Frame frame;
  for (const auto& [tensor, member] : transactions_[transaction]) {
    if (member->files > 0) frame.due = EBUSY;
  }
  for (const auto& [tensor, member] : transactions_[transaction]) {
    // The mount returns the first of these errors that it finds.
    const auto add_due = [&](int error) {
      frame.or_due.insert(error);
      if (frame.due == 0) frame.due = error;
    };
    if (frame.due != EBUSY && member->has_failed) add_due(-1);
    if (!member->is_dirty || frame.due == EBUSY) continue;
    if (member->base != member->committed()) add_due(ESTALE);
    if (member->content() == Content::Cut) add_due(ENODATA);
    if (frame.due == 0) add_commit(frame, member);
  }
  if (frame.due != 0) {
    frame.commits.clear();
    frame.or_due.insert(ESTALE);  // if another program changes one of its tensors
    if (stop_) frame.or_due.insert(stop_->errno_value);
    for (const auto& [tensor, member] : transactions_[transaction]) {
      if (member->spoiled != 0) frame.or_due.insert(member->spoiled);
    }
  }
  frames_.push_back(std::move(frame));
}

void Truth::committed(const std::string& transaction, int error) {
  if (is_lost_) return;
  const Frame frame = pop();
  if (frame.due != 0) {
    expect_due(frame, error, "the commit of a transaction");
    return;
  }
  const bool is_done = end_commit(frame, error, "the commit of a transaction");
  // A commit that stops behind its commit point also ends the members that were opened and not written.
  const bool has_ended =
      std::ranges::any_of(frame.commits, [](const PendingPointer& pending) { return pending->has_failed; });
  if (is_done || has_ended) {
    for (auto& [tensor, member] : transactions_[transaction]) member->fail();
  }
  if (is_done) {
    transactions_.erase(transaction);
    committed_[transaction] = makers_.at(transaction);
  }
}

Truth::PendingPointer Truth::shared_of(const Target& target) const {
  if (has_ended(target)) return nullptr;
  if (!target.transaction.empty()) {
    const auto transaction = transactions_.find(target.transaction);
    if (transaction == transactions_.end()) return nullptr;
    const auto member = transaction->second.find(target.tensor);
    return member == transaction->second.end() ? nullptr : member->second;
  }
  const auto found = shared_.find({target.edition.get(), target.tensor});
  return found == shared_.end() ? nullptr : found->second;
}

Buffer Truth::shown(const Target& target) const {
  const Buffer& committed = target.edition->committed.at(target.tensor);
  const auto pending = shared_of(target);
  return pending ? pending->over(committed) : committed;
}

Target Truth::target_of(const Description& file) const {
  const auto found = files_.find(file.serial);
  return found == files_.end()
             ? Target{.edition = edition_, .tensor = edition_->committed.begin()->first, .transaction = {}}
             : found->second.target;
}

bool Truth::is_busy(const Target& target) const {
  const auto is_its = [&](const PendingPointer& pending) {
    if (pending == nullptr || pending->target.edition != target.edition) return false;
    // One journal has all staged bytes of a transaction.
    const bool is_together = !target.transaction.empty() && pending->target.transaction == target.transaction;
    return is_together || pending->target.tensor == target.tensor;
  };
  return std::ranges::any_of(frames_, [&](const Frame& frame) {
    return is_its(frame.pending) || std::ranges::any_of(frame.commits, is_its);
  });
}

bool Truth::is_committing() const {
  return std::ranges::any_of(
      frames_, [](const Frame& frame) { return !frame.commits.empty() || frame.is_synchronous; });
}

bool Truth::concerns(const Also& also, const Target& target) {
  // A transaction shows the committed content with the staged bytes over it.
  Target committed = target;
  committed.transaction.clear();
  committed.begun = 0;
  return also.target == target || also.target == committed;
}

bool Truth::is_doubtful(const Target& target) const {
  return std::ranges::any_of(
      also_, [&](const Also& also) { return concerns(also, target) && also.content.empty(); });
}

void Truth::check(const Target& target, const Buffer& right, std::uint64_t offset, const Buffer& got,
                  std::uint64_t begins_at) {
  std::vector<Buffer> allowed = {right};
  const auto pending = shared_of(target);
  for (const Also& also : also_) {
    if (!concerns(also, target)) continue;
    if (also.content.empty()) return;
    allowed.push_back(also.content);
    // A cached content that was written over.
    if (pending && also.content.size() == pending->bytes.size())
      allowed.push_back(pending->over(also.content));
  }
  for (const Frame& frame : frames_) {
    for (const PendingPointer& commit : frame.commits) {
      if (commit->target.edition == target.edition && commit->target.tensor == target.tensor)
        allowed.push_back(commit->over(right));
    }
  }
  for (std::uint64_t at = 0; at < got.size();) {
    const std::uint64_t page_end = ((begins_at + at) / kPageBytes + 1) * kPageBytes - begins_at;
    const std::uint64_t end = std::min<std::uint64_t>(got.size(), page_end);
    const auto is_so = [&](const Buffer& content) {
      return offset + end <= content.size() &&
             std::equal(got.begin() + static_cast<std::ptrdiff_t>(at),
                        got.begin() + static_cast<std::ptrdiff_t>(end),
                        content.begin() + static_cast<std::ptrdiff_t>(offset + at));
    };
    expect(std::ranges::any_of(allowed, is_so),
           fmt::format("WRONG BYTES: tensor {}{}{} at {} to {}; {} contents would be right", target.tensor,
                       target.transaction.empty() ? "" : " in transaction ", target.transaction, offset + at,
                       offset + end, allowed.size()));
    at = end;
  }
}

void Truth::check_read(const Target& target, std::uint64_t offset, const Buffer& got) {
  const auto pending = shared_of(target);
  // The content that an ended transaction shows is not checked.
  if (has_ended(target) || unstaged_.contains({target.begun, target.tensor})) return;
  // The size is shared by all who have the file open.
  if (pending && (pending->is_unsure || pending->content() == Content::Cut)) return;
  check(target, shown(target), offset, got, offset);
}

void Truth::check_view(const Target& target, std::uint64_t offset, const Buffer& got,
                       std::uint64_t begins_at) {
  check(target, target.edition->committed.at(target.tensor), offset, got, begins_at);
}

void Truth::expect(bool holds, const std::string& what) {
  if (!holds && wrong_.empty()) wrong_ = what;
}

void Truth::expect_due(const Frame& frame, int error, const std::string& what) {
  // A write for a replaced archive is refused at its first byte, or by the commit.
  if (frame.pending && !frame.pending->target.edition->is_current) {
    frame.pending->is_unsure = frame.pending->is_unsure || error != 0;
    return;
  }
  const bool is_any = frame.due == -1 || frame.or_due.contains(-1);
  const bool is_fault = frame.fault != 0 && error == frame.fault;
  expect(is_fault || (is_any ? error != 0 : error == frame.due || frame.or_due.contains(error)),
         fmt::format("{} gives {} in place of {}", what, error, frame.due));
}

void Truth::add_commit(Frame& frame, const PendingPointer& pending) const {
  if (!pending->target.edition->is_current) frame.due = ESTALE;
  frame.commits.push_back(pending);
  frame.before.push_back(pending->committed());
}

std::vector<Buffer> Truth::outcomes_of(const Frame& frame, std::size_t at) {
  const PendingChange& pending = *frame.commits[at];
  std::vector<Buffer> outcomes;
  for (std::size_t earlier = 0; at < frame.before.size() && earlier <= frame.beside.size(); ++earlier) {
    Buffer content = frame.before[at];
    for (std::size_t each = 0; each <= frame.beside.size(); ++each) {
      if (each == earlier) content = pending.over(content);
      if (each == frame.beside.size() || frame.beside[each].tensor != pending.target.tensor) continue;
      std::ranges::copy(frame.beside[each].bytes,
                        content.begin() + static_cast<std::ptrdiff_t>(frame.beside[each].offset));
    }
    outcomes.push_back(std::move(content));
  }
  return outcomes;
}

bool Truth::end_commit(const Frame& frame, int error, const std::string& what) {
  if (is_lost_) return false;
  if (!frame.is_changed_beside) {
    const Dues due = dues_of(frame);
    expect(due.contains(error),
           fmt::format("{} gives {} in place of {}", what, error, fmt::join(due, " or ")));
  }
  if (error == 0 && stop_of(frame) != nullptr) stop_.reset();
  if (error != 0 && error == frame.fault && frame.due == 0) {
    end_fault(frame, what);
    return false;
  }
  if (error != 0) {
    for (const PendingPointer& pending : frame.commits) pending->was_refused = true;
    return false;
  }
  if (!frame.commits.empty()) ++commits_done_;
  const Contents stored = frame.is_changed_beside ? stored_() : Contents();
  for (std::size_t at = 0; at < frame.commits.size(); ++at) {
    PendingChange& pending = *frame.commits[at];
    Buffer& now = pending.target.edition->committed.at(pending.target.tensor);
    const auto found = stored.find(pending.target.tensor);
    if (found == stored.end()) {
      now = pending.over(now);
    } else {
      // The archive shows which of the simultaneous changes came last.
      std::vector<Buffer> outcomes = outcomes_of(frame, at);
      outcomes.push_back(pending.over(now));
      const auto outcome = std::ranges::find(outcomes, found->second);
      expect(outcome != outcomes.end(), "TORN: neither a commit nor the change beside it came last");
      now = outcome != outcomes.end() ? *outcome : outcomes.back();
    }
    pending.forget();
  }
  return true;
}

Truth::Frame Truth::pop() {
  Frame frame = std::move(frames_.back());
  frames_.pop_back();
  return frame;
}

}  // namespace stfs::test
