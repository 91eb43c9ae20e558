// The protocol between `stfs serve` and its clients: numbers and layout.
//
// The transport is a Unix socket of type SOCK_SEQPACKET. The kernel keeps packets whole, so neither side
// waits for the rest of a message, and one peer cannot delay another. All large data are passed as
// descriptors (SCM_RIGHTS): the arenas, and the documents (JSON). A document is a sealed memfd, so no process
// can change or truncate it while it is read. Readers use pread(2), because all holders of the descriptor
// share its file position.
//
//     client                         server
//     Attach               ->                    the client's first packet
//                          <-        Grant       as soon as there is a generation
//                          <-        Newer       there is another generation
//     Renew                ->                    asks for the newest generation instead of the client's
//                          <-        Grant       with the arenas that the client's generation does not have
//                          <-        Stuck       why a change of the archive led to no newer generation
//     Query                ->
//                          <-        Report      as many as the text needs; then the connection ends
//                          <-        Refusal     to Attach or Query; then the connection ends
//
// A Report has no descriptor, because root asks servers of any user, and a descriptor of a file system that
// does not answer cannot be closed.
//
// The client identifies arenas by their numbers in the manifest, and maps only the arenas that it has not
// mapped yet. After a Grant the connection is a lease on the newest generation only. A client that wants to
// keep the old one also needs a second connection.
//
// The connection is the lease. The lease ends when the client's last descriptor of the connection is closed,
// however the client's process ends. If a client finds the connection closed, the server has ended; mapped
// tensors stay valid.
//
// Both sides are processes of one machine and one version of stfs, so integers have the machine's byte order.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace stfs::serve {

/// "STFS" in memory.
inline constexpr std::uint32_t kServeMagic = 0x53465453;
/// Grows with every change that the other side would misunderstand. Magic, version and kind keep their places
/// in all versions, so each side can report the version that it uses.
inline constexpr std::uint16_t kServeVersion = 3;

enum class ServeKind : std::uint16_t {
  Attach = 1,
  Query = 2,
  Grant = 3,
  Report = 4,
  Refusal = 5,
  Newer = 6,
  Stuck = 7,
  Renew = 8
};

/// Begins every packet; `text_bytes` bytes of UTF-8 follow it.
struct ServeHeader {
  std::uint32_t magic = kServeMagic;
  std::uint16_t version = kServeVersion;
  std::uint16_t kind = 0;
  std::uint64_t generation = 0;      // Grant, Newer: from 1 on; else 0
  std::uint64_t document_bytes = 0;  // Grant: size of the document, the first descriptor. Report: size of the
                                     // whole text. Else 0
  std::uint32_t descriptors = 0;  // number sent with the packet. Grant: the document, and one for each arena
                                  // that the client lacks
  std::int32_t errno_value = 0;   // Refusal, Stuck: the reason for programs; else 0
  std::uint32_t text_bytes = 0;   // Refusal, Stuck: size of the reason for people. Report: size of this part
                                  // of the JSON text. Else 0
  std::uint32_t reserved = 0;
};
static_assert(sizeof(ServeHeader) == 40 && std::is_trivially_copyable_v<ServeHeader>);

inline constexpr std::size_t kMaxServeTextBytes = 4096;
inline constexpr std::size_t kMaxServePacketBytes = sizeof(ServeHeader) + kMaxServeTextBytes;
/// The limit of the kernel is 253 descriptors in one packet (SCM_MAX_FD).
inline constexpr std::size_t kMaxServeArenas = 128;
/// 512 leases take about 60 KB.
inline constexpr std::uint64_t kMaxServeReportBytes = std::uint64_t{4} << 20U;
/// A million tensors take about 150 MB.
inline constexpr std::uint64_t kMaxServeDocumentBytes = std::uint64_t{1} << 30U;

}  // namespace stfs::serve
