// Staged tensors become the archive's content: all of them, or none.
//
// Steps: check the sizes and that the archive is still the one the bytes were meant for; write every
// piece; sync. The redo journal (DURABILITY.md) takes its place between the check and the first byte.
#pragma once

#include <string>
#include <vector>

#include "core/archive.h"
#include "core/reader_writer_lock.h"
#include "core/staging.h"

namespace stfs {

/// Used by one thread. At most one transaction of an archive may be in commit() at a time.
class Transaction {
 public:
  explicit Transaction(Archive& archive) : archive_(archive) {}

  /// Stages outlive the transaction. readers is held exclusively while the tensor's bytes change, so
  /// that whoever reads under it sees the old bytes or the new ones.
  void add(std::uint32_t tensor, Staging& staging, ReaderWriterLock& readers);

  /// On success the bytes are on stable storage and the stages are empty. WrongSize (EINVAL) names
  /// what came and what was due; ArchiveChanged (ESTALE) means that another file lies at the path or
  /// that the header is another one. In both cases the archive was not touched.
  Result<void> commit();

 private:
  struct Part {
    std::uint32_t tensor;
    Staging* staging;
    ReaderWriterLock* readers;
    std::vector<ByteRange> pieces;
  };
  [[nodiscard]] Result<void> check_sizes() const;
  [[nodiscard]] Result<void> check_archive() const;
  Result<void> collect_pieces();
  Result<void> apply();

  Archive& archive_;
  std::vector<Part> parts_;
};

}  // namespace stfs
