// core/archive/archive_reader.h: an archive is read without a file, and pinned bytes stay.
#include "core/archive/archive_reader.h"

#include <algorithm>
#include <atomic>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/archive_bytes.h"
#include "tests/support/catch.h"
#include "tests/support/plain.h"

using namespace stfs;
using namespace stfs::test;

namespace {

constexpr std::string_view kPath = "memory:model";

class MemoryBytes final : public ByteSource {
 public:
  explicit MemoryBytes(std::string text) : text_(std::move(text)) {}
  [[nodiscard]] Result<void> read(std::span<std::byte> to, std::uint64_t offset) const override {
    if (auto there = check({offset, to.size()}); !there) return there;
    std::ranges::copy(bytes_of(text_).subspan(offset, to.size()), to.begin());
    return {};
  }
  [[nodiscard]] Result<MappedSpan> map(ByteRange) const override { return MappedSpan(); }
  [[nodiscard]] MappedSpan span(ByteRange) const override { return {}; }
  [[nodiscard]] bool copy_from(ByteRange, const Copy&) const override { return false; }
  [[nodiscard]] Result<void> check(ByteRange range) const override {
    return range.end() <= text_.size() ? Result<void>() : fail(ErrorCode::ArchiveCut, EIO, "cut short");
  }
  [[nodiscard]] bool is_mapped() const override { return false; }
  [[nodiscard]] std::string_view why_not_mapped() const override { return "memory"; }
  [[nodiscard]] std::uint64_t size_bytes() const { return text_.size(); }

 private:
  const std::string text_;
};

/// A store without files, locks and journals.
class MemoryReader final : public ArchiveReader {
 public:
  MemoryReader(const std::string& header, const std::string& data)
      : ArchiveReader(kPath), bytes_(std::make_shared<MemoryBytes>(archive_bytes(header, data))) {
    change_header(header);
  }
  void change_header(const std::string& header) {
    ArchiveVersion next;
    next.header = std::make_shared<ArchiveHeader>(
        ArchiveHeader{.content = parse_header(header, bytes_->size_bytes() - 8 - header.size()).value(),
                      .size_bytes = header.size(),
                      .hash = 0});
    next.bytes = bytes_;
    set_version(std::make_shared<ArchiveVersion>(std::move(next)));
  }

  [[nodiscard]] const ByteSource& bytes() const override { return *bytes_; }
  [[nodiscard]] Result<Change> check_for_change() override { return Change{}; }
  Result<void> adopt_identity() override { return {}; }
  [[nodiscard]] Result<FileStatus> status() const override { return FileStatus{}; }
  [[nodiscard]] FileIdentity identity() const override { return {}; }

 private:
  const std::shared_ptr<MemoryBytes> bytes_;
};

const std::string kNamed = R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}})";
const std::string kRenamed = R"({"b":{"dtype":"I8","shape":[4],"data_offsets":[0,4]}})";

}  // namespace

TEST_CASE("an archive is read from a store without files", "[core][archive_reader]") {
  const MemoryReader reader(kNamed, "1234");
  std::vector<std::byte> scratch;
  const ByteRange tensor = reader.file_range(reader.tensors()[0].data);
  CHECK(text_of(reader.read(tensor, scratch).value()) == "1234");
  CHECK(reader.map(tensor)->empty());
  CHECK_FALSE(reader.copy_from(tensor, [](std::span<const std::byte>) {}));
  CHECK(reader.is_as_in_file());
  CHECK(reader.is_as_known());
  CHECK(reader.local_file() == nullptr);
  const auto gone = reader.read({tensor.offset + 1, 4}, scratch);
  CHECK(text_of(gone.error()) == "ArchiveCut: memory:model: cut short");
}

TEST_CASE("a version stays as it is while it is pinned, and goes with its last pin",
          "[core][archive_reader]") {
  MemoryReader reader(kNamed, "1234");
  auto pinned = reader.version();
  reader.change_header(kRenamed);
  CHECK(pinned->tensors()[0].name == "a");
  CHECK(reader.tensors()[0].name == "b");
  std::weak_ptr<const ArchiveVersion> last = pinned;
  auto other = pinned;
  pinned.reset();
  CHECK_FALSE(last.expired());
  other.reset();
  CHECK(last.expired());
}

TEST_CASE("readers pin whole versions while the header changes", "[core][archive_reader]") {
  MemoryReader reader(kNamed, "1234");
  std::atomic<bool> is_over = false;
  std::atomic<int> halves = 0;
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 3; ++thread) {
    threads.emplace_back([&] {
      while (!is_over) {
        const auto pinned = reader.version();
        const Tensor tensor = pinned->tensors()[0];
        if ((tensor.name == "a") != (tensor.dtype == Dtype::U8)) ++halves;
      }
    });
  }
  for (int round = 0; round < 500; ++round) reader.change_header(round % 2 == 0 ? kRenamed : kNamed);
  is_over = true;
  for (std::thread& thread : threads) thread.join();
  CHECK(halves == 0);
}
