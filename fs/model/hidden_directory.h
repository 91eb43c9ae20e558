// `.safetensors`: the views and the transactions of a model. It can be reached by name, and the root does not
// list it.
#pragma once

#include <string_view>

#include "fs/read/views.h"
#include "fs/tree/directory.h"
#include "fs/write/transaction_directory.h"

namespace stfs {

class HiddenDirectory final : public Directory {
 public:
  /// Both must outlive this object.
  HiddenDirectory(Views& views, TransactionDirectory& transactions)
      : views_(views), transactions_(transactions) {}

  [[nodiscard]] Node node(Ino ino) const override {
    return {.ino = ino, .kind = Node::Kind::StagedDirectory};
  }
  Result<Ino> find(Ino, std::string_view name) override {
    if (const auto found = transactions_.find_top(name)) return *found;
    return views_.find_top(name);
  }
  void list(Ino directory, std::uint64_t position, const VisitEntry& visit) const override {
    constexpr std::size_t kTransactionEntries = TransactionDirectory::kEntries.size();
    visit_entries(directory, kRootIno, kTransactionEntries + Views::kEntries.size(), position, visit,
                  [this](std::size_t at) {
                    if (at < kTransactionEntries) return TransactionDirectory::kEntries[at];
                    const FixedEntry& view = Views::kEntries[at - kTransactionEntries];
                    return FixedEntry{view.name, views_.present(view.ino)};
                  });
  }

 private:
  Views& views_;
  TransactionDirectory& transactions_;
};

}  // namespace stfs
