// Directories that commit.
#include "tests/simulation/transaction_deeds.h"

#include <fmt/format.h>

#include <cerrno>
#include <string>

namespace stfs::test {

void TransactionDeeds::begin(std::uint32_t a, std::uint32_t b) {
  Program* program = programs_.pick(a);
  if (program == nullptr || truth_.is_turning()) return;
  const Busy busy(*program);
  const std::string name(kTransactions[b % std::size(kTransactions)]);
  if (name == now_.committing) return;
  const bool is_there = truth_.has_transaction(name);
  const int error = kernel_.make_directory(*program, std::string(kTransactionsPath) + name);
  expect(error == (is_there ? EEXIST : 0), fmt::format("mkdir gives {}", error));
  if (error == 0) truth_.make_transaction(name);
}

void TransactionDeeds::commit(std::uint32_t a, std::uint32_t b) {
  Program* program = programs_.pick(a);
  const std::string name(kTransactions[b % std::size(kTransactions)]);
  if (program == nullptr || truth_.is_turning() || !truth_.has_transaction(name)) return;
  const Busy busy(*program);
  while (kernel_.release_one()) {  // who waits for them waits for two seconds
  }
  if (kernel_.is_aborted()) return;
  truth_.commits(name);
  now_.committing = name;
  const int error =
      kernel_.rename(*program, std::string(kTransactionsPath) + name, ".safetensors/committed/" + name);
  now_.committing.clear();
  if (!kernel_.is_aborted()) truth_.committed(name, error);
}

void TransactionDeeds::abandon(std::uint32_t a, std::uint32_t b) {
  Program* program = programs_.pick(a);
  const std::string name(kTransactions[b % std::size(kTransactions)]);
  if (program == nullptr || truth_.is_turning() || !truth_.has_transaction(name)) return;
  const Busy busy(*program);
  while (kernel_.release_one()) {
  }
  if (kernel_.is_aborted()) return;
  const std::string path = std::string(kTransactionsPath) + name;
  const auto staged = kernel_.list(*program, path);
  for (const std::string& tensor : staged.value) {
    if (tensor == "." || tensor == ".." || kernel_.is_aborted()) continue;
    const int error = kernel_.unlink(*program, path + "/" + tensor);
    if (!kernel_.is_aborted()) truth_.unstage(name, tensor, error);
  }
  if (kernel_.is_aborted()) return;
  const int error = kernel_.remove_directory(*program, path);
  expect(error == (truth_.is_empty(name) ? 0 : ENOTEMPTY), fmt::format("rmdir gives {}", error));
  if (error == 0) truth_.remove_transaction(name);
}

}  // namespace stfs::test
