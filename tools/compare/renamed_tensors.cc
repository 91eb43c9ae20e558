// Several threads hash the candidates, one tensor each. The hashes then give the pairs.
#include "tools/compare/renamed_tensors.h"

#include <algorithm>
#include <cerrno>
#include <compare>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "core/base/checksum.h"

namespace stfs::tools {
namespace {

constexpr std::uint64_t kPieceBytes = 4U << 20U;

/// The properties that a renamed tensor keeps, without its bytes.
struct Form {
  Dtype dtype = Dtype::U8;
  std::vector<std::uint64_t> shape;
  auto operator<=>(const Form&) const = default;
};

/// A tensor that only one model has.
struct Candidate {
  std::size_t row = 0;  // in ModelDifference::tensors
  bool is_of_a = false;
  std::uint32_t position = 0;
  std::string hash{};  // empty: the tensor cannot be read
};

Form form_of(const Tensor& tensor) {
  return {tensor.dtype, {tensor.shape.begin(), tensor.shape.end()}};
}

/// Returns the tensors that may be renamed, in the order of their rows.
std::vector<Candidate> candidates_of(const ModelPair& models, const ModelDifference& difference) {
  std::map<Form, std::pair<std::vector<Candidate>, std::vector<Candidate>>> by_form;
  for (std::size_t row = 0; row < difference.tensors.size(); ++row) {
    const HeaderDifference& each = difference.tensors[row];
    if (each.a && each.b) continue;
    const std::uint32_t position = each.a ? *each.a : *each.b;
    const Tensor tensor = (each.a ? models.a : models.b).tensors()[position];
    if (tensor.data.size_bytes == 0) continue;
    auto& [of_a, of_b] = by_form[form_of(tensor)];
    (each.a ? of_a : of_b).push_back({row, each.a.has_value(), position});
  }
  std::vector<Candidate> candidates;
  for (const auto& [form, both] : by_form) {
    const auto& [of_a, of_b] = both;
    if (of_a.empty() || of_b.empty()) continue;
    candidates.insert(candidates.end(), of_a.begin(), of_a.end());
    candidates.insert(candidates.end(), of_b.begin(), of_b.end());
  }
  std::ranges::sort(candidates, {}, &Candidate::row);
  return candidates;
}

std::string hash_of(const Model& model, std::uint32_t position, Work& work) {
  Checksum checksum;
  std::vector<std::byte> scratch;
  const ByteRange whole = model.file_range(position);
  for (std::uint64_t done = 0; done < whole.size_bytes && work.goes_on(); done += kPieceBytes) {
    const ByteRange piece{whole.offset + done, std::min(kPieceBytes, whole.size_bytes - done)};
    const auto bytes = model.archive_of(position).read(piece, scratch);
    if (!bytes) return {};
    checksum.update(*bytes);
    work.advance(piece.size_bytes);
  }
  return checksum.hex();
}

/// Joins the two rows of each pair in the row of A's tensor, and removes the other row.
void join_pairs(const ModelPair& models, const std::vector<Candidate>& candidates,
                std::vector<HeaderDifference>& rows) {
  std::map<std::pair<Form, std::string>, std::vector<const Candidate*>> of_a;  // the last one first
  for (std::size_t at = candidates.size(); at-- > 0;) {
    const Candidate& each = candidates[at];
    if (!each.is_of_a || each.hash.empty()) continue;
    of_a[{form_of(models.a.tensors()[each.position]), each.hash}].push_back(&each);
  }
  for (const Candidate& each : candidates) {
    if (each.is_of_a || each.hash.empty()) continue;
    const auto found = of_a.find({form_of(models.b.tensors()[each.position]), each.hash});
    if (found == of_a.end() || found->second.empty()) continue;
    HeaderDifference& row = rows[found->second.back()->row];
    found->second.pop_back();
    row = {row.a, each.position, {"renamed"}};
    rows[each.row] = {};
  }
  std::erase_if(rows, [](const HeaderDifference& row) { return !row.a && !row.b; });
}

}  // namespace

Result<void> find_renamed(const ModelPair& models, ModelDifference& difference, std::uint64_t threads,
                          Work& work) {
  std::vector<Candidate> candidates = candidates_of(models, difference);
  if (candidates.empty()) return {};
  std::uint64_t total_bytes = 0;
  for (const Candidate& each : candidates) {
    total_bytes += (each.is_of_a ? models.a : models.b).file_range(each.position).size_bytes;
  }
  const auto hash = [&](std::size_t at, unsigned) -> Result<void> {
    Candidate& each = candidates[at];
    each.hash = hash_of(each.is_of_a ? models.a : models.b, each.position, work);
    return {};
  };
  work.begin(total_bytes);
  RETURN_IF_ERROR(run_watched(candidates.size(), threads, work, hash));
  if (work.is_stopped()) return fail(ErrorCode::System, EINTR, "interrupted");
  join_pairs(models, candidates, difference.tensors);
  return {};
}

}  // namespace stfs::tools
