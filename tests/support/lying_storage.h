// A storage that skips chosen calls and reports success. It makes mutants of the protocol without a change of
// the code.
#pragma once

#include <algorithm>
#include <utility>
#include <vector>

#include "tests/support/intercepted_storage.h"

namespace stfs::test {

class Lies : public Interceptor {
 public:
  explicit Lies(std::vector<SeamCall> skipped) : skipped_(std::move(skipped)) {}

  Verdict before(const SeamCall& call) override {
    const bool is_skipped = std::ranges::any_of(
        skipped_, [&](const SeamCall& lie) { return lie.kind == call.kind && lie.role == call.role; });
    return {.kind = is_skipped ? Verdict::Kind::Lie : Verdict::Kind::Pass};
  }

 private:
  const std::vector<SeamCall> skipped_;
};

class LyingStorage final : private Lies, public InterceptedStorage {
 public:
  LyingStorage(Storage& inner, std::vector<SeamCall> skipped)
      : Lies(std::move(skipped)), InterceptedStorage(inner, static_cast<Lies&>(*this)) {}
};

}  // namespace stfs::test
