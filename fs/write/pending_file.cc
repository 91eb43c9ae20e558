#include "fs/write/pending_file.h"

#include <utility>

namespace stfs {

void PendingFile::remake(std::unique_ptr<NewTensor> made) {
  drop();
  remade_ = std::move(made);
  bytes_ = remade_.get();
}

Result<void> PendingFile::write(std::span<const std::byte> from, std::uint64_t offset) {
  has_bytes_ = true;
  return bytes().write(from, offset);
}

Result<void> PendingFile::resize(std::uint64_t size_bytes) {
  has_bytes_ = true;
  return bytes().resize(size_bytes);
}

void PendingFile::note_clean() {
  has_bytes_ = false;
  was_refused = false;
  show_size();
  writers.clear();
}

void PendingFile::note_committed() {
  bytes().note_committed();
  note_clean();
}

void PendingFile::drop() {
  bytes().drop();
  note_clean();
}

void PendingFile::park() {
  if (TensorPatch* const patch = this->patch()) patch->park();
  show_size();
}

void PendingFile::unpark() {
  if (TensorPatch* const patch = this->patch()) patch->unpark();
  show_size();
}

void PendingFile::note_failure(Error why) {
  failure = std::move(why);
  has_failed = true;
}

void PendingFile::fail(Error why) {
  drop();
  note_failure(std::move(why));
}

void PendingFile::retry() {
  failure.reset();
  has_failed = false;
}

void PendingFile::note_write(Caller caller) {
  writers.note(caller);
  was_refused = false;
  keeps_mtime = false;
}

}  // namespace stfs
