// The two tables of close_decision.h. The first row that matches decides.
#include "fs/write/close_decision.h"

#include <optional>

namespace stfs {
namespace {

constexpr std::nullopt_t any = std::nullopt;

template <class Fact>
bool matches(const std::optional<Fact>& due, Fact fact) {
  return !due || *due == fact;
}

struct CloseRow {
  std::optional<Content> content;
  std::optional<Closer> closer;
  std::optional<Ending> ending;
  std::optional<bool> others_answer;
  std::optional<FileKind> kind;
  CloseDecision decision;
};

// clang-format off
constexpr CloseRow kCloseRows[] = {
    // content       closer             ending          others  kind                decision
    {Content::Clean, any,               any,            any,    any,                CloseDecision::Wait},
    {any,            Closer::Bystander, any,            any,    any,                CloseDecision::Wait},

    {Content::Whole, Closer::Opener,    Ending::Closes, true,   any,                CloseDecision::Wait},
    // A script may hold a new file open for several programs, one after the other.
    {any,            Closer::Writer,    Ending::Closes, true,   FileKind::New,      CloseDecision::Wait},
    {Content::Whole, any,               Ending::Closes, any,    FileKind::Grouped,  CloseDecision::Keep},
    {Content::Whole, any,               Ending::Closes, any,    any,                CloseDecision::Commit},

    {Content::Cut,   Closer::Writer,    Ending::Closes, true,   any,                CloseDecision::Wait},
    // All descriptors show this content through the page cache: it must not stay cut until the last close.
    {Content::Cut,   any,               Ending::Closes, any,    FileKind::Shared,   CloseDecision::Fail},
    {Content::Cut,   any,               Ending::Closes, any,    FileKind::New,      CloseDecision::Fail},
    {Content::Cut,   any,               Ending::Closes, any,    any,                CloseDecision::Refuse},

    // A killed process may have written only part of its bytes. Untold or Hidden: it may have been killed.
    {any,            Closer::Opener,    any,            any,    any,                CloseDecision::Wait},
    {any,            Closer::Mapper,    any,            true,   any,                CloseDecision::Wait},
    {any,            any,               Ending::Hidden, any,    any,                CloseDecision::Doubt},
    {any,            any,               any,            any,    any,                CloseDecision::RollBack},
};

struct ReleaseRow {
  std::optional<Content> content;
  std::optional<FileKind> kind;
  std::optional<bool> is_last;
  std::optional<bool> has_unnamed_bytes;
  std::optional<bool> was_refused;
  std::optional<bool> is_killed;
  ReleaseDecision decision;
};

constexpr ReleaseRow kReleaseRows[] = {
    // content       kind               last   unnamed refused killed decision
    {Content::Clean, any,               any,   any,    any,    any,   ReleaseDecision::Nothing},
    {any,            FileKind::Grouped, any,   any,    any,    any,   ReleaseDecision::Nothing},

    {Content::Cut,   any,               false, any,    any,    any,   ReleaseDecision::Nothing},
    {any,            any,               false, any,    true,   any,   ReleaseDecision::Nothing},
    {any,            any,               false, false,  any,    any,   ReleaseDecision::Nothing},

    {Content::Cut,   any,               true,  any,    any,    any,   ReleaseDecision::Drop},
    {any,            any,               true,  any,    true,   any,   ReleaseDecision::Drop},

    {any,            any,               any,   any,    any,    true,  ReleaseDecision::Drop},
    {Content::Whole, any,               any,   any,    false,  false, ReleaseDecision::Commit},
};
// clang-format on

}  // namespace

void note_closer(CloseFacts& facts, const Writers& writers, const OpenFile& file, Owner owner, pid_t closer,
                 const std::function<bool(pid_t process)>& others_map) {
  const pid_t process = process_of(closer);
  const bool is_opener = file.opener_process == process;
  const bool is_touched = !file.is_untouched;
  if (writers.contains(owner, process)) {
    facts.closer = Closer::Writer;
    facts.others_answer = !is_opener && !file.opener_has_closed && is_alive(file.opener_process);
  } else if (is_opener && writers.has_unnamed() && (is_touched || facts.content == Content::Whole)) {
    facts.closer = Closer::Mapper;
    facts.others_answer = others_map(process);
  } else if (is_opener && is_touched) {
    facts.closer = Closer::Opener;
    facts.others_answer = writers.others_live(owner, process);
  }
  if (facts.closer != Closer::Bystander) facts.ending = ending_of(closer);
}

CloseDecision decide(const CloseFacts& facts) {
  for (const CloseRow& row : kCloseRows) {
    if (matches(row.content, facts.content) && matches(row.closer, facts.closer) &&
        matches(row.ending, facts.ending) && matches(row.others_answer, facts.others_answer) &&
        matches(row.kind, facts.kind)) {
      return row.decision;
    }
  }
  return CloseDecision::Wait;
}

ReleaseDecision decide(const ReleaseFacts& facts) {
  for (const ReleaseRow& row : kReleaseRows) {
    if (matches(row.content, facts.content) && matches(row.kind, facts.kind) &&
        matches(row.is_last, facts.is_last) && matches(row.has_unnamed_bytes, facts.has_unnamed_bytes) &&
        matches(row.was_refused, facts.was_refused) && matches(row.is_killed, facts.is_killed)) {
      return row.decision;
    }
  }
  return ReleaseDecision::Nothing;
}

}  // namespace stfs
