#include "core/remote/remote_object.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string_view>
#include <utility>

#include "core/base/cancellation.h"
#include "core/remote/block_file.h"
#include "core/remote/http_answer.h"

namespace stfs {
namespace {

constexpr long kOk = 200;
constexpr long kPartial = 206;
constexpr std::uint64_t kMostBytes = BlockFile::kMostBytes;

/// Returns true if an address that the server has redirected to may have expired.
bool is_expired(long status) {
  return status == 400 || status == 401 || status == 403 || status == 404 || status == 410;
}

struct ContentRange {
  std::uint64_t first = 0;
  std::uint64_t last = 0;
  std::uint64_t size_bytes = 0;  // of the whole file
};

/// Parses "bytes 0-99/1234".
std::optional<ContentRange> parse_content_range(std::string_view text) {
  constexpr std::string_view kUnit = "bytes ";
  if (!text.starts_with(kUnit)) return std::nullopt;
  text.remove_prefix(kUnit.size());
  const std::size_t dash = text.find('-');
  const std::size_t slash = text.find('/');
  if (dash == text.npos || slash == text.npos || dash > slash) return std::nullopt;
  const auto first = whole_number(text.substr(0, dash));
  const auto last = whole_number(text.substr(dash + 1, slash - dash - 1));
  const auto size_bytes = whole_number(text.substr(slash + 1));
  if (!first || !last || !size_bytes || *first > *last || *last >= *size_bytes) return std::nullopt;
  return ContentRange{*first, *last, *size_bytes};
}

/// A weak ETag ("W/...") says that two versions mean the same, not that their bytes are the same.
std::string strong(const std::string& etag) {
  return etag.starts_with("W/") ? std::string() : etag;
}

/// The time is compared only without ETags: the nodes of a store may give a file different times.
bool is_same(const RemoteVersion& one, const RemoteVersion& other) {
  if (one.size_bytes != other.size_bytes) return false;
  return !one.etag.empty() || !other.etag.empty() ? one.etag == other.etag
                                                  : one.last_modified == other.last_modified;
}

/// Cuts a value that the server has chosen for a message, whose reader escapes it.
std::string_view printable_header(std::string_view text) {
  constexpr std::size_t kMost = 80;
  return text.substr(0, kMost);
}

Error refusal(ErrorCode code, int errno_value, std::string message) {
  return {code, errno_value, std::move(message)};
}

std::string status_text(long status) {
  return fmt::format("the server answers with status {}", status);
}

/// Returns true for a failure to sign a request, after which a later try may succeed.
bool may_pass(const Error& failure) {
  return failure.errno_value == EIO || failure.errno_value == ENETUNREACH || failure.errno_value == ETIMEDOUT;
}

}  // namespace

/// A range that one call requests, with the bytes that have arrived so far.
struct RemoteObject::Part {
  std::span<std::byte> to;
  std::uint64_t offset = 0;  // of the first byte, in the file
  std::uint64_t done_bytes = 0;
  RemoteVersion found{};        // with an unknown version: what the first answer says
  ByteRange asked{};            // of the last request
  bool may_be_shorter = false;  // the file may end before the part does

  [[nodiscard]] ByteRange missing() const { return {offset + done_bytes, to.size() - done_bytes}; }
};

Result<std::unique_ptr<RemoteObject>> RemoteObject::open(RemoteAddress address, HttpConnection& connection,
                                                         std::vector<std::byte>& first,
                                                         const RetryRules& rules) {
  RETURN_IF_ERROR(check_url(address.url));
  std::unique_ptr<RemoteObject> object(new RemoteObject(std::move(address), rules));
  Part part{.to = first, .may_be_shorter = true};
  RETURN_IF_ERROR(object->bring(part, connection, [] { return Cancellation::is_end(); }));
  first.resize(static_cast<std::size_t>(part.done_bytes));
  object->version_ = part.found;
  if (object->address_.listed) object->version_.etag = object->address_.listed->digest;
  object->is_known_ = true;
  return object;
}

std::unique_ptr<RemoteObject> RemoteObject::known(RemoteAddress address, RemoteVersion version,
                                                  const RetryRules& rules) {
  std::unique_ptr<RemoteObject> object(new RemoteObject(std::move(address), rules));
  object->version_ = std::move(version);
  object->is_known_ = true;
  return object;
}

Result<void> RemoteObject::read(std::span<std::byte> to, std::uint64_t offset, HttpConnection& connection,
                                const IsEnding& is_ending) const {
  Part part{.to = to, .offset = offset};
  return bring(part, connection, is_ending);
}

std::uint64_t RemoteObject::whole_size(const HttpAnswer& answer) const {
  return answer.content_bytes.value_or(address_.listed ? address_.listed->size_bytes : 0);
}

Result<void> RemoteObject::check(const HttpAnswer& answer, const Part& part) const {
  if (!answer.content_encoding.empty() && answer.content_encoding != "identity")
    return fail(ErrorCode::InvalidArgument, EINVAL, "the server compresses the file, so it has no ranges");
  const ByteRange wanted = part.asked;
  auto range = parse_content_range(answer.content_range);
  const std::uint64_t whole_bytes = answer.status == kOk ? whole_size(answer) : 0;
  const bool is_whole_wanted = part.may_be_shorter ? whole_bytes <= wanted.size_bytes
                                                   : whole_bytes == wanted.size_bytes && wanted.offset == 0;
  if (!range && whole_bytes > 0 && is_whole_wanted)
    range = ContentRange{0, whole_bytes - 1, whole_bytes};  // it has sent the whole file
  if (!range) {
    return fail(ErrorCode::InvalidArgument, EINVAL,
                answer.status == kOk ? "the server gives no ranges, only the whole file"
                                     : "the server does not say which bytes it sends");
  }
  if (range->size_bytes > kMostBytes) {
    return fail(ErrorCode::InvalidArgument, EFBIG,
                fmt::format("the server says that the file has {} bytes, at most {} are possible",
                            range->size_bytes, kMostBytes));
  }
  RETURN_IF_ERROR(check_version({strong(answer.etag), answer.last_modified, range->size_bytes}, part));
  if (range->first != wanted.offset || range->last >= wanted.end()) {
    return fail(ErrorCode::System, EIO,
                fmt::format("the server sends bytes {}-{}, was asked for {}-{}", range->first, range->last,
                            wanted.offset, wanted.end() - 1));
  }
  return {};
}

Result<void> RemoteObject::check_version(const RemoteVersion& found, const Part& part) const {
  if (address_.listed) {
    if (found.size_bytes == address_.listed->size_bytes) return {};
    return fail(ErrorCode::ArchiveChanged, ESTALE,
                fmt::format("the server's file has {} bytes, the Hub lists {}", found.size_bytes,
                            address_.listed->size_bytes));
  }
  const RemoteVersion& known = is_known_ ? version_ : part.found;
  if ((!is_known_ && part.done_bytes == 0) || is_same(known, found)) return {};
  return fail(ErrorCode::ArchiveChanged, ESTALE,
              found.size_bytes != known.size_bytes
                  ? fmt::format("the file on the server has changed: it had {} bytes, now {}",
                                known.size_bytes, found.size_bytes)
                  : fmt::format("the file on the server has changed: its version was {}, now {}",
                                printable_header(known.etag.empty() ? known.last_modified : known.etag),
                                printable_header(found.etag.empty() ? found.last_modified : found.etag)));
}

Result<void> RemoteObject::check_target(const std::string& target, const HttpAnswer& answer) const {
  const std::string etag = strong(answer.etag);
  if (!address_.listed || etag.empty()) return {};
  const MutexLock lock(mutex_);
  if (target != (target_.empty() ? address_.url : target_)) return {};  // another thread has a newer address
  if (target_etag_.empty()) target_etag_ = etag;
  if (target_etag_ == etag) return {};
  return fail(ErrorCode::ArchiveChanged, ESTALE,
              fmt::format("the file on the server has changed: its version was {}, now {}",
                          printable_header(target_etag_), printable_header(etag)));
}

Result<void> RemoteObject::check_listed(const HttpAnswer& answer) const {
  if (!address_.listed || answer.linked_etag.empty()) return {};
  std::string_view digest = answer.linked_etag;
  if (digest.starts_with("W/")) digest.remove_prefix(2);
  if (digest.size() >= 2 && digest.front() == '"' && digest.back() == '"') {
    digest.remove_prefix(1);
    digest.remove_suffix(1);
  }
  if (digest == address_.listed->digest) return {};
  return fail(ErrorCode::ArchiveChanged, ESTALE,
              fmt::format("the Hub lists this file as {}, and answers with {}", address_.listed->digest,
                          printable_header(digest)));
}

RemoteObject::Verdict RemoteObject::judge(const HttpAnswer& answer, const Part& part) const {
  const long status = answer.status;
  if (status == kOk || status == kPartial) {
    if (auto fits = check(answer, part); !fits) return {What::Failed, std::move(fits).error()};
    if (answer.failure) return {is_final(*answer.failure) ? What::Failed : What::Again, *answer.failure};
    return {What::Again, refusal(ErrorCode::System, EIO, "the server ends its answers too early")};
  }
  if (is_redirect(status)) return {What::Redirected, {}};
  if (answer.failure && (status == 0 || is_final(*answer.failure)))
    return {is_final(*answer.failure) ? What::Failed : What::Again, *answer.failure};
  const bool is_lost = is_known_ && (status == 404 || status == 410);
  if (address_.signer && !is_lost) {
    if (auto why = address_.signer->refusal(answer)) return {What::Failed, std::move(*why)};
  }
  const std::string text = status_text(status);
  if (is_passing(status)) {
    return {What::Again, refusal(ErrorCode::System, EIO, text), asked_pause(answer)};
  }
  if (status == 401 || status == 403)
    return {What::Failed, refusal(ErrorCode::System, EACCES, text + ": it refuses the file")};
  if (status == 404 || status == 410) {
    if (!is_known_)
      return {What::Failed, refusal(ErrorCode::NotFound, ENOENT, text + ": it has no such file")};
    return {What::Failed, refusal(ErrorCode::ArchiveChanged, ESTALE, text + ": the file has been removed")};
  }
  if (status == 416) {
    if (!is_known_) return {What::Failed, refusal(ErrorCode::HeaderTooSmall, EINVAL, "the file is empty")};
    return {What::Failed,
            refusal(ErrorCode::ArchiveChanged, ESTALE, "the file on the server has become shorter")};
  }
  return {What::Failed, refusal(ErrorCode::System, EIO, text)};
}

Result<RequestSigner::Signed> RemoteObject::make_request(const std::string& target, ByteRange range) const {
  if (address_.signer && target == address_.url) return address_.signer->sign(range);
  RequestSigner::Signed made;
  made.request.url = target;
  made.request.range = range;
  if (target == address_.url || has_same_origin(target, address_.url))
    made.request.headers = authorization_header(address_.authorization);
  return made;
}

Result<void> RemoteObject::bring(Part& part, HttpConnection& connection, const IsEnding& is_ending) const {
  if (address_.is_offline) {
    return fail(ErrorCode::System, ENETUNREACH,
                "these bytes are not on this machine, and HF_HUB_OFFLINE is set");
  }
  // A server that sends less may hold a request without end.
  constexpr std::uint64_t kLeastProgress = 64 << 10;
  Retries retries(rules_, is_ending);
  std::uint64_t noted_bytes = 0;
  std::string target;
  {
    const MutexLock lock(mutex_);
    target = target_.empty() ? address_.url : target_;
  }
  unsigned redirects = 0;
  for (;;) {
    part.asked = part.missing();
    const auto to = part.to.subspan(static_cast<std::size_t>(part.done_bytes));
    bool is_checked = false;
    auto made = make_request(target, part.asked);
    if (!made) {
      if (!may_pass(made.error())) return tl::unexpected(std::move(made).error());
      RETURN_IF_ERROR(retries.wait(std::move(made).error(), std::chrono::milliseconds(0)));
      continue;
    }
    const auto answer = connection.get(made->request, to,
                                       {.wants_body =
                                            [&](const HttpAnswer& head) {
                                              is_checked = (head.status == kOk || head.status == kPartial) &&
                                                           check(head, part) && check_target(target, head);
                                              return is_checked;
                                            },
                                        .is_ending = is_ending});
    RETURN_IF_ERROR(check_listed(answer));
    if (answer.status == kOk || answer.status == kPartial) {
      RETURN_IF_ERROR(check_target(target, answer));
    }
    const bool is_sound = !answer.failure || !is_final(*answer.failure);
    if (is_checked && is_sound && answer.received_bytes > 0) {
      RETURN_IF_ERROR(take(answer, part));
      if (part.done_bytes == part.to.size()) return {};
      if (part.done_bytes - noted_bytes >= kLeastProgress) {
        noted_bytes = part.done_bytes;
        retries.note_progress();
      }
      retries.note_answer();
    }
    if (address_.signer && target == address_.url && answer.status >= 300) {
      const auto has_learned = address_.signer->learn(answer, made->state);
      RETURN_IF_ERROR(has_learned);
      if (*has_learned && ++redirects <= kMostRedirects) continue;
    }
    Verdict verdict = judge(answer, part);
    if (verdict.what == What::Redirected) {
      if (++redirects > kMostRedirects)
        return fail(ErrorCode::System, EIO,
                    fmt::format("the server redirects more than {} times", kMostRedirects));
      auto next = redirected(made->request.url, answer.location);
      RETURN_IF_ERROR(next);
      target = std::move(*next);
      const MutexLock lock(mutex_);
      target_ = target;
      target_etag_.clear();
      continue;
    }
    if (target != address_.url && is_expired(answer.status)) {
      // The address of the redirect has expired. Ask the first server again, but not for ever.
      target = address_.url;
      const MutexLock lock(mutex_);
      target_.clear();
      target_etag_.clear();
      if (++redirects > kMostRedirects) return tl::unexpected(std::move(verdict.why));
      continue;
    }
    if (verdict.what == What::Failed) return tl::unexpected(std::move(verdict.why));
    RETURN_IF_ERROR(retries.wait(std::move(verdict.why), verdict.least_pause));
  }
}

Result<void> RemoteObject::take(const HttpAnswer& answer, Part& part) const {
  const auto range = parse_content_range(answer.content_range);
  const std::uint64_t sent_bytes = range ? range->last - range->first + 1 : whole_size(answer);
  if (answer.received_bytes > sent_bytes)
    return fail(ErrorCode::System, EIO, "the server sends more than it was asked for");
  if (!is_known_) {
    part.found = {strong(answer.etag), answer.last_modified, range ? range->size_bytes : sent_bytes};
    const std::uint64_t there = std::min<std::uint64_t>(part.to.size(), part.found.size_bytes);
    part.to = part.to.first(static_cast<std::size_t>(there));
  }
  part.done_bytes += answer.received_bytes;
  return {};
}

}  // namespace stfs
