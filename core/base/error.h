// Why an operation failed: a code that programs compare, the errno that the kernel is told, and one
// sentence for a person. Core never prints and throws nothing across its interfaces; every failure
// travels as a Result.
#pragma once

#include <cerrno>
#include <cstdint>
#include <new>
#include <string>
#include <string_view>
#include <tl/expected.hpp>
#include <utility>

namespace stfs {

/// The first ten are the checks of the safetensors format, named as the reference library names them
/// (safetensors/src/tensor.rs, enum SafeTensorError), in the order in which it makes them.
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
  DuplicateKey,     // ours: the format's text forbids it, the reference lets the last one win
  System,           // a system call failed; errno says how
  InvalidArgument,  // what the caller asked for makes no sense
  NotFound,         // no such tensor, file or attribute
  ReadOnly,         // a write to something opened or mounted read-only
  WrongSize,        // the content given for a tensor is not the tensor's size
  ArchiveChanged,   // the file is no longer the one that was opened
  ArchiveCut,       // the file ends before the bytes that the header promises
  Busy,             // somebody else holds a lock
  CommitUnknown,    // a sync failed so badly that only the next recovery will tell what was committed
  OutOfMemory,
  Unlistable,  // the archive's directory can't be searched for journals
};

/// The code's name as written above, for logs and --json output.
std::string_view name_of(ErrorCode code);

struct Error {
  ErrorCode code = ErrorCode::System;
  /// What a system call would have set; never 0.
  int errno_value = EIO;
  /// "PATH: WHAT: WHY", without a final full stop or newline.
  std::string message;

  /// The same error with "CONTEXT: " put before its message, unless the message begins so already.
  [[nodiscard]] Error within(std::string_view context) &&;
};

template <class T>
using Result = tl::expected<T, Error>;

/// An Error ready to be returned from a function that returns Result<T>.
[[nodiscard]] tl::unexpected<Error> fail(ErrorCode code, int errno_value, std::string message);

/// The error of a system call: "SUBJECT: ACTION: strerror(errno_value)". Pass errno itself at once,
/// before anything else can change it.
[[nodiscard]] tl::unexpected<Error> fail_system(int errno_value, std::string_view subject,
                                                std::string_view action);

/// Runs a function that returns a Result; where memory runs out in it, that is its error. Core's interfaces
/// let no exception through.
template <class Function>
auto guard_memory(Function&& function) -> decltype(function()) {
  try {
    return function();
  } catch (const std::bad_alloc&) {
    return tl::unexpected<Error>(
        Error{ErrorCode::OutOfMemory, ENOMEM, "out of memory"});  // fits without more
  }
}

/// The user lacks a right.
inline bool is_forbidden(const Error& error) {
  return error.errno_value == EACCES || error.errno_value == EPERM;
}

/// The file has been removed. ESTALE: by another host, and this host's caches still knew it. On network file
/// systems any call on an open file may say so.
inline bool says_gone(const Error& error) {
  return error.errno_value == ENOENT || error.errno_value == ESTALE;
}

/// Passes a failure of any Result on as the failure of another.
template <class T>
[[nodiscard]] tl::unexpected<Error> pass_on(Result<T>&& failed) {
  return tl::unexpected<Error>(std::move(failed).error());
}

}  // namespace stfs
