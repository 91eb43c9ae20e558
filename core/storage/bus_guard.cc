#include "core/storage/bus_guard.h"

#include <atomic>
#include <csetjmp>
#include <csignal>

namespace stfs {
namespace {

struct Guard {
  const std::byte* begin = nullptr;
  const std::byte* end = nullptr;
  sigjmp_buf back;
};
constinit thread_local Guard* present = nullptr;
struct sigaction before {};  // the handler reads it
std::atomic<bool> is_installed = false;

void on_bus_error(int, siginfo_t* info, void*) {
  // Only the kernel's own signals have an address. A SIGBUS sent by kill(2) has none.
  const bool is_fault = info->si_code > 0;
  const auto* at = static_cast<const std::byte*>(info->si_addr);
  if (is_fault && present != nullptr && at >= present->begin && at < present->end)
    siglongjmp(present->back, 1);
  ::sigaction(SIGBUS, &before, nullptr);
  // A fault is raised again when the handler returns, because the access is repeated. A signal sent by a
  // process is not, so raise it.
  if (!is_fault) ::raise(SIGBUS);
}

}  // namespace

bool install_bus_guard() {
  if (is_installed) return true;
  struct sigaction action {};
  action.sa_sigaction = on_bus_error;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK;
  sigemptyset(&action.sa_mask);
  is_installed = ::sigaction(SIGBUS, &action, &before) == 0;
  return is_installed;
}

bool copy_guarded(std::span<const std::byte> region, const std::function<void()>& copy) {
  if (!is_installed) return false;
  Guard guard;
  guard.begin = region.data();
  guard.end = region.data() + region.size();
  // Save the signal mask: sanitizers block more signals in a handler than it asks for.
  if (sigsetjmp(guard.back, 1) != 0) {
    present = nullptr;
    return false;
  }
  present = &guard;
  copy();
  present = nullptr;
  return true;
}

}  // namespace stfs
