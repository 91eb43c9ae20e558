// A model of Linux above the driver: programs with descriptors and mappings, the caches of names, attributes
// and pages, and the requests that Linux sends for each system call (fs/KERNEL.md).
//
// The page cache and the attributes are not the driver's: what it must forget it is told, and what the driver
// does not tell stays, for ever. One page of the model is 4096 bytes.
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

/// What open(2) makes. Lives as long as a descriptor or a mapping refers to it; then a RELEASE is due.
struct Description {
  Node node = 0;
  std::uint64_t handle = 0;
  int flags = 0;
  bool is_direct = false;      // past the page cache
  bool keeps_noflush = false;  // its closes need no FLUSH
  std::uint64_t serial = 0;    // counts opens
};
using DescriptionPointer = std::shared_ptr<Description>;

/// A program. Its descriptors and mappings are those of all its threads.
struct Program {
  pid_t id = 0;
  std::uint32_t uid = 0;
  std::uint64_t owner = 0;  // what the kernel calls its table of descriptors
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

/// Sees the requests that change something, and what the driver answers.
class Witness {
 public:
  virtual ~Witness() = default;
  virtual void opened(const Program& program, const DescriptionPointer& file) = 0;
  /// Before the request. @param program  null: written back by the kernel, `file` is any writable one then.
  virtual void writes(const Program* program, const Description& file, std::uint64_t offset,
                      std::span<const std::byte> bytes) = 0;
  virtual void wrote(const Description& file, int error) = 0;
  /// @param file  null: by name.
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
  /// @param wait  lets others go on until something has happened; false: nothing can happen any more.
  Kernel(Witness& witness, std::function<bool()> wait) : witness_(witness), wait_(std::move(wait)) {}

  /// Tells each request; null: none.
  void trace_to(std::ostream* trace) { trace_ = trace; }
  /// Takes a file system into use, with caches that know nothing.
  /// @param checks_permissions  as default_permissions has it; else everybody may do everything.
  void mount(const fuse_lowlevel_ops& operations, void* userdata, bool checks_permissions);
  [[nodiscard]] fuse_session* session() const { return wire_->session(); }
  /// The connection is gone: every call fails with ENOTCONN.
  void abort();
  /// Descriptors must have gone, or the connection.
  void unmount();

  Program start(pid_t id, std::uint32_t uid);
  /// Descriptors and mappings are copied.
  Program fork(const Program& parent, pid_t id);
  /// Closes all: exit(2), or a signal, as the table of processes says.
  void end(Program& program);

  // System calls. A path begins at the mount's root, without a slash.
  Answer<std::size_t> open(Program& program, std::string_view path, int flags);
  int close(Program& program, std::size_t descriptor);
  /// pread and pwrite, O_APPEND included.
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

  /// Writes one dirty page of somebody back.
  void write_back_some(std::size_t which);
  /// Memory is short: drops clean pages, and names and inodes that nobody uses.
  void reclaim(std::size_t which);
  /// Sends a RELEASE that close(2) has left behind. @return false where there is none.
  bool release_one();

  [[nodiscard]] bool is_dirty(Node node, std::uint64_t offset, std::uint64_t size_bytes) const;
  /// The node of a path that is known already; 0 where not.
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
  /// EACCES where the mode that is known, and the one that the driver tells then, say no.
  /// @param wanted  kMayRead, kMayWrite and kMaySearch, added up.
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
  std::map<Name, Node> names_;  // 0: known not to be there
  std::deque<Description> releases_;
  std::ostream* trace_ = nullptr;
  bool checks_permissions_ = false;
  std::uint64_t owners_ = 0;
  std::uint64_t opens_ = 0;
  std::uint64_t requests_ = 0;
};

}  // namespace stfs::test
