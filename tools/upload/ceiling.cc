// The measuring.
#include "tools/upload/ceiling.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstring>
#include <system_error>
#include <thread>

#include "tools/upload/backend.h"

namespace stfs::upload {
namespace {

constexpr std::uint64_t kLeastBytes = 64U << 20U;
constexpr std::uint64_t kMostBytes = 256U << 20U;
constexpr std::uint64_t kPieceBytes = 2U << 20U;
constexpr std::uint64_t kRingBytes = 32U << 20U;

double seconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

std::optional<double> measure_host(Backend& backend, Arena& from, unsigned readers) {
  const std::uint64_t size_bytes = std::min(from.size_bytes(), kMostBytes);
  auto to = backend.allocate(size_bytes, false);
  if (!to) return std::nullopt;
  const auto begin = std::chrono::steady_clock::now();
  std::atomic<std::uint64_t> next = 0;
  const auto copy = [&] {
    for (std::uint64_t at = next.fetch_add(kPieceBytes); at < size_bytes; at = next.fetch_add(kPieceBytes)) {
      std::memcpy((*to)->host_bytes().data() + at, from.host_bytes().data() + at,
                  static_cast<std::size_t>(std::min(kPieceBytes, size_bytes - at)));
    }
  };
  std::vector<std::thread> threads;
  try {
    while (threads.size() + 1 < readers) threads.emplace_back(copy);
  } catch (const std::system_error&) {
    // Fewer threads, then.
  }
  copy();
  for (std::thread& thread : threads) thread.join();
  return static_cast<double>(size_bytes) / seconds_since(begin);
}

Result<double> measure_bus(Backend& backend) {
  auto staging = backend.allocate_staging(kRingBytes);
  if (!staging) return pass_on(std::move(staging));
  auto to = backend.allocate(kRingBytes, false);
  if (!to) return pass_on(std::move(to));
  std::array<std::unique_ptr<Queue>, 2> queues;
  for (auto& queue : queues) {
    auto opened = backend.open_queue();
    if (!opened) return pass_on(std::move(opened));
    queue = std::move(*opened);
  }
  std::chrono::steady_clock::time_point begin;
  // The first round warms up.
  for (std::uint64_t at = 0; at < kRingBytes + kMostBytes; at += kPieceBytes) {
    if (at == kRingBytes) begin = std::chrono::steady_clock::now();
    const std::uint64_t offset = at % kRingBytes;
    Queue& queue = *queues[at / kPieceBytes % queues.size()];
    const auto piece = (*staging)->bytes().subspan(static_cast<std::size_t>(offset), kPieceBytes);
    if (auto copied = queue.copy(piece, **to, offset); !copied) return pass_on(std::move(copied));
    if (at + kPieceBytes != kRingBytes && at + kPieceBytes != kRingBytes + kMostBytes) continue;
    for (const auto& each : queues) {
      const auto mark = each->mark();
      if (!mark) return tl::unexpected(mark.error());
      if (auto passed = each->wait_for(*mark); !passed) return pass_on(std::move(passed));
    }
  }
  return static_cast<double>(kMostBytes) / seconds_since(begin);
}

}  // namespace

std::optional<double> measure_ceiling(const Resident& resident, unsigned readers) {
  std::optional<double> slowest;
  for (const auto& arena : resident.arenas) {
    if (arena->size_bytes() < kLeastBytes) continue;
    auto backend = Backend::open(arena->device());
    if (!backend) continue;
    std::optional<double> speed;
    if ((*backend)->is_host()) {
      speed = measure_host(**backend, *arena, readers);
    } else if (auto bus = measure_bus(**backend)) {
      speed = *bus;
    }
    if (speed && (!slowest || *speed < *slowest)) slowest = speed;
  }
  return slowest;
}

}  // namespace stfs::upload
