// Writes crash states and models as files, with their allowed contents, for a test that reads them with the
// reference library.
//
//   state-N.safetensors  one archive after a crash, before any recovery
//   state-N.json         {"allowed": [CONTENT...], "is_mixed": BOOL, "is_read": BOOL}: the allowed contents;
//                        whether bytes may be a mix of old and new; whether our plain reader accepts it
//   model/               the model at the end
//   model.json           {"shards": {FILE: CONTENT, ...}}
//
// CONTENT is {"tensors": {NAME: {"dtype", "shape", "data"}}, "metadata": {...}}, with data in hexadecimal.
#pragma once

#include <filesystem>

#include "tests/crash/edit_log.h"

namespace stfs::test {

void record_state(const std::filesystem::path& directory, const DiskImage& image, const EditedModel& layout,
                  std::uint32_t shard, const EditLog& log, bool is_mixed);
void record_model(const std::filesystem::path& directory, const DiskImage& image, const EditedModel& model);

}  // namespace stfs::test
