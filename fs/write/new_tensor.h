// The bytes of a tensor that a program makes or gives another size: the bytes of a new file, or of a NumPy
// file in `.safetensors/npy`.
//
// The bytes are in a file without a name beside the archive (staging_file.h), because their number and their
// place in the archive are not known before the close. The bytes of a scratch file are in the scratch
// directory (scratch_bytes.h) until the file becomes a tensor. Only a file with a dtype and a shape becomes a
// tensor. A commit is an edit of the structure (fs/model/mounted_model_drafts.cc).
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/archive/archive.h"
#include "core/base/error.h"
#include "core/base/mutex.h"
#include "core/commit/staging.h"
#include "core/format/dtype.h"
#include "core/tensor/npy.h"
#include "fs/write/pending_bytes.h"
#include "fs/write/scratch_bytes.h"
#include "fs/write/staged_bytes.h"

namespace stfs {

/// The form of a tensor in a file.
struct TensorForm {
  Dtype dtype = Dtype::U8;
  std::vector<std::uint64_t> shape;
  std::uint64_t data_offset = 0;  // in the file; the tensor's bytes follow

  [[nodiscard]] bool is_as(const TensorForm& other) const {
    return dtype == other.dtype && shape == other.shape;
  }
};

/// Any thread may call size_bytes() and the functions for the form or the name.
class NewTensor final : public PendingBytes {
 public:
  /// @param name    the name of the tensor.
  /// @param is_npy  true if the file begins with a NumPy header, which has dtype and shape.
  /// @param file    the file for the bytes.
  NewTensor(std::string name, bool is_npy, std::shared_ptr<StagingFile> file);
  /// Makes a separate file for the bytes.
  /// @param beside  an archive in the directory for the file. Must outlive this object.
  NewTensor(std::string name, bool is_npy, Archive& beside)
      : NewTensor(std::move(name), is_npy, std::make_shared<StagingFile>(beside)) {}
  /// Makes a scratch file. @param file_name  the name in the directory, which must outlive this object.
  NewTensor(std::string name, const ScratchDirectory& directory, std::string file_name);
  /// @param is_possible  true if a tensor can have the name. If false, the file waits for another name.
  void take_name(std::string name, bool is_possible);

  [[nodiscard]] std::string name() const;
  [[nodiscard]] bool is_npy() const { return is_npy_; }

  NewTensor* new_tensor() override { return this; }
  [[nodiscard]] std::string label() const override;
  Result<void> write(std::span<const std::byte> from, std::uint64_t offset) override;
  Result<void> resize(std::uint64_t size_bytes) override;
  Result<void> read(std::span<std::byte> to, std::uint64_t offset,
                    const Staging::ReadBase& /*read_base*/) const override {
    return read(to, offset);
  }
  Result<void> read(std::span<std::byte> to, std::uint64_t offset) const;
  [[nodiscard]] std::uint64_t size_bytes() const override;
  /// A scratch file is dirty when it has a dtype and a shape, so its close commits it.
  [[nodiscard]] bool is_dirty() const override;
  [[nodiscard]] Result<void> check() const override;
  void note_committed() override {
    is_dirty_ = false;
    is_committed_ = true;
  }
  /// Call if the bytes are for an existing tensor. Without a write or a resize the tensor keeps its bytes,
  /// and a NumPy header alone does not fill it with zeros.
  /// @param shard  of the tensor. The program has the right to write this shard, and maybe no other one.
  void note_replaces(std::uint32_t shard) { replaced_shard_ = shard; }
  [[nodiscard]] std::optional<std::uint32_t> replaced_shard() const { return replaced_shard_; }
  /// Call when no descriptor is left. A file that was made but never written is whole without bytes.
  void note_end() {
    if (!is_committed_ && !is_npy_ && !replaced_shard_ && !is_scratch()) is_dirty_ = true;
  }
  /// Drops the bytes. The bytes of a scratch file stay.
  void drop() override;

  // Any thread may call:
  /// True if this is a scratch file that is no tensor yet.
  [[nodiscard]] bool is_scratch() const { return is_scratch_; }
  /// The bytes of a file that is or was a scratch file. Null for other files.
  [[nodiscard]] ScratchBytes* scratch() const { return scratch_.get(); }
  /// Call when the file has become a tensor. The file keeps its form.
  void leave_scratch();
  /// Returns true if the file was made or written since the last call.
  bool take_news() { return has_news_.exchange(false); }
  void note_news() { has_news_ = true; }

  /// The time of the last change of the bytes, or the time that set_mtime() has set since then: nanoseconds
  /// since 1970. Any thread may call.
  [[nodiscard]] std::int64_t mtime_ns() const;
  void set_mtime(std::int64_t mtime_ns);

  // The form that attributes have set. Nothing: the form follows from the bytes.
  void set_dtype(Dtype dtype);
  void set_shape(std::vector<std::uint64_t> shape);
  [[nodiscard]] bool has_form() const;
  /// True if dtype and shape are set.
  [[nodiscard]] bool has_whole_form() const;
  [[nodiscard]] std::optional<Dtype> dtype() const;
  [[nodiscard]] std::optional<std::vector<std::uint64_t>> shape() const;
  /// True if this has a form for a tensor of the model, and no program has written to the file or truncated
  /// it.
  [[nodiscard]] bool has_only_form() const {
    return replaced_shard_ && !is_npy_ && !is_dirty_ && !is_committed_ && has_form();
  }

  using Form = TensorForm;
  /// The form of the tensor whose bytes a NumPy file had before a program changed a part of them. Nothing if
  /// all bytes are new. The caller holds the content's mutex.
  [[nodiscard]] const std::optional<Form>& base() const { return base_; }
  void note_base(Form form) { base_ = std::move(form); }
  /// Sets dtype and shape until the bytes change: the form of a removed tensor of the same name and size.
  void adopt(const Form& form);
  /// Restores the form that was set before an attribute was set.
  void put_form_back(std::optional<Dtype> dtype, std::optional<std::vector<std::uint64_t>> shape);
  /// EINVAL if the bytes are no tensor: an attribute needs another size, or the NumPy header is wrong.
  [[nodiscard]] Result<Form> form() const;
  /// Stages the tensor's bytes.
  Result<void> copy_to(Staging& stage, const Form& form) const;
  /// Returns the tensor's bytes without the NumPy header, as a new tensor of this form. The two tensors share
  /// the bytes until one of them changes.
  [[nodiscard]] Result<std::unique_ptr<NewTensor>> data(const Form& form) const;

 private:
  [[nodiscard]] Result<Form> npy_form() const;
  void note_change();
  void drop_adopted_form();
  void drop_bytes();
  /// Copies size_bytes() before a change if another tensor shares the bytes.
  Result<void> unshare();

  const bool is_npy_;
  std::shared_ptr<StagedBytes> bytes_;  // data() shares these bytes; null for a scratch file
  std::uint64_t begin_ = 0;             // where the tensor's bytes begin in bytes_
  const std::unique_ptr<ScratchBytes> scratch_;
  std::atomic<std::uint64_t> size_bytes_ = 0;
  std::atomic<std::int64_t> mtime_ns_;
  bool is_dirty_ = false;
  bool is_committed_ = false;
  std::optional<std::uint32_t> replaced_shard_;
  std::optional<Form> base_;
  std::atomic<bool> waits_for_name_ = false;
  std::atomic<bool> is_scratch_ = false;
  std::atomic<bool> has_news_ = false;
  mutable Mutex mutex_;
  std::string name_ GUARDED_BY(mutex_);
  bool is_adopted_ GUARDED_BY(mutex_) = false;  // adopt() has set dtype_ and shape_
  std::optional<Dtype> dtype_ GUARDED_BY(mutex_);
  std::optional<std::vector<std::uint64_t>> shape_ GUARDED_BY(mutex_);
};

}  // namespace stfs
