#include "tests/simulation/machine.h"

#include <utility>
#include <vector>

#include "core/archive/archive.h"
#include "tests/support/disk_crash.h"

namespace stfs::test {

Machine::Machine(std::uint64_t seed, SimulationCounts& counts, Interceptor& interceptor,
                 std::function<bool()> wait)
    : counts_(counts),
      interceptor_(interceptor),
      choices_(seed),
      truth_(
          processes_, [this] { return stored(); }, [this] { return recovered(); }),
      kernel_(truth_, std::move(wait)),
      programs_(kernel_, processes_) {
  MountedArchive::begin_ids();
  show_processes(&processes_);
}

Machine::~Machine() {
  mount_.reset();
  programs_.clear();
  show_processes(nullptr);
}

Contents Machine::stored() {
  const DiskImage image = disk_->image();
  auto contents = archive_.stored_in(image, image.inode_at(std::string(kPath)));
  truth_.expect(contents.has_value(), "the archive was cut");
  return std::move(contents).value_or(Contents());
}

Contents Machine::recovered() {
  DiskModel disk(options_, after_kill(disk_->image()));
  const auto process = disk.start_process();
  const auto opened = Archive::open(std::string(kPath), Access::ReadWrite, *process, Io::Pread);
  truth_.expect(opened.has_value(), "can't be recovered" + (opened ? "" : ": " + opened.error().message));
  const DiskImage image = disk.image();
  auto contents = archive_.stored_in(image, image.inode_at(std::string(kPath)));
  truth_.expect(contents.has_value(), "recovery has cut the archive");
  return std::move(contents).value_or(Contents());
}

void Machine::begin() {
  options_.has_clone = choices_.one_in(2);
  options_.has_unnamed = !choices_.one_in(4);
  if (choices_.one_in(2)) options_.most_range_bytes = kDiskBlockBytes;
  disk_ = std::make_unique<DiskModel>(options_);
  is_shared_ = choices_.one_in(2);
  programs_.set_users(is_shared_);
  const DiskAccess access = is_shared_ ? SimulatedArchive::draw_access(choices_) : DiskAccess{};
  Contents contents = archive_.draw(choices_);
  disk_->put(kPath, archive_.bytes_of(contents), access);
  truth_.begin(std::move(contents), access);
  mount_it();
}

DiskAccess Machine::draw_access() {
  if (!is_shared_) return {};
  // Journals of the archive's owner are believed, so the owner never changes. If root owns the archive, other
  // users also write beside the mount, and then nothing changes.
  if (truth_.access().uid == 0) return truth_.access();
  DiskAccess access = SimulatedArchive::draw_access(choices_);
  access.uid = truth_.access().uid;
  // A journal that more users may write than the archive is not believed. An earlier journal has the
  // archive's earlier mode, so rights to write are only added.
  access.gid = truth_.access().gid;
  access.permissions |= truth_.access().permissions & 0022U;
  return access;
}

void Machine::mount_it() {
  ++counts_.mounts;
  situation_.generations.clear();
  situation_.is_noticed = true;
  situation_.was_replaced = false;
  commits_before_ = truth_.commits_done();
  mount_ = std::make_unique<MountedArchive>(*disk_, kernel_, interceptor_, std::string(kPath), is_shared_);
  programs_.fill();
}

void Machine::calm_down() {
  while (kernel_.release_one() || mount_->invalidate()) {
  }
}

void Machine::unmount() {
  programs_.end_all();
  calm_down();
  if (mount_->is_dead()) return;
  mount_.reset();
  if (!truth_.wrong().empty()) return;
  // The next process that opens the archive finishes the work that a fault has left.
  const bool is_left = truth_.has_met_fault();
  truth_.lose_mount();
  if (!is_left) truth_.adopt(stored());
}

void Machine::remount() {
  unmount();
  if (mount_ != nullptr || !truth_.wrong().empty()) return;
  mount_it();
  if (truth_.is_lost()) truth_.adopt(stored());
}

void Machine::kill_mount() {
  // Journals of an archive that was replaced stay.
  situation_.may_be_foreign = situation_.may_be_foreign || situation_.was_replaced;
  truth_.lose_mount();
  mount_->kill();
}

void Machine::mount_again() {
  programs_.drop_all();
  mount_.reset();
  const DiskImage image = after_kill(disk_->image());
  const bool has_lost_power = std::exchange(situation_.has_lost_power, false);
  if (has_lost_power) ++counts_.power_losses;
  const DiskImage left =
      has_lost_power ? after_random_power_loss(image, choices_, options_.has_stale_blocks) : image;
  disk_ = std::make_unique<DiskModel>(options_, left);
  mount_it();
  truth_.adopt(stored());
}

void Machine::end() {
  unmount();
  if (truth_.is_lost()) {
    mount_it();
    truth_.adopt(stored());
    unmount();
  }
  if (!truth_.wrong().empty()) return;
  truth_.expect(!disk_->has_locks_held(), "a lock is held after everybody has gone");
  const auto anybody = disk_->start_process();
  for (const std::string& name :
       anybody->list(std::string(kDirectory), ".").value_or(std::vector<std::string>()))
    truth_.expect(situation_.may_be_foreign, "LEFT BEHIND: " + name);
}

}  // namespace stfs::test
