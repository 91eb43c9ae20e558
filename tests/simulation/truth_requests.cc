// Turns requests and replies into facts.
#include <fcntl.h>
#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "tests/simulation/truth.h"

namespace stfs::test {

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
        member = std::make_shared<PendingChange>(target_, FileKind::Grouped);
        member->base = member->committed();
      }
      file.pending = member;
    } else if (access == O_RDWR) {
      auto& shared = shared_[{target_.edition.get(), target_.tensor}];
      if (!shared || shared->has_failed) shared = std::make_shared<PendingChange>(target_, FileKind::Shared);
      file.pending = shared;
    } else {
      file.pending = std::make_shared<PendingChange>(target_, FileKind::Isolated);
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
    // The bytes of a page behind the tensor's end are not part of the tensor.
    const std::uint64_t end = frame.pending->bytes.size();
    bytes = bytes.first(std::min<std::size_t>(bytes.size(), end - std::min(offset, end)));
    if (bytes.empty()) {
      frame.is_behind_end = true;
      frame.pending = nullptr;
    }
  }
  frame.bytes.assign(bytes.begin(), bytes.end());
  if (frame.pending) {
    PendingChange& pending = *frame.pending;
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
  PendingChange& pending = *frame.pending;
  const bool commits = frame.is_synchronous;
  if (frame.fault != 0 && error == frame.fault && frame.due == 0) {
    if (pending.kind != FileKind::Isolated) also_.push_back({pending.target, {}});
    pending.fail();
    return;
  }
  if (frame.due != 0) {
    expect_due(frame, error, "a write");
    // The kernel drops the pages of the tensor, but not before the reply.
    if (pending.kind != FileKind::Isolated) also_.push_back({pending.target, {}});
    if (frame.due == EFBIG) pending.fail();
    return;
  }
  if (!commits) expect_due(frame, error, "a write that fits");
  // A write to an isolated file gets its reply before the bytes are staged. If staging fails, the next reply
  // has the error.
  const bool is_lost = frame.failed.kind == FileCall::Write || frame.failed.kind == FileCall::CreateUnnamed;
  if (frame.fault != 0 && is_lost && pending.kind == FileKind::Isolated) return pending.fail();
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
    // The truncation of an open is for the newest file that this thread has opened.
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
    PendingChange& pending = *file->pending;
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
  if (frame.fault != 0 && error == frame.fault && frame.due == 0) {
    if (frame.pending->kind != FileKind::Isolated) also_.push_back({frame.pending->target, {}});
    frame.pending->fail();
    return;
  }
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
  const PendingChange& pending = *file.pending;
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
  PendingChange& pending = *frame.pending;
  if (frame.decision == CloseDecision::Commit) {
    end_commit(frame, error, "a close");
    return;
  }
  const bool is_killed = processes_.at(program.id).ending != Ending::Closes;
  if (!is_killed) expect_due(frame, error, "a close");
  if (frame.due == -1) return;
  switch (frame.decision) {
    case CloseDecision::Keep:
      pending.writers.clear();
      pending.has_unnamed = false;
      break;
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
  frame.is_release = true;
  frame.pending = file.pending;
  if (frame.pending) {
    const PendingChange& pending = *frame.pending;
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
    PendingChange& pending = *frame.pending;
    // The caches are told after the release.
    if (pending.is_dirty) {
      also_.push_back({pending.target, shown(pending.target)});
      also_.push_back({pending.target, pending.committed()});
    }
    bool is_dropped = frame.decision == CloseDecision::RollBack;
    if (!frame.commits.empty()) {
      // The reply to a release has no error. The error of the commit is the one that is due, of a stop or of
      // a replaced archive.
      const Stop* stop = stop_of(frame);
      int error = stop != nullptr ? stop->errno_value : frame.due;
      const auto is_there = [&] {
        return recovered_().at(pending.target.tensor) == pending.over(pending.committed());
      };
      if (pending.spoiled != 0 && !is_there()) error = pending.spoiled;
      // Another program may have recovered the stopped commit.
      if (stop != nullptr && stop->may_be_over && frame.due == 0 && is_there()) error = 0;
      const bool is_done = end_commit(frame, error, "a release");
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
