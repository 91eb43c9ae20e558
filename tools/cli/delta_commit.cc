#include "tools/cli/delta_commit.h"

#include <fmt/format.h>

#include <ostream>
#include <utility>
#include <vector>

#include "tools/cli/change.h"
#include "tools/cli/delta_output.h"
#include "tools/cli/diagnostic.h"
#include "tools/cli/interrupt.h"
#include "tools/target/source_readers.h"
#include "tools/target/target.h"
#include "tools/text/json_document.h"
#include "tools/text/printable.h"
#include "tools/text/quantity.h"

namespace stfs::tools {
namespace {

std::string summary_of(const DeltaMerge& merge) {
  std::string text;
  const auto add = [&text](std::string_view what, std::size_t count, std::string_view noun) {
    if (count == 0) return;
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", what, counted(count, noun));
  };
  add("changed", merge.replaced.size() + merge.remade.size(), "tensor");
  add("added", merge.added.size(), "tensor");
  add("removed", merge.removed.size(), "tensor");
  add("renamed or retyped", merge.renamed.size(), "tensor");
  add("set", merge.metadata.size(), "key");
  return fmt::format("{}, {}", text, human_size(merge.size_bytes));
}

void print_names(const DeltaMerge& merge, const Model& changed, std::ostream& out) {
  const auto print = [&](std::string_view what, const std::vector<std::uint32_t>& positions) {
    for (const std::uint32_t at : positions) {
      const Tensor tensor = changed.tensors()[at];
      out << fmt::format("{} {}: {} {}, {}\n", what, printable_name(tensor.name), name_of(tensor.dtype),
                         shape_text(tensor.shape), human_size(tensor.data.size_bytes));
    }
  };
  print("change", merge.replaced);
  print("change", merge.remade);
  print("add", merge.added);
  for (const std::string& name : merge.removed) out << fmt::format("remove {}\n", printable_name(name));
  for (const Delta::Renamed& renamed : merge.renamed) {
    out << fmt::format("rename {} to {}: {} {}\n", printable_name(renamed.from), printable_name(renamed.name),
                       name_of(renamed.dtype), shape_text(renamed.shape));
  }
  for (const auto& [key, value] : merge.metadata) {
    out << fmt::format("{} metadata {}\n", value ? "set" : "unset", printable(key));
  }
}

Json names_of(const std::vector<std::uint32_t>& positions, const Model& changed) {
  Json tensors = Json::array();
  for (const std::uint32_t at : positions) tensors.push_back(json_of(changed.tensors()[at]));
  return tensors;
}

Result<void> merge_into(Change& change, const DeltaMerge& merge, const Model& changed) {
  RETURN_IF_ERROR(add_to(change.what(), merge, changed));
  return change.carry_out(merge.size_bytes, [&]() -> Result<void> {
    for (std::uint32_t at = 0; at < changed.tensors().size(); ++at) {
      RETURN_IF_ERROR(change.write(changed, at));
    }
    return {};
  });
}

void print_merged(const DeltaCommit& commit, const Change& change, const DeltaMerge& merge,
                  const OpenDelta& delta, std::ostream& out) {
  const Model& changed = *delta.model;
  const bool is_dry_run = commit.options.is_dry_run;
  if (commit.options.json) {
    Json document = change.json();
    document["delta"] = json_path(changed.path());
    document["size_bytes"] = merge.size_bytes;
    std::vector<std::uint32_t> replaced = merge.replaced;
    replaced.insert(replaced.end(), merge.remade.begin(), merge.remade.end());
    document["replaced"] = names_of(replaced, changed);
    document["added"] = names_of(merge.added, changed);
    document["removed"] = merge.removed;
    document["renamed"] = Json::object();
    for (const Delta::Renamed& renamed : merge.renamed) document["renamed"][renamed.from] = renamed.name;
    document["metadata"] = Json::object();
    for (const auto& [key, value] : merge.metadata) {
      document["metadata"][key] = value ? Json(*value) : Json(nullptr);
    }
    write_json(document, out);
    return;
  }
  if (is_dry_run) print_names(merge, changed, out);
  if (change.what().is_empty()) {
    out << fmt::format("nothing to change in {}\n", printable(commit.base));
  } else {
    change.print_result(fmt::format("{} in {}", summary_of(merge), printable(commit.base)));
  }
  if (is_dry_run) return;
  const std::string name = printable(delta.named);
  if (commit.keeps_metadata) return;  // `stfs apply`, maybe to one copy of the base of several
  out << (merge.is_patch()
              ? fmt::format("{} is not needed any more: delete it\n", name)
              : fmt::format("{} no longer fits its base, which has all its changes: delete it\n", name));
}

}  // namespace

Result<OpenDelta> open_delta(const std::string& named) {
  auto target = open_target(named, Use::Tensors, {.links = Links::Trusted});
  RETURN_IF_ERROR(target);
  if (target->tensor || target->model->is_sharded()) {
    return fail(ErrorCode::InvalidArgument, EINVAL, named + ": is not the archive of a delta: name its file");
  }
  auto keys = parse_delta(target->model->metadata());
  if (!keys) return tl::unexpected(std::move(keys).error().within(named));
  return OpenDelta{named, std::move(target->model), std::move(*keys)};
}

Result<std::unique_ptr<Model>> open_variant(const std::string& base, const OpenDelta& delta,
                                            Streams& streams) {
  auto model = open_whole(base, Use::Tensors);
  RETURN_IF_ERROR(model);
  if (auto fits = check_delta(delta.keys, delta.model->tensors(), (*model)->tensors()); !fits) {
    return fail(ErrorCode::InvalidArgument, EINVAL,
                fmt::format("{}: {}: {}. Of deltas on top of each other, commit the lowest first", base,
                            delta.model->path().string(), fits.error().message));
  }
  model = open_whole(base, Use::Tensors, {.deltas = {delta.model->path()}});
  RETURN_IF_ERROR(model);
  const InterruptGuard guard;
  RETURN_IF_ERROR(check_base_of(**model, streams));
  return model;
}

Result<int> commit_delta(const DeltaCommit& commit, const OpenDelta& delta, Streams& streams) {
  if (!commit.options.is_dry_run && !commit.options.change.has_no_locks &&
      !is_alone_soon(delta.model->archive(0), commit.options.change)) {
    return report_failure(streams, delta.named +
                                       ": is mounted, or another program has it open: unmount it "
                                       "first, since it will not fit its base any more");
  }
  // open_for_edit() is the first step, because it recovers the base. This process must not be a reader of the
  // base when the edit begins, so the second model is closed at once.
  const auto change = open_for_edit(commit.base, commit.options, streams);
  if (!change) return kFailed;
  if (auto allowed = check_source_readers(change->model(), *delta.model, delta.named); !allowed)
    return report_failure(streams, allowed.error().message);
  if (commit.check_base) {
    if (auto checked = commit.check_base(change->model()); !checked)
      return report_failure(streams, checked.error().message);
  }
  if (const auto variant = open_variant(commit.base, delta, streams); !variant) {
    return report_failure(streams, variant.error().message);
  }
  auto merge = merge_of(delta.keys, *delta.model, change->model());
  if (!merge) return report_failure(streams, fmt::format("{}: {}", delta.named, merge.error().message));
  if (commit.keeps_metadata) merge->metadata.clear();
  RETURN_IF_ERROR(merge_into(*change, *merge, *delta.model));
  print_merged(commit, *change, *merge, delta, streams.out);
  streams.out.flush();
  return streams.out ? kDone : kFailed;
}

}  // namespace stfs::tools
