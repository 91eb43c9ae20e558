// The file of -o log=: which files are accepted, and the log after the file was moved away or its disk is
// full.
#include "fs/base/log_file.h"

#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <filesystem>
#include <string>

#include "tests/support/catch.h"
#include "tests/support/temporary_directory.h"

using namespace stfs;
using stfs::test::content_of;
using stfs::test::TemporaryDirectory;

namespace {

int errno_of_open(const std::string& path) {
  const auto opened = LogFile::open(path);
  return opened ? 0 : opened.error().errno_value;
}

/// Limits the size of this process's files, with the effect of a full disk.
class SizeLimit {
 public:
  explicit SizeLimit(rlim_t size_bytes) {
    std::signal(SIGXFSZ, SIG_IGN);
    ::getrlimit(RLIMIT_FSIZE, &before_);
    const struct rlimit now = {.rlim_cur = size_bytes, .rlim_max = before_.rlim_max};
    ::setrlimit(RLIMIT_FSIZE, &now);
  }
  ~SizeLimit() { ::setrlimit(RLIMIT_FSIZE, &before_); }
  SizeLimit(const SizeLimit&) = delete;
  SizeLimit& operator=(const SizeLimit&) = delete;

 private:
  struct rlimit before_ {};
};

}  // namespace

TEST_CASE("a log file is made for its owner only, and lines are appended to one that exists", "[fs][log]") {
  const TemporaryDirectory directory;
  const std::string path = directory / "log";
  const mode_t umask_before = ::umask(0);
  REQUIRE((*LogFile::open(path))->append("one"));
  ::umask(umask_before);
  struct stat status {};
  REQUIRE(::stat(path.c_str(), &status) == 0);
  CHECK((status.st_mode & 0777) == 0600);
  REQUIRE((*LogFile::open(path))->append("two"));
  CHECK(content_of(path) == "one\ntwo\n");
}

TEST_CASE("a log file is no link, no second name and no pipe", "[fs][log]") {
  const TemporaryDirectory directory;
  const std::string victim = directory.write("victim", "");
  std::filesystem::create_symlink(victim, directory / "link");
  CHECK(errno_of_open(directory / "link") == ELOOP);
  std::filesystem::create_hard_link(victim, directory / "name");
  CHECK(errno_of_open(directory / "name") == EMLINK);
  REQUIRE(::mkfifo((directory / "pipe").c_str(), 0600) == 0);
  CHECK(errno_of_open(directory / "pipe") != 0);
  CHECK(errno_of_open(directory / "none/log") == ENOENT);
  CHECK(errno_of_open(directory.path().string()) == EISDIR);
  CHECK(content_of(victim).empty());
}

TEST_CASE("a log file of another user is refused", "[fs][log]") {
  if (::geteuid() != 0) return;
  const TemporaryDirectory directory;
  const std::string path = directory.write("log", "");
  REQUIRE(::chown(path.c_str(), 4242, 4242) == 0);
  CHECK(errno_of_open(path) == EPERM);
}

TEST_CASE("after a log file was moved away, the next line makes a new one", "[fs][log]") {
  const TemporaryDirectory directory;
  const std::string path = directory / "log";
  const auto log = *LogFile::open(path);
  REQUIRE(log->append("old"));
  std::filesystem::rename(path, directory / "log.1");
  REQUIRE(log->append("new"));
  CHECK(content_of(directory / "log.1") == "old\n");
  CHECK(content_of(path) == "new\n");
  std::filesystem::remove(path);
  std::filesystem::create_symlink(directory / "log.1", path);
  CHECK_FALSE(log->append("planted"));
  CHECK(content_of(directory / "log.1") == "old\n");
}

TEST_CASE("in a directory that all users may write, a log takes no file that has bytes", "[fs][log]") {
  const TemporaryDirectory directory;
  const auto as_mode = [&](mode_t mode) { return ::chmod(directory.path().c_str(), mode) == 0; };
  const mode_t shared = GENERATE(0777, 0702);
  directory.write("script", "#!/bin/sh\n");
  directory.write("empty", "");
  const auto log = *LogFile::open(directory / "log");
  REQUIRE(log->append("one"));
  REQUIRE(as_mode(shared));
  CHECK(errno_of_open(directory / "script") == EPERM);
  CHECK(errno_of_open(directory / "empty") == 0);
  std::filesystem::rename(directory / "log", directory / "moved");
  std::filesystem::rename(directory / "script", directory / "log");
  CHECK_FALSE(log->append("two"));
  CHECK(content_of(directory / "log") == "#!/bin/sh\n");
  CHECK(content_of(directory / "moved") == "one\ntwo\n");
  REQUIRE(as_mode(0775));  // as /var/log of a distribution, and a directory under umask 002
  CHECK(errno_of_open(directory / "log") == 0);
  REQUIRE(as_mode(shared | S_ISVTX));  // as in /tmp
  CHECK(errno_of_open(directory / "log") == 0);
  if (::chown(directory.path().c_str(), 4242, 4242) != 0) return;
  REQUIRE(as_mode(0755));
  CHECK(errno_of_open(directory / "log") == EPERM);
}

TEST_CASE("a log stays in the directory in which it was opened", "[fs][log]") {
  const TemporaryDirectory directory;
  for (const char* name : {"logs", "private"}) std::filesystem::create_directory(directory / name);
  const auto log = *LogFile::open(directory / "logs/log");
  REQUIRE(log->append("one"));
  std::filesystem::rename(directory / "logs", directory / "moved");
  std::filesystem::create_symlink(directory / "private", directory / "logs");
  REQUIRE(log->append("two"));
  CHECK(content_of(directory / "moved/log") == "one\ntwo\n");
  std::filesystem::rename(directory / "moved/log", directory / "moved/log.1");
  REQUIRE(log->append("three"));
  CHECK(content_of(directory / "moved/log") == "three\n");
  CHECK(std::filesystem::is_empty(directory / "private"));
}

TEST_CASE("a log file on a full disk says later how many lines are missing", "[fs][log]") {
  const TemporaryDirectory directory;
  const std::string path = directory / "log";
  const auto log = *LogFile::open(path);
  REQUIRE(log->append("whole"));
  {
    const SizeLimit limit(8);
    CHECK_FALSE(log->append("cut here"));
    CHECK_FALSE(log->append("not written"));
  }
  REQUIRE(log->append("whole again"));
  CHECK(content_of(path) == "whole\ncu\n2 lines are missing here\nwhole again\n");
}
