// Compares the decisions for a close and a release with the rules, for every combination of facts.
#include "fs/write/close_decision.h"

#include "tests/support/catch.h"

using namespace stfs;

namespace {

constexpr Closer kClosers[] = {Closer::Bystander, Closer::Opener, Closer::Mapper, Closer::Writer};
constexpr Content kContents[] = {Content::Clean, Content::Whole, Content::Cut};
constexpr Ending kEndings[] = {Ending::Closes, Ending::Killed, Ending::Untold, Ending::Hidden};
constexpr FileKind kKinds[] = {FileKind::Isolated, FileKind::Shared, FileKind::Grouped, FileKind::New};

template <class Visit>
void for_each_close(const Visit& visit) {
  for (const Content content : kContents)
    for (const Closer closer : kClosers)
      for (const Ending ending : kEndings)
        for (const bool others_answer : {false, true})
          for (const FileKind kind : kKinds) {
            const CloseFacts facts{content, closer, ending, others_answer, kind};
            CAPTURE(static_cast<int>(content), static_cast<int>(closer), static_cast<int>(ending),
                    others_answer, static_cast<int>(kind));
            visit(facts, decide(facts));
          }
}

/// The rules of close_decision.h again, one by one.
CloseDecision due(const CloseFacts& facts) {
  const bool is_grouped = facts.kind == FileKind::Grouped;
  if (facts.content == Content::Clean || facts.closer == Closer::Bystander) return CloseDecision::Wait;
  if (facts.ending != Ending::Closes) {
    if (facts.closer == Closer::Opener) return CloseDecision::Wait;
    if (facts.closer == Closer::Mapper && facts.others_answer) return CloseDecision::Wait;
    // A process that may still be running gets an error.
    return facts.ending == Ending::Hidden ? CloseDecision::Doubt : CloseDecision::RollBack;
  }
  const bool is_new = facts.kind == FileKind::New;
  if (is_new && facts.closer == Closer::Writer && facts.others_answer) return CloseDecision::Wait;
  if (facts.content == Content::Whole) {
    if (facts.closer == Closer::Opener && facts.others_answer) return CloseDecision::Wait;
    return is_grouped ? CloseDecision::Keep : CloseDecision::Commit;
  }
  if (facts.closer == Closer::Writer && facts.others_answer) return CloseDecision::Wait;
  return facts.kind == FileKind::Shared || is_new ? CloseDecision::Fail : CloseDecision::Refuse;
}

}  // namespace

TEST_CASE("a close decides as the rules say, whatever the facts", "[fs][close]") {
  for_each_close([](const CloseFacts& facts, CloseDecision decision) { CHECK(decision == due(facts)); });
}

TEST_CASE("nobody but a process that wrote, or may have, commits or drops anything", "[fs][close]") {
  for_each_close([](const CloseFacts& facts, CloseDecision decision) {
    if (decision == CloseDecision::RollBack || decision == CloseDecision::Doubt) {
      CHECK((facts.closer == Closer::Writer || facts.closer == Closer::Mapper));
      CHECK(facts.ending != Ending::Closes);
    }
    if (decision == CloseDecision::Commit) {
      CHECK(facts.closer != Closer::Bystander);
      CHECK(facts.content == Content::Whole);
      CHECK(facts.ending == Ending::Closes);
    }
  });
}

TEST_CASE("cut content is never committed or kept, and a transaction's is never committed by a close",
          "[fs][close]") {
  for_each_close([](const CloseFacts& facts, CloseDecision decision) {
    if (facts.content == Content::Cut)
      CHECK((decision != CloseDecision::Commit && decision != CloseDecision::Keep));
    if (facts.kind == FileKind::Grouped) CHECK(decision != CloseDecision::Commit);
  });
}

TEST_CASE("a release commits what is whole, and drops what is not", "[fs][close]") {
  for (const FileKind kind : {FileKind::Isolated, FileKind::Shared}) {
    CAPTURE(static_cast<int>(kind));
    const ReleaseFacts whole{.content = Content::Whole, .kind = kind};
    CHECK(decide(whole) == ReleaseDecision::Commit);
    ReleaseFacts facts = whole;
    facts.content = Content::Clean;
    CHECK(decide(facts) == ReleaseDecision::Nothing);
    facts.content = Content::Cut;
    CHECK(decide(facts) == ReleaseDecision::Drop);
    facts = whole;
    facts.was_refused = true;  // its program was told that it failed: it must not succeed afterwards
    CHECK(decide(facts) == ReleaseDecision::Drop);
    facts = whole;
    facts.is_killed = true;
    CHECK(decide(facts) == ReleaseDecision::Drop);
  }
}

TEST_CASE("a release beside other descriptors commits only what nobody is known to have written",
          "[fs][close]") {
  const ReleaseFacts named{.content = Content::Whole, .kind = FileKind::Shared, .is_last = false};
  CHECK(decide(named) == ReleaseDecision::Nothing);
  ReleaseFacts facts = named;
  facts.has_unnamed_bytes = true;  // of a mapping that may not exist any more
  CHECK(decide(facts) == ReleaseDecision::Commit);
  facts.was_refused = true;
  CHECK(decide(facts) == ReleaseDecision::Nothing);
  facts.was_refused = false;
  facts.content = Content::Cut;
  CHECK(decide(facts) == ReleaseDecision::Nothing);
}

TEST_CASE("a release leaves the bytes of a transaction to its commit", "[fs][close]") {
  for (const Content content : kContents) {
    for (const bool is_last : {false, true}) {
      const ReleaseFacts facts{.content = content, .kind = FileKind::Grouped, .is_last = is_last};
      CHECK(decide(facts) == ReleaseDecision::Nothing);
    }
  }
}
