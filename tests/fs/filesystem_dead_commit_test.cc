// Tests the content that a mount shows during another process's commit, and after that process died in it.
#include <fcntl.h>

#include <filesystem>
#include <thread>

#include "core/journal/file_lock.h"
#include "tests/fs/driven_filesystem.h"
#include "tests/support/catch.h"
#include "tests/support/planted_journal.h"

using namespace stfs;
using namespace stfs::test;

namespace {

constexpr std::uint64_t kAt = 4096;
const std::string kWhole(12288, 'A');

/// A mount, and another process that commits one block of 'j' to the tensor.
struct Committed {
  explicit Committed(bool is_read_only) : mount({{"w", kWhole}}, options(is_read_only)) {}
  static MountedModelOptions options(bool is_read_only) {
    MountedModelOptions its;
    its.is_read_only = is_read_only;
    return its;
  }
  /// Returns the tensor with this number of new bytes in the block.
  [[nodiscard]] std::string content(std::size_t new_bytes) const {
    std::string whole = kWhole;
    whole.replace(kAt - mount.offset_of("w"), new_bytes, std::string(new_bytes, 'j'));
    return whole;
  }

  DrivenFilesystem mount;
  CapturedStderr captured;
  std::unique_ptr<Journal> journal = plant_living_journal(mount.path(), kAt, std::string(4096, 'j'));
};

}  // namespace

TEST_CASE("a commit whose process has died is shown whole", "[fs][filesystem][dead]") {
  const bool is_read_only = GENERATE(false, true);
  const bool has_begun = GENERATE(false, true);
  CAPTURE(is_read_only, has_begun);
  Committed other(is_read_only);
  const DrivenFilesystem& mount = other.mount;
  const std::uint64_t before = mount.generation("w");
  if (has_begun) mount.overwrite(kAt, std::string(1000, 'j'));
  other.journal.reset();
  CHECK(mount.read("w") == other.content(has_begun ? 1000 : 0));  // not noticed yet
  CHECK(mount.notices_change());
  CHECK(mount.read("w") == other.content(4096));
  CHECK(mount.generation("w") > before);
  CHECK(other.captured.contains("finished the commit of a process that has died"));
  CHECK((mount.stored("w") == other.content(4096)) == !is_read_only);
  CHECK_FALSE(mount.notices_change());
  if (!is_read_only) return;
  // Another process recovers the archive.
  auto archive = Archive::open(mount.path(), Access::ReadWrite);
  REQUIRE(archive);
  CHECK(mount.notices_change());
  CHECK(mount.read("w") == other.content(4096));
  CHECK(mount.stored("w") == other.content(4096));
}

TEST_CASE("while another process is in a commit, a generation is never the same twice",
          "[fs][filesystem][dead]") {
  Committed other(GENERATE(false, true));
  const DrivenFilesystem& mount = other.mount;
  CHECK(mount.generation("w") == mount.generation("w"));
  {
    auto file = system_storage().open(mount.path(), Access::ReadWrite);
    REQUIRE(file);
    auto locks = ArchiveLocks::for_patch(**file, mount.path(), {{kAt, 4096}}, std::chrono::milliseconds(0));
    REQUIRE(locks);
    std::uint64_t last = mount.generation("w");
    CHECK(mount.generation("w") > last);
    mount.overwrite(kAt, std::string(1000, 'j'));
    CHECK(mount.notices_change());
    CHECK_FALSE(mount.notices_change());  // the same bytes
    CHECK(mount->check_for_change().is_unsettled);
    last = mount.generation("w");
    CHECK(mount.generation("w") > last);
    CHECK(mount.read("w") == other.content(1000));
    mount.overwrite(kAt, std::string(4096, 'j'));
  }
  // The commit has ended, and no check has noticed that yet.
  const std::uint64_t last = mount.generation("w");
  CHECK(mount.generation("w") > last);
  CHECK(mount.notices_change());
  CHECK(mount.generation("w") > last);
  CHECK(mount.generation("w") == mount.generation("w"));
}
