// The messages of a tool while it closes the gaps of an edit, and the cases in which it leaves gaps.
#include "tools/cli/gaps.h"

#include <atomic>
#include <chrono>
#include <sstream>
#include <thread>

#include "core/archive/archive_writer.h"
#include "core/model/model_edit.h"
#include "tests/support/catch.h"
#include "tests/support/intercepted_storage.h"
#include "tests/support/plain.h"
#include "tests/support/temporary_directory.h"

using namespace stfs;
using namespace stfs::test;
using namespace stfs::tools;

namespace {

constexpr std::size_t kGapBytes = 300'000;

/// The first change of a file takes so long that a tool reports its progress.
class LateDisk final : public Interceptor {
 public:
  Verdict before(const SeamCall& call) override {
    const bool changes = call.kind == FileCall::Write || call.kind == FileCall::Clone ||
                         call.kind == FileCall::CreateUnnamed || call.kind == FileCall::Reserve;
    if (changes && is_slow.exchange(false)) std::this_thread::sleep_for(std::chrono::milliseconds(1100));
    return {};
  }
  std::atomic<bool> is_slow = false;
};

/// An archive with the gap of a deleted tensor.
struct WithGap {
  WithGap() {
    const std::string path = directory / "m.safetensors";
    std::vector<TensorSpec> specs;
    for (const char* name : {"a", "b", "c"}) specs.push_back({name, Dtype::U8, {kGapBytes}});
    auto writer = ArchiveWriter::create(path, specs, {}, true).value();
    for (std::size_t at = 0; at < specs.size(); ++at)
      REQUIRE(writer.append(bytes_of(std::string(kGapBytes, 'x'))));
    REQUIRE(writer.finish());
    model = Model::open(path, {.access = Access::ReadWrite, .storage = &storage}).value();
    auto edit = ModelEdit::of(*model).value();
    REQUIRE(edit.remove("b"));
    REQUIRE(edit.begin(true));
    REQUIRE(edit.commit(CommitOptions{}));
  }
  LeftSpace close(bool keeps_space, bool is_terminal) {
    Streams streams{.in = in, .out = out, .err = err, .err_is_terminal = is_terminal, .verb = "rm"};
    return close_gaps(*model, {0}, keeps_space, {}, streams);
  }

  TemporaryDirectory directory;
  LateDisk disk;
  InterceptedStorage storage{system_storage(), disk};
  std::unique_ptr<Model> model;
  std::istringstream in;
  std::ostringstream out;
  std::ostringstream err;
};

}  // namespace

TEST_CASE("a terminal shows how far the closing of gaps is", "[tools][gaps]") {
  WithGap archive;
  archive.disk.is_slow = true;
  CHECK(archive.close(false, true).moved_bytes == kGapBytes);
  CHECK(archive.err.str().find("stfs rm: ") != std::string::npos);
  CHECK(archive.err.str().find(" of 293.0 KiB, ") != std::string::npos);
  CHECK(archive.err.str().ends_with("\r\x1b[K"));
}

TEST_CASE("without a terminal the closing of gaps says nothing", "[tools][gaps]") {
  WithGap archive;
  archive.disk.is_slow = true;
  CHECK(archive.close(false, false).filler_bytes == 0);
  CHECK(archive.err.str().empty());
}

TEST_CASE("where the space is kept, the command that gives it back is named", "[tools][gaps]") {
  WithGap archive;
  const LeftSpace left = archive.close(true, false);
  CHECK(left.moved_bytes == 0);
  CHECK(left.filler_bytes == kGapBytes);
  CHECK(archive.err.str().find("--keep-space was given. `stfs compact ") != std::string::npos);
}
