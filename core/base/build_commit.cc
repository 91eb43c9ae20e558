#include "core/base/version.h"

namespace stfs {

std::string_view build_commit() {
  return "";
}

}  // namespace stfs
