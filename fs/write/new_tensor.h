// The bytes of a tensor that a program is making, or gives another size: of a file that did not exist, of a
// NumPy file in `.safetensors/npy`.
//
// The bytes lie in a file without a name beside the archive (staging_file.h), since neither their number nor
// their place in the archive is known before the close. The bytes of a scratch file lie in the scratch
// directory (scratch_bytes.h) until it becomes a tensor: only a file with a dtype and a shape does. A commit
// is an edit of the structure (fs/model/draft_files.cc).
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
#include "fs/write/new_content.h"
#include "fs/write/scratch_bytes.h"
#include "fs/write/staged_bytes.h"

namespace stfs {

/// What a file is as a tensor.
struct TensorForm {
  Dtype dtype = Dtype::U8;
  std::vector<std::uint64_t> shape;
  std::uint64_t data_offset = 0;  // in the file; the tensor's bytes follow

  [[nodiscard]] bool is_as(const TensorForm& other) const {
    return dtype == other.dtype && shape == other.shape;
  }
};

/// Any thread may call size_bytes() and what concerns the form or the name.
class NewTensor final : public NewContent {
 public:
  /// @param name    of the tensor.
  /// @param is_npy  the file begins with a NumPy header, which tells dtype and shape.
  /// @param file    for the bytes.
  NewTensor(std::string name, bool is_npy, std::shared_ptr<StagingFile> file);
  /// The same with a file of its own.
  /// @param beside  lies in the directory for the file. Must outlive this object.
  NewTensor(std::string name, bool is_npy, Archive& beside)
      : NewTensor(std::move(name), is_npy, std::make_shared<StagingFile>(beside)) {}
  /// A scratch file. @param file_name  in the directory, which must outlive this object.
  NewTensor(std::string name, const ScratchDirectory& directory, std::string file_name);
  /// @param is_possible  whether a tensor can have the name. If not, the file waits for another one.
  void take_name(std::string name, bool is_possible);
  [[nodiscard]] bool waits_for_name() const override { return waits_for_name_; }

  [[nodiscard]] std::string name() const;
  [[nodiscard]] bool is_npy() const { return is_npy_; }

  NewTensor* tensor() override { return this; }
  [[nodiscard]] std::string label() const override;
  Result<void> write(std::span<const std::byte> from, std::uint64_t offset) override;
  Result<void> resize(std::uint64_t size_bytes) override;
  Result<void> read(std::span<std::byte> to, std::uint64_t offset) const override;
  [[nodiscard]] std::uint64_t size_bytes() const override;
  /// A scratch file is dirty when it has a dtype and a shape: its close commits it.
  [[nodiscard]] bool is_dirty() const override;
  [[nodiscard]] Result<void> check() const override;
  void note_committed() override {
    is_dirty_ = false;
    is_committed_ = true;
  }
  /// Call for bytes that a tensor of before gets: without a write or a resize it keeps what it has, and a
  /// NumPy header alone does not fill it with zeros.
  void note_replaces() { replaces_ = true; }
  /// A file that was only made has all its bytes now: none.
  void note_end() override {
    if (!is_committed_ && !is_npy_ && !replaces_ && !is_scratch()) is_dirty_ = true;
  }
  /// Drops the bytes; those of a scratch file stay.
  void forget() override;

  // Any thread may call:
  /// Whether this is a scratch file that is no tensor yet.
  [[nodiscard]] bool is_scratch() const { return is_scratch_; }
  /// The bytes of a file that is a scratch file, or was one. Null for others.
  [[nodiscard]] ScratchBytes* scratch() const { return scratch_.get(); }
  /// Call when the file is a tensor now: it keeps its form.
  void leave_scratch();
  /// Whether it was made or written since the last call.
  bool take_news() { return has_news_.exchange(false); }
  void note_news() { has_news_ = true; }

  /// When the bytes last changed, or what set_mtime() has set since: nanoseconds since 1970. Any thread may
  /// call.
  [[nodiscard]] std::int64_t mtime_ns() const;
  void set_mtime(std::int64_t mtime_ns);

  // The form that attributes have set; nothing: it follows from the bytes.
  void set_dtype(Dtype dtype);
  void set_shape(std::vector<std::uint64_t> shape);
  [[nodiscard]] bool has_form() const;
  /// Whether both are set.
  [[nodiscard]] bool has_whole_form() const;
  [[nodiscard]] std::optional<Dtype> dtype() const;
  [[nodiscard]] std::optional<std::vector<std::uint64_t>> shape() const;
  /// Whether this has a form for a tensor of the model, and no program has written to it or cut it.
  [[nodiscard]] bool has_only_form() const {
    return replaces_ && !is_npy_ && !is_dirty_ && !is_committed_ && has_form();
  }

  using Form = TensorForm;
  /// The form of the tensor whose bytes a NumPy file began with, before a program changed a part of them.
  /// Nothing: all bytes are new. The caller holds the content's mutex.
  [[nodiscard]] const std::optional<Form>& base() const { return base_; }
  void note_base(Form form) { base_ = std::move(form); }
  /// Sets both until the bytes change: the form of a tensor of this name and size that was removed.
  void adopt(const Form& form);
  /// Takes back what an attribute has set.
  void put_form_back(std::optional<Dtype> dtype, std::optional<std::vector<std::uint64_t>> shape);
  /// EINVAL if the bytes are no tensor: an attribute demands another size, or the NumPy header is wrong.
  [[nodiscard]] Result<Form> form() const;
  /// Stages the tensor's bytes.
  Result<void> copy_to(Staging& stage, const Form& form) const;
  /// Returns the tensor's bytes without the NumPy header, as a new tensor of this form. Both share the bytes
  /// until one of them changes.
  [[nodiscard]] Result<std::unique_ptr<NewTensor>> data(const Form& form) const;

 private:
  [[nodiscard]] Result<Form> npy_form() const;
  void note_change();
  void drop_adopted_form();
  void forget_bytes();
  /// Makes bytes of its own before a change, if another tensor shares them: copies size_bytes().
  Result<void> unshare();

  const bool is_npy_;
  std::shared_ptr<StagedBytes> bytes_;  // data() shares them; a scratch file has none
  std::uint64_t begin_ = 0;             // of the tensor's bytes in them
  const std::unique_ptr<ScratchBytes> scratch_;
  std::atomic<std::uint64_t> size_bytes_ = 0;
  std::atomic<std::int64_t> mtime_ns_;
  bool is_dirty_ = false;
  bool is_committed_ = false;
  bool replaces_ = false;
  std::optional<Form> base_;
  std::atomic<bool> waits_for_name_ = false;
  std::atomic<bool> is_scratch_ = false;
  std::atomic<bool> has_news_ = false;
  mutable Mutex mutex_;
  std::string name_ GUARDED_BY(mutex_);
  bool is_adopted_ GUARDED_BY(mutex_) = false;  // dtype_ and shape_ by adopt()
  std::optional<Dtype> dtype_ GUARDED_BY(mutex_);
  std::optional<std::vector<std::uint64_t>> shape_ GUARDED_BY(mutex_);
};

}  // namespace stfs
