// stfs cache: lists, proves and drops the blocks of remote files that this machine keeps.
#include <fmt/format.h>
#include <fnmatch.h>

#include <array>
#include <ctime>
#include <ostream>
#include <set>

#include "core/remote/block_cache.h"
#include "tools/cli/command_line.h"
#include "tools/cli/diagnostic.h"
#include "tools/cli/verb.h"
#include "tools/text/json_document.h"
#include "tools/text/printable.h"
#include "tools/text/quantity.h"
#include "tools/text/table.h"

namespace stfs::tools {
namespace {

constexpr const char* kCacheExamples =
    "Mounts and verbs keep what they fetch in safetensorsfs/blocks of $XDG_CACHE_HOME or ~/.cache. What was\n"
    "not used for the longest time goes when the disk has less than a twentieth free, or when the limit is\n"
    "reached. A PATTERN is a name as this list shows it, its beginning up to a / or an @, or a pattern for\n"
    "whole names with * and ?. Files of the Hub with one digest are kept once, under the first name.\n"
    "\n"
    "Examples:\n"
    "  stfs cache                                      what is kept\n"
    "  stfs cache --drop hf://ORG/MODEL                drop all files of a model\n"
    "  stfs cache --drop '*'                           drop all blocks, also pinned ones\n"
    "  stfs cache --prove hf://ORG/MODEL               compare whole files with the digests that the Hub "
    "lists\n"
    "  stfs cache --limit 200G                         keep at most this much; `none` for no limit\n"
    "  stfs cache --json | jq '.files[] | select(.kept_bytes > 0).name'";

struct CacheRequest {
  std::vector<std::string> drop;
  std::vector<std::string> unpin;
  std::vector<std::string> prove;
  std::string limit;
  bool json = false;
};

using Files = std::vector<CachedFile>;

bool matches(const std::string& pattern, const std::string& name) {
  if (::fnmatch(pattern.c_str(), name.c_str(), 0) == 0) return true;
  const bool ends_there =
      pattern.ends_with('/') || name.size() == pattern.size() ||
      (name.size() > pattern.size() && (name[pattern.size()] == '/' || name[pattern.size()] == '@'));
  return name.starts_with(pattern) && ends_there;
}

/// Calls act(file) for the files that a pattern names. Reports patterns that name none.
template <class Act>
int each_named(const Files& files, const std::vector<std::string>& patterns, Streams& streams,
               const Act& act) {
  int code = kDone;
  std::set<std::string> acted;
  for (const std::string& pattern : patterns) {
    bool is_used = false;
    for (const CachedFile& file : files) {
      if (!matches(pattern, file.shown)) continue;
      is_used = true;
      if (!acted.insert(file.name).second) continue;  // two patterns may name one file
      if (const auto done = act(file); !done)
        code = report_failure(streams, fmt::format("{}: {}", file.shown, done.error().message));
    }
    if (!is_used) code = report_failure(streams, pattern + ": nothing of this name is kept");
  }
  return code;
}

std::string time_text(std::uint32_t minute) {
  if (minute == 0) return "-";
  const std::time_t seconds = std::time_t{minute} * 60;
  std::tm parts{};
  std::array<char, 32> text{};
  ::localtime_r(&seconds, &parts);
  return {text.data(), std::strftime(text.data(), text.size(), "%Y-%m-%d %H:%M", &parts)};
}

void print_json(const Files& files, const std::optional<std::uint64_t>& limit, std::ostream& out) {
  JsonStream document(out);
  document.member("limit_bytes", limit ? Json(*limit) : Json());
  document.array("files", files, [](const CachedFile& file) {
    Json row;
    row["name"] = file.shown;
    row["version"] = file.version;
    row["size_bytes"] = file.size_bytes;
    row["kept_bytes"] = file.kept_bytes;
    row["pinned_bytes"] = file.pinned_bytes;
    row["used_at"] = file.used_at == 0 ? Json() : Json(std::uint64_t{file.used_at} * 60);
    row["proof"] = name_of(file.proof);
    row["in_use"] = file.is_in_use;
    return row;
  });
  document.end();
}

void print_table(const Files& files, const std::optional<std::uint64_t>& limit, std::ostream& out) {
  using Align = Table::Align;
  using Row = std::array<std::string, 6>;
  // The names are long, so they are last.
  Table table({Align::Right, Align::Right, Align::Right, Align::Left, Align::Left, Align::Left});
  const Row heading = {"size", "kept", "pinned", "proof", "last used", "name"};
  std::uint64_t kept = 0;
  for (const CachedFile& file : files) kept += file.kept_bytes;
  const auto cells = [](const CachedFile& file) {
    return Row{human_size(file.size_bytes),
               human_size(file.kept_bytes),
               file.pinned_bytes == 0 ? "-" : human_size(file.pinned_bytes),
               std::string(name_of(file.proof)),
               file.is_in_use ? "in use" : time_text(file.used_at),
               printable_name(file.shown)};
  };
  if (files.empty()) {
    out << "nothing is kept";
  } else {
    table.print(out, files, cells, heading);
    out << fmt::format("{}, {} kept", counted(files.size(), "file"), human_size(kept));
  }
  out << (limit ? fmt::format(", at most {}\n", human_size(*limit)) : "\n");
}

int set_limit(const std::string& text, Streams& streams) {
  const auto limit = text == "none" ? std::nullopt : parse_size(text);
  if (!limit && text != "none")
    return report_wrong_usage(streams, "--limit: " + text + ": is no size, as 200G is");
  constexpr std::uint64_t kLeast = 1 << 20;
  if (limit && *limit != 0 && *limit < kLeast) {
    return report_wrong_usage(
        streams,
        fmt::format("--limit: {}: is less than 1M, which keeps nothing: write 0, or a unit as in 200G",
                    text));
  }
  if (const auto done = set_block_cache_limit(limit); !done)
    return report_failure(streams, done.error().message);
  if (const std::uint64_t dropped = drop_over_limit(); dropped > 0)
    streams.out << fmt::format("dropped {}\n", human_size(dropped));
  return kDone;
}

}  // namespace

int cache(const Arguments& arguments, Streams& streams) {
  CacheRequest request;
  CommandLine line("cache", "List, prove and drop what has been fetched from remote models.", kCacheExamples);
  line.texts(request.drop, "--drop", "PATTERN", "Drop these files. Programs that use them fetch them again.");
  line.texts(request.unpin, "--unpin", "PATTERN", "Let these files go when the disk is nearly full.");
  line.texts(request.prove, "--prove", "PATTERN",
             "Compare these files with the digests that the Hub lists. A wrong one is dropped.");
  line.text(request.limit, "--limit", "SIZE", "Keep at most this many bytes (K, M, G, T), or `none`.");
  line.flag(request.json, "--json", "Print a JSON object with an array of the files.");
  if (const auto code = line.parse(arguments, streams)) return *code;

  const auto files = list_block_cache();
  if (!files) return report_failure(streams, files.error().message);
  if (!request.limit.empty()) {
    if (const int code = set_limit(request.limit, streams); code != kDone) return code;
  }
  int code = each_named(*files, request.unpin, streams,
                        [](const CachedFile& file) { return unpin_cached_file(file.name); });
  code =
      std::max(code, each_named(*files, request.prove, streams, [&](const CachedFile& file) -> Result<void> {
                 RETURN_IF_ERROR(prove_cached_file(file.name));
                 streams.out << fmt::format("{}: proven\n", printable_name(file.shown));
                 return {};
               }));
  std::uint64_t dropped = 0;
  code =
      std::max(code, each_named(*files, request.drop, streams, [&](const CachedFile& file) -> Result<void> {
                 const auto bytes = drop_cached_file(file.name);
                 RETURN_IF_ERROR(bytes);
                 dropped += *bytes;
                 return {};
               }));
  if (dropped > 0) streams.out << fmt::format("dropped {}\n", human_size(dropped));
  const bool is_listing =
      request.drop.empty() && request.unpin.empty() && request.prove.empty() && request.limit.empty();
  if (!is_listing) return streams.out ? code : kFailed;
  const auto limit = block_cache_limit();
  if (request.json) {
    print_json(*files, limit.value_or(std::nullopt), streams.out);
  } else {
    print_table(*files, limit.value_or(std::nullopt), streams.out);
  }
  return streams.out ? code : kFailed;
}

}  // namespace stfs::tools
