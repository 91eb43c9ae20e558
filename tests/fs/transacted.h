// Transactions through the file system, without a kernel.
#pragma once

#include "fs/write/transaction_directory.h"
#include "tests/fs/descriptor.h"
#include "tests/support/captured_stderr.h"

namespace stfs::test {

inline constexpr Ino kViews = kHiddenIno;
inline constexpr Ino kTransactions = TransactionDirectory::kTransactions;
inline constexpr Ino kCommitted = TransactionDirectory::kCommitted;

/// A descriptor of a file of a transaction.
class Member {
 public:
  Member(const DrivenFilesystem& mount, Ino directory, std::string_view name, int flags = O_WRONLY)
      : filesystem_(*mount), ino_(mount.ino(name, directory)) {
    auto file = filesystem_.open(ino_, flags & ~O_TRUNC, ::getpid());
    if (!file) throw std::runtime_error(file.error().message);
    file_ = *file;
    if ((flags & O_TRUNC) != 0 && !filesystem_.resize(*file_, 0, 1)) throw std::runtime_error("O_TRUNC");
  }
  ~Member() { release(); }
  Member(const Member&) = delete;
  Member& operator=(const Member&) = delete;
  int write(std::string_view bytes, std::uint64_t offset) {
    return errno_of(filesystem_.write(*file_, bytes_of(bytes), offset, 1));
  }
  int close() {
    const int verdict = errno_of(filesystem_.flush(*file_, 1, ::getpid()));
    release();
    return verdict;
  }

 private:
  void release() {
    if (file_ != nullptr) filesystem_.release(std::exchange(file_, nullptr));
  }
  MountedModel& filesystem_;
  Ino ino_;
  OpenFile* file_ = nullptr;
};

struct Transacted {
  explicit Transacted(const MountedModelOptions& options = {}, Storage& storage = system_storage(),
                      const Tensors& tensors = kTwoTensors)
      : mount(tensors, options, storage) {}

  Ino begin(std::string_view name = "T") const {
    const auto made = mount->make_directory(kTransactions, name);
    if (!made) throw std::runtime_error(made.error().message);
    return made->st_ino;
  }
  int stage(Ino directory, std::string_view name, std::string_view content = kNew) const {
    Member member(mount, directory, name, O_WRONLY | O_TRUNC);
    const int verdict = member.write(content, 0);
    return verdict != 0 ? verdict : member.close();
  }
  int commit(std::string_view name = "T") const {
    return errno_of(mount->rename(kTransactions, name, kCommitted, name));
  }
  [[nodiscard]] std::string read(Ino directory, std::string_view name) const {
    const auto bytes = mount->read(mount.ino(name, directory), 0, 1 << 20);
    return bytes ? text_of(bytes->copy().value()) : "unreadable: " + bytes.error().message;
  }
  [[nodiscard]] std::vector<std::string> list(Ino directory) const {
    std::vector<std::string> names;
    static_cast<void>(mount->read_directory(directory, 0, [&](std::string_view name, Ino, std::uint64_t) {
      if (name != "." && name != "..") names.emplace_back(name);
      return true;
    }));
    return names;
  }
  [[nodiscard]] bool is_untouched() const {
    return mount.stored("first") == kOld && mount.stored("second") == kSecond;
  }

  DrivenFilesystem mount;
  CapturedStderr captured;
};

/// The transaction T, which has begun.
struct Begun {
  Transacted t;
  Ino directory = t.begin();
};

}  // namespace stfs::test
