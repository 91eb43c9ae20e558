// Measures the speed of copies alone, from page-locked memory to a device. rows_upload.py compares an upload
// with it. Prints bytes per second.
//
//   upload_ceiling DEVICE
#include <fmt/format.h>

#include <array>
#include <chrono>
#include <cstdio>
#include <memory>

#include "tools/device/backend.h"

using namespace stfs;
using namespace stfs::device;

namespace {

constexpr std::uint64_t kPieceBytes = 2U << 20U;
constexpr std::uint64_t kRingBytes = 32U << 20U;  // as much as an upload's slots
constexpr std::uint64_t kMeasuredBytes = 256U << 20U;

using Queues = std::array<std::unique_ptr<Queue>, 2>;

Result<void> wait_for_all(const Queues& queues) {
  for (const auto& queue : queues) {
    const auto mark = queue->mark();
    if (!mark) return tl::unexpected(mark.error());
    if (auto passed = queue->wait_for(*mark); !passed) return passed;
  }
  return {};
}

Result<void> copy_pieces(const Queues& queues, Staging& from, Arena& to, std::uint64_t size_bytes) {
  for (std::uint64_t at = 0; at < size_bytes; at += kPieceBytes) {
    const std::uint64_t offset = at % kRingBytes;
    const auto piece = from.bytes().subspan(static_cast<std::size_t>(offset), kPieceBytes);
    if (auto copied = queues[at / kPieceBytes % queues.size()]->copy(piece, to, offset); !copied)
      return copied;
  }
  return wait_for_all(queues);
}

Result<double> bytes_per_second(Backend& backend) {
  auto staging = backend.allocate_staging(kRingBytes);
  if (!staging) return pass_on(std::move(staging));
  auto to = backend.allocate(kRingBytes, false);
  if (!to) return pass_on(std::move(to));
  Queues queues;
  for (auto& queue : queues) {
    auto opened = backend.open_queue();
    if (!opened) return pass_on(std::move(opened));
    queue = std::move(*opened);
  }
  if (auto warm = copy_pieces(queues, **staging, **to, kRingBytes); !warm) return pass_on(std::move(warm));
  const auto begin = std::chrono::steady_clock::now();
  if (auto done = copy_pieces(queues, **staging, **to, kMeasuredBytes); !done)
    return pass_on(std::move(done));
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
  return static_cast<double>(kMeasuredBytes) / seconds.count();
}

Result<double> measure(const char* name) {
  const auto device = parse_device(name);
  if (!device) return tl::unexpected(device.error());
  const auto backend = Backend::open(*device);
  if (!backend) return tl::unexpected(backend.error());
  return bytes_per_second(**backend);
}

}  // namespace

int main(int count, char** arguments) {
  if (count != 2) {
    std::fputs("usage: upload_ceiling DEVICE\n", stderr);
    return 2;
  }
  const auto speed = measure(arguments[1]);
  if (!speed) {
    fmt::print(stderr, "upload_ceiling: {}\n", speed.error().message);
    return 1;
  }
  fmt::print("{:.0f}\n", *speed);
  return 0;
}
