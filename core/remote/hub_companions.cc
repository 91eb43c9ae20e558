#include "core/remote/hub_companions.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "core/base/cancellation.h"
#include "core/remote/cache_directory.h"
#include "core/remote/digest.h"
#include "core/remote/hub_cache.h"
#include "core/remote/remote_workers.h"

namespace stfs {
namespace {

constexpr std::uint64_t kMostFileBytes = 64 << 20;
constexpr std::size_t kMostFiles = 200;

/// Returns true for the kinds of files that libraries load beside weights, and for texts without an ending.
bool is_companion(std::string_view name, const HubModel::File& file) {
  constexpr std::array<std::string_view, 14> kEndings = {".json",  ".txt", ".model", ".tiktoken", ".py",
                                                         ".jinja", ".md",  ".yaml",  ".yml",      ".vocab",
                                                         ".spm",   ".bpe", ".tsv",   ".jsonl"};
  if (name.starts_with('.') || name.find('/') != name.npos || file.size_bytes > kMostFileBytes) return false;
  if (name.ends_with(".safetensors.index.json") || name.ends_with(".bin.index.json")) return false;
  return name.find('.') == name.npos ||
         std::ranges::any_of(kEndings, [&](std::string_view ending) { return name.ends_with(ending); });
}

Result<std::vector<std::byte>> read_whole(int file, std::uint64_t size_bytes) {
  std::vector<std::byte> bytes(static_cast<std::size_t>(size_bytes));
  std::size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t taken = ::pread(file, bytes.data() + done, bytes.size() - done, static_cast<off_t>(done));
    if (taken < 0 && errno == EINTR) continue;
    if (taken <= 0) return fail_system(taken < 0 ? errno : EIO, "the file", "read");
    done += static_cast<std::size_t>(taken);
  }
  return bytes;
}

/// Returns true if the directory has the file. A file with other bytes is not the one.
bool is_there(int directory, const std::string& name, const HubModel::File& listed, mode_t mode) {
  const UniqueFd file(::openat(directory, name.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
  struct stat status {};
  if (!file || ::fstat(file.get(), &status) != 0 || !S_ISREG(status.st_mode) ||
      static_cast<std::uint64_t>(status.st_size) != listed.size_bytes)
    return false;
  const auto bytes = read_whole(file.get(), listed.size_bytes);
  // A model may have become private since.
  return bytes && check_digest(*bytes, listed.digest) && ::fchmod(file.get(), mode) == 0;
}

Result<std::vector<std::byte>> bytes_of(const HubModel& model, const std::string& path,
                                        const HubModel::File& listed, HttpConnection& connection) {
  if (const auto local = find_in_hub_cache(model, listed)) {
    auto bytes = read_whole(local->get(), listed.size_bytes);
    if (bytes && check_digest(*bytes, listed.digest)) return bytes;
  }
  if (model.is_offline)
    return fail_system(ENETUNREACH, path, "open a file that the Hugging Face cache lacks");
  std::vector<std::byte> bytes(static_cast<std::size_t>(listed.size_bytes));
  if (!bytes.empty()) {
    const auto object = RemoteObject::open(model.address_of(path), connection, bytes);
    RETURN_IF_ERROR(object);
  }
  RETURN_IF_ERROR(check_digest(bytes, listed.digest));
  return bytes;
}

}  // namespace

HubCompanions::HubCompanions(std::shared_ptr<const HubModel> model, std::string folder)
    : model_(std::move(model)), folder_(std::move(folder)) {
  for (auto at = model_->files.lower_bound(folder_);
       at != model_->files.end() && at->first.starts_with(folder_) && files_.size() < kMostFiles; ++at) {
    std::string name = at->first.substr(folder_.size());
    if (is_companion(name, at->second)) files_.emplace(std::move(name), at->second);
  }
}

std::filesystem::path HubCompanions::place() const {
  std::string model = model_->model;
  std::ranges::replace(model, '/', '@');  // no name of the Hub has this character
  // Another Hub may have other files at the same name.
  const std::string commit =
      fmt::format("{}-{:016x}", model_->commit, XXH3_64bits(model_->root.data(), model_->root.size()));
  const std::filesystem::path place = std::filesystem::path("hub") / model / commit;
  return folder_.empty() ? place : place / folder_.substr(0, folder_.size() - 1);
}

Result<UniqueFd> HubCompanions::open() const {
  return open_own_cache(place());
}

Result<void> HubCompanions::fetch(const std::string& name) {
  if (!files_.contains(name)) return {};
  return guard_memory([&]() -> Result<void> {
    const MutexLock lock(mutex_);
    begin(name);
    return wait(name);
  });
}

Result<void> HubCompanions::fetch_all() {
  return guard_memory([&]() -> Result<void> {
    const MutexLock lock(mutex_);
    for (const auto& [name, file] : files_) begin(name);
    Result<void> first;
    for (const auto& [name, file] : files_) {
      auto done = wait(name);
      if (!done && first) first = std::move(done);
    }
    return first;
  });
}

void HubCompanions::begin(const std::string& name) {
  constexpr std::chrono::seconds kPause{5};  // without a network, each try takes some seconds
  const auto [at, is_first] = tries_.try_emplace(name);
  Try& last = at->second;
  const auto now = std::chrono::steady_clock::now();
  if (!is_first && (!last.is_over || last.result || now - last.ended_at < kPause)) return;
  last = Try{};
  const bool is_posted = post_remote_job(
      [self = shared_from_this(), name](HttpConnection& connection) {
        self->note_end(name, guard_memory([&] { return self->bring(name, connection); }));
      },
      Urgency::Needed);
  if (is_posted) return;
  last.result = fail_system(EAGAIN, name, "start a thread to fetch it");
  last.is_over = true;
  last.ended_at = now;
}

Result<void> HubCompanions::wait(const std::string& name) {
  constexpr std::chrono::milliseconds kStep{200};
  const Try& last = tries_.find(name)->second;
  const auto is_over = [&last] { return last.is_over; };
  while (!one_ends_.wait_for(mutex_, kStep, is_over)) {
    if (Cancellation::is_requested() || Cancellation::is_end())
      return fail_system(EINTR, "the look-up", "wait for the server");
  }
  return last.result;
}

Result<void> HubCompanions::bring(const std::string& name, HttpConnection& connection) {
  const HubModel::File& listed = files_.find(name)->second;
  const mode_t mode = model_->authorization.empty() ? 0644 : 0600;
  const auto directory = open();
  RETURN_IF_ERROR(directory);
  if (is_there(directory->get(), name, listed, mode)) return {};
  auto bytes = bytes_of(*model_, folder_ + name, listed, connection);
  if (!bytes) return tl::unexpected(std::move(bytes).error().within(name));
  return put_in_cache(directory->get(), name, *bytes, mode);
}

void HubCompanions::note_end(const std::string& name, Result<void> result) {
  const MutexLock lock(mutex_);
  Try& last = tries_.find(name)->second;
  last.result = std::move(result);
  last.is_over = true;
  last.ended_at = std::chrono::steady_clock::now();
  one_ends_.notify_all();
}

}  // namespace stfs
