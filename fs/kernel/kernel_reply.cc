#include "fs/kernel/kernel_reply.h"

namespace stfs {

void KernelReply::send(fuse_req_t req, const Bytes& bytes) {
  const auto whole = bytes.mapped_.empty() ? std::span<const std::byte>(bytes.owned_) : bytes.mapped_.bytes_;
  fuse_reply_buf(req, reinterpret_cast<const char*>(whole.data()), whole.size());
}

}  // namespace stfs
