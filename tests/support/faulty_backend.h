// Devices that fail, stall or return wrong bytes on demand: the CPU's backend behind a filter. By default the
// backend denies that it is the host, so that all bytes pass through the ring.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "tools/device/backend.h"

namespace stfs::test {

/// The faults to inject, and counters of calls. Any thread may use them.
struct DeviceFaults {
  std::atomic<int> copies_until_failure = -1;  // -1: none fails
  std::atomic<int> marks_until_failure = -1;
  std::atomic<int> digests_until_failure = -1;
  std::atomic<int> copies_until_flip = -1;  // a byte of that copy arrives changed
  std::atomic<bool> is_stalled = false;     // marks are not passed
  std::atomic<bool> fails_queues = false;
  std::atomic<bool> fails_staging = false;
  std::atomic<std::uint64_t> free_bytes = ~std::uint64_t{0};
  std::atomic<int> copies = 0;
  std::atomic<int> digests = 0;
  std::atomic<int> queues = 0;
  std::atomic<int> arenas = 0;  // alive
  std::atomic<std::uint64_t> staging_bytes = 0;
};

class FaultyArena final : public device::Arena {
 public:
  FaultyArena(std::shared_ptr<device::Arena> inner, std::shared_ptr<DeviceFaults> faults,
              device::Device device)
      : inner_(std::move(inner)), faults_(std::move(faults)), device_(std::move(device)) {
    ++faults_->arenas;
  }
  ~FaultyArena() override { --faults_->arenas; }
  FaultyArena(const FaultyArena&) = delete;
  FaultyArena& operator=(const FaultyArena&) = delete;

  const device::Device& device() const override { return device_; }
  std::uint64_t size_bytes() const override { return inner_->size_bytes(); }
  void* address() const override { return inner_->address(); }
  std::span<std::byte> host_bytes() override { return inner_->host_bytes(); }
  bool is_read_only() const override { return inner_->is_read_only(); }
  Result<UniqueFd> share() override { return inner_->share(); }

 private:
  std::shared_ptr<device::Arena> inner_;
  std::shared_ptr<DeviceFaults> faults_;
  device::Device device_;
};

class FaultyQueue final : public device::Queue {
 public:
  FaultyQueue(std::unique_ptr<device::Queue> inner, std::shared_ptr<DeviceFaults> faults)
      : faults_(std::move(faults)), inner_(std::move(inner)) {}

  Result<void> copy(std::span<const std::byte> from, device::Arena& to, std::uint64_t to_offset) override {
    ++faults_->copies;
    if (faults_->copies_until_failure >= 0 && faults_->copies_until_failure-- == 0) {
      return fail(ErrorCode::System, EIO, "device: copy: broken");
    }
    auto copied = inner_->copy(from, to, to_offset);
    if (faults_->copies_until_flip >= 0 && faults_->copies_until_flip-- == 0) {
      static_cast<void>(inner_->wait_for(inner_->mark().value()));
      to.host_bytes()[to_offset + from.size() / 2] ^= std::byte{4};
    }
    return copied;
  }
  Result<void> convert(device::Arena& from, ByteRange range, Dtype from_dtype, device::Arena& to,
                       std::uint64_t to_offset, Dtype to_dtype) override {
    return inner_->convert(from, range, from_dtype, to, to_offset, to_dtype);
  }
  Result<void> digest(device::Arena& arena, ByteRange range, std::uint64_t* to) override {
    ++faults_->digests;
    if (faults_->digests_until_failure >= 0 && faults_->digests_until_failure-- == 0) {
      return fail(ErrorCode::System, EIO, "device: digest: broken");
    }
    return inner_->digest(arena, range, to);
  }
  Result<Mark> mark() override { return inner_->mark(); }
  Result<bool> is_passed(Mark mark) override {
    if (auto failed = judge(); !failed) return pass_on(std::move(failed));
    if (faults_->is_stalled) return false;
    return inner_->is_passed(mark);
  }
  Result<void> wait_for(Mark mark) override {
    if (auto failed = judge(); !failed) return failed;
    if (faults_->is_stalled) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      return {};
    }
    return inner_->wait_for(mark);
  }
  Result<std::uint64_t> overflows() override { return inner_->overflows(); }

 private:
  Result<void> judge() {
    if (faults_->marks_until_failure >= 0 && faults_->marks_until_failure-- == 0) {
      return fail(ErrorCode::System, EIO, "device: wait: broken");
    }
    return {};
  }

  std::shared_ptr<DeviceFaults> faults_;
  std::unique_ptr<device::Queue> inner_;
};

class FaultyBackend final : public device::Backend {
 public:
  FaultyBackend(device::Device device, std::shared_ptr<DeviceFaults> faults, bool is_host)
      : device_(std::move(device)),
        faults_(std::move(faults)),
        is_host_(is_host),
        inner_(device::Backend::open(device::Device{}).value()) {}

  const device::Device& device() const override { return device_; }
  bool is_host() const override { return is_host_; }
  Result<device::MemoryInfo> memory() override {
    auto memory = inner_->memory();
    if (memory) memory->free_bytes = std::min<std::uint64_t>(memory->free_bytes, faults_->free_bytes);
    return memory;
  }
  Result<std::shared_ptr<device::Arena>> allocate(std::uint64_t size_bytes, bool is_shareable) override {
    auto arena = inner_->allocate(size_bytes, is_shareable);
    if (!arena) return arena;
    return std::make_shared<FaultyArena>(std::move(*arena), faults_, device_);
  }
  Result<std::unique_ptr<device::Staging>> allocate_staging(std::uint64_t size_bytes) override {
    if (faults_->fails_staging) return fail(ErrorCode::OutOfMemory, ENOMEM, "device: page-lock: no memory");
    faults_->staging_bytes = size_bytes;
    return inner_->allocate_staging(size_bytes);
  }
  Result<std::unique_ptr<device::Queue>> open_queue() override {
    if (faults_->fails_queues) return fail(ErrorCode::System, EIO, "device: open a stream: broken");
    auto queue = inner_->open_queue();
    if (!queue) return queue;
    ++faults_->queues;
    return std::make_unique<FaultyQueue>(std::move(*queue), faults_);
  }
  Result<std::shared_ptr<device::Arena>> adopt(UniqueFd descriptor, std::uint64_t size_bytes) override {
    return inner_->adopt(std::move(descriptor), size_bytes);
  }

 private:
  device::Device device_;
  std::shared_ptr<DeviceFaults> faults_;
  bool is_host_;
  std::shared_ptr<device::Backend> inner_;
};

}  // namespace stfs::test
