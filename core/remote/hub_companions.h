// The files beside a model of the Hugging Face Hub: its configuration, its tokenizer, its code. Libraries
// load them from a directory, so they are brought to a directory of this host. They stay there for the next
// mount: the files of a commit never change.
#pragma once

#include <chrono>
#include <cstddef>
#include <filesystem>
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
  /// @param folder  in the model, with a slash at the end; empty: the top.
  HubCompanions(std::shared_ptr<const HubModel> model, std::string folder)
      : model_(std::move(model)), folder_(std::move(folder)) {}

  /// Opens the directory on this host, which may still be empty.
  [[nodiscard]] Result<UniqueFd> open() const;
  /// Brings the missing files of the folder. Leaves out weights in any format, hidden files, and files of
  /// more than 64 MiB. A file gets its name when it is whole. Waits for the Hub, unless all files are there.
  /// After a failure, the next calls return the same failure for some seconds.
  /// @return the first failure; the other files are there. EINTR: the reader has been killed.
  Result<void> fetch();

 private:
  /// One try to bring all files.
  struct Try {
    std::size_t left = 0;  // files that are still coming
    Result<void> result{};
    std::chrono::steady_clock::time_point ended_at{};
  };
  [[nodiscard]] std::filesystem::path place() const;
  /// Returns true if no try has succeeded, and none is running or has just failed.
  [[nodiscard]] bool must_try() const REQUIRES(mutex_);
  /// Asks for the missing files.
  Result<void> begin() REQUIRES(mutex_);
  void bring(const std::string& name, HttpConnection& connection);

  const std::shared_ptr<const HubModel> model_;
  const std::string folder_;
  UniqueFd directory_;  // constant after the first begin()
  Mutex mutex_;
  Condition one_ends_;
  std::optional<Try> try_ GUARDED_BY(mutex_);
};

}  // namespace stfs
