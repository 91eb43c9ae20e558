// The definitions of the handles in stfs.h. Only the files that implement stfs.h include them.
#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "core/model/model.h"
#include "tools/libstfs/stfs.h"
#include "tools/libstfs/strided_view.h"
#include "tools/libstfs/tensor_memory.h"
#include "tools/serve/serve_client.h"
#include "tools/upload/plan.h"
#include "tools/upload/upload.h"

/// Immutable after stfs_open().
struct stfs_model {
  std::filesystem::path named;  // the user's path, made absolute: plans open it again
  std::shared_ptr<const stfs::Model> model;
  std::shared_ptr<const stfs::interface::ForgivingMaps> maps;  // null unless is_forgiving was set
  std::optional<std::uint32_t> only;                           // set if a tensor's file in a mount was opened
  std::vector<std::string> not_shown;                          // see stfs_not_shown()

  [[nodiscard]] std::uint64_t count() const { return only ? 1 : model->tensors().size(); }
  /// @param position  below count().
  [[nodiscard]] std::uint32_t tensor(std::uint64_t position) const {
    return only ? *only : static_cast<std::uint32_t>(position);
  }
};

struct stfs_tensor {
  std::string name;
  std::string archive;       // path of the file that holds the tensor
  std::uint64_t offset = 0;  // of the whole tensor in that file
  stfs::interface::StridedView view;
  std::shared_ptr<stfs::interface::TensorMemory> memory;
  mutable std::shared_ptr<stfs::interface::TensorMemory> gathered = {};
  mutable std::mutex mutex = {};  // guards `gathered`

  /// Returns whether address and strides locate all elements. If not, stfs_tensor_data() gathers them first.
  [[nodiscard]] bool is_in_place() const { return memory->address() != nullptr && view.is_addressable(); }
};

struct stfs_plan {
  stfs::upload::Plan plan;
};

struct stfs_upload {
  std::unique_ptr<stfs::upload::Upload> upload;
  std::atomic<bool> is_taken = false;  // set by stfs_wait()
};

struct stfs_resident {
  stfs::upload::Resident resident;
};

struct stfs_lease {
  mutable std::mutex mutex;  // guards the connection of the lease; everything else is immutable
  stfs::upload::Lease lease;
};
