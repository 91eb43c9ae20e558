// A mount of a single model of which programs save checkpoints, without a kernel.
#pragma once

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <initializer_list>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/format/header.h"
#include "fs/model/mount_root.h"
#include "tests/fs/opened_or_made.h"
#include "tests/support/catch.h"
#include "tests/support/plain.h"
#include "tests/support/temporary_directory.h"
#include "tests/support/text_archive.h"

namespace stfs::test::checkpoints {

inline constexpr std::size_t kTensorBytes = 40'000;
inline constexpr std::size_t kTensors = 10;

/// Ten tensors of equal size.
inline Tensors model_of(char first) {
  Tensors tensors;
  for (std::size_t at = 0; at < kTensors; ++at) {
    tensors.emplace_back(fmt::format("w{}", at),
                         std::string(kTensorBytes, static_cast<char>(first + static_cast<char>(at))));
  }
  return tensors;
}
inline const Tensors kBefore = model_of('A');
inline const Tensors kAfter = model_of('a');

/// Returns the first `count` tensors of one model and the others of the other model.
inline Tensors mixed(const Tensors& one, std::size_t count, const Tensors& other) {
  Tensors all(one.begin(), one.begin() + static_cast<std::ptrdiff_t>(count));
  all.insert(all.end(), other.begin() + static_cast<std::ptrdiff_t>(count), other.end());
  return all;
}

inline std::uint64_t inode_of(const std::filesystem::path& path) {
  struct stat status {};
  REQUIRE(::stat(path.c_str(), &status) == 0);
  return status.st_ino;
}

/// A mount of a single model, which can show another archive in its place.
class Mount {
 public:
  /// @param file_name  of the archive. If it is not "m.safetensors", then "m.safetensors" is a link to it.
  explicit Mount(Storage& storage = system_storage(), const std::string& file_name = "m.safetensors")
      : storage_(storage), path_(directory_.path() / "m.safetensors") {
    static_cast<void>(directory_.write(file_name, archive_of(kBefore)));
    if (file_name != path_.filename()) std::filesystem::create_symlink(file_name, path_);
    const MountRoot::Open open = [this](const MountRoot::Heritage& heritage) { return open_model(heritage); };
    mount_root_ = std::make_unique<MountRoot>(
        MountRoot::Member{.name = "", .path = path_, .mounted = open_model({}).value(), .open = open});
    mount_root_->connect_to({.forget_outdated = [this](const Outdated& outdated) {
      for (const auto& [directory, name] : outdated.entries) forgotten_.push_back(name);
    }});
  }

  MountRoot& operator*() const { return *mount_root_; }
  MountRoot* operator->() const { return mount_root_.get(); }
  [[nodiscard]] const std::filesystem::path& path() const { return path_; }
  [[nodiscard]] std::string stored() const { return content_of(path_); }
  [[nodiscard]] std::size_t files() const { return count_files(directory_.path()); }
  [[nodiscard]] const TemporaryDirectory& directory() const { return directory_; }
  [[nodiscard]] const std::vector<std::string>& forgotten() const { return forgotten_; }

  [[nodiscard]] Ino ino(std::initializer_list<std::string_view> names) const {
    Ino at = kRootIno;
    for (const std::string_view name : names) at = mount_root_->lookup(at, name).value().st_ino;
    return at;
  }
  [[nodiscard]] Result<std::string> read(Ino ino) const {
    const auto bytes = mount_root_->model_of(ino)->read(ino, 0, std::size_t{1} << 26U);
    if (!bytes) return tl::unexpected(bytes.error());
    return text_of(bytes->copy().value());
  }
  /// Returns true if the file has this header and these data. There may be room behind the header. The result
  /// is a bool, so that the text of a failure does not contain the bytes.
  [[nodiscard]] bool stores(std::string_view bytes) const {
    const std::string file = stored();
    const auto length_of = [](std::string_view archive) {
      return header_length(bytes_of(archive.substr(0, kHeaderLengthBytes)), archive.size()).value();
    };
    const std::uint64_t given = kHeaderLengthBytes + length_of(bytes);
    const std::uint64_t found = kHeaderLengthBytes + length_of(file);
    return found >= given && file.substr(8, given - 8) == bytes.substr(8, given - 8) &&
           file.find_first_not_of(' ', given) >= found && file.substr(found) == bytes.substr(given);
  }
  [[nodiscard]] bool reads(Ino ino, std::string_view bytes) const { return read(ino) == std::string(bytes); }
  /// Whether the mount shows exactly these tensors.
  [[nodiscard]] bool shows(const Tensors& tensors) const {
    const bool has_all = std::ranges::all_of(tensors, [&](const auto& tensor) {
      const auto found = mount_root_->lookup(kRootIno, tensor.first);
      return found && read(found->st_ino) == tensor.second;
    });
    return has_all && mount_root_->model_of(kRootIno)->model().tensors().size() == tensors.size();
  }
  /// Writes to a tensor, and closes it.
  int write(std::string_view name, std::string_view bytes) const {
    const Ino tensor = ino({name});
    const MountRoot::Pin model = mount_root_->model_of(tensor);
    OpenFile* const file = model->open(tensor, O_WRONLY, ::getpid()).value();
    int verdict = errno_of(model->write(*file, bytes_of(bytes), 0, Caller(2, ::getpid())));
    if (verdict == 0) verdict = errno_of(model->flush(*file, 2, ::getpid()));
    model->release(file);
    return verdict;
  }

  /// Called when the archive has been opened, and before its model is shown.
  std::function<void()> at_open = [] {};

 private:
  Result<std::unique_ptr<MountedModel>> open_model(const MountRoot::Heritage& heritage) const {
    auto archive = Archive::open(path_, Access::ReadWrite, storage_);
    if (!archive) return pass_on(std::move(archive));
    at_open();
    MountedModelOptions options;
    options.activity = heritage.activity;
    options.least_generation = heritage.least_generation;
    return std::make_unique<MountedModel>(std::move(*archive), options);
  }

  const TemporaryDirectory directory_;
  Storage& storage_;
  const std::filesystem::path path_;
  std::vector<std::string> forgotten_;
  std::unique_ptr<MountRoot> mount_root_;
};

/// A program that saves a checkpoint.
class Saver {
 public:
  /// Opens the archive by its own name, or another file name.
  explicit Saver(const Mount& mount, std::string_view name = "archive.safetensors")
      : model_(mount->model_of(mount.ino({".safetensors"}))) {
    file_ = opened_or_made(*model_.operator->(), mount.ino({".safetensors"}), name, O_WRONLY).file;
    REQUIRE(model_->resize(*file_, 0, Caller(1, ::getpid())));
  }
  ~Saver() {
    if (file_ != nullptr) model_->release(file_);
  }
  Saver(const Saver&) = delete;
  Saver& operator=(const Saver&) = delete;

  int write(std::string_view bytes) {
    constexpr std::size_t kPieceBytes = 7001;  // no piece ends where a tensor does
    for (std::size_t done = 0; done < bytes.size(); done += kPieceBytes) {
      const auto piece = bytes_of(bytes.substr(done, kPieceBytes));
      const int why = errno_of(model_->write(*file_, piece, written_ + done, Caller(1, ::getpid())));
      if (why != 0) return why;
    }
    written_ += bytes.size();
    return 0;
  }
  int close() {
    const int verdict = errno_of(model_->flush(*file_, 1, ::getpid()));
    model_->release(std::exchange(file_, nullptr));
    return verdict;
  }

 private:
  const MountRoot::Pin model_;
  OpenFile* file_ = nullptr;
  std::uint64_t written_ = 0;
};

inline int save(const Mount& mount, std::string_view bytes) {
  Saver saver(mount);
  const int why = saver.write(bytes);
  const int closed = saver.close();
  return why != 0 ? why : closed;
}

}  // namespace stfs::test::checkpoints
