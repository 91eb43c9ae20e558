// The kinds of crash that a commit survives.
#pragma once

#include <cstdint>

namespace stfs {

enum class Durability : std::uint8_t {
  Power,    // power loss: every sync is made
  Process,  // a killed process: no sync is made
};

}  // namespace stfs
