// The names of the encodings.
#include "tools/sync/diff_encoding.h"

#include <cerrno>

#include "core/format/json_string.h"

namespace stfs::sync {

std::string_view name_of(DiffEncoding encoding) {
  return encoding == DiffEncoding::Xor ? "xor" : "overwrite";
}

Result<DiffEncoding> parse_diff_encoding(std::string_view name) {
  if (name == "xor") return DiffEncoding::Xor;
  if (name == "overwrite") return DiffEncoding::Overwrite;
  return fail(ErrorCode::InvalidArgument, EINVAL,
              in_quotes(name) + " is no encoding: expected xor or overwrite");
}

}  // namespace stfs::sync
