#include "core/model/scratch_directory.h"

#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>

#include "tests/core/exchanged_name.h"
#include "tests/support/catch.h"
#include "tests/support/plain.h"
#include "tests/support/temporary_directory.h"

using namespace stfs;
using namespace stfs::test;

namespace {

using Names = std::vector<std::string>;

struct Scene {
  TemporaryDirectory place;
  std::string model = place.write("m.safetensors", "");
  std::shared_ptr<const File> archive = system_storage().open(model, Access::ReadOnly).value();
  ScratchDirectory directory{model, archive, model, system_storage()};

  [[nodiscard]] int create(const std::string& name) { return errno_of(directory.create(name)); }
  [[nodiscard]] std::string path(const std::string& name) const { return (directory.path() / name).string(); }
};

mode_t mode_of(const std::filesystem::path& path) {
  struct stat st {};
  REQUIRE(::stat(path.c_str(), &st) == 0);
  return st.st_mode & 07777U;
}

}  // namespace

TEST_CASE_METHOD(Scene, "the first scratch file makes the directory, the last one removes it",
                 "[core][scratch]") {
  CHECK(directory.path() == place / ".m.safetensors.scratch");
  CHECK(directory.list().value().empty());
  CHECK_FALSE(directory.status("a"));
  CHECK(errno_of(directory.open("a")) == ENOENT);
  CHECK(create("b") == 0);
  CHECK(create("a") == 0);
  CHECK(create("a") == EEXIST);
  CHECK(directory.list().value() == Names{"a", "b"});
  CHECK(errno_of(directory.rename("a", "b", false)) == EEXIST);
  CHECK(errno_of(directory.rename("a", "b", true)) == 0);
  CHECK(directory.list().value() == Names{"b"});
  CHECK(errno_of(directory.sync()) == 0);
  CHECK(errno_of(directory.remove("b")) == 0);
  CHECK_FALSE(std::filesystem::exists(directory.path()));
  CHECK(errno_of(directory.remove("b")) == ENOENT);
}

TEST_CASE_METHOD(Scene, "who may write the archive may use its scratch files, nobody else",
                 "[core][scratch]") {
  const auto [mode, of_directory] =
      GENERATE(std::pair<mode_t, mode_t>(0600, 0700), std::pair<mode_t, mode_t>(0664, 0775),
               std::pair<mode_t, mode_t>(0640, 0750));
  REQUIRE(::chmod(model.c_str(), mode) == 0);
  REQUIRE(create("a") == 0);
  CHECK(mode_of(directory.path()) == of_directory);
  CHECK(mode_of(path("a")) == mode);
}

TEST_CASE_METHOD(Scene, "a reader of the archive reads a scratch file only if the umask of its maker lets it",
                 "[core][scratch]") {
  struct Case {
    mode_t archive, made, expected;
  };
  // A user who may write the archive may finish the file.
  const auto [archive_mode, made, expected] =
      GENERATE(Case{0644, 0600, 0600}, Case{0644, 0640, 0640}, Case{0664, 0600, 0660}, Case{0666, 0600, 0666},
               Case{0640, 0644, 0640}, Case{0644, 0644, 0644});
  REQUIRE(::chmod(model.c_str(), archive_mode) == 0);
  REQUIRE(errno_of(directory.create("a", made)) == 0);
  CHECK(mode_of(path("a")) == expected);
}

TEST_CASE_METHOD(Scene, "no planted link, pipe, directory or hard link is followed", "[core][scratch]") {
  const std::string secret = place.write("secret", "kept");
  SECTION("in place of the directory") {
    std::filesystem::create_directory(place / "elsewhere");
    std::filesystem::create_symlink(place / "elsewhere", directory.path());
    CHECK(create("a") == EACCES);
    CHECK_FALSE(directory.list());
    CHECK(std::filesystem::is_empty(place / "elsewhere"));
  }
  SECTION("in place of a file") {
    REQUIRE(create("mine") == 0);
    std::filesystem::create_symlink(secret, path("link"));
    std::filesystem::create_hard_link(secret, path("hard"));
    std::filesystem::create_directory(path("directory"));
    REQUIRE(::mkfifo(path("pipe").c_str(), 0600) == 0);
    for (const std::string name : {"link", "hard", "directory", "pipe"}) {
      CAPTURE(name);
      CHECK_FALSE(directory.open(name));
      CHECK(create(name) == EEXIST);
    }
    for (const std::string name : {"link", "directory", "pipe"}) CHECK_FALSE(directory.status(name));
  }
  CHECK(content_of(secret) == "kept");
}

TEST_CASE_METHOD(Scene, "a directory whose owner may not write the archive is refused", "[core][scratch]") {
  if (::geteuid() != 0) return;
  REQUIRE(::mkdir(directory.path().c_str(), 0777) == 0);
  REQUIRE(::chown(directory.path().c_str(), 12345, 12345) == 0);
  CHECK(create("a") == EACCES);
  CHECK(errno_of(directory.list()) == EACCES);
  REQUIRE(::chmod(model.c_str(), 0666) == 0);
  REQUIRE(::chmod(directory.path().c_str(), 0777) == 0);
  CHECK(create("a") == 0);
}

TEST_CASE_METHOD(Scene, "a private directory that is moved to the name is ignored", "[core][scratch]") {
  REQUIRE(::chmod(model.c_str(), 0666) == 0);
  std::filesystem::create_directory(place / "private");
  const std::string secret = place.write("private/secret", "kept");
  REQUIRE(::chmod(secret.c_str(), 0666) == 0);
  const auto mode = GENERATE(as<mode_t>(), 0700, 0755, 0770);
  REQUIRE(::chmod((place / "private").c_str(), mode) == 0);
  std::filesystem::rename(place / "private", directory.path());
  CHECK(errno_of(directory.list()) == EACCES);
  CHECK_FALSE(directory.status("secret"));
  CHECK(errno_of(directory.open("secret")) == EACCES);
  CHECK(errno_of(directory.remove("secret")) == EACCES);
  CHECK(errno_of(directory.rename("secret", "mine", true)) == EACCES);
  CHECK(create("a") == EACCES);
  CHECK(content_of(path("secret")) == "kept");

  // On a file system without attributes the directory needs no mark.
  REQUIRE(::chmod(directory.path().c_str(), 0777) == 0);
  CHECK(directory.list().value() == Names{"secret"});
}

TEST_CASE_METHOD(Scene, "the directory stays the model's when the archive's mode changes, and in its place",
                 "[core][scratch]") {
  REQUIRE(::chmod(model.c_str(), 0600) == 0);
  REQUIRE(create("a") == 0);
  if (::getxattr(directory.path().c_str(), "user.safetensors.made", nullptr, 0) < 0) return;
  REQUIRE(::chmod(model.c_str(), 0644) == 0);
  CHECK(directory.list().value() == Names{"a"});
  const std::string other_model = place.write("other.safetensors", "");
  const std::shared_ptr<const File> file = system_storage().open(other_model, Access::ReadOnly).value();
  const ScratchDirectory other(other_model, file, other_model, system_storage());
  std::filesystem::rename(directory.path(), other.path());
  CHECK(errno_of(other.list()) == EACCES);
}

TEST_CASE_METHOD(Scene, "another directory that gets the path has no scratch files of the archive",
                 "[core][scratch]") {
  std::filesystem::create_directory(place / "d");
  const std::string inner = place.write("d/m.safetensors", "");
  const std::shared_ptr<const File> open = system_storage().open(inner, Access::ReadOnly).value();
  ScratchDirectory scratch(inner, open, inner, system_storage());
  REQUIRE(scratch.create("a"));
  std::filesystem::rename(place / "d", place / "moved");
  std::filesystem::create_directories(place / "d/.m.safetensors.scratch");
  place.write("d/m.safetensors", "");
  const std::string secret = place.write("d/.m.safetensors.scratch/secret", "kept");
  CHECK(errno_of(scratch.list()) == ESTALE);
  CHECK_FALSE(scratch.status("secret"));
  CHECK(errno_of(scratch.open("secret")) == ESTALE);
  CHECK(errno_of(scratch.create("b")) == ESTALE);
  CHECK(errno_of(scratch.remove("secret")) == ESTALE);
  CHECK(errno_of(scratch.rename("secret", "b", true)) == ESTALE);
  CHECK(errno_of(scratch.sync()) == ESTALE);
  CHECK(content_of(secret) == "kept");

  // The same holds if the path was exchanged between the opening and the first use.
  ScratchDirectory late(inner, open, inner, system_storage());
  CHECK(errno_of(late.list()) == ESTALE);
  CHECK(content_of(secret) == "kept");
}

TEST_CASE_METHOD(Scene, "the open archive tells who may use scratch files, whatever file has its name",
                 "[core][scratch]") {
  REQUIRE(::chmod(model.c_str(), 0600) == 0);
  const ExchangedName exchanged(model);
  SECTION("a new directory and a new file") {
    REQUIRE(create("a") == 0);
    CHECK(mode_of(directory.path()) == 0700);
    CHECK(mode_of(path("a")) == 0600);
    CHECK(directory.status("a")->permissions.uid == ::geteuid());
  }
  SECTION("a directory of the user who has the name now") {
    if (::geteuid() != 0) return;
    REQUIRE(::mkdir(directory.path().c_str(), 0700) == 0);
    REQUIRE(::chown(directory.path().c_str(), kExchanger, kExchanger) == 0);
    CHECK(create("a") == EACCES);
    CHECK(errno_of(directory.list()) == EACCES);
  }
}
