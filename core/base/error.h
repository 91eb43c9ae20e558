// Describes why an operation failed: a code for programs, the errno for the kernel, and one sentence for a
// person. Core never prints, and lets no exception cross its interfaces: every failure is returned as a
// Result.
#pragma once

#include <cerrno>
#include <cstdint>
#include <new>
#include <string>
#include <string_view>
#include <tl/expected.hpp>
#include <utility>

#include "core/base/lock_attributes.h"

namespace stfs {

/// The first ten are the checks of the safetensors format, in the reference library's order and with its
/// names (safetensors/src/tensor.rs, enum SafeTensorError).
enum class ErrorCode : std::uint8_t {
  HeaderTooSmall,
  HeaderTooLarge,
  InvalidHeaderLength,
  InvalidHeader,
  InvalidHeaderDeserialization,
  InvalidOffset,
  ValidationOverflow,
  MisalignedSlice,
  TensorInvalidInfo,
  MetadataIncompleteBuffer,
  DuplicateKey,     // our own: the format's text forbids it, but the reference lets the last one win
  System,           // a system call failed; errno says how
  InvalidArgument,  // the caller's request makes no sense
  NotFound,         // no such tensor, file or attribute
  ReadOnly,         // a write to something opened or mounted read-only
  WrongSize,        // the new content of a tensor does not have the tensor's size
  ArchiveChanged,   // the file is no longer the one that was opened
  ArchiveCut,       // the file ends before the bytes that the header promises
  Busy,             // another process holds a lock
  CommitUnknown,    // a sync failed; only the next recovery can tell what was committed
  OutOfMemory,
  Unlistable,  // the archive's directory can't be searched for journals
};

/// The code's name as written above, for logs and --json output.
std::string_view name_of(ErrorCode code);

struct Error {
  ErrorCode code = ErrorCode::System;
  /// The errno of a failed system call, or one that fits; never 0.
  int errno_value = EIO;
  /// "PATH: WHAT: WHY", without a final full stop or newline.
  std::string message;

  /// Returns the error with "CONTEXT: " before its message, unless the message already starts with that.
  [[nodiscard]] Error within(std::string_view context) &&;
};

template <class T>
using Result = tl::expected<T, Error>;

/// Makes an Error that a function with a Result<T> can return.
[[nodiscard]] tl::unexpected<Error> fail(ErrorCode code, int errno_value, std::string message);

/// Makes the error of a system call: "SUBJECT: ACTION: strerror(errno_value)". Pass errno at once, before
/// another call changes it.
[[nodiscard]] tl::unexpected<Error> fail_system(int errno_value, std::string_view subject,
                                                std::string_view action);

/// Runs a function that returns a Result. If it runs out of memory, returns OutOfMemory: core's interfaces
/// let no exception through. The function may need locks that the caller holds.
template <class Function>
NO_THREAD_SAFETY_ANALYSIS auto guard_memory(Function&& function) -> decltype(function()) {
  try {
    return function();
  } catch (const std::bad_alloc&) {
    return tl::unexpected<Error>(
        Error{ErrorCode::OutOfMemory, ENOMEM, "out of memory"});  // short enough to need no memory
  }
}

/// Returns true if the user lacks a right.
inline bool is_forbidden(const Error& error) {
  return error.errno_value == EACCES || error.errno_value == EPERM;
}

/// Returns true if the file has been removed. ESTALE: another host removed it, and this host's caches still
/// had it. On network file systems any call on an open file may return ESTALE.
inline bool says_gone(const Error& error) {
  return error.errno_value == ENOENT || error.errno_value == ESTALE;
}

/// Passes a failure of one Result type on as the failure of another.
template <class T>
[[nodiscard]] tl::unexpected<Error> pass_on(Result<T>&& failed) {
  return tl::unexpected<Error>(std::move(failed).error());
}

/// Returns from the calling function with the error of a Result, if it has one. The caller returns a Result
/// of any type.
/// @param ...  a Result, or an expression that makes one. A variable keeps its value if there is no error.
#define RETURN_IF_ERROR(...)                                                 \
  do {                                                                       \
    if (auto&& checked_result = (__VA_ARGS__); !checked_result)              \
      return tl::unexpected<stfs::Error>(std::move(checked_result).error()); \
  } while (false)

}  // namespace stfs
