// Any thread may call any function. Run these tests under ThreadSanitizer.
#include <atomic>
#include <chrono>
#include <future>
#include <thread>

#include "tests/fs/descriptor.h"
#include "tests/fs/driven_model.h"
#include "tests/support/captured_stderr.h"
#include "tests/support/catch.h"
#include "tests/support/intercepted_storage.h"

using namespace stfs;
using namespace stfs::test;

namespace {

constexpr int kRounds = 60;
constexpr std::size_t kSizeBytes = 8192;

bool is_uniform(std::string_view content) {
  return content.find_first_not_of(content.front()) == std::string_view::npos;
}

void run_all(std::vector<std::function<void()>> jobs) {
  std::vector<std::thread> threads;
  threads.reserve(jobs.size());
  for (auto& job : jobs) threads.emplace_back(std::move(job));
  for (std::thread& thread : threads) thread.join();
}

}  // namespace

TEST_CASE("many writers of one tensor leave one writer's content", "[fs][filesystem][concurrency]") {
  const DrivenFilesystem mount({{"one", std::string(kSizeBytes, '-')}});
  std::atomic<int> failures = 0;
  const auto write = [&](Owner owner, char fill) {
    for (int round = 0; round < kRounds; ++round) {
      const Process self{.owner = owner, .pid = static_cast<pid_t>(1'000'000'000 + owner)};
      Descriptor writer(mount, "one", O_WRONLY | O_TRUNC, self);
      if (!writer.write(std::string(kSizeBytes / 2, fill), 0)) ++failures;
      if (!writer.write(std::string(kSizeBytes / 2, fill), kSizeBytes / 2)) ++failures;
      if (!writer.close()) ++failures;
    }
  };
  run_all({[&] { write(1, 'a'); }, [&] { write(2, 'b'); }, [&] { write(3, 'c'); }});
  CHECK(failures == 0);
  CHECK(is_uniform(mount.stored("one")));
  CHECK(mount.stored("one").front() != '-');
}

TEST_CASE("writers of different tensors do not disturb each other", "[fs][filesystem][concurrency]") {
  // There are more tensors than locks, so that two tensors share a lock.
  Tensors tensors;
  for (int at = 0; at < 130; ++at) tensors.emplace_back(fmt::format("t{}", at), std::string(64, '-'));
  const DrivenFilesystem mount(tensors);
  std::atomic<int> failures = 0;
  const auto write = [&](int first) {
    for (int at = first; at < 130; at += 2) {
      Descriptor writer(mount, fmt::format("t{}", at), O_WRONLY);
      if (!writer.write(std::string(64, static_cast<char>('0' + at % 64)), 0) || !writer.close()) ++failures;
    }
  };
  run_all({[&] { write(0); }, [&] { write(1); }});
  CHECK(failures == 0);
  for (int at = 0; at < 130; ++at)
    CHECK(mount.stored(fmt::format("t{}", at)) == std::string(64, static_cast<char>('0' + at % 64)));
}

TEST_CASE("shared descriptors opened and closed at once agree on one pending content",
          "[fs][filesystem][concurrency]") {
  const DrivenFilesystem mount({{"one", std::string(kSizeBytes, '-')}});
  std::atomic<int> failures = 0;
  const auto write = [&](Owner owner, std::uint64_t offset) {
    for (int round = 0; round < kRounds; ++round) {
      Descriptor writer(mount, "one", O_RDWR, {.owner = owner, .pid = ::getpid()});
      if (!writer.write(std::string(16, static_cast<char>('a' + round % 26)), offset)) ++failures;
      const auto read = mount->read(mount.ino("one"), offset, 16);
      if (!read || !is_uniform(text_of(read->copy().value()))) ++failures;
      if (!writer.close()) ++failures;
    }
  };
  run_all({[&] { write(1, 0); }, [&] { write(2, 4000); }, [&] { write(3, kSizeBytes - 16); }});
  CHECK(failures == 0);
  const std::string last(16, static_cast<char>('a' + (kRounds - 1) % 26));
  CHECK(mount.stored("one").substr(0, 16) == last);
  CHECK(mount.stored("one").substr(4000, 16) == last);
  CHECK(mount.stored("one").substr(kSizeBytes - 16) == last);
}

TEST_CASE("attributes, checksums, listings and looks for change go on beside the commits",
          "[fs][filesystem][concurrency]") {
  const DrivenFilesystem mount({{"one", std::string(kSizeBytes, 'a')}, {"two", "unchanged"}});
  const CapturedStderr captured;
  std::atomic<bool> is_over = false;
  std::atomic<int> failures = 0;
  const auto until_over = [&](const std::function<bool()>& works) {
    return [&, works] {
      while (!is_over) {
        if (!works()) ++failures;
      }
    };
  };
  std::uint64_t newest = 0;
  run_all({
      [&] {
        for (int round = 0; round < kRounds; ++round) {
          Descriptor writer(mount, "one", round % 2 == 0 ? O_WRONLY : O_RDWR);
          if (!writer.write(std::string(kSizeBytes, static_cast<char>('b' + round % 25)), 0)) ++failures;
          if (!writer.close()) ++failures;
        }
        is_over = true;
      },
      until_over([&] {
        const std::uint64_t generation = mount.generation("one");
        const bool grows = generation >= newest;
        newest = generation;
        return grows;
      }),
      until_over([&] {
        return mount.attribute("one", "checksum").has_value() &&
               mount->attributes(mount.ino("one"))->st_size == kSizeBytes;
      }),
      until_over([&] {
        mount->set_mtime(mount.ino("two"), {1, 1});
        return mount->resize_by_name(mount.ino("two"), 9, 1).has_value() && mount.read("two") == "unchanged";
      }),
      until_over([&] {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
        return !mount.notices_change();
      }),
  });
  CHECK(failures == 0);
}

TEST_CASE("commits to two shards, and transactions over both, go on beside each other",
          "[fs][filesystem][concurrency]") {
  const CapturedStderr captured;
  const DrivenModel mount;
  const Ino transactions = mount.ino("transactions", mount.ino(".safetensors"));
  const Ino committed = mount.ino("committed", mount.ino(".safetensors"));
  std::atomic<bool> is_over = false;
  std::atomic<int> failures = 0;
  const auto overwrites = [&](const char* name, std::size_t size_bytes) {
    return [&, name, size_bytes] {
      for (int round = 0; round < kRounds; ++round) {
        if (!mount.overwrite(mount.ino(name), std::string(size_bytes, static_cast<char>('a' + round % 26))))
          ++failures;
      }
    };
  };
  run_all({
      overwrites("b", 6),
      overwrites("c", 5),
      [&] {
        for (int round = 0; round < kRounds; ++round) {
          const std::string name = fmt::format("T{}", round);
          const Ino both = mount->make_directory(transactions, name)->st_ino;
          const char letter = static_cast<char>('a' + round % 26);
          if (!mount.overwrite(mount.ino("a.x", both), std::string(4, letter))) ++failures;
          if (!mount.overwrite(mount.ino("a.y", both), std::string(3, letter))) ++failures;
          if (!mount->rename(transactions, name, committed, name)) ++failures;
          if (mount.read("a.x") != std::string(4, letter) || mount.read("a.y") != std::string(3, letter))
            ++failures;
        }
        is_over = true;
      },
      [&] {
        while (!is_over) {
          mount->tidy();
          for (const std::uint32_t shard : {0, 1}) {
            if (mount->check_for_change(shard).stale.what != Stale::What::Nothing) ++failures;
          }
          std::this_thread::sleep_for(std::chrono::milliseconds(1));
        }
      },
  });
  CHECK(failures == 0);
  CHECK(mount.read("b") == std::string(6, static_cast<char>('a' + (kRounds - 1) % 26)));
  mount->end();
}

namespace {

/// Fails the first write into a journal once it is armed, but not before another write was accepted. That
/// other write is slow.
class FailsUnderAnother final : public Interceptor {
 public:
  Verdict before(const SeamCall& call) override {
    if (!is_armed || call.kind != FileCall::Write || call.role != FileRole::Journal) return {};
    if (writes_++ == 0) {
      fails_now.set_value();
      other_is_accepted.get_future().wait();
      std::this_thread::sleep_for(std::chrono::milliseconds(50));  // until it waits for the journal
      return {.kind = Verdict::Kind::Fail, .errno_value = EIO};
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    other_was_written = true;
    return {};
  }

  std::atomic<bool> is_armed = false;
  std::promise<void> fails_now;
  std::promise<void> other_is_accepted;
  std::atomic<bool> other_was_written = false;

 private:
  std::atomic<unsigned> writes_ = 0;
};

}  // namespace

TEST_CASE("a write that fails drops the content only when those beside it are back",
          "[fs][filesystem][concurrency]") {
  const CapturedStderr captured;
  FailsUnderAnother interceptor;
  InterceptedStorage storage(system_storage(), interceptor);
  const DrivenFilesystem mount({{"one", std::string(kSizeBytes, '-')}}, {}, storage);
  Descriptor writer(mount, "one", O_WRONLY | O_TRUNC);
  // The write is smaller than a block. No hashes are kept, so a write into the journal contains only bytes.
  const std::string part(64, 'n');
  interceptor.is_armed = true;
  bool came_back_last = false;
  auto failing = std::async(std::launch::async, [&] {
    const auto written = mount->write(writer.file(), bytes_of(part), 0, 1, [] {});
    came_back_last = interceptor.other_was_written;
    return errno_of(written);
  });
  interceptor.fails_now.get_future().wait();
  CHECK(
      mount->write(writer.file(), bytes_of(part), 64, 1, [&] { interceptor.other_is_accepted.set_value(); }));
  CHECK(failing.get() == EIO);
  CHECK(came_back_last);
  CHECK(errno_of(writer.write(part, 128)) == EIO);
  CHECK(errno_of(writer.close()) == EIO);
  CHECK(mount.stored("one") == std::string(kSizeBytes, '-'));
}
