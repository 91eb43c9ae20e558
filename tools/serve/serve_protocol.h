// What `stfs serve` and its clients say to each other: numbers and layout.
//
// A Unix socket of type SOCK_SEQPACKET: the kernel keeps packets whole, so there is no half message to wait
// for, and one peer can't hold up another. Everything large travels as a descriptor (SCM_RIGHTS): the arenas,
// and the documents (JSON) as sealed memfds, which nobody can change or cut while they are read; by pread(2),
// for all who have one share its position.
//
//     client                         server
//     Attach               ->                    the first packet of a connection, and its only one
//                          <-        Grant       as soon as there is a generation
//                          <-        Newer       another generation is there: connect anew to have it
//                          <-        Stuck       the archive has changed, and this is why there is no newer
//                          one
//     Query                ->
//                          <-        Report      and the end
//                          <-        Refusal     to either; and the end
//
// The connection is the lease: it ends with the last descriptor of the client's end, however its process
// ends. Where the connection ends for a client, the server has gone; what it has mapped stays.
//
// Both sides are processes of one machine and one version of it: integers are in the machine's own order.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace stfs::upload {

/// "STFS" in memory.
inline constexpr std::uint32_t kServeMagic = 0x53465453;
/// Goes up with every change that the other side would misunderstand. Magic, version and kind keep their
/// places for ever, so that each side can tell the other which one it speaks.
inline constexpr std::uint16_t kServeVersion = 1;

enum class ServeKind : std::uint16_t {
  Attach = 1,
  Query = 2,
  Grant = 3,
  Report = 4,
  Refusal = 5,
  Newer = 6,
  Stuck = 7
};

/// Of every packet; `text_bytes` of UTF-8 follow it.
struct ServeHeader {
  std::uint32_t magic = kServeMagic;
  std::uint16_t version = kServeVersion;
  std::uint16_t kind = 0;
  std::uint64_t generation = 0;      // Grant, Newer: from 1 on; else 0
  std::uint64_t document_bytes = 0;  // Grant, Report: of the document, which is the first descriptor; else 0
  std::uint32_t descriptors = 0;     // that come with it. Grant: the document, and one for each arena
  std::int32_t errno_value = 0;      // Refusal, Stuck: why, for programs; else 0
  std::uint32_t text_bytes = 0;      // Refusal, Stuck: why, for people; else 0
  std::uint32_t reserved = 0;
};
static_assert(sizeof(ServeHeader) == 40 && std::is_trivially_copyable_v<ServeHeader>);

inline constexpr std::size_t kMaxServeTextBytes = 4096;
inline constexpr std::size_t kMaxServePacketBytes = sizeof(ServeHeader) + kMaxServeTextBytes;
/// The kernel takes 253 descriptors in one packet (SCM_MAX_FD).
inline constexpr std::size_t kMaxServeArenas = 128;
/// A million tensors take about 150 MB.
inline constexpr std::uint64_t kMaxServeDocumentBytes = std::uint64_t{1} << 30U;

}  // namespace stfs::upload
