#include "tests/simulation/stranger_deeds.h"

#include <cerrno>
#include <chrono>
#include <string>
#include <utility>

#include "core/archive/archive.h"
#include "core/commit/transaction.h"

namespace stfs::test {
namespace {

Result<void> commit_to(Archive& archive, const std::string& tensor, std::uint64_t offset,
                       const Buffer& bytes) {
  Transaction transaction(archive);
  auto stage = transaction.stage(*archive.version()->find(tensor));
  if (!stage) return pass_on(std::move(stage));
  if (auto written = (*stage)->write(bytes, offset); !written) return written;
  CommitOptions options;
  options.lock_patience = std::chrono::milliseconds(0);
  ReaderWriterLock readers;
  return transaction.commit(options, [&](TensorId) -> ReaderWriterLock& { return readers; });
}

}  // namespace

void StrangerDeeds::put(std::uint32_t a, std::uint32_t b, std::uint32_t c, std::uint32_t d) {
  const std::string tensor(kTensorNames[a % std::size(kTensorNames)]);
  constexpr std::uint32_t kMostUsers = 4;
  const std::uint32_t owner = truth_.access().uid;
  const std::uint32_t uid = !machine_.is_shared() ? 0 : owner == 0 ? d % kMostUsers : d % (owner + 1);
  const DiskUser user{.uid = uid, .gid = uid};
  const auto process = machine_.disk().start_process(user);
  auto archive = Archive::open(std::string(kPath), Access::ReadWrite, *process, Io::Pread);
  if (!permits(truth_.access(), user, kMayRead | kMayWrite)) {
    expect(!archive && archive.error().errno_value == EACCES, "another program opens what it may not");
    return;
  }
  expect(archive.has_value(),
         "another program can't open the archive" + (archive ? "" : ": " + archive.error().message));
  if (!archive) return;
  truth_.note_recovery();
  const std::uint64_t size = truth_.edition()->committed.at(tensor).size();
  const std::uint64_t offset = b % size;
  const Buffer bytes = machine_.archive().fresh(1 + c % (size - offset));
  auto done = commit_to(**archive, tensor, offset, bytes);
  // The mount keeps a journal for its next small commit. An idle mount settles that journal.
  if (!done && done.error().errno_value == EBUSY && now_.depth == 1) {
    machine_.mount().tidy();
    if (kernel_.is_aborted()) return;
    done = commit_to(**archive, tensor, offset, bytes);
  }
  const bool is_refused =
      !done && now_.depth > 1 && (done.error().errno_value == EBUSY || done.error().errno_value == ESTALE);
  // The journal of the mount allows only those users who could write the archive when the journal was made.
  const bool is_locked_out = !done && uid != 0 && !truth_.is_access_certain();
  expect(done || is_refused || is_locked_out,
         "another program can't commit" + (done ? "" : ": " + done.error().message));
  if (!done) return;
  now_.is_noticed = false;
  truth_.change(tensor, offset, bytes);
  if (now_.reading && now_.reading->tensor == tensor)
    truth_.doubt(*now_.reading);  // the page may have bytes of both
}

void StrangerDeeds::foreign_write(std::uint32_t a, std::uint32_t b, std::uint32_t c) {
  // After a fault, a journal can hold blocks that are written to the archive again.
  if (now_.depth > 1 || kernel_.is_aborted() || truth_.has_met_fault()) return;
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
  const DiskAccess access = machine_.draw_access();
  machine_.disk().replace(kPath, machine_.archive().bytes_of(contents), access);
  now_.is_noticed = false;
  now_.was_replaced = true;
  now_.may_be_foreign = now_.may_be_foreign || truth_.has_met_fault();
  truth_.replace(std::move(contents), access);
}

void StrangerDeeds::change_access() {
  if (!machine_.is_shared() || truth_.access().uid == 0) return;
  const DiskAccess access = machine_.draw_access();
  const auto process = machine_.disk().start_process();
  auto file = process->open(std::string(kPath), Access::ReadWrite);
  const bool is_done =
      file && (*file)->set_owner(access.uid, access.gid) && (*file)->set_mode(access.permissions);
  expect(is_done, "root can't give the archive away");
  now_.is_noticed = false;
  truth_.change_access(access);
}

}  // namespace stfs::test
