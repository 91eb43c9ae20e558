// Decides what a close of a written file does, and what its release does. Two tables map facts to decisions.
//
// A process decides over pending bytes when it wrote them, or when it opened the file for writing and still
// holds it. Its close or normal exit commits them; its death by a signal drops them. Other processes change
// nothing by closing: a child that inherited a copy of the descriptor, or a bystander that opened the file
// and wrote nothing.
//
// The kernel sends a FLUSH for each close of each copy of a descriptor, and names the thread that closes. It
// sends a RELEASE, which names no process, when the last copy and the last mapping have gone. Neither tells:
//
// - Which process stored bytes through a mapping. Every process that opened the tensor for reading and
//   writing answers for these bytes: the next close by one of them commits the bytes, and a killed one drops
//   them only if no other process has the tensor open for writing. A child that stores through an inherited
//   mapping decides nothing.
// - How a program ended that held only a mapping, or only a slot of an io_uring (a fixed file). The kernel
//   sends no FLUSH for their close. The RELEASE commits the content if it is whole.
// - Whether copies of a descriptor are still open elsewhere, in another process or in a message of a socket.
//   A process that opens with O_TRUNC and closes its copy before all bytes have come gets EINVAL, even if
//   it has handed the descriptor on. The bytes stay pending for the receiver, except with O_RDWR.
// - Which process acts in a pid namespace that the mount's own does not contain. All processes there look
//   like one process, and a killed one looks like one that closes.
// - How a process ended that the mount has no right to inspect (ptrace(2)), for example another user's. Then
//   the flags of its threads tell (process.h), unless the thread that called exit_group(2) was not the first
//   thread and is already gone. In that case the bytes are dropped, and the log says so.
// - Whether a process closes, exits or is killed if /proc hides it from the mount (hidepid in proc(5)), for
//   example another user's. All hidden processes look like one. A killed writer may have written half of its
//   bytes, so the bytes are dropped: close(2) fails with EIO, and the log says so. fsync(2) before the close
//   commits. A mount by root has the right to look, and so has a mount in the group that the gid= of /proc
//   names.
// - Whether a SETATTR without a descriptor is an O_TRUNC or truncate(2) by name. truncate(T, 0) counts as the
//   O_TRUNC of an open if the calling thread's newest open for writing in the model is an open of T, and
//   nothing was written through it. Then truncate succeeds, and the close fails with EINVAL unless all bytes
//   come.
// - A size per descriptor: an inode has one size. After O_WRONLY|O_TRUNC, fstat(2) and SEEK_END show the
//   tensor's size. All readers would see a size of 0, and it would cut their mappings.
#pragma once

#include <cstdint>
#include <functional>

#include "fs/base/process.h"
#include "fs/write/open_file.h"

namespace stfs {

/// The role of the closing process in the pending content.
enum class Closer : std::uint8_t {
  Bystander,  // it wrote nothing, and either did not open the descriptor or nothing came through it
  Opener,     // it opened the descriptor; other processes wrote all bytes
  Mapper,     // it opened the descriptor, and some pending bytes may be its own: the kernel did not say whose
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
  /// Another living process, which has not closed, answers for the bytes. If a Writer closes, that is the
  /// process that opened the descriptor; if an Opener closes, one that wrote; if a Mapper closes, another one
  /// that has the tensor open for writing.
  bool others_answer = false;
  FileKind kind = FileKind::Isolated;
};

/// Notes the role of the process that closes, and how it ends. The facts have their content already.
/// @param closer         the thread.
/// @param others_map     whether another process than this one has the file open for writing, and may have
///                       written bytes whose writer the kernel does not name.
void note_closer(CloseFacts& facts, const Writers& writers, const OpenFile& file, Owner owner, pid_t closer,
                 const std::function<bool(pid_t process)>& others_map);

enum class CloseDecision : std::uint8_t {
  Wait,      // nothing changes; the close succeeds
  Commit,    // the bytes are committed; the close returns the commit's result
  Keep,      // the close succeeds; the bytes wait for their transaction's commit
  RollBack,  // the bytes are dropped, and every later call fails with EIO
  Doubt,     // as RollBack, and the close fails with EIO, since the closer may live
  Refuse,    // the close fails with EINVAL; the bytes stay until another writer completes them
  Fail,      // the close fails with EINVAL; the bytes are dropped, and every later call fails with EINVAL
};

CloseDecision decide(const CloseFacts& facts);

struct ReleaseFacts {
  Content content = Content::Clean;
  FileKind kind = FileKind::Isolated;
  bool is_last = true;             // no other descriptor shares the bytes
  bool has_unnamed_bytes = false;  // the kernel did not name the writer of some of them
  bool was_refused = false;        // a close or sync of exactly these bytes has failed, and its caller knows
  bool is_killed = false;          // a signal ended a process that wrote, or may have written, some of them
};

enum class ReleaseDecision : std::uint8_t { Nothing, Commit, Drop };

ReleaseDecision decide(const ReleaseFacts& facts);

}  // namespace stfs
