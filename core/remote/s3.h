// Archives in buckets of S3, and of stores that speak its protocol: s3://BUCKET/KEY.
#pragma once

#include <optional>
#include <string>

#include "core/base/error.h"
#include "core/remote/remote_object.h"

namespace stfs {

/// A name in parts. The key has no escapes.
struct S3Name {
  std::string bucket;
  std::string key;  // of an object; or a prefix, with a slash at the end; empty: the whole bucket
};

/// @return nothing: the address does not begin with s3://. EINVAL: it names no bucket, or no key.
Result<std::optional<S3Name>> s3_name_of(const std::string& address);

/// Returns the address of the archive or the index that a name means. A key that ends in .safetensors or
/// .json means itself, and no request is sent. Another key means the object with this key, if there is one;
/// otherwise the archive or index that a library would load from the prefix.
/// @return ENOENT: there is none. EINVAL: there are several; the message lists them. EACCES: the store
///   refuses. ENETUNREACH, EIO.
Result<std::string> find_s3_file(const S3Name& name);

/// Returns the address of an object, with the signer of its requests.
Result<RemoteAddress> s3_address(const S3Name& name);

}  // namespace stfs
