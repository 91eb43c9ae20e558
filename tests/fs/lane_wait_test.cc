// Two mounts of one model: no commit of either mount waits for a lane journal that only the end of another
// commit can settle.
#include <chrono>
#include <future>
#include <string_view>

#include "tests/fs/driven_model.h"
#include "tests/support/catch.h"

using namespace stfs;
using namespace stfs::test;

namespace {

MountedModelOptions patient() {
  MountedModelOptions options;
  options.commit.lock_patience = std::chrono::seconds(2);
  return options;
}

/// These mounts have no janitor that tidies, as during a commit.
struct TwoMounts {
  DrivenModel first{patient()};
  MountedModel second{Model::open(first.directory().path(), {.access = Access::ReadWrite}).value(),
                      patient()};

  [[nodiscard]] static Result<Stale> put(MountedModel& mount, Ino ino, std::string_view bytes) {
    const auto file = mount.open(ino, O_WRONLY, 1);
    if (!file) return tl::unexpected(file.error());
    auto written = mount.write(**file, bytes_of(bytes), 0, 1);
    auto closed = written ? mount.flush(**file, 1, 1) : written;
    static_cast<void>(mount.release(*file));
    return closed;
  }
  [[nodiscard]] Result<Stale> put_first(std::string_view name, std::string_view bytes) {
    return put(*first, first.ino(name), bytes);
  }
  [[nodiscard]] Result<Stale> put_second(std::string_view name, std::string_view bytes) {
    return put(second, first.ino(name), bytes);
  }
  /// Commits three times. The record of the last commit stays in a lane journal.
  void commit_in_series(MountedModel& mount, std::string_view name, std::string_view bytes) {
    for (int times = 0; times < 3; ++times) REQUIRE(put(mount, first.ino(name), bytes));
  }
};

}  // namespace

TEST_CASE_METHOD(TwoMounts, "a commit through a file of its own settles the journals of the other shards",
                 "[fs][model][journal]") {
  commit_in_series(second, "a.y", "222");
  REQUIRE(put_second("a.x", "2222"));  // the first one to that shard
  CHECK(put_first("c", "11111"));
  CHECK(first.read("a.y") == "222");
}

TEST_CASE_METHOD(TwoMounts, "two mounts that wait for each other's lane journals settle both",
                 "[fs][model][journal]") {
  commit_in_series(*first, "a.y", "111");
  commit_in_series(second, "a.x", "2222");
  auto other = std::async(std::launch::async, [&] { return put_second("a.y", "222"); });
  CHECK(put_first("a.x", "1111"));
  CHECK(other.get());
  CHECK(first.read("a.x") == "1111");
  CHECK(first.read("a.y") == "222");
}

TEST_CASE_METHOD(TwoMounts, "a transaction over shards does not wait for a journal whose owner waits for it",
                 "[fs][model][journal]") {
  commit_in_series(second, "a.y", "222");
  const Ino views = first.ino(".safetensors");
  const Ino pending = first->make_directory(first.ino("transactions", views), "both").value().st_ino;
  REQUIRE(first.overwrite(first.ino("b", pending), "bbbbbb"));
  REQUIRE(first.overwrite(first.ino("c", pending), "ccccc"));
  auto other = std::async(std::launch::async, [&] { return put_second("a.x", "2222"); });
  CHECK(first->rename(first.ino("transactions", views), "both", first.ino("committed", views), "both"));
  CHECK(other.get());
  CHECK(first.read("b") == "bbbbbb");
  CHECK(first.read("c") == "ccccc");
}
