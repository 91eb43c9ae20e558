#include "core/storage/unmappable_store.h"

#include <linux/magic.h>

#include <algorithm>
#include <array>

// Kernel headers before 5.17 lack some of these (include/uapi/linux/magic.h).
#ifndef SMB2_SUPER_MAGIC
#define SMB2_SUPER_MAGIC 0xFE534D42
#endif
#ifndef CIFS_SUPER_MAGIC
#define CIFS_SUPER_MAGIC 0xFF534D42
#endif
#ifndef FUSE_SUPER_MAGIC
#define FUSE_SUPER_MAGIC 0x65735546
#endif
#ifndef CEPH_SUPER_MAGIC
#define CEPH_SUPER_MAGIC 0x00c36400
#endif

namespace stfs {
namespace {

// No header of the kernel's interface has these. statfs(2) and coreutils' stat and tail list the values;
// gfs2's is also in the kernel's include/uapi/linux/gfs2_ondisk.h, BeeGFS's in its client's FhgfsOpsSuper.h.
constexpr std::uint64_t kAcfs = 0x61636673;
constexpr std::uint64_t kBeeGfs = 0x19830326;
constexpr std::uint64_t kGfs2 = 0x01161970;
constexpr std::uint64_t kGpfs = 0x47504653;
constexpr std::uint64_t kIbrix = 0x013111A8;
constexpr std::uint64_t kLustre = 0x0BD00BD0;
constexpr std::uint64_t kPanFs = 0xAAD7AAEA;
constexpr std::uint64_t kParallels = 0x7C7C6673;
constexpr std::uint64_t kStorNext = 0xBEEFDEAD;
constexpr std::uint64_t kVboxShared = 0x786F4256;
constexpr std::uint64_t kVmwareShared = 0xBACBACBC;
constexpr std::uint64_t kVxfs = 0xA501FCF5;

struct Store {
  std::uint64_t type;
  std::string_view name;
};

constexpr std::array kStores = {
    Store{NFS_SUPER_MAGIC, "NFS"},
    Store{SMB_SUPER_MAGIC, "SMB"},
    Store{CIFS_SUPER_MAGIC, "CIFS"},
    Store{SMB2_SUPER_MAGIC, "SMB"},
    Store{CEPH_SUPER_MAGIC, "Ceph"},
    Store{kLustre, "Lustre"},
    Store{kGpfs, "GPFS"},
    Store{kBeeGfs, "BeeGFS"},
    Store{kGfs2, "GFS2"},
    Store{OCFS2_SUPER_MAGIC, "OCFS2"},
    Store{V9FS_MAGIC, "9p"},
    Store{FUSE_SUPER_MAGIC, "FUSE"},  // virtiofs too
    Store{AFS_SUPER_MAGIC, "AFS"},
    Store{AFS_FS_MAGIC, "AFS"},
    Store{CODA_SUPER_MAGIC, "Coda"},
    Store{NCP_SUPER_MAGIC, "NCP"},
    Store{kPanFs, "PanFS"},
    Store{kStorNext, "StorNext"},
    Store{kIbrix, "Ibrix"},
    Store{kAcfs, "ACFS"},
    Store{kVxfs, "VxFS"},
    Store{kVboxShared, "a shared folder of VirtualBox"},
    Store{kVmwareShared, "a shared folder of VMware"},
    Store{kParallels, "a shared folder of Parallels"},
};

}  // namespace

std::string_view unmappable_store(std::uint64_t filesystem_type) {
  const auto* store = std::ranges::find(kStores, filesystem_type, &Store::type);
  return store == kStores.end() ? std::string_view() : store->name;
}

}  // namespace stfs
