// A version of a remote file that this process has open. Its bytes come from the server, from the cache of
// fetched blocks, or from a file of the Hugging Face cache.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/base/error.h"
#include "core/base/mutex.h"
#include "core/remote/fetched_blocks.h"
#include "core/remote/remote_object.h"
#include "core/remote/tensor_plan.h"
#include "core/storage/file.h"

namespace stfs {

/// Any thread may call.
class OpenedFile {
 public:
  /// The names of a file, and its address.
  struct Source {
    std::string path;   // in the storage
    std::string shown;  // how people name the file
    RemoteAddress address;
    std::string query{};  // of the address; `path` lacks it

    [[nodiscard]] bool has_query() const { return !query.empty(); }
  };
  /// Asks the server which version it has. For a version that is known, or if the server can't be reached,
  /// the cache of fetched blocks is enough.
  /// @return the errors of RemoteObject::open() and of check_digest().
  static Result<std::shared_ptr<OpenedFile>> open(const Source& source);
  /// @param local  a file with the listed digest.
  OpenedFile(std::string path, std::unique_ptr<File> local, RemoteAddress::Listed listed, mode_t mode);
  ~OpenedFile();
  OpenedFile(const OpenedFile&) = delete;
  OpenedFile& operator=(const OpenedFile&) = delete;

  [[nodiscard]] const std::string& path() const { return path_; }
  /// Of the address.
  [[nodiscard]] const std::string& query() const { return query_; }
  [[nodiscard]] std::uint64_t size_bytes() const { return version_.size_bytes; }
  /// Returns File::version().
  [[nodiscard]] std::string version() const;
  /// Null if the bytes are in a file of the Hugging Face cache.
  [[nodiscard]] FetchedBlocks* blocks() const { return blocks_.get(); }
  /// Null if the bytes come from the server.
  [[nodiscard]] const File* local() const { return local_.get(); }
  [[nodiscard]] FileStatus status() const;
  Result<void> read(std::span<std::byte> to, std::uint64_t offset);

 private:
  OpenedFile(const Source& source, std::shared_ptr<FetchedBlocks> blocks, mode_t mode);
  static Result<std::shared_ptr<OpenedFile>> open_listed(const Source& source);
  static Result<std::shared_ptr<OpenedFile>> open_unlisted(const Source& source);
  /// Opens the version of a file of the cache. Its server can't be reached.
  static Result<std::shared_ptr<OpenedFile>> open_kept(const Source& source, std::unique_ptr<BlockFile> file);
  /// @param file  null: programs can't share the blocks.
  /// @param is_asked  a server has shown now that this user may read the file.
  static Result<std::shared_ptr<OpenedFile>> make(const Source& source, std::unique_ptr<RemoteObject> object,
                                                  std::unique_ptr<BlockFile> file,
                                                  std::span<const std::byte> first, bool is_asked);
  /// Returns the plan, if it is made. Makes it when data are read for the first time.
  TensorPlan* plan_for(ByteRange range);
  /// Reads the header without a plan, and without the lock: that may wait for the server. Null for the header
  /// itself, and if it can't be read.
  std::unique_ptr<TensorPlan> make_plan(ByteRange range);

  const std::string path_;
  const std::string query_;
  const std::shared_ptr<FetchedBlocks> blocks_;  // null if there is a local file
  const std::unique_ptr<File> local_;
  const RemoteVersion version_;
  const bool is_listed_;  // the version is the digest that the Hub lists
  const mode_t mode_;     // a file that needs a token is for this user alone
  Mutex mutex_;
  std::unique_ptr<TensorPlan> plan_ GUARDED_BY(mutex_);
  bool is_planning_ GUARDED_BY(mutex_) = false;  // one thread makes the plan: a header may have 100 MB
};

}  // namespace stfs
