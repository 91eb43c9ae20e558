// The samples of stfs top, and questions to a mount that may not answer.
#include "tools/cli/mount_sample.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <stdexcept>
#include <utility>

#include "tests/support/catch.h"
#include "tests/support/plain.h"
#include "tests/support/tool_run.h"
#include "tools/target/question.h"
#include "tools/target/served_mounts.h"

using namespace stfs;
using namespace stfs::tools;

namespace {

std::optional<std::string> answer_of(const std::function<std::string()>& ask) {
  Question question(ask);
  return question.answer_by(deadline_in(std::chrono::seconds(60)));
}

}  // namespace

TEST_CASE("a sample has the counts and the texts of stats.json", "[tools][top]") {
  const auto sample = sample_of(
      R"({"uptime_seconds":2.5,"bytes_read":7,"ratio":0.5,"requests":{"read":3,"odd":"x"},"problem":"gone","last_error":5})");
  REQUIRE(sample);
  CHECK(sample->uptime_seconds == 2.5);
  CHECK(sample->count("bytes_read") == 7);
  CHECK(sample->count("requests.read") == 3);
  CHECK(sample->count("requests.odd") == 0);
  CHECK(sample->count("ratio") == 0);
  CHECK(sample->problem == "gone");
  CHECK(sample->last_error.empty());
  CHECK_FALSE(sample->waiting);
}

TEST_CASE("a text that is no stats.json is no sample", "[tools][top]") {
  for (const char* const text : {"", "[]", "{}", R"({"bytes_read":7})", "{"}) CHECK_FALSE(sample_of(text));
  const auto odd = sample_of(R"({"uptime_seconds":"soon","requests":[1],"problem":1})");
  REQUIRE(odd);
  CHECK(odd->uptime_seconds == 0);
  CHECK(odd->problem.empty());
}

TEST_CASE("a hot tensor has a name and a share, and others are left out", "[tools][top]") {
  const auto sample = sample_of(
      R"({"uptime_seconds":1,"hot_tensors":[{"name":"a","share_of_bytes":0.75},{"name":"b"},7,{"share_of_bytes":1},)"
      R"({"name":1,"share_of_bytes":1},{"name":"c","share_of_bytes":"x"},{"name":"d","share_of_bytes":0.25}]})");
  REQUIRE(sample);
  REQUIRE(sample->hot_tensors.size() == 2);
  CHECK((sample->hot_tensors[0].name == "a" && sample->hot_tensors[0].share_of_bytes == 0.75));
  CHECK((sample->hot_tensors[1].name == "d" && sample->hot_tensors[1].share_of_bytes == 0.25));
  CHECK(sample_of(R"({"uptime_seconds":1,"hot_tensors":5})")->hot_tensors.empty());
}

TEST_CASE("a rate is the growth in a second, and 0 if the counts began anew", "[tools][top]") {
  const auto at = [](int seconds, std::uint64_t count) {
    MountSample sample;
    sample.at += std::chrono::seconds(seconds);
    sample.counts["n"] = count;
    return sample;
  };
  CHECK(rate_of("n", at(1, 10), at(3, 16)) == 3);
  CHECK(rate_of("n", at(1, 10), at(3, 10)) == 0);
  CHECK(rate_of("n", at(1, 10), at(3, 9)) == 0);
  CHECK(rate_of("n", at(1, 10), at(1, 16)) == 0);
  CHECK(rate_of("other", at(1, 10), at(3, 16)) == 0);
}

TEST_CASE("a question gives the whole answer", "[tools][question]") {
  CHECK(answer_of([] { return "yes"; }) == "yes");
  CHECK(answer_of([] { return ""; }) == "");
  CHECK(answer_of([] { return std::string(100'000, 'x'); }) == std::string(100'000, 'x'));
  CHECK(answer_of([]() -> std::string { throw std::runtime_error("not this time"); }) == "");
  const pid_t own = ::getpid();
  CHECK(answer_of([own] { return std::to_string(::getppid() - own); }) == "0");
}

TEST_CASE("a question without an answer ends at the deadline, and may be asked again", "[tools][question]") {
  std::array<int, 2> ends{};
  REQUIRE(::pipe(ends.data()) == 0);
  const UniqueFd from(ends[0]);
  const UniqueFd to(ends[1]);
  Question question([&]() -> std::string {
    char one = 0;
    return ::read(from.get(), &one, 1) == 1 ? "now" : "never";
  });
  CHECK_FALSE(question.answer_by(deadline_in(std::chrono::milliseconds(0))));
  Question moved = std::move(question);
  REQUIRE(::write(to.get(), "x", 1) == 1);
  CHECK(moved.answer_by(deadline_in(std::chrono::seconds(60))) == "now");
  Question silent([]() -> std::string {
    for (;;) ::pause();
  });
  CHECK_FALSE(silent.answer_by(deadline_in(std::chrono::milliseconds(1))));
}

TEST_CASE("of a mount the options are shown that are no default", "[tools][mounts]") {
  ServedMount mount;
  mount.entry.flags = "rw,nosuid,relatime";
  mount.entry.options = "rw,user_id=0,group_id=0,default_permissions,allow_other,max_read=131072";
  CHECK(mount.shown_options() == "rw,default_permissions,allow_other");
  mount.entry.options = "ro,user_id=0,group_id=0,allow_other";
  CHECK(mount.shown_options() == "ro,allow_other");
  mount.entry.flags = "ro,nosuid";
  mount.entry.options = "rw,group_id=0";
  CHECK(mount.shown_options() == "ro");
}

TEST_CASE("a help says first what the verb does, and each usage once", "[tools][top]") {
  const std::string top = test::run_verb(tools::top, {"--help"}).out;
  const std::size_t what = top.find("Show the reads, writes and commits");
  CHECK(what < top.find("Usage: stfs top"));
  CHECK(what < top.find("Examples:"));
  const std::string diff = test::run_verb(tools::diff, {"--help"}).out;
  CHECK(diff.find("Usage: ") == diff.rfind("Usage: "));
  CHECK(test::contains(diff, "\n       stfs diff"));
}

TEST_CASE("figures without end are read up to a limit", "[tools][mounts]") {
  const UniqueFd endless(::open("/dev/zero", O_RDONLY | O_CLOEXEC));
  REQUIRE(endless);
  const std::string text = read_stats(endless);
  CHECK(text.size() >= 1U << 20U);
  CHECK(text.size() <= (1U << 20U) + 8192);
}
