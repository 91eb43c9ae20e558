// The storage of archives that are on web servers (https://HOST/x.safetensors). It is read-only. A file that
// is open shows one version (remote_object.h), so its status never changes.
//
// A read of a tensor fetches the whole tensor, if that is small. A program that has read on from one tensor
// to the next gets the following ones, too. So a program that reads the tensor in many small steps waits for
// few requests.
#pragma once

#include <filesystem>

#include "core/storage/file.h"

namespace stfs {

/// The storage whose paths are addresses. All changes fail (EROFS). There are no locks (ENOLCK), and lists of
/// directories are empty. An address that is open already is not asked for again: it shows the same version.
/// A status is known of what is open.
Storage& remote_storage();

}  // namespace stfs
