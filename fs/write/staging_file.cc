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
    RETURN_IF_ERROR(share);
    auto made = create_journal_file(beside_.storage(), beside_.real_path(), beside_.file());
    RETURN_IF_ERROR(made);
    file_ = std::move(made->file);
    share_ = std::move(*share);
    // If the file has a name, a crash leaves it behind, and recovery must find no head of a journal in it.
    end_bytes_ = kBlockBytes;
  }
  const auto place = ByteRange::checked(end_bytes_, size_bytes);
  if (!place || place->end() > kMostFileBytes) return fail_system(EFBIG, "staged bytes", "write");
  end_bytes_ = round_up_to_block(place->end());
  return place->offset;
}

void StagingFile::free(ByteRange place) {
  // The caller has got the place from allocate(), so the file exists. A failure leaves the space in use.
  static_cast<void>(file().punch(whole_blocks_in(place)));
}

}  // namespace stfs
