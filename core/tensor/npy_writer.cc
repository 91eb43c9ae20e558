#include "core/tensor/npy_writer.h"

#include <fmt/format.h>

#include <limits>

#include "core/tensor/npy.h"

namespace stfs {
namespace {

constexpr std::size_t kAlignmentBytes = 64;  // ARRAY_ALIGN, numpy/lib/format.py

std::string_view descr_of(Dtype dtype) {
  switch (dtype) {
    case Dtype::BOOL: return "|b1";
    case Dtype::I8: return "|i1";
    case Dtype::I16: return "<i2";
    case Dtype::I32: return "<i4";
    case Dtype::I64: return "<i8";
    case Dtype::U16:
    case Dtype::BF16: return "<u2";
    case Dtype::U32: return "<u4";
    case Dtype::U64: return "<u8";
    case Dtype::F16: return "<f2";
    case Dtype::F32: return "<f4";
    case Dtype::F64: return "<f8";
    case Dtype::C64: return "<c8";
    default: return "|u1";  // U8, every fp8, and the bytes that smaller types are packed in
  }
}

}  // namespace

NpyForm npy_form(Dtype dtype, std::span<const std::uint64_t> shape, std::uint64_t size_bytes) {
  NpyForm form{.descr = descr_of(dtype), .shape = {shape.begin(), shape.end()}};
  constexpr unsigned kByteBits = 8;
  const unsigned bits = bits_of(dtype);
  if (bits >= kByteBits) return form;
  // Only a shape without elements has a last dimension larger than any memory: do not multiply it.
  const bool has_whole_rows = !shape.empty() && shape.back() <= size_bytes * kByteBits &&
                              shape.back() * bits % kByteBits == 0 && size_bytes != 0;
  if (has_whole_rows) {
    form.shape.back() = shape.back() * bits / kByteBits;
  } else {
    form.shape = {size_bytes};
  }
  return form;
}

std::string npy_header(const NpyForm& form) {
  std::string dictionary = fmt::format("{{'descr': '{}', 'fortran_order': False, 'shape': (", form.descr);
  for (std::size_t at = 0; at < form.shape.size(); ++at) {
    dictionary += fmt::format("{}{}", at == 0 ? "" : " ", form.shape[at]);
    // A tuple of one element needs a comma.
    if (at + 1 < form.shape.size() || form.shape.size() == 1) dictionary += ',';
  }
  dictionary += "), }";
  const auto padded = [&](std::size_t before_bytes) {
    const std::size_t unpadded = before_bytes + dictionary.size() + 1;  // + 1 for the newline at the end
    return dictionary.size() + 1 + (kAlignmentBytes - unpadded % kAlignmentBytes) % kAlignmentBytes;
  };
  constexpr std::size_t kBeforeShort = 6 + 2 + 2;
  constexpr std::size_t kBeforeLong = 6 + 2 + 4;
  const bool is_short = padded(kBeforeShort) <= std::numeric_limits<std::uint16_t>::max();
  const std::size_t length = padded(is_short ? kBeforeShort : kBeforeLong);
  std::string header(kNpyMagic);
  header += is_short ? '\x01' : '\x02';
  header += '\0';
  for (unsigned byte = 0; byte < (is_short ? 2U : 4U); ++byte) {
    header += static_cast<char>(length >> (8 * byte) & 0xff);
  }
  header += dictionary;
  header.append(length - dictionary.size() - 1, ' ');
  header += '\n';
  return header;
}

}  // namespace stfs
