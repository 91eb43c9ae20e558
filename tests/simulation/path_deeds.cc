#include "tests/simulation/path_deeds.h"

#include <fcntl.h>
#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <set>
#include <string>

#include "core/base/checksum.h"

namespace stfs::test {

void PathDeeds::read_path(std::uint32_t a, std::uint32_t b, std::uint32_t c) {
  Program* program = programs_.pick(a);
  const Target target = pick_target(b);
  if (program == nullptr || is_busy(target) || truth_.is_turning()) return;
  const Busy busy(*program);
  truth_.note_target(target);
  const auto opened = kernel_.open(*program, path_of(target), O_RDONLY);
  if (!expect_error(truth_.dues(*program, target, kMayRead), opened.error, "open of " + path_of(target)))
    return;
  const DescriptionPointer file = program->descriptors[opened.value];
  const std::uint64_t size = target.edition->committed.at(target.tensor).size();
  const std::uint64_t offset = c % 3 == 0 ? c / 3 % size : 0;
  read_and_check(*program, file, offset, size);
  if (c % 5 != 0) kernel_.close(*program, opened.value);
}

void PathDeeds::read_view(std::uint32_t a, std::uint32_t b, std::uint32_t c) {
  Program* program = programs_.pick(a);
  const Target target = pick_tensor(b);
  if (program == nullptr || is_busy(target) || truth_.is_turning()) return;
  const Busy busy(*program);
  const std::uint64_t size = target.edition->committed.at(target.tensor).size();
  const std::uint64_t part = 1 + c / 3 % size;
  const bool is_slice = c % 3 == 1;
  const std::string path = c % 3 == 0 ? ".safetensors/npy/" + target.tensor + ".npy"
                           : is_slice ? fmt::format(".safetensors/slice/{}[0:{}]", target.tensor, part)
                                      : ".safetensors/archive.safetensors";
  truth_.note_target(target);
  const auto opened = kernel_.open(*program, path, O_RDONLY);
  if (!expect_error(truth_.dues_of_view(*program, kMayRead), opened.error, "open of " + path)) return;
  const DescriptionPointer file = program->descriptors[opened.value];
  const std::uint64_t all = kernel_.size_bytes(file->node);
  const std::uint64_t wanted = is_slice ? part : size;
  // The bytes are at the end of the file. In the archive, the tensors behind this one follow them.
  std::uint64_t begin = all - wanted;
  if (c % 3 == 2) {
    for (const auto& [name, content] : target.edition->committed) {
      if (name > target.tensor) begin -= content.size();
    }
  }
  const auto got = kernel_.read(*program, file, begin, wanted);
  expect_error({0}, got.error, "a read of " + path);
  if (!kernel_.is_aborted() && got.error == 0) {
    ++machine_.counts().checks;
    expect(got.value.size() == wanted,
           fmt::format("{} has {} bytes in place of {}", path, got.value.size(), wanted));
    truth_.check_view(target, 0, got.value, begin % kPageBytes);
  }
  kernel_.close(*program, opened.value);
}

void PathDeeds::stat(std::uint32_t a, std::uint32_t b) {
  Program* program = programs_.pick(a);
  const Target target = pick_target(b);
  if (program == nullptr || is_busy(target) || truth_.is_turning()) return;
  const Busy busy(*program);
  const bool is_view = b / 16 % 2 == 0;
  const std::string path = is_view ? ".safetensors/npy/" + target.tensor + ".npy" : path_of(target);
  const auto got = kernel_.stat(*program, path);
  const auto due = is_view ? truth_.dues_of_view(*program, 0) : truth_.dues(*program, target, 0);
  if (!expect_error(due, got.error, "stat of " + path) || kernel_.is_aborted()) return;
  truth_.check_access(got.value, is_view ? 0444 : 0666, path);
  if (is_view) return;
  if (truth_.is_doubtful(target)) return;
  const auto size = truth_.size_of(target);
  expect(got.value.size == size,
         fmt::format("{} has a size of {} in place of {}", path_of(target), got.value.size, size));
}

void PathDeeds::list(std::uint32_t a, std::uint32_t b) {
  Program* program = programs_.pick(a);
  if (program == nullptr || truth_.is_turning()) return;
  const Busy busy(*program);
  const bool is_root = b % 2 == 0;
  const auto got = kernel_.list(*program, is_root ? "" : ".safetensors/transactions");
  if (!expect_error(truth_.dues_of_view(*program, kMayRead), got.error, "a listing")) return;
  if (kernel_.is_aborted()) return;
  std::set<std::string> names(got.value.begin(), got.value.end());
  expect(names.size() == got.value.size(), "a listing has a name twice");
  std::set<std::string> due = {".", ".."};
  if (is_root) {
    for (const std::string_view name : kTensorNames) due.emplace(name);
  } else {
    for (const std::string_view name : kTransactions) {
      if (name == now_.committing)
        names.erase(now_.committing);
      else if (truth_.has_transaction(std::string(name)))
        due.emplace(name);
    }
  }
  expect(names == due, "a listing has other names");
}

void PathDeeds::checksum(std::uint32_t a, std::uint32_t b) {
  Program* program = programs_.pick(a);
  const Target target = pick_tensor(b);
  if (program == nullptr || is_busy(target) || truth_.is_turning()) return;
  const Busy busy(*program);
  const auto generation = kernel_.attribute(*program, target.tensor, "user.safetensors.generation");
  if (expect_error(truth_.dues(*program, target, kMayRead), generation.error, "a generation")) {
    std::uint64_t& last = now_.generations[target.tensor];
    const std::uint64_t now = std::stoull(generation.value);
    expect(now >= last, "a generation shrinks");
    last = now;
  }
  if (now_.depth > 1) return;  // other changes may come in between
  const Buffer content = target.edition->committed.at(target.tensor);
  const auto got = kernel_.attribute(*program, target.tensor, "user.safetensors.checksum");
  if (!expect_error(truth_.dues(*program, target, kMayRead), got.error, "a checksum")) return;
  if (truth_.is_doubtful(target)) return;
  if (content != truth_.edition()->committed.at(target.tensor)) return;
  Checksum sum;
  sum.update(content);
  expect(got.value == "xxh128:" + sum.hex(), "a checksum is that of other bytes: tensor " + target.tensor);
}

void PathDeeds::open(std::uint32_t a, std::uint32_t b, std::uint32_t c) {
  Program* program = programs_.pick(a);
  const Target target = pick_target(b);
  if (program == nullptr || is_busy(target) || truth_.is_turning()) return;
  const Busy busy(*program);
  static constexpr int kFlags[] = {
      O_RDONLY, O_WRONLY, O_RDWR, O_RDWR, O_WRONLY | O_TRUNC, O_WRONLY | O_APPEND, O_WRONLY | O_DSYNC};
  const int flags = kFlags[c % std::size(kFlags)];
  if ((flags & O_APPEND) != 0 && !target.transaction.empty()) return;
  truth_.note_target(target);
  const auto opened = kernel_.open(*program, path_of(target), flags);
  const std::uint32_t wanted = (flags & O_ACCMODE) == O_RDONLY   ? kMayRead
                               : (flags & O_ACCMODE) == O_WRONLY ? kMayWrite
                                                                 : kMayRead | kMayWrite;
  expect_error(truth_.dues(*program, target, wanted), opened.error, "open of " + path_of(target));
}

void PathDeeds::write_whole(std::uint32_t a, std::uint32_t b, std::uint32_t c, std::uint32_t d) {
  Program* program = programs_.pick(a);
  const Target target = pick_target(b);
  if (program == nullptr || is_busy(target) || truth_.is_turning()) return;
  const Busy busy(*program);
  truth_.note_target(target);
  const auto opened = kernel_.open(*program, path_of(target), c % 2 == 0 ? O_WRONLY | O_TRUNC : O_WRONLY);
  if (!expect_error(truth_.dues(*program, target, kMayWrite), opened.error, "open of " + path_of(target)))
    return;
  const DescriptionPointer file = program->descriptors[opened.value];
  const Buffer bytes = machine_.archive().fresh(target.edition->committed.at(target.tensor).size());
  const std::uint64_t piece = 1 + d % (d % 3 == 0 ? 3 * kPageBytes : bytes.size());
  const std::uint64_t least = std::max<std::uint64_t>(piece, bytes.size() / 8 + 1);
  for (std::uint64_t at = 0; at < bytes.size(); at += least) {
    kernel_.write(*program, file, at,
                  std::span(bytes).subspan(at, std::min<std::uint64_t>(least, bytes.size() - at)));
  }
  kernel_.close(*program, opened.value);
}

void PathDeeds::resize_path(std::uint32_t a, std::uint32_t b, std::uint32_t c) {
  Program* program = programs_.pick(a);
  const Target target = pick_target(b);
  if (program == nullptr || is_busy(target) || truth_.is_turning()) return;
  const Busy busy(*program);
  const std::uint64_t size = target.edition->committed.at(target.tensor).size();
  truth_.note_target(target);
  const std::uint64_t sizes[] = {size, 0, size + 1, size / 2};
  const int error = kernel_.resize_path(*program, path_of(target), sizes[c % std::size(sizes)]);
  // The truth has already compared the mount's reply, if the mount was asked.
  const auto due = truth_.dues(*program, target, kMayWrite);
  expect(due.contains(error == EACCES ? EACCES : 0), fmt::format("truncate gives {}", error));
}

}  // namespace stfs::test
