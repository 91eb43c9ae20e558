#include "core/remote/s3.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "core/remote/http_answer.h"
#include "core/remote/model_choice.h"
#include "core/remote/request_signer.h"
#include "core/remote/s3_bucket.h"
#include "core/remote/s3_signature.h"
#include "core/remote/xml_text.h"

namespace stfs {
namespace {

constexpr std::string_view kS3Scheme = "s3://";
constexpr std::size_t kMostPageBytes = 8 << 20;  // a thousand keys of 1024 bytes, each with many escapes
constexpr unsigned kMostPages = 100;

/// Signs the requests for one object.
class S3Object final : public RequestSigner {
 public:
  S3Object(std::shared_ptr<S3Bucket> bucket, std::string key)
      : bucket_(std::move(bucket)), key_(std::move(key)) {}
  Result<Signed> sign(std::optional<ByteRange> range) override {
    return bucket_->sign({.key = key_, .range = range});
  }
  Result<bool> learn(const HttpAnswer& answer, std::uint64_t state) override {
    return bucket_->learn(answer, state);
  }
  [[nodiscard]] std::optional<Error> refusal(const HttpAnswer& answer) const override {
    return bucket_->refusal(answer);
  }
  [[nodiscard]] bool has_keys() const override { return bucket_->has_keys(); }

 private:
  const std::shared_ptr<S3Bucket> bucket_;
  const std::string key_;
};

/// A program may remove such parts from a path, and the request would be for another object.
bool has_dot_part(std::string_view key) {
  while (!key.empty()) {
    const std::string_view part = key.substr(0, key.find('/'));
    if (part == "." || part == "..") return true;
    key.remove_prefix(std::min(key.size(), part.size() + 1));
  }
  return false;
}

Error refusal_of(const HttpAnswer& answer, const S3Bucket& bucket) {
  if (auto why = bucket.refusal(answer)) return *why;
  const std::string code = s3_error_code(answer);
  return {ErrorCode::System, EIO,
          fmt::format("the store answers with status {}{}", answer.status, code.empty() ? "" : " " + code)};
}

/// The objects and the directories right below a prefix.
struct Listed {
  std::vector<std::string> keys;
  std::vector<std::string> folders;
};

Result<Listed> list(S3Bucket& bucket, const std::string& prefix, HttpConnection& connection) {
  std::vector<std::byte> bytes(kMostPageBytes);
  Listed listed;
  std::string token;
  for (unsigned pages = 0; pages < kMostPages; ++pages) {
    std::vector<std::pair<std::string, std::string>> query = {{"delimiter", "/"}, {"list-type", "2"}};
    if (!prefix.empty()) query.emplace_back("prefix", prefix);
    if (!token.empty()) query.emplace_back("continuation-token", token);
    const auto answer = bucket.get({.query = canonical_query(std::move(query))}, bytes, connection);
    RETURN_IF_ERROR(answer);
    if (answer->status != 200) return tl::unexpected(refusal_of(*answer, bucket));
    const std::string_view xml(reinterpret_cast<const char*>(bytes.data()),
                               static_cast<std::size_t>(answer->received_bytes));
    if (xml_elements(xml, "ListBucketResult").empty())
      return fail(ErrorCode::System, EIO, "the answer is no list of a bucket");
    for (const std::string_view object : xml_elements(xml, "Contents"))
      listed.keys.push_back(xml_value(object, "Key"));
    for (const std::string_view folder : xml_elements(xml, "CommonPrefixes"))
      listed.folders.push_back(xml_value(folder, "Prefix"));
    token = xml_value(xml, "NextContinuationToken");
    if (xml_value(xml, "IsTruncated") != "true" || token.empty()) return listed;
  }
  return fail(ErrorCode::System, EFBIG,
              fmt::format("the list has more than {} objects: name the archive", kMostPages * 1000));
}

/// Returns the key of the archive or the index right below a prefix.
Result<std::string> choose_below(S3Bucket& bucket, const std::string& prefix, HttpConnection& connection) {
  const std::string shown = fmt::format("s3://{}/{}", bucket.name(), prefix);
  auto listed = list(bucket, prefix, connection);
  if (!listed) return tl::unexpected(std::move(listed).error().within(shown));
  auto [chosen, several] = choose_model_file(prefix, listed->keys);
  if (!chosen.empty()) return chosen;
  if (!several.empty())
    return tl::unexpected(several_archives(shown, fmt::format("s3://{}/KEY", bucket.name()), several));
  if (listed->keys.empty() && listed->folders.empty())
    return fail(ErrorCode::NotFound, ENOENT, shown + ": has no objects");
  std::string folders;
  constexpr std::size_t kShown = 10;
  for (std::size_t at = 0; at < std::min(listed->folders.size(), kShown); ++at)
    folders += (at == 0 ? ", but " : ", ") + listed->folders[at];
  return fail(ErrorCode::NotFound, ENOENT, fmt::format("{}: has no .safetensors archive{}", shown, folders));
}

}  // namespace

Result<std::optional<S3Name>> s3_name_of(const std::string& address) {
  if (!address.starts_with(kS3Scheme)) return std::optional<S3Name>();
  const std::string_view rest = std::string_view(address).substr(kS3Scheme.size());
  const std::size_t slash = std::min(rest.find('/'), rest.size());
  S3Name name{std::string(rest.substr(0, slash)), std::string(rest.substr(std::min(slash + 1, rest.size())))};
  constexpr std::size_t kMostKeyBytes = 1024;
  if (name.bucket.empty() || name.key.size() > kMostKeyBytes || has_dot_part(name.key)) {
    return fail(ErrorCode::InvalidArgument, EINVAL,
                fmt::format("{}: names no object of a bucket: write s3://BUCKET/KEY or s3://BUCKET/PREFIX/",
                            address));
  }
  return std::optional(std::move(name));
}

Result<std::string> find_s3_file(const S3Name& name) {
  const auto bucket = S3Bucket::find(name.bucket);
  RETURN_IF_ERROR(bucket);
  const auto address_of = [&](const std::string& key) {
    return fmt::format("{}{}/{}", kS3Scheme, name.bucket, key);
  };
  if (name.key.ends_with(".safetensors") || name.key.ends_with(".json")) return address_of(name.key);
  HttpConnection connection;
  std::string prefix = name.key;
  if (!prefix.empty() && !prefix.ends_with('/')) {
    auto answer = (*bucket)->get({.key = name.key, .range = ByteRange{0, 1}}, {}, connection);
    if (!answer) return tl::unexpected(std::move(answer).error().within(address_of(name.key)));
    const bool is_there = answer->status < 400 || answer->status == 416;  // 416: the object is empty
    if (is_there) return address_of(name.key);
    if (answer->status != 404 || s3_error_code(*answer) == "NoSuchBucket")
      return tl::unexpected(refusal_of(*answer, **bucket).within(address_of(name.key)));
    prefix += '/';
  }
  const auto key = choose_below(**bucket, prefix, connection);
  RETURN_IF_ERROR(key);
  return address_of(*key);
}

Result<RemoteAddress> s3_address(const S3Name& name) {
  const auto bucket = S3Bucket::find(name.bucket);
  RETURN_IF_ERROR(bucket);
  auto signer = std::make_shared<S3Object>(*bucket, name.key);
  const auto first = signer->sign({});
  RETURN_IF_ERROR(first);
  return RemoteAddress{.url = first->request.url, .signer = std::move(signer)};
}

}  // namespace stfs
