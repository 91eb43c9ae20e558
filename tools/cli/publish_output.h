// The part of stfs diff that publishes a version (tools/sync/version_writer.h).
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "core/model/model.h"
#include "tools/cli/command_line.h"
#include "tools/cli/verb.h"

namespace stfs::tools {

/// The options of stfs diff for a version.
struct PublishRequest {
  std::string encoding;  // empty: stfs diff publishes nothing
  std::uint64_t version = 0;
  std::uint64_t base = 0;
  std::string checksum = "xxh3-128";
  std::optional<std::uint64_t> since{};  // a generation of B, which must then be a mount
};

/// Declares the options. `request` must outlive the parsing.
void declare_publish_options(CommandLine& line, PublishRequest& request);
/// Returns the mistake in the options, or nothing. Gives options that the user left out their defaults.
std::optional<std::string> mistake_in(const CommandLine& line, PublishRequest& request);

struct Publication {
  const Model& before;
  const Model& after;
  std::string published;  // the directory of all versions, as the user named it
  std::uint64_t threads = 1;
  bool json = false;
  std::string after_name;  // as the user named `after`
};

/// Writes the version and prints a summary. @return the exit code.
int publish(const PublishRequest& request, const Publication& publication, Streams& streams);

}  // namespace stfs::tools
