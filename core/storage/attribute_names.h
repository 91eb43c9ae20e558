// Extended attributes by which a mount describes its files to people and to our own tools.
#pragma once

#include <cstddef>

namespace stfs {

inline constexpr char kAttributePrefix[] = "user.safetensors.";
/// On a tensor's file and on the root of a model: the archive, or the index, that the file comes from.
inline constexpr char kArchiveAttribute[] = "user.safetensors.archive";
/// On a tensor's file and on each view of the tensor: the tensor's name.
inline constexpr char kNameAttribute[] = "user.safetensors.name";
/// On each file in `.safetensors/`: one of the kinds below. A tensor's own file does not have it.
inline constexpr char kViewAttribute[] = "user.safetensors.view";
/// On a file that shows a tensor and is not the tensor's own file: the path of the own file, from the mount's
/// root.
inline constexpr char kFileAttribute[] = "user.safetensors.file";

/// The longest value that the kernel passes on (XATTR_SIZE_MAX).
inline constexpr std::size_t kMostAttributeBytes = 65536;
/// A shape of more dimensions has a longer text: each dimension has a digit, and a comma or the closing
/// bracket.
inline constexpr std::size_t kMostDimensionsInAttribute = kMostAttributeBytes / 2;

inline constexpr char kNpyView[] = "npy";
inline constexpr char kFloat32View[] = "float32";
inline constexpr char kSliceView[] = "slice";
inline constexpr char kArchiveView[] = "archive";          // archive.safetensors
inline constexpr char kDocumentView[] = "document";        // header.json, metadata.json, stats.json
inline constexpr char kTransactionView[] = "transaction";  // a file below transactions/ or committed/

}  // namespace stfs
