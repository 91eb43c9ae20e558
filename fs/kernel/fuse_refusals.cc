// Logs why requests are refused.
#include <cerrno>
#include <system_error>

#include "fs/kernel/fuse_handlers.h"

namespace stfs {
namespace {

/// True if the errno explains the refusal: programs ask for names and attributes that may not exist, read
/// values and lists that may be longer than their buffer, and make directories that may exist.
bool is_plain(const Error& error) {
  switch (error.errno_value) {
    // Otherwise the file has no form, or is not whole.
    case ENODATA: return error.code == ErrorCode::NotFound || error.code == ErrorCode::System;
    // The kernel looks the name up again, and the program gets the file.
    case ESTALE: return error.code == ErrorCode::NotFound;
    case ENOENT:
    case ERANGE:
    case E2BIG:
    case EEXIST:
    case ENOTEMPTY:
    case EISDIR:
    case ENOTDIR:
    case ELOOP:
    case EINTR: return true;
    default: return false;
  }
}

void log_refusal(const MountRoot& mount_root, Ino ino, const Error& error, std::string_view name) {
  const Requester* const requester = Requester::present();
  if (is_plain(error) || (requester != nullptr && requester->has_logged(error.message))) return;
  const std::string what = std::generic_category().message(error.errno_value);
  std::string text = error.message;
  const std::string label = mount_root.label_of(ino, name);
  if (!text.starts_with(label)) text = fmt::format("{}: {}", label, text);
  if (!text.ends_with(what)) text += fmt::format(": {}", what);
  log::write(error.errno_value == EIO ? log::Level::Error : log::Level::Warning, text);
}

}  // namespace

void note_refusal(fuse_req_t req, Ino ino, const Error& error, std::string_view name) {
  const MountRoot& mount_root = mount_root_of(req);
  // EIO means that the store failed, not that the request was wrong.
  if (error.errno_value == EIO) mount_root.activity(mount_root.model_of(ino)).note_error();
  survive("reply", [&] { log_refusal(mount_root, ino, error, name); });
}

void reply_error(fuse_req_t req, Ino ino, const Error& error, std::string_view name) {
  note_refusal(req, ino, error, name);
  fuse_reply_err(req, error.errno_value);
}

void refuse_beside_models(fuse_req_t req, Ino ino, std::string_view name) {
  reply_error(req, ino, mount_root_of(req).changes_no_files(), name);
}

void refuse(fuse_req_t req, Ino ino, std::string_view why, std::string_view name) {
  const Requester requester(user_of(req, std::nullopt), fuse_req_ctx(req)->pid);
  const MountRoot& mount_root = mount_root_of(req);
  const MountRoot::Pin model = mount_root.model_of(ino);
  const bool is_read_only = mount_root.is_read_only(model);
  const int errno_value = is_read_only ? EROFS : EPERM;
  survive("reply", [&] {
    const Error error = model ? Error{ErrorCode::InvalidArgument, errno_value,
                                      std::string(is_read_only ? "mounted read-only" : why)}
                              : mount_root.changes_no_files();
    note_refusal(req, ino, error, name);
  });
  fuse_reply_err(req, errno_value);
}

}  // namespace stfs
