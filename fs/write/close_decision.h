// Decides the results of closes and releases of a written file. Two tables map facts to decisions.
//
// A process is responsible for pending bytes if it wrote them, or if it opened the file for writing and still
// holds it. Its close or normal exit commits the bytes. If a signal kills it, the bytes are dropped. Closes
// by other processes change nothing, for example by a child that inherited a copy of the descriptor, or by a
// bystander that opened the file and wrote nothing.
//
// The kernel sends a FLUSH for each close of each copy of a descriptor, and names the thread that closes. It
// sends a RELEASE, which names no process, after the last copy and the last mapping are closed. Neither
// request contains these facts:
//
// - The process that stored bytes through a mapping. Every process that opened the tensor for reading and
//   writing is responsible for these bytes: the next close by one of them commits the bytes, and a killed one
//   drops them only if no other process has the tensor open for writing. A child that stores through an
//   inherited mapping is not responsible for any bytes.
// - The end of a program that held only a mapping, or only a slot of an io_uring (a fixed file). The kernel
//   sends no FLUSH when these are closed. The RELEASE commits the content if it is whole.
// - Other open copies of a descriptor, in another process or in a message of a socket. A process that opens
//   with O_TRUNC and closes its copy before all bytes have arrived gets EINVAL, even if it has handed the
//   descriptor on. The bytes stay pending for the receiver, except with O_RDWR.
// - The process that acts in a pid namespace that the mount's own does not contain. All processes there look
//   like one process, and a killed process looks like one that closes.
// - The end of a process that the mount has no right to inspect (ptrace(2)), for example another user's. Then
//   the mount uses the flags of the process's threads (process.h), unless the thread that called
//   exit_group(2) was not the first thread and does not exist any more. In that case the bytes are dropped,
//   and the log says so.
// - The difference between a close, an exit and a kill of a process that /proc hides from the mount (hidepid
//   in proc(5)), for example another user's. All hidden processes look like one. A killed writer may have
//   written half of its bytes, so the bytes are dropped: close(2) fails with EIO, and the error is logged.
//   fsync(2) before the close commits. A mount by root may see all processes, and a mount in the group that
//   the gid= of /proc names may see them.
// - Whether a SETATTR without a descriptor is an O_TRUNC or a truncate(2) by name. truncate(T, 0) is treated
//   as the O_TRUNC of an open if the calling thread's newest open for writing in the model is an open of T,
//   and nothing was written through it. Then truncate succeeds, and the close fails with EINVAL unless all
//   bytes are written.
// - A size per descriptor: an inode has one size. After O_WRONLY|O_TRUNC, fstat(2) and SEEK_END show the
//   tensor's size. All readers would see a size of 0, and it would truncate their mappings.
#pragma once

#include <cstdint>
#include <functional>

#include "fs/base/process.h"
#include "fs/write/open_file.h"

namespace stfs {

/// The role of the closing process for the pending bytes.
enum class Closer : std::uint8_t {
  Bystander,  // wrote nothing, and did not open the descriptor, or no bytes came through it
  Opener,     // opened the descriptor; other processes wrote all bytes
  Mapper,     // opened the descriptor; some pending bytes may be its own, because the kernel named no writer
  Writer,     // wrote pending bytes
};

enum class Content : std::uint8_t {
  Clean,  // nothing is pending
  Whole,
  Cut,  // some of the tensor's bytes are missing
};

struct CloseFacts {
  Content content = Content::Clean;
  Closer closer = Closer::Bystander;
  Ending ending = Ending::Closes;  // of the closer
  /// True if another living process, which has not closed, is responsible for the bytes. If a Writer closes,
  /// this is the process that opened the descriptor. If an Opener closes, this is a process that wrote. If a
  /// Mapper closes, this is another process that has the tensor open for writing.
  bool others_answer = false;
  FileKind kind = FileKind::Isolated;
};

/// Notes the role of the process that closes, and how it ends. The caller has set the content of the facts.
/// @param closer         the thread that closes.
/// @param others_map     returns true if a process other than this one has the file open for writing, and may
///                       have written bytes whose writer the kernel does not name.
void note_closer(CloseFacts& facts, const Writers& writers, const OpenFile& file, Owner owner, pid_t closer,
                 const std::function<bool(pid_t process)>& others_map);

enum class CloseDecision : std::uint8_t {
  Wait,      // nothing changes; the close succeeds
  Commit,    // the bytes are committed; the close returns the commit's result
  Keep,      // the close succeeds; the bytes wait for their transaction's commit
  RollBack,  // the bytes are dropped, and every later call fails with EIO
  Doubt,     // as RollBack, but the close fails with EIO, because the closer may live
  Refuse,    // the close fails with EINVAL; the bytes stay until another writer completes them
  Fail,      // the close fails with EINVAL; the bytes are dropped, and every later call fails with EINVAL
};

CloseDecision decide(const CloseFacts& facts);

struct ReleaseFacts {
  Content content = Content::Clean;
  FileKind kind = FileKind::Isolated;
  bool is_last = true;             // no other descriptor shares the bytes
  bool has_unnamed_bytes = false;  // the kernel did not name the writer of some of them
  bool was_refused = false;        // the last close or sync of exactly these bytes failed; its caller knows
  bool is_killed = false;          // a signal ended a process that wrote, or may have written, pending bytes
};

enum class ReleaseDecision : std::uint8_t { Nothing, Commit, Drop };

ReleaseDecision decide(const ReleaseFacts& facts);

}  // namespace stfs
