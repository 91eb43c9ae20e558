// Uses capget(2) and capset(2) directly, because libcap would be one more dependency.
#include "fs/base/capabilities.h"

#include <linux/capability.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cerrno>

namespace stfs {
namespace {

constexpr std::uint64_t bit(int capability) {
  return std::uint64_t{1} << static_cast<unsigned>(capability);
}
constexpr std::uint64_t kEffective =
    bit(CAP_DAC_OVERRIDE) | bit(CAP_FOWNER) | bit(CAP_CHOWN) | bit(CAP_SYS_PTRACE);
constexpr std::uint64_t kReserve = bit(CAP_SYS_ADMIN) | bit(CAP_FSETID);

/// The capability sets of the calling thread.
struct Sets {
  std::uint64_t effective = 0;
  std::uint64_t permitted = 0;
};

using Words = std::array<__user_cap_data_struct, _LINUX_CAPABILITY_U32S_3>;
constexpr unsigned kWordBits = 32;

__user_cap_header_struct this_thread() {
  return {.version = _LINUX_CAPABILITY_VERSION_3, .pid = 0};
}

Result<Sets> present_sets() {
  auto thread = this_thread();
  Words words{};
  if (::syscall(SYS_capget, &thread, words.data()) != 0) return fail_system(errno, "capabilities", "get");
  const auto whole = [](std::uint64_t low, std::uint64_t high) { return low | high << kWordBits; };
  return Sets{.effective = whole(words[0].effective, words[1].effective),
              .permitted = whole(words[0].permitted, words[1].permitted)};
}

/// Programs that the thread starts inherit no capability.
bool set_sets(const Sets& sets) {
  auto thread = this_thread();
  const auto low = [](std::uint64_t set) { return static_cast<std::uint32_t>(set); };
  const Words words = {
      {{.effective = low(sets.effective), .permitted = low(sets.permitted), .inheritable = 0},
       {.effective = low(sets.effective >> kWordBits),
        .permitted = low(sets.permitted >> kWordBits),
        .inheritable = 0}}};
  return ::syscall(SYS_capset, &thread, words.data()) == 0;
}

/// Removes the other capabilities from the bounding set, so programs of root do not get them. A process
/// without CAP_SETPCAP may not do this, as in some containers: its programs get the capabilities that the
/// container allows.
void bound(std::uint64_t kept) {
  for (int capability = 0; ::prctl(PR_CAPBSET_READ, capability, 0, 0, 0) >= 0; ++capability) {
    if ((kept & bit(capability)) == 0) ::prctl(PR_CAPBSET_DROP, capability, 0, 0, 0);
  }
}

}  // namespace

Result<void> drop_capabilities(AdminRight admin) {
  const auto present = present_sets();
  RETURN_IF_ERROR(present);
  if (present->permitted == 0) return {};
  bound(kEffective | kReserve);
  Sets kept = *present;
  kept.permitted &= kEffective | kReserve;
  kept.effective &= admin == AdminRight::Effective ? kEffective | bit(CAP_SYS_ADMIN) : kEffective;
  if (!set_sets(kept)) return fail_system(errno, "capabilities", "give up");
  if (::geteuid() == 0 && ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0)
    return fail_system(errno, "no_new_privs", "set");
  return {};
}

bool may_administer() {
  return (present_sets().value_or(Sets{}).effective & bit(CAP_SYS_ADMIN)) != 0;
}

RaisedCapability::RaisedCapability(int capability) : before_(present_sets().value_or(Sets{}).effective) {
  const auto present = present_sets();
  if (present && (present->permitted & bit(capability)) != 0)
    set_sets({.effective = present->effective | bit(capability), .permitted = present->permitted});
}

RaisedCapability::~RaisedCapability() {
  const auto present = present_sets();
  if (present && present->effective != before_)
    set_sets({.effective = before_, .permitted = present->permitted});
}

}  // namespace stfs
