// Shared by tests of edits in a transaction's directory: a model of three tensors and one transaction.
#pragma once

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "tests/fs/edited.h"
#include "tests/fs/transacted.h"
#include "tests/support/catch.h"

namespace stfs::test {

using Stored = std::map<std::string, std::string>;

inline const Stored kStoredThree = {{"first", kOld}, {"second", kSecond}, {"third", kThird}};

struct EditedTransaction {
  explicit EditedTransaction(const MountedModelOptions& options = {}, Storage& storage = system_storage())
      : t(options, storage, kThree) {}

  Transacted t;
  Ino directory = t.begin();

  [[nodiscard]] int remove(std::string_view name) const {
    return errno_of(t.mount->remove_file(directory, name));
  }
  [[nodiscard]] int move(std::string_view name, std::string_view to, unsigned flags = 0) const {
    return errno_of(t.mount->rename(directory, name, directory, to, flags));
  }
  [[nodiscard]] int make(std::string_view name, std::string_view bytes) const {
    WrittenFile file(t.mount, name, directory);
    const int written = bytes.empty() ? 0 : file.write(bytes);
    return written != 0 ? written : file.save();
  }
  /// Makes a file without a dtype and shape.
  [[nodiscard]] int make_plain(std::string_view name, std::string_view bytes) const {
    WrittenFile file(t.mount, name, directory);
    const int written = file.write(bytes);
    return written != 0 ? written : file.close();
  }
  [[nodiscard]] int set(std::string_view name, std::string_view key, const std::string& value) const {
    return errno_of(t.mount->set_extended_attribute(t.mount.ino(name, directory),
                                                    "user.safetensors." + std::string(key), value));
  }
  [[nodiscard]] std::string attribute(std::string_view name, std::string_view key) const {
    return t.mount->extended_attribute(t.mount.ino(name, directory), "user.safetensors." + std::string(key))
        .value_or("none");
  }
  [[nodiscard]] int set_metadata(std::string_view key, const std::optional<std::string>& value,
                                 int flags = 0) const {
    return errno_of(t.mount->set_extended_attribute(
        directory, "user.safetensors.metadata." + std::string(key), value, flags));
  }
  [[nodiscard]] std::string metadata(Ino of, std::string_view key) const {
    return t.mount->extended_attribute(of, "user.safetensors.metadata." + std::string(key)).value_or("none");
  }
  [[nodiscard]] bool has(std::string_view name) const { return t.mount->lookup(directory, name).has_value(); }
  [[nodiscard]] Names listed() const {
    Names names = t.list(directory);
    std::ranges::sort(names);
    return names;
  }
  [[nodiscard]] Stored stored() const { return stored_tensors(t.mount); }
  [[nodiscard]] std::string bytes() const { return content_of(t.mount.path()); }
  void roll_back() const {
    for (const std::string& name : t.list(directory)) CHECK(remove(name) == 0);
    CHECK(errno_of(t.mount->remove_directory(kTransactions, "T")) == 0);
  }
};

}  // namespace stfs::test
