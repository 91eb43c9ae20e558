// Lets a caller in C watch long work.
#pragma once

#include <cstdint>

#include "core/base/work.h"

namespace stfs::interface {

/// The function in an options structure; null: no watch. A result other than 0 stops the work.
using Progress = int (*)(void* context, std::uint64_t done_bytes, std::uint64_t total_bytes);

inline Work::Watch watch_of(Progress progress, void* context) {
  if (progress == nullptr) return {};
  return [progress, context](std::uint64_t done_bytes, std::uint64_t total_bytes) {
    return progress(context, done_bytes, total_bytes) == 0;
  };
}

}  // namespace stfs::interface
