// XXH128, as `xxh128sum` prints it.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>

namespace stfs {

class Checksum {
 public:
  Checksum();
  ~Checksum();
  Checksum(const Checksum&) = delete;
  Checksum& operator=(const Checksum&) = delete;

  void update(std::span<const std::byte> bytes);
  /// 32 hexadecimal digits in the canonical big-endian form.
  [[nodiscard]] std::string hex() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace stfs
