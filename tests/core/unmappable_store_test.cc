// Tests which stores are read instead of mapped.
#include "core/storage/unmappable_store.h"

#include <linux/magic.h>

#include "core/storage/file.h"
#include "tests/support/catch.h"
#include "tests/support/temporary_directory.h"

using namespace stfs;

TEST_CASE("network, cluster and program-served file systems are not mapped", "[core][store]") {
  const std::vector<std::pair<std::uint64_t, std::string_view>> stores = {
      {0x6969, "NFS"},       {0xFF534D42, "CIFS"},    {0xFE534D42, "SMB"},  {0x517B, "SMB"},
      {0x00C36400, "Ceph"},  {0x0BD00BD0, "Lustre"},  {0x47504653, "GPFS"}, {0x19830326, "BeeGFS"},
      {0x01161970, "GFS2"},  {0x7461636F, "OCFS2"},   {0x01021997, "9p"},   {0x65735546, "FUSE"},
      {0x5346414F, "AFS"},   {0x6B414653, "AFS"},     {0x73757245, "Coda"}, {0x564C, "NCP"},
      {0xAAD7AAEA, "PanFS"}, {0xBEEFDEAD, "StorNext"}};
  for (const auto& [type, name] : stores) CHECK(unmappable_store(type) == name);
}

TEST_CASE("local file systems, and those that nobody knows, are mapped", "[core][store]") {
  for (const std::uint64_t type :
       {std::uint64_t{EXT4_SUPER_MAGIC}, std::uint64_t{XFS_SUPER_MAGIC}, std::uint64_t{BTRFS_SUPER_MAGIC},
        std::uint64_t{TMPFS_MAGIC}, std::uint64_t{OVERLAYFS_SUPER_MAGIC}, std::uint64_t{F2FS_SUPER_MAGIC},
        std::uint64_t{SQUASHFS_MAGIC}, std::uint64_t{0x2FC12FC1} /* ZFS */, std::uint64_t{0},
        std::uint64_t{0xFFFFFFFFFF534D42}, UINT64_MAX}) {
    CAPTURE(type);
    CHECK(unmappable_store(type).empty());
  }
}

TEST_CASE("the type of a file's file system is statfs(2)'s", "[core][store]") {
  const auto process = system_storage().open("/proc/self/status", Access::ReadOnly);
  REQUIRE(process);
  CHECK((*process)->filesystem_type() == PROC_SUPER_MAGIC);
}
