// The attribute user.safetensors.view gives the kind of a file (core/storage/attribute_names.h).
#include "tools/target/mounted_path.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string_view>
#include <system_error>
#include <utility>

#include "core/model/model_directory.h"
#include "core/storage/attribute_names.h"
#include "core/storage/trusted_links.h"

namespace stfs::tools {
namespace {

namespace fs = std::filesystem;

/// The kind of the named file: one row of the table in target.h.
enum class Kind { Root, OwnFile, Archive, TensorView, Document, Staged };

/// A value of user.safetensors.view, and the words of a refusal for this view.
struct View {
  std::string_view value;
  Kind kind;
  std::string_view description;
};
constexpr std::array<View, 6> kViews = {{
    {kNpyView, Kind::TensorView, "the NumPy view of a tensor"},
    {kFloat32View, Kind::TensorView, "the float32 view of a tensor"},
    {kSliceView, Kind::TensorView, "a slice of a tensor"},
    {kArchiveView, Kind::Archive, "the view of the whole model"},
    {kDocumentView, Kind::Document, "a document about the model"},
    {kTransactionView, Kind::Staged, "a file of a transaction"},
}};
// For an attribute value that this version does not know: the mount's daemon has another version.
constexpr View kUnknownView = {"", Kind::TensorView, "a view of a tensor"};

/// Returns the absolute path of a named file. Only follow_named_path() walks the named path: another user may
/// exchange a directory on it for a link into a mount that does not answer.
fs::path place_of(const fs::path& named) {
  std::error_code error;
  const fs::path absolute = fs::absolute(named, error).lexically_normal();
  const auto found = follow_named_path(named);
  return found ? real_path_of(found->fd.get(), absolute) : absolute;
}

/// Returns true if a path is in `.safetensors` of its mount.
bool is_among_views(const fs::path& named, const fs::path& root) {
  const fs::path inside = place_of(named).lexically_relative(root);
  return !inside.empty() && *inside.begin() == ".safetensors";
}

std::optional<View> view_at(const fs::path& named, const AttributeReader& attributes) {
  const auto value = attributes(named, kViewAttribute);
  if (value) {
    const auto known = std::ranges::find(kViews, *value, &View::value);
    return known == kViews.end() ? kUnknownView : *known;
  }
  const auto root = mount_above(named, attributes);
  return root && is_among_views(named, *root) ? std::optional(kUnknownView) : std::nullopt;
}

tl::unexpected<Error> refuse_view(const View& view, Use use, const fs::path& named,
                                  const AttributeReader& attributes) {
  const auto root = mount_above(named, attributes);
  const auto file = attributes(named, kFileAttribute);
  const bool is_of_tensor = view.kind == Kind::TensorView || view.kind == Kind::Staged;
  std::string instead = is_of_tensor ? "the tensor's own file" : "the mount";
  if (root && is_of_tensor && file) instead += ", " + (*root / *file).string();
  if (root && !is_of_tensor) instead += ", " + root->string();
  const std::string_view why = use != Use::Change          ? ""
                               : view.kind == Kind::Staged ? ", which cp(1) and dd(1) can write"
                                                           : ", and is read-only";
  return fail(use == Use::Change ? ErrorCode::ReadOnly : ErrorCode::InvalidArgument,
              use == Use::Change ? EROFS : EINVAL,
              fmt::format("{}: is {}{}: name {}", named.string(), view.description, why, instead));
}

}  // namespace

std::optional<fs::path> mount_above(const fs::path& named, const AttributeReader& attributes) {
  for (fs::path path = place_of(named); path.has_relative_path();) {
    path = path.parent_path();
    if (attributes(path, kArchiveAttribute)) return path;
  }
  return std::nullopt;
}

Result<TargetPath> locate_in_mount(const fs::path& named, std::string archive, Use use,
                                   const AttributeReader& attributes) {
  TargetPath path{.archive = std::move(archive), .is_mounted = true};
  auto tensor = attributes(named, kNameAttribute);
  auto deltas = attributes(named, kDeltaAttribute);
  if (const auto root = tensor ? mount_above(named, attributes) : std::nullopt) {
    // A tensor's attribute names the file that has its bytes. With a delta the tensor may have another name
    // there.
    deltas = attributes(*root, kDeltaAttribute);
    const auto base = attributes(*root, kArchiveAttribute);
    if (deltas && base) path.archive = *base;
  }
  if (deltas) path.deltas = split_deltas(*deltas);
  if (use == Use::Model) return path;
  const auto view = view_at(named, attributes);
  const Kind kind = view ? view->kind : tensor ? Kind::OwnFile : Kind::Root;
  const bool is_whole_model = kind == Kind::Root || (kind == Kind::Archive && use != Use::Change);
  if (is_whole_model) return path;
  if (kind == Kind::OwnFile) {
    path.tensor = std::move(tensor);
    return path;
  }
  if (use != Use::Bytes) return refuse_view(*view, use, named, attributes);
  path.view = named;
  return path;
}

}  // namespace stfs::tools
