// A model of Linux above the driver: programs with descriptors and mappings, the caches of names, attributes
// and pages, and the requests that Linux sends for each system call (fs/KERNEL.md).
//
// The page cache and the attributes are the kernel's. The driver must tell the kernel which of them to drop;
// anything else stays for ever. One page of the model is 4096 bytes.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <iosfwd>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tests/simulation/fuse_wire.h"
#include "tests/simulation/processes.h"

namespace stfs::test {

inline constexpr std::uint64_t kPageBytes = 4096;
inline constexpr std::uint32_t kLargestWrite = 8 * kPageBytes;
using Node = std::uint64_t;  // the number of an inode; 1 is the root

/// An open file, as open(2) makes it. It lives as long as a file descriptor or a mapping refers to it. Then a
/// RELEASE is due.
struct Description {
  Node node = 0;
  std::uint64_t handle = 0;
  int flags = 0;
  bool is_direct = false;      // past the page cache
  bool keeps_noflush = false;  // its closes need no FLUSH
  std::uint64_t serial = 0;    // counts opens
};
using DescriptionPointer = std::shared_ptr<Description>;

/// A program. All its threads share its file descriptors and mappings.
struct Program {
  pid_t id = 0;
  std::uint32_t uid = 0;
  std::uint64_t owner = 0;  // the kernel's identifier of the table of descriptors
  std::vector<DescriptionPointer> descriptors;
  std::vector<DescriptionPointer> mappings;  // shared and writable
  bool is_busy = false;                      // in a system call that has not returned
};

/// An errno or a value; the value is empty after an error.
template <class T>
struct Answer {
  int error = 0;
  T value{};
};

/// Sees each request that changes something, and the driver's reply.
class Witness {
 public:
  virtual ~Witness() = default;
  virtual void opened(const Program& program, const DescriptionPointer& file) = 0;
  /// Called before the request. @param program  null: the kernel writes a page back, and `file` is any
  /// writable one.
  virtual void writes(const Program* program, const Description& file, std::uint64_t offset,
                      std::span<const std::byte> bytes) = 0;
  virtual void wrote(const Description& file, int error) = 0;
  /// @param file  null: the request names no open file.
  virtual void resizes(const Program& program, Node node, const Description* file,
                       std::uint64_t size_bytes) = 0;
  virtual void resized(Node node, int error) = 0;
  virtual void flushes(const Program& program, const Description& file) = 0;
  virtual void flushed(const Program& program, const Description& file, int error) = 0;
  virtual void syncs(const Program& program, const Description& file) = 0;
  virtual void synced(const Description& file, int error) = 0;
  virtual void releases(const Description& file) = 0;
  virtual void released(const Description& file) = 0;
};

class Kernel {
 public:
  /// @param wait  lets other operations run until something has happened; false: nothing can happen any more.
  Kernel(Witness& witness, std::function<bool()> wait) : witness_(witness), wait_(std::move(wait)) {}

  /// Prints each request to this stream; null: prints nothing.
  void trace_to(std::ostream* trace) { trace_ = trace; }
  /// Mounts a file system, with empty caches.
  /// @param checks_permissions  has the effect of default_permissions; without it every user may do
  ///     everything.
  void mount(const fuse_lowlevel_ops& operations, void* userdata, bool checks_permissions);
  [[nodiscard]] fuse_session* session() const { return wire_->session(); }
  /// Ends the connection: every call then fails with ENOTCONN.
  void abort();
  /// All file descriptors must be closed, or the connection ended.
  void unmount();

  Program start(pid_t id, std::uint32_t uid);
  /// The child gets copies of the file descriptors and mappings.
  Program fork(const Program& parent, pid_t id);
  /// Closes everything, as exit(2) does, or a signal if the table of processes says so.
  void end(Program& program);

  // System calls. A path begins at the mount's root, without a slash.
  Answer<std::size_t> open(Program& program, std::string_view path, int flags);
  int close(Program& program, std::size_t descriptor);
  /// read() and write() work as pread and pwrite do, with the effect of O_APPEND.
  Answer<Buffer> read(Program& program, const DescriptionPointer& file, std::uint64_t offset,
                      std::uint64_t size_bytes);
  int write(Program& program, const DescriptionPointer& file, std::uint64_t offset,
            std::span<const std::byte> bytes);
  int sync(Program& program, const DescriptionPointer& file);
  int resize(Program& program, const DescriptionPointer& file, std::uint64_t size_bytes);
  int resize_path(Program& program, std::string_view path, std::uint64_t size_bytes);
  int map(Program& program, const DescriptionPointer& file);
  int store(Program& program, const DescriptionPointer& file, std::uint64_t offset,
            std::span<const std::byte> bytes);
  int unmap(Program& program, std::size_t mapping);
  Answer<fuse_attr> stat(Program& program, std::string_view path);
  Answer<std::string> attribute(Program& program, std::string_view path, std::string_view name);
  Answer<std::vector<std::string>> list(Program& program, std::string_view path);
  int make_directory(Program& program, std::string_view path);
  int remove_directory(Program& program, std::string_view path);
  int unlink(Program& program, std::string_view path);
  int rename(Program& program, std::string_view from, std::string_view to);

  /// Writes one dirty page back, of any inode.
  void write_back_some(std::size_t which);
  /// Frees memory: drops clean pages, and unused names and inodes.
  void reclaim(std::size_t which);
  /// Sends a RELEASE that a close(2) has left to be sent. @return false if there is none.
  bool release_one();

  [[nodiscard]] bool is_dirty(Node node, std::uint64_t offset, std::uint64_t size_bytes) const;
  /// Returns the size of a node, as the kernel knows it.
  [[nodiscard]] std::uint64_t size_bytes(Node node) const;
  [[nodiscard]] bool is_aborted() const { return wire_ == nullptr || wire_->is_aborted(); }
  [[nodiscard]] std::uint64_t requests() const { return requests_; }

 private:
  struct Page {
    Buffer bytes;
    bool is_dirty = false;
  };
  struct Inode {
    std::uint64_t lookups = 0;
    fuse_attr attributes{};
    bool knows_attributes = false;
    std::map<std::uint64_t, Page> pages;
    std::vector<std::weak_ptr<Description>> writable;
    std::uint64_t users = 0;  // descriptions
  };
  using Name = std::pair<Node, std::string>;

  [[nodiscard]] static Asker asker(const Program& program);
  Reply call(std::uint32_t opcode, Node node, const Asker& asker, std::span<const std::byte> body);
  Answer<Node> walk(Program& program, std::string_view path);
  Answer<Node> look_up(Program& program, Node parent, std::string_view name);
  Answer<std::pair<Node, std::string>> walk_to_parent(Program& program, std::string_view path);
  void learn(Node node, const fuse_attr& attributes, bool may_keep);
  int get_attributes(Program& program, Node node);
  /// Returns EACCES if the known mode denies the access, and then the mode that the driver reports does so as
  /// well.
  /// @param wanted  the sum of kMayRead, kMayWrite and kMaySearch.
  int permit(Program& program, Node node, std::uint32_t wanted);
  int may_make(Program& program, Node directory);
  int may_remove(Program& program, Node directory, Node node);
  int set_size(Program& program, Node node, const Description* file, std::uint64_t size_bytes);
  Answer<Buffer> read_page(const Asker& asker, const Description& file, std::uint64_t page);
  int write_back(Node node, std::uint64_t page);
  int write_back_all(Node node);
  void notified(int code, std::span<const std::byte> body);
  void invalidate_pages(Node node, std::uint64_t from, std::uint64_t end);
  void forget(Node node);
  int change_name(Program& program, std::uint32_t opcode, std::string_view path);

  Witness& witness_;
  const std::function<bool()> wait_;
  std::unique_ptr<FuseWire> wire_;
  std::map<Node, Inode> inodes_;
  std::map<Name, Node> names_;  // 0: the kernel knows that the name does not exist
  std::deque<Description> releases_;
  std::ostream* trace_ = nullptr;
  bool checks_permissions_ = false;
  std::uint64_t owners_ = 0;
  std::uint64_t opens_ = 0;
  std::uint64_t requests_ = 0;
};

}  // namespace stfs::test
