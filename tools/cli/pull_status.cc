// Prints what sync/pull_status finds, as lines or as a JSON object.
#include "tools/cli/pull_status.h"

#include <fmt/format.h>

#include <ostream>

#include "tools/cli/diagnostic.h"
#include "tools/sync/pull_status.h"
#include "tools/text/json_document.h"
#include "tools/text/printable.h"
#include "tools/text/quantity.h"

namespace stfs::tools {
namespace {

Json version_or_null(const std::optional<sync::VersionNumber>& version) {
  return version ? Json(version->text) : Json(nullptr);
}

Json seconds_or_null(const std::optional<std::chrono::seconds>& age) {
  return age ? Json(age->count()) : Json(nullptr);
}

Json pull_status_json(const sync::PullStatus& status, const std::string& model,
                      const std::string& published) {
  Json document = json_document();
  document["path"] = json_path(model);
  document["published"] = json_path(published);
  document["version"] = version_or_null(status.version);
  document["version_seconds"] = seconds_or_null(status.version_age);
  document["newest"] = version_or_null(status.newest);
  document["newest_seconds"] = seconds_or_null(status.newest_age);
  document["missing"] = status.missing;
  document["unfinished"] = status.unfinished ? Json(*status.unfinished) : Json(nullptr);
  document["problem"] = status.problem ? Json(*status.problem) : Json(nullptr);
  document["updating"] = status.is_updating;
  return document;
}

/// "none: the model has the newest one", "1 version: 000043", "3 versions: 000041 to 000043".
std::string missing_text(const sync::PullStatus& status) {
  const auto& missing = status.missing;
  if (missing.empty()) return status.problem || status.unfinished ? "none that is whole" : "none";
  return fmt::format("{}: {}", counted(missing.size(), "version"),
                     missing.size() == 1 ? missing.front() : missing.front() + " to " + missing.back());
}

void print_pull_lines(const sync::PullStatus& status, std::ostream& out) {
  std::string version = "none yet";
  if (status.version) version = status.version->text;
  if (status.version_age) version += ", for " + human_duration(*status.version_age);
  std::string newest = "nothing is published yet";
  if (status.newest) newest = status.newest->text;
  if (status.newest_age) newest += fmt::format(", published {} ago", human_duration(*status.newest_age));
  out << "version     " << version << '\n';
  out << "newest      " << newest << '\n';
  if (!status.problem) out << "missing     " << missing_text(status) << '\n';
  if (status.unfinished) out << "unfinished  " << printable(*status.unfinished) << '\n';
  if (status.problem) out << "problem     " << printable(*status.problem) << '\n';
  out << "update      " << (status.is_updating ? "under way: a receiver holds the lock" : "none under way")
      << '\n';
}

}  // namespace

int print_pull_status(const std::string& model, const std::string& published, bool json, Streams& streams) {
  const auto status = sync::look_at_pull(model, published);
  if (!status) return report_failure(streams, status.error().message);
  if (json) {
    write_json(pull_status_json(*status, model, published), streams.out);
  } else {
    print_pull_lines(*status, streams.out);
  }
  streams.out.flush();
  return streams.out && !status->problem ? kDone : kFailed;
}

}  // namespace stfs::tools
