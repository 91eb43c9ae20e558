// Skips tests of remote archives on machines without the libraries that a program loads for them.
#pragma once

#include "core/remote/digest.h"
#include "core/remote/http_connection.h"
#include "tests/support/plain.h"
#include "tests/support/skip.h"

namespace stfs::test {

/// Returns false, and reports the test as skipped, without libcurl.
inline bool has_libcurl() {
  const bool has = errno_of(check_url("https://host/x")) != ENOSYS;
  if (!has) note_skip("this build has no libcurl");
  return has;
}

/// Returns false, and reports the test as skipped, without libcrypto.
inline bool has_libcrypto() {
  const bool has = errno_of(sha256_of("")) != ENOSYS;
  if (!has) note_skip("there is no libcrypto");
  return has;
}

}  // namespace stfs::test
