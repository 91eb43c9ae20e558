// Lets this process open few files.
#pragma once

#include <sys/resource.h>

#include <cstddef>

#include "tests/support/catch.h"

namespace stfs::test {

/// While the object lives, this process gets no descriptor of that number or above.
class FewDescriptors {
 public:
  explicit FewDescriptors(rlim_t most) {
    REQUIRE(::getrlimit(RLIMIT_NOFILE, &before_) == 0);
    struct rlimit few = before_;
    few.rlim_cur = most;
    REQUIRE(::setrlimit(RLIMIT_NOFILE, &few) == 0);
  }
  ~FewDescriptors() { static_cast<void>(::setrlimit(RLIMIT_NOFILE, &before_)); }
  FewDescriptors(const FewDescriptors&) = delete;
  FewDescriptors& operator=(const FewDescriptors&) = delete;

 private:
  struct rlimit before_ {};
};

}  // namespace stfs::test
