// A sharded model is one tree. Each write goes to the shard of its tensor.
#include "core/format/header.h"
#include "tests/fs/driven_model.h"
#include "tests/support/captured_stderr.h"
#include "tests/support/catch.h"

using namespace stfs;
using namespace stfs::test;

namespace {

/// Makes a transaction's directory of this name.
Ino begun(const DrivenModel& mount, std::string_view name) {
  const Ino transactions = mount.ino("transactions", mount.ino(".safetensors"));
  return mount->make_directory(transactions, name).value().st_ino;
}

Result<Outdated> commit(const DrivenModel& mount, std::string_view name) {
  const Ino views = mount.ino(".safetensors");
  return mount->rename(mount.ino("transactions", views), name, mount.ino("committed", views), name);
}

}  // namespace

TEST_CASE("the tensors of all shards are one tree, and each names its shard", "[fs][model]") {
  const DrivenModel mount;
  CHECK(mount.read("a.x") == "AAAA");
  CHECK(mount.read("c") == "CCCCC");
  CHECK(mount.read("none") == "");
  CHECK(mount.attribute("b", "archive") == mount.directory() / "one.safetensors");
  CHECK(mount.attribute("c", "archive") == mount.directory() / "two.safetensors");
  for (const auto& [name, shard] : DrivenModel::kWeights) {
    const std::string file = content_of(mount.directory() / (shard + ".safetensors"));
    const std::string due = mount.read(name).value();
    CHECK(file.substr(std::stoull(mount.attribute(name, "offset")), due.size()) == due);
  }
  const auto root = [&](std::string_view key) {
    return mount->extended_attribute(kRootIno, fmt::format("user.safetensors.{}", key)).value();
  };
  CHECK(root("tensors") == "5");
  CHECK(root("archive") == mount.directory() / "m.safetensors.index.json");
  CHECK(root("metadata.n") == "2");
}

TEST_CASE("a commit changes the tensor's shard and no other", "[fs][model]") {
  const DrivenModel mount;
  const std::string one = content_of(mount.directory() / "one.safetensors");
  const std::string generation = mount.attribute("b", "generation");
  REQUIRE(mount.overwrite(mount.ino("c"), "12345"));
  CHECK(mount.read("c") == "12345");
  CHECK(content_of(mount.directory() / "one.safetensors") == one);
  CHECK(content_of(mount.directory() / "two.safetensors").find("YYY12345") != std::string::npos);
  CHECK(mount.attribute("b", "generation") == generation);
  for (const char* name : {"c", "b", "c", "b", "a.x", "a.y"}) {
    const std::string bytes(mount.read(name)->size(), '-');
    REQUIRE(mount.overwrite(mount.ino(name), bytes));
    CHECK(mount.read(name) == bytes);
  }
  mount->tidy();
  mount->end();
  std::size_t files = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(mount.directory().path()))
    ++files;
  CHECK(files == 3);
}

TEST_CASE("a transaction commits, be it in one shard or over several", "[fs][model]") {
  const DrivenModel mount;
  const CapturedStderr captured;
  const Ino good = begun(mount, "good");
  REQUIRE(mount.overwrite(mount.ino("a.y", good), "yyy"));
  REQUIRE(mount.overwrite(mount.ino("c", good), "ccccc"));
  REQUIRE(commit(mount, "good"));
  CHECK(mount.read("a.y") == "yyy");
  CHECK(mount.read("c") == "ccccc");

  const Ino both = begun(mount, "both");
  REQUIRE(mount.overwrite(mount.ino("b", both), "bbbbbb"));
  REQUIRE(mount.overwrite(mount.ino("c", both), "-----"));
  const auto stale = commit(mount, "both");
  REQUIRE(stale);
  CHECK(mount.read("b") == "bbbbbb");
  CHECK(mount.read("c") == "-----");
  for (const char* name : {"b", "c"}) {
    CHECK(std::ranges::any_of(stale->stale, [&](const Stale& one) {
      return one.what == Stale::What::Content && one.first == mount.ino(name);
    }));
  }
}

TEST_CASE("a foreign header in one shard is EIO there, and the other shards go on", "[fs][model]") {
  const DrivenModel mount;
  const CapturedStderr captured;
  std::fstream(mount.directory() / "one.safetensors", std::ios::in | std::ios::out | std::ios::binary)
          .seekp(8)
      << R"({"__METADATA__)";
  std::filesystem::last_write_time(mount.directory() / "one.safetensors",
                                   std::filesystem::file_time_type::clock::now() + std::chrono::seconds(9));
  const Stale stale = mount->check_for_change(0).stale;
  CHECK(stale.first == mount.ino("a.x"));
  CHECK(stale.last == mount.ino("b"));
  CHECK(errno_of(mount.read("b")) == EIO);
  CHECK(errno_of(mount.overwrite(mount.ino("b"), "bbbbbb")) == ESTALE);
  CHECK(mount.read("c") == "CCCCC");
  REQUIRE(mount.overwrite(mount.ino("c"), "12345"));
  CHECK(mount->check_for_change(1).stale.what == Stale::What::Nothing);
}

TEST_CASE("a change in one shard makes that shard's tensors new", "[fs][model]") {
  const DrivenModel mount;
  const CapturedStderr captured;
  const std::string before = mount.attribute("a.x", "generation");
  const std::string other = mount.attribute("c", "generation");
  const std::string file = mount.directory() / "two.safetensors";
  std::fstream(file, std::ios::in | std::ios::out | std::ios::binary)
          .seekp(static_cast<std::streamoff>(std::filesystem::file_size(file) - 1))
      << "!";
  std::filesystem::last_write_time(file,
                                   std::filesystem::file_time_type::clock::now() + std::chrono::seconds(9));
  CHECK(mount->check_for_change(1).stale.first == mount.ino("a.y"));
  CHECK(mount.read("c") == "CCCC!");
  CHECK(mount.attribute("a.x", "generation") == before);
  CHECK(std::stoull(mount.attribute("c", "generation")) > std::stoull(other));
}

TEST_CASE("a tensor that no shard serves is EIO by name, others are ENOENT", "[fs][model]") {
  auto weights = DrivenModel::kWeights;
  weights.emplace_back("gone.w", "two");
  weights.emplace_back("lost", "three");
  for (const Layout layout : {Layout::Flat, Layout::Tree}) {
    MountedModelOptions options;
    options.layout = layout;
    const DrivenModel mount(weights, options);
    CHECK(errno_of(mount->lookup(kRootIno, "lost")) == EIO);
    CHECK(mount->lookup(kRootIno, "lost").error().message.find("three.safetensors") != std::string::npos);
    CHECK(errno_of(mount->lookup(kRootIno, "other")) == ENOENT);
    CHECK(errno_of(mount->lookup(kRootIno, layout == Layout::Flat ? "gone.w" : "gone")) == EIO);
    CHECK(errno_of(mount->lookup(kRootIno, layout == Layout::Flat ? "gone" : "gone.w")) == ENOENT);
    for (const auto& [view, name] : {std::pair("npy", "gone.w.npy"), std::pair("float32", "lost.npy"),
                                     std::pair("slice", "gone.w[0]"), std::pair("slice", "lost[...].npy")}) {
      const Ino directory = mount.ino(view, mount.ino(".safetensors"));
      CHECK(errno_of(mount->lookup(directory, name)) == EIO);
      CHECK(errno_of(mount->lookup(directory, "other.npy")) == ENOENT);
    }
    std::size_t listed = 0;
    REQUIRE(mount->read_directory(kRootIno, 0, [&](auto, auto, auto) { return ++listed > 0; }));
    CHECK(listed == 2 + (layout == Layout::Flat ? 5 : 4));
  }
}

TEST_CASE("the archive view of a sharded model is one valid archive of its tensors", "[fs][model][views]") {
  const DrivenModel mount;
  const Ino views = mount.ino(".safetensors");
  const std::string whole = mount.content(mount.ino("archive.safetensors", views)).value();
  CHECK(mount->attributes(mount.ino("archive.safetensors", views))->st_size ==
        static_cast<off_t>(whole.size()));
  const auto length = header_length(bytes_of(whole), whole.size());
  REQUIRE(length);
  CHECK((*length + 8) % 4096 == 0);
  const std::string_view json = std::string_view(whole).substr(8, *length);
  const auto header = parse_header(json, whole.size() - 8 - *length);
  REQUIRE(header);
  CHECK(header->metadata == Metadata{{"format", "pt"}, {"n", "2"}});
  CHECK(whole.substr(8 + *length) == "AAAABBBBBBYYYCCCCC");
  CHECK(header->tensors.size() == 5);
  const std::string text = mount.content(mount.ino("header.json", views)).value();
  CHECK(json.substr(0, json.find_last_not_of(' ') + 1) == text);
  CHECK(mount.content(mount.ino("metadata.json", views)) == R"({"format":"pt","n":"2"})");
  for (std::size_t at = 0; at + 7 <= whole.size(); at += 5) {
    const auto part = mount->read(mount.ino("archive.safetensors", views), at, 7);
    REQUIRE(part);
    CHECK(text_of(part->copy().value()) == whole.substr(at, 7));
  }
  REQUIRE(mount.overwrite(mount.ino("b"), "bbbbbb"));
  CHECK(mount.content(mount.ino("archive.safetensors", views))->ends_with("AAAAbbbbbbYYYCCCCC"));
  CHECK(mount.content(mount.ino("c[1:3]", mount.ino("slice", views))) == "CC");
  CHECK(mount.content(mount.ino("a.y.npy", mount.ino("npy", views)))->ends_with("YYY"));
}

TEST_CASE("an edit of a sharded model replaces its index, and is no change by others", "[fs][model][edit]") {
  const DrivenModel mount;
  CHECK_FALSE(mount->take_new_index());
  REQUIRE(mount->rename(kRootIno, "b", kRootIno, "renamed"));
  CHECK_FALSE(mount->check_index().is_outdated);
  CHECK(mount->take_new_index());
  CHECK_FALSE(mount->take_new_index());
  CHECK_FALSE(mount->check_for_change(0).is_outdated);
  const auto again = Model::open(mount.directory().path(), {.access = Access::ReadOnly, .is_strict = true});
  REQUIRE(again);
  CHECK((*again)->find("renamed"));
  // A change of tensors' bytes does not change the index.
  REQUIRE(mount->set_extended_attribute(kRootIno, "user.safetensors.metadata.k", "v"));
  CHECK_FALSE(mount->take_new_index());
}
