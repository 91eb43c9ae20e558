// The kernels' loops over ranges that are larger than their grids. A large GPU has room for a grid that
// covers each range of the other tests.
#include <cuda_runtime_api.h>

#include <cstring>
#include <string>
#include <vector>

#include "tests/support/catch.h"
#include "tests/support/upload_model.h"
#include "tools/device/cuda_scope.h"
#include "tools/device/digest.h"
#include "tools/device/kernels.h"

using namespace stfs;
using namespace stfs::device;

namespace {

/// Managed memory: the host and the GPU both see it.
template <class Value>
class Managed {
 public:
  explicit Managed(std::size_t count) : count_(count) {
    REQUIRE(cudaMallocManaged(reinterpret_cast<void**>(&values_), count * sizeof(Value)) == cudaSuccess);
    std::memset(static_cast<void*>(values_), 0, count * sizeof(Value));
  }
  ~Managed() { cudaFree(values_); }
  Managed(const Managed&) = delete;
  Managed& operator=(const Managed&) = delete;
  Value* begin() { return values_; }
  std::string bytes() const { return {reinterpret_cast<const char*>(values_), count_ * sizeof(Value)}; }

 private:
  std::size_t count_;
  Value* values_ = nullptr;
};

const Device kFirst{.kind = Device::Kind::Cuda, .index = 0, .uuid = {}};

}  // namespace

TEST_CASE("a digest over more blocks than the grid has is that of the CPU", "[tools][upload][.gpu]") {
  const CudaScope here(kFirst);
  const unsigned most_blocks = GENERATE(1U, 2U, 3U, 64U);
  const std::uint64_t size_bytes = GENERATE(kDigestBlockBytes * 7, kDigestBlockBytes * 129 + 13);
  CAPTURE(most_blocks, size_bytes);
  const std::string bytes = test::pattern_bytes(size_bytes, 7);
  Managed<unsigned char> data(size_bytes);
  std::memcpy(data.begin(), bytes.data(), bytes.size());
  Managed<unsigned long long> sum(1);
  REQUIRE(start_digest(data.begin(), size_bytes, sum.begin(), nullptr, most_blocks) == cudaSuccess);
  REQUIRE(cudaDeviceSynchronize() == cudaSuccess);
  CHECK(digest_end(*sum.begin(), size_bytes) == digest_of(std::as_bytes(std::span(bytes))));
}

TEST_CASE("a conversion of more elements than the grid has threads is that of the CPU",
          "[tools][upload][.gpu]") {
  const CudaScope here(kFirst);
  const unsigned most_blocks = GENERATE(1U, 2U, 17U);
  constexpr std::size_t kCount = 100'003;
  std::string source = test::pattern_bytes(kCount * 4, 3);
  std::string wanted(kCount * 2, '\0');
  const std::uint64_t overflows = convert_elements(Dtype::F32, std::as_bytes(std::span(source)), Dtype::F16,
                                                   std::as_writable_bytes(std::span(wanted)));
  Managed<float> from(kCount);
  std::memcpy(from.begin(), source.data(), source.size());
  Managed<std::uint16_t> to(kCount);
  Managed<unsigned long long> counted(1);
  const FloatRange from_range{from.begin(), *float_format_of(Dtype::F32), 4};
  const FloatRange to_range{to.begin(), *float_format_of(Dtype::F16), 2};
  REQUIRE(start_conversion(from_range, to_range, kCount, counted.begin(), nullptr, most_blocks) ==
          cudaSuccess);
  REQUIRE(cudaDeviceSynchronize() == cudaSuccess);
  CHECK((to.bytes() == wanted));
  CHECK(*counted.begin() == overflows);
}
