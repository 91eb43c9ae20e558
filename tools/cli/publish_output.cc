// Shows the progress of a publication, and its result.
#include "tools/cli/publish_output.h"

#include <fmt/format.h>

#include <limits>
#include <memory>
#include <ostream>
#include <string>
#include <utility>

#include "tools/cli/diagnostic.h"
#include "tools/cli/interrupt.h"
#include "tools/cli/progress.h"
#include "tools/sync/mounted_model.h"
#include "tools/sync/version_format.h"
#include "tools/sync/version_writer.h"
#include "tools/text/json_document.h"
#include "tools/text/printable.h"
#include "tools/text/quantity.h"

namespace stfs::tools {
namespace {

constexpr std::uint64_t kMostVersion = 999'999'999'999;

Result<sync::PublishOptions> options_of(const PublishRequest& request, const Publication& publication) {
  const auto encoding = sync::parse_diff_encoding(request.encoding);
  RETURN_IF_ERROR(encoding);
  const auto checksum_format = sync::parse_checksum_format(request.checksum);
  RETURN_IF_ERROR(checksum_format);
  return sync::PublishOptions{.encoding = *encoding,
                              .checksum_format = *checksum_format,
                              .version = request.version,
                              .base_version = request.base,
                              .threads = publication.threads,
                              .since = request.since};
}

void print_json(const PublishRequest& request, const sync::WrittenVersion& written, std::ostream& out) {
  Json document = json_document();
  document["path"] = json_path(written.path);
  document["version"] = sync::version_text(request.version);
  document["base_version"] = sync::version_text(request.base);
  document["encoding"] = request.encoding;
  document["checksum_format"] = request.checksum;
  document["tensors"] = written.tensors;
  document["size_bytes"] = written.tensor_bytes;
  document["read_tensors"] = written.read_tensors;
  document["changed_tensors"] = written.changed_tensors;
  document["diff_size_bytes"] = written.diff_bytes;
  // A text, because programs that read numbers as doubles would round it.
  if (written.generation) document["generation"] = std::to_string(*written.generation);
  write_json(document, out);
}

void print_text(const sync::WrittenVersion& written, std::ostream& out) {
  out << fmt::format("published {}: {} of {} changed, {} of {}\n", printable(written.path.native()),
                     grouped(written.changed_tensors), counted(written.tensors, "tensor"),
                     human_size(written.diff_bytes), human_size(written.tensor_bytes));
  if (written.generation) out << fmt::format("generation {}\n", *written.generation);
}

}  // namespace

void declare_publish_options(CommandLine& line, PublishRequest& request) {
  line.choice(request.encoding, "--encoding", "ENCODING",
              "Publish a version: what leads from A to B, for weight sync. ENCODING is xor or overwrite.",
              {"xor", "overwrite"})
      .excludes("--brief")
      .excludes("--force");
  line.number(request.version, "--version", "N", "With --encoding: the number of the version.", 1,
              kMostVersion);
  line.number(request.base, "--base", "M",
              "With --encoding: the number of the version that A is. Default: N - 1.", 0, kMostVersion);
  line.choice(request.checksum, "--checksum", "FORMAT",
              "With --encoding: the checksums of B's tensors. Default: xxh3-128.",
              {"xxh3-128", "adler32", "blake3"});
  line.number(request.since.emplace(), "--since", "GENERATION",
              "With --encoding, and a mount as B: read only what has changed since its GENERATION.", 0,
              std::numeric_limits<std::int64_t>::max());
}

std::optional<std::string> mistake_in(const CommandLine& line, PublishRequest& request) {
  if (!line.has("--since")) request.since.reset();
  if (request.encoding.empty()) {
    for (const char* option : {"--version", "--base", "--checksum", "--since"}) {
      if (line.has(option)) return std::string(option) + ": is for versions: give --encoding too";
    }
    return std::nullopt;
  }
  for (const char* option : {"--version", "--out"}) {
    if (!line.has(option)) return std::string("--encoding: a version needs ") + option;
  }
  if (!line.has("--base")) request.base = request.version - 1;
  if (request.base < request.version) return std::nullopt;
  return fmt::format("--base: {} is not smaller than the version {}", request.base, request.version);
}

int publish(const PublishRequest& request, const Publication& publication, Streams& streams) {
  auto options = options_of(request, publication);
  if (!options) return report_failure(streams, "--checksum: " + options.error().message);
  if (sync::is_mounted_model(publication.after_name)) options->mount = publication.after_name;
  if (options->since && !options->mount) {
    return report_wrong_usage(streams,
                              "--since: " + publication.after_name +
                                  ": is no mount, and only mounts have generations: leave --since out");
  }
  std::optional<InterruptGuard> guard(std::in_place);
  std::optional<Work> work(std::in_place, watch_on(streams));
  options->work = &*work;
  const auto written =
      sync::publish_version({publication.before, publication.after}, publication.published, *options);
  work.reset();
  if (!written) return report_failure(streams, written.error().message);
  guard.reset();
  if (publication.json) {
    print_json(request, *written, streams.out);
  } else {
    print_text(*written, streams.out);
  }
  return streams.out ? kDone : kFailed;
}

}  // namespace stfs::tools
