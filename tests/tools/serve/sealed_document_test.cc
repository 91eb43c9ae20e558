// Documents for other processes are read whole, or refused.
#include "tools/serve/sealed_document.h"

#include <fcntl.h>
#include <sys/mman.h>

#include <array>

#include "tests/support/catch.h"

using namespace stfs;
using namespace stfs::serve;

namespace {

int errno_of(const UniqueFd& descriptor, std::uint64_t size_bytes) {
  const auto text = read_document(descriptor.get(), size_bytes);
  return text ? 0 : text.error().errno_value;
}

UniqueFd memory(std::string_view text, int seals) {
  UniqueFd descriptor(::memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  REQUIRE(::write(descriptor.get(), text.data(), text.size()) == static_cast<ssize_t>(text.size()));
  REQUIRE(::fcntl(descriptor.get(), F_ADD_SEALS, seals) == 0);
  return descriptor;
}

}  // namespace

TEST_CASE("a sealed document is read as it was written, and nobody can change it", "[tools][serve]") {
  const std::string text(100'000, 'x');
  const auto document = seal_document(text);
  REQUIRE(document);
  CHECK(read_document(document->get(), text.size()) == text);
  CHECK(::write(document->get(), "y", 1) == -1);
  CHECK(::ftruncate(document->get(), 1) == -1);
  CHECK(::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, document->get(), 0) == MAP_FAILED);
}

TEST_CASE("a document that is not sealed, too short or something else is refused", "[tools][serve]") {
  CHECK(errno_of(memory("text", F_SEAL_WRITE | F_SEAL_SHRINK), 4) == 0);
  CHECK(errno_of(memory("text", F_SEAL_WRITE | F_SEAL_SHRINK), 5) == EPROTO);
  CHECK(errno_of(memory("text", F_SEAL_WRITE), 4) == EPROTO);
  CHECK(errno_of(memory("text", F_SEAL_SHRINK), 4) == EPROTO);
  CHECK(errno_of(UniqueFd(::open("/dev/zero", O_RDONLY | O_CLOEXEC)), 4) == EPROTO);
  CHECK(errno_of(UniqueFd(::open("/proc/self/exe", O_RDONLY | O_CLOEXEC)), 4) == EPROTO);
  std::array<int, 2> ends{};
  REQUIRE(::pipe(ends.data()) == 0);
  const UniqueFd read_end(ends[0]);
  const UniqueFd write_end(ends[1]);
  CHECK(errno_of(read_end, 4) == EPROTO);
  CHECK(errno_of(UniqueFd(), 4) == EPROTO);
}
