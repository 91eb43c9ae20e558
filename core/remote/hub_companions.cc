#include "core/remote/hub_companions.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

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
#include "core/remote/remote_workers.h"
#include "core/storage/file.h"

namespace stfs {
namespace {

constexpr std::uint64_t kMostBytes = 64 << 20;

bool is_companion(std::string_view name, const HubModel::File& file) {
  constexpr std::array<std::string_view, 14> kWeights = {".safetensors", ".safetensors.index.json",
                                                         ".bin",         ".bin.index.json",
                                                         ".pt",          ".pth",
                                                         ".ckpt",        ".h5",
                                                         ".msgpack",     ".gguf",
                                                         ".onnx",        ".ot",
                                                         ".tflite",      ".npz"};
  const bool is_weight =
      std::ranges::any_of(kWeights, [&](std::string_view ending) { return name.ends_with(ending); });
  return !is_weight && !name.starts_with('.') && name.find('/') == name.npos && file.size_bytes <= kMostBytes;
}

Result<std::vector<std::byte>> bytes_of(const HubModel& model, const std::string& path,
                                        const HubModel::File& listed, HttpConnection& connection) {
  std::vector<std::byte> bytes(static_cast<std::size_t>(listed.size_bytes));
  if (bytes.empty()) return bytes;
  if (const auto local = find_in_hub_cache(model, listed)) {
    const auto file = system_storage().open_no_link(*local, Access::ReadOnly);
    if (file && (*file)->read(bytes, 0)) return bytes;
  }
  auto object = RemoteObject::open(model.address_of(path), connection, bytes);
  RETURN_IF_ERROR(object);
  return bytes;
}

/// Puts a whole file into the directory.
Result<void> put(int directory, const std::string& name, std::span<const std::byte> bytes) {
  const std::string temporary = fmt::format(".{}.{}", ::getpid(), name);
  ::unlinkat(directory, temporary.c_str(), 0);  // of a process that was killed
  const UniqueFd file(::openat(directory, temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644));
  if (!file) return fail_system(errno, name, "make");
  while (!bytes.empty()) {
    const ssize_t written = ::write(file.get(), bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return fail_system(written < 0 ? errno : EIO, name, "write");
    bytes = bytes.subspan(static_cast<std::size_t>(written));
  }
  if (::fsync(file.get()) != 0) return fail_system(errno, name, "sync");
  if (::renameat(directory, temporary.c_str(), directory, name.c_str()) != 0)
    return fail_system(errno, name, "rename");
  return {};
}

bool is_there(int directory, const std::string& name, std::uint64_t size_bytes) {
  struct stat status {};
  return ::fstatat(directory, name.c_str(), &status, AT_SYMLINK_NOFOLLOW) == 0 && S_ISREG(status.st_mode) &&
         static_cast<std::uint64_t>(status.st_size) == size_bytes;
}

}  // namespace

std::filesystem::path HubCompanions::place() const {
  std::string model = model_->model;
  std::ranges::replace(model, '/', '@');  // no name of the Hub has this character
  const std::filesystem::path place = std::filesystem::path("hub") / model / model_->commit;
  return folder_.empty() ? place : place / folder_.substr(0, folder_.size() - 1);
}

Result<UniqueFd> HubCompanions::open() const {
  return open_own_cache(place());
}

bool HubCompanions::must_try() const {
  constexpr std::chrono::seconds kPause{5};  // without a network, each try takes some seconds
  if (!try_) return true;
  return try_->left == 0 && !try_->result && std::chrono::steady_clock::now() - try_->ended_at > kPause;
}

Result<void> HubCompanions::fetch() {
  return guard_memory([&]() -> Result<void> {
    constexpr std::chrono::milliseconds kStep{200};
    const MutexLock lock(mutex_);
    if (must_try()) {
      RETURN_IF_ERROR(begin());
    }
    const auto is_over = [this]() REQUIRES(mutex_) { return try_->left == 0; };
    while (!one_ends_.wait_for(mutex_, kStep, is_over)) {
      if (Cancellation::is_requested() || Cancellation::is_end())
        return fail_system(EINTR, "the look-up", "wait for the server");
    }
    return try_->result;
  });
}

Result<void> HubCompanions::begin() {
  if (!directory_) {
    auto opened = open();
    RETURN_IF_ERROR(opened);
    directory_ = std::move(*opened);
  }
  try_ = Try{};
  std::vector<std::string> not_posted;
  for (const auto& [path, file] : model_->files) {
    if (!path.starts_with(folder_)) continue;
    const std::string name = path.substr(folder_.size());
    if (!is_companion(name, file) || is_there(directory_.get(), name, file.size_bytes)) continue;
    const bool is_posted = post_remote_job(
        [self = shared_from_this(), name](HttpConnection& connection) { self->bring(name, connection); },
        Urgency::Needed);
    if (!is_posted) return fail_system(EAGAIN, name, "start a thread to fetch it");
    ++try_->left;
  }
  return {};
}

void HubCompanions::bring(const std::string& name, HttpConnection& connection) {
  auto done = guard_memory([&]() -> Result<void> {
    const std::string path = folder_ + name;
    auto bytes = bytes_of(*model_, path, model_->files.find(path)->second, connection);
    if (!bytes) return tl::unexpected(std::move(bytes).error().within(name));
    return put(directory_.get(), name, *bytes);
  });
  const MutexLock lock(mutex_);
  if (!done && try_->result) try_->result = std::move(done);
  if (--try_->left == 0) try_->ended_at = std::chrono::steady_clock::now();
  one_ends_.notify_all();
}

}  // namespace stfs
