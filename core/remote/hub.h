// Models on the Hugging Face Hub: hf://ORG/MODEL[@REVISION][/FILE].
//
// The Hub is asked once which commit the revision has now, and for the files of that commit: their sizes and
// digests. The bytes at the address of a commit's file never change, so an open model stays the same while
// its authors publish another one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "core/base/error.h"
#include "core/remote/http_connection.h"
#include "core/remote/remote_object.h"

namespace stfs {

/// A name of the Hub in parts.
struct HubName {
  std::string model;  // ORG/MODEL
  std::string revision = "main";
  std::string file{};  // or a directory of the model; empty: the whole model
};

/// Understands hf://ORG/MODEL[@REVISION][/FILE], and the addresses that the Hub's pages show:
/// https://huggingface.co/ORG/MODEL/resolve/REVISION/FILE, and the same with blob. The Hub may be another
/// server (HF_ENDPOINT).
/// @return nothing: the address is no name of the Hub. EINVAL: it begins with hf://, and names no model.
Result<std::optional<HubName>> hub_name_of(const std::string& address);

/// One commit of a model. Immutable.
struct HubModel {
  struct File {
    std::string digest;  // the SHA-256 of a large file, otherwise the SHA-1 of its git blob
    std::uint64_t size_bytes = 0;
  };
  std::string model;  // ORG/MODEL
  std::string commit;
  std::string endpoint;       // the address of the Hub
  std::string root;           // the address of the commit's files, with a slash at the end
  std::string authorization;  // for requests to the Hub; empty: there is no token
  bool is_kept = false;       // the list is one that this machine has kept
  bool is_offline = false;    // the Hub is not asked
  std::map<std::string, File, std::less<>> files{};  // by path

  /// Returns the address of a file that is listed.
  [[nodiscard]] RemoteAddress address_of(std::string_view file) const;
};

/// Asks the Hub for the commit of the revision. Sends the user's token, if there is one: of HF_TOKEN, or of
/// the file that `hf auth login` has written. Offline (HF_HUB_OFFLINE), the last list of the Hub counts, or
/// else the Hugging Face cache.
/// @return ENOENT: no such model or revision. EACCES: the model is private, or its terms are not accepted.
///   ENETUNREACH: no network, or offline without a copy in the cache. EIO.
Result<std::shared_ptr<const HubModel>> find_hub_model(const HubName& name, HttpConnection& connection);

/// Returns the path of the index or archive that a name means: FILE itself; else the archive or the index
/// that transformers would load; else the only one.
/// @return ENOENT: there is none, or FILE is not listed. EINVAL: there are several; the message lists them.
Result<std::string> choose_hub_file(const HubModel& model, const HubName& name);

}  // namespace stfs
