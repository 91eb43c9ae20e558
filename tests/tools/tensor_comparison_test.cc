// Pairs of tensors: parts, threads, and files that end too early.
#include "tools/compare/tensor_comparison.h"

#include <filesystem>
#include <sstream>

#include "tests/support/archive_bytes.h"
#include "tests/support/catch.h"
#include "tests/support/plain.h"
#include "tests/support/temporary_directory.h"

using namespace stfs;
using tools::compare_tensors;
using tools::TensorComparison;
using tools::TensorPair;

namespace {

/// Makes more than two parts, and is no multiple of a piece.
constexpr std::uint64_t kLargeElements = (13U << 20U) + 12'345;

/// "small" of 2 elements, "large", "last" of 3 elements, all I32.
std::string three_tensors(std::uint32_t seed) {
  const std::uint64_t large_end = 8 + 4 * kLargeElements;
  const std::string header =
      R"({"small":{"dtype":"I32","shape":[2],"data_offsets":[0,8]},"large":{"dtype":"I32","shape":[)" +
      std::to_string(kLargeElements) + R"(],"data_offsets":[8,)" + std::to_string(large_end) +
      R"(]},"last":{"dtype":"I32","shape":[3],"data_offsets":[)" + std::to_string(large_end) + "," +
      std::to_string(large_end + 12) + "]}}";
  std::string data(static_cast<std::size_t>(large_end) + 12, '\0');
  for (std::size_t at = 0; at < data.size(); ++at) data[at] = static_cast<char>(at * seed >> 7U);
  return test::archive_bytes(header, data);
}

struct Models {
  Models() {
    const std::string bytes = three_tensors(2654435761U);
    a = open("a.safetensors", bytes);
    data_at = bytes.size() - 8 - 4 * kLargeElements - 12;
  }
  std::unique_ptr<stfs::Model> open(const std::string& name, const std::string& bytes) {
    auto model = stfs::Model::open(directory.write(name, bytes), {});
    if (!model) throw std::runtime_error(model.error().message);
    return std::move(*model);
  }
  [[nodiscard]] std::vector<TensorComparison> compare(const stfs::Model& with, unsigned threads,
                                                      bool has_statistics = true) const {
    const std::vector<TensorPair> pairs = {{0, 0}, {1, 1}, {2, 2}};
    auto found = compare_tensors({*a, with}, pairs, {.threads = threads, .has_statistics = has_statistics});
    if (!found) throw std::runtime_error(found.error().message);
    return *found;
  }

  test::TemporaryDirectory directory;
  std::unique_ptr<stfs::Model> a;
  std::size_t data_at = 0;
};

}  // namespace

TEST_CASE("one byte that differs is found in any part of a tensor", "[tools][diff]") {
  Models models;
  const std::string original = test::content_of(models.a->path());
  const std::size_t large_end = models.data_at + 8 + 4 * kLargeElements;
  for (const std::size_t at : {models.data_at + 8, models.data_at + (25U << 20U), large_end - 1}) {
    std::string bytes = original;
    bytes[at] = static_cast<char>(bytes[at] ^ 1);
    const auto b = models.open("b.safetensors", bytes);
    for (const unsigned threads : {1U, 3U}) {
      const auto found = models.compare(*b, threads);
      CHECK_FALSE(found[0].is_different);
      CHECK_FALSE(found[0].statistics);
      CHECK_FALSE(found[2].is_different);
      REQUIRE(found[1].is_different);
      REQUIRE(found[1].statistics);
      CHECK(found[1].statistics->different == 1);
      CHECK(found[1].statistics->squares_a > 0);
      const auto brief = models.compare(*b, threads, false);
      CHECK(brief[1].is_different);
      CHECK_FALSE(brief[1].statistics);
      CHECK_FALSE(brief[2].is_different);
    }
  }
}

TEST_CASE("statistics do not depend on the number of threads", "[tools][diff]") {
  Models models;
  const auto b = models.open("b.safetensors", three_tensors(2246822519U));
  const auto one = models.compare(*b, 1);
  for (const unsigned threads : {2U, 7U}) {
    const auto several = models.compare(*b, threads);
    for (std::size_t at = 0; at < one.size(); ++at) {
      REQUIRE(one[at].statistics);
      REQUIRE(several[at].statistics);
      CHECK(one[at].statistics->different == several[at].statistics->different);
      CHECK(one[at].statistics->squares_difference == several[at].statistics->squares_difference);
      CHECK(one[at].statistics->squares_b == several[at].statistics->squares_b);
      CHECK(one[at].statistics->product == several[at].statistics->product);
    }
  }
}

TEST_CASE("a file that ends too early is a failure of its tensors alone", "[tools][diff]") {
  Models models;
  const auto b = models.open("b.safetensors", test::content_of(models.a->path()));
  std::filesystem::resize_file(b->path(), models.data_at + (30U << 20U));
  for (const bool is_b : {true, false}) {
    for (const unsigned threads : {1U, 3U}) {
      const auto found = models.compare(*b, threads);
      CHECK_FALSE(found[0].failure);
      CHECK_FALSE(found[0].is_different);
      for (const std::size_t at : {1U, 2U}) {
        REQUIRE(found[at].failure);
        CHECK(found[at].failure->errno_value == EIO);
        CHECK(found[at].failure->code == ErrorCode::ArchiveCut);
        CHECK(found[at].is_failure_of_b == is_b);
        CHECK(test::contains(found[at].failure->message, is_b ? "b.safetensors" : "a.safetensors"));
        CHECK_FALSE(found[at].is_different);
        CHECK_FALSE(found[at].statistics);
      }
      // The message has the first missing byte, whichever thread was faster.
      CHECK(test::contains(found[1].failure->message, "truncated: the file ends at byte " +
                                                          std::to_string(models.data_at + (30U << 20U))));
    }
    std::filesystem::resize_file(models.a->path(), models.data_at + (30U << 20U));
  }
}
