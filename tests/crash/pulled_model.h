// The expected files of the models that training publishes, computed without the code under test.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>

#include "tests/crash/workload.h"

namespace stfs::test {

/// The tensors of a model, and their archives.
enum class PulledLayout : std::uint8_t {
  First,
  OtherTensors,  // in archives of other names
  SameArchives   // also other tensors, in archives with the names of layout First
};

inline const std::string kPulledIndex = "model.safetensors.index.json";
inline const std::string kPulledConfig = "config.json";  // a file that gets its name after the index

/// The files of a model by their names: the archives, the index and the configuration.
using PulledFiles = std::map<std::string, Content>;

/// The model of a version. From one version to the next, some bytes of most tensors change, and some tensors
/// do not. The other files and the headers depend on the layout alone.
PulledFiles pulled_files(PulledLayout layout, std::uint64_t version);

/// The names of the files, if the model in that directory is this one, bit for bit. Its archives may have
/// other names than the version's, as its index says.
std::optional<std::set<std::string>> names_of_model(const DiskImage& image, const std::string& directory,
                                                    const PulledFiles& files);

}  // namespace stfs::test
