// Which refused archives a pass over a directory skips, and when a pass ends early.
#include "fs/model/refused_headers.h"

#include <chrono>
#include <cstdint>

#include "tests/support/catch.h"

using namespace std::chrono_literals;
using stfs::Error;
using stfs::ErrorCode;
using stfs::RefusedHeaders;

namespace {

constexpr std::int64_t kChanged = 1000;  // seconds since the epoch
const auto kLater = std::chrono::system_clock::time_point(std::chrono::seconds(kChanged) + 3s);

struct stat file_of(ino_t inode) {
  struct stat file {};
  file.st_dev = 1;
  file.st_ino = inode;
  file.st_size = 100;
  file.st_mode = S_IFREG | 0644;
  file.st_ctim.tv_sec = kChanged;
  return file;
}

Error error_of(ErrorCode code) {
  return {code, EINVAL, "why"};
}

}  // namespace

TEST_CASE("a refused header is not parsed again, until its file changes", "[fs][refused]") {
  RefusedHeaders refused;
  refused.begin_pass();
  const struct stat file = file_of(7);
  CHECK_FALSE(refused.has(file));
  refused.note(file, error_of(ErrorCode::InvalidHeader), 1ms, kLater);
  CHECK(refused.has(file));  // another name, in the same pass
  for (int pass = 0; pass < 3; ++pass) {
    refused.begin_pass();
    CHECK(refused.has(file));
  }
  CHECK_FALSE(refused.has(file_of(8)));
  for (const auto change :
       {+[](struct stat& st) { ++st.st_size; }, +[](struct stat& st) { ++st.st_ctim.tv_nsec; },
        +[](struct stat& st) { ++st.st_mtim.tv_nsec; }, +[](struct stat& st) { ++st.st_dev; }}) {
    struct stat changed = file;
    change(changed);
    CHECK_FALSE(refused.has(changed));
  }
  refused.begin_pass();
  refused.begin_pass();  // the pass before has not found the file
  CHECK_FALSE(refused.has(file));
}

TEST_CASE("a file that may change without another time is looked at again", "[fs][refused]") {
  RefusedHeaders refused;
  refused.begin_pass();
  const auto at_once = std::chrono::system_clock::time_point(std::chrono::seconds(kChanged) + 1999ms);
  refused.note(file_of(1), error_of(ErrorCode::InvalidHeader), 1ms, at_once);
  refused.note(file_of(2), error_of(ErrorCode::InvalidHeader), 1ms, at_once + 1ms);
  CHECK((refused.has(file_of(1)) && refused.has(file_of(2))));
  refused.begin_pass();
  CHECK_FALSE(refused.has(file_of(1)));
  CHECK(refused.has(file_of(2)));
}

TEST_CASE("only a header is remembered: other errors end without a change of the file", "[fs][refused]") {
  RefusedHeaders refused;
  refused.begin_pass();
  refused.note(file_of(1), error_of(ErrorCode::DuplicateKey), 1ms, kLater);
  refused.note(file_of(2), error_of(ErrorCode::System), 1ms, kLater);
  struct stat link = file_of(3);
  link.st_mode = S_IFLNK | 0777;
  refused.note(link, error_of(ErrorCode::InvalidHeader), 1ms, kLater);
  CHECK(refused.has(file_of(1)));
  CHECK_FALSE(refused.has(file_of(2)));
  CHECK_FALSE(refused.has(link));
}

TEST_CASE("a pass ends after a second of refusals", "[fs][refused]") {
  RefusedHeaders refused;
  refused.begin_pass();
  refused.note(file_of(1), error_of(ErrorCode::InvalidHeader), 600ms, kLater);
  CHECK_FALSE(refused.has_spent_all());
  refused.note(file_of(2), error_of(ErrorCode::Busy), 400ms, kLater);
  CHECK(refused.has_spent_all());
  refused.begin_pass();
  CHECK_FALSE(refused.has_spent_all());
}
