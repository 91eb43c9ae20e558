// The lines of .safetensors/log: the number of lines that are kept, and the users who may read each line.
#include "fs/base/recent_lines.h"

#include <fmt/format.h>

#include <optional>
#include <string>

#include "tests/support/catch.h"

using stfs::RecentLines;

namespace {

std::string joined(const RecentLines::Text& lines) {
  std::string text;
  for (const auto& line : lines) text += *line;
  return text;
}

}  // namespace

TEST_CASE("the last 1000 lines are kept", "[fs][log]") {
  RecentLines lines;
  for (int number = 0; number < 1500; ++number)
    lines.add(fmt::format("line {}", number), false, std::nullopt);
  const auto shown = lines.shown_to(std::nullopt);
  REQUIRE(shown.size() == RecentLines::kMost);
  CHECK(*shown.front() == "line 500\n");
  CHECK(*shown.back() == "line 1499\n");
}

TEST_CASE("a user reads the lines of that user's own requests only", "[fs][log]") {
  RecentLines lines;
  lines.add("mounted", false, std::nullopt);
  lines.add("of 1", true, 1);
  lines.add("of 2", true, 2);
  CHECK(joined(lines.shown_to(1)) == "of 1\n");
  CHECK(joined(lines.shown_to(3)).empty());
  CHECK(joined(lines.shown_to(std::nullopt)) == "mounted\nof 1\nof 2\n");
  CHECK(lines.last_problem(1) == "of 1");
  CHECK(lines.last_problem(3).empty());
  CHECK(lines.last_problem(std::nullopt) == "of 2");
}

TEST_CASE("the last problem is no line that only informs", "[fs][log]") {
  RecentLines lines;
  CHECK(lines.last_problem(std::nullopt).empty());
  lines.add("refused", true, 1);
  lines.add("checkpoint saved", false, 1);
  CHECK(lines.last_problem(1) == "refused");
}

TEST_CASE("a long line is cut between characters", "[fs][log]") {
  RecentLines lines;
  std::string line;
  while (line.size() < 2 * RecentLines::kMostLineBytes) line += "\xC3\xA9";
  lines.add(line, true, std::nullopt);
  const std::string text = joined(lines.shown_to(std::nullopt));
  CHECK(text.size() <= RecentLines::kMostLineBytes);
  CHECK(text.size() + 2 >= RecentLines::kMostLineBytes);
  CHECK(text.ends_with("\xC3\xA9 ...\n"));
}
