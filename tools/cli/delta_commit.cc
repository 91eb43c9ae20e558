// Plans the merge, and makes it as a transaction or as an edit.
#include "tools/cli/delta_commit.h"

#include <fmt/format.h>

#include <algorithm>
#include <ostream>
#include <utility>
#include <vector>

#include "tools/cli/change.h"
#include "tools/cli/delta_output.h"
#include "tools/cli/diagnostic.h"
#include "tools/cli/interrupt.h"
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

/// Only bytes change: the same transaction as that of `stfs apply`.
Result<void> patch(const EditTarget& target, const EditOptions& options, const DeltaMerge& merge,
                   const Model& changed, Streams& streams) {
  Change change(streams, *target.model, options.change, merge.size_bytes);
  for (const std::uint32_t at : merge.replaced) {
    const auto position = target.model->tensors().find(changed.tensors()[at].name);
    if (auto staged = change.stage(*position, changed, at); !staged) return staged;
  }
  return change.commit();
}

Result<void> edit(EditTarget& target, const EditOptions& options, const DeltaMerge& merge,
                  const Model& changed, Streams& streams) {
  if (auto added = add_to(target.edit, merge, changed); !added) return added;
  const auto fill = [&](const Advance& advance) -> Result<void> {
    std::vector<std::byte> scratch;
    for (std::uint32_t at = 0; at < changed.tensors().size(); ++at) {
      Staging* stage = target.edit.stage(changed.tensors()[at].name);
      const ByteRange from = changed.file_range(at);
      for (std::uint64_t offset = 0; offset < from.size_bytes;) {
        const std::uint64_t size_bytes = std::min(Change::kPieceBytes, from.size_bytes - offset);
        const auto piece = changed.archive_of(at).read({from.offset + offset, size_bytes}, scratch);
        if (auto goes_on = advance(size_bytes); !goes_on) return goes_on;
        if (!piece) return tl::unexpected(piece.error());
        if (auto written = stage->write(*piece, offset); !written) return written;
        offset += size_bytes;
      }
    }
    return {};
  };
  return carry_out(target, options, merge.size_bytes, fill, streams);
}

void print_merged(const DeltaCommit& commit, const EditTarget& target, const DeltaMerge& merge,
                  const OpenDelta& delta, std::ostream& out) {
  const Model& changed = *delta.model;
  const bool is_dry_run = commit.options.is_dry_run;
  if (commit.options.json) {
    Json document = json_of_edit(target, commit.options);
    document["changed"] = !is_dry_run && (!merge.is_patch() || !merge.replaced.empty());
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
  const bool is_nothing = merge.is_patch() && merge.replaced.empty();
  if (is_nothing) {
    out << fmt::format("nothing to change in {}\n", printable(commit.base));
  } else {
    print_result(out, target, commit.options,
                 fmt::format("{} in {}", summary_of(merge), printable(commit.base)));
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
  auto target = open_target(named, Use::Tensors);
  if (!target) return pass_on(std::move(target));
  if (target->tensor || target->model->is_sharded()) {
    return fail(ErrorCode::InvalidArgument, EINVAL, named + ": is not the archive of a delta: name its file");
  }
  auto keys = parse_delta(target->model->metadata());
  if (!keys) return tl::unexpected(std::move(keys).error().within(named));
  return OpenDelta{named, std::move(target->model), std::move(*keys)};
}

/// Opens the base for reading, with the delta on top, and checks that it has the bytes that the delta was
/// made for.
Result<std::unique_ptr<Model>> open_variant(const std::string& base, const OpenDelta& delta,
                                            Streams& streams) {
  auto model = open_whole(base, Use::Tensors);
  if (!model) return model;
  if (auto fits = check_delta(delta.keys, delta.model->tensors(), (*model)->tensors()); !fits) {
    return fail(ErrorCode::InvalidArgument, EINVAL,
                fmt::format("{}: {}: {}. Of deltas on top of each other, commit the lowest first", base,
                            delta.model->path().string(), fits.error().message));
  }
  model = open_whole(base, Use::Tensors, {.deltas = {delta.model->path()}});
  if (!model) return model;
  const InterruptGuard guard;
  if (auto fits = check_base_of(**model, streams); !fits) return pass_on(std::move(fits));
  return model;
}

Result<int> commit_delta(const DeltaCommit& commit, const OpenDelta& delta, Streams& streams) {
  if (!commit.options.is_dry_run && !commit.options.change.has_no_locks &&
      delta.model->archive(0).has_other_readers()) {
    return report_failure(streams, delta.named +
                                       ": is mounted, or another program has it open: unmount it "
                                       "first, since it will not fit its base any more");
  }
  // First: it recovers the base. Both models are open then, and this process must not be a reader of the
  // base when the edit begins: so the other one is closed at once.
  auto target = open_for_edit(commit.base, streams);
  if (!target) return kFailed;
  if (commit.check_base) {
    if (auto checked = commit.check_base(*target->model); !checked)
      return report_failure(streams, checked.error().message);
  }
  if (const auto variant = open_variant(commit.base, delta, streams); !variant) {
    return report_failure(streams, variant.error().message);
  }
  auto merge = merge_of(delta.keys, *delta.model, *target->model);
  if (!merge) return report_failure(streams, fmt::format("{}: {}", delta.named, merge.error().message));
  if (commit.keeps_metadata) merge->metadata.clear();
  Result<void> done;
  if (!merge->is_patch()) {
    done = edit(*target, commit.options, *merge, *delta.model, streams);
  } else if (!commit.options.is_dry_run) {
    done = patch(*target, commit.options, *merge, *delta.model, streams);
  }
  if (!done) return tl::unexpected(done.error());
  print_merged(commit, *target, *merge, delta, streams.out);
  streams.out.flush();
  return streams.out ? kDone : kFailed;
}

}  // namespace stfs::tools
