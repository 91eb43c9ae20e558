#include "core/remote/model_choice.h"

#include <fmt/format.h>

#include <algorithm>
#include <span>

namespace stfs {
namespace {

constexpr std::string_view kArchive = ".safetensors";
constexpr std::string_view kIndex = ".safetensors.index.json";

}  // namespace

bool is_model_file(std::string_view path) {
  return path.ends_with(kArchive) || path.ends_with(kIndex);
}

std::string_view folder_of(std::string_view path) {
  return path.substr(0, path.rfind('/') + 1);
}

ModelChoice choose_model_file(std::string_view folder, const std::vector<std::string>& paths) {
  std::vector<std::string> indexes;
  std::vector<std::string> archives;
  for (const std::string& path : paths) {
    if (folder_of(path) != folder) continue;
    if (path.ends_with(kIndex)) indexes.push_back(path);
    if (path.ends_with(kArchive)) archives.push_back(path);
  }
  for (const std::string_view name : {"model", "diffusion_pytorch_model"}) {
    for (const std::string_view suffix : {kArchive, kIndex}) {
      std::string usual = fmt::format("{}{}{}", folder, name, suffix);
      if (std::ranges::find(paths, usual) != paths.end()) return {std::move(usual), {}};
    }
  }
  if (indexes.size() == 1) return {indexes.front(), {}};
  if (indexes.empty() && archives.size() == 1) return {archives.front(), {}};
  return {{}, indexes.empty() ? archives : indexes};
}

Error several_archives(std::string_view shown, std::string_view example,
                       const std::vector<std::string>& several) {
  constexpr std::size_t kShown = 10;
  std::string list;
  for (const std::string& choice : std::span(several).first(std::min(kShown, several.size())))
    list += (list.empty() ? "" : ", ") + choice;
  if (several.size() > kShown) list += fmt::format(" and {} more", several.size() - kShown);
  return {ErrorCode::InvalidArgument, EINVAL,
          fmt::format("{}: has several archives: name one as {}: {}", shown, example, list)};
}

}  // namespace stfs
