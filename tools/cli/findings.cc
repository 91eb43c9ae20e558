// Finds each kind of problem in turn.
#include "tools/cli/findings.h"

#include <fmt/format.h>

#include <algorithm>

#include "tools/text/quantity.h"

namespace stfs::tools {
namespace {

/// Describes how a tensor that was read differs from the recorded tensor.
Finding difference(const Tensor& came, const std::string& checksum, const RecordedTensor& due) {
  Finding finding{std::string(came.name), {}, {}};
  if (came.dtype != due.dtype) finding.kinds.push_back("dtype");
  if (!std::ranges::equal(came.shape, due.shape)) finding.kinds.push_back("shape");
  const bool is_like = finding.kinds.empty();
  if (checksum != due.checksum) finding.kinds.push_back("checksum");
  if (finding.kinds.empty()) return finding;
  finding.text = fmt::format("other {}: ", joined(finding.kinds, " and "));
  if (is_like) {
    finding.text += fmt::format("found {}, recorded {}", checksum, due.checksum);
  } else {
    finding.text += fmt::format("found {} {}, recorded {} {}", name_of(came.dtype), shape_text(came.shape),
                                name_of(due.dtype), shape_text(due.shape));
  }
  return finding;
}

}  // namespace

void find_unreadable(const Model& model, std::span<const TensorScan> scans, Findings& findings) {
  for (const TensorScan& scan : scans) {
    if (!scan.failure) continue;
    findings.push_back(
        {std::string(model.tensors()[scan.tensor].name), {"unreadable"}, scan.failure->message});
  }
}

void find_non_finite(const Model& model, std::span<const TensorScan> scans, Findings& findings) {
  for (const TensorScan& scan : scans) {
    const NonFinite& count = scan.non_finite;
    if (scan.failure || count == NonFinite{}) continue;
    Finding finding{std::string(model.tensors()[scan.tensor].name), {}, {}};
    if (count.nan > 0) finding.kinds.push_back("nan");
    if (count.infinite > 0) finding.kinds.push_back("infinite");
    finding.text =
        fmt::format("not finite: {} NaN, {} infinite", grouped(count.nan), grouped(count.infinite));
    findings.push_back(std::move(finding));
  }
}

void find_changed(const Model& model, std::span<const TensorScan> scans, const Sums& recorded,
                  Findings& findings) {
  for (const TensorScan& scan : scans) {
    if (scan.failure) continue;
    const Tensor tensor = model.tensors()[scan.tensor];
    const auto due = std::ranges::lower_bound(
        recorded, tensor.name, {}, [](const RecordedTensor& r) { return std::string_view(r.name); });
    if (due == recorded.end() || due->name != tensor.name) {
      findings.push_back({std::string(tensor.name), {"added"}, "is not in the record"});
      continue;
    }
    Finding finding = difference(tensor, scan.checksum, *due);
    if (!finding.kinds.empty()) findings.push_back(std::move(finding));
  }
}

void find_missing(const Model& model, const Sums& recorded, Findings& findings) {
  for (const RecordedTensor& tensor : recorded) {
    if (model.tensors().find(tensor.name)) continue;
    findings.push_back({tensor.name, {"missing"}, "is in the record and missing here"});
  }
}

}  // namespace stfs::tools
