// A mount point is refused if a path of the source leads through it. Any other mount point is accepted.
#include "fs/mount/hidden_source.h"

#include <fcntl.h>
#include <unistd.h>

#include <filesystem>
#include <vector>

#include "tests/fs/driven_filesystem.h"
#include "tests/support/catch.h"
#include "tests/support/plain.h"

using namespace stfs;
using namespace stfs::test;

namespace {

/// The directory `in` with an archive, the directory `out`, and the mount points that a test needs.
struct TwoPlaces {
  TemporaryDirectory directory;
  std::filesystem::path in = made("in");
  std::filesystem::path out = made("out");
  std::filesystem::path archive = directory.write("in/a.safetensors", archive_of(kTwoTensors));

  std::filesystem::path made(const std::string& name) const {
    std::filesystem::create_directory(directory / name);
    return std::filesystem::canonical(directory / name);
  }
  std::filesystem::path link(const std::filesystem::path& to, const std::string& name) const {
    std::filesystem::create_symlink(to, directory / name);
    return directory / name;
  }
};

MountPoint opened(const std::filesystem::path& path) {
  return {
      .directory = UniqueFd(::open(path.c_str(), O_PATH | O_CLOEXEC)), .path = path, .earlier_mounts = {}};
}

bool is_hidden(const std::filesystem::path& path, const std::filesystem::path& mount_point) {
  const auto checked = check_not_hidden(std::vector{path}, opened(mount_point));
  if (checked) return false;
  CHECK(checked.error().errno_value == EINVAL);
  CHECK(contains(checked.error().message, path.string() + ": its path leads through the mount point "));
  CHECK(contains(checked.error().message, mount_point.string()));
  return true;
}

}  // namespace

TEST_CASE_METHOD(TwoPlaces, "a mount point with the source or above it hides it", "[fs][hidden_source]") {
  CHECK(is_hidden(in, in));
  CHECK(is_hidden(archive, in));
  CHECK(is_hidden(archive, in.parent_path()));
  CHECK(is_hidden(in / "not-made-yet.safetensors", in));
}

TEST_CASE_METHOD(TwoPlaces, "a mount point beside or below the source hides nothing", "[fs][hidden_source]") {
  CHECK_FALSE(is_hidden(archive, out));
  CHECK_FALSE(is_hidden(in, made("in/below")));
  CHECK_FALSE(is_hidden(in / ".." / "out", in / "below"));
  CHECK_FALSE(is_hidden(directory / "absent/b.safetensors", out));
}

TEST_CASE_METHOD(TwoPlaces, "links do not lead past the check", "[fs][hidden_source]") {
  CHECK(is_hidden(link(in, "to-directory"), in));
  CHECK(is_hidden(link("in/a.safetensors", "to-archive"), in));
  CHECK(is_hidden(link("to-archive", "to-link"), in));
  // A name in the mount point leads to a source at another place.
  CHECK(is_hidden(link(out, "in/leaves") / "b.safetensors", in));
  CHECK(is_hidden(link("in/leaves", "passes") / "b.safetensors", in));
  CHECK(is_hidden(in / "leaves" / ".." / "out", in));
  CHECK_FALSE(is_hidden(directory / "passes/b.safetensors", made("third")));
}

TEST_CASE_METHOD(TwoPlaces, "a loop of links ends the check", "[fs][hidden_source]") {
  CHECK_FALSE(is_hidden(link("one", "two"), out));
  CHECK_FALSE(is_hidden(link("two", "one"), out));
}

TEST_CASE_METHOD(TwoPlaces, "a chain of links that no look-up follows to its end hides nothing",
                 "[fs][hidden_source]") {
  constexpr int kLinks = 20'000;
  const auto name = [](int at) { return "chain/" + std::to_string(at); };
  static_cast<void>(made("chain"));
  for (int at = 0; at < kLinks; ++at) link(directory / name(at + 1), name(at));
  link(in, name(kLinks));
  CHECK_FALSE(is_hidden(directory / name(0), in));
  CHECK(is_hidden(directory / name(kLinks - 10), in));
}

TEST_CASE_METHOD(TwoPlaces, "shards that lie in the mount point are files of the source",
                 "[fs][hidden_source]") {
  static_cast<void>(directory.write("out/m.safetensors.index.json",
                                    R"({"weight_map":{"a":"s.safetensors","b":"s.safetensors"}})"));
  link(archive, "out/s.safetensors");
  const auto source = open_source(out, {});
  REQUIRE(source);
  CHECK_FALSE(check_not_hidden(files_of(*source), opened(in)));
  CHECK(check_not_hidden(files_of(*source), opened(made("third"))));
}
