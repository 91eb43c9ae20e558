// Leases of the tensors that `stfs serve` keeps.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>

#include "core/base/printable.h"
#include "tools/libstfs/c_error.h"
#include "tools/libstfs/c_struct.h"
#include "tools/libstfs/handles.h"

using namespace stfs;
using namespace stfs::interface;

namespace {

std::chrono::milliseconds patience_of(std::uint64_t patience_ns) {
  // One year means no limit. Adding a year to any time does not overflow.
  constexpr std::chrono::milliseconds kLongest = std::chrono::hours(24 * 365);
  constexpr std::uint64_t kLongestNs = std::chrono::nanoseconds(kLongest).count();
  const std::chrono::nanoseconds patience(std::min(patience_ns, kLongestNs));
  return std::chrono::ceil<std::chrono::milliseconds>(patience);
}

Result<serve::AttachOptions> options_of(const stfs_lease_options* given) {
  serve::AttachOptions options;
  if (given == nullptr) return options;
  const auto known = take_struct(given);
  RETURN_IF_ERROR(known);
  if (known->patience_ns == 0) return options;
  options.patience = patience_of(known->patience_ns);
  return options;
}

}  // namespace

stfs_lease* stfs_lease_attach(const char* socket, const stfs_lease_options* options, stfs_error* error) {
  return answer(error, [&]() -> Result<stfs_lease*> {
    if (socket == nullptr) return refuse("stfs_lease_attach: socket is NULL");
    const auto known = options_of(options);
    RETURN_IF_ERROR(known);
    auto lease = serve::Lease::attach(socket, *known);
    RETURN_IF_ERROR(lease);
    return new stfs_lease{{}, std::move(*lease)};
  });
}

void stfs_lease_close(stfs_lease* lease) {
  delete lease;
}

std::uint64_t stfs_lease_count(const stfs_lease* lease) {
  const MutexLock lock(lease->mutex);
  return lease->lease.tensors().size();
}

stfs_tensor* stfs_lease_tensor(const stfs_lease* lease, std::uint64_t position, stfs_error* error) {
  return answer(error, [&]() -> Result<stfs_tensor*> {
    const MutexLock lock(lease->mutex);
    const auto& tensors = lease->lease.tensors();
    if (position >= tensors.size()) return refuse(fmt::format("stfs_lease_tensor: no tensor {}", position));
    const serve::LeasedTensor& leased = tensors[static_cast<std::size_t>(position)];
    return new stfs_tensor{leased.name, "", 0,
                           StridedView::whole(leased.dtype, leased.shape, leased.place.size_bytes),
                           arena_memory(lease->lease.arenas()[leased.arena], leased.place)};
  });
}

std::uint64_t stfs_lease_generation(const stfs_lease* lease) {
  const MutexLock lock(lease->mutex);
  return lease->lease.generation();
}

const char* stfs_lease_version(const stfs_lease* lease) {
  const MutexLock lock(lease->mutex);
  return lease->lease.version().c_str();
}

std::uint64_t stfs_lease_source_count(const stfs_lease* lease) {
  const MutexLock lock(lease->mutex);
  return lease->lease.sources().size();
}

const char* stfs_lease_source(const stfs_lease* lease, std::uint64_t position) {
  const MutexLock lock(lease->mutex);
  const auto& sources = lease->lease.sources();
  return position < sources.size() ? sources[static_cast<std::size_t>(position)].c_str() : nullptr;
}

int stfs_lease_descriptor(const stfs_lease* lease) {
  const MutexLock lock(lease->mutex);
  return lease->lease.descriptor();
}

int stfs_lease_take_news(stfs_lease* lease, stfs_lease_news* news, stfs_error* error) {
  return answer(error, [&]() -> Result<void> {
    if (news == nullptr) return refuse("stfs_lease_take_news: news is NULL");
    const MutexLock lock(lease->mutex);
    const auto told = lease->lease.take_news();
    RETURN_IF_ERROR(told);
    stfs_lease_news known{};
    known.newer_generation = told->newer_generation;
    known.is_server_gone = told->is_server_gone ? 1 : 0;
    printable(told->why_stuck).copy(known.why_stuck, sizeof known.why_stuck - 1);
    return give_struct(known, news);
  });
}

int stfs_lease_wait(stfs_lease* lease, std::uint64_t patience_ns, std::uint64_t* generation,
                    stfs_error* error) {
  return answer(error, [&]() -> Result<void> {
    if (generation == nullptr) return refuse("stfs_lease_wait: generation is NULL");
    const MutexLock lock(lease->mutex);
    const auto newer = lease->lease.wait_newer(patience_of(patience_ns));
    RETURN_IF_ERROR(newer);
    *generation = *newer;
    return {};
  });
}

int stfs_lease_renew(stfs_lease* lease, std::uint64_t patience_ns, stfs_error* error) {
  return answer(error, [&]() -> Result<void> {
    const MutexLock lock(lease->mutex);
    return lease->lease.renew(patience_ns == 0 ? serve::AttachOptions().patience : patience_of(patience_ns));
  });
}

std::uint64_t stfs_lease_changed_count(const stfs_lease* lease) {
  const MutexLock lock(lease->mutex);
  return lease->lease.changed().size();
}

std::uint64_t stfs_lease_changed(const stfs_lease* lease, std::uint64_t number) {
  const MutexLock lock(lease->mutex);
  const auto& changed = lease->lease.changed();
  return number < changed.size() ? changed[static_cast<std::size_t>(number)] : UINT64_MAX;
}
