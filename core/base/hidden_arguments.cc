#include "core/base/hidden_arguments.h"

#include <algorithm>
#include <cstring>
#include <span>

namespace stfs {

void hide_queries(int argc, char** argv) {
  for (char* const argument : std::span(argv, static_cast<std::size_t>(argc))) {
    char* const address = std::strstr(argument, "://");
    char* const query = address == nullptr ? nullptr : std::strchr(address, '?');
    if (query != nullptr) std::fill(query + 1, query + std::strlen(query), '*');
  }
}

}  // namespace stfs
