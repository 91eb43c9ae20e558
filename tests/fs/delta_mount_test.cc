// A mount of a delta on top of a base: the content that it shows, and its reaction to a change of the base.
#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <fstream>
#include <iterator>

#include "core/archive/archive_writer.h"
#include "core/model/delta_base.h"
#include "fs/mount/source.h"
#include "tests/fs/driven_filesystem.h"
#include "tests/support/catch.h"

using namespace stfs;
using namespace stfs::test;

namespace {

/// A base of "first" and "second", and a delta that changes "second".
class MountedDelta {
 public:
  MountedDelta() {
    const auto under = Model::open(base, {});
    Work work;
    const Delta made{"base",
                     digest_of_tensors((*under)->tensors()),
                     digest_of_bytes(**under, {0}, work).value(),
                     {},
                     {{"title", "the variant"}},
                     base_files_of(**under)};
    auto writer = ArchiveWriter::create(delta, std::vector<TensorSpec>{{"second", Dtype::U8, {kNew.size()}}},
                                        metadata_of(made), false);
    if (!writer || !writer->append(bytes_of(kNew)) || !writer->finish()) throw std::runtime_error("delta");
    auto source = open_source(base, {.deltas = {delta}});
    if (!source) throw std::runtime_error(source.error().message);
    path = source->path;
    filesystem = std::make_unique<MountedModel>(std::move(source->members[0].model), MountedModelOptions());
  }

  [[nodiscard]] Ino ino(std::string_view name, Ino parent = kRootIno) const {
    return filesystem->lookup(parent, name).value().st_ino;
  }
  [[nodiscard]] Result<std::string> content(Ino file) const {
    const auto bytes = filesystem->read(file, 0, 1 << 20);
    if (!bytes) return tl::unexpected(bytes.error());
    return text_of(bytes->copy().value());
  }
  [[nodiscard]] bool lists(Ino file, const std::string& attribute) const {
    const auto names = filesystem->list_extended_attributes(file).value();
    return std::ranges::find(names, attribute) != names.end();
  }

  TemporaryDirectory directory;
  CapturedStderr captured;
  std::string base = directory.write("base.safetensors", archive_of({{"first", kOld}, {"second", kSecond}}));
  std::string delta = directory / "delta.safetensors";
  std::filesystem::path path;
  std::unique_ptr<MountedModel> filesystem;
};

std::string read_all(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

/// Writes into a file. The file's time is certainly different afterwards.
void patch_file(const std::string& path, std::uint64_t offset, std::string_view bytes) {
  const int fd = ::open(path.c_str(), O_WRONLY | O_CLOEXEC);
  const ssize_t put = ::pwrite(fd, bytes.data(), bytes.size(), static_cast<off_t>(offset));
  const struct timespec later[2] = {{0, UTIME_OMIT}, {::time(nullptr) + 60, 1}};
  const bool is_done = put == static_cast<ssize_t>(bytes.size()) && ::futimens(fd, later) == 0;
  ::close(fd);
  REQUIRE(is_done);
}

}  // namespace

TEST_CASE_METHOD(MountedDelta, "a mount of a delta shows the variant", "[fs][delta]") {
  CHECK(path == base);
  CHECK_FALSE(filesystem->is_read_only());
  CHECK(content(ino("first")) == kOld);
  CHECK(content(ino("second")) == kNew);
  const auto root = [&](std::string_view key) {
    return filesystem->extended_attribute(kRootIno, fmt::format("user.safetensors.{}", key)).value();
  };
  CHECK(root("archive") == base);
  CHECK(root("delta") == delta);
  CHECK(root("metadata.title") == "the variant");
  CHECK(lists(kRootIno, "user.safetensors.delta"));
  const auto archive = [&](Ino file) {
    return filesystem->extended_attribute(file, "user.safetensors.archive").value();
  };
  CHECK(archive(ino("first")) == base);
  CHECK(archive(ino("second")) == delta);
  const Ino view = ino("archive.safetensors", ino(".safetensors"));
  CHECK(filesystem->extended_attribute(view, "user.safetensors.delta").value() == delta);
  CHECK(lists(view, "user.safetensors.delta"));
  CHECK_FALSE(lists(ino("first"), "user.safetensors.delta"));
  CHECK(filesystem->extended_attribute(ino("first"), "user.safetensors.delta").error().errno_value ==
        ENODATA);
  CHECK(captured.text().empty());
}

TEST_CASE_METHOD(MountedDelta, "a mount without a delta has no attribute of one", "[fs][delta]") {
  const DrivenFilesystem plain;
  CHECK(plain->extended_attribute(kRootIno, "user.safetensors.delta").error().errno_value == ENODATA);
  const auto names = plain->list_extended_attributes(kRootIno).value();
  CHECK(std::ranges::find(names, "user.safetensors.delta") == names.end());
}

TEST_CASE_METHOD(MountedDelta, "the view of the whole variant is as new as the newest of its files",
                 "[fs][delta]") {
  const struct timespec later[2] = {{0, UTIME_OMIT}, {::time(nullptr) + 100, 7}};
  REQUIRE(::utimensat(AT_FDCWD, delta.c_str(), later, 0) == 0);
  auto source = open_source(base, {.deltas = {delta}});
  REQUIRE(source);
  filesystem = std::make_unique<MountedModel>(std::move(source->members[0].model), MountedModelOptions());
  const auto view = filesystem->lookup(ino(".safetensors"), "archive.safetensors");
  CHECK(view->st_mtim.tv_sec == later[1].tv_sec);
}

TEST_CASE_METHOD(MountedDelta, "deltas need one model", "[fs][delta]") {
  const auto refused = open_source(directory.path(), {.deltas = {delta}});
  REQUIRE_FALSE(refused);
  CHECK(refused.error().errno_value == EINVAL);
  CHECK(contains(refused.error().message, "is a directory of archives: a delta needs one model"));
}

TEST_CASE_METHOD(MountedDelta, "the log says why a base is read, and a base that is another one is refused",
                 "[fs][delta]") {
  const std::uint64_t first = std::filesystem::file_size(base) - 2 * kOld.size();
  patch_file(base, first, kOld);
  REQUIRE(open_source(base, {.deltas = {delta}}));
  CHECK(captured.contains(base + ": was last changed at "));
  CHECK(captured.contains(": comparing 0.0 MB of " + base + " with what the delta was made for"));
  CHECK(captured.contains(delta + ": fits " + base));
  patch_file(base, first, "other");
  const auto refused = open_source(base, {.deltas = {delta}});
  REQUIRE_FALSE(refused);
  CHECK(contains(refused.error().message, base + ": is not the base of " + delta));
  bool was_asked = false;
  const auto ended = open_source(base, {.deltas = {delta}, .is_ending = [&] { return was_asked = true; }});
  REQUIRE_FALSE(ended);
  CHECK(was_asked);
  CHECK(ended.error().errno_value == EINTR);
}

TEST_CASE_METHOD(MountedDelta, "a base that is written to must be compared again, a delta not",
                 "[fs][delta]") {
  const Ino first = ino("first");
  const Ino second = ino("second");
  patch_file(delta, std::filesystem::file_size(delta) - kNew.size(), "more");
  const auto of_delta = filesystem->check_for_change(1);
  CHECK_FALSE(of_delta.is_outdated);
  CHECK(of_delta.stale.what == Stale::What::Content);
  CHECK(content(second) == "more" + kNew.substr(4));
  patch_file(base, std::filesystem::file_size(base) - 2 * kOld.size(), "other");
  const auto of_base = filesystem->check_for_change(0);
  CHECK(of_base.is_outdated);
  CHECK(of_base.stale.what == Stale::What::Content);
  CHECK(content(first));  // until the comparison is done
  filesystem->refuse("the base is another one");
  const auto kept = content(first);
  REQUIRE_FALSE(kept);
  CHECK(kept.error().errno_value == EIO);
  CHECK(contains(kept.error().message, "the base of the delta has changed"));
  CHECK(content(second));
}

TEST_CASE_METHOD(MountedDelta, "writers of one tensor of the base commit in turn, each in full",
                 "[fs][delta]") {
  const Ino first = ino("first");
  const auto open = [&] { return filesystem->open(first, O_WRONLY, ::getpid()).value(); };
  const auto write = [&](OpenFile* file, std::string_view bytes, std::uint64_t offset) {
    return errno_of(filesystem->write(*file, bytes_of(bytes), offset, Caller(1, ::getpid())));
  };
  const auto close = [&](OpenFile* file) {
    const int verdict = errno_of(filesystem->flush(*file, 1, ::getpid()));
    filesystem->release(file);
    return verdict;
  };
  const std::string was = read_all(base);
  OpenFile* const one = open();
  OpenFile* const two = open();
  CHECK(write(one, "1", 0) == 0);
  CHECK(write(two, "2", 1) == 0);
  CHECK(content(first) == kOld);
  CHECK(close(one) == 0);  // brings it into the delta
  OpenFile* const three = open();
  CHECK(write(three, "3", 2) == 0);
  CHECK(close(two) == 0);
  CHECK(close(three) == 0);
  CHECK(content(first) == "123" + kOld.substr(3));
  CHECK(ino("first") == first);
  CHECK(read_all(base) == was);
  // If a writer's bytes are dropped, the delta does not change.
  OpenFile* const short_one = open();
  REQUIRE(filesystem->resize(*short_one, 2, Caller(1, ::getpid())));
  CHECK(close(short_one) == EINVAL);
  CHECK(content(first) == "123" + kOld.substr(3));
}

TEST_CASE_METHOD(MountedDelta, "what is open stays where a delta is refused for another reason",
                 "[fs][delta]") {
  const Ino first = ino("first");
  filesystem->refuse("the delta was replaced by garbage");
  CHECK(content(first) == kOld);
}
