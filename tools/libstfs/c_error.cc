// Maps the codes of error.h to the numbers that stfs.h promises. The numbers stay the same when the
// enumeration changes.
#include "tools/libstfs/c_error.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <new>

#include "core/base/printable.h"
#include "core/base/version.h"

namespace stfs::interface {
namespace {

struct Code {
  stfs_code number;
  ErrorCode code;
};

constexpr std::array kCodes = {
    Code{STFS_HEADER_TOO_SMALL, ErrorCode::HeaderTooSmall},
    Code{STFS_HEADER_TOO_LARGE, ErrorCode::HeaderTooLarge},
    Code{STFS_INVALID_HEADER_LENGTH, ErrorCode::InvalidHeaderLength},
    Code{STFS_INVALID_HEADER, ErrorCode::InvalidHeader},
    Code{STFS_INVALID_HEADER_DESERIALIZATION, ErrorCode::InvalidHeaderDeserialization},
    Code{STFS_INVALID_OFFSET, ErrorCode::InvalidOffset},
    Code{STFS_VALIDATION_OVERFLOW, ErrorCode::ValidationOverflow},
    Code{STFS_MISALIGNED_SLICE, ErrorCode::MisalignedSlice},
    Code{STFS_TENSOR_INVALID_INFO, ErrorCode::TensorInvalidInfo},
    Code{STFS_METADATA_INCOMPLETE_BUFFER, ErrorCode::MetadataIncompleteBuffer},
    Code{STFS_DUPLICATE_KEY, ErrorCode::DuplicateKey},
    Code{STFS_SYSTEM, ErrorCode::System},
    Code{STFS_INVALID_ARGUMENT, ErrorCode::InvalidArgument},
    Code{STFS_NOT_FOUND, ErrorCode::NotFound},
    Code{STFS_READ_ONLY, ErrorCode::ReadOnly},
    Code{STFS_WRONG_SIZE, ErrorCode::WrongSize},
    Code{STFS_ARCHIVE_CHANGED, ErrorCode::ArchiveChanged},
    Code{STFS_ARCHIVE_CUT, ErrorCode::ArchiveCut},
    Code{STFS_BUSY, ErrorCode::Busy},
    Code{STFS_COMMIT_UNKNOWN, ErrorCode::CommitUnknown},
    Code{STFS_OUT_OF_MEMORY, ErrorCode::OutOfMemory},
};

/// Returns the number of bytes of the text that fit without cutting its last character.
std::size_t fitting_bytes(const std::string& text, std::size_t most) {
  if (text.size() <= most) return text.size();
  while (most > 0 && (static_cast<unsigned char>(text[most]) & 0xc0U) == 0x80U) --most;
  return most;
}

/// Returns the message in a printable form, because programs print it. No exception may leave an interface of
/// C.
std::string shown(const std::string& message) {
  try {
    return printable(message);
  } catch (const std::bad_alloc&) {
    return "out of memory";  // short enough to need no memory
  }
}

}  // namespace

void tell(const Error& error, stfs_error* to) {
  if (to == nullptr) return;
  const auto known = std::find_if(kCodes.begin(), kCodes.end(),
                                  [&](const Code& candidate) { return candidate.code == error.code; });
  to->code = known == kCodes.end() ? STFS_SYSTEM : known->number;
  to->errno_value = error.errno_value;
  const std::string message = shown(error.message);
  const std::size_t size_bytes = fitting_bytes(message, sizeof to->message - 1);
  std::memcpy(to->message, message.data(), size_bytes);
  to->message[size_bytes] = '\0';
}

}  // namespace stfs::interface

using namespace stfs::interface;

const char* stfs_version() {
  return stfs::build_version();
}

const char* stfs_code_name(std::int32_t code) {
  if (code == STFS_OK) return "Ok";
  for (const Code& known : kCodes) {
    if (known.number == code) return stfs::name_of(known.code).data();  // a literal, so it ends in NUL
  }
  return "Unknown";
}
