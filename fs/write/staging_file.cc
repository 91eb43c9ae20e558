#include "fs/write/staging_file.h"

#include <utility>

#include "core/base/mutex.h"
#include "core/journal/journal_file.h"
#include "core/journal/journal_format.h"

namespace stfs {

Result<std::uint64_t> StagingFile::allocate(std::uint64_t size_bytes) {
  const MutexLock lock(mutex_);
  if (!file_) {
    auto share = take_descriptor(requesting_user(user_));
    if (!share) return pass_on(std::move(share));
    auto made = create_journal_file(beside_.storage(), beside_.real_path(), beside_.file());
    if (!made) return pass_on(std::move(made));
    file_ = std::move(made->file);
    share_ = std::move(*share);
    // Where the file has a name, a crash leaves it behind, and recovery must find no head of a journal in it.
    end_bytes_ = kBlockBytes;
  }
  const auto place = ByteRange::checked(end_bytes_, size_bytes);
  if (!place || place->end() > kMostFileBytes) return fail_system(EFBIG, "staged bytes", "write");
  end_bytes_ = round_up_to_block(place->end());
  return place->offset;
}

void StagingFile::free(ByteRange place) {
  // Whoever gives bytes back has them, so the file is there. A failure leaves the space in use.
  static_cast<void>(file().punch(whole_blocks_in(place)));
}

}  // namespace stfs
