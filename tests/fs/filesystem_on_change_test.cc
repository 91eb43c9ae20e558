// -o on_change=fail: all content of a file is of one version, or there is an error.
#include <fcntl.h>
#include <sys/stat.h>

#include <functional>

#include "fs/mount/source.h"
#include "tests/fs/driven_filesystem.h"
#include "tests/support/captured_stderr.h"
#include "tests/support/catch.h"
#include "tests/support/intercepted_storage.h"
#include "tests/support/planted_journal.h"

using namespace stfs;
using namespace stfs::test;

namespace {

MountedModelOptions failing_on_change() {
  MountedModelOptions options;
  options.is_read_only = options.fails_on_change = true;
  return options;
}

struct MountedFailing {
  DrivenFilesystem mount{kTwoTensors, failing_on_change()};
  CapturedStderr captured;

  [[nodiscard]] Ino hidden(std::initializer_list<std::string_view> path) const {
    Ino at = mount.ino(".safetensors");
    for (const std::string_view name : path) at = mount.ino(name, at);
    return at;
  }
};

/// Runs a function once, before the next call of one kind.
class Once : public Interceptor {
 public:
  Verdict before(const SeamCall& call) override {
    if (call.kind == kind && call.role == FileRole::Archive && run) std::exchange(run, nullptr)();
    return {};
  }
  FileCall kind = FileCall::Status;
  std::function<void()> run;
};

}  // namespace

TEST_CASE_METHOD(MountedFailing, "after another program has written, every file gives ESTALE",
                 "[fs][filesystem][on_change]") {
  const std::vector<Ino> files = {mount.ino("first"),
                                  mount.ino("second"),
                                  hidden({"npy", "first.npy"}),
                                  hidden({"slice", "first[2:4]"}),
                                  hidden({"slice", "first[::3].npy"}),
                                  hidden({"archive.safetensors"})};
  for (const Ino file : files) CHECK(mount->read(file, 0, 1 << 20));
  mount.overwrite(mount.offset_of("first"), "foreign");
  for (const Ino file : files) CHECK(errno_of(mount->read(file, 0, 1 << 20)) == ESTALE);
  CHECK(mount->read(files[0], 0, 1 << 20).error().message ==
        mount.path() + ": another program has changed it: open the file again");
  CHECK(mount->attributes(files[0]));
  const auto change = mount->check_for_change();
  CHECK(change.is_outdated);
  CHECK(change.stale.what == Stale::What::Nothing);  // what caches hold is of one version
  CHECK(mount->is_changed());
  for (const Ino file : files) CHECK(errno_of(mount->read(file, 0, 1 << 20)) == ESTALE);
}

TEST_CASE_METHOD(MountedFailing, "a time that is set back hides no change that was noticed",
                 "[fs][filesystem][on_change]") {
  struct stat before {};
  REQUIRE(::stat(mount.path().c_str(), &before) == 0);
  mount.overwrite(mount.offset_of("first"), "foreign");
  if (GENERATE(false, true)) {
    CHECK(mount->check_for_change().is_outdated);
  } else {
    CHECK(errno_of(mount.read("second")) == ESTALE);
  }
  const timespec times[2] = {{0, UTIME_OMIT}, before.st_mtim};
  REQUIRE(::utimensat(AT_FDCWD, mount.path().c_str(), times, 0) == 0);
  CHECK(errno_of(mount.read("first")) == ESTALE);
}

TEST_CASE_METHOD(MountedFailing, "a file that was replaced is read to its end",
                 "[fs][filesystem][on_change]") {
  const Ino first = mount.ino("first");
  std::filesystem::rename(mount.directory().write("new", archive_of({{"first", kNew}})), mount.path());
  CHECK(mount->check_for_change().is_outdated);
  CHECK_FALSE(mount->is_changed());
  CHECK(text_of(mount->read(first, 0, 100).value().copy().value()) == kOld);
}

TEST_CASE("what is written while a read runs is not mixed with what was there",
          "[fs][filesystem][on_change]") {
  const TemporaryDirectory directory;
  const std::string path = directory.write("m.safetensors", archive_of(kTwoTensors));
  Once once;
  InterceptedStorage storage(system_storage(), once);
  auto archive = Archive::open(path, Access::ReadOnly, storage, Io::Pread);
  REQUIRE(archive);
  const MountedModel filesystem(std::move(*archive), failing_on_change());
  const Ino first = filesystem.lookup(kRootIno, "first")->st_ino;
  CHECK(filesystem.read(first, 0, 4));
  once.kind = GENERATE(FileCall::Read, FileCall::Status);
  once.run = [&] {
    const UniqueFd fd(::open(path.c_str(), O_WRONLY));
    const auto at = static_cast<off_t>(std::filesystem::file_size(path) - kOld.size() - kSecond.size());
    REQUIRE(::pwrite(fd.get(), kNew.data(), kNew.size(), at) == static_cast<ssize_t>(kNew.size()));
    const timespec later[2] = {{0, UTIME_OMIT}, {::time(nullptr) + 60, 0}};
    REQUIRE(::futimens(fd.get(), later) == 0);
  };
  CHECK(errno_of(filesystem.read(first, 4, 4)) == ESTALE);
  CHECK_FALSE(once.run);
}

TEST_CASE("a mount that fails on changes begins when no other process is in a commit",
          "[fs][source][on_change]") {
  const TemporaryDirectory directory;
  const std::string path = directory.write("m.safetensors", archive_of({{"first", std::string(12288, 'A')}}));
  SourceOptions how{.is_read_only = true, .must_be_settled = true, .wait_until = Deadline()};
  const std::string next(4096, 'j');
  constexpr std::uint64_t at = 4096;
  auto journal = plant_living_journal(path, at, next);
  const auto early = open_model(path, how);
  CHECK(errno_of(early) == EBUSY);
  CHECK(early.error().message.find("another process is changing it: on_change=fail waits") !=
        std::string::npos);
  CHECK(open_model(path, {.is_read_only = true}));
  const SourceOptions ending{.is_read_only = true, .must_be_settled = true, .is_ending = [] { return true; }};
  CHECK(errno_of(open_model(path, ending)) == EINTR);
  journal.reset();
  // The other process has died. The model shows its commit.
  how.wait_until = deadline_in(std::chrono::seconds(10));
  const auto model = open_model(path, how);
  REQUIRE(model);
  std::vector<std::byte> scratch;
  CHECK(text_of((*model)->front().read({at, next.size()}, scratch).value()) == next);
}
