// Tests which calls continue while a commit waits for the disk or for another process's lock.
#include <atomic>
#include <chrono>
#include <future>
#include <vector>

#include "core/journal/file_lock.h"
#include "tests/fs/descriptor.h"
#include "tests/fs/driven_model.h"
#include "tests/fs/transacted.h"
#include "tests/support/captured_stderr.h"
#include "tests/support/catch.h"
#include "tests/support/intercepted_storage.h"

using namespace stfs;
using namespace stfs::test;
using namespace std::chrono_literals;

namespace {

constexpr auto kForAHang = 20s;
const std::string kBefore(16384, 'o');
const std::string kAfter(16384, 'n');

/// A disk that is slow for one call of one kind, from `is_slow` until `may_go_on`.
class SlowDisk final : public Interceptor {
 public:
  Verdict before(const SeamCall& call) override {
    if (call.kind == FileCall::Lock) ++lock_attempts;
    if (call.kind != slow.kind || call.role != slow.role || !is_slow.exchange(false)) return {};
    is_at_it.set_value();
    may_go_on.get_future().wait();
    return {};
  }

  SeamCall slow{FileCall::Sync, FileRole::Archive};
  std::atomic<bool> is_slow = false;
  std::promise<void> is_at_it;
  std::promise<void> may_go_on;
  std::atomic<unsigned> lock_attempts = 0;
};

MountedModelOptions waits_for_a_hang() {
  MountedModelOptions options;
  options.commit.lock_patience = kForAHang;
  return options;
}

/// Another opener of the archive has locked the tensor "one".
struct LockedTensor {
  SlowDisk counting;
  InterceptedStorage storage{system_storage(), counting};
  DrivenFilesystem mount{
      {{"one", kBefore}, {"two", kBefore}, {"three", kBefore}}, waits_for_a_hang(), storage};
  std::unique_ptr<File> theirs = system_storage().open(mount.path(), Access::ReadWrite).value();
  ArchiveLocks held =
      ArchiveLocks::for_patch(*theirs, mount.path(), {{mount.offset_of("one") + 5000, 1}}, 0ms).value();

  /// Starts work that waits for the lock, and returns when the work has tried to take it.
  template <class Work>
  std::future<int> waiting(const Work& work) {
    counting.lock_attempts = 0;
    auto future = std::async(std::launch::async, [work] { return errno_of(work()); });
    while (counting.lock_attempts < 5) std::this_thread::sleep_for(1ms);
    return future;
  }
  [[nodiscard]] bool put_three() const {
    Descriptor other(mount, "three", O_WRONLY);
    return other.write(kAfter, 0) && other.close();
  }
};

/// Returns the result of work(), or nothing if work() does not return soon.
template <class Work>
auto soon(const Work& work) -> std::optional<decltype(work())> {
  auto result = std::make_shared<std::promise<decltype(work())>>();
  auto future = result->get_future();
  std::thread([work, result] { result->set_value(work()); }).detach();
  if (future.wait_for(kForAHang) != std::future_status::ready) return std::nullopt;
  return future.get();
}

}  // namespace

TEST_CASE("attributes and reads never wait for the disk of a commit", "[fs][filesystem][waiting]") {
  SlowDisk disk;
  disk.slow = GENERATE(
      SeamCall{FileCall::Sync, FileRole::Journal}, SeamCall{FileCall::Sync, FileRole::Archive},
      SeamCall{FileCall::Write, FileRole::Archive}, SeamCall{FileCall::SyncDirectory, FileRole::Directory});
  const int access = GENERATE(O_WRONLY, O_RDWR);
  INFO(name_of(disk.slow.kind) << " of the " << name_of(disk.slow.role) << ", access " << access);
  InterceptedStorage storage(system_storage(), disk);
  const DrivenFilesystem mount({{"one", kBefore}, {"two", kBefore}}, {}, storage);
  Descriptor writer(mount, "one", access);
  REQUIRE(writer.write(kAfter, 0));
  disk.is_slow = true;
  auto closing = std::async(std::launch::async, [&] { return errno_of(writer.flush()); });
  disk.is_at_it.get_future().wait();

  const bool is_committed = disk.slow.role == FileRole::Archive;
  const auto read = [&](std::string_view name) { return [&, name] { return mount.read(name).value(); }; };
  const auto size = [&] { return mount->attributes(mount.ino("one"))->st_size; };
  CHECK(soon(size) == 16384);
  CHECK(soon(read("one")) == (is_committed || access == O_RDWR ? kAfter : kBefore));
  CHECK(soon(read("two")) == kBefore);
  CHECK(soon([&] { return mount.attribute("one", "generation").has_value(); }) == true);
  disk.may_go_on.set_value();
  CHECK(closing.get() == 0);
  CHECK(mount.read("one") == kAfter);
  CHECK(mount.stored("one") == kAfter);
}

TEST_CASE("a part that was written shows among the old bytes while it is committed",
          "[fs][filesystem][waiting]") {
  SlowDisk disk;
  disk.slow =
      GENERATE(SeamCall{FileCall::Sync, FileRole::Journal}, SeamCall{FileCall::Write, FileRole::Archive});
  InterceptedStorage storage(system_storage(), disk);
  const DrivenFilesystem mount({{"one", kBefore}, {"two", kBefore}}, {}, storage);
  Descriptor writer(mount, "one", O_RDWR);
  REQUIRE(writer.write("patch", 9000));
  disk.is_slow = true;
  auto closing = std::async(std::launch::async, [&] { return errno_of(writer.flush()); });
  disk.is_at_it.get_future().wait();
  std::string expected = kBefore;
  expected.replace(9000, 5, "patch");
  CHECK(soon([&] { return mount.read("one").value(); }) == expected);
  disk.may_go_on.set_value();
  CHECK(closing.get() == 0);
  CHECK(mount.stored("one") == expected);
}

TEST_CASE("the size of a tensor that is being written is known without its lock",
          "[fs][filesystem][waiting]") {
  const DrivenFilesystem mount({{"one", kBefore}});
  Descriptor writer(mount, "one", O_RDWR | O_TRUNC);
  CHECK(mount->attributes(mount.ino("one"))->st_size == 0);
  REQUIRE(writer.write("12345", 0));
  CHECK(mount->attributes(mount.ino("one"))->st_size == 5);
  REQUIRE(writer.resize(3));
  const std::scoped_lock held(writer.file().content->mutex);
  CHECK(soon([&] { return mount->attributes(mount.ino("one"))->st_size; }) == 3);
}

TEST_CASE_METHOD(LockedTensor, "another process's lock on one tensor keeps nobody from committing another",
                 "[fs][filesystem][waiting]") {
  Descriptor writer(mount, "one", O_WRONLY);
  REQUIRE(writer.write(kAfter, 0));
  auto closing = waiting([&] { return writer.close(); });
  CHECK(soon([&] { return put_three(); }) == true);
  CHECK(mount.stored("three") == kAfter);
  CHECK(soon([&] { return mount.read("one").value(); }) == kBefore);
  CHECK(closing.wait_for(0s) == std::future_status::timeout);
  held.release();
  CHECK(closing.get() == 0);
  CHECK(mount.stored("one") == kAfter);
}

TEST_CASE("a lock that stays gives EBUSY when patience ends, with the holder and the time",
          "[fs][filesystem][waiting]") {
  const CapturedStderr captured;
  MountedModelOptions options;
  options.commit.lock_patience = 1100ms;
  const DrivenFilesystem mount({{"one", kBefore}}, options);
  auto theirs = system_storage().open(mount.path(), Access::ReadWrite).value();
  const auto held = ArchiveLocks::for_patch(*theirs, mount.path(), {{mount.offset_of("one"), 1}}, 0ms);
  Descriptor writer(mount, "one", O_WRONLY);
  REQUIRE(writer.write(kAfter, 0));
  const auto begin = std::chrono::steady_clock::now();
  CHECK(CommitOptions{}.lock_patience == 10s);
  const auto closed = writer.flush();
  CHECK(errno_of(closed) == EBUSY);
  CHECK(std::chrono::steady_clock::now() - begin >= 1100ms);
  CHECK(closed.error().message.find(fmt::format("process {} (", ::getpid())) != std::string::npos);
  CHECK(closed.error().message.find("holds a lock") != std::string::npos);
  CHECK(closed.error().message.find("for 1 s") != std::string::npos);
  CHECK(captured.contains(closed.error().message));
  CHECK(mount.stored("one") == kBefore);
}

TEST_CASE_METHOD(LockedTensor,
                 "a transaction that waits for a lock keeps nobody from committing, and goes on",
                 "[fs][filesystem][waiting]") {
  const Ino directory = mount->make_directory(kTransactions, "T")->st_ino;
  {
    Member member(mount, directory, "one");
    REQUIRE(member.write(kAfter, 0) == 0);
    REQUIRE(member.close() == 0);
  }
  auto renaming = waiting([&] { return mount->rename(kTransactions, "T", kCommitted, "T"); });
  CHECK(soon([&] { return put_three(); }) == true);
  CHECK(renaming.wait_for(0s) == std::future_status::timeout);
  held.release();
  CHECK(renaming.get() == 0);
  CHECK(mount.stored("one") == kAfter);
}

TEST_CASE("a commit to one shard waits for no other shard's; a transaction over both waits for its turn",
          "[fs][filesystem][waiting]") {
  SlowDisk disk;
  disk.slow =
      GENERATE(SeamCall{FileCall::Sync, FileRole::Journal}, SeamCall{FileCall::Sync, FileRole::Archive});
  InterceptedStorage storage(system_storage(), disk);
  const DrivenModel mount({}, storage);
  const Ino transactions = mount.ino("transactions", mount.ino(".safetensors"));
  const Ino committed = mount.ino("committed", mount.ino(".safetensors"));
  const Ino both = mount->make_directory(transactions, "T")->st_ino;
  REQUIRE(mount.overwrite(mount.ino("a.x", both), "aaaa"));
  REQUIRE(mount.overwrite(mount.ino("a.y", both), "yyy"));
  disk.is_slow = true;
  const Ino b = mount.ino("b");
  auto closing = std::async(std::launch::async, [&] { return errno_of(mount.overwrite(b, "bbbbbb")); });
  disk.is_at_it.get_future().wait();

  const auto other = soon([&] {
    const int written = errno_of(mount.overwrite(mount.ino("c"), "ccccc"));
    return written == 0 && mount->check_for_change(1).stale.what == Stale::What::Nothing;
  });
  CHECK(other == true);
  auto renaming = std::async(std::launch::async,
                             [&] { return errno_of(mount->rename(transactions, "T", committed, "T")); });
  CHECK(renaming.wait_for(50ms) == std::future_status::timeout);
  disk.may_go_on.set_value();
  CHECK(closing.get() == 0);
  CHECK(renaming.get() == 0);
  CHECK(mount.read("b") == "bbbbbb");
  CHECK(mount.read("a.x") == "aaaa");
  CHECK(mount.read("a.y") == "yyy");
}

namespace {

const std::string kLarge(6 << 20, 'l');
/// "near" shares a block with "large".
const Tensors kBesideLarge = {{"large", std::string(kLarge.size(), 'o')},
                              {"near", std::string(100, 'o')},
                              {"gone", std::string(9000, 'o')},
                              {"small", kBefore}};

int put(const DrivenFilesystem& mount, std::string_view name, std::string_view bytes) {
  Descriptor other(mount, name, O_WRONLY);
  const int written = errno_of(other.write(bytes, 0));
  return written == 0 ? errno_of(other.close()) : written;
}

}  // namespace

TEST_CASE("a small commit does not wait for a large one of another tensor, all other changes do",
          "[fs][filesystem][waiting]") {
  const CapturedStderr captured;
  SlowDisk disk;
  disk.slow = {FileCall::Sync, FileRole::Journal};
  InterceptedStorage storage(system_storage(), disk);
  const DrivenFilesystem mount(kBesideLarge, waits_for_a_hang(), storage);
  Descriptor writer(mount, "large", O_WRONLY);
  REQUIRE(writer.write(kLarge, 0));
  disk.is_slow = true;
  auto large = std::async(std::launch::async, [&] { return errno_of(writer.close()); });
  disk.is_at_it.get_future().wait();

  const auto later = [&](std::string_view name) {
    return std::async(std::launch::async, [&, name] { return put(mount, name, std::string(100, 'n')); });
  };
  std::vector<std::future<int>> waiting;
  waiting.push_back(later("near"));
  waiting.push_back(later("large"));
  waiting.push_back(
      std::async(std::launch::async, [&] { return errno_of(mount->remove_file(kRootIno, "gone")); }));
  const auto generation = [&] { return mount.attribute("small", "generation").value(); };
  for (const char byte : {'1', '2', '3', '4'}) {
    const std::string bytes(kBefore.size(), byte);
    CHECK(soon([&] { return put(mount, "small", bytes); }) == 0);
    CHECK(mount.read("small") == bytes);
    CHECK(mount.stored("small") == bytes);
    CHECK(generation() != generation());  // a commit is running
    CHECK(mount.read("large") == std::string(kLarge.size(), 'o'));
  }
  for (const auto& one : waiting) CHECK(one.wait_for(0s) == std::future_status::timeout);
  disk.may_go_on.set_value();
  CHECK(large.get() == 0);
  for (auto& one : waiting) CHECK(one.get() == 0);
  CHECK(mount.read("large") == std::string(100, 'n') + kLarge.substr(100));
  CHECK(mount.read("near") == std::string(100, 'n'));
  CHECK(mount.read("small") == std::string(kBefore.size(), '4'));
  CHECK_FALSE(captured.contains("another program"));
}

TEST_CASE("a small commit does not wait for a large transaction of another tensor",
          "[fs][filesystem][waiting]") {
  SlowDisk disk;
  disk.slow = {FileCall::Sync, FileRole::Journal};
  InterceptedStorage storage(system_storage(), disk);
  const DrivenFilesystem mount(kBesideLarge, waits_for_a_hang(), storage);
  const Ino directory = mount->make_directory(kTransactions, "T")->st_ino;
  {
    Member member(mount, directory, "large");
    REQUIRE(member.write(kLarge, 0) == 0);
    REQUIRE(member.close() == 0);
  }
  disk.is_slow = true;
  auto renaming = std::async(std::launch::async,
                             [&] { return errno_of(mount->rename(kTransactions, "T", kCommitted, "T")); });
  disk.is_at_it.get_future().wait();
  CHECK(soon([&] { return put(mount, "small", kAfter); }) == 0);
  CHECK(mount.stored("small") == kAfter);
  disk.may_go_on.set_value();
  CHECK(renaming.get() == 0);
  CHECK(mount.stored("large") == kLarge);
}
