#include "tools/target/question.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <exception>
#include <utility>

namespace stfs::tools {
namespace {

[[noreturn]] void answer(int to, pid_t parent, const std::function<std::string()>& ask) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) ::_exit(0);
  std::string text;
  try {
    text = ask();
  } catch (const std::exception&) {
    ::_exit(1);
  }
  for (std::string_view left = text; !left.empty();) {
    const ssize_t written = ::write(to, left.data(), left.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) break;
    left.remove_prefix(static_cast<std::size_t>(written));
  }
  ::_exit(0);
}

}  // namespace

Question::Question(const std::function<std::string()>& ask) {
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) return;
  answer_ = UniqueFd(ends[0]);
  const UniqueFd to(ends[1]);
  const pid_t parent = ::getpid();
  child_ = ::fork();
  if (child_ == 0) answer(to.get(), parent, ask);
}

Question::Question(Question&& other) noexcept
    : answer_(std::move(other.answer_)),
      child_(std::exchange(other.child_, -1)),
      text_(std::move(other.text_)) {}

Question::~Question() {
  if (child_ < 0) return;
  ::kill(child_, SIGKILL);
  ::waitpid(child_, nullptr, answer_ ? WNOHANG : 0);  // it may wait for the file system
}

std::optional<std::string> Question::answer_by(Deadline deadline) {
  while (answer_) {
    struct pollfd event = {.fd = answer_.get(), .events = POLLIN, .revents = 0};
    if (::poll(&event, 1, static_cast<int>(time_left(deadline).count())) <= 0) return std::nullopt;
    std::array<char, 4096> piece{};
    const ssize_t size_bytes = ::read(answer_.get(), piece.data(), piece.size());
    if (size_bytes > 0) {
      text_.append(piece.data(), static_cast<std::size_t>(size_bytes));
    } else {
      answer_ = UniqueFd();
    }
  }
  return text_;
}

}  // namespace stfs::tools
