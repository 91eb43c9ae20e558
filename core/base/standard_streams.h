// Descriptors 0, 1 and 2 of a program whose caller has closed them (`stfs ... >&-`).
#pragma once

namespace stfs {

/// Opens the closed descriptors of the three. Otherwise the program's next file gets such a number: a message
/// for standard output then goes into an archive. The opened ones can neither be read nor written (EBADF).
/// For programs, not for libraries; call it before any file is opened. @return false: errno says why.
bool hold_standard_streams();

}  // namespace stfs
