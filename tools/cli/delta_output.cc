// Writes a delta as a repack of the variant's tensors that differ.
#include "tools/cli/delta_output.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <utility>
#include <vector>

#include "core/model/common_mode.h"
#include "core/model/delta_base.h"
#include "tools/cli/progress.h"
#include "tools/cli/repack_output.h"
#include "tools/compare/changed_files.h"

namespace stfs::tools {
namespace {

bool is_renamed(const HeaderDifference& difference) {
  return difference.kinds.front() == "renamed";
}

/// Returns B's tensors that the delta has, in the order of B's data.
std::vector<std::uint32_t> changed_tensors(const DiffReport& report) {
  std::vector<std::uint32_t> positions;
  for (const HeaderDifference& difference : report.difference.tensors) {
    if (difference.b && !is_renamed(difference)) positions.push_back(*difference.b);
  }
  for (const std::size_t at : report.other_bytes()) positions.push_back(report.difference.pairs[at].b);
  std::ranges::sort(positions);
  return positions;
}

/// Returns B's tensors that have the bytes of a tensor of A.
std::vector<std::uint32_t> tensors_kept_by_b(const DiffReport& report) {
  std::vector<std::uint32_t> positions;
  for (std::size_t at = 0; at < report.comparisons.size(); ++at) {
    if (!report.comparisons[at].is_different) positions.push_back(report.difference.pairs[at].b);
  }
  for (const HeaderDifference& difference : report.difference.tensors) {
    if (is_renamed(difference)) positions.push_back(*difference.b);
  }
  return positions;
}

Delta::Renamed renamed_of(const ModelPair& models, const HeaderDifference& difference) {
  const Tensor tensor = models.b.tensors()[*difference.b];
  return {.name = std::string(tensor.name),
          .from = std::string(models.a.tensors()[*difference.a].name),
          .dtype = tensor.dtype,
          .shape = {tensor.shape.begin(), tensor.shape.end()}};
}

}  // namespace

Result<WrittenDelta> write_delta(const DiffReport& report, const DeltaOutput& output, Streams& streams) {
  const auto& [a, b] = report.models;
  if (is_delta(b.metadata())) {
    return fail(ErrorCode::InvalidArgument, EINVAL,
                b.path().native() + ": is a delta itself: write the variant first, with stfs repack --delta");
  }
  const auto kept = tensors_kept_by_b(report);
  wait_for_later_times(a);
  // Read from B, because the digest uses the names in the variant.
  std::optional<Work> work(std::in_place, watch_on(streams));
  auto base_bytes = digest_of_bytes(b, kept, *work);
  work.reset();
  RETURN_IF_ERROR(base_bytes);
  RETURN_IF_ERROR(check_unchanged(a));
  Delta delta{.base = a.path().filename(),
              .base_tensors = digest_of_tensors(a.tensors()),
              .base_bytes = std::move(*base_bytes),
              .removed = {},
              .metadata = b.metadata(),
              .base_files = base_files_of(a)};
  for (const HeaderDifference& difference : report.difference.tensors) {
    if (!difference.b) delta.removed.emplace_back(a.tensors()[*difference.a].name);
    if (is_renamed(difference)) delta.renamed.push_back(renamed_of(report.models, difference));
  }
  const RepackPlan plan = plan_of_tensors(b, changed_tensors(report), output.path, metadata_of(delta));
  // The delta also has names, digests and metadata of A.
  auto written =
      write_repacked(b, plan, {.is_replacing = output.is_replacing, .most = common_mode(a)}, streams);
  RETURN_IF_ERROR(written);
  return WrittenDelta{output.path, plan.tensors.size(), plan.data_bytes, delta.removed.size(),
                      delta.renamed.size()};
}

Result<void> check_base_bytes(const Model& model, Streams& streams) {
  Work work(watch_on(streams));
  return stfs::check_base_bytes(model, work);
}

Result<void> check_base_of(const Model& model, Streams& streams) {
  Work work(watch_on(streams));
  auto checked = check_base(
      model, [](std::uint64_t, std::string_view) {}, work);
  RETURN_IF_ERROR(checked);
  return {};
}

}  // namespace stfs::tools
