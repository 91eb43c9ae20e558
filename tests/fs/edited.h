// Shared by tests of edits: a model of three tensors, programs that make files, and the files that they see.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "tests/fs/driven_filesystem.h"
#include "tests/fs/opened_or_made.h"
#include "tests/fs/stored_tensors.h"
#include "tests/support/catch.h"

namespace stfs::test {

inline const std::string kThird(5000, 'C');
inline const Tensors kThree = {{"first", kOld}, {"second", kSecond}, {"third", kThird}};

inline std::string read_ino(const DrivenFilesystem& mount, Ino ino) {
  return text_of(mount->read(ino, 0, 1 << 20).value().copy().value());
}

inline std::vector<std::string> list(const DrivenFilesystem& mount, Ino directory = kRootIno) {
  std::vector<std::string> names;
  REQUIRE(mount->read_directory(directory, 2, [&](std::string_view name, Ino, std::uint64_t) {
    names.emplace_back(name);
    return true;
  }));
  return names;
}

/// Makes the first edit, which moves the first tensors to make room for a longer header.
inline void make_room(const DrivenFilesystem& mount) {
  REQUIRE(mount->set_extended_attribute(kRootIno, "user.safetensors.metadata.room", ""));
}

using Names = std::vector<std::string>;

/// Makes a file or opens an existing one, and writes it as a program does.
class WrittenFile {
 public:
  WrittenFile(const DrivenFilesystem& mount, std::string_view name, Ino parent = kRootIno,
              int flags = O_WRONLY)
      : filesystem_(*mount), made_(opened_or_made(filesystem_, parent, name, flags)) {}
  ~WrittenFile() {
    if (made_.file != nullptr) filesystem_.release(made_.file);
  }
  WrittenFile(const WrittenFile&) = delete;
  WrittenFile& operator=(const WrittenFile&) = delete;
  /// Sends the request that the kernel sends for O_TRUNC.
  void cut() { REQUIRE(filesystem_.resize_by_name(ino(), 0, ::getpid())); }
  [[nodiscard]] Ino ino() const { return made_.status.st_ino; }
  int write(std::string_view bytes, std::uint64_t offset = 0) {
    return errno_of(filesystem_.write(*made_.file, bytes_of(bytes), offset, Caller(1, ::getpid())));
  }
  /// Sets an attribute user.safetensors.KEY.
  int set(std::string_view key, const std::string& value) {
    return errno_of(filesystem_.set_extended_attribute(ino(), "user.safetensors." + std::string(key), value));
  }
  /// Closes it as a tensor of bytes.
  int save() {
    const auto size_bytes = filesystem_.attributes(ino())->st_size;
    const int typed = set("dtype", "U8");
    const int shaped = set("shape", "[" + std::to_string(size_bytes) + "]");
    const int closed = close();
    return typed != 0 ? typed : shaped != 0 ? shaped : closed;
  }
  int close() {
    const int verdict = errno_of(filesystem_.flush(*made_.file, 1, ::getpid()));
    filesystem_.release(std::exchange(made_.file, nullptr));
    return verdict;
  }

 private:
  MountedModel& filesystem_;
  CreatedFile made_;
};

inline std::string npy_of(const std::string& descr, const std::string& shape, const std::string& data) {
  std::string header = "{'descr': '" + descr + "', 'fortran_order': False, 'shape': " + shape + ", }";
  header.resize(117, ' ');
  header += '\n';
  return std::string("\x93NUMPY\x01\x00", 8) + static_cast<char>(header.size()) + std::string(1, '\0') +
         header + data;
}

inline std::string form_of(const DrivenFilesystem& mount, std::string_view name) {
  const Ino ino = mount.ino(name);
  return mount->extended_attribute(ino, "user.safetensors.dtype").value() +
         mount->extended_attribute(ino, "user.safetensors.shape").value();
}

}  // namespace stfs::test
