// The models of a mount, by number. A model that was replaced is reopened as a new edition: a MountedModel
// with a new number, so its inode numbers are new. The old edition stays while programs have its files open.
//
// Each edition counts its holders: one if the edition is current, one for each look-up that the kernel has
// not forgotten, and one for each running call. When the count reaches 0, the edition ends and its number is
// free again. By then the kernel knows none of its inodes.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "core/base/mutex.h"
#include "fs/base/user_counts.h"
#include "fs/model/mounted_model.h"
#include "fs/tree/snapshot.h"

namespace stfs {

/// Any thread may call.
class MountedModels {
 public:
  using Number = std::uint32_t;

  /// @param first  the lowest number.
  /// @param most   the greatest number of editions at a time.
  MountedModels(Number first, Number most) : first_(first), most_(most) {}

 private:
  struct Edition {
    Edition(std::unique_ptr<MountedModel> made, Number its, UserCounts::Share of_owner)
        : mounted(std::move(made)), number(its), share(std::move(of_owner)) {}
    std::unique_ptr<MountedModel> mounted;
    const Number number;
    const UserCounts::Share share;
    std::atomic<std::uint64_t> holders = 1;  // the caller of add()
  };

 public:
  /// Holds an edition for the length of a call.
  class Pin {
   public:
    Pin() = default;
    ~Pin() {
      snapshot_.reset();
      if (edition_ != nullptr) mounted_models_->let_go(*edition_, 1);
    }
    Pin(Pin&& other) noexcept
        : mounted_models_(other.mounted_models_),
          edition_(std::exchange(other.edition_, nullptr)),
          snapshot_(std::move(other.snapshot_)) {}
    Pin& operator=(Pin&&) = delete;
    Pin(const Pin&) = delete;
    Pin& operator=(const Pin&) = delete;

    explicit operator bool() const { return edition_ != nullptr; }
    MountedModel* operator->() const { return edition_->mounted.get(); }
    [[nodiscard]] Number number() const { return edition_->number; }
    /// Holds only the edition from now on, and no longer the versions of its model. For long work that pins
    /// the versions itself, step by step.
    void let_versions_go() { snapshot_.reset(); }
    /// Adds a holder for a look-up that the kernel gets in a reply. MountedModels::let_go() removes the
    /// holder.
    void note_lookup(Ino ino) const {
      edition_->holders.fetch_add(1, std::memory_order_relaxed);
      edition_->mounted->note_lookup(ino);
    }

   private:
    friend class MountedModels;
    Pin(const MountedModels* mounted_models, Edition* edition)
        : mounted_models_(mounted_models), edition_(edition), snapshot_(edition->mounted->pin()) {}
    const MountedModels* mounted_models_ = nullptr;
    Edition* edition_ = nullptr;
    Snapshot::Pin snapshot_;
  };

  /// @param share  kept until the edition ends.
  /// @return the edition's number, with one holder; ENFILE if no number is free.
  Result<Number> add(std::unique_ptr<MountedModel> mounted, UserCounts::Share share = {});
  /// Holds the edition of that number. The pin is false if no edition has the number.
  [[nodiscard]] Pin pin(Number number) const;
  /// Removes this many holders.
  void let_go(Number number, std::uint64_t holders) const;

  /// `note` runs whenever an edition has ended, so that its owner calls take_ended(). Set before the first
  /// call.
  void tell_ends_to(std::function<void()> note) { note_end_ = std::move(note); }
  /// Returns the editions that have ended since the last call. No call is running on them any more.
  [[nodiscard]] std::vector<std::unique_ptr<MountedModel>> take_ended();
  /// Pins of all editions that have not ended.
  [[nodiscard]] std::vector<Pin> all() const;

 private:
  void let_go(Edition& edition, std::uint64_t holders) const;

  const Number first_;
  const Number most_;
  std::function<void()> note_end_ = [] {};
  mutable SharedMutex mutex_;  // no function is called with it held
  mutable std::vector<std::unique_ptr<Edition>> by_number_ GUARDED_BY(mutex_);
  mutable std::vector<std::unique_ptr<Edition>> ended_ GUARDED_BY(mutex_);
};

}  // namespace stfs
