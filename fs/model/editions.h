// The file systems behind a mount, by number. A model that is opened anew, because it was replaced, gets a
// new number and with it inode numbers of its own; its old one stays for those who have something of it open.
//
// A file system is held once by whoever made it current, once for each look-up that the kernel has not
// forgotten, and once by each call that is at work on it. Who lets go last ends it: its number is free
// again, since nobody knows an inode of it any more.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <shared_mutex>
#include <utility>
#include <vector>

#include "fs/model/filesystem.h"

namespace stfs {

/// Any thread may call.
class Editions {
 public:
  using Number = std::uint32_t;

  /// @param first  the first number that is given.
  /// @param most   how many there are at a time.
  Editions(Number first, Number most) : first_(first), most_(most) {}

 private:
  struct Edition {
    Edition(std::unique_ptr<Filesystem> made, Number its) : filesystem(std::move(made)), number(its) {}
    std::unique_ptr<Filesystem> filesystem;
    const Number number;
    std::atomic<std::uint64_t> holders = 1;  // who has added it
  };

 public:
  /// Holds a file system for the length of a call.
  class Pin {
   public:
    Pin() = default;
    ~Pin() {
      if (edition_ != nullptr) editions_->let_go(*edition_, 1);
    }
    Pin(Pin&& other) noexcept
        : editions_(other.editions_), edition_(std::exchange(other.edition_, nullptr)) {}
    Pin& operator=(Pin&&) = delete;
    Pin(const Pin&) = delete;
    Pin& operator=(const Pin&) = delete;

    explicit operator bool() const { return edition_ != nullptr; }
    Filesystem* operator->() const { return edition_->filesystem.get(); }
    [[nodiscard]] Number number() const { return edition_->number; }
    /// What the kernel is told of is held until it has forgotten.
    void note_lookup() const { edition_->holders.fetch_add(1, std::memory_order_relaxed); }

   private:
    friend class Editions;
    Pin(const Editions* editions, Edition* edition) : editions_(editions), edition_(edition) {}
    const Editions* editions_ = nullptr;
    Edition* edition_ = nullptr;
  };

  /// @return its number, held once; ENFILE where none is free.
  Result<Number> add(std::unique_ptr<Filesystem> filesystem);
  /// False where there is none of that number.
  [[nodiscard]] Pin pin(Number number) const;
  void let_go(Number number, std::uint64_t holders) const;

  /// Who calls take_ended() is told; set before the first call.
  void tell_ends_to(std::function<void()> note) { note_end_ = std::move(note); }
  /// Those that have ended since the last call, with nobody at work on them.
  [[nodiscard]] std::vector<std::unique_ptr<Filesystem>> take_ended();
  /// All that have not ended.
  [[nodiscard]] std::vector<Pin> all() const;

 private:
  void let_go(Edition& edition, std::uint64_t holders) const;

  const Number first_;
  const Number most_;
  std::function<void()> note_end_ = [] {};
  mutable std::shared_mutex mutex_;  // guards what follows; nothing is called with it held
  mutable std::vector<std::unique_ptr<Edition>> by_number_;
  mutable std::vector<std::unique_ptr<Edition>> ended_;
};

}  // namespace stfs
