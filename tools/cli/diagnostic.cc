// Prints the texts of diagnostic.h.
#include "tools/cli/diagnostic.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <ostream>
#include <string>

#include "core/model/neighbours.h"
#include "core/remote/remote_notes.h"
#include "tools/target/journal_text.h"
#include "tools/text/printable.h"
#include "tools/text/quantity.h"

namespace stfs::tools {

int report_failure(Streams& streams, std::string_view message) {
  streams.err << "stfs " << streams.verb << ": " << printable(message) << '\n';
  return kFailed;
}

int report_wrong_usage(Streams& streams, std::string_view message) {
  report_failure(streams, message);
  streams.err << "Try 'stfs " << streams.verb << " --help'.\n";
  return kWrongUsage;
}

int report_not_shown(Streams& streams, const Model& model) {
  int code = kDone;
  for (const std::string& text : take_remote_notes()) report_failure(streams, text);
  for (const std::string& text : ignored_beside(model)) report_failure(streams, text);
  for (const std::string& text : not_shown_beside(model)) code = report_failure(streams, text);
  return code;
}

int report_problems(Streams& streams, const Model& model) {
  // An index can have millions of problems.
  constexpr std::size_t kMost = 1000;
  const auto problems = model.problems();
  for (const ModelProblem& problem : problems.first(std::min(problems.size(), kMost)))
    report_failure(streams, fmt::format("{}: {}", model.path().string(), problem.message));
  if (problems.size() > kMost) {
    report_failure(streams, fmt::format("{}: {} more problems", model.path().string(),
                                        grouped(problems.size() - kMost)));
  }
  const int code = report_not_shown(streams, model);
  return model.problems().empty() ? code : kFailed;
}

int report_problems_and_neighbours(Streams& streams, const Model& model) {
  if (const std::string text = models_beside_text(model); !text.empty()) report_failure(streams, text);
  return report_problems(streams, model);
}

}  // namespace stfs::tools
