// Decides what a close of a file that was written does, and what its release does: a table of facts.
//
// A process decides over pending bytes when it wrote them, or when it opened the file for writing and still
// holds it. Its close or normal exit commits them; its death by a signal drops them. Other processes change
// nothing by closing: a child that inherited a copy of the descriptor, or a bystander that opened the file
// and wrote nothing.
//
// The kernel sends a FLUSH for each close of each copy of a descriptor, and names the thread that closes. It
// sends a RELEASE, which names nobody, when the last copy and the last mapping have gone. It does not tell:
//
// - Who stored bytes through a mapping. Such bytes answer to every process that opened the tensor for reading
//   and writing: the next close by one of them commits them, and a killed one drops them only if no other
//   process has the tensor open for writing. A child that stores through an inherited mapping decides
//   nothing.
// - How a program ended that held nothing but a mapping, or a slot of an io_uring (a fixed file), for whose
//   close no FLUSH comes: the RELEASE commits what is whole.
// - Whether copies of a descriptor are still open elsewhere, in another process or in a message of a socket.
//   A process that opens with O_TRUNC and closes its copy before all bytes have come gets EINVAL, even where
//   it has handed the descriptor on. The bytes stay pending for the receiver, but not with O_RDWR.
// - Who acts in a pid namespace that the mount's own does not contain: all processes there look like one, and
//   a killed one looks like one that closes.
// - How a process ended that the mount has no right to look into (ptrace(2)), as another user's. The flags of
//   its threads tell then (process.h), unless the thread that called exit_group(2) was not the first one and
//   has gone already. The bytes are dropped in that case, and the log says so.
// - Whether a process closes, exits or is killed that /proc hides from the mount (hidepid in proc(5)), as
//   another user's. A killed writer may have written half of its bytes, so the bytes are dropped: close(2)
//   fails with EIO, and the log says so. fsync(2) before the close commits. A mount of root has the right to
//   look, and so has one in the group that the gid= of /proc names.
// - Whether a SETATTR without a descriptor is an O_TRUNC or truncate(2) by name. truncate(T, 0) counts as the
//   O_TRUNC of an open where that is the thread's newest open for writing in the model, it is one of T, and
//   nothing was written through it: it succeeds, and the close fails with EINVAL unless all bytes come.
// - One size for each descriptor: an inode has one. After O_WRONLY|O_TRUNC fstat(2) and SEEK_END show the
//   tensor's size. A size of 0 would show to all readers, and cut their mappings.
#pragma once

#include <cstdint>

#include "fs/base/process.h"
#include "fs/write/open_file.h"

namespace stfs {

/// The part that the closing process has in what is pending.
enum class Closer : std::uint8_t {
  Bystander,  // it wrote nothing, and did not open the descriptor, or nothing came through it
  Opener,     // it opened the descriptor; all bytes came from other processes
  Mapper,     // it opened the descriptor, and bytes are pending that may be its own: the kernel did not say
              // whose
  Writer,     // it wrote pending bytes
};

enum class Content : std::uint8_t {
  Clean,  // nothing is pending
  Whole,
  Cut,  // some of the tensor's bytes are missing
};

struct CloseFacts {
  Content content = Content::Clean;
  Closer closer = Closer::Bystander;
  Ending ending = Ending::Closes;  // the closer's
  /// Another living process that has not closed answers for the bytes: to a Writer the one that opened the
  /// descriptor, to an Opener one that wrote, to a Mapper another one that has the tensor open for writing.
  bool others_answer = false;
  FileKind kind = FileKind::Isolated;
};

enum class CloseDecision : std::uint8_t {
  Wait,      // nothing changes; the close succeeds
  Commit,    // the close returns the commit's verdict
  Keep,      // the close succeeds; the bytes wait for their transaction's commit
  RollBack,  // the bytes are dropped, and every later call fails with EIO
  Doubt,     // the same, and the close fails with EIO: the closer may live
  Refuse,    // EINVAL; the bytes stay, for whoever completes them
  Fail,      // EINVAL; the bytes are dropped, and every later call fails with EINVAL
};

CloseDecision decide(const CloseFacts& facts);

struct ReleaseFacts {
  Content content = Content::Clean;
  FileKind kind = FileKind::Isolated;
  bool is_last = true;             // no other descriptor shares the bytes
  bool has_unnamed_bytes = false;  // the kernel did not say who wrote some of them
  bool was_refused = false;        // a close or sync of exactly these bytes has failed, and its caller knows
  bool is_killed = false;          // a signal ended a process that wrote some of them, or may have
};

enum class ReleaseDecision : std::uint8_t { Nothing, Commit, Drop };

ReleaseDecision decide(const ReleaseFacts& facts);

}  // namespace stfs
