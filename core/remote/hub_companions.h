// The files beside a model of the Hugging Face Hub: its configuration, its tokenizer, its code. Libraries
// load them from a directory, so they are brought to a directory of this host. They stay there for the next
// mount: the files of a commit never change, and their digests are checked.
#pragma once

#include <chrono>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "core/base/error.h"
#include "core/base/mutex.h"
#include "core/base/unique_fd.h"
#include "core/remote/hub.h"

namespace stfs {

/// Any thread may call.
class HubCompanions : public std::enable_shared_from_this<HubCompanions> {
 public:
  /// Has at most 200 files of the folder, of 512 MiB together. Further files are left out.
  /// @param folder  in the model, with a slash at the end; empty: the top.
  HubCompanions(std::shared_ptr<const HubModel> model, std::string folder);

  /// Opens the directory on this host, which may still be empty.
  [[nodiscard]] Result<UniqueFd> open() const;
  /// Brings a file, unless it is there. A file gets its name when it is whole and has its digest. Waits for
  /// the Hub. After a failure, the next calls return the same failure for some seconds. Does nothing for a
  /// name that the folder does not have.
  /// @return EINTR: the reader has been killed.
  Result<void> fetch(const std::string& name);
  /// Brings all files.
  /// @return the first failure; the other files are there.
  Result<void> fetch_all();

 private:
  /// The last try to bring a file.
  struct Try {
    bool is_over = false;
    Result<void> result{};
    std::chrono::steady_clock::time_point ended_at{};
  };
  [[nodiscard]] std::filesystem::path place() const;
  /// Asks for a file, if no try has succeeded, and none is running or has just failed.
  void begin(const std::string& name) REQUIRES(mutex_);
  [[nodiscard]] Result<void> wait(const std::string& name) REQUIRES(mutex_);
  Result<void> bring(const std::string& name, HttpConnection& connection);
  void note_end(const std::string& name, Result<void> result);

  const std::shared_ptr<const HubModel> model_;
  const std::string folder_;
  std::map<std::string, HubModel::File, std::less<>> files_;  // by name; constant
  Mutex mutex_;
  Condition one_ends_;
  std::map<std::string, Try, std::less<>> tries_ GUARDED_BY(mutex_);
};

}  // namespace stfs
