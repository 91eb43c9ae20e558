// Runs a verb of stfs in-process and keeps its exit code and output.
#pragma once

#include <clocale>
#include <sstream>
#include <string>
#include <utility>

#include "tools/cli/verb.h"

namespace stfs::test {

struct ToolRun {
  int code = 0;
  std::string out;
  std::string err;
};

enum class Output { Pipe, Terminal };

inline ToolRun run_verb(int (*verb)(const tools::Arguments&, tools::Streams&),
                        const tools::Arguments& arguments, Output output = Output::Pipe,
                        const std::string& input = {}) {
  std::setlocale(LC_CTYPE, "C.UTF-8");  // as main does
  std::istringstream in(input);
  std::ostringstream out;
  std::ostringstream err;
  tools::Streams streams{in, out, err, output == Output::Terminal, false};
  ToolRun run;
  run.code = verb(arguments, streams);
  run.out = std::move(out).str();
  run.err = std::move(err).str();
  return run;
}

/// Number of lines in a text.
inline std::size_t count_lines(const std::string& text) {
  std::size_t count = 0;
  for (const char c : text) count += c == '\n' ? 1U : 0U;
  return count;
}

}  // namespace stfs::test
