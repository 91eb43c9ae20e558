// Rules for devices: the first matching rule decides, and the message of a mistake names its line.
#include "tools/device/device_rules.h"

#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <filesystem>

#include "tests/support/catch.h"
#include "tests/support/temporary_directory.h"
#include "tools/device/selection.h"

using namespace stfs;
using namespace stfs::device;

TEST_CASE("the first rule that fits a name decides, and none leaves it where it is", "[tools][upload]") {
  const test::TemporaryDirectory directory;
  const auto rules =
      DeviceRules::read_file(directory.write("rules",
                                             "# where what goes\n"
                                             "\n"
                                             "*.q_proj.weight  cuda:0 shard(1, 2/4)  # a quarter\r\n"
                                             "*.norm#1\tcuda:0, cuda:1\n"
                                             "layers.[0-3].*   cpu"));
  REQUIRE(rules);
  REQUIRE(rules->rules().size() == 3);
  const DeviceRule& shard = *rules->rule_for("layers.1.q_proj.weight");
  CHECK(shard.shard->dimension == 1);
  CHECK(shard.shard->part == 2);
  CHECK(shard.shard->parts == 4);
  CHECK(shard.devices.front().name() == "cuda:0");
  CHECK(rules->rule_for("a.norm#1")->devices.size() == 2);
  CHECK_FALSE(rules->rule_for("a.norm#1")->shard);
  CHECK(rules->rule_for("layers.3.mlp")->devices.front().name() == "cpu");
  CHECK(rules->rule_for("layers.4.mlp") == nullptr);
}

TEST_CASE("rules come from a link or a pipe as well as from a file", "[tools][upload]") {
  const test::TemporaryDirectory directory;
  directory.write("rules", "* cpu");
  std::filesystem::create_symlink("rules", directory / "link");
  CHECK(DeviceRules::read_file(directory / "link"));
  std::array<int, 2> ends{};
  REQUIRE(::pipe(ends.data()) == 0);
  REQUIRE(::write(ends[1], "* cpu", 5) == 5);
  ::close(ends[1]);
  CHECK(DeviceRules::read_file(fmt::format("/dev/fd/{}", ends[0])));
  ::close(ends[0]);
  CHECK(DeviceRules::read_file(directory.path()).error().errno_value == EISDIR);
  CHECK(DeviceRules::read_file(directory / "none").error().errno_value == ENOENT);
}

TEST_CASE("a file of /proc has no rules, also behind a link", "[tools][upload]") {
  const stfs::test::TemporaryDirectory directory;
  std::filesystem::create_symlink("/proc/self/environ", directory / "rules");
  const auto rules = DeviceRules::read_file(directory / "rules");
  REQUIRE_FALSE(rules);
  CHECK(rules.error().message ==
        std::string(directory / "rules") + ": is a file of /proc, which has no rules");
}

TEST_CASE("a file of rules has at most 1 MiB, and hides its text if it has several names",
          "[tools][upload]") {
  const test::TemporaryDirectory directory;
  const std::string most = "* cpu\n#" + std::string((std::size_t{1} << 20U) - 7, 'x');
  CHECK(DeviceRules::read_file(directory.write("most", most)));
  CHECK(DeviceRules::read_file(directory.write("more", most + "x")).error().errno_value == EFBIG);
  const std::string secret = directory.write("secret", "* hunter2");
  CHECK(DeviceRules::read_file(secret).error().message.find("hunter2") != std::string::npos);
  std::filesystem::create_hard_link(secret, directory / "rules");
  const auto refused = DeviceRules::read_file(directory / "rules");
  CHECK(refused.error().errno_value == EINVAL);
  CHECK(refused.error().message.find("hunter2") == std::string::npos);
  std::filesystem::create_hard_link(directory / "most", directory / "linked");
  CHECK(DeviceRules::read_file(directory / "linked"));  // rules that are valid may have several names
}

TEST_CASE("a device list is one rule for every name", "[tools][upload]") {
  const auto rules = DeviceRules::parse_device_list("cuda:1,cpu");
  REQUIRE(rules);
  CHECK(rules->rule_for("anything")->devices[1].name() == "cpu");
  CHECK(rules->rule_for("")->devices[0].index == 1);
  CHECK(DeviceRules::parse_device_list("cpu,cpu").error().message == "cpu: is named twice");
  for (const char* wrong : {"", "cpu,", "cpu:0", "gpu", "cuda", "cuda:", "cuda:-1", "cuda:x"}) {
    CAPTURE(wrong);
    CHECK_FALSE(DeviceRules::parse_device_list(wrong));
  }
}

TEST_CASE("a mistake in a file of rules is told with file and line", "[tools][upload]") {
  const test::TemporaryDirectory directory;
  const auto refused = [&](const std::string& line, const std::string& why) {
    const std::string path = directory.write("rules", "* cpu\n" + line + "\n");
    const auto rules = DeviceRules::read_file(path);
    CAPTURE(line);
    REQUIRE_FALSE(rules);
    CHECK(rules.error().message.starts_with(path + ": line 2: "));
    CHECK(rules.error().message.find(why) != std::string::npos);
  };
  refused("w", "the list of devices is empty");
  refused("w cuda", "the number of the GPU is missing");
  refused("w cpu shard", "is not shard(");
  refused("w cpu shard(0,1/2", "is not shard(");
  refused("w cpu shard(0,1/2) x", "is not shard(");
  refused("w cpu shard(-1,1/2)", "is not shard(");
  refused("w cpu shard(0,0/2)", "PART must be from 1");
  refused("w cpu shard(0,3/2)", "PART must be from 1");
  refused("w cpu shard(0,1/0)", "PART must be from 1");
  CHECK(DeviceRules::read_file(directory / "none").error().errno_value == ENOENT);
  CHECK(DeviceRules::read_file(directory.path()).error().errno_value == EISDIR);
  CHECK(DeviceRules::read_file(directory.write("empty", "# nothing\n")).error().errno_value == EINVAL);
}

TEST_CASE("brackets at the end of a pattern are a slice where they hold one", "[tools][upload]") {
  CHECK(parse_selection("w[:10]").slice == ":10");
  CHECK(parse_selection("w[:10]").pattern == "w");
  CHECK(parse_selection("*.w[-1, ...]").slice == "-1, ...");
  CHECK(parse_selection("[0]").pattern.empty());
  CHECK_FALSE(parse_selection("layer[0-9]").slice);
  CHECK_FALSE(parse_selection("layer[qk]").slice);
  CHECK_FALSE(parse_selection("layer[0-9].w").slice);
  CHECK(parse_selection("layer[0-9][0]").pattern == "layer[0-9]");
  CHECK_FALSE(parse_selection("w[]").slice);
}
