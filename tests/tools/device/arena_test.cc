// The CPU's arenas have their whole memory, are private until they are shared, and are sealed after that.
#include "tools/device/arena.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>

#include "tests/support/catch.h"
#include "tools/device/backend.h"

using namespace stfs;
using namespace stfs::device;

namespace {

std::shared_ptr<Backend> cpu() {
  return Backend::open(Device{}).value();
}

}  // namespace

TEST_CASE("an arena is fresh, aligned memory of the size asked for", "[tools][upload]") {
  for (const bool is_shareable : {false, true}) {
    for (const std::uint64_t size_bytes : {0U, 1U, 4096U, 5U << 20U}) {
      const auto arena = cpu()->allocate(size_bytes, is_shareable).value();
      CHECK(arena->size_bytes() == size_bytes);
      CHECK(arena->host_bytes().size() == size_bytes);
      CHECK(arena->host_bytes().data() == arena->address());
      CHECK(reinterpret_cast<std::uintptr_t>(arena->address()) % kTensorAlignment == 0);
      for (const std::byte byte : arena->host_bytes()) REQUIRE(byte == std::byte{0});
      CHECK_FALSE(arena->is_read_only());
    }
  }
}

TEST_CASE("what does not fit is refused with both figures", "[tools][upload]") {
  const auto arena = cpu()->allocate(std::uint64_t{1} << 50U, false);
  REQUIRE_FALSE(arena);
  CHECK(arena.error().errno_value == ENOMEM);
  CHECK(arena.error().message.starts_with("cpu: 1.0 PiB are needed and "));
  CHECK(arena.error().message.ends_with(" are free"));
}

TEST_CASE("a shared arena has the bytes that were written, and nobody can write any more",
          "[tools][upload]") {
  const auto backend = cpu();
  const auto arena = backend->allocate(3U << 20U, true).value();
  std::memset(arena->host_bytes().data(), 0x5A, arena->host_bytes().size());
  void* const address = arena->address();
  auto descriptor = arena->share();
  REQUIRE(descriptor);
  CHECK(arena->is_read_only());
  CHECK(arena->address() == address);
  CHECK(arena->host_bytes()[12345] == std::byte{0x5A});

  CHECK(::pwrite(descriptor->get(), "x", 1, 0) == -1);
  CHECK(::ftruncate(descriptor->get(), 1) == -1);
  CHECK(::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor->get(), 0) == MAP_FAILED);
  CHECK(::fcntl(descriptor->get(), F_ADD_SEALS, F_SEAL_FUTURE_WRITE) == -1);
  CHECK(arena->share());

  const auto adopted = backend->adopt(std::move(*descriptor), 3U << 20U).value();
  CHECK(adopted->is_read_only());
  CHECK(std::memcmp(adopted->address(), address, 3U << 20U) == 0);
  CHECK(adopted->share().error().errno_value == ENOTSUP);
  CHECK_FALSE(backend->open_queue().value()->copy(std::as_bytes(std::span("x", 1)), *adopted, 0));
}

TEST_CASE("an arena that was not asked to be shareable is not shared", "[tools][upload]") {
  CHECK(cpu()->allocate(10, false).value()->share().error().errno_value == ENOTSUP);
}

TEST_CASE("memory that is not sealed, too short or none at all is not adopted", "[tools][upload]") {
  const auto adopt = [](int fd, std::uint64_t size_bytes) {
    return cpu()->adopt(UniqueFd(fd), size_bytes).error().errno_value;
  };
  const auto memory = [](int seals) {
    const int fd = ::memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    REQUIRE(::ftruncate(fd, 4096) == 0);
    REQUIRE(::fcntl(fd, F_ADD_SEALS, seals) == 0);
    return fd;
  };
  CHECK(adopt(memory(0), 4096) == EINVAL);
  CHECK(adopt(memory(F_SEAL_GROW | F_SEAL_SHRINK), 4096) == EINVAL);
  CHECK(adopt(memory(F_SEAL_GROW | F_SEAL_WRITE), 4096) == EINVAL);
  CHECK(adopt(memory(F_SEAL_GROW | F_SEAL_SHRINK | F_SEAL_WRITE), 4097) == EINVAL);
  CHECK(adopt(::open("/dev/null", O_RDONLY), 0) == EINVAL);
}

TEST_CASE("a queue works in order and beside its caller", "[tools][upload]") {
  const auto backend = cpu();
  const auto arena = backend->allocate(1 << 20, false).value();
  const auto staging = backend->allocate_staging(1 << 20).value();
  const auto queue = backend->open_queue().value();
  for (int round = 1; round <= 50; ++round) {
    std::memset(staging->bytes().data(), round, staging->bytes().size());
    REQUIRE(queue->copy(staging->bytes(), *arena, 0));
    const auto mark = queue->mark().value();
    REQUIRE(queue->wait_for(mark));
    CHECK(queue->is_passed(mark).value());
    REQUIRE(arena->host_bytes().back() == static_cast<std::byte>(round));
  }
  CHECK_FALSE(queue->copy(staging->bytes(), *arena, 1));
  CHECK_FALSE(queue->copy(staging->bytes(), *arena, ~std::uint64_t{0}));
}
