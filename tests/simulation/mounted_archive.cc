// Puts the driver together as fs/mount/main.cc and fs/mount/session.cc do.
#include "tests/simulation/mounted_archive.h"

#include <cstring>
#include <numeric>
#include <stdexcept>
#include <utility>

#include "core/archive/archive.h"
#include "core/journal/journal_format.h"
#include "tests/support/choices.h"

namespace stfs::test {
namespace {

std::uint64_t ids = 0;

/// More than there can be requests at once, so that no request needs an additional thread.
constexpr unsigned kThreadsOfSession = 1 << 20;

Result<std::unique_ptr<MountedModel>> open_filesystem(const std::string& path, Storage& storage,
                                                      bool is_shared, const MountRoot::Heritage& heritage) {
  // A map of a file in the model would need a copy of its memory.
  auto archive = Archive::open(path, Access::ReadWrite, storage, Io::Pread);
  if (!archive) return pass_on(std::move(archive));
  MountedModelOptions options;
  options.allows_edits = false;  // the truth has no edits of the structure
  options.commit.lock_patience = std::chrono::milliseconds(100);
  options.is_shared = is_shared;
  options.activity = heritage.activity;
  options.least_generation = heritage.least_generation;
  return std::make_unique<MountedModel>(std::move(*archive), options);
}

}  // namespace

MountedArchive::MountedArchive(DiskModel& disk, Kernel& kernel, Interceptor& interceptor, std::string path,
                               bool is_shared)
    : kernel_(kernel),
      process_(disk.start_process()),
      storage_(*process_, interceptor),
      slow_(kThreadsOfSession, 0),
      names_(kThreadsOfSession, 0),
      checksums_(0, 0) {
  auto filesystem = open_filesystem(path, storage_, is_shared, {});
  if (!filesystem) throw std::runtime_error("can't be mounted: " + filesystem.error().message);
  mount_root_ = std::make_unique<MountRoot>(
      MountRoot::Member{.name = "model",
                        .path = path,
                        .mounted = std::move(*filesystem),
                        .open = [this, path, is_shared](const MountRoot::Heritage& heritage) {
                          return open_filesystem(path, storage_, is_shared, heritage);
                        }});
  mount_ = std::unique_ptr<Mount>(new Mount{.mount_root = *mount_root_});
  kernel_.mount(fuse_operations(), mount_.get(), is_shared);
  invalidator_ = std::make_unique<Invalidator>(
      kernel_.session(),
      [this](const Stale& stale, const Invalidator::Visit& visit) {
        if (const MountRoot::Pin model = mount_root_->model_of(stale.first))
          model->visit_cached(stale, visit);
      },
      [this](Ino ino) { return mount_root_->directory_looked_up(ino); });
  mount_->invalidator = invalidator_.get();
  mount_->slow = &slow_;
  mount_->names = &names_;
  mount_->checksums = &checksums_;
  mount_->session = kernel_.session();
  mount_->on_first_open = [] {};
  mount_root_->connect_to(
      {.forget = [this](const Stale& stale) { invalidator_->forget(stale); },
       .note_commit = [] {},
       .change_root = [this](const std::function<void()>& change) { change_root(change); }});
  follower_ = std::make_unique<Follower>(*mount_);
  files_ = follower_->files().size();
}

MountedArchive::~MountedArchive() {
  static_cast<void>(invalidator_->finish_within(std::chrono::milliseconds(0)));  // ends notifications
  while (invalidator_->do_next()) {
  }
  kernel_.unmount();
  mount_root_->end();
}

void MountedArchive::kill() {
  process_->kill();
  kernel_.abort();
}

bool MountedArchive::look() {
  std::vector<std::size_t> all(files_);
  std::iota(all.begin(), all.end(), std::size_t{0});
  const Watcher::Next next = follower_->look(all);
  if (next == Watcher::Next::WatchAnew) files_ = follower_->files().size();
  return next == Watcher::Next::Wait;
}

void MountedArchive::change_root(const std::function<void()>& change) {
  invalidator_->wait_for_listings(kRootIno, [this] { mount_->links_listed_root = false; });
  while (invalidator_->do_next()) {
  }
  change();
}

void MountedArchive::begin_ids() {
  ids = 0;
}

}  // namespace stfs::test

namespace stfs {

/// Replaces JournalId::random() at the link: the names are the same, in the same order, for each seed.
JournalId next_id() __asm__("__wrap__ZN4stfs9JournalId6randomEv");
JournalId next_id() {
  JournalId id{};
  const std::uint64_t number = test::RandomChoices(++test::ids).next();
  std::memcpy(id.bytes.data(), &number, sizeof number);
  return id;
}

}  // namespace stfs
