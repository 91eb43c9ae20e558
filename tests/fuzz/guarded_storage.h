// The files around a fuzzed index, on a storage that checks every requested path.
#pragma once

#include <fmt/format.h>

#include <cerrno>
#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/format/json_string.h"
#include "tests/support/archive_mutator.h"
#include "tests/support/memory_storage.h"

namespace stfs::test {

// The directory is on no disk. Code that asks the system instead of the storage finds nothing.
inline constexpr std::string_view kDirectory = "/nonexistent/model";
inline constexpr std::string_view kIndex = "/nonexistent/model/model.safetensors.index.json";

inline std::string in_directory(std::string_view name) {
  return fmt::format("{}/{}", kDirectory, name);
}

using Shards = std::map<std::string, std::vector<TensorDraft>, std::less<>>;

/// The complete shards. Two shards have "both", and the true index names one of them. "z" is empty.
inline const Shards& whole_shards() {
  static const Shards shards = {
      {"a.safetensors", {{"x", "F32", {2, 3}}, {"both", "U8", {5}}, {"\u00e9/\n\"", "I16", {1, 2}}}},
      {"b.safetensors", {{"u", "BF16", {7}}, {"z", "F64", {0, 3}}, {"", "U8", {1}}}},
      {"c.safetensors", {{"both", "U8", {5}}, {"c", "I8", {3}}}}};
  return shards;
}

/// Passes on requests for files in the directory, and notes the first path outside of it. Archives are only
/// read here, and MemoryStorage allows several threads to read.
class GuardedStorage final : public Storage {
 public:
  GuardedStorage() {
    for (const auto& [name, drafts] : whole_shards()) {
      contents_[in_directory(name)] =
          write_archive(drafts, R"({"format":"pt"})", static_cast<unsigned char>(name.front()));
    }
    const std::vector<TensorDraft> secret = {{"secret", "U8", {6}}};
    for (const std::string path :
         {"/nonexistent/secret.safetensors", "/nonexistent/model/sub/secret.safetensors"})
      contents_[path] = write_archive(secret, "", 0);
    contents_[in_directory("broken.safetensors")] = Bytes(20, std::byte{'?'});
    for (const auto& [path, content] : contents_) files_.put(path, content);
  }

  void put_index(std::span<const std::byte> text) { files_.put(std::string(kIndex), text); }
  [[nodiscard]] std::span<const std::byte> content(const std::string& name) const {
    return contents_.at(in_directory(name));
  }
  [[nodiscard]] std::string take_trespass() {
    const std::scoped_lock lock(mutex_);
    return std::exchange(trespass_, {});
  }

  Result<std::unique_ptr<File>> open(const std::filesystem::path& path, Access access) override {
    if (access != Access::ReadOnly) note("is opened for writing", path);
    check(path);
    return files_.open(path, access);
  }
  Result<std::unique_ptr<File>> open_no_link(const std::filesystem::path& path, Access access) override {
    return open(path, access);
  }
  Result<std::unique_ptr<File>> create_unnamed(const std::filesystem::path& fallback) override {
    note("is created", fallback);
    return fail_system(EROFS, fallback.native(), "create");
  }
  Result<void> publish(File&, const std::filesystem::path& path) override {
    note("is created", path);
    return fail_system(EROFS, path.native(), "link");
  }
  Result<void> remove(const std::filesystem::path& path) override {
    note("is removed", path);
    return fail_system(EROFS, path.native(), "remove");
  }
  Result<void> sync_directory(const std::filesystem::path&) override { return {}; }
  Result<std::vector<std::string>> list(const std::filesystem::path& directory,
                                        const std::string& prefix) override {
    if (directory != kDirectory) note("is listed", directory);
    return files_.list(directory, prefix);
  }
  Result<FileStatus> status(const std::filesystem::path& path) override {
    check(path);
    return files_.status(path);
  }

 private:
  /// Checks the text of the path, because the kernel's meaning of `..` must not matter.
  void check(const std::filesystem::path& path) {
    const std::string& text = path.native();
    const bool is_inside =
        text.starts_with(kDirectory) && text.size() > kDirectory.size() + 1 &&
        text[kDirectory.size()] == '/' && text.find('/', kDirectory.size() + 1) == std::string::npos &&
        text.find('\0') == std::string::npos && path.filename() != ".." && path.filename() != ".";
    if (!is_inside) note("is asked for", path);
  }
  void note(std::string_view what, const std::filesystem::path& path) {
    const std::scoped_lock lock(mutex_);
    if (trespass_.empty()) trespass_ = fmt::format("{} {}", in_quotes(path.native()), what);
  }

  std::map<std::string, Bytes> contents_;
  MemoryStorage files_;
  std::mutex mutex_;  // guards trespass_
  std::string trespass_;
};

}  // namespace stfs::test
