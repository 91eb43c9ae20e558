#include "core/remote/credential_process.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <thread>

#include "core/base/cancellation.h"
#include "core/base/deadline.h"
#include "core/base/printable.h"
#include "core/base/unique_fd.h"

namespace stfs {
namespace {

constexpr std::size_t kMostOutputBytes = 64 << 10;

/// A program with a pipe from its standard output. The destructor kills the program. It stays in the process
/// group of this process, so that it may ask a person at the terminal, and Ctrl-C ends both.
class Program {
 public:
  Program() = default;
  ~Program() {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    while (::waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
    }
  }
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  /// @return the errno; 0 if the program has been started.
  int start(const std::vector<std::string>& words) {
    std::array<int, 2> ends{};
    if (::pipe2(ends.data(), O_CLOEXEC) != 0) return errno;
    output_ = UniqueFd(ends[0]);
    const UniqueFd to(ends[1]);
    const UniqueFd nothing(::open("/dev/null", O_RDONLY | O_CLOEXEC));
    posix_spawn_file_actions_t files{};
    posix_spawn_file_actions_init(&files);
    posix_spawn_file_actions_adddup2(&files, nothing.get(), STDIN_FILENO);
    posix_spawn_file_actions_adddup2(&files, to.get(), STDOUT_FILENO);
    posix_spawnattr_t attributes{};
    posix_spawnattr_init(&attributes);
    sigset_t none;
    sigemptyset(&none);
    posix_spawnattr_setsigmask(&attributes, &none);
    posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK);
    std::vector<char*> arguments;
    for (const std::string& word : words) arguments.push_back(const_cast<char*>(word.c_str()));
    arguments.push_back(nullptr);
    const int failed = ::posix_spawnp(&pid_, arguments[0], &files, &attributes, arguments.data(), environ);
    posix_spawnattr_destroy(&attributes);
    posix_spawn_file_actions_destroy(&files);
    if (failed != 0) pid_ = -1;
    return failed;
  }

  [[nodiscard]] int output() const { return output_.get(); }

  /// @return true: with success; false: with a failure. Nothing: the program has not ended.
  std::optional<bool> ended() {
    int status = 0;
    const pid_t found = ::waitpid(pid_, &status, WNOHANG);
    if (found == 0 || (found < 0 && errno == EINTR)) return std::nullopt;
    pid_ = -1;
    if (found < 0) return true;  // the kernel keeps no status: this process ignores SIGCHLD
    return WIFEXITED(status) && WEXITSTATUS(status) == 0;
  }

 private:
  pid_t pid_ = -1;
  UniqueFd output_;
};

}  // namespace

std::optional<std::vector<std::string>> command_words(std::string_view command) {
  std::vector<std::string> words;
  char quote = '\0';
  bool is_in_word = false;
  for (std::size_t at = 0; at < command.size(); ++at) {
    const char c = command[at];
    const bool is_last = at + 1 == command.size();
    const bool is_space = c == ' ' || c == '\t' || c == '\n';
    if (quote == '\0' && is_space) {
      is_in_word = false;
      continue;
    }
    if (!is_in_word) words.emplace_back();
    is_in_word = true;
    if (c == quote) {
      quote = '\0';
    } else if (quote == '\0' && (c == '"' || c == '\'')) {
      quote = c;
    } else if (c == '\\' && quote != '\'' && !is_last &&
               (quote == '\0' || command[at + 1] == '"' || command[at + 1] == '\\')) {
      words.back() += command[++at];
    } else {
      words.back() += c;
    }
  }
  if (quote != '\0') return std::nullopt;
  return words;
}

Result<std::string> output_of(const std::vector<std::string>& words, std::chrono::milliseconds patience) {
  constexpr std::chrono::milliseconds kStep{100};
  constexpr std::chrono::milliseconds kPause{5};
  const std::string shown = printable(words.front());
  Program program;
  if (const int failed = program.start(words); failed != 0) return fail_system(failed, shown, "run");
  const Deadline until = deadline_in(patience);
  std::string output;
  bool has_closed = false;  // its output
  while (true) {
    if (Cancellation::is_end()) return fail(ErrorCode::System, ECANCELED, "the read was ended");
    const auto left = time_left(until);
    if (left.count() == 0)
      return fail(ErrorCode::System, ETIMEDOUT,
                  fmt::format("{}: does not end in {} s", shown,
                              std::chrono::duration_cast<std::chrono::seconds>(patience).count()));
    if (has_closed) {
      const auto succeeded = program.ended();
      if (!succeeded) {
        std::this_thread::sleep_for(std::min(left, kPause));
        continue;
      }
      if (*succeeded) return output;
      return fail(ErrorCode::System, EACCES, shown + ": failed, so there are no credentials");
    }
    struct pollfd waits = {.fd = program.output(), .events = POLLIN, .revents = 0};
    const int ready = ::poll(&waits, 1, static_cast<int>(std::min(left, kStep).count()));
    if (ready < 0 && errno != EINTR) return fail_system(errno, shown, "wait for");
    if (ready <= 0) continue;
    std::array<char, 4096> piece{};
    const ssize_t size_bytes = ::read(program.output(), piece.data(), piece.size());
    if (size_bytes < 0 && errno != EINTR) return fail_system(errno, shown, "read the output of");
    has_closed = size_bytes == 0;
    if (size_bytes > 0) output.append(piece.data(), static_cast<std::size_t>(size_bytes));
    if (output.size() > kMostOutputBytes)
      return fail(ErrorCode::System, EFBIG, shown + ": prints too much for credentials");
  }
}

}  // namespace stfs
