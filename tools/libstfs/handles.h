// What the handles of stfs.h are. Shared by the files that implement it, and nobody else's.
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

/// Never changes once opened.
struct stfs_model {
  std::filesystem::path named;  // by the user, made absolute: plans open it anew
  std::shared_ptr<const stfs::Model> model;
  std::shared_ptr<const stfs::interface::ForgivingMaps> maps;  // null where they are not wanted
  std::optional<std::uint32_t> only;                           // the tensor whose file in a mount was named
  std::vector<std::string> not_shown;                          // see stfs_not_shown()

  [[nodiscard]] std::uint64_t count() const { return only ? 1 : model->tensors().size(); }
  /// @param position  below count().
  [[nodiscard]] std::uint32_t tensor(std::uint64_t position) const {
    return only ? *only : static_cast<std::uint32_t>(position);
  }
};

struct stfs_tensor {
  std::string name;
  std::string archive;       // path of the file
  std::uint64_t offset = 0;  // of the whole tensor in it
  stfs::interface::StridedView view = stfs::interface::StridedView::whole(stfs::Dtype::U8, {}, 1);
  std::shared_ptr<stfs::interface::TensorMemory> memory;

  /// The elements are where their strides say, from the memory's address on; else data() gathers them first.
  [[nodiscard]] bool is_in_place() const { return memory->address() != nullptr && view.is_addressable(); }

  mutable std::mutex mutex;  // guards what follows
  mutable std::shared_ptr<stfs::interface::TensorMemory> gathered;
};

struct stfs_plan {
  stfs::upload::Plan plan;
};

struct stfs_upload {
  std::unique_ptr<stfs::upload::Upload> upload;
  std::atomic<bool> is_taken = false;  // by stfs_wait()
};

struct stfs_resident {
  stfs::upload::Resident resident;
};

struct stfs_lease {
  mutable std::mutex mutex;  // guards the connection of the lease; all else never changes
  stfs::upload::Lease lease;
};
