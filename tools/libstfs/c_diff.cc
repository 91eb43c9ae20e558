// Compares two models.
#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <thread>

#include "tools/compare/changed_files.h"
#include "tools/compare/model_difference.h"
#include "tools/compare/tensor_comparison.h"
#include "tools/libstfs/c_error.h"
#include "tools/libstfs/c_struct.h"
#include "tools/libstfs/c_work.h"
#include "tools/libstfs/handles.h"
#include "tools/text/near_names.h"
#include "tools/text/printable.h"

using namespace stfs;
using namespace stfs::interface;

/// Owns copies of all texts, so that the handle pins no model.
struct stfs_diff {
  struct Side {
    std::int32_t dtype = -1;
    std::vector<std::uint64_t> shape;
  };
  struct Row {
    std::string name;
    std::uint32_t kinds = 0;
    Side a;
    Side b;
    std::optional<tools::ElementStatistics> statistics;
  };
  struct Entry {
    std::string key;
    std::optional<std::string> a;
    std::optional<std::string> b;
  };
  std::uint64_t compared_count = 0;
  std::vector<Row> rows;
  std::vector<Entry> metadata;
};

namespace {

stfs_diff::Side side_of(const Model& model, std::optional<std::uint32_t> position) {
  if (!position) return {};
  const Tensor tensor = model.tensors()[*position];
  return {static_cast<std::int32_t>(tensor.dtype), {tensor.shape.begin(), tensor.shape.end()}};
}

std::uint32_t kind_named(std::string_view kind) {
  if (kind == "only_in_a") return STFS_ONLY_IN_A;
  if (kind == "only_in_b") return STFS_ONLY_IN_B;
  return kind == "dtype" ? STFS_OTHER_DTYPE : STFS_OTHER_SHAPE;
}

Result<void> check_globs(const tools::NameGlobs& globs, const tools::ModelPair& models) {
  const auto unused = globs.unused();
  if (unused.empty()) return {};
  return fail(ErrorCode::NotFound, ENOENT,
              fmt::format("{}, {}: {}", models.a.path().string(), models.b.path().string(),
                          tools::unmatched_text(unused.front(), {&models.a.tensors(), &models.b.tensors()})));
}

/// Copies the results of a comparison.
Result<std::unique_ptr<stfs_diff>> diff_of(const tools::ModelPair& models,
                                           const tools::ModelDifference& difference,
                                           std::vector<tools::TensorComparison> comparisons) {
  auto diff = std::make_unique<stfs_diff>();
  diff->compared_count = difference.tensors.size() + difference.pairs.size();
  for (const tools::HeaderDifference& tensor : difference.tensors) {
    stfs_diff::Row row;
    row.name = tensor.a ? models.a.tensors()[*tensor.a].name : models.b.tensors()[*tensor.b].name;
    for (const std::string_view kind : tensor.kinds) row.kinds |= kind_named(kind);
    row.a = side_of(models.a, tensor.a);
    row.b = side_of(models.b, tensor.b);
    diff->rows.push_back(std::move(row));
  }
  for (std::size_t at = 0; at < comparisons.size(); ++at) {
    tools::TensorComparison& comparison = comparisons[at];
    const tools::TensorPair pair = difference.pairs[at];
    const std::string name(models.a.tensors()[pair.a].name);
    if (comparison.failure) {
      return tl::unexpected(std::move(*comparison.failure).within(tools::printable_name(name)));
    }
    if (!comparison.is_different) continue;
    diff->rows.push_back({name, STFS_OTHER_BYTES, side_of(models.a, pair.a), side_of(models.b, pair.b),
                          comparison.statistics});
  }
  for (const tools::MetadataDifference& entry : difference.metadata) {
    diff->metadata.push_back(
        {std::string(entry.key), std::optional<std::string>(entry.a), std::optional<std::string>(entry.b)});
  }
  return diff;
}

Result<stfs_diff*> compare(const OpenedModel& a, const OpenedModel& b, const stfs_diff_options& given) {
  const tools::ModelPair models = {*a.model, *b.model};
  if (given.pattern_count > 0 && (a.only || b.only)) {
    return refuse("stfs_diff_make: a model is a tensor's file: patterns need archives or mounts");
  }
  tools::NameGlobs globs(std::vector<std::string>(given.patterns, given.patterns + given.pattern_count));
  const tools::ModelDifference difference =
      tools::difference_of({models.a, a.only}, {models.b, b.only}, globs);
  RETURN_IF_ERROR(check_globs(globs, models));
  Work work(watch_of(given.progress, given.context));
  const unsigned processors = std::max(std::thread::hardware_concurrency(), 1U);
  auto comparisons = tools::compare_tensors(models, difference.pairs,
                                            {.threads = given.threads != 0 ? given.threads : processors,
                                             .has_statistics = given.is_brief == 0,
                                             .work = &work});
  if (work.is_stopped()) {
    return fail(ErrorCode::System, ECANCELED, models.a.path().string() + ": the comparison was cancelled");
  }
  RETURN_IF_ERROR(comparisons);
  for (const Model* model : {&models.a, &models.b}) {
    auto unchanged = tools::check_unchanged(*model, "the comparison: compare it again");
    RETURN_IF_ERROR(unchanged);
  }
  auto diff = diff_of(models, difference, std::move(*comparisons));
  RETURN_IF_ERROR(diff);
  return diff->release();
}

}  // namespace

stfs_diff* stfs_diff_make(const stfs_model* a, const stfs_model* b, const stfs_diff_options* options,
                          stfs_error* error) {
  return answer(error, [&]() -> Result<stfs_diff*> {
    const auto given = options == nullptr ? Result<stfs_diff_options>() : take_struct(options);
    RETURN_IF_ERROR(given);
    const auto opened_a = a->opened();
    RETURN_IF_ERROR(opened_a);
    const auto opened_b = b->opened();
    RETURN_IF_ERROR(opened_b);
    return compare(**opened_a, **opened_b, *given);
  });
}

void stfs_diff_close(stfs_diff* diff) {
  delete diff;
}

std::uint64_t stfs_diff_compared_count(const stfs_diff* diff) {
  return diff->compared_count;
}

std::uint64_t stfs_diff_count(const stfs_diff* diff) {
  return diff->rows.size();
}

int stfs_diff_tensor(const stfs_diff* diff, std::uint64_t position, stfs_difference* difference,
                     stfs_error* error) {
  return answer(error, [&]() -> Result<void> {
    if (position >= diff->rows.size()) {
      return refuse(fmt::format("stfs_diff_tensor: no tensor {}", position));
    }
    const stfs_diff::Row& row = diff->rows[static_cast<std::size_t>(position)];
    stfs_difference known{};
    known.name = {row.name.data(), row.name.size()};
    known.kinds = row.kinds;
    known.dtype_a = row.a.dtype;
    known.dtype_b = row.b.dtype;
    known.rank_a = static_cast<std::uint32_t>(row.a.shape.size());
    known.rank_b = static_cast<std::uint32_t>(row.b.shape.size());
    known.shape_a = row.a.shape.data();
    known.shape_b = row.b.shape.data();
    if (row.statistics) {
      known.has_statistics = 1;
      known.different = row.statistics->different;
      known.not_finite = row.statistics->not_finite;
      known.largest_difference = row.statistics->largest_difference;
      known.largest_relative_difference = row.statistics->largest_relative_difference;
      known.cosine = row.statistics->cosine().value_or(std::numeric_limits<double>::quiet_NaN());
      known.norm_a = row.statistics->norm_a();
      known.norm_b = row.statistics->norm_b();
      known.norm_difference = row.statistics->norm_difference();
    }
    return give_struct(known, difference);
  });
}

std::uint64_t stfs_diff_metadata_count(const stfs_diff* diff) {
  return diff->metadata.size();
}

int stfs_diff_metadata(const stfs_diff* diff, std::uint64_t position, stfs_text* key, stfs_text* value_a,
                       stfs_text* value_b, stfs_error* error) {
  return answer(error, [&]() -> Result<void> {
    if (position >= diff->metadata.size()) {
      return refuse(fmt::format("stfs_diff_metadata: no entry {}", position));
    }
    const stfs_diff::Entry& entry = diff->metadata[static_cast<std::size_t>(position)];
    const auto text_of = [](const std::optional<std::string>& text) {
      return text ? stfs_text{text->data(), text->size()} : stfs_text{nullptr, 0};
    };
    *key = {entry.key.data(), entry.key.size()};
    *value_a = text_of(entry.a);
    *value_b = text_of(entry.b);
    return {};
  });
}
