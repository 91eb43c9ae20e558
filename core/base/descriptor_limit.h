// The limit of open files of this process.
#pragma once

namespace stfs {

/// Raises the soft limit to the hard one: each shard takes a descriptor or two, and a model may have more
/// shards than a shell's limit of 1,024 allows. For programs, not for libraries. Does nothing if the limit
/// can't be raised.
void raise_descriptor_limit();

}  // namespace stfs
