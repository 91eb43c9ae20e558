// The directory `.safetensors`, which contains the views and the transactions of a model. Programs can reach
// it by name, but the root does not list it.
#pragma once

#include <string_view>

#include "fs/read/pretrained_directory.h"
#include "fs/read/views.h"
#include "fs/tree/directory.h"
#include "fs/write/transaction_directory.h"

namespace stfs {

class HiddenDirectory final : public Directory {
 public:
  /// All must outlive this object.
  HiddenDirectory(Views& views, TransactionDirectory& transactions)
      : views_(views), transactions_(transactions) {}

  [[nodiscard]] Node node(Ino ino) const override {
    return {.ino = ino, .kind = Node::Kind::StagedDirectory};
  }
  Result<Ino> find(Ino, std::string_view name) override {
    if (const auto found = transactions_.find_top(name)) return *found;
    if (name != PretrainedDirectory::kEntry.name) return views_.find_top(name);
    return PretrainedDirectory::kEntry.ino;
  }
  void list(Ino directory, std::uint64_t position, const VisitEntry& visit) const override {
    constexpr std::size_t kTransactionEntries = TransactionDirectory::kEntries.size();
    constexpr std::size_t kEntries = kTransactionEntries + Views::kEntries.size() + 1;
    visit_entries(directory, kRootIno, kEntries, position, visit, [this](std::size_t at) {
      if (at < kTransactionEntries) return TransactionDirectory::kEntries[at];
      if (at + 1 == kEntries) return PretrainedDirectory::kEntry;
      const FixedEntry& view = Views::kEntries[at - kTransactionEntries];
      return FixedEntry{view.name, views_.present(view.ino)};
    });
  }

 private:
  Views& views_;
  TransactionDirectory& transactions_;
};

}  // namespace stfs
