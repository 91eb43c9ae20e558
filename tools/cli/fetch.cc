// stfs fetch: brings tensors of a remote model to the cache of this machine.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <ostream>

#include "core/base/absolute_path.h"
#include "core/remote/remote_storage.h"
#include "tools/cli/command_line.h"
#include "tools/cli/diagnostic.h"
#include "tools/cli/interrupt.h"
#include "tools/cli/progress.h"
#include "tools/cli/verb.h"
#include "tools/compare/name_globs.h"
#include "tools/target/target.h"
#include "tools/text/json_document.h"
#include "tools/text/near_names.h"
#include "tools/text/printable.h"
#include "tools/text/quantity.h"

namespace stfs::tools {
namespace {

constexpr const char* kFetchExamples =
    "Mounts and verbs that read the tensors later find them on this machine: `stfs cache` lists them. The\n"
    "tensors that were not used for the longest time go first when the disk is nearly full; pinned ones "
    "stay.\n"
    "\n"
    "Examples:\n"
    "  stfs fetch hf://ORG/MODEL                                the whole model\n"
    "  stfs fetch hf://ORG/MODEL 'model.layers.0.*'             the matches of a pattern\n"
    "  stfs fetch -n https://HOST/model.safetensors             how many bytes would come\n"
    "  stfs fetch --pin hf://ORG/MODEL@REVISION                 for work without a network";

struct FetchRequest {
  std::string target;
  std::vector<std::string> globs;
  bool is_pinning = false;
  bool is_dry_run = false;
  bool json = false;
};

/// A part of a tensor.
struct Piece {
  const ArchiveReader* archive = nullptr;
  ByteRange range;
};

struct Totals {
  std::uint64_t tensors = 0;
  std::uint64_t size_bytes = 0;
  FetchedBlocks::Missing missing;
};

/// Returns the pieces of the tensors that the globs choose, in the order of the files.
Result<std::vector<Piece>> select(const Target& target, const FetchRequest& request, Totals& totals) {
  const Model& model = *target.model;
  const TensorIndex& tensors = model.tensors();
  NameGlobs globs(request.globs);
  std::map<const ArchiveReader*, std::vector<ByteRange>> chosen;
  bool is_any_remote = false;
  for (std::uint32_t at = 0; at < tensors.size(); ++at) {
    const ArchiveReader& archive = model.archive_of(at);
    is_any_remote = is_any_remote || is_url(archive.path());
    if (target.tensor && at != *target.tensor) continue;
    if (!globs.match(tensors[at].name)) continue;
    ++totals.tensors;
    totals.size_bytes += tensors[at].data.size_bytes;
    if (is_url(archive.path()) && !model.file_range(at).empty())
      chosen[&archive].push_back(model.file_range(at));
  }
  if (!is_any_remote) {
    return fail(ErrorCode::InvalidArgument, EINVAL,
                fmt::format("{}: is on this machine: there is nothing to fetch", request.target));
  }
  if (const auto unused = globs.unused(); !unused.empty()) {
    return fail(ErrorCode::NotFound, ENOENT,
                fmt::format("{}: {}", request.target, unmatched_text(unused.front(), {&tensors})));
  }
  // In whole blocks, so that no block counts twice. Each piece is one request.
  constexpr std::uint64_t kBlock = FetchedBlocks::kBlockBytes;
  constexpr std::uint64_t kPieceBytes = FetchedBlocks::kPartBytes;
  std::vector<Piece> pieces;
  for (auto& [archive, ranges] : chosen) {
    std::ranges::sort(ranges, {}, &ByteRange::offset);
    ranges.insert(ranges.begin(), {0, archive->data_offset()});
    std::uint64_t done = 0;
    for (const ByteRange range : ranges) {
      std::uint64_t at = std::max(done, range.offset / kBlock * kBlock);
      done = std::max(done, (range.end() + kBlock - 1) / kBlock * kBlock);
      while (at < done) {
        const std::uint64_t end = std::min(done, at / kPieceBytes * kPieceBytes + kPieceBytes);
        pieces.push_back({archive, {at, end - at}});
        at = end;
      }
    }
  }
  return pieces;
}

FetchedBlocks::Missing missing_of(const std::vector<Piece>& pieces) {
  FetchedBlocks::Missing all;
  for (const Piece& piece : pieces) {
    const auto missing = missing_bytes(piece.archive->path(), piece.range);
    all.size_bytes += missing.size_bytes;
    all.requests += missing.requests;
  }
  return all;
}

/// Pins what a model needs to come up: its index, and the header of each shard.
Result<void> pin_frame(const Model& model) {
  const auto pin = [](const std::filesystem::path& path, ByteRange range) -> Result<void> {
    RETURN_IF_ERROR(fetch_bytes(path, range));
    return pin_bytes(path, range);
  };
  if (model.is_sharded() && is_url(model.path())) {
    const auto index = remote_storage().open(model.path(), Access::ReadOnly);
    RETURN_IF_ERROR(index);
    const auto size_bytes = (*index)->size_bytes();
    RETURN_IF_ERROR(size_bytes);
    RETURN_IF_ERROR(pin(model.path(), {0, *size_bytes}));
  }
  for (const Shard& shard : model.shards()) {
    if (shard.archive && is_url(shard.path))
      RETURN_IF_ERROR(pin(shard.path, {0, shard.archive->data_offset()}));
  }
  return {};
}

Result<void> bring(const Model& model, const std::vector<Piece>& pieces, const FetchRequest& request,
                   Streams& streams) {
  // Each thread waits for one piece.
  constexpr std::uint64_t kThreads = 8;
  Work work(watch_on(streams));
  std::uint64_t total_bytes = 0;
  for (const Piece& piece : pieces) total_bytes += piece.range.size_bytes;
  work.begin(total_bytes);
  const auto read = [&](std::size_t index, unsigned) -> Result<void> {
    const Piece& piece = pieces[index];
    RETURN_IF_ERROR(fetch_bytes(piece.archive->path(), piece.range));
    if (request.is_pinning) RETURN_IF_ERROR(pin_bytes(piece.archive->path(), piece.range));
    work.advance(piece.range.size_bytes);
    return {};
  };
  RETURN_IF_ERROR(run_watched(pieces.size(), kThreads, work, read));
  if (work.is_stopped()) return fail_system(EINTR, request.target, "fetch");
  if (const auto missing = missing_of(pieces); missing.size_bytes > 0) {
    return fail_system(
        ENOSPC, request.target,
        fmt::format("keep {} of them: the disk or the limit has no room", human_size(missing.size_bytes)));
  }
  return request.is_pinning ? pin_frame(model) : Result<void>();
}

void print(const Totals& totals, const FetchRequest& request, std::ostream& out) {
  if (request.json) {
    Json document = json_document();
    document["tensors"] = totals.tensors;
    document["size_bytes"] = totals.size_bytes;
    document["missing_bytes"] = totals.missing.size_bytes;
    document["requests"] = totals.missing.requests;
    document["dry_run"] = request.is_dry_run;
    write_json(document, out);
    return;
  }
  const std::string what =
      fmt::format("{}, {}", counted(totals.tensors, "tensor"), human_size(totals.size_bytes));
  if (totals.missing.size_bytes == 0) {
    out << fmt::format("{}: all bytes are on this machine{}\n", what, request.is_pinning ? ", pinned" : "");
  } else if (request.is_dry_run) {
    out << fmt::format("{}: would fetch {} in {}\n", what, human_size(totals.missing.size_bytes),
                       counted(totals.missing.requests, "request"));
  } else {
    out << fmt::format("{}: fetched {}{}\n", what, human_size(totals.missing.size_bytes),
                       request.is_pinning ? ", pinned" : "");
  }
}

}  // namespace

int fetch(const Arguments& arguments, Streams& streams) {
  FetchRequest request;
  CommandLine line("fetch", "Bring tensors of a remote model to this machine.", kFetchExamples);
  line.positional(request.target, "TARGET", "Remote archive or model, a delta of one, or a mount of one.");
  line.positionals(request.globs, "GLOB", "Fetch only tensors whose name matches a GLOB.");
  line.flag(request.is_pinning, "--pin", "Keep the tensors until `stfs cache --drop` or `--unpin`.");
  line.flag(request.is_dry_run, "-n,--dry-run", "Only print how many bytes and requests it would take.")
      .excludes("--pin");
  line.flag(request.json, "--json", "Print a JSON object with the numbers.");
  if (const auto code = line.parse(arguments, streams)) return *code;

  const InterruptGuard guard;
  const auto target = open_target(request.target, Use::Tensors);
  if (!target) return report_failure(streams, target.error().message);
  const int code = report_problems(streams, *target->model);
  Totals totals;
  const auto pieces = select(*target, request, totals);
  if (!pieces) return report_failure(streams, pieces.error().message);
  totals.missing = missing_of(*pieces);
  if (!request.is_dry_run) {
    if (const auto done = bring(*target->model, *pieces, request, streams); !done)
      return report_failure(streams, done.error().message);
  }
  print(totals, request, streams.out);
  return streams.out ? code : kFailed;
}

}  // namespace stfs::tools
