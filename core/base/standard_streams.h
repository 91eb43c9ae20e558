// Descriptors 0, 1 and 2 of a program whose caller has closed them (`stfs ... >&-`).
#pragma once

namespace stfs {

/// Opens those that are closed, so that no file of the program gets their numbers: what is written to
/// standard output would go into an archive. They can neither be read nor written (EBADF). For programs, not
/// for libraries; call it before any file is opened. @return false: errno says why.
bool hold_standard_streams();

}  // namespace stfs
