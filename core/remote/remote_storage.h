// The storage of archives that are on web servers (https://HOST/x.safetensors). It is read-only. A file that
// is open shows one version (remote_object.h), so its status never changes.
//
// A read of a tensor fetches the whole tensor, if that is small. A program that has read on from one tensor
// to the next gets the following ones, too. So a program that reads the tensor in many small steps waits for
// few requests.
#pragma once

#include <filesystem>
#include <memory>

#include "core/base/byte_range.h"
#include "core/remote/fetched_blocks.h"
#include "core/remote/hub_companions.h"
#include "core/storage/file.h"

namespace stfs {

/// The storage whose paths are addresses. All changes fail (EROFS). There are no locks (ENOLCK), and lists of
/// directories are empty. An address that is open already is not asked for again: it shows the same version.
/// A status is known of what is open.
Storage& remote_storage();

/// EINVAL: the path has the form of an address that is not read, such as hf://ORG/MODEL. A person who means a
/// local path with this name writes ./ before it.
Result<void> check_scheme(const std::filesystem::path& path);

/// Returns the address that a person has named, without its query, which may be a signature: the address is
/// in the table of mounts, in attributes and in messages, which others may read. The storage adds the query
/// to its requests. EINVAL: the address has a user's name or a password.
Result<std::filesystem::path> known_address(const std::filesystem::path& url);

/// Brings a range of an open file to this machine. Does nothing for a file of the Hugging Face cache.
/// @return the errors of a read. ENOSPC: the disk has no room for it.
Result<void> fetch_bytes(const std::filesystem::path& address, ByteRange range);
/// Returns the bytes and requests that fetch_bytes() would take.
FetchedBlocks::Missing missing_bytes(const std::filesystem::path& address, ByteRange range);
/// Keeps the bytes of a range, which have come, until the user drops them. Does nothing for a file of the
/// Hugging Face cache.
/// @return EINVAL: other programs do not find the bytes, because the server gives the file no strong ETag, or
///   because this machine has no directory for them. ENOSPC: some were dropped again.
Result<void> pin_bytes(const std::filesystem::path& address, ByteRange range);

/// Does the same for an address as a person has written it. One without a query means no query that another
/// call has kept.
Result<std::filesystem::path> named_address(const std::filesystem::path& url);

/// Returns the files beside a model of the Hub that known_address() has returned. Null for other addresses.
/// @param directory  the address without the last part and its slash.
std::shared_ptr<HubCompanions> companions_at(const std::filesystem::path& directory);

}  // namespace stfs
