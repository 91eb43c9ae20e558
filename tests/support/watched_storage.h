// The system's storage for tests that count calls, fail some of them, or act between them.
#pragma once

#include <algorithm>
#include <functional>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "tests/support/intercepted_storage.h"

namespace stfs::test {

/// A test may choose the present boot. Used by one thread.
class WatchedStorage final : private Interceptor, public InterceptedStorage {
 public:
  /// @param decide  is asked before each call
  explicit WatchedStorage(std::function<Verdict(const SeamCall&)> decide = {},
                          Boot now = system_storage().boot())
      : InterceptedStorage(system_storage(), static_cast<Interceptor&>(*this)),
        decide_(std::move(decide)),
        now_(now) {}
  [[nodiscard]] Boot boot() const override { return now_; }
  [[nodiscard]] std::ptrdiff_t count(FileCall kind) const { return std::ranges::count(calls, kind); }

  std::vector<FileCall> calls;
  std::set<FileCall> failing;  // these calls always fail
  int errno_value = EIO;       // of the failing calls

 private:
  Verdict before(const SeamCall& call) override {
    calls.push_back(call.kind);
    if (failing.contains(call.kind)) return {.kind = Verdict::Kind::Fail, .errno_value = errno_value};
    return decide_ ? decide_(call) : Verdict{};
  }
  std::function<Verdict(const SeamCall&)> decide_;
  const Boot now_;
};

/// For WatchedStorage: each such call fails, on the files of a role or on all.
inline auto fails(FileCall kind, int errno_value, std::optional<FileRole> role = {}) {
  return [=](const SeamCall& call) {
    const bool is_hit = call.kind == kind && (!role || call.role == *role);
    return is_hit ? Verdict{.kind = Verdict::Kind::Fail, .errno_value = errno_value} : Verdict{};
  };
}

}  // namespace stfs::test
