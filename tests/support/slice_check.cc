// Evaluates slices for the tests that compare them with NumPy: prints one line of JSON for each line
// "SHAPE;DTYPE;SLICE" of stdin, as in "4,5;F32;::2,-1". The tensor's byte i is the highest of the four bytes
// of i * 2654435761.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <iostream>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/checksum.h"
#include "core/format/header.h"
#include "core/format/json_string.h"
#include "core/format/tensor_index.h"
#include "core/tensor/slice.h"
#include "core/tensor/slice_copy.h"

namespace {

using Bytes = std::vector<std::byte>;

std::vector<std::uint64_t> parse_shape(std::string_view text) {
  std::vector<std::uint64_t> shape;
  const char* end = text.data() + text.size();
  for (const char* at = text.data(); at < end; ++at) at = std::from_chars(at, end, shape.emplace_back()).ptr;
  return shape;
}

Bytes tensor_bytes(std::uint64_t size_bytes) {
  Bytes bytes(size_bytes);
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    bytes[i] = static_cast<std::byte>(static_cast<std::uint32_t>(i * 2654435761U) >> 24);
  }
  return bytes;
}

/// Copies the slice in requests of this size, as a reader of the view does.
Bytes gathered(const stfs::Slice& slice, const Bytes& tensor, std::uint64_t request_bytes) {
  Bytes bytes(slice.size_bytes);
  for (std::uint64_t at = 0; at < bytes.size(); at += request_bytes) {
    stfs::copy_slice(slice, {at, request_bytes}, tensor, std::span(bytes).subspan(at));
  }
  return bytes;
}

Bytes walked(const stfs::Slice& slice, const Bytes& tensor, std::uint64_t request_bytes) {
  Bytes bytes;
  for (std::uint64_t at = 0; at < slice.size_bytes; at += request_bytes) {
    stfs::for_each_run(slice, {at, request_bytes}, [&](stfs::ByteRange piece) {
      const auto from = std::span(tensor).subspan(piece.offset, piece.size_bytes);
      bytes.insert(bytes.end(), from.begin(), from.end());
      return true;
    });
  }
  return bytes;
}

/// Checks the runs: no run is empty, no two adjoin, together they cover the extent, and a slice is contiguous
/// exactly if it has one run.
bool has_longest_runs(const stfs::Slice& slice) {
  std::vector<stfs::ByteRange> runs;
  stfs::for_each_run(slice, {0, slice.size_bytes}, [&](stfs::ByteRange run) {
    runs.push_back(run);
    return true;
  });
  if (runs.empty()) return slice.size_bytes == 0;
  stfs::ByteRange covered = runs.front();
  bool are_longest = true;
  for (std::size_t at = 0; at < runs.size(); ++at) {
    are_longest = are_longest && !runs[at].empty() && (at == 0 || runs[at - 1].end() != runs[at].offset);
    const std::uint64_t end = std::max(covered.end(), runs[at].end());
    covered.offset = std::min(covered.offset, runs[at].offset);
    covered.size_bytes = end - covered.offset;
  }
  return are_longest && covered == slice.extent && slice.is_contiguous() == (runs.size() == 1);
}

std::string json_text(std::string_view text) {
  std::string out;
  stfs::append_json_string(out, text);
  return out;
}

std::string verdict(std::string_view line) {
  const std::size_t dtype_at = line.find(';') + 1;
  const std::size_t text_at = line.find(';', dtype_at) + 1;
  const auto shape = parse_shape(line.substr(0, dtype_at - 1));
  const auto dtype = stfs::dtype_named(line.substr(dtype_at, text_at - 1 - dtype_at));
  if (dtype_at == 0 || text_at == 0 || !dtype) return R"({"ok":false,"message":"no request"})";
  const auto slice = stfs::parse_slice(line.substr(text_at), *dtype, shape);
  if (!slice) return fmt::format(R"({{"ok":false,"message":{}}})", json_text(slice.error().message));

  const Bytes tensor = tensor_bytes(*stfs::data_size_bytes(*dtype, shape));
  const Bytes bytes = gathered(*slice, tensor, slice->size_bytes + 1);
  bool is_consistent = has_longest_runs(*slice);
  for (const std::uint64_t request : {std::uint64_t{1}, std::uint64_t{29}, slice->size_bytes + 1}) {
    is_consistent = is_consistent && bytes == walked(*slice, tensor, request) &&
                    bytes == gathered(*slice, tensor, request);
  }
  stfs::Checksum checksum;
  checksum.update(bytes);
  return fmt::format(R"({{"ok":true,"shape":{},"size":{},"contiguous":{},"consistent":{},"hash":{}}})",
                     stfs::shape_text(slice->shape), bytes.size(), slice->is_contiguous(), is_consistent,
                     json_text(checksum.hex()));
}

}  // namespace

int main() {
  std::ios::sync_with_stdio(false);
  for (std::string line; std::getline(std::cin, line);) std::cout << verdict(line) << '\n';
  return std::cout.flush() ? 0 : 1;
}
