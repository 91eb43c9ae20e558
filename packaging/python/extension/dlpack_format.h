// The structures of DLPack 1.1, written from its specification. Producer and consumer are compiled apart, so
// the layout is fixed.
#pragma once

#include <cstddef>
#include <cstdint>

namespace stfs::python::dlpack {

inline constexpr std::uint32_t kMajorVersion = 1;
/// The version that added types of 8 bits and less.
inline constexpr std::uint32_t kMinorVersion = 1;

inline constexpr std::uint64_t kReadOnly = 1;
inline constexpr std::uint64_t kIsCopied = 2;

inline constexpr std::int32_t kCpu = 1;
inline constexpr std::int32_t kCuda = 2;

enum TypeCode : std::uint8_t {
  kInt = 0,
  kUint = 1,
  kFloat = 2,
  kBfloat = 4,
  kComplex = 5,
  kBool = 6,
  kFloat8E4m3fn = 10,
  kFloat8E4m3fnuz = 11,
  kFloat8E5m2 = 12,
  kFloat8E5m2fnuz = 13,
  kFloat8E8m0fnu = 14,
  kFloat6E2m3fn = 15,
  kFloat6E3m2fn = 16,
  kFloat4E2m1fn = 17,
};

struct Device {
  std::int32_t type;
  std::int32_t id;
};

struct Type {
  std::uint8_t code;
  std::uint8_t bits;
  std::uint16_t lanes;
};

struct Tensor {
  void* data;
  Device device;
  std::int32_t rank;
  Type type;
  std::int64_t* shape;
  std::int64_t* strides;  // in elements
  std::uint64_t byte_offset;
};

/// In a capsule named "dltensor", for consumers before DLPack 1.0.
struct Unversioned {
  Tensor tensor;
  void* context;
  void (*free)(Unversioned* self);  // on any thread
};

/// In a capsule named "dltensor_versioned".
struct Versioned {
  std::uint32_t major;
  std::uint32_t minor;
  void* context;
  void (*free)(Versioned* self);  // on any thread
  std::uint64_t flags;
  Tensor tensor;
};

static_assert(sizeof(void*) == 8);
static_assert(sizeof(Tensor) == 48 && offsetof(Tensor, type) == 20 && offsetof(Tensor, byte_offset) == 40);
static_assert(offsetof(Unversioned, free) == 56 && sizeof(Unversioned) == 64);
static_assert(offsetof(Versioned, flags) == 24 && offsetof(Versioned, tensor) == 32 &&
              sizeof(Versioned) == 80);

}  // namespace stfs::python::dlpack
