// Plans whole blocks from staged bytes, and compares them with a plain model of the archive's bytes.
#include "core/commit/commit_plan.h"

#include <map>

#include "core/journal/journal_apply.h"
#include "tests/support/catch.h"
#include "tests/support/choices.h"
#include "tests/support/temporary_directory.h"

using namespace stfs;
using namespace stfs::test;

namespace {

/// An archive's file, adjacent tensors in it, and one journal that stages their bytes.
class Planned {
 public:
  Planned(RandomChoices& choices, std::uint64_t size_bytes) : model_(size_bytes, '\0') {
    for (char& c : model_) c = static_cast<char>(1 + choices.below(255));
    path_ = directory_.write("m", model_);
    archive_ = system_storage().open(path_, Access::ReadWrite).value();
    journal_ = Journal::create(system_storage(), path_, *archive_).value();
  }

  void write(ByteRange tensor, std::uint64_t offset, const std::string& bytes) {
    auto& stage = stage_of(tensor);
    if (!stage.write(std::as_bytes(std::span(bytes)), offset)) throw std::runtime_error("write");
    model_.replace(tensor.offset + offset, bytes.size(), bytes);
  }
  /// Cuts a tensor and lengthens it again: the bytes behind the cut become zeros.
  void cut(ByteRange tensor, std::uint64_t size_bytes) {
    auto& stage = stage_of(tensor);
    if (!stage.resize(size_bytes) || !stage.resize(tensor.size_bytes)) throw std::runtime_error("resize");
    const std::uint64_t rest = tensor.size_bytes - size_bytes;
    model_.replace(tensor.offset + size_bytes, rest, rest, '\0');
  }

  std::vector<JournalRange> plan() {
    std::vector<Staging*> stages;
    for (const auto& [offset, stage] : stages_) stages.push_back(stage.get());
    const ArchiveStamp before{.size_bytes = model_.size()};
    auto plan = CommitPlan::make(before, archive_->most_range_bytes(), stages).value();
    if (!plan.complete_blocks(*archive_, *journal_)) throw std::runtime_error("complete");
    return std::move(plan).take_operations();
  }
  bool applies_to_model(const std::vector<JournalRange>& ranges) {
    return apply_ranges(*archive_, journal_->file(), ranges) && content_of(path_) == model_;
  }
  [[nodiscard]] std::uint64_t size_bytes() const { return model_.size(); }

 private:
  Staging& stage_of(ByteRange tensor) {
    auto& stage = stages_[tensor.offset];
    if (!stage) stage = std::make_unique<Staging>(*journal_, tensor);
    return *stage;
  }

  TemporaryDirectory directory_;
  std::string model_;
  std::string path_;
  std::unique_ptr<File> archive_;
  std::unique_ptr<Journal> journal_;
  std::map<std::uint64_t, std::unique_ptr<Staging>> stages_;
};

void check_shape(const std::vector<JournalRange>& ranges, std::uint64_t archive_size_bytes) {
  std::uint64_t last_end = 0;
  for (const JournalRange& range : ranges) {
    REQUIRE_FALSE(range.archive.empty());
    REQUIRE(range.archive.offset % kBlockBytes == 0);
    REQUIRE(range.journal_offset % kBlockBytes == 0);
    REQUIRE(range.journal_offset >= kBlockBytes);
    REQUIRE(range.archive.offset >= last_end);
    last_end = range.archive.end();
    REQUIRE((last_end % kBlockBytes == 0 || last_end == archive_size_bytes));
    REQUIRE(last_end <= archive_size_bytes);
  }
}

/// Lengths that are easy to get wrong: a few bytes, about a block, several.
std::uint64_t some_length(RandomChoices& choices) {
  switch (choices.below(4)) {
    case 0: return 1 + choices.below(16);
    case 1: return 1 + choices.below(1000);
    case 2: return kBlockBytes - 8 + choices.below(16);
    default: return 1 + choices.below(4 * kBlockBytes);
  }
}

std::string some_bytes(RandomChoices& choices, std::uint64_t size_bytes) {
  std::string bytes(size_bytes, '\0');
  for (char& c : bytes) c = static_cast<char>(1 + choices.below(255));
  return bytes;
}

}  // namespace

TEST_CASE("a piece in the middle of a block is completed from the archive", "[core][commit_plan]") {
  RandomChoices choices(1);
  Planned planned(choices, 2 * kBlockBytes);
  planned.write({100, 50}, 10, "new");
  const auto ranges = planned.plan();
  REQUIRE(ranges.size() == 1);
  CHECK(ranges[0].archive == ByteRange{0, kBlockBytes});
  CHECK(planned.applies_to_model(ranges));
}

TEST_CASE("several pieces of one tensor in one block are one block, and none is taken for a gap",
          "[core][commit_plan]") {
  RandomChoices choices(2);
  Planned planned(choices, 3 * kBlockBytes);
  planned.write({100, 9000}, 10, "one");
  planned.write({100, 9000}, 20, "two");
  planned.write({100, 9000}, 3990, std::string(20, 'x'));  // over the block's end
  planned.write({100, 9000}, 4020, "three");
  const auto ranges = planned.plan();
  check_shape(ranges, planned.size_bytes());
  CHECK(planned.applies_to_model(ranges));
}

TEST_CASE("tiny tensors that share a block keep what each of them staged", "[core][commit_plan]") {
  RandomChoices choices(3);
  Planned planned(choices, kBlockBytes + 30);
  for (std::uint64_t at = 0; at < 20; ++at) planned.write({8 + at * 3, 3}, 0, some_bytes(choices, 3));
  const auto ranges = planned.plan();
  REQUIRE(ranges.size() == 1);
  CHECK(planned.applies_to_model(ranges));
}

TEST_CASE("the last block ends with the archive", "[core][commit_plan]") {
  RandomChoices choices(4);
  Planned planned(choices, kBlockBytes + 30);
  planned.write({kBlockBytes + 10, 20}, 19, "z");
  const auto ranges = planned.plan();
  REQUIRE(ranges.size() == 1);
  CHECK(ranges[0].archive == ByteRange{kBlockBytes, 30});
  CHECK(planned.applies_to_model(ranges));
}

TEST_CASE("nothing staged is no block", "[core][commit_plan]") {
  RandomChoices choices(5);
  Planned planned(choices, kBlockBytes);
  CHECK(planned.plan().empty());
}

TEST_CASE("random stages of neighbouring tensors leave what a plain model leaves", "[core][commit_plan]") {
  for (std::uint64_t seed = 1; seed <= 400; ++seed) {
    CAPTURE(seed);
    RandomChoices choices(seed);
    std::vector<ByteRange> tensors;
    std::uint64_t end = 8 + choices.below(2 * kBlockBytes);
    for (std::size_t count = 1 + choices.below(12); tensors.size() < count;) {
      tensors.push_back({end, some_length(choices)});
      end += tensors.back().size_bytes;
    }
    if (choices.one_in(3)) end = round_up_to_block(end);  // no tensor is staged there
    Planned planned(choices, end);
    for (std::size_t step = choices.below(40); step > 0; --step) {
      const ByteRange tensor = tensors[choices.below(tensors.size())];
      const std::uint64_t offset = choices.one_in(3) ? 0 : choices.below(tensor.size_bytes);
      const std::uint64_t rest = tensor.size_bytes - offset;
      if (choices.one_in(8)) {
        planned.cut(tensor, offset);
      } else {
        planned.write(tensor, offset, some_bytes(choices, std::min(rest, some_length(choices))));
      }
    }
    const auto ranges = planned.plan();
    check_shape(ranges, planned.size_bytes());
    REQUIRE(planned.applies_to_model(ranges));
    // A commit that failed is planned again.
    REQUIRE(planned.applies_to_model(planned.plan()));
  }
}
