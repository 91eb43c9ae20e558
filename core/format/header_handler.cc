// Decides for each token whether it may occur there, and stores its value.
//
// nlohmann_json checks the JSON itself. This checks types, fields and depth, as strictly as the reference's
// serde. For example, -0 arrives as a negative integer, and serde does not accept it as a whole number.
#include "core/format/header_handler.h"

#include <fmt/format.h>

#include <optional>

#include "core/format/dtype.h"
#include "core/format/json_string.h"

namespace stfs {

bool HeaderHandler::number_unsigned(std::uint64_t value) {
  progress_.token_read();
  if (ignored_depth_ != 0) return true;
  if (expected_ == Expected::Dimension) {
    parsed_.tensors.add_dimension(value);
    return true;
  }
  if (expected_ == Expected::Offset) {
    if (offset_count_ == offsets_.size()) return mismatch("a third number");
    offsets_[offset_count_++] = value;
    return true;
  }
  return value_of_kind("a number");
}

bool HeaderHandler::string(std::string& value) {
  progress_.token_read();
  if (ignored_depth_ != 0) return true;
  if (expected_ == Expected::Dtype) {
    const std::optional<Dtype> dtype = dtype_named(value);
    if (!dtype) return mismatch(in_quotes(value));
    parsed_.tensors.set_dtype(*dtype);
    return true;
  }
  if (expected_ == Expected::MetadataValue) {
    parsed_.metadata.emplace_back(metadata_key_, value);
    return true;
  }
  return value_of_kind("a string");
}

// Counts one more open object or array.
bool HeaderHandler::enter() {
  progress_.token_read();
  if (depth_ == kMaxHeaderDepth) {
    return refuse(fmt::format("byte {}: nested deeper than {} levels", position() - 1, kMaxHeaderDepth));
  }
  ++depth_;
  return true;
}

bool HeaderHandler::start_object(std::size_t) {
  if (!enter()) return false;
  if (ignored_depth_ != 0 || expected_ == Expected::Ignored) {
    ++ignored_depth_;
    return true;
  }
  switch (expected_) {
    case Expected::Root: place_ = Place::Root; return true;
    case Expected::Tensor: place_ = Place::Tensor; return true;
    case Expected::Metadata: place_ = Place::Metadata; return true;
    default: return mismatch("an object");
  }
}

bool HeaderHandler::key(std::string& name) {
  progress_.token_read();
  if (ignored_depth_ != 0) return true;
  if (place_ == Place::Tensor) return tensor_field(name);
  if (place_ == Place::Metadata) {
    metadata_key_.swap(name);
    parsed_.metadata_key_ends.push_back(position());
    expected_ = Expected::MetadataValue;
    return true;
  }
  if (name == "__metadata__") {
    if (std::exchange(metadata_seen_, true)) {
      return refuse(fmt::format("byte {}: __metadata__ is given twice", opening_quote(json_, position())));
    }
    expected_ = Expected::Metadata;
    return true;
  }
  parsed_.tensors.begin_tensor(name, position());
  fields_ = 0;
  expected_ = Expected::Tensor;
  return true;
}

bool HeaderHandler::tensor_field(const std::string& name) {
  if (name == "dtype") return field_once(kDtype, name, Expected::Dtype);
  if (name == "shape") return field_once(kShape, name, Expected::Shape);
  if (name == "data_offsets") return field_once(kOffsets, name, Expected::Offsets);
  expected_ = Expected::Ignored;
  return true;
}

bool HeaderHandler::field_once(Field field, std::string_view name, Expected value) {
  if ((fields_ & field) != 0) {
    return refuse(fmt::format("tensor {}: byte {}: {} is given twice", in_quotes(parsed_.tensors.name()),
                              opening_quote(json_, position()), name));
  }
  fields_ |= field;
  expected_ = value;
  return true;
}

// Counts one open object or array less. @return whether it was part of an ignored value.
bool HeaderHandler::leave() {
  progress_.token_read();
  --depth_;
  if (ignored_depth_ == 0) return false;
  --ignored_depth_;
  return true;
}

bool HeaderHandler::end_object() {
  if (leave()) return true;
  if (place_ == Place::Tensor && fields_ != (kDtype | kShape | kOffsets)) {
    const std::string_view missing = (fields_ & kDtype) == 0   ? "dtype"
                                     : (fields_ & kShape) == 0 ? "shape"
                                                               : "data_offsets";
    return refuse(
        fmt::format("tensor {}: byte {}: no {}", in_quotes(parsed_.tensors.name()), position() - 1, missing));
  }
  place_ = Place::Root;
  return true;
}

bool HeaderHandler::start_array(std::size_t) {
  if (!enter()) return false;
  if (ignored_depth_ != 0 || expected_ == Expected::Ignored) {
    ++ignored_depth_;
    return true;
  }
  if (expected_ == Expected::Shape) {
    parsed_.tensors.begin_shape();
    expected_ = Expected::Dimension;
    return true;
  }
  if (expected_ == Expected::Offsets) {
    offset_count_ = 0;
    expected_ = Expected::Offset;
    return true;
  }
  return mismatch("an array");
}

bool HeaderHandler::end_array() {
  if (leave()) return true;
  if (expected_ == Expected::Offset) {
    if (offset_count_ != offsets_.size()) return mismatch(offset_count_ == 0 ? "none" : "only one");
    parsed_.tensors.set_data_offsets(offsets_[0], offsets_[1]);
  }
  return true;
}

std::string_view HeaderHandler::due() const {
  switch (expected_) {
    case Expected::Root: return "an object of tensors is";
    case Expected::Tensor: return "an object with dtype, shape and data_offsets is";
    case Expected::Metadata: return "an object of strings is";
    case Expected::MetadataValue: return "a string is";
    case Expected::Dtype: return "the name of a dtype is";
    case Expected::Shape:
    case Expected::Dimension: return "an array of whole numbers from 0 to 2^64-1 is";
    case Expected::Offsets:
    case Expected::Offset: return "two whole numbers from 0 to 2^64-1 are";
    case Expected::Ignored: break;
  }
  return "any value is";
}

// Names the thing that the value belongs to.
std::string HeaderHandler::subject() const {
  const auto of_tensor = [&](std::string_view field) {
    return fmt::format("tensor {}: {}", in_quotes(parsed_.tensors.name()), field);
  };
  switch (expected_) {
    case Expected::Root: return "the header";
    case Expected::Tensor: return fmt::format("tensor {}", in_quotes(parsed_.tensors.name()));
    case Expected::Metadata: return "__metadata__";
    case Expected::MetadataValue: return fmt::format("__metadata__ {}", in_quotes(metadata_key_));
    case Expected::Dtype: return of_tensor("dtype");
    case Expected::Shape:
    case Expected::Dimension: return of_tensor("shape");
    case Expected::Offsets:
    case Expected::Offset: return of_tensor("data_offsets");
    case Expected::Ignored: break;
  }
  return "a value";
}

bool HeaderHandler::mismatch(std::string_view found) {
  // The lexer has read the value, and, behind a number, one more byte.
  return refuse(fmt::format("{}: {} near byte {}, but {} due", subject(), found, position() - 1, due()));
}

}  // namespace stfs
