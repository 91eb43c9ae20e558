// Keeps a thread running: no exception may end the mount, or leave a program without its reply.
#pragma once

#include <exception>
#include <string_view>

#include "fs/base/log.h"

namespace stfs {

/// Runs work(). If it throws, logs the exception, unless memory runs out.
/// @param who  the thread, or what it is doing
/// @return true if work() has returned.
template <class Work>
bool survive(std::string_view who, Work&& work) noexcept {
  try {
    try {
      work();
      return true;
    } catch (const std::exception& exception) {
      log::error("{}: unexpected: {}", who, exception.what());
    }
  } catch (...) {
  }
  return false;
}

}  // namespace stfs
