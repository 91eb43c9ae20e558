// stfs apply writes all tensors of the delta, or none.
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <thread>

#include "tests/support/archive_bytes.h"
#include "tests/support/catch.h"
#include "tests/support/header_text.h"
#include "tests/support/lock_owner.h"
#include "tests/support/plain.h"
#include "tests/support/tool_run.h"
#include "tests/tools/sample_model.h"

using namespace stfs;
using test::content_of;
using test::kLockBase;
using test::run_verb;

namespace {

struct ApplyModel : test::SampleModel {
  [[nodiscard]] std::string delta(const std::string& delta_header, const std::string& data) const {
    return directory.write("d.safetensors", test::archive_bytes(delta_header, data));
  }
  /// A delta of x and b, in another order than the target's.
  [[nodiscard]] std::string good_delta() const {
    return delta(R"({"x":{"dtype":"U8","shape":[3],"data_offsets":[0,3]},)"
                 R"("b":{"dtype":"BF16","shape":[4],"data_offsets":[3,11]}})",
                 "new12345678");
  }
};

/// A delta of x, which fits, and of a tensor that does not fit.
std::string failure_of(const ApplyModel& model, const std::string& name, const std::string& entry,
                       std::size_t size) {
  const std::string delta =
      model.delta(R"({"x":{"dtype":"U8","shape":[3],"data_offsets":[0,3]},")" + name + "\":" + entry + "}",
                  "new" + std::string(size, '!'));
  const auto run = run_verb(tools::apply, {model.path, delta});
  CHECK(run.code == 1);
  CHECK(run.out.empty());
  CHECK(test::count_lines(run.err) == 2);
  CHECK(run.err.find("stfs apply: " + model.path +
                     ": nothing was changed: 1 of 2 tensors of the delta do not match\n") !=
        std::string::npos);
  CHECK(model.is_untouched());
  const std::string start = "stfs apply: " + delta + ": ";
  REQUIRE(run.err.find(start) == 0);
  return run.err.substr(start.size(), run.err.find('\n') - start.size());
}

}  // namespace

TEST_CASE("apply changes the delta's tensors and no other byte", "[tools][apply]") {
  const ApplyModel model;
  const auto run = run_verb(tools::apply, {model.path, model.good_delta()});
  CHECK(run.code == 0);
  CHECK(run.err.empty());
  CHECK(run.out == "changed 2 tensors of " + model.path + ", 11 B\n");
  CHECK(content_of(model.path) == model.archive(std::string(24, '.') + "12345678new"));
}

TEST_CASE("apply names a tensor that is missing or has another dtype, shape or size, and changes nothing",
          "[tools][apply]") {
  const ApplyModel model;
  CHECK(failure_of(model, "y", test::entry("U8", "1", 3, 4), 1) == "y: missing in the target");
  CHECK(failure_of(model, "b", test::entry("F16", "4", 3, 11), 8) ==
        "b: other dtype: found F16 [4], 8 bytes; expected BF16 [4], 8 bytes");
  CHECK(failure_of(model, "b", test::entry("BF16", "2,2", 3, 11), 8) ==
        "b: other shape: found BF16 [2,2], 8 bytes; expected BF16 [4], 8 bytes");
  CHECK(failure_of(model, "b", test::entry("BF16", "5", 3, 13), 10) ==
        "b: other shape and size: found BF16 [5], 10 bytes; expected BF16 [4], 8 bytes");
  CHECK(failure_of(model, "b", test::entry("U8", "1", 3, 4), 1) ==
        "b: other dtype, shape and size: found U8 [1], 1 byte; expected BF16 [4], 8 bytes");
}

TEST_CASE("apply refuses a delta and a target that misses a shard, and changes nothing", "[tools][apply]") {
  const ApplyModel model;
  const std::string delta = model.good_delta();
  const auto index_of = [&](const std::string& name, const std::string& shard, const std::string& tensor) {
    return model.directory.write(
        name + ".safetensors.index.json",
        R"({"weight_map":{")" + tensor + R"(":")" + shard + R"(","gone":"none.safetensors"}})");
  };
  const std::string torn_delta = index_of("delta", "d.safetensors", "x");
  const std::string torn_target = index_of("target", "m.safetensors", "x");
  const std::string shard = model.directory / "none.safetensors";
  for (const auto& [target, from, torn] :
       {std::array{model.path, torn_delta, torn_delta}, std::array{torn_target, delta, torn_target}}) {
    for (const std::string option : {"--json", "--dry-run", "--nolock"}) {
      const auto run = run_verb(tools::apply, {option, target, from});
      CAPTURE(torn, option, run.err);
      CHECK(run.code == 1);
      CHECK(run.err.starts_with("stfs apply: " + torn + ": "));
      CHECK(run.err.find(shard) != std::string::npos);
      CHECK(run.err.find("stfs apply: " + target + ": nothing was changed: ") != std::string::npos);
      CHECK(model.is_untouched());
      if (option != "--json") continue;
      const auto document = nlohmann::json::parse(run.out);
      CHECK(document["applied"] == false);
      CHECK(document["problems"][0]["kinds"] == nlohmann::json::array({"model"}));
    }
  }
}

TEST_CASE("apply names every problem, in JSON too", "[tools][apply]") {
  const ApplyModel model;
  const std::string delta =
      model.delta("{\"b\":" + test::entry("F64", "1", 0, 8) + ",\"y\":" + test::entry("U8", "1", 8, 9) +
                      ",\"x\":" + test::entry("U8", "3", 9, 12) + "}",
                  std::string(12, '!'));
  const auto run = run_verb(tools::apply, {"--json", model.path, delta});
  CHECK(run.code == 1);
  CHECK(test::count_lines(run.err) == 3);
  const auto document = nlohmann::json::parse(run.out);
  CHECK(document["applied"] == false);
  REQUIRE(document["problems"].size() == 2);
  CHECK(document["problems"][0]["name"] == "b");
  CHECK(document["problems"][0]["kinds"] == nlohmann::json{"dtype", "shape"});
  CHECK(document["problems"][1]["kinds"] == nlohmann::json::array({"missing"}));
  CHECK(model.is_untouched());
}

TEST_CASE("apply changes all of 100 tensors", "[tools][apply]") {
  const test::TemporaryDirectory directory;
  // Tensors of 1,001 bytes, so none begins at a block. The delta has every second one.
  std::string header = "{";
  std::string delta_header = "{";
  std::string wanted;
  std::string data;
  for (std::uint64_t at = 0; at < 200; ++at) {
    const std::string entry_name = (at == 0 ? "\"t" : ",\"t") + std::to_string(at) + "\":";
    header += entry_name + test::entry("U8", "1001", at * 1001, (at + 1) * 1001);
    const std::string fresh(1001, static_cast<char>('A' + at % 26));
    if (at % 2 == 0) delta_header += entry_name + test::entry("U8", "1001", data.size(), data.size() + 1001);
    if (at % 2 == 0) data += fresh;
    wanted += at % 2 == 0 ? fresh : std::string(1001, '.');
  }
  const std::string path =
      directory.write("m", test::archive_bytes(header + "}", std::string(200 * 1001, '.')));
  const std::string delta = directory.write("d", test::archive_bytes(delta_header + "}", data));
  const auto run = run_verb(tools::apply, {"--json", path, delta});
  CHECK(run.code == 0);
  const auto document = nlohmann::json::parse(run.out);
  CHECK(document["applied"] == true);
  CHECK(document["tensors"].size() == 100);
  CHECK(document["size_bytes"] == 100 * 1001);
  CHECK((content_of(path) == test::archive_bytes(header + "}", wanted)));
}

TEST_CASE("apply --dry-run shows what would change and changes nothing", "[tools][apply]") {
  const ApplyModel model;
  const auto run = run_verb(tools::apply, {"--dry-run", model.path, model.good_delta()});
  CHECK(run.code == 0);
  CHECK(test::count_lines(run.out) == 3);
  CHECK(run.out.find("b") == 0);
  CHECK(run.out.find("would change 2 tensors of " + model.path + ", 11 B\n") != std::string::npos);
  CHECK(nlohmann::json::parse(
            run_verb(tools::apply, {"--json", "--dry-run", model.path, model.good_delta()}).out)["applied"] ==
        false);
  CHECK(model.is_untouched());
}

TEST_CASE("apply of an empty delta changes nothing and succeeds", "[tools][apply]") {
  const ApplyModel model;
  CHECK(run_verb(tools::apply, {model.path, model.delta("{}", "")}).code == 0);
  CHECK(model.is_untouched());
}

TEST_CASE("apply names the process that holds a lock on a tensor's bytes", "[tools][apply]") {
  const ApplyModel model;
  const std::string delta = model.good_delta();
  {
    const test::LockOwner owner(model.path, kLockBase + 1, 4095);
    const auto run = run_verb(tools::apply, {"--wait", "0", model.path, delta});
    CHECK(run.code == 1);
    CHECK(run.err.find("process " + std::to_string(owner.pid()) + " (") != std::string::npos);
    CHECK(run.err.find("holds a lock") != std::string::npos);
    CHECK(model.is_untouched());
    CHECK(run_verb(tools::apply, {"--nolock", model.path, delta}).code == 0);
    CHECK_FALSE(model.is_untouched());
  }
  CHECK(run_verb(tools::apply, {"--wait", "0", model.path, delta}).code == 0);
}

TEST_CASE("an interrupt before the commit leaves the archive and its directory as they were",
          "[tools][apply]") {
  const ApplyModel model;
  const std::string delta = model.good_delta();
  const test::LockOwner owner(model.path, kLockBase + 1, 4095);
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    std::signal(SIGINT, SIG_DFL);
    ::_exit(run_verb(tools::apply, {"--wait", "60", model.path, delta}).code);
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(300));  // by now it waits for the lock
  ::kill(child, SIGINT);
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  CHECK((WIFSIGNALED(status) && WTERMSIG(status) == SIGINT));
  CHECK(model.is_untouched());
  CHECK(test::count_files(model.directory.path()) == 2);
}

TEST_CASE("apply with wrong arguments exits with 2, without an archive with 1", "[tools][apply]") {
  const ApplyModel model;
  CHECK(run_verb(tools::apply, {model.path}).code == 2);
  CHECK(run_verb(tools::apply, {model.path, model.path, model.path}).code == 2);
  CHECK(run_verb(tools::apply, {model.path, model.directory / "none"}).code == 1);
  CHECK(run_verb(tools::apply, {model.path, model.directory.write("text", "no archive")})
            .err.find("not a safetensors archive") != std::string::npos);
  CHECK(model.is_untouched());
}
