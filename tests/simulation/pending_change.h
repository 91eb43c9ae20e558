// Bytes that are written over a tensor and are not committed.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "fs/write/close_decision.h"
#include "tests/simulation/simulated_archive.h"

namespace stfs::test {

/// An archive that has, or had, the mounted path, and the content that was committed to it.
struct Edition {
  Contents committed;
  bool is_current = true;
};
using EditionPointer = std::shared_ptr<Edition>;

/// The tensor of a file of the mount.
struct Target {
  EditionPointer edition;
  std::string tensor;
  std::string transaction;  // empty: none
  std::uint64_t begun = 0;  // which transaction of this name

  friend bool operator==(const Target&, const Target&) = default;
};

/// Bytes over a tensor that are not committed.
struct PendingChange {
  Target target;
  FileKind kind = FileKind::Isolated;
  Buffer bytes;
  std::vector<bool> is_written;
  std::uint64_t size_bytes = 0;
  bool is_dirty = false;
  bool has_failed = false;
  bool was_refused = false;
  bool has_unnamed = false;
  bool is_unsure = false;  // some writes may have been refused
  int spoiled = 0;         // errno of a fault; if not 0, commits may fail with it
  std::set<pid_t> writers;
  unsigned files = 0;
  Buffer base;  // in a transaction: the tensor as it was

  explicit PendingChange(Target of, FileKind its_kind);
  [[nodiscard]] const Buffer& committed() const { return target.edition->committed.at(target.tensor); }
  [[nodiscard]] Buffer over(const Buffer& content) const;
  [[nodiscard]] Content content() const;
  void write(std::uint64_t offset, std::span<const std::byte> from);
  void resize(std::uint64_t to_bytes);
  void forget();
  void fail();
};

}  // namespace stfs::test
