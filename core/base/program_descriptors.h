// Two calls that a program makes before it opens files. A library must not change its caller's descriptors.
#pragma once

namespace stfs {

/// Opens each of descriptors 0, 1 and 2 that the caller has closed (`stfs ... >&-`). Otherwise the program's
/// next file gets such a number, and a message for standard output goes into an archive. Reads and writes of
/// the descriptors opened here fail (EBADF). Call it before any file is opened.
/// @return false: errno has the reason.
bool hold_standard_streams();

/// Raises the soft limit of open files to the hard one: each shard takes a descriptor or two, and a model may
/// have more shards than a shell's limit of 1,024 allows. Does nothing if the limit can't be raised.
void raise_descriptor_limit();

}  // namespace stfs
