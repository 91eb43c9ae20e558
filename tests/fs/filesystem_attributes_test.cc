// The extended attributes, and the numbers that show a reader that something has changed.
#include <set>

#include "core/base/cancellation.h"
#include "core/base/checksum.h"
#include "core/storage/attribute_names.h"
#include "tests/fs/descriptor.h"
#include "tests/support/captured_stderr.h"
#include "tests/support/catch.h"
#include "tests/support/faulty_storage.h"

using namespace stfs;
using namespace stfs::test;

namespace {

std::string checksum_of(std::string_view content) {
  Checksum sum;
  sum.update(bytes_of(content));
  return "xxh128:" + sum.hex();
}

void commit(const DrivenFilesystem& mount, std::string_view name, std::string_view content) {
  Descriptor writer(mount, name, O_WRONLY);
  REQUIRE(writer.write(content, 0));
  REQUIRE(writer.close());
}

}  // namespace

TEST_CASE("a tensor says its name, dtype, shape, archive and offset", "[fs][filesystem][attributes]") {
  const DrivenFilesystem mount({{"a/b", "12345"}, {"second", "xy"}});
  CHECK(mount.attribute("a%2Fb", "name") == "a/b");
  CHECK(mount.attribute("a%2Fb", "dtype") == "U8");
  CHECK(mount.attribute("a%2Fb", "shape") == "[5]");
  CHECK(mount.attribute("a%2Fb", "archive") == mount.path());
  CHECK(mount.attribute("second", "offset") == std::to_string(mount.offset_of("second")));
}

TEST_CASE("shapes and dtypes are spelled as in the header", "[fs][filesystem][attributes]") {
  const TemporaryDirectory directory;
  const std::string path = directory.write(
      "a.safetensors", archive_bytes(R"({"scalar":{"dtype":"F32","shape":[],"data_offsets":[0,4]},)"
                                     R"("b":{"dtype":"BF16","shape":[2,1,3],"data_offsets":[4,16]}})",
                                     "0123456789abcdef"));
  const MountedModel filesystem(Archive::open(path, Access::ReadWrite).value(), {});
  const Ino scalar = filesystem.lookup(kRootIno, "scalar")->st_ino;
  const Ino b = filesystem.lookup(kRootIno, "b")->st_ino;
  CHECK(filesystem.extended_attribute(scalar, "user.safetensors.shape") == "[]");
  CHECK(filesystem.extended_attribute(b, "user.safetensors.shape") == "[2,1,3]");
  CHECK(filesystem.extended_attribute(b, "user.safetensors.dtype") == "BF16");
}

TEST_CASE("the root says what the model is and what it says of itself", "[fs][filesystem][attributes]") {
  const std::string metadata = R"({"format":"pt","empty":"","n\u0000l":"x","":"nameless"})";
  const DrivenFilesystem mount(kTwoTensors, {}, system_storage(), metadata);
  const auto root = [&](const char* key) { return mount->extended_attribute(kRootIno, key); };
  CHECK(root("user.safetensors.archive") == mount.path());
  CHECK(root("user.safetensors.tensors") == "2");
  CHECK(root("user.safetensors.parameters") == "32");
  CHECK(root("user.safetensors.metadata.format") == "pt");
  CHECK(root("user.safetensors.metadata.empty") == "");
  CHECK(root("user.safetensors.metadata.") == "nameless");
  CHECK(errno_of(root("user.safetensors.metadata.absent")) == ENODATA);
  CHECK(errno_of(root("user.safetensors.dtype")) == ENODATA);
}

TEST_CASE("what no attribute can hold is E2BIG for any room, and is not listed",
          "[fs][filesystem][attributes]") {
  const TemporaryDirectory directory;
  std::string shape = "1";
  for (std::size_t at = 1; at < kMostDimensionsInAttribute; ++at) shape += ",1";
  const std::string path =
      directory.write("m.safetensors",
                      archive_bytes(fmt::format(R"({{"__metadata__":{{"most":"{}","more":"{}"}},)"
                                                R"("a":{{"dtype":"U8","shape":[{}],"data_offsets":[0,1]}},)"
                                                R"("b":{{"dtype":"U8","shape":[{},1],"data_offsets":[1,2]}},)"
                                                R"("c":{{"dtype":"U8","shape":[{}],"data_offsets":[2,3]}},)"
                                                R"("{}":{{"dtype":"U8","shape":[1],"data_offsets":[3,4]}}}})",
                                                std::string(kMostAttributeBytes, 'v'),
                                                std::string(kMostAttributeBytes + 1, 'v'), shape, shape,
                                                shape.substr(2), std::string(kMostAttributeBytes + 1, 'n')),
                                    "abcd"));
  const MountedModel filesystem(Archive::open(path, Access::ReadWrite).value(), {});
  const auto attribute = [&](Ino ino, std::string_view key) {
    return filesystem.extended_attribute(ino, fmt::format("user.safetensors.{}", key));
  };
  const auto lists = [&](Ino ino, std::string_view key) {
    const auto names = filesystem.list_extended_attributes(ino);
    REQUIRE(names);
    return std::ranges::find(*names, fmt::format("user.safetensors.{}", key)) != names->end();
  };
  CHECK(attribute(kRootIno, "metadata.most")->size() == kMostAttributeBytes);
  CHECK(errno_of(attribute(kRootIno, "metadata.more")) == E2BIG);
  CHECK(lists(kRootIno, "metadata.most"));
  CHECK_FALSE(lists(kRootIno, "metadata.more"));
  for (const char* const name : {"a", "b"}) {
    const Ino ino = filesystem.lookup(kRootIno, name)->st_ino;
    CHECK(errno_of(attribute(ino, "shape")) == E2BIG);
    CHECK_FALSE(lists(ino, "shape"));
    CHECK(lists(ino, "name"));
    CHECK(attribute(ino, "dtype") == "U8");
  }
  const Ino c = filesystem.lookup(kRootIno, "c")->st_ino;
  CHECK(attribute(c, "shape")->size() == kMostAttributeBytes - 1);
  CHECK(lists(c, "shape"));
  std::string long_name;
  REQUIRE(filesystem.read_directory(kRootIno, 0, [&](std::string_view entry, Ino, std::uint64_t) {
    if (entry.starts_with("nnn")) long_name = entry;
    return true;
  }));
  const Ino named = filesystem.lookup(kRootIno, long_name)->st_ino;
  CHECK(errno_of(attribute(named, "name")) == E2BIG);
  CHECK_FALSE(lists(named, "name"));
}

TEST_CASE("unknown attributes are ENODATA", "[fs][filesystem][attributes]") {
  const DrivenFilesystem mount({{"d.x", "1"}}, kTreeLayout);
  const Ino directory = mount.ino("d");
  for (const Ino ino : {kRootIno, directory, mount.ino("x", directory)}) {
    for (const char* name : {"", "user.safetensors", "user.safetensors.", "user.safetensors.colour",
                             "user.safetensors.NAME", "user.safetensors.metadata.format", "user.name",
                             "security.capability", "system.posix_acl_access", "name"}) {
      CAPTURE(ino, name);
      CHECK(errno_of(mount->extended_attribute(ino, name)) == ENODATA);
    }
  }
  CHECK(errno_of(mount->extended_attribute(directory, "user.safetensors.name")) == ENODATA);
  CHECK(errno_of(mount->extended_attribute(mount.ino("x", directory), "user.safetensors.tensors")) ==
        ENODATA);
  CHECK(errno_of(mount->extended_attribute(kRootIno, "user.safetensors.checksum")) == ENODATA);
}

TEST_CASE("what is listed can be asked for, and the checksum is not listed", "[fs][filesystem][attributes]") {
  const std::string long_key(240, 'k');
  const DrivenFilesystem mount(
      {{"d.x", "1"}}, kTreeLayout, system_storage(),
      fmt::format(R"({{"format":"pt","nul\u0000":"x","{}":"too long to be asked for"}})", long_key));
  const Ino directory = mount.ino("d");
  const Ino tensor = mount.ino("x", directory);
  for (const Ino ino : {kRootIno, tensor}) {
    const auto names = mount->list_extended_attributes(ino);
    REQUIRE(names);
    for (const std::string& name : *names) {
      CAPTURE(name);
      CHECK(mount->extended_attribute(ino, name));
      CHECK(name.size() <= 255);
      CHECK(name.find('\0') == std::string::npos);
      CHECK(name.find("checksum") == std::string::npos);
    }
  }
  std::set<std::string> listed;
  const auto of_tensor = mount->list_extended_attributes(tensor);
  for (const std::string& name : of_tensor.value()) listed.insert(name.substr(17));
  CHECK(listed == std::set<std::string>{"name", "dtype", "shape", "archive", "offset", "generation"});
  CHECK(mount->list_extended_attributes(kRootIno)->size() == 5 + 1);
  CHECK(mount->list_extended_attributes(directory)->empty());
}

TEST_CASE("each file in .safetensors says what kind of view it is, and of which file",
          "[fs][filesystem][attributes]") {
  struct Row {
    std::string directory, file, kind, own_file;
  };
  const auto attribute = [](const DrivenFilesystem& mount, Ino ino, const std::string& key) {
    const auto value = mount->extended_attribute(ino, "user.safetensors." + key);
    return value ? *value : "none";
  };
  for (const bool is_tree : {false, true}) {
    const DrivenFilesystem mount({{"a.b", std::string(8, 'x')}, {"c/d", "y"}},
                                 is_tree ? kTreeLayout : MountedModelOptions{});
    const Ino views = mount.ino(".safetensors");
    const std::string own = is_tree ? "a/b" : "a.b";
    for (const Row& row :
         {Row{"npy", "a.b.npy", "npy", own}, Row{"npy", "c%2Fd.npy", "npy", "c%2Fd"},
          Row{"slice", "a.b[0:1]", "slice", own}, Row{"slice", "a.b[0].npy", "slice", own}}) {
      CAPTURE(row.file);
      const Ino ino = mount.ino(row.file, mount.ino(row.directory, views));
      CHECK(attribute(mount, ino, "view") == row.kind);
      CHECK(attribute(mount, ino, "file") == row.own_file);
      CHECK(attribute(mount, ino, "archive") == mount.path());
      CHECK(attribute(mount, ino, "checksum") == "none");
      CHECK(mount->list_extended_attributes(ino)->size() == 6 + 2);
    }
    for (const std::string file : {"archive.safetensors", "header.json", "metadata.json", "stats.json"}) {
      CAPTURE(file);
      const Ino ino = mount.ino(file, views);
      CHECK(attribute(mount, ino, "view") == (file.ends_with(".json") ? "document" : "archive"));
      CHECK(attribute(mount, ino, "archive") == mount.path());
      CHECK(attribute(mount, ino, "name") == "none");
      CHECK(mount->list_extended_attributes(ino)->size() == 2);
    }
    const Ino begun = mount->make_directory(mount.ino("transactions", views), "t")->st_ino;
    const Ino staged = mount.ino("a.b", begun);
    CHECK(attribute(mount, staged, "view") == "transaction");
    CHECK(attribute(mount, staged, "file") == own);
    CHECK(attribute(mount, staged, "name") == "a.b");
    CHECK(attribute(mount, staged, "checksum") == "none");
    CHECK(attribute(mount, mount.ino("c%2Fd"), "view") == "none");
  }
}

TEST_CASE_METHOD(Mounted, "the generation grows with every committed change, of this tensor alone",
                 "[fs][filesystem][attributes]") {
  const std::uint64_t second = mount.generation("second");
  std::uint64_t newest = mount.generation("first");
  CHECK(newest == second);
  for (int round = 0; round < 20; ++round) {
    commit(mount, "first", std::string(16, static_cast<char>('a' + round)));
    CHECK(mount.generation("first") > newest);
    newest = mount.generation("first");
  }
  REQUIRE(mount.read("first"));
  CHECK(mount.generation("first") == newest);
  CHECK(mount.generation("second") == second);
}

TEST_CASE_METHOD(Mounted, "a change leads to a larger generation than any tensor had before",
                 "[fs][filesystem][attributes]") {
  const auto of_root = [&](const char* key) {
    return std::stoull(mount->extended_attribute(kRootIno, std::string("user.safetensors.") + key).value());
  };
  const std::uint64_t first = of_root("first_generation");
  CHECK(of_root("generation") == first);
  CHECK(mount.generation("first") <= first);
  for (int round = 0; round < 20; ++round) {
    const std::uint64_t before = of_root("generation");
    const char* name = round % 2 == 0 ? "first" : "second";
    commit(mount, name, std::string(mount.read(name)->size(), static_cast<char>('a' + round)));
    CHECK(mount.generation(name) > before);
    CHECK(of_root("generation") == mount.generation(name));
  }
  mount.overwrite(mount.offset_of("first"), "foreign");
  const std::uint64_t before = of_root("generation");
  REQUIRE(mount.notices_change());
  CHECK(mount.generation("second") > before);
  CHECK(of_root("first_generation") == first);
}

TEST_CASE("generations go on growing over a foreign change and over a new mount",
          "[fs][filesystem][attributes]") {
  DrivenFilesystem mount;
  const CapturedStderr captured;
  commit(mount, "first", kNew);
  const std::uint64_t before = mount.generation("first");
  mount.overwrite(mount.offset_of("first"), "foreign");
  REQUIRE(mount.notices_change());
  const std::uint64_t changed = mount.generation("first");
  CHECK(changed > before);
  mount.open();
  CHECK(mount.generation("first") >= changed);
}

TEST_CASE_METHOD(Mounted, "generations grow where the clock goes back", "[fs][filesystem][attributes]") {
  mount.overwrite(mount.offset_of("first"), "from the future!");  // its mtime is a minute ahead
  REQUIRE(mount.notices_change());
  std::uint64_t newest = mount.generation("first");
  for (const char fill : {'x', 'y'}) {
    commit(mount, "first", std::string(16, fill));
    CHECK(mount.generation("first") > newest);
    newest = mount.generation("first");
  }
  mount.overwrite(mount.offset_of("first"), "from the future!");
  REQUIRE(mount.notices_change());
  CHECK(mount.generation("first") > newest);
}

TEST_CASE_METHOD(Mounted, "what is refused or rolled back changes no generation and no time",
                 "[fs][filesystem][attributes]") {
  const std::uint64_t before = mount.generation("first");
  Descriptor refused(mount, "first", O_WRONLY | O_TRUNC);
  CHECK(errno_of(refused.close()) == EINVAL);
  Descriptor pending(mount, "first", O_RDWR);
  REQUIRE(pending.write(kNew, 0));
  CHECK(mount.generation("first") == before);
}

TEST_CASE_METHOD(Mounted, "a commit's time is the archive's, and utimensat sets another in memory",
                 "[fs][filesystem][attributes]") {
  const Ino ino = mount.ino("first");
  const struct timespec old = mount->attributes(mount.ino("second"))->st_mtim;
  commit(mount, "first", kNew);
  struct stat archive {};
  REQUIRE(::stat(mount.path().c_str(), &archive) == 0);
  CHECK(mount->attributes(ino)->st_mtim.tv_sec == archive.st_mtim.tv_sec);
  CHECK(mount->attributes(ino)->st_mtim.tv_nsec == archive.st_mtim.tv_nsec);
  CHECK(mount->attributes(mount.ino("second"))->st_mtim.tv_nsec == old.tv_nsec);

  const std::uint64_t generation = mount.generation("first");
  mount->set_mtime(ino, {123, 456});
  mount->set_mtime(kRootIno, {1, 1});  // a directory's is not kept
  CHECK(mount->attributes(ino)->st_mtim.tv_sec == 123);
  CHECK(mount->attributes(ino)->st_mtim.tv_nsec == 456);
  CHECK(mount->attributes(kRootIno)->st_mtim.tv_sec != 1);
  CHECK(mount.generation("first") == generation);
  struct stat after {};
  REQUIRE(::stat(mount.path().c_str(), &after) == 0);
  CHECK(after.st_mtim.tv_sec == archive.st_mtim.tv_sec);
}

TEST_CASE("the checksum is that of the committed bytes", "[fs][filesystem][attributes]") {
  const std::string large(9'000'000, 'x');
  const DrivenFilesystem mount({{"first", std::string(16, 'A')}, {"none", ""}, {"large", large}});
  CHECK(mount.attribute("first", "checksum") == checksum_of(std::string(16, 'A')));
  CHECK(mount.attribute("none", "checksum") == checksum_of(""));
  CHECK(mount.attribute("large", "checksum") == checksum_of(large));
  Descriptor writer(mount, "first", O_RDWR);
  REQUIRE(writer.write(kNew, 0));
  CHECK(mount.attribute("first", "checksum") == checksum_of(std::string(16, 'A')));
  REQUIRE(writer.close());
  CHECK(mount.attribute("first", "checksum") == checksum_of(kNew));
}

TEST_CASE("a checksum is computed once, and anew after a commit or a foreign change",
          "[fs][filesystem][attributes]") {
  FaultyStorage storage;
  const DrivenFilesystem mount(kTwoTensors, {}, storage);
  const CapturedStderr captured;
  REQUIRE(mount.attribute("first", "checksum"));
  storage.plan().fail_call(0, 0);
  CHECK(mount.attribute("first", "checksum") == checksum_of(std::string(16, 'A')));
  CHECK(storage.plan().calls() <= 1);  // a look at the file's times
  commit(mount, "first", kNew);
  CHECK(mount.attribute("first", "checksum") == checksum_of(kNew));
  mount.overwrite(mount.offset_of("first"), "foreign");
  CHECK(mount.attribute("first", "checksum") == checksum_of("foreign789abcdef"));  // not noticed yet
  REQUIRE(mount.notices_change());
  CHECK(mount.attribute("first", "checksum") == checksum_of("foreign789abcdef"));
}

TEST_CASE("a checksum that a change has come into is computed anew", "[fs][filesystem][attributes]") {
  const std::string before(3 << 20, 'o');
  const bool is_foreign = GENERATE(false, true);
  INFO((is_foreign ? "by somebody else" : "by a commit"));
  const DrivenFilesystem mount({{"large", before}});
  const CapturedStderr captured;
  std::string after = before;
  after.replace(0, kNew.size(), kNew);
  int pieces = 0;
  // Called before each piece is read. The change comes when the first piece is hashed already.
  const Cancellation change([&] {
    if (++pieces != 2) return false;
    if (is_foreign) {
      mount.overwrite(mount.offset_of("large"), kNew);
      REQUIRE(mount.notices_change());
    } else {
      commit(mount, "large", after);
    }
    return false;
  });
  CHECK(mount.attribute("large", "checksum") == checksum_of(after));
  CHECK(pieces > 3);
}

TEST_CASE_METHOD(Mounted, "a checksum of bytes that are gone is EIO", "[fs][filesystem][attributes]") {
  std::filesystem::resize_file(mount.path(), mount.offset_of("second") + 1);
  CHECK(errno_of(mount.attribute("second", "checksum")) == EIO);
  CHECK(mount.attribute("first", "checksum") == checksum_of(std::string(16, 'A')));
}
