// Many readers or one writer have the lock. A waiting writer comes before readers that come later.
#include "core/base/reader_writer_lock.h"

#include <atomic>
#include <chrono>
#include <mutex>
#include <shared_mutex>
#include <thread>
#include <vector>

#include "tests/support/catch.h"

using stfs::ReaderWriterLock;

TEST_CASE("a writer is alone: what it changes in two steps nobody sees half changed",
          "[core][reader_writer_lock]") {
  ReaderWriterLock lock;
  int first = 0;
  int second = 0;
  std::atomic<int> halves = 0;
  std::atomic<bool> is_over = false;
  std::vector<std::thread> readers;
  for (int reader = 0; reader < 3; ++reader) {
    readers.emplace_back([&] {
      while (!is_over) {
        const std::shared_lock held(lock);
        if (first != second) ++halves;
      }
    });
  }
  std::vector<std::thread> writers;
  for (int writer = 0; writer < 2; ++writer) {
    writers.emplace_back([&] {
      for (int round = 0; round < 2000; ++round) {
        const std::unique_lock held(lock);
        ++first;
        ++second;
      }
    });
  }
  for (std::thread& writer : writers) writer.join();
  is_over = true;
  for (std::thread& reader : readers) reader.join();
  CHECK(halves == 0);
  CHECK(first == 4000);
  CHECK(second == 4000);
}

TEST_CASE("readers share", "[core][reader_writer_lock]") {
  ReaderWriterLock lock;
  const std::shared_lock held(lock);
  bool has_shared = false;
  std::thread([&] {
    const std::shared_lock too(lock);
    has_shared = true;
  }).join();
  CHECK(has_shared);
}

TEST_CASE("readers that overlap each other do not keep a writer out", "[core][reader_writer_lock]") {
  ReaderWriterLock lock;
  std::atomic<bool> is_over = false;
  std::atomic<int> reads = 0;
  std::vector<std::thread> readers;
  for (int reader = 0; reader < 4; ++reader) {
    readers.emplace_back([&] {
      while (!is_over) {
        const std::shared_lock held(lock);
        ++reads;
        std::this_thread::sleep_for(std::chrono::milliseconds(2));
      }
    });
  }
  while (reads < 8) std::this_thread::yield();
  std::atomic<int> written = 0;
  std::thread writer([&] {
    for (int round = 0; round < 5; ++round) {
      const std::unique_lock held(lock);
      ++written;
    }
  });
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (written < 5 && std::chrono::steady_clock::now() < deadline)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  const bool got_in = written == 5;
  is_over = true;
  for (std::thread& reader : readers) reader.join();
  writer.join();
  CHECK(got_in);
}
