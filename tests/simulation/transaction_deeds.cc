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
  const int error = kernel_.make_directory(*program, std::string(kTransactionsPath) + name);
  if (expect_error(truth_.dues_of_begin(*program, name), error, "mkdir"))
    truth_.make_transaction(*program, name);
}

void TransactionDeeds::commit(std::uint32_t a, std::uint32_t b) {
  Program* program = programs_.pick(a);
  const std::string name(kTransactions[b % std::size(kTransactions)]);
  if (program == nullptr || truth_.is_turning() || !truth_.has_transaction(name)) return;
  const Busy busy(*program);
  while (kernel_.release_one()) {  // a commit waits for them for up to two seconds
  }
  if (kernel_.is_aborted()) return;
  truth_.commits(name);
  now_.committing = name;
  const int error =
      kernel_.rename(*program, std::string(kTransactionsPath) + name, ".safetensors/committed/" + name);
  now_.committing.clear();
  if (kernel_.is_aborted()) return;
  const auto due = truth_.dues_of_commit(*program, name);
  const bool is_refused = error == EACCES || error == EPERM;
  expect(due.contains(is_refused ? error : 0), fmt::format("the move of a transaction gives {}", error));
  if (is_refused) {
    truth_.not_committed();
  } else {
    truth_.committed(name, error);
  }
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
  expect_error(truth_.dues_of_entering(*program, name), staged.error, "a listing of a transaction");
  for (const std::string& tensor : staged.value) {
    if (tensor == "." || tensor == ".." || kernel_.is_aborted()) continue;
    const int error = kernel_.unlink(*program, path + "/" + tensor);
    if (error == EACCES && truth_.dues_of_entering(*program, name).contains(EACCES)) continue;
    if (!kernel_.is_aborted()) truth_.unstage(name, tensor, error);
  }
  if (kernel_.is_aborted()) return;
  const int error = kernel_.remove_directory(*program, path);
  if (expect_error(truth_.dues_of_removal(*program, name), error, "rmdir")) truth_.remove_transaction(name);
}

}  // namespace stfs::test
