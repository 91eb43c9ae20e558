// Writes a delta as a repack of those tensors of the variant that differ.
#include "tools/cli/delta_output.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <utility>
#include <vector>

#include "core/base/checksum.h"
#include "tools/cli/changed_files.h"
#include "tools/cli/interrupt.h"
#include "tools/cli/progress.h"
#include "tools/cli/repack_output.h"

namespace stfs::tools {
namespace {

constexpr std::uint64_t kHashedBytes = 4U << 20U;

/// The digest "base_bytes": of the tensors' bytes, one after the other, in order of their names.
Result<std::string> digest_of_bytes(const Model& model, std::vector<std::uint32_t> positions,
                                    Streams& streams) {
  std::ranges::sort(positions, {}, [&](std::uint32_t position) { return model.tensors()[position].name; });
  std::uint64_t total_bytes = 0;
  for (const std::uint32_t position : positions) total_bytes += model.file_range(position).size_bytes;
  Progress progress(streams, total_bytes);
  Checksum checksum;
  std::vector<std::byte> scratch;
  for (const std::uint32_t position : positions) {
    const ByteRange whole = model.file_range(position);
    for (std::uint64_t done = 0; done < whole.size_bytes; done += kHashedBytes) {
      if (interrupted()) {
        return fail(ErrorCode::System, EINTR, model.path().native() + ": interrupted, nothing was written");
      }
      const auto bytes = model.archive_of(position).read(
          {whole.offset + done, std::min(kHashedBytes, whole.size_bytes - done)}, scratch);
      if (!bytes) return tl::unexpected(bytes.error());
      checksum.update(*bytes);
      progress.advance(bytes->size());
    }
  }
  return checksum.hex();
}

/// B's tensors that the delta has, in the order of B's data.
std::vector<std::uint32_t> changed_tensors(const DiffReport& report) {
  std::vector<std::uint32_t> positions;
  for (const HeaderDifference& difference : report.difference.tensors) {
    if (difference.b) positions.push_back(*difference.b);
  }
  for (const std::size_t at : report.other_bytes()) positions.push_back(report.difference.pairs[at].b);
  std::ranges::sort(positions);
  return positions;
}

/// A's tensors that B keeps.
std::vector<std::uint32_t> kept_tensors(const DiffReport& report) {
  std::vector<std::uint32_t> positions;
  for (std::size_t at = 0; at < report.comparisons.size(); ++at) {
    if (!report.comparisons[at].is_different) positions.push_back(report.difference.pairs[at].a);
  }
  return positions;
}

}  // namespace

Result<WrittenDelta> write_delta(const DiffReport& report, const DeltaOutput& output, Streams& streams) {
  const auto& [a, b] = report.models;
  if (is_delta(b.metadata())) {
    return fail(ErrorCode::InvalidArgument, EINVAL,
                b.path().native() + ": is a delta itself: write the variant first, with stfs repack --delta");
  }
  auto base_bytes = digest_of_bytes(a, kept_tensors(report), streams);
  if (!base_bytes) return tl::unexpected(std::move(base_bytes).error());
  if (const auto changed = changed_files(a); !changed.empty()) {
    return fail(ErrorCode::ArchiveChanged, ESTALE, changed.front() + ": was changed during the command");
  }
  Delta delta{.base = a.path().filename(),
              .base_tensors = digest_of_tensors(a.tensors()),
              .base_bytes = std::move(*base_bytes),
              .removed = {},
              .metadata = b.metadata()};
  for (const HeaderDifference& difference : report.difference.tensors) {
    if (!difference.b) delta.removed.emplace_back(a.tensors()[*difference.a].name);
  }
  const RepackPlan plan = plan_of_tensors(b, changed_tensors(report), output.path, metadata_of(delta));
  auto written = write_repacked(b, plan, {.is_replacing = output.is_replacing}, streams);
  if (!written) return tl::unexpected(std::move(written).error());
  return WrittenDelta{output.path, plan.tensors.size(), plan.data_bytes, delta.removed.size()};
}

Result<void> check_base_bytes(const Model& model, Streams& streams) {
  std::vector<std::uint32_t> positions;
  for (std::uint32_t position = 0; position < model.tensors().size(); ++position) {
    if (model.place(position).shard + 1 < model.shards().size()) positions.push_back(position);
  }
  const auto found = digest_of_bytes(model, std::move(positions), streams);
  if (!found) return tl::unexpected(found.error());
  if (*found == model.delta()->base_bytes) return {};
  return fail(ErrorCode::InvalidArgument, EINVAL,
              fmt::format("{}: is not the base of {}: the bytes of some tensors have changed since",
                          model.path().native(), model.shards().back().path.native()));
}

}  // namespace stfs::tools
