// Makes diffs as a publisher does: plain, and compressed as one frame.
#pragma once

#include <zstd.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "tools/sync/version_format.h"

namespace stfs::test {

inline std::string xor_diff(std::string_view before, std::string_view after) {
  std::string diff(before);
  for (std::size_t at = 0; at < diff.size(); ++at) diff[at] = static_cast<char>(diff[at] ^ after[at]);
  return diff;
}

inline void append_u32(std::string& to, std::uint32_t number) {
  for (unsigned shift = 0; shift < 32; shift += 8) to += static_cast<char>(number >> shift & 0xffU);
}

inline std::string overwrite_diff(const std::vector<std::uint32_t>& positions, std::string_view values) {
  std::string diff;
  append_u32(diff, static_cast<std::uint32_t>(positions.size()));
  for (const std::uint32_t position : positions) append_u32(diff, position);
  return diff.append(values);
}

inline std::string overwrite_diff_of(std::string_view before, std::string_view after) {
  std::vector<std::uint32_t> positions;
  std::string values;
  for (std::size_t at = 0; at < before.size(); ++at) {
    if (before[at] == after[at]) continue;
    positions.push_back(static_cast<std::uint32_t>(at));
    values += after[at];
  }
  return overwrite_diff(positions, values);
}

inline std::string diff_of(sync::DiffEncoding encoding, std::string_view before, std::string_view after) {
  return encoding == sync::DiffEncoding::Xor ? xor_diff(before, after) : overwrite_diff_of(before, after);
}

struct FrameForm {
  bool has_content_size = true;
  bool has_checksum = false;
  int window_log = 0;  // 0: the level's default
};

inline std::string zstd_frame(std::string_view content, const FrameForm& form = {}) {
  ZSTD_CCtx* context = ZSTD_createCCtx();
  ZSTD_CCtx_setParameter(context, ZSTD_c_compressionLevel, 1);
  ZSTD_CCtx_setParameter(context, ZSTD_c_checksumFlag, form.has_checksum ? 1 : 0);
  ZSTD_CCtx_setParameter(context, ZSTD_c_contentSizeFlag, form.has_content_size ? 1 : 0);
  if (form.window_log > 0) ZSTD_CCtx_setParameter(context, ZSTD_c_windowLog, form.window_log);
  // Without a pledged size the frame keeps the requested window.
  if (form.has_content_size) ZSTD_CCtx_setPledgedSrcSize(context, content.size());
  std::string frame(ZSTD_compressBound(content.size()) + 32, '\0');
  ZSTD_outBuffer out{frame.data(), frame.size(), 0};
  ZSTD_inBuffer in{content.data(), content.size(), 0};
  // Two steps, because a single call would know the size.
  std::size_t left = ZSTD_compressStream2(context, &out, &in, ZSTD_e_continue);
  if (ZSTD_isError(left) == 0) left = ZSTD_compressStream2(context, &out, &in, ZSTD_e_end);
  ZSTD_freeCCtx(context);
  if (left != 0) throw std::runtime_error("zstd_frame");
  frame.resize(out.pos);
  return frame;
}

/// Refers to the frame.
inline sync::CompressedDiff compressed_diff(const std::string& frame) {
  return {.size_bytes = frame.size(),
          .read = [&frame](std::uint64_t offset, std::span<std::byte> to) -> Result<void> {
            if (offset + to.size() > frame.size()) throw std::runtime_error("a read behind the frame");
            std::memcpy(to.data(), frame.data() + offset, to.size());
            return {};
          }};
}

}  // namespace stfs::test
