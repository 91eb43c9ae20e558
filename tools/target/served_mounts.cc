// A child process for each mount (question.h) reads the mount's stats.json.
#include "tools/target/served_mounts.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <sstream>
#include <string_view>
#include <system_error>
#include <utility>

#include "core/base/absolute_path.h"
#include "core/base/unique_fd.h"
#include "core/storage/trusted_links.h"
#include "tools/target/daemons.h"
#include "tools/target/question.h"
#include "tools/text/json_document.h"

namespace stfs::tools {
namespace {

namespace fs = std::filesystem;

constexpr std::array<std::string_view, 6> kNames = {"serving",   "broken",         "dead",
                                                    "no answer", "not accessible", "covered"};

/// The first character of an answer is the state, the rest is the text of stats.json.
std::string told(MountState state, const std::string& rest = {}) {
  return std::string(1, static_cast<char>('0' + static_cast<int>(state))) + rest;
}

MountState state_of_errno(int why) {
  if (why == ENOTCONN || why == ECONNABORTED) return MountState::Dead;
  if (why == EACCES || why == EPERM) return MountState::Closed;
  if (why == ENOENT) return MountState::Covered;
  return MountState::Broken;
}

/// Runs in the child process.
std::string ask(const MountEntry& entry) {
  const UniqueFd root(::open(entry.path.c_str(), O_PATH | O_CLOEXEC));
  if (!root) return told(state_of_errno(errno));
  struct statx found {};
  ::statx(root.get(), "", AT_EMPTY_PATH | AT_STATX_DONT_SYNC, STATX_MNT_ID, &found);
  const bool is_known = (found.stx_mask & STATX_MNT_ID) != 0;
  if (is_known && std::to_string(found.stx_mnt_id) != entry.id) return told(MountState::Covered);
  struct statfs store {};
  if (::fstatfs(root.get(), &store) != 0) return told(state_of_errno(errno));
  const UniqueFd stats(::openat(root.get(), ".safetensors/stats.json", O_RDONLY | O_CLOEXEC));
  if (stats) return told(MountState::Serving, read_stats(stats));
  // The root of a directory of models has no such file.
  return told(errno == ENOENT ? MountState::Serving : state_of_errno(errno));
}

void add_answer(ServedMount& mount, const std::string& answer) {
  if (answer.empty()) return;
  mount.state = static_cast<MountState>(answer.front() - '0');
  const Json stats = parse_json(std::string_view(answer).substr(1));
  if (!stats.is_object()) return;
  if (stats.contains("tensors") && stats["tensors"].is_number_unsigned()) mount.tensors = stats["tensors"];
  if (stats.contains("problem") && stats["problem"].is_string()) mount.problem = stats["problem"];
  if (!mount.problem.empty()) mount.state = MountState::Broken;
}

bool has_word(std::string_view list, std::string_view word) {
  return ("," + std::string(list) + ",").find("," + std::string(word) + ",") != std::string::npos;
}

}  // namespace

std::string read_stats(const UniqueFd& file) {
  constexpr std::size_t kMostBytes = 1U << 20U;
  std::string text;
  std::array<char, 8192> piece{};
  ssize_t size_bytes = 0;
  while (text.size() < kMostBytes && (size_bytes = ::read(file.get(), piece.data(), piece.size())) > 0)
    text.append(piece.data(), static_cast<std::size_t>(size_bytes));
  return text;
}

bool ServedMount::is_read_only() const {
  return has_word(entry.flags, "ro") || has_word(entry.options, "ro");
}

std::string ServedMount::shown_options() const {
  std::string shown = is_read_only() ? "ro" : "rw";
  std::istringstream words(entry.options);
  for (std::string word; std::getline(words, word, ',');) {
    const bool is_usual = word == "rw" || word == "ro" || word.starts_with("user_id=") ||
                          word.starts_with("group_id=") || word.starts_with("max_read=");
    if (!is_usual) shown += "," + word;
  }
  return shown;
}

std::string_view name_of(MountState state) {
  return kNames[static_cast<std::size_t>(state)];
}

std::vector<ServedMount> served_mounts(std::chrono::milliseconds patience) {
  std::vector<MountEntry> entries = mounts();
  std::erase_if(entries, [](const MountEntry& entry) { return entry.type != kMountType; });
  std::vector<ServedMount> served;
  for (const MountEntry& entry : entries) served.push_back({.entry = entry});
  std::vector<Question> questions;
  questions.reserve(served.size());
  for (const ServedMount& mount : served) {
    questions.emplace_back([&mount] { return ask(mount.entry); });
  }
  const Deadline deadline = deadline_in(patience);
  for (std::size_t at = 0; at < served.size(); ++at) {
    if (const auto answer = questions[at].answer_by(deadline)) add_answer(served[at], *answer);
  }
  const auto daemons = find_daemons(entries);
  for (std::size_t at = 0; at < served.size(); ++at) served[at].daemon = daemons[at];
  return served;
}

Result<MountEntry> served_mount_at(const fs::path& named) {
  auto place = place_in_mount(named, Links::Trusted);
  RETURN_IF_ERROR(place);
  if (place->mount.path.native() == place->path.native()) return std::move(place->mount);
  return fail(ErrorCode::InvalidArgument, EINVAL,
              fmt::format("{}: is no mount point: name the mount point, {}", named.string(),
                          place->mount.path.string()));
}

Result<PlaceInMount> place_in_mount(const fs::path& named, Links links) {
  RETURN_IF_ERROR(check_local(named));
  const auto root = open_what_is_named(named, links);
  const int why = root ? 0 : root.error().errno_value;
  if (why == EXDEV || (links == Links::Trusted && why == EACCES)) return tl::unexpected(root.error());
  std::error_code failed;
  fs::path path = root ? fs::read_symlink(fmt::format("/proc/self/fd/{}", root->get()), failed) : named;
  if (failed) path = named;
  std::optional<MountEntry> innermost;
  for (MountEntry& mount : mounts()) {
    const std::string& at = mount.path.native();
    const bool is_above = at == "/" || path.native() == at || path.native().starts_with(at + "/");
    if (is_above && (!innermost || at.size() >= innermost->path.native().size()))
      innermost = std::move(mount);
  }
  if (innermost && innermost->type == kMountType)
    return PlaceInMount{.mount = std::move(*innermost), .path = std::move(path)};
  if (why != 0) return fail_system(why, named.string(), "find its mount");
  return fail(ErrorCode::InvalidArgument, EINVAL, named.string() + ": is no mount of safetensorsfs");
}

}  // namespace stfs::tools
