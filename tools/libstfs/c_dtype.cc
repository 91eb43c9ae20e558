// Maps the dtypes to the numbers that stfs.h promises.
#include <optional>

#include "core/format/dtype.h"
#include "core/format/dtype_text.h"
#include "tools/libstfs/stfs.h"

namespace {

using stfs::Dtype;

static_assert(STFS_BOOL == static_cast<int>(Dtype::BOOL) && STFS_F4 == static_cast<int>(Dtype::F4) &&
              STFS_F6_E2M3 == static_cast<int>(Dtype::F6_E2M3) &&
              STFS_F6_E3M2 == static_cast<int>(Dtype::F6_E3M2) && STFS_U8 == static_cast<int>(Dtype::U8) &&
              STFS_I8 == static_cast<int>(Dtype::I8) && STFS_F8_E5M2 == static_cast<int>(Dtype::F8_E5M2) &&
              STFS_F8_E4M3 == static_cast<int>(Dtype::F8_E4M3) &&
              STFS_F8_E8M0 == static_cast<int>(Dtype::F8_E8M0) &&
              STFS_F8_E4M3FNUZ == static_cast<int>(Dtype::F8_E4M3FNUZ) &&
              STFS_F8_E5M2FNUZ == static_cast<int>(Dtype::F8_E5M2FNUZ) &&
              STFS_I16 == static_cast<int>(Dtype::I16) && STFS_U16 == static_cast<int>(Dtype::U16) &&
              STFS_F16 == static_cast<int>(Dtype::F16) && STFS_BF16 == static_cast<int>(Dtype::BF16) &&
              STFS_I32 == static_cast<int>(Dtype::I32) && STFS_U32 == static_cast<int>(Dtype::U32) &&
              STFS_F32 == static_cast<int>(Dtype::F32) && STFS_C64 == static_cast<int>(Dtype::C64) &&
              STFS_F64 == static_cast<int>(Dtype::F64) && STFS_I64 == static_cast<int>(Dtype::I64) &&
              STFS_U64 == static_cast<int>(Dtype::U64) && stfs::kDtypeCount == 22);

bool is_dtype(std::int32_t dtype) {
  return dtype >= 0 && dtype < static_cast<std::int32_t>(stfs::kDtypeCount);
}

}  // namespace

const char* stfs_dtype_name(std::int32_t dtype) {
  // The name is a literal, so it ends in NUL.
  return is_dtype(dtype) ? stfs::name_of(static_cast<Dtype>(dtype)).data() : nullptr;
}

std::int32_t stfs_dtype_named(const char* text) {
  const auto dtype = text == nullptr ? std::nullopt : stfs::parse_dtype(text);
  return dtype ? static_cast<std::int32_t>(*dtype) : -1;
}

std::uint32_t stfs_dtype_bits(std::int32_t dtype) {
  return is_dtype(dtype) ? stfs::bits_of(static_cast<Dtype>(dtype)) : 0;
}
