// Running uploads, and the tensors that have arrived.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <thread>

#include "tools/libstfs/c_error.h"
#include "tools/libstfs/c_struct.h"
#include "tools/libstfs/handles.h"

using namespace stfs;
using namespace stfs::interface;

namespace {

/// The longest interval between two calls of `progress`. The first intervals are shorter, so that the end of
/// a short upload is noticed at once.
constexpr std::chrono::milliseconds kLongestPause{50};

void follow(upload::Upload& upload, int (*progress)(void*, std::uint64_t, std::uint64_t), void* context) {
  std::chrono::microseconds pause{200};
  bool is_canceled = false;
  while (!upload.is_done()) {
    std::this_thread::sleep_for(pause);
    pause = std::min<std::chrono::microseconds>(2 * pause, kLongestPause);
    const Work& now = upload.progress();
    if (is_canceled || progress(context, now.done_bytes(), now.total_bytes()) == 0) continue;
    upload.cancel();
    is_canceled = true;
  }
}

}  // namespace

stfs_upload* stfs_upload_start(const stfs_plan* plan, const stfs_upload_options* options, stfs_error* error) {
  return answer(error, [&]() -> Result<stfs_upload*> {
    upload::UploadOptions how;
    if (options != nullptr) {
      const auto known = take_struct(options);
      RETURN_IF_ERROR(known);
      how.readers = known->readers;
      how.verify = known->must_verify != 0;
    }
    auto upload = upload::Upload::start(plan->plan, how);
    RETURN_IF_ERROR(upload);
    return new stfs_upload{std::move(*upload), {}};
  });
}

int stfs_upload_poll(const stfs_upload* upload, stfs_upload_progress* progress, stfs_error* error) {
  return answer(error, [&]() -> Result<void> {
    stfs_upload_progress known{};
    // Read is_done first: a finished upload then reports all its bytes.
    known.is_done = upload->upload->is_done() ? 1 : 0;
    known.done_bytes = upload->upload->progress().done_bytes();
    known.total_bytes = upload->upload->progress().total_bytes();
    return give_struct(known, progress);
  });
}

void stfs_upload_cancel(stfs_upload* upload) {
  upload->upload->cancel();
}

stfs_resident* stfs_upload_wait(stfs_upload* upload, int (*progress)(void*, std::uint64_t, std::uint64_t),
                                void* context, stfs_error* error) {
  return answer(error, [&]() -> Result<stfs_resident*> {
    if (upload->is_taken.exchange(true))
      return refuse("stfs_upload_wait: was already called for this upload");
    if (progress != nullptr) follow(*upload->upload, progress, context);
    auto resident = upload->upload->wait();
    RETURN_IF_ERROR(resident);
    if (progress != nullptr) {
      const Work& all = upload->upload->progress();
      static_cast<void>(progress(context, all.done_bytes(), all.total_bytes()));
    }
    return new stfs_resident{std::move(*resident)};
  });
}

void stfs_upload_close(stfs_upload* upload) {
  delete upload;
}

std::uint64_t stfs_resident_count(const stfs_resident* resident) {
  return resident->resident.plan.tensors.size();
}

stfs_tensor* stfs_resident_tensor(const stfs_resident* resident, std::uint64_t position, stfs_error* error) {
  return answer(error, [&]() -> Result<stfs_tensor*> {
    const upload::Plan& plan = resident->resident.plan;
    if (position >= plan.tensors.size()) {
      return refuse(fmt::format("stfs_resident_tensor: no tensor {}", position));
    }
    const upload::PlannedTensor& planned = plan.tensors[static_cast<std::size_t>(position)];
    return new stfs_tensor{planned.name, plan.archive_of(planned).path().string(), plan.file_offset(planned),
                           StridedView::whole(planned.dtype, planned.shape, planned.place.size_bytes),
                           arena_memory(resident->resident.arenas[planned.device], planned.place)};
  });
}

int stfs_resident_report(const stfs_resident* resident, stfs_upload_report* report, stfs_error* error) {
  return answer(error, [&] {
    const upload::UploadReport& its = resident->resident.report;
    stfs_upload_report known{};
    known.duration_ns = static_cast<std::uint64_t>(its.duration.count());
    known.read_bytes = its.read_bytes;
    known.cached_bytes = its.cached_bytes;
    known.overflow_count = its.overflows;
    known.verified_bytes = its.verified_bytes;
    return give_struct(known, report);
  });
}

void stfs_resident_close(stfs_resident* resident) {
  delete resident;
}
