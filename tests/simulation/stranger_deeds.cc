// Commits, writes and renames.
#include "tests/simulation/stranger_deeds.h"

#include <cerrno>
#include <chrono>
#include <string>
#include <utility>

#include "core/archive.h"
#include "core/transaction.h"

namespace stfs::test {
namespace {

Result<void> commit_to(Archive& archive, const std::string& tensor, std::uint64_t offset,
                       const Buffer& bytes) {
  Transaction transaction(archive);
  auto stage = transaction.stage(*archive.tensors().find(tensor));
  if (!stage) return pass_on(std::move(stage));
  if (auto written = (*stage)->write(bytes, offset); !written) return written;
  CommitOptions options;
  options.lock_patience = std::chrono::milliseconds(0);
  ReaderWriterLock readers;
  return transaction.commit(options, [&](std::uint32_t) -> ReaderWriterLock& { return readers; });
}

}  // namespace

void StrangerDeeds::put(std::uint32_t a, std::uint32_t b, std::uint32_t c) {
  const std::string tensor(kTensorNames[a % std::size(kTensorNames)]);
  const auto process = machine_.disk().start_process();
  auto archive = Archive::open(std::string(kPath), Access::ReadWrite, *process, Io::Pread);
  expect(archive.has_value(),
         "another program can't open the archive" + (archive ? "" : ": " + archive.error().message));
  if (!archive) return;
  const std::uint64_t size = truth_.edition()->committed.at(tensor).size();
  const std::uint64_t offset = b % size;
  const Buffer bytes = machine_.archive().fresh(1 + c % (size - offset));
  auto done = commit_to(**archive, tensor, offset, bytes);
  // The journal that a mount keeps for its next small commit is settled when it has nothing to do.
  if (!done && done.error().errno_value == EBUSY && now_.depth == 1) {
    machine_.mount().tidy();
    if (kernel_.is_aborted()) return;
    done = commit_to(**archive, tensor, offset, bytes);
  }
  const bool is_refused =
      !done && now_.depth > 1 && (done.error().errno_value == EBUSY || done.error().errno_value == ESTALE);
  expect(done || is_refused, "another program can't commit" + (done ? "" : ": " + done.error().message));
  if (!done) return;
  now_.is_noticed = false;
  truth_.change(tensor, offset, bytes);
  if (now_.reading && now_.reading->tensor == tensor)
    truth_.doubt(*now_.reading);  // a page may be half of each
}

void StrangerDeeds::foreign_write(std::uint32_t a, std::uint32_t b, std::uint32_t c) {
  if (now_.depth > 1 || kernel_.is_aborted()) return;
  machine_.mount().tidy();
  if (kernel_.is_aborted()) return;
  const std::string tensor(kTensorNames[a % std::size(kTensorNames)]);
  const std::uint64_t size = truth_.edition()->committed.at(tensor).size();
  const std::uint64_t offset = b % size;
  const Buffer bytes = machine_.archive().fresh(1 + c % (size - offset));
  const auto process = machine_.disk().start_process();
  auto file = process->open(std::string(kPath), Access::ReadWrite);
  const bool is_done =
      file && (*file)->write(bytes, machine_.archive().place_of(tensor).offset + offset) && (*file)->sync();
  expect(is_done, "another program can't write");
  now_.is_noticed = false;
  truth_.change(tensor, offset, bytes);
}

void StrangerDeeds::replace() {
  if (now_.depth > 1) return;
  if (truth_.is_turning()) return;
  Contents contents = machine_.archive().draw(machine_.choices());
  machine_.disk().replace(kPath, machine_.archive().bytes_of(contents));
  now_.is_noticed = false;
  now_.was_replaced = true;
  truth_.replace(std::move(contents));
}

}  // namespace stfs::test
