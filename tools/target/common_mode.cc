// Looks at the files' modes as they were when the model was opened.
#include "tools/target/common_mode.h"

namespace stfs::tools {

mode_t common_mode(const Model& model) {
  mode_t mode = 0666;
  for (const Shard& shard : model.shards()) {
    if (shard.version) mode &= shard.version->status.mode;
  }
  return mode | 0600;
}

}  // namespace stfs::tools
