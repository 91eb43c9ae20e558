// Parses the one Python literal that NumPy writes, and no other Python.
#include "core/tensor/npy.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <optional>
#include <string_view>

#include "core/format/tensor_index.h"

namespace stfs {
namespace {

tl::unexpected<Error> refuse_npy(std::string why) {
  return fail(ErrorCode::InvalidArgument, EINVAL, std::move(why));
}

std::optional<std::uint64_t> checked_product(std::uint64_t a, std::uint64_t b) {
  std::uint64_t product = 0;
  if (__builtin_mul_overflow(a, b, &product)) return std::nullopt;
  return product;
}

/// Reads the dict from left to right. Every failure names the byte of the header.
class DictParser {
 public:
  DictParser(std::string_view text, NpyHeader& header) : text_(text), header_(header) {}

  Result<void> parse() {
    if (!take('{')) return wrong("'{'");
    while (!take('}')) {
      RETURN_IF_ERROR(parse_entry());
      if (take(',')) continue;
      if (!take('}')) return wrong("',' or '}'");
      break;
    }
    skip_space();
    if (at_ != text_.size()) return wrong("the end of the header");
    for (const auto& [seen, key] : {std::pair(has_type_, "descr"), std::pair(has_order_, "fortran_order"),
                                    std::pair(has_shape_, "shape")}) {
      if (!seen) return refuse_npy(fmt::format("its header has no '{}'", key));
    }
    return {};
  }

 private:
  Result<void> parse_entry() {
    auto key = parse_string();
    RETURN_IF_ERROR(key);
    if (!take(':')) return wrong("':'");
    bool* seen = *key == "descr"           ? &has_type_
                 : *key == "fortran_order" ? &has_order_
                 : *key == "shape"         ? &has_shape_
                                           : nullptr;
    if (seen == nullptr) return refuse_npy("its header has a key that no version defines");
    if (*seen) return refuse_npy(fmt::format("its header has '{}' twice", *key));
    *seen = true;
    if (seen == &has_type_) return parse_type();
    return seen == &has_order_ ? parse_order() : parse_shape();
  }

  Result<std::string_view> parse_string() {
    skip_space();
    const char quote = at_ < text_.size() ? text_[at_] : '\0';
    if (quote != '\'' && quote != '"') return wrong("a string");
    const std::size_t end = text_.find(quote, at_ + 1);
    const std::string_view value = text_.substr(at_ + 1, end - at_ - 1);
    if (end == std::string_view::npos || value.find('\\') != std::string_view::npos)
      return wrong("a plain string");
    at_ = end + 1;
    return value;
  }

  Result<void> parse_type() {
    skip_space();
    if (at_ < text_.size() && text_[at_] == '[')
      return refuse_npy("has a structured type: save one plain array of numbers");
    auto type = parse_string();
    RETURN_IF_ERROR(type);
    const bool has_kind = type->size() >= 3 && std::string_view("<>=|").find(type->front()) != type->npos;
    const char* end = type->data() + type->size();
    const auto digits = type->substr(std::min<std::size_t>(2, type->size()));
    const auto [parsed, error] = std::from_chars(digits.data(), end, header_.item_bytes);
    const bool is_object = has_kind && (*type)[1] == 'O';
    if (is_object || *type == "|O")
      return refuse_npy("holds Python objects: save one plain array of numbers");
    if (!has_kind || error != std::errc{} || parsed != end)
      return refuse_npy("its 'descr' is not a simple type");
    header_.byte_order = type->front();
    header_.kind = (*type)[1];
    return {};
  }

  Result<void> parse_order() {
    skip_space();
    for (const auto& [word, value] : {std::pair(std::string_view("True"), true), {"False", false}}) {
      if (!text_.substr(at_).starts_with(word)) continue;
      at_ += word.size();
      header_.is_fortran_order = value;
      return {};
    }
    return wrong("True or False");
  }

  Result<void> parse_shape() {
    if (!take('(')) return wrong("'('");
    bool has_comma = false;
    while (!take(')')) {
      if (!header_.shape.empty() && !has_comma) return wrong("','");
      skip_space();
      std::uint64_t dimension = 0;
      const auto [parsed, error] =
          std::from_chars(text_.data() + at_, text_.data() + text_.size(), dimension);
      if (error != std::errc{}) return wrong("a dimension");
      at_ = static_cast<std::size_t>(parsed - text_.data());
      if (header_.shape.size() == kMaxNpyRank)
        return refuse_npy(fmt::format("has more than {} dimensions", kMaxNpyRank));
      header_.shape.push_back(dimension);
      has_comma = take(',');
    }
    // In Python "(3)" is a number and not a tuple.
    if (header_.shape.size() == 1 && !has_comma) return wrong("a tuple");
    return {};
  }

  void skip_space() {
    while (at_ < text_.size() && std::string_view(" \t\r\n").find(text_[at_]) != std::string_view::npos)
      ++at_;
  }
  bool take(char wanted) {
    skip_space();
    if (at_ == text_.size() || text_[at_] != wanted) return false;
    ++at_;
    return true;
  }
  tl::unexpected<Error> wrong(std::string_view wanted) const {
    return refuse_npy(
        fmt::format("its header is damaged: expected {} at byte {} of the header", wanted, at_));
  }

  std::string_view text_;
  NpyHeader& header_;
  std::size_t at_ = 0;
  bool has_type_ = false;
  bool has_order_ = false;
  bool has_shape_ = false;
};

/// NumPy's kind of the dtype; 'V' if NumPy does not know the dtype.
char kind_of(Dtype dtype) {
  switch (dtype) {
    case Dtype::BOOL: return 'b';
    case Dtype::I8:
    case Dtype::I16:
    case Dtype::I32:
    case Dtype::I64: return 'i';
    case Dtype::U8:
    case Dtype::U16:
    case Dtype::U32:
    case Dtype::U64: return 'u';
    case Dtype::F16:
    case Dtype::F32:
    case Dtype::F64: return 'f';
    case Dtype::C64: return 'c';
    default: return 'V';
  }
}

bool is_type(const NpyHeader& header, Dtype dtype) {
  const unsigned bits = bits_of(dtype);
  if (header.item_bytes != std::max(bits / 8, 1U)) return false;
  const char kind = kind_of(dtype);
  if (kind != 'V') return header.kind == kind;
  // ml_dtypes names some of its fp8 types "<f1", a type that plain NumPy does not have.
  return header.kind == 'u' || header.kind == 'V' || (bits == 8 && header.kind == 'f');
}

/// Returns true if packed elements of 4 or 6 bits may have the header's shape.
bool is_packed_shape(const NpyHeader& header, Dtype dtype, std::span<const std::uint64_t> shape) {
  const auto bits = checked_product(element_count(shape), bits_of(dtype));
  if (!bits || header.data_size_bytes != *bits / 8) return false;
  if (header.shape.size() == 1) return true;
  return !shape.empty() && header.shape.size() == shape.size() &&
         std::equal(shape.begin(), shape.end() - 1, header.shape.begin());
}

}  // namespace

std::string NpyHeader::type_text() const {
  return fmt::format("{}{}{}", byte_order, kind, item_bytes);
}

Result<NpyHeader> parse_npy_header(std::span<const std::byte> start) {
  const std::string_view bytes(reinterpret_cast<const char*>(start.data()), start.size());
  if (!bytes.starts_with(kNpyMagic)) return refuse_npy("is not a NumPy file: it does not begin like one");
  const auto byte_at = [&](std::size_t at) { return std::uint32_t{static_cast<unsigned char>(bytes[at])}; };
  if (bytes.size() < kNpyMagic.size() + 2) return refuse_npy("is truncated: it ends in its header");
  const std::uint32_t major = byte_at(6);
  if (major < 1 || major > 3 || byte_at(7) != 0) {
    return refuse_npy(
        fmt::format("is a NumPy file of version {}.{}, expected 1.0, 2.0 or 3.0", major, byte_at(7)));
  }
  const std::size_t length_bytes = major == 1 ? 2 : 4;
  const std::size_t header_at = kNpyMagic.size() + 2 + length_bytes;
  if (bytes.size() < header_at) return refuse_npy("is truncated: it ends in its header");
  std::uint32_t length = 0;
  for (std::size_t at = 0; at < length_bytes; ++at) length |= byte_at(8 + at) << (8 * at);
  if (header_at + length > kNpyStartBytes) return refuse_npy(fmt::format("has a header of {} bytes", length));
  if (length > bytes.size() - header_at) return refuse_npy("is truncated: it ends in its header");

  NpyHeader header;
  RETURN_IF_ERROR(DictParser(bytes.substr(header_at, length), header).parse());
  header.data_offset = header_at + length;
  // A dimension of zero makes the size zero, however large the others are.
  auto size = std::optional<std::uint64_t>(header.item_bytes);
  if (std::ranges::find(header.shape, 0U) != header.shape.end()) size = 0;
  for (const std::uint64_t dimension : header.shape) {
    if (size) size = checked_product(*size, dimension);
  }
  if (!size) return refuse_npy("has a shape that is too large");
  header.data_size_bytes = *size;
  return header;
}

std::optional<Dtype> dtype_of(const NpyHeader& header) {
  if (header.kind == 'V') return std::nullopt;
  for (std::size_t at = 0; at < kDtypeCount; ++at) {
    const auto dtype = static_cast<Dtype>(at);
    if (kind_of(dtype) == header.kind && bits_of(dtype) == 8 * header.item_bytes) return dtype;
  }
  return std::nullopt;
}

Result<void> check_npy(const NpyHeader& header, std::uint64_t file_size_bytes, Dtype dtype,
                       std::span<const std::uint64_t> shape) {
  if (header.byte_order == '>' && header.item_bytes > 1) {
    return refuse_npy(fmt::format("holds {}, big-endian: save array.astype(array.dtype.newbyteorder('<'))",
                                  header.type_text()));
  }
  if (!is_type(header, dtype)) {
    return refuse_npy(fmt::format("holds {}, expected {}", header.type_text(), name_of(dtype)));
  }
  const bool is_packed = bits_of(dtype) < 8;
  const bool is_shape =
      is_packed ? is_packed_shape(header, dtype, shape) : std::ranges::equal(header.shape, shape);
  if (!is_shape) {
    return refuse_npy(fmt::format("has the shape {}, expected {}{}", shape_text(header.shape),
                                  shape_text(shape), is_packed ? " packed into whole bytes" : ""));
  }
  const auto long_dimensions = std::ranges::count_if(shape, [](std::uint64_t size) { return size != 1; });
  if (header.is_fortran_order && long_dimensions > 1) {
    return refuse_npy("is in Fortran order: save numpy.ascontiguousarray(array)");
  }
  const std::uint64_t came_bytes = file_size_bytes - std::min(file_size_bytes, header.data_offset);
  if (came_bytes != header.data_size_bytes) {
    return refuse_npy(
        fmt::format("has {} bytes of data, its header gives {}", came_bytes, header.data_size_bytes));
  }
  return {};
}

}  // namespace stfs
