#include "fs/model/file_label.h"

#include <fmt/format.h>

#include "fs/tree/names.h"

namespace stfs {
namespace {

std::string path_in_tree(ModelParts& parts, Ino ino) {
  const InodeTable& table = parts.tree.table();
  if (ino == kRootIno || !table.exists(ino)) return "";
  std::string path(table.file_name(ino));
  for (ino = table.parent(ino); ino != kRootIno; ino = table.parent(ino))
    path = fmt::format("{}/{}", table.file_name(ino), path);
  return path;
}

/// @param ino  in a transaction.
std::string path_in_transactions(ModelParts& parts, const Node& node) {
  const TransactionDirectory& all = parts.transactions;
  std::string path = "transactions";
  all.list(TransactionDirectory::kTransactions, 0, [&](std::string_view name, Ino one, std::uint64_t) {
    const bool is_its =
        TransactionDirectory::is_in_transaction(one) && all.npy_directory(one) == all.npy_directory(node.ino);
    if (is_its) path += fmt::format("/{}", name);
    return !is_its;
  });
  return node.is_directory() ? path : fmt::format("{}/{}", path, all.name(node.ino));
}

std::string path_below_hidden(ModelParts& parts, const Node& node) {
  if (PretrainedDirectory::owns(node.ino)) return std::string(PretrainedDirectory::kEntry.name);
  if (Views::owns(node.ino)) return parts.views.path(node.ino);
  if (node.ino == TransactionDirectory::kTransactions) return "transactions";
  if (node.ino == TransactionDirectory::kCommitted) return "committed";
  return TransactionDirectory::is_in_transaction(node.ino) ? path_in_transactions(parts, node) : "";
}

std::string path_of(ModelParts& parts, Ino of_mount) {
  const Node node = parts.resolve(of_mount);
  if (node.ino == kHiddenIno) return std::string(kViewsDirectory);
  if (node.ino > kHiddenIno || Views::owns(node.ino))
    return fmt::format("{}/{}", kViewsDirectory, path_below_hidden(parts, node));
  const auto draft = parts.drafts.find(node.ino);
  if (!draft) return path_in_tree(parts, node.ino);
  return draft->directory == kRootIno
             ? draft->file_name
             : fmt::format("{}/{}", path_of(parts, draft->directory), draft->file_name);
}

}  // namespace

std::string file_label(ModelParts& parts, Ino ino, std::string_view name) {
  const std::string model = parts.model->path().string();
  std::string path = path_of(parts, ino);
  if (!name.empty()) path = path.empty() ? std::string(name) : fmt::format("{}/{}", path, name);
  return path.empty() ? model : fmt::format("{}: {}", model, path);
}

}  // namespace stfs
