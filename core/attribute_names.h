// Extended attributes by which a mount tells of itself, to people and to our own tools.
#pragma once

namespace stfs {

inline constexpr char kAttributePrefix[] = "user.safetensors.";
/// Of a tensor's file and of the root of a model: the archive, or the index, that it comes from.
inline constexpr char kArchiveAttribute[] = "user.safetensors.archive";

}  // namespace stfs
