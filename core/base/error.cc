#include "core/base/error.h"

#include <fmt/format.h>

#include <system_error>

namespace stfs {

std::string_view name_of(ErrorCode code) {
  switch (code) {
    case ErrorCode::HeaderTooSmall: return "HeaderTooSmall";
    case ErrorCode::HeaderTooLarge: return "HeaderTooLarge";
    case ErrorCode::InvalidHeaderLength: return "InvalidHeaderLength";
    case ErrorCode::InvalidHeader: return "InvalidHeader";
    case ErrorCode::InvalidHeaderDeserialization: return "InvalidHeaderDeserialization";
    case ErrorCode::InvalidOffset: return "InvalidOffset";
    case ErrorCode::ValidationOverflow: return "ValidationOverflow";
    case ErrorCode::MisalignedSlice: return "MisalignedSlice";
    case ErrorCode::TensorInvalidInfo: return "TensorInvalidInfo";
    case ErrorCode::MetadataIncompleteBuffer: return "MetadataIncompleteBuffer";
    case ErrorCode::DuplicateKey: return "DuplicateKey";
    case ErrorCode::System: return "System";
    case ErrorCode::InvalidArgument: return "InvalidArgument";
    case ErrorCode::NotFound: return "NotFound";
    case ErrorCode::ReadOnly: return "ReadOnly";
    case ErrorCode::WrongSize: return "WrongSize";
    case ErrorCode::ArchiveChanged: return "ArchiveChanged";
    case ErrorCode::ArchiveCut: return "ArchiveCut";
    case ErrorCode::Busy: return "Busy";
    case ErrorCode::CommitUnknown: return "CommitUnknown";
    case ErrorCode::OutOfMemory: return "OutOfMemory";
    case ErrorCode::Unlistable: return "Unlistable";
  }
  return "Unknown";
}

Error Error::within(std::string_view context) && {
  const std::string prefix = fmt::format("{}: ", context);
  if (!message.starts_with(prefix)) message.insert(0, prefix);
  return std::move(*this);
}

tl::unexpected<Error> fail(ErrorCode code, int errno_value, std::string message) {
  return tl::unexpected<Error>(Error{code, errno_value, std::move(message)});
}

tl::unexpected<Error> fail_system(int errno_value, std::string_view subject, std::string_view action) {
  // generic_category().message() is strerror() without its shared buffer, so any thread may call it.
  return fail(ErrorCode::System, errno_value,
              fmt::format("{}: {}: {}", subject, action, std::generic_category().message(errno_value)));
}

}  // namespace stfs
