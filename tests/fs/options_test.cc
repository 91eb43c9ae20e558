// The command line: the arguments that are accepted, and messages that name the wrong argument and the
// expected one.
#include "fs/mount/options.h"

#include <string>

#include "core/base/version.h"
#include "tests/support/catch.h"
#include "tests/support/plain.h"

using namespace stfs;
using stfs::test::contains;

namespace {

CommandLine parse(std::vector<const char*> arguments) {
  arguments.insert(arguments.begin(), "safetensorsfs");
  return parse_command_line(static_cast<int>(arguments.size()), arguments.data());
}

Options with_options(const char* list) {
  const CommandLine line = parse({"a.safetensors", "/mnt", "-o", list});
  CAPTURE(list, line.text);
  REQUIRE(line.outcome == CommandLine::Outcome::Mount);
  return line.options;
}

}  // namespace

TEST_CASE("SOURCE and MOUNTPOINT alone mount with the defaults", "[fs][options]") {
  const CommandLine line = parse({"a.safetensors", "/mnt"});
  REQUIRE(line.outcome == CommandLine::Outcome::Mount);
  CHECK(line.options.source == "a.safetensors");
  CHECK(line.options.mount_point == "/mnt");
  CHECK(line.options.model.layout == Layout::Flat);
  CHECK_FALSE(line.options.model.is_read_only);
  CHECK_FALSE(line.options.model.uid);
  CHECK_FALSE(line.options.model.gid);
  CHECK(line.options.model.umask == 0);
  CHECK_FALSE(line.options.allows_other);
  CHECK_FALSE(line.options.checks_permissions);
  CHECK_FALSE(line.options.may_cover_files);
  CHECK_FALSE(line.options.unmounts_with_daemon);
  CHECK_FALSE(line.options.stays_in_foreground);
  CHECK(line.options.threads == 16);
  CHECK(line.options.kernel_options.empty());
}

TEST_CASE("each -o option means what --help says", "[fs][options]") {
  CHECK(with_options("ro").model.is_read_only);
  CHECK_FALSE(with_options("delta=d.safetensors").model.is_read_only);
  CHECK(with_options("ro").deltas.empty());
  CHECK(with_options("delta=a:b,delta=/c").deltas == std::vector<std::filesystem::path>{"a", "b", "/c"});
  CHECK(with_options("layout=tree").model.layout == Layout::Tree);
  CHECK(with_options("layout=flat").model.layout == Layout::Flat);
  CHECK(with_options("uid=1000").model.uid == 1000U);
  CHECK(with_options("gid=0").model.gid == 0U);
  CHECK(with_options("umask=027").model.umask == 027);
  CHECK(with_options("threads=1024").threads == 1024);
  CHECK(with_options("nonempty").may_cover_files);
  CHECK(with_options("strict").is_strict);
  CHECK_FALSE(with_options("ro").is_strict);
  CHECK(with_options("strict_modes").refuses_modes);
  CHECK_FALSE(with_options("strict").refuses_modes);
  CHECK(with_options("ro").io == Io::Auto);
  CHECK(with_options("io=pread,io=auto").io == Io::Auto);
  CHECK(with_options("io=mmap").io == Io::Mmap);
  CHECK(with_options("io=pread").io == Io::Pread);
  CHECK_FALSE(with_options("ro").wants_passthrough);
  CHECK(with_options("ro,passthrough").wants_passthrough);
  CHECK(with_options("auto_unmount").unmounts_with_daemon);
  CHECK(with_options("default_permissions").checks_permissions);
  CHECK(with_options("allow_other").allows_other);
  CHECK(with_options("noexec,noatime").kernel_options == std::vector<std::string>{"noexec", "noatime"});
}

TEST_CASE("of an option and its opposite the last counts, and a default is not passed on", "[fs][options]") {
  using List = std::vector<std::string>;
  CHECK(with_options("atime,diratime,exec,async").kernel_options.empty());
  CHECK(with_options("noatime,atime,noexec,exec,sync,async,nodiratime").kernel_options.empty());
  CHECK(with_options("atime,noatime,exec,noexec,noexec").kernel_options == List{"noatime", "noexec"});
}

TEST_CASE("reads that fail on changes need a read-only mount, and all of the kernel's requests",
          "[fs][options]") {
  CHECK_FALSE(with_options("ro,on_change=fail,on_change=follow").model.fails_on_change);
  CHECK(with_options("on_change=fail,ro").model.fails_on_change);
  CHECK(
      contains(parse({"a", "/mnt", "-o", "on_change=fail,ro,passthrough"}).text, "goes without passthrough"));
}

TEST_CASE("allow_other implies default_permissions", "[fs][options]") {
  CHECK(with_options("allow_other").checks_permissions);
}

TEST_CASE("lists of options add up, empty parts count for nothing", "[fs][options]") {
  const Options listed = with_options(",ro,,layout=tree,");
  CHECK(listed.model.is_read_only);
  CHECK(listed.model.layout == Layout::Tree);
  const CommandLine twice = parse({"-o", "ro", "a", "-o", "uid=7,uid=8", "/mnt"});
  REQUIRE(twice.outcome == CommandLine::Outcome::Mount);
  CHECK(twice.options.model.is_read_only);
  CHECK(twice.options.model.uid == 8U);
  CHECK(twice.options.mount_point == "/mnt");
}

TEST_CASE("what mount(8) and fstab lines carry along is accepted", "[fs][options]") {
  const Options fstab = with_options(
      "rw,defaults,auto,noauto,nofail,_netdev,user,users,nouser,owner,group,suid,dev,exec,nosuid,nodev,"
      "relatime,async,x-systemd.automount,x-systemd.idle-timeout=60,comment=anything");
  CHECK_FALSE(fstab.model.is_read_only);
  CHECK(fstab.kernel_options.empty());
}

TEST_CASE("a wrong -o option is refused, named, with what was due", "[fs][options]") {
  const std::vector<std::pair<const char*, const char*>> wrong = {
      {"layout=square", "flat or tree"},
      {"delta", "the path of a delta"},
      {"delta=", "the path of a delta"},
      {"delta=a:", "the path of a delta"},
      {"layout", "flat or tree"},
      {"uid=root", "numeric id"},
      {"uid=", "numeric id"},
      {"uid=-1", "numeric id"},
      {"gid=4294967296", "numeric id"},
      {"gid=1x", "numeric id"},
      {"umask=9", "octal"},
      {"umask=1000", "octal"},
      {"umask=", "octal"},
      {"io", "auto, mmap or pread"},
      {"io=", "auto, mmap or pread"},
      {"io=read", "auto, mmap or pread"},
      {"threads=0", "1 to 1024"},
      {"threads=1025", "1 to 1024"},
      {"threads=many", "1 to 1024"},
      {"threads=99999999999999999999", "1 to 1024"},
      {"durability=maybe", "power or process"},
      {"on_change=keep", "follow or fail"},
      {"on_change=fail", "needs a read-only mount: -o ro,on_change=fail"},
      {"frobnicate", "no such option"},
      {"frobnicate=1", "no such option"},
      {"ro=1", "no such option"},
      {"layout=flat|tree", "flat or tree"},
      {"RO", "no such option"},
  };
  for (const auto& [option, due] : wrong) {
    const CommandLine line = parse({"a", "/mnt", "-o", option});
    CAPTURE(option, line.text);
    CHECK(line.outcome == CommandLine::Outcome::WrongUsage);
    CHECK(contains(line.text, option));
    CHECK(contains(line.text, due));
    CHECK(contains(line.text, "usage: safetensorsfs SOURCE MOUNTPOINT"));
  }
}

TEST_CASE("missing and surplus arguments are wrong usage, each with its message", "[fs][options]") {
  CHECK(contains(parse({}).text, "SOURCE is missing"));
  CHECK(contains(parse({"a"}).text, "MOUNTPOINT is missing"));
  for (const auto& arguments :
       {std::vector<const char*>{}, std::vector<const char*>{"a"}, std::vector<const char*>{"a", "b", "c"},
        std::vector<const char*>{"a", "b", "--frobnicate"}, std::vector<const char*>{"a", "b", "-z"},
        std::vector<const char*>{"a", "b", "-o"}, std::vector<const char*>{"-f"},
        std::vector<const char*>{""}, std::vector<const char*>{"", "b"}, std::vector<const char*>{"a", ""}}) {
    CHECK(parse(arguments).outcome == CommandLine::Outcome::WrongUsage);
  }
}

TEST_CASE("-d shows requests and stays in the foreground, -f only stays", "[fs][options]") {
  CHECK(parse({"a", "b", "-d"}).options.shows_requests);
  CHECK(parse({"a", "b", "-d"}).options.stays_in_foreground);
  CHECK(parse({"-f", "a", "b"}).options.stays_in_foreground);
  CHECK_FALSE(parse({"-f", "a", "b"}).options.shows_requests);
}

TEST_CASE("--help and --version print and mount nothing", "[fs][options]") {
  for (const char* flag : {"--help", "-h"}) {
    const CommandLine line = parse({flag});
    CHECK(line.outcome == CommandLine::Outcome::Print);
    for (const char* part : {"SOURCE", "MOUNTPOINT", "layout=flat|tree", "threads=N", "fusermount3 -u"}) {
      CHECK(contains(line.text, part));
    }
  }
  for (const char* flag : {"--version", "-V"}) {
    CHECK(parse({flag}).outcome == CommandLine::Outcome::Print);
    CHECK(parse({flag}).text == "safetensorsfs " + std::string(build_version()) + "\n");
  }
}

TEST_CASE("--definitions prints a line for each -o option", "[fs][options]") {
  const CommandLine line = parse({"--definitions"});
  CHECK(line.outcome == CommandLine::Outcome::Print);
  CHECK(line.text.starts_with(R"({"name": "ro", "value": "", "description": "Refuse)"));
  CHECK(contains(line.text, "}\n{\"name\": \"io\", \"value\": \"auto|mmap|pread\", "));
  CHECK(contains(line.text, R"(after \"fuse.\" )"));
}

TEST_CASE("a path that begins with a dash comes after --", "[fs][options]") {
  const CommandLine line = parse({"-o", "ro", "--", "-a.safetensors", "-mnt"});
  REQUIRE(line.outcome == CommandLine::Outcome::Mount);
  CHECK(line.options.source == "-a.safetensors");
  CHECK(line.options.mount_point == "-mnt");
}

TEST_CASE("the kernel's mount is always nosuid and nodev, and named after the source", "[fs][options]") {
  const auto arguments = session_arguments(Options{}, "/models/a.safetensors", false, false);
  REQUIRE(arguments.size() == 3);
  CHECK(arguments[1] == "-o");
  CHECK(arguments[2] == "subtype=safetensorsfs,fsname=/models/a.safetensors,nosuid,nodev");
}

TEST_CASE("commas and backslashes of the source's path do not end its name", "[fs][options]") {
  CHECK(contains(session_arguments(Options{}, "/a,ro\\b", false, false)[2], "fsname=/a\\,ro\\\\b,nosuid"));
}

TEST_CASE("-o fsname and subtype take the place of the source's path and of safetensorsfs", "[fs][options]") {
  const Options options = with_options("fsname=my model,subtype=model.v2");
  CHECK(session_arguments(options, "/a", false, false)[2] == "subtype=model.v2,fsname=my model,nosuid,nodev");
  CHECK(options.kernel_type() == "fuse.model.v2");
  CHECK(Options{}.kernel_type() == "fuse.safetensorsfs");
  for (const char* wrong : {"fsname=", "fsname", "subtype=", "subtype", "subtype=a b", "subtype=a/b"}) {
    CAPTURE(wrong);
    const CommandLine line = parse({"a", "b", "-o", wrong});
    CHECK(line.outcome == CommandLine::Outcome::WrongUsage);
    CHECK(contains(line.text, wrong));
  }
}

TEST_CASE("the options for the kernel reach it", "[fs][options]") {
  Options options = with_options("ro,allow_other,auto_unmount,noexec");
  options.shows_requests = true;
  const auto arguments = session_arguments(options, "/a", true, false);
  CHECK(
      arguments[2] ==
      "subtype=safetensorsfs,fsname=/a,nosuid,nodev,ro,allow_other,default_permissions,auto_unmount,noexec");
  CHECK(arguments.back() == "-d");
  CHECK_FALSE(contains(session_arguments(options, "/a", true, true)[2], "auto_unmount"));
}
