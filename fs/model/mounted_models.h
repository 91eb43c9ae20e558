// The file systems behind a mount, by number. A model that was replaced is reopened as a new file system. It
// gets a new number, and so new inode numbers. The old file system stays while programs have its files open.
//
// Each file system has a count of holders: one for being current, one for each look-up that the kernel has
// not forgotten, and one for each running call. When the count reaches 0, the file system ends and its number
// is free again: by then the kernel knows none of its inodes.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "core/base/mutex.h"
#include "fs/base/user_counts.h"
#include "fs/model/filesystem.h"

namespace stfs {

/// Any thread may call.
class MountedModels {
 public:
  using Number = std::uint32_t;

  /// @param first  the lowest number.
  /// @param most   the greatest number of file systems at a time.
  MountedModels(Number first, Number most) : first_(first), most_(most) {}

 private:
  struct Edition {
    Edition(std::unique_ptr<Filesystem> made, Number its, UserCounts::Share of_owner)
        : filesystem(std::move(made)), number(its), share(std::move(of_owner)) {}
    std::unique_ptr<Filesystem> filesystem;
    const Number number;
    const UserCounts::Share share;
    std::atomic<std::uint64_t> holders = 1;  // the caller of add()
  };

 public:
  /// Holds a file system for the length of a call.
  class Pin {
   public:
    Pin() = default;
    ~Pin() {
      epoch_.reset();
      if (edition_ != nullptr) mounted_models_->let_go(*edition_, 1);
    }
    Pin(Pin&& other) noexcept
        : mounted_models_(other.mounted_models_),
          edition_(std::exchange(other.edition_, nullptr)),
          epoch_(std::move(other.epoch_)) {}
    Pin& operator=(Pin&&) = delete;
    Pin(const Pin&) = delete;
    Pin& operator=(const Pin&) = delete;

    explicit operator bool() const { return edition_ != nullptr; }
    Filesystem* operator->() const { return edition_->filesystem.get(); }
    [[nodiscard]] Number number() const { return edition_->number; }
    /// Adds a holder for a look-up that the kernel gets in a reply. Forget it with MountedModels::let_go().
    void note_lookup(Ino ino) const {
      edition_->holders.fetch_add(1, std::memory_order_relaxed);
      edition_->filesystem->note_lookup(ino);
    }

   private:
    friend class MountedModels;
    Pin(const MountedModels* mounted_models, Edition* edition)
        : mounted_models_(mounted_models), edition_(edition), epoch_(edition->filesystem->pin()) {}
    const MountedModels* mounted_models_ = nullptr;
    Edition* edition_ = nullptr;
    Epochs::Pin epoch_;
  };

  /// @param share  is kept until the file system ends.
  /// @return the file system's number, with one holder; ENFILE if no number is free.
  Result<Number> add(std::unique_ptr<Filesystem> filesystem, UserCounts::Share share = {});
  /// Holds the file system of that number. The pin is false if there is none.
  [[nodiscard]] Pin pin(Number number) const;
  /// Takes off that many holders.
  void let_go(Number number, std::uint64_t holders) const;

  /// `note` runs whenever a file system has ended, so that its receiver calls take_ended(). Set before the
  /// first call.
  void tell_ends_to(std::function<void()> note) { note_end_ = std::move(note); }
  /// Returns the file systems that have ended since the last call. No call runs on them any more.
  [[nodiscard]] std::vector<std::unique_ptr<Filesystem>> take_ended();
  /// Pins of all file systems that have not ended.
  [[nodiscard]] std::vector<Pin> all() const;

 private:
  void let_go(Edition& edition, std::uint64_t holders) const;

  const Number first_;
  const Number most_;
  std::function<void()> note_end_ = [] {};
  mutable SharedMutex mutex_;  // nothing is called with it held
  mutable std::vector<std::unique_ptr<Edition>> by_number_ GUARDED_BY(mutex_);
  mutable std::vector<std::unique_ptr<Edition>> ended_ GUARDED_BY(mutex_);
};

}  // namespace stfs
