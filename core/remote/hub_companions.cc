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
constexpr std::uint64_t kMostFolderBytes = 512 << 20;  // all files of a folder
constexpr std::uint64_t kMostGitBytes = 16 << 20;      // such a file comes as a whole; the Hub takes 10 MB
constexpr std::uint64_t kPieceBytes = 4 << 20;         // each of 16 threads has a piece in memory
constexpr std::size_t kMostFiles = 200;

bool is_in_git(const HubModel::File& file) {
  constexpr std::size_t kSha1Digits = 40;
  return file.digest.size() == kSha1Digits;
}

/// Returns true for the kinds of files that libraries load beside weights, and for texts without an ending.
bool is_companion(std::string_view name, const HubModel::File& file) {
  constexpr std::array<std::string_view, 14> kEndings = {".json",  ".txt", ".model", ".tiktoken", ".py",
                                                         ".jinja", ".md",  ".yaml",  ".yml",      ".vocab",
                                                         ".spm",   ".bpe", ".tsv",   ".jsonl"};
  if (name.starts_with('.') || name.find('/') != name.npos ||
      file.size_bytes > (is_in_git(file) ? kMostGitBytes : kMostFileBytes))
    return false;
  if (name.ends_with(".safetensors.index.json") || name.ends_with(".bin.index.json")) return false;
  return name.find('.') == name.npos ||
         std::ranges::any_of(kEndings, [&](std::string_view ending) { return name.ends_with(ending); });
}

/// Calls `take` for each piece of a file on this machine.
Result<void> each_local_piece(int file, std::uint64_t size_bytes, const TakePiece& take) {
  std::vector<std::byte> piece(static_cast<std::size_t>(std::min(size_bytes, kPieceBytes)));
  for (std::uint64_t done = 0; done < size_bytes;) {
    const auto wanted = static_cast<std::size_t>(std::min<std::uint64_t>(piece.size(), size_bytes - done));
    const ssize_t taken = ::pread(file, piece.data(), wanted, static_cast<off_t>(done));
    if (taken < 0 && errno == EINTR) continue;
    if (taken <= 0) return fail_system(taken < 0 ? errno : EIO, "the file", "read");
    RETURN_IF_ERROR(take(std::span(piece).first(static_cast<std::size_t>(taken))));
    done += static_cast<std::uint64_t>(taken);
  }
  return {};
}

/// Calls `take` for each piece of a file of the Hub.
Result<void> each_remote_piece(const HubModel& model, const std::string& path, HttpConnection& connection,
                               const TakePiece& take) {
  const HubModel::File& listed = model.files.find(path)->second;
  if (listed.size_bytes == 0) return {};
  // For a range of a file in git, the Hub may send the whole file.
  std::vector<std::byte> piece(static_cast<std::size_t>(
      is_in_git(listed) ? listed.size_bytes : std::min(listed.size_bytes, kPieceBytes)));
  const auto object = RemoteObject::open(model.address_of(path), connection, piece);
  RETURN_IF_ERROR(object);
  RETURN_IF_ERROR(take(piece));
  for (std::uint64_t done = piece.size(); done < listed.size_bytes; done += piece.size()) {
    piece.resize(static_cast<std::size_t>(std::min(listed.size_bytes - done, kPieceBytes)));
    RETURN_IF_ERROR((*object)->read(piece, done, connection, [] { return Cancellation::is_end(); }));
    RETURN_IF_ERROR(take(piece));
  }
  return {};
}

/// Returns true if the directory has the file. A file with other bytes is not the one.
bool is_there(int directory, const std::string& name, const HubModel::File& listed, mode_t mode,
              bool is_asked) {
  const UniqueFd file(::openat(directory, name.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
  struct stat status {};
  if (!file || ::fstat(file.get(), &status) != 0 || !S_ISREG(status.st_mode) ||
      static_cast<std::uint64_t>(status.st_size) != listed.size_bytes)
    return false;
  auto check = DigestCheck::begin(listed.size_bytes, listed.digest);
  const auto take = [&](std::span<const std::byte> piece) -> Result<void> {
    check->update(piece);
    return {};
  };
  // A model may have become private since. A file that was private stays so while the Hub is not asked.
  if (!is_asked) mode &= status.st_mode;
  return check && each_local_piece(file.get(), listed.size_bytes, take) && check->finish() &&
         ::fchmod(file.get(), mode) == 0;
}

/// Puts a file into the directory, if its bytes have the digest.
Result<void> put_checked(int directory, const std::string& name, const HubModel::File& listed,
                         const MakePieces& make, mode_t mode) {
  const MakePieces make_checked = [&](const TakePiece& take) -> Result<void> {
    auto check = DigestCheck::begin(listed.size_bytes, listed.digest);
    RETURN_IF_ERROR(check);
    RETURN_IF_ERROR(make([&](std::span<const std::byte> piece) {
      check->update(piece);
      return take(piece);
    }));
    return check->finish();
  };
  return put_in_cache(directory, name, make_checked, mode);
}

}  // namespace

HubCompanions::HubCompanions(std::shared_ptr<const HubModel> model, std::string folder)
    : model_(std::move(model)), folder_(std::move(folder)) {
  std::uint64_t all_bytes = 0;
  for (auto at = model_->files.lower_bound(folder_);
       at != model_->files.end() && at->first.starts_with(folder_) && files_.size() < kMostFiles; ++at) {
    std::string name = at->first.substr(folder_.size());
    const std::uint64_t size_bytes = at->second.size_bytes;
    if (!is_companion(name, at->second) || size_bytes > kMostFolderBytes - all_bytes) continue;
    all_bytes += size_bytes;
    files_.emplace(std::move(name), at->second);
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
  const bool is_asked = !model_->is_kept && !model_->is_offline;
  const mode_t mode = model_->authorization.empty() ? 0644 : 0600;
  const auto directory = open();
  RETURN_IF_ERROR(directory);
  if (is_there(directory->get(), name, listed, mode, is_asked)) return {};
  const std::string path = folder_ + name;
  if (const auto local = find_in_hub_cache(*model_, listed)) {
    const auto make = [&](const TakePiece& take) {
      return each_local_piece(local->get(), listed.size_bytes, take);
    };
    if (put_checked(directory->get(), name, listed, make, is_asked ? mode : 0600)) return {};
  }
  if (model_->is_offline)
    return tl::unexpected(
        Error(fail_system(ENETUNREACH, path, "open a file that the Hugging Face cache lacks").value())
            .within(name));
  const auto make = [&](const TakePiece& take) { return each_remote_piece(*model_, path, connection, take); };
  auto done = put_checked(directory->get(), name, listed, make, mode);
  if (!done) return tl::unexpected(std::move(done).error().within(name));
  return {};
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
