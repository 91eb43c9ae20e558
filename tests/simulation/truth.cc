// Requests and replies become facts.
#include "tests/simulation/truth.h"

#include <fcntl.h>
#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <utility>

namespace stfs::test {

Truth::Pending::Pending(Target of, FileKind its_kind) : target(std::move(of)), kind(its_kind) {
  size_bytes = committed().size();
  bytes.resize(size_bytes);
  is_written.resize(size_bytes);
}

Buffer Truth::Pending::over(const Buffer& content) const {
  Buffer result = content;
  for (std::size_t at = 0; at < result.size(); ++at) {
    if (is_written[at]) result[at] = bytes[at];
  }
  result.resize(size_bytes);
  return result;
}

Content Truth::Pending::content() const {
  if (!is_dirty) return Content::Clean;
  return size_bytes == bytes.size() ? Content::Whole : Content::Cut;
}

void Truth::Pending::write(std::uint64_t offset, std::span<const std::byte> from) {
  if (offset > size_bytes) resize(offset);
  for (std::size_t at = 0; at < from.size(); ++at) {
    bytes[offset + at] = from[at];
    is_written[offset + at] = true;
  }
  size_bytes = std::max<std::uint64_t>(size_bytes, offset + from.size());
  is_dirty = true;
}

void Truth::Pending::resize(std::uint64_t to_bytes) {
  if (to_bytes == size_bytes) return;
  for (std::uint64_t at = std::min(to_bytes, size_bytes); at < bytes.size(); ++at) {
    // Whatever comes there later is zeros or is written.
    bytes[at] = std::byte{0};
    is_written[at] = true;
  }
  size_bytes = to_bytes;
  is_dirty = true;
}

void Truth::Pending::forget() {
  size_bytes = bytes.size();
  is_written.assign(bytes.size(), false);
  is_dirty = was_refused = has_unnamed = false;
  writers.clear();
}

void Truth::Pending::fail() {
  forget();
  has_failed = true;
}

void Truth::begin(Contents contents) {
  edition_ = std::make_shared<Edition>(Edition{.committed = std::move(contents)});
}

void Truth::replace(Contents contents) {
  edition_->is_current = false;
  before_ = edition_;
  begin(std::move(contents));
  for (Frame& frame : frames_) frame.is_changed_beside = true;
}

void Truth::change(const std::string& tensor, std::uint64_t offset, const Buffer& bytes) {
  const Target target{.edition = edition_, .tensor = tensor, .transaction = {}};
  Buffer& now = edition_->committed.at(tensor);
  also_.push_back({target, now});
  if (const auto pending = shared_of(target)) also_.push_back({target, pending->over(now)});
  for (const auto& [name, members] : transactions_) {
    const auto member = members.find(tensor);
    Target staged = target;
    staged.transaction = name;
    staged.begun = begun_.at(name);
    also_.push_back({staged, member == members.end() ? now : member->second->over(now)});
  }
  for (Frame& frame : frames_) {
    const bool is_same = std::ranges::any_of(
        frame.commits, [&](const PendingPointer& commit) { return commit->target.tensor == tensor; });
    const bool is_synchronous = frame.is_synchronous && frame.pending->target.tensor == tensor;
    if (!is_same && !is_synchronous) continue;
    if (is_synchronous && frame.before.empty()) frame.before.push_back(now);
    frame.is_changed_beside = true;
    if (is_synchronous) frame.beside.emplace_back(offset, bytes);
    if (is_same && frame.commits.front()->target.edition == edition_)
      frame.beside.emplace_back(offset, bytes);
  }
  std::ranges::copy(bytes, now.begin() + static_cast<std::ptrdiff_t>(offset));
}

void Truth::settle() {
  also_.clear();
  if (before_) transactions_.clear();
  before_.reset();
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
  also_.clear();
  before_.reset();
  is_lost_ = true;
}

void Truth::adopt(const Contents& found) {
  is_lost_ = false;
  Contents expected = edition_->committed;
  for (const Frame& frame : lost_) {
    bool is_done = false;
    for (const PendingPointer& pending : frame.commits) {
      if (pending->target.edition != edition_) continue;
      const std::string& tensor = pending->target.tensor;
      const Buffer done = pending->over(expected.at(tensor));
      is_done =
          is_done || (found.contains(tensor) && done == found.at(tensor) && done != expected.at(tensor));
    }
    if (!is_done) continue;
    for (const PendingPointer& pending : frame.commits) {
      if (pending->target.edition != edition_) continue;
      expected.at(pending->target.tensor) = pending->over(expected.at(pending->target.tensor));
    }
  }
  lost_.clear();
  expect(found.size() == expected.size(), "the archive has other tensors than before");
  for (const auto& [tensor, content] : expected) {
    if (!found.contains(tensor)) continue;
    expect(found.at(tensor) == content,
           fmt::format("LOST OR TORN: tensor {} after the mount has gone", tensor));
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
    // The first of these that is found.
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
    frame.or_due.insert(ESTALE);  // where another program changes a tensor of it meanwhile
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
  if (end_commit(frame, error, "the commit of a transaction")) {
    for (auto& [tensor, member] : transactions_[transaction]) member->fail();
    transactions_.erase(transaction);
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
    // What is staged in a transaction lies in one journal.
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

bool Truth::is_doubtful(const Target& target) const {
  return std::ranges::any_of(also_,
                             [&](const Also& also) { return also.target == target && also.content.empty(); });
}

void Truth::check(const Target& target, const Buffer& right, std::uint64_t offset, const Buffer& got,
                  std::uint64_t begins_at) {
  std::vector<Buffer> allowed = {right};
  const auto pending = shared_of(target);
  for (const Also& also : also_) {
    if (also.target != target) continue;
    if (also.content.empty()) return;
    allowed.push_back(also.content);
    // What was cached and then written over.
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
  // What a transaction has shown that has ended is its own.
  if (has_ended(target) || unstaged_.contains({target.begun, target.tensor})) return;
  // A size is everybody's.
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
  // What is written for an archive that has gone is refused at its first byte, or by the commit.
  if (frame.pending && !frame.pending->target.edition->is_current) {
    frame.pending->is_unsure = frame.pending->is_unsure || error != 0;
    return;
  }
  const bool is_any = frame.due == -1 || frame.or_due.contains(-1);
  expect(is_any ? error != 0 : error == frame.due || frame.or_due.contains(error),
         fmt::format("{} gives {} in place of {}", what, error, frame.due));
}

void Truth::add_commit(Frame& frame, const PendingPointer& pending) const {
  if (!pending->target.edition->is_current) frame.due = ESTALE;
  frame.commits.push_back(pending);
  frame.before.push_back(pending->committed());
}

bool Truth::end_commit(const Frame& frame, int error, const std::string& what) {
  if (is_lost_) return false;
  if (!frame.is_changed_beside)
    expect(error == frame.due, fmt::format("{} gives {} in place of {}", what, error, frame.due));
  if (error != 0) {
    for (const PendingPointer& pending : frame.commits) pending->was_refused = true;
    return false;
  }
  if (!frame.commits.empty()) ++commits_done_;
  const Contents stored = frame.is_changed_beside ? stored_() : Contents();
  for (std::size_t at = 0; at < frame.commits.size(); ++at) {
    Pending& pending = *frame.commits[at];
    Buffer& now = pending.target.edition->committed.at(pending.target.tensor);
    const Buffer last = pending.over(now);
    Buffer first = pending.over(frame.before[at]);
    for (const auto& [offset, bytes] : frame.beside)
      std::ranges::copy(bytes, first.begin() + static_cast<std::ptrdiff_t>(offset));
    // Who came last, of two that went on at once, the archive knows.
    const auto found = stored.find(pending.target.tensor);
    const bool is_first = found != stored.end() && found->second == first;
    expect(found == stored.end() || is_first || found->second == last,
           "TORN: neither a commit nor the change beside it came last");
    now = is_first ? first : last;
    pending.forget();
  }
  return true;
}

Truth::Frame Truth::pop() {
  Frame frame = std::move(frames_.back());
  frames_.pop_back();
  return frame;
}

void Truth::opened(const Program& program, const DescriptionPointer& description) {
  File file;
  file.target = target_;
  file.opener = program.id;
  file.flags = description->flags;
  const int access = file.flags & O_ACCMODE;
  if (access != O_RDONLY) {
    if (!target_.transaction.empty()) {
      auto& member = transactions_[target_.transaction][target_.tensor];
      if (!member) {
        member = std::make_shared<Pending>(target_, FileKind::Grouped);
        member->base = member->committed();
      }
      file.pending = member;
    } else if (access == O_RDWR) {
      auto& shared = shared_[{target_.edition.get(), target_.tensor}];
      if (!shared || shared->has_failed) shared = std::make_shared<Pending>(target_, FileKind::Shared);
      file.pending = shared;
    } else {
      file.pending = std::make_shared<Pending>(target_, FileKind::Isolated);
    }
    ++file.pending->files;
  }
  files_[description->serial] = std::move(file);
}

void Truth::writes(const Program* program, const Description& description, std::uint64_t offset,
                   std::span<const std::byte> bytes) {
  Frame frame;
  File& file = files_.at(description.serial);
  const bool is_shared = program == nullptr && file.target.transaction.empty();
  frame.pending = is_shared ? shared_of(file.target) : file.pending;
  frame.offset = offset;
  if (program == nullptr && frame.pending) {
    // Of a page, what lies behind the tensor's end was never part of it.
    const std::uint64_t end = frame.pending->bytes.size();
    bytes = bytes.first(std::min<std::size_t>(bytes.size(), end - std::min(offset, end)));
    if (bytes.empty()) {
      frame.is_behind_end = true;
      frame.pending = nullptr;
    }
  }
  frame.bytes.assign(bytes.begin(), bytes.end());
  if (frame.pending) {
    Pending& pending = *frame.pending;
    if (program != nullptr) {
      file.is_untouched = false;
      if ((file.flags & O_APPEND) != 0) frame.offset = pending.size_bytes;
      pending.writers.insert(program->id);
    } else {
      pending.has_unnamed = true;
    }
    pending.was_refused = false;
    if (pending.has_failed) {
      frame.due = -1;
    } else if (frame.offset + bytes.size() > pending.bytes.size()) {
      frame.due = EFBIG;
    }
    frame.is_synchronous = (file.flags & O_DSYNC) != 0 && pending.kind == FileKind::Isolated;
  }
  frames_.push_back(std::move(frame));
}

void Truth::wrote(const Description&, int error) {
  if (is_lost_) return;
  const Frame frame = pop();
  if (frame.is_behind_end) return expect(error == 0, "bytes behind the end are refused");
  if (!frame.pending) return expect(error == EIO, "bytes are written back that nobody has open");
  Pending& pending = *frame.pending;
  const bool commits = frame.is_synchronous;
  if (frame.due != 0) {
    expect_due(frame, error, "a write");
    // Its pages are told to go, but not before the reply.
    if (pending.kind != FileKind::Isolated) also_.push_back({pending.target, {}});
    if (frame.due == EFBIG) pending.fail();
    return;
  }
  if (!commits) expect_due(frame, error, "a write that fits");
  pending.write(frame.offset, frame.bytes);
  if (!commits || pending.content() != Content::Whole) return;
  Frame commit;
  add_commit(commit, frame.pending);
  commit.is_changed_beside = frame.is_changed_beside;
  commit.beside = frame.beside;
  if (!frame.before.empty()) commit.before = frame.before;
  end_commit(commit, error, "a synchronous write");
}

void Truth::resizes(const Program& program, Node, const Description* description, std::uint64_t size_bytes) {
  Frame frame;
  frame.offset = size_bytes;
  File* file = description == nullptr ? nullptr : &files_.at(description->serial);
  if (file == nullptr) {
    // The truncation of an open belongs to the newest one of the thread.
    for (auto& [serial, other] : files_) {
      if (other.opener == program.id && other.pending) file = &other;
    }
    const std::uint64_t due = target_.edition->committed.at(target_.tensor).size();
    const bool is_its = size_bytes == 0 && file != nullptr && file->target == target_ && file->is_untouched;
    if (!is_its) {
      file = nullptr;
      frame.due = size_bytes == due ? 0 : size_bytes > due ? EFBIG : EINVAL;
    } else if (size_bytes == due) {
      file = nullptr;
    }
  }
  if (file != nullptr) {
    file->is_untouched = false;
    frame.pending = file->pending;
    Pending& pending = *file->pending;
    if (pending.kind == FileKind::Grouped && size_bytes == 0) pending.has_failed = false;
    if (pending.has_failed) {
      frame.due = -1;
    } else {
      if (description != nullptr) {
        pending.writers.insert(program.id);
        pending.was_refused = false;
      }
      if (size_bytes > pending.bytes.size()) frame.due = EFBIG;
    }
  }
  frames_.push_back(std::move(frame));
}

void Truth::resized(Node, int error) {
  if (is_lost_) return;
  const Frame frame = pop();
  expect_due(frame, error, "a new size");
  if (!frame.pending) return;
  if (frame.due == EFBIG) {
    if (frame.pending->kind != FileKind::Isolated) also_.push_back({frame.pending->target, {}});
    frame.pending->fail();
  }
  if (frame.due == 0) frame.pending->resize(frame.offset);
}

bool Truth::is_alive(pid_t process) const {
  const auto found = processes_.find(process);
  return found != processes_.end() && found->second.is_alive;
}

CloseFacts Truth::facts_of(const Program& program, const File& file) const {
  const Pending& pending = *file.pending;
  CloseFacts facts{.content = pending.content(), .kind = pending.kind};
  if (facts.content == Content::Clean) return facts;
  const bool is_opener = file.opener == program.id;
  if (pending.writers.contains(program.id)) {
    facts.closer = Closer::Writer;
    facts.others_answer = !is_opener && !file.opener_has_closed && is_alive(file.opener);
  } else if (is_opener && pending.has_unnamed && (!file.is_untouched || facts.content == Content::Whole)) {
    facts.closer = Closer::Mapper;
    facts.others_answer = std::ranges::any_of(files_, [&](const auto& other) {
      return other.second.pending == file.pending && other.second.opener != program.id &&
             !other.second.opener_has_closed && is_alive(other.second.opener);
    });
  } else if (is_opener && !file.is_untouched) {
    facts.closer = Closer::Opener;
    facts.others_answer = std::ranges::any_of(
        pending.writers, [&](pid_t writer) { return writer != program.id && is_alive(writer); });
  }
  if (facts.closer != Closer::Bystander) facts.ending = processes_.at(program.id).ending;
  return facts;
}

void Truth::flushes(const Program& program, const Description& description) {
  const File& file = files_.at(description.serial);
  Frame frame;
  frame.pending = file.pending;
  if (frame.pending && frame.pending->has_failed) {
    frame.due = -1;
  } else if (frame.pending) {
    frame.decision = decide(facts_of(program, file));
    if (frame.decision == CloseDecision::Commit) add_commit(frame, file.pending);
    if (frame.decision == CloseDecision::Refuse || frame.decision == CloseDecision::Fail) frame.due = EINVAL;
  }
  frames_.push_back(std::move(frame));
}

void Truth::flushed(const Program& program, const Description& description, int error) {
  if (is_lost_) return;
  const Frame frame = pop();
  if (!frame.pending) return expect(error == 0, fmt::format("the close of a reader gives {}", error));
  Pending& pending = *frame.pending;
  if (frame.decision == CloseDecision::Commit) {
    end_commit(frame, error, "a close");
    return;
  }
  const bool is_killed = processes_.at(program.id).ending != Ending::Closes;
  if (!is_killed) expect_due(frame, error, "a close");
  if (frame.due == -1) return;
  switch (frame.decision) {
    case CloseDecision::Keep: pending.writers.clear(); break;
    case CloseDecision::RollBack:
    case CloseDecision::Doubt: pending.fail(); break;
    case CloseDecision::Fail:
      if (pending.kind == FileKind::Shared) also_.push_back({pending.target, shown(pending.target)});
      pending.fail();
      break;
    case CloseDecision::Refuse:
      if (!pending.writers.empty()) files_.at(description.serial).opener_has_closed = true;
      break;
    default: break;
  }
}

void Truth::syncs(const Program&, const Description& description) {
  const File& file = files_.at(description.serial);
  Frame frame;
  frame.pending = file.pending;
  if (frame.pending && frame.pending->has_failed) {
    frame.due = -1;
  } else if (frame.pending && frame.pending->kind != FileKind::Grouped) {
    if (frame.pending->content() == Content::Cut) frame.due = EINVAL;
    if (frame.pending->content() == Content::Whole) add_commit(frame, file.pending);
  }
  frames_.push_back(std::move(frame));
}

void Truth::synced(const Description&, int error) {
  if (is_lost_) return;
  const Frame frame = pop();
  if (!frame.commits.empty()) {
    end_commit(frame, error, "fsync");
  } else {
    expect_due(frame, error, "fsync");
  }
}

void Truth::releases(const Description& description) {
  const File& file = files_.at(description.serial);
  Frame frame;
  frame.pending = file.pending;
  if (frame.pending) {
    const Pending& pending = *frame.pending;
    ReleaseFacts facts{.content = pending.content(),
                       .kind = pending.kind,
                       .is_last = pending.files == 1,
                       .has_unnamed_bytes = pending.has_unnamed,
                       .was_refused = pending.was_refused};
    facts.is_killed =
        facts.content == Content::Whole && std::ranges::any_of(pending.writers, [&](pid_t writer) {
          const auto found = processes_.find(writer);
          return found != processes_.end() && found->second.ending != Ending::Closes;
        });
    const ReleaseDecision decision = decide(facts);
    frame.decision = decision == ReleaseDecision::Drop ? CloseDecision::RollBack : CloseDecision::Wait;
    if (decision == ReleaseDecision::Commit) add_commit(frame, file.pending);
  }
  frames_.push_back(std::move(frame));
}

void Truth::released(const Description& description) {
  if (is_lost_) return;
  const Frame frame = pop();
  if (frame.pending) {
    Pending& pending = *frame.pending;
    // The caches are told afterwards.
    if (pending.is_dirty) {
      also_.push_back({pending.target, shown(pending.target)});
      also_.push_back({pending.target, pending.committed()});
    }
    bool is_dropped = frame.decision == CloseDecision::RollBack;
    if (!frame.commits.empty()) {
      // Nobody is told of a failure: who commits to what was replaced.
      const bool is_done = end_commit(frame, frame.due, "a release");
      is_dropped = !is_done && pending.files == 1;
    }
    if (is_dropped) pending.forget();
    if (--pending.files == 0 && pending.kind == FileKind::Shared) {
      const auto shared = shared_.find({pending.target.edition.get(), pending.target.tensor});
      if (shared != shared_.end() && shared->second == frame.pending) shared_.erase(shared);
    }
  }
  files_.erase(description.serial);
}

}  // namespace stfs::test
