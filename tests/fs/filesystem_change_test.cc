// Another program's change of the archive must never mix with our commit.
#include "tests/fs/descriptor.h"
#include "tests/support/catch.h"

using namespace stfs;
using namespace stfs::test;

namespace {

/// Replaces the mounted archive by another one, as the reference library saves.
std::string replace_archive(const DrivenFilesystem& mount) {
  const std::string bytes = archive_of({{"first", "replacement!!!!!"}, {"second", "BBBBBBBBBBBBBBBB"}});
  std::filesystem::rename(mount.directory().write("new", bytes), mount.path());
  return bytes;
}

/// Writes another header of the same length into the same file.
void change_header(const DrivenFilesystem& mount) {
  mount.overwrite(8, R"({"FIRST")");
}

}  // namespace

TEST_CASE_METHOD(Mounted,
                 "a commit into an archive that was replaced is ESTALE, and the new one is untouched",
                 "[fs][filesystem][change]") {
  for (const int access : {O_WRONLY, O_RDWR}) {
    Descriptor writer(mount, "first", access);
    REQUIRE(writer.write(kNew, 0));
    const std::string replacement = replace_archive(mount);
    CHECK(errno_of(writer.sync()) == ESTALE);
    CHECK(errno_of(writer.close()) == ESTALE);
    CHECK(content_of(mount.path()) == replacement);
  }
  CHECK(mount.read("first") == std::string(16, 'A'));
  CHECK(captured.contains("was replaced or deleted while it was open"));
}

TEST_CASE_METHOD(Mounted, "a commit into an archive that was deleted is ESTALE", "[fs][filesystem][change]") {
  Descriptor writer(mount, "first", O_WRONLY);
  REQUIRE(writer.write(kNew, 0));
  std::filesystem::remove(mount.path());
  CHECK(errno_of(writer.close()) == ESTALE);
  CHECK(captured.contains(mount.path() + ": the archive was replaced or deleted while it was open"));
  CHECK(mount.read("first") == kOld);
  CHECK_FALSE(std::filesystem::exists(mount.path()));
}

TEST_CASE_METHOD(Mounted, "a commit into an archive that was first changed and then replaced is ESTALE",
                 "[fs][filesystem][change]") {
  Descriptor writer(mount, "first", O_WRONLY);
  REQUIRE(writer.write(kNew, 0));
  mount.overwrite(mount.offset_of("second"), "foreign");
  const std::string replacement = replace_archive(mount);
  CHECK(errno_of(writer.close()) == ESTALE);
  CHECK(content_of(mount.path()) == replacement);
}

TEST_CASE_METHOD(Mounted, "a commit follows the rename of its tensor by another program",
                 "[fs][filesystem][change]") {
  Descriptor writer(mount, "first", O_WRONLY);
  REQUIRE(writer.write(kNew, 0));
  const Ino first = mount.ino("first");
  const Ino second = mount.ino("second");
  change_header(mount);
  SECTION("before the rename was noticed") {
    REQUIRE(writer.close());
  }
  SECTION("after") {
    CHECK(mount.notices_change());
    CHECK(mount->lookup(kRootIno, "first").error().errno_value == ENOENT);
    Descriptor other(mount, "second", O_WRONLY);
    REQUIRE(other.write(kNew, 0));
    REQUIRE(other.close());
    REQUIRE(writer.close());
    CHECK(mount.read("second") == kNew);
  }
  CHECK(mount.ino("FIRST") == first);
  CHECK(mount.ino("second") == second);
  CHECK(mount.read("FIRST") == kNew);
  CHECK(mount.stored("first") == kNew);
}

TEST_CASE_METHOD(Mounted, "bytes that were written for another dtype are refused, and say why",
                 "[fs][filesystem][change]") {
  Descriptor writer(mount, "first", O_WRONLY);
  REQUIRE(writer.write(kNew, 0));
  const std::string bytes = content_of(mount.path());
  mount.overwrite(bytes.find("\"U8\""), "\"I8\"");
  SECTION("before the change was noticed") {
    CHECK(errno_of(writer.close()) == ESTALE);
  }
  SECTION("after") {
    CHECK(mount->check_for_change().stale.what == Stale::What::Content);
    CHECK(errno_of(writer.close()) == ESTALE);
  }
  CHECK(captured.contains("another program has given it another dtype or shape, I8 [16]"));
  CHECK(mount.read("first") == kOld);
  Descriptor again(mount, "first", O_WRONLY);
  REQUIRE(again.write(kNew, 0));
  REQUIRE(again.close());
  CHECK(mount.stored("first") == kNew);
}

TEST_CASE_METHOD(Mounted, "a header that uses bytes of an open tensor makes the model outdated",
                 "[fs][filesystem][change]") {
  Descriptor writer(mount, "first", O_WRONLY);
  REQUIRE(writer.write(kNew, 0));
  // The new archive has its tensors in another order.
  const std::string bytes = archive_of({{"other", std::string(20, 'x')}, {"first", std::string(12, 'y')}});
  REQUIRE(bytes.size() <= std::filesystem::file_size(mount.path()));
  mount.overwrite(0, bytes);
  std::filesystem::resize_file(mount.path(), bytes.size());
  CHECK(errno_of(writer.close()) == ESTALE);
  CHECK(mount->check_for_change().is_outdated);
  CHECK(content_of(mount.path()) == bytes);
}

TEST_CASE_METHOD(Mounted, "into an archive that was cut nothing is committed, not even what it still holds",
                 "[fs][filesystem][change]") {
  Descriptor hit(mount, "second", O_WRONLY);
  Descriptor other(mount, "first", O_WRONLY);
  REQUIRE(hit.write(kNew, 0));
  REQUIRE(other.write(kNew, 0));
  const std::uint64_t cut = mount.offset_of("second") + 3;
  std::filesystem::resize_file(mount.path(), cut);
  CHECK(errno_of(hit.close()) == EIO);
  CHECK(errno_of(other.close()) == EIO);
  CHECK(std::filesystem::file_size(mount.path()) == cut);
  CHECK(mount.stored("first") == std::string(16, 'A'));
}

TEST_CASE_METHOD(Mounted, "bytes that somebody else wrote beside ours stay", "[fs][filesystem][change]") {
  Descriptor writer(mount, "first", O_WRONLY);
  REQUIRE(writer.write("ours", 0));
  mount.overwrite(mount.offset_of("first") + 8, "theirs");
  REQUIRE(writer.close());
  CHECK(mount.stored("first") == "oursAAAAtheirsAA");
  CHECK(mount.read("first") == "oursAAAAtheirsAA");
}

TEST_CASE_METHOD(Mounted, "a foreign change of the data makes every tensor's content new, once",
                 "[fs][filesystem][change]") {
  CHECK_FALSE(mount.notices_change());
  const std::uint64_t first = mount.generation("first");
  mount.overwrite(mount.offset_of("first"), "foreign");
  CHECK(mount.notices_change());
  CHECK_FALSE(mount.notices_change());
  CHECK(mount.generation("first") > first);
  CHECK(mount.generation("second") == mount.generation("first"));
  struct stat archive {};
  REQUIRE(::stat(mount.path().c_str(), &archive) == 0);
  CHECK(mount->attributes(mount.ino("second"))->st_mtim.tv_sec == archive.st_mtim.tv_sec);
  CHECK(captured.contains("changed by another program"));
}

TEST_CASE_METHOD(Mounted, "our own commit is nobody else's change", "[fs][filesystem][change]") {
  Descriptor writer(mount, "first", O_WRONLY);
  REQUIRE(writer.write(kNew, 0));
  REQUIRE(writer.close());
  CHECK_FALSE(mount.notices_change());
}

TEST_CASE_METHOD(Mounted, "under a foreign header no attribute is made of bytes that may be another tensor's",
                 "[fs][filesystem][change]") {
  change_header(mount);
  CHECK(mount.notices_change());
  CHECK(mount.attribute("FIRST", "checksum"));  // its bytes have not moved
  mount.overwrite(8, "[");
  CHECK(mount.notices_change());
  CHECK(errno_of(mount.attribute("FIRST", "checksum")) == EIO);
  CHECK(mount.attribute("FIRST", "name") == "FIRST");
}
