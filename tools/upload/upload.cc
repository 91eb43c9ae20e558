// The upload engine: a conductor, readers, and a submitter for each device.
//
//   conductor   checks that no archive has changed, runs the other threads, checks again, verifies
//   readers     fill slots of the ring, or read a piece for the host's own memory into its arena
//   submitter   starts the copies of one device, and returns the slots when the copies are done
//
// The first thread that fails records its error. The other threads stop at the next piece.
#include "tools/upload/upload.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <optional>
#include <system_error>
#include <thread>

#include "core/base/mutex.h"
#include "core/base/parallel.h"
#include "tools/device/conversion.h"
#include "tools/text/quantity.h"
#include "tools/upload/page_cache.h"
#include "tools/upload/piece_reader.h"
#include "tools/upload/ring.h"
#include "tools/upload/submitter.h"
#include "tools/upload/transfers.h"
#include "tools/upload/verification.h"

namespace stfs::upload {
namespace {

constexpr unsigned kMostReaders = 8;
// 16 slots of 2 MiB stay in the processor's L3 cache: a core then copies 38 to 40 GB/s from the page cache,
// and 20 GB/s with a larger ring (measured on the host of an H200). A disk is slower and needs more reads in
// flight.
constexpr unsigned kSlots = 16;
constexpr unsigned kColdSlots = 32;
/// The disk is asked for data this many pieces before they are read.
constexpr std::size_t kPiecesAhead = 8;

tl::unexpected<Error> cancelled() {
  return fail(ErrorCode::System, ECANCELED, "cancelled: nothing is kept");
}

class Job final : public Upload {
 public:
  Job(Plan plan, const UploadOptions& options)
      : plan_(std::move(plan)),
        options_(options),
        list_(cut_into_transfers(plan_, options.slot_bytes)),
        readers_(options.readers > 0 ? options.readers : default_readers()),
        work_(options.work != nullptr ? *options.work : own_work_) {
    for (const Read& read : list_.reads) total_bytes_ += read.size_bytes;
  }
  ~Job() override {
    cancel();
    if (conductor_.joinable()) conductor_.join();
  }

  /// Allocates all memory before any byte moves.
  Result<void> prepare() {
    for (const PlannedDevice& device : plan_.devices) {
      auto backend = options_.open_backend(device.device);
      RETURN_IF_ERROR(backend);
      backends_.push_back(std::move(*backend));
    }
    RETURN_IF_ERROR(check_room());
    look_at_cache();
    if (options_.slots == 0) options_.slots = is_cold_ ? kColdSlots : kSlots;
    for (std::size_t at = 0; at < backends_.size(); ++at) {
      auto arena = backends_[at]->allocate(plan_.devices[at].arena_bytes, options_.is_shareable);
      RETURN_IF_ERROR(arena);
      arenas_.push_back(std::move(*arena));
    }
    scratch_.resize(backends_.size());
    for (const Transfer& transfer : list_.transfers) {
      if (is_direct(transfer)) continue;
      RETURN_IF_ERROR(prepare_ring(transfer));
    }
    return {};
  }

  Result<void> start() {
    work_.begin(total_bytes_);
    try {
      conductor_ = std::thread([this] { conduct(); });
    } catch (const std::system_error& error) {
      return fail_system(error.code().value(), "upload", "start a thread");
    }
    return {};
  }

  const Work& progress() const override { return work_; }
  bool is_done() const override { return is_done_; }

  void cancel() override {
    if (!is_done_) stop(cancelled().value());
  }

  Result<Resident> wait() override {
    if (conductor_.joinable()) conductor_.join();
    const MutexLock lock(mutex_);
    if (failure_) {
      arenas_.clear();
      return tl::unexpected(*failure_);
    }
    return Resident{std::move(arenas_), std::move(plan_), report_};
  }

 private:
  // --- before -----------------------------------------------------------------------------------------

  /// Reports the needed and the free size for the first device whose part does not fit. Checks each device
  /// separately: devices that share the host's memory each see all of its free bytes.
  Result<void> check_room() {
    for (std::size_t at = 0; at < backends_.size(); ++at) {
      const auto memory = backends_[at]->memory();
      RETURN_IF_ERROR(memory);
      const std::uint64_t needed = plan_.devices[at].arena_bytes;
      if (needed <= memory->free_bytes) continue;
      return fail(ErrorCode::OutOfMemory, ENOMEM,
                  fmt::format("{}: {} ({} bytes) are needed and {} ({} bytes) are free",
                              plan_.devices[at].device.name(), tools::human_size(needed), needed,
                              tools::human_size(memory->free_bytes), memory->free_bytes));
    }
    return {};
  }

  /// Allocates the slots. For devices that convert, also allocates scratch memory: for each slot a place of
  /// the same size.
  Result<void> prepare_ring(const Transfer& transfer) {
    const std::uint64_t size_bytes = options_.slot_bytes * options_.slots;
    if (!ring_) {
      // Allocate the ring in memory that a GPU reads at full speed, if there is a GPU. Other devices have no
      // preference.
      const auto gpu =
          std::ranges::find_if(backends_, [](const auto& backend) { return !backend->is_host(); });
      device::Backend& owner = gpu != backends_.end() ? **gpu : *backends_.front();
      auto staging = owner.allocate_staging(size_bytes);
      RETURN_IF_ERROR(staging);
      staging_ = std::move(*staging);
      ring_.emplace(staging_->bytes(), options_.slot_bytes, options_.slots, backends_.size());
    }
    if (!transfer.is_converted) return {};
    for (const PlannedTensor& target : targets(transfer)) {
      if (scratch_[target.device]) continue;
      auto scratch = backends_[target.device]->allocate(size_bytes, false);
      RETURN_IF_ERROR(scratch);
      scratch_[target.device] = std::move(*scratch);
    }
    return {};
  }

  // --- what goes where --------------------------------------------------------------------------------

  /// Returns the targets of the transfer's first part. All other parts go to the same devices.
  [[nodiscard]] std::span<const PlannedTensor> targets(const Transfer& transfer) const {
    return targets_of(plan_, list_.reads[list_.parts_of(transfer).front().read]);
  }
  [[nodiscard]] bool is_direct(const Transfer& transfer) const {
    const auto to = targets(transfer);
    return !options_.force_ring && to.size() == 1 && backends_[to.front().device]->is_host();
  }

  // --- the conductor ----------------------------------------------------------------------------------

  void conduct() {
    auto done = guard_memory([&] { return try_conduct(); });
    if (!done) stop(std::move(done).error());
    // A read of an archive that is being changed can fail in many ways. Report the change as the reason.
    const MutexLock lock(mutex_);
    if (failure_ && failure_->errno_value != ECANCELED) {
      if (auto unchanged = check_unchanged(plan_); !unchanged && unchanged.error().errno_value == ESTALE) {
        failure_ = std::move(unchanged).error();
      }
    }
    is_done_ = true;
  }

  Result<void> try_conduct() {
    RETURN_IF_ERROR(check_unchanged(plan_));
    const auto begin = std::chrono::steady_clock::now();
    move_all();
    report_.duration = std::chrono::steady_clock::now() - begin;
    if (is_stopped_) return {};
    report_.read_bytes = total_bytes_;
    report_.overflows = overflows_;
    if (options_.verify) {
      auto verified = verify_arenas(plan_, list_, backends_, arenas_, readers_, is_stopped_);
      RETURN_IF_ERROR(verified);
      report_.verified_bytes = *verified;
    }
    return check_unchanged(plan_);
  }

  void move_all() {
    std::vector<std::thread> submitters;
    std::vector<std::thread> readers;
    try {
      if (ring_) {
        for (std::uint32_t device = 0; device < backends_.size(); ++device) {
          submitters.emplace_back([this, device] { run([&] { return submit(device); }); });
        }
      }
      while (readers.size() < worker_count(list_.transfers.size(), readers_)) {
        readers.emplace_back([this] { run([&] { return read_all(); }); });
      }
    } catch (const std::system_error& error) {
      // Fewer readers are enough, but each device needs its submitter.
      const bool has_all_submitters = !ring_ || submitters.size() == backends_.size();
      if (!has_all_submitters || readers.empty()) {
        stop(fail_system(error.code().value(), "upload", "start a thread").value());
      }
    }
    for (std::thread& reader : readers) reader.join();
    if (ring_) ring_->end();
    for (std::thread& submitter : submitters) submitter.join();
  }

  template <class Part>
  void run(Part&& part) {
    auto done = guard_memory(part);
    if (!done) stop(std::move(done).error());
  }

  /// Records only the first reason.
  void stop(Error why) {
    {
      const MutexLock lock(mutex_);
      if (!failure_) failure_ = std::move(why);
    }
    is_stopped_ = true;
    if (ring_) ring_->stop();
  }

  void look_at_cache() {
    ByteRange run;
    const ArchiveReader* archive = nullptr;
    const auto count = [&] {
      const File* const file = archive != nullptr ? archive->local_file() : nullptr;
      // An archive on a web server has no descriptor, and none of it comes from this disk.
      const bool is_local = file != nullptr && file->descriptor() >= 0;
      report_.cached_bytes += is_local ? cached_bytes(file->descriptor(), run) : run.size_bytes;
    };
    for (const Read& read : list_.reads) {
      const ByteRange range{read.file_offset + (read.slice != nullptr ? read.slice->extent.offset : 0),
                            read.slice != nullptr ? read.slice->extent.size_bytes : read.size_bytes};
      if (read.archive == archive && run.end() == range.offset) {
        run.size_bytes += range.size_bytes;
        continue;
      }
      count();
      archive = read.archive;
      run = range;
    }
    count();
    report_.cached_bytes = std::min(report_.cached_bytes, total_bytes_);
    is_cold_ = report_.cached_bytes < total_bytes_ / 10 * 9;
  }

  // --- readers ----------------------------------------------------------------------------------------

  Result<void> read_all() {
    PieceReader reader(list_);
    std::vector<std::byte> buffer;  // for parts that the reader itself converts
    while (!is_stopped_) {
      const std::size_t at = next_++;
      if (at >= list_.transfers.size()) break;
      const Transfer& transfer = list_.transfers[at];
      prefetch(at + kPiecesAhead);
      if (is_direct(transfer)) {
        RETURN_IF_ERROR(read_to_arena(reader, transfer, buffer));
        continue;
      }
      const auto slot = ring_->acquire();
      if (!slot) break;
      const auto bytes = ring_->bytes(*slot).first(static_cast<std::size_t>(transfer.size_bytes));
      RETURN_IF_ERROR(reader.read(transfer, bytes));
      std::vector<std::uint32_t> devices;
      for (const PlannedTensor& target : targets(transfer)) devices.push_back(target.device);
      ring_->fill({*slot, static_cast<std::uint32_t>(at)}, devices);
    }
    return {};
  }

  Result<void> read_to_arena(PieceReader& reader, const Transfer& transfer, std::vector<std::byte>& buffer) {
    const PlannedTensor& first = targets(transfer).front();
    const std::span<std::byte> arena = arenas_[first.device]->host_bytes();
    if (!transfer.is_converted) {
      const auto place =
          arena.subspan(static_cast<std::size_t>(place_of(list_.parts_of(transfer).front(), first)),
                        static_cast<std::size_t>(transfer.size_bytes));
      RETURN_IF_ERROR(reader.read(transfer, place));
      work_.advance(transfer.source_bytes);
      return {};
    }
    buffer.resize(static_cast<std::size_t>(options_.slot_bytes));
    if (auto read =
            reader.read(transfer, std::span(buffer).first(static_cast<std::size_t>(transfer.size_bytes)));
        !read) {
      return read;
    }
    for (const Part& part : list_.parts_of(transfer)) {
      const PlannedTensor& target = targets_of(plan_, list_.reads[part.read]).front();
      const auto from = std::span<const std::byte>(buffer).subspan(
          static_cast<std::size_t>(part.offset), static_cast<std::size_t>(part.bytes.size_bytes));
      overflows_ += device::convert_elements(target.source_dtype, from, target.dtype,
                                             arena.subspan(static_cast<std::size_t>(place_of(part, target))));
    }
    work_.advance(transfer.source_bytes);
    return {};
  }

  Result<void> submit(std::uint32_t device) {
    Submitter submitter({.plan = plan_,
                         .list = list_,
                         .ring = *ring_,
                         .backend = *backends_[device],
                         .arena = *arenas_[device],
                         .scratch = scratch_[device].get(),
                         .slot_bytes = options_.slot_bytes,
                         .device = device});
    const auto overflows = submitter.run(is_stopped_, work_);
    RETURN_IF_ERROR(overflows);
    overflows_ += *overflows;
    return {};
  }

  void prefetch(std::size_t at) {
    if (!is_cold_ || at >= list_.transfers.size()) return;
    for (const Part& part : list_.parts_of(list_.transfers[at])) {
      const Read& read = list_.reads[part.read];
      const File* const file = read.archive->local_file();
      if (read.slice == nullptr && file != nullptr) {
        file->prefetch({read.file_offset + part.bytes.offset, part.bytes.size_bytes});
      }
    }
  }

  Plan plan_;
  UploadOptions options_;
  TransferList list_;  // refers to the plan
  unsigned readers_;
  std::uint64_t total_bytes_ = 0;
  Work own_work_;
  Work& work_;
  std::vector<std::shared_ptr<device::Backend>> backends_;
  std::vector<std::shared_ptr<device::Arena>> arenas_;
  std::vector<std::shared_ptr<device::Arena>> scratch_;  // null for a device without conversions
  std::unique_ptr<device::Staging> staging_;
  std::optional<Ring> ring_;  // present if any piece is not direct
  bool is_cold_ = false;
  UploadReport report_;  // used only by the conductor until it is done

  std::atomic<std::size_t> next_ = 0;
  std::atomic<std::uint64_t> overflows_ = 0;
  std::atomic<bool> is_stopped_ = false;
  std::atomic<bool> is_done_ = false;
  Mutex mutex_;  // innermost
  std::optional<Error> failure_ GUARDED_BY(mutex_);
  std::thread conductor_;
};

}  // namespace

unsigned default_readers() {
  return std::clamp(std::thread::hardware_concurrency(), 1U, kMostReaders);
}

Result<std::unique_ptr<Upload>> Upload::start(Plan plan, const UploadOptions& options) {
  return guard_memory([&]() -> Result<std::unique_ptr<Upload>> {
    auto job = std::make_unique<Job>(std::move(plan), options);
    RETURN_IF_ERROR(job->prepare());
    RETURN_IF_ERROR(job->start());
    return job;
  });
}

}  // namespace stfs::upload
