// What a transaction has staged: bytes of tensors, new tensors, deletions, names, forms, and metadata.
//
// An entry holds what is staged for one tensor. A tensor without an entry is as the model has it. Names are
// those inside the transaction:
//
//   rm of a tensor without an entry     stages its deletion
//   rm of a tensor that is listed       takes back what is staged for it. A new tensor goes. A tensor of the
//                                       model is as before; if another one has taken its name, that one
//                                       replaces it
//   a name that is taken                the tensor that had it is replaced: the commit deletes it. It comes
//                                       back when rm takes back the other one
//
// So a removal of all listed names leaves only deletions.
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
#include "fs/base/versioned.h"
#include "fs/tree/tensor_tree.h"
#include "fs/write/new_tensor.h"
#include "fs/write/open_file.h"

namespace stfs {

/// The version of a tensor's content. The generation differs after every change. The checksum tells whether a
/// change has altered any byte.
struct TensorVersion {
  std::uint64_t generation = 0;
  std::string checksum;
};

struct StagedTensor {
  enum class Fate : std::uint8_t {
    Stays,
    Removed,   // rm has deleted it, or a file that went again had replaced it
    Replaced,  // another tensor has its name
  };
  Fate fate = Fate::Stays;
  bool is_new = false;    // the model does not have it
  std::string base_name;  // in the model, when it was staged; unused if new
  NewTensor::Form base_form;
  std::string name;       // in the transaction
  std::string file_name;  // of a tensor with another name than in the model
  /// The tensor of the model that had the name before, and whose fate is Replaced.
  std::optional<TensorId> replaces;
  /// The form that an attribute has given to the same bytes.
  std::optional<NewTensor::Form> form;
  std::shared_ptr<PendingContent> content;  // null: no bytes are staged
  TensorVersion base;                       // of content, unless new
  unsigned writers = 0;

  [[nodiscard]] bool has_other_name() const { return is_new || name != base_name; }
  /// Whether the transaction lists it.
  [[nodiscard]] bool is_listed() const {
    return fate == Fate::Stays && (has_other_name() || form.has_value() || content != nullptr);
  }
  /// Whether its bytes are those of a file that may have another size than the tensor.
  [[nodiscard]] bool is_made() const { return content != nullptr && content->made() != nullptr; }
};

/// Not synchronized. Copies share the contents.
class StagedChanges {
 public:
  using Contents = std::vector<std::shared_ptr<PendingContent>>;

  /// Model and tree must outlive this object.
  StagedChanges(const Versioned<Model>& model, const TensorTree& tree) : model_(&model), tree_(&tree) {}

  [[nodiscard]] const std::map<TensorId, StagedTensor>& tensors() const { return tensors_; }
  /// What is staged for a tensor, or null.
  [[nodiscard]] const StagedTensor* at(TensorId tensor) const;
  [[nodiscard]] StagedTensor* at(TensorId tensor);
  /// The tensor with that file name, also one that was staged and then deleted from the model.
  [[nodiscard]] std::optional<TensorId> find(std::string_view file_name) const;
  [[nodiscard]] std::string file_name(TensorId tensor) const;
  /// The name and the form of a tensor. EINVAL if the bytes of a file that is being written have no form yet.
  [[nodiscard]] std::string name(TensorId tensor) const;
  /// E2BIG for a form of the model that is too long to be shown: it is not copied.
  [[nodiscard]] Result<NewTensor::Form> form(TensorId tensor) const;
  /// Whether a tensor has a NumPy file: not one of the model of more than kMaxNpyRank dimensions.
  [[nodiscard]] bool has_npy(TensorId tensor) const;
  /// Whether nothing is staged.
  [[nodiscard]] bool is_empty() const { return tensors_.empty() && metadata_.empty(); }
  /// Whether the commit changes more than bytes of tensors.
  [[nodiscard]] bool has_structure() const;

  /// The entry of a tensor of the model; makes it if there is none. Call tidy() if nothing gets staged.
  StagedTensor& stage(TensorId tensor);
  /// Gives a new file without a form that of a tensor of its name and size that the transaction has deleted.
  void adopt_form(const StagedTensor& made) const;
  /// Drops the entry if nothing is staged in it.
  void tidy(TensorId tensor);
  /// Adds a tensor that the model does not have. No tensor has the file name.
  void make(TensorId tensor, std::string_view file_name, std::string name,
            std::shared_ptr<PendingContent> content);
  // They add contents to `dropped` that are staged no more; the caller calls forget() for them.
  /// What rm does (above).
  void remove(TensorId tensor, Contents& dropped);
  /// What mv does. Replaces the tensor that has the file name, if there is one, else `name` is the new name.
  void rename(TensorId tensor, std::string_view file_name, std::string name, Contents& dropped);
  void exchange(TensorId one, TensorId other);

  /// Metadata of the model as they are to be. @param value  nothing: removes the key.
  void set_metadata(std::string_view key, const std::optional<std::string>& value);
  struct StagedValue {
    std::optional<std::string> base;   // in the model, when it was staged
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
  /// The memory that staged metadata need.
  [[nodiscard]] std::uint64_t metadata_bytes() const { return metadata_bytes_; }
  static std::uint64_t metadata_bytes(std::string_view key, const StagedValue& staged) {
    return key.size() + staged.base.value_or("").size() + staged.value.value_or("").size();
  }

 private:
  /// Takes a tensor's present name from it.
  void leave_name(StagedTensor& tensor);
  /// Takes the name of a tensor that another one replaces.
  /// @return the tensor of the model that comes back if the other one goes.
  std::optional<TensorId> displace(TensorId tensor, Contents& dropped);
  void take_name(TensorId tensor, std::string_view file_name, std::string name);
  [[nodiscard]] std::string base_file_name(TensorId tensor) const;

  const Versioned<Model>* model_;
  const TensorTree* tree_;
  std::map<TensorId, StagedTensor> tensors_;
  std::map<std::string, TensorId, std::less<>> by_file_name_;  // those with other names than in the model
  std::map<std::string, StagedValue, std::less<>> metadata_;
  std::uint64_t metadata_bytes_ = 0;
};

}  // namespace stfs
