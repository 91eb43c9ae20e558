// The changes that a transaction has staged: bytes of tensors, new tensors, deletions, names, forms, and
// metadata.
//
// An entry holds the staged changes of one tensor. A tensor without an entry is unchanged. Names are the
// names inside the transaction:
//
//   rm of a tensor without an entry     stages its deletion
//   rm of a tensor that is listed       drops the tensor's staged changes. A new tensor is removed. A tensor
//                                       of the model is unchanged again; if another tensor has taken its
//                                       name, that tensor replaces it
//   a name that is taken                the tensor that had the name is replaced: the commit deletes it. The
//                                       tensor is restored when rm drops the changes of the replacing tensor
//
// Therefore a removal of all listed names leaves only deletions.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/model/model.h"
#include "fs/tree/snapshot.h"
#include "fs/write/new_tensor.h"
#include "fs/write/pending_file.h"

namespace stfs {

/// The version of a tensor's content. The generation differs after every change. The checksum shows if a
/// change has altered any byte.
struct TensorVersion {
  std::uint64_t generation = 0;
  std::string checksum;
};

struct StagedTensor {
  enum class Fate : std::uint8_t {
    Stays,
    Removed,   // rm has deleted it, or has dropped a tensor that had replaced it
    Replaced,  // another tensor has its name
  };
  Fate fate = Fate::Stays;
  bool is_new = false;    // the model does not have the tensor
  std::string base_name;  // the name in the model when the tensor was staged; unused if new
  NewTensor::Form base_form;
  std::string name;       // the name in the transaction
  std::string file_name;  // of a tensor whose name is not its name in the model
  /// The tensor of the model that had the name earlier, and whose fate is Replaced.
  std::optional<TensorId> replaces;
  /// The form that an attribute has given to the unchanged bytes.
  std::optional<NewTensor::Form> form;
  std::shared_ptr<PendingFile> content;  // null: no bytes are staged
  TensorVersion base;                    // the version of content's tensor, unless new
  unsigned writers = 0;

  [[nodiscard]] bool has_other_name() const { return is_new || name != base_name; }
  /// True if the transaction lists the tensor.
  [[nodiscard]] bool is_listed() const {
    return fate == Fate::Stays && (has_other_name() || form.has_value() || content != nullptr);
  }
  /// The staged bytes, if they may have another size than the tensor; else null.
  [[nodiscard]] NewTensor* new_tensor() const { return content == nullptr ? nullptr : content->new_tensor(); }
};

/// Not synchronized. Copies share the contents.
class StagedChanges {
 public:
  using Contents = std::vector<std::shared_ptr<PendingFile>>;

  /// @param snapshots  must outlive this object.
  explicit StagedChanges(const Snapshots& snapshots) : snapshots_(&snapshots) {}

  [[nodiscard]] const std::map<TensorId, StagedTensor>& tensors() const { return tensors_; }
  /// The staged changes of a tensor, or null.
  [[nodiscard]] const StagedTensor* at(TensorId tensor) const;
  [[nodiscard]] StagedTensor* at(TensorId tensor);
  /// The tensor with this file name, even if it was staged and then deleted from the model.
  [[nodiscard]] std::optional<TensorId> find(std::string_view file_name) const;
  [[nodiscard]] std::string file_name(TensorId tensor) const;
  /// The name of a tensor in the transaction.
  [[nodiscard]] std::string name(TensorId tensor) const;
  /// EINVAL if the bytes of a file that is being written have no form yet. E2BIG for a form of the model that
  /// is too long to be shown; such a form is not copied.
  [[nodiscard]] Result<NewTensor::Form> form(TensorId tensor) const;
  /// True if a tensor has a NumPy file. A tensor of the model with more than kMaxNpyRank dimensions has none.
  [[nodiscard]] bool has_npy(TensorId tensor) const;
  /// True if no change is staged.
  [[nodiscard]] bool is_empty() const { return tensors_.empty() && metadata_.empty(); }
  /// True if the commit changes more than bytes of tensors.
  [[nodiscard]] bool has_structure() const;

  /// Returns the entry of a tensor of the model, and makes one if none exists. Call tidy() if nothing is
  /// staged then.
  StagedTensor& stage(TensorId tensor);
  /// If a new file has no form, gives it the form of a tensor of the same name and size that the transaction
  /// has deleted.
  void adopt_form(const StagedTensor& made) const;
  /// Drops the entry if it holds no change.
  void tidy(TensorId tensor);
  /// Adds a tensor that the model does not have. The file name must be free.
  void make(TensorId tensor, std::string_view file_name, std::string name,
            std::shared_ptr<PendingFile> content);
  // These functions add contents to `dropped` that are not staged any more; the caller calls drop() for them.
  /// Does what rm does (above).
  void remove(TensorId tensor, Contents& dropped);
  /// Does what mv does. Replaces the tensor that has the file name. If no tensor has it, `name` is the new
  /// name.
  void rename(TensorId tensor, std::string_view file_name, std::string name, Contents& dropped);
  void exchange(TensorId one, TensorId other);

  /// Sets the value of a metadata key after the commit. @param value  nothing: removes the key.
  void set_metadata(std::string_view key, const std::optional<std::string>& value);
  struct StagedValue {
    std::optional<std::string> base;   // the value in the model when the key was staged
    std::optional<std::string> value;  // nothing: removed
  };
  [[nodiscard]] const std::map<std::string, StagedValue, std::less<>>& metadata() const { return metadata_; }
  /// The value of a key in the transaction.
  [[nodiscard]] std::optional<std::string> metadata(std::string_view key) const;
  /// Visits the keys in the transaction and the sizes of their values, until the visitor returns false.
  using VisitKey = std::function<bool(std::string_view key, std::size_t value_bytes)>;
  void visit_metadata(const VisitKey& visit) const;

  /// The number of tensors and keys for which something is staged.
  [[nodiscard]] std::size_t count() const { return tensors_.size() + metadata_.size(); }
  /// The memory that staged metadata, and the names and shapes of staged tensors of the model, need.
  [[nodiscard]] std::uint64_t text_bytes() const { return text_bytes_; }
  static std::uint64_t text_bytes(const StagedTensor& staged) {
    return 2 * staged.base_name.size() + staged.base_form.shape.size() * sizeof(std::uint64_t);
  }
  static std::uint64_t text_bytes(std::string_view key, const StagedValue& staged) {
    return key.size() + staged.base.value_or("").size() + staged.value.value_or("").size();
  }

 private:
  /// Drops the entry of a tensor.
  void erase(TensorId tensor);
  /// Removes a tensor's present name.
  void leave_name(StagedTensor& tensor);
  /// Frees the name of a tensor that another tensor replaces.
  /// @return the tensor of the model that is restored if the other tensor is removed.
  std::optional<TensorId> displace(TensorId tensor, Contents& dropped);
  void take_name(TensorId tensor, std::string_view file_name, std::string name);
  [[nodiscard]] std::string base_file_name(TensorId tensor) const;
  [[nodiscard]] const Model& model() const { return *(*snapshots_)->model; }

  const Snapshots* snapshots_;
  std::map<TensorId, StagedTensor> tensors_;
  std::map<std::string, TensorId, std::less<>> by_file_name_;  // tensors with other names than in the model
  std::map<std::string, StagedValue, std::less<>> metadata_;
  std::uint64_t text_bytes_ = 0;
};

}  // namespace stfs
