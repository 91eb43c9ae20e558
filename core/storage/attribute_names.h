// Extended attributes by which a mount tells of itself, to people and to our own tools.
#pragma once

namespace stfs {

inline constexpr char kAttributePrefix[] = "user.safetensors.";
/// Of a tensor's file and of the root of a model: the archive, or the index, that it comes from.
inline constexpr char kArchiveAttribute[] = "user.safetensors.archive";
/// Of a tensor's file and of each view of it: the tensor's name.
inline constexpr char kNameAttribute[] = "user.safetensors.name";
/// Of each file in `.safetensors/`: one of the kinds below. A tensor's own file has none.
inline constexpr char kViewAttribute[] = "user.safetensors.view";
/// Of what shows a tensor and is not its own file: the path of that file, from the mount's root.
inline constexpr char kFileAttribute[] = "user.safetensors.file";

inline constexpr char kNpyView[] = "npy";
inline constexpr char kFloat32View[] = "float32";
inline constexpr char kSliceView[] = "slice";
inline constexpr char kArchiveView[] = "archive";          // archive.safetensors
inline constexpr char kDocumentView[] = "document";        // header.json, metadata.json, stats.json
inline constexpr char kTransactionView[] = "transaction";  // a file below transactions/ or committed/

}  // namespace stfs
