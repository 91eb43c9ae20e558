// core/remote/s3.h, s3_signature.h, s3_bucket.h, xml_text.h: names, signatures and buckets, without a server.
#include "core/remote/s3.h"

#include <algorithm>
#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "core/remote/digest.h"
#include "core/remote/http_connection.h"
#include "core/remote/model_choice.h"
#include "core/remote/s3_bucket.h"
#include "core/remote/s3_credentials.h"
#include "core/remote/s3_signature.h"
#include "core/remote/xml_text.h"
#include "tests/support/catch.h"
#include "tests/support/plain.h"
#include "tests/support/remote_libraries.h"
#include "tests/support/skip.h"

using namespace stfs;
using namespace stfs::test;

namespace {

const S3Keys kExampleKeys = {"AKIAIOSFODNN7EXAMPLE", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY", ""};
const S3Time kExampleTime = std::chrono::sys_days(std::chrono::year(2013) / 5 / 24);

std::string header(const std::vector<std::string>& headers, const std::string& name) {
  for (const std::string& line : headers) {
    if (line.starts_with(name + ": ")) return line.substr(name.size() + 2);
  }
  return "none";
}

/// The signature of a request to the bucket of AWS's examples.
std::string example_signature(const std::string& path, const std::string& query,
                              std::optional<ByteRange> range = {}) {
  const S3Request request{
      .host = "examplebucket.s3.amazonaws.com", .path = path, .query = query, .range = range};
  const auto headers = signed_headers(request, kExampleKeys, "us-east-1", kExampleTime).value();
  const std::string authorization = header(headers, "Authorization");
  return authorization.substr(authorization.find("Signature=") + 10);
}

HttpAnswer refused_with(long status, const std::string& code, const std::string& more = "") {
  HttpAnswer answer;
  answer.status = status;
  answer.error_text = "<?xml version=\"1.0\"?><Error><Code>" + code + "</Code>" + more + "</Error>";
  return answer;
}

std::string url_of(AwsSettings settings, const std::string& bucket, const std::string& key) {
  S3Bucket there(bucket, std::move(settings), [] { return Result<S3Credentials>(S3Credentials{}); });
  const auto made = there.sign({.key = key});
  return made ? made->request.url + " " + header(made->request.headers, "Host")
              : std::to_string(made.error().errno_value);
}

}  // namespace

TEST_CASE("a request is signed as in the examples of AWS", "[core][remote]") {
  if (!has_libcrypto()) return;
  CHECK(example_signature("/test.txt", "", ByteRange{0, 10}) ==
        "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41");
  CHECK(example_signature("/", canonical_query({{"prefix", "J"}, {"max-keys", "2"}})) ==
        "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7");
  CHECK(example_signature("/", canonical_query({{"lifecycle", ""}})) ==
        "fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543");
}

TEST_CASE("a signed request names what the signature covers", "[core][remote]") {
  if (!has_libcrypto()) return;
  const S3Request request{.host = "h:8000", .path = "/b/k", .range = ByteRange{5, 3}};
  auto headers = signed_headers(request, {"AK", "S", "token"}, "eu-west-1", kExampleTime).value();
  CHECK(header(headers, "Host") == "h:8000");
  CHECK(header(headers, "x-amz-date") == "20130524T000000Z");
  CHECK(header(headers, "x-amz-security-token") == "token");
  CHECK(contains(header(headers, "Authorization"),
                 "Credential=AK/20130524/eu-west-1/s3/aws4_request,SignedHeaders=host;range;x-amz-content-"
                 "sha256;x-amz-date;x-amz-security-token,Signature="));
  headers = signed_headers(request, {}, "eu-west-1", kExampleTime).value();
  CHECK(headers == std::vector<std::string>{"Host: h:8000"});
}

TEST_CASE("keys and queries are escaped as S3 does", "[core][remote]") {
  CHECK(escaped_key("d1/a=b (1)!~@é+%&.safetensors") ==
        "d1/a%3Db%20%281%29%21~%40%C3%A9%2B%25%26.safetensors");
  CHECK(escaped_key("a//b?c#d'*") == "a//b%3Fc%23d%27%2A");
  CHECK(canonical_query({{"prefix", "a b/+"}, {"list-type", "2"}}) == "list-type=2&prefix=a%20b%2F%2B");
}

TEST_CASE("a name of S3 has a bucket and a key", "[core][remote]") {
  const auto parsed = [](const std::string& address) {
    const auto name = s3_name_of(address);
    if (!name) return std::to_string(name.error().errno_value);
    return *name ? (*name)->bucket + ' ' + (*name)->key : "none";
  };
  CHECK(parsed("s3://bucket/a/b.safetensors") == "bucket a/b.safetensors");
  CHECK(parsed("s3://bucket") == "bucket ");
  CHECK(parsed("s3://bucket/") == "bucket ");
  CHECK(parsed("s3://bucket/a/") == "bucket a/");
  CHECK(parsed("s3://bucket/a b?c#d%20") == "bucket a b?c#d%20");
  CHECK(parsed("https://bucket/a") == "none");
  for (const std::string& address : {std::string("s3://"), std::string("s3:///a"), std::string("s3://b/../a"),
                                     std::string("s3://b/a/."), "s3://b/" + std::string(1025, 'a')})
    CHECK(parsed(address) == std::to_string(EINVAL));
}

TEST_CASE("a bucket has the address of its region or of the endpoint", "[core][remote]") {
  if (!has_libcurl()) return;
  CHECK(url_of({.region = "eu-west-1"}, "my-bucket", "a b") ==
        "https://my-bucket.s3.eu-west-1.amazonaws.com/a%20b my-bucket.s3.eu-west-1.amazonaws.com");
  CHECK(url_of({.region = "cn-north-1"}, "b-1", "k") ==
        "https://b-1.s3.cn-north-1.amazonaws.com.cn/k b-1.s3.cn-north-1.amazonaws.com.cn");
  CHECK(url_of({}, "my.bucket", "k") ==
        "https://s3.us-east-1.amazonaws.com/my.bucket/k s3.us-east-1.amazonaws.com");
  CHECK(url_of({}, "Old_Bucket", "k") ==
        "https://s3.us-east-1.amazonaws.com/Old_Bucket/k s3.us-east-1.amazonaws.com");
  CHECK(url_of({.endpoint = "http://127.0.0.1:9000"}, "b", "k") ==
        "http://127.0.0.1:9000/b/k 127.0.0.1:9000");
  CHECK(url_of({.endpoint = "https://store:443/team"}, "b", "k") == "https://store/team/b/k store");
  CHECK(url_of({}, "b-1", "") == "https://b-1.s3.us-east-1.amazonaws.com/ b-1.s3.us-east-1.amazonaws.com");
  CHECK(url_of({.endpoint = "https://store"}, "b", "") == "https://store/b store");
}

TEST_CASE("a session token is sent over https only, or to this host", "[core][remote]") {
  if (!has_libcurl() || !has_libcrypto()) return;
  const auto signs = [](const std::string& endpoint, const std::string& token) {
    S3Bucket bucket("b", {.endpoint = endpoint}, [&] {
      return Result<S3Credentials>(S3Credentials{.keys = {"A", "s", token}, .source = "x"});
    });
    return errno_of(bucket.sign({.key = "k"}));
  };
  CHECK(signs("https://store", "t") == 0);
  CHECK(signs("http://localhost:1", "t") == 0);
  CHECK(signs("http://store", "t") == EINVAL);
  CHECK(signs("http://store", "") == 0);
}

TEST_CASE("a bucket learns its region, the store's clock and new keys, each once", "[core][remote]") {
  if (!has_libcurl() || !has_libcrypto()) return;
  std::string access = "A";
  S3Bucket bucket("b", {}, [&] {
    return Result<S3Credentials>(S3Credentials{.keys = {access, "s", ""}, .source = "profile p"});
  });
  const auto sign = [&] { return bucket.sign({.key = "k"}).value(); };
  const auto authorization = [&] { return header(sign().request.headers, "Authorization"); };
  SECTION("the region is in a header, or in the text") {
    const bool is_header = GENERATE(true, false);
    auto answer =
        refused_with(400, "AuthorizationHeaderMalformed", is_header ? "" : "<Region>eu-west-3</Region>");
    if (is_header) answer.bucket_region = "eu-west-3";
    const auto first = sign();
    CHECK(bucket.learn(answer, first.state).value());
    CHECK(bucket.learn(answer, first.state).value());  // of a request that was sent before
    CHECK(sign().request.url == "https://b.s3.eu-west-3.amazonaws.com/k");
    CHECK(contains(authorization(), "/eu-west-3/s3/"));
    CHECK_FALSE(bucket.learn(answer, sign().state).value());
    answer.bucket_region = "eu-west-4";
    CHECK_FALSE(bucket.learn(answer, sign().state).value());
  }
  SECTION("a region that is no name is not believed") {
    auto answer = refused_with(301, "PermanentRedirect");
    answer.bucket_region = "evil.example/";
    CHECK_FALSE(bucket.learn(answer, sign().state).value());
  }
  SECTION("the clock") {
    auto answer = refused_with(403, "RequestTimeTooSkewed");
    answer.date = "Fri, 24 May 2013 00:00:00 GMT";
    CHECK(bucket.learn(answer, sign().state).value());
    CHECK(header(sign().request.headers, "x-amz-date").starts_with("20130524T0000"));
    CHECK_FALSE(bucket.learn(answer, sign().state).value());
    answer.date = "yesterday";
    CHECK_FALSE(bucket.learn(answer, sign().state).value());
  }
  SECTION("new keys, if there are some") {
    const auto answer = refused_with(GENERATE(400, 401, 403), "ExpiredToken");
    const auto state = sign().state;
    CHECK_FALSE(bucket.learn(answer, state).value());
    access = "B";
    CHECK(bucket.learn(answer, state).value());
    CHECK(contains(authorization(), "Credential=B/"));
    CHECK(contains(bucket.refusal(answer)->message, "the credentials of profile p have expired"));
    CHECK(bucket.refusal(answer)->errno_value == EACCES);
  }
  SECTION("another refusal teaches nothing") {
    CHECK_FALSE(bucket.learn(refused_with(403, "AccessDenied"), sign().state).value());
    CHECK_FALSE(bucket.learn(refused_with(404, "NoSuchKey"), sign().state).value());
  }
}

TEST_CASE("keys are replaced five minutes before they end", "[core][remote]") {
  if (!has_libcurl() || !has_libcrypto()) return;
  const auto now = std::chrono::floor<std::chrono::seconds>(std::chrono::system_clock::now());
  int searches = 0;
  auto life = std::chrono::minutes(60);
  bool fails = false;
  S3Bucket bucket("b", {}, [&]() -> Result<S3Credentials> {
    ++searches;
    if (fails) return fail(ErrorCode::System, EIO, "no service");
    return S3Credentials{
        .keys = {"A" + std::to_string(searches), "s", ""}, .source = "x", .expires = now + life};
  });
  const auto signs = [&] { return errno_of(bucket.sign({.key = "k"})); };
  SECTION("keys that are good for an hour are kept") {
    CHECK(signs() == 0);
    CHECK(signs() == 0);
    CHECK(searches == 1);
  }
  SECTION("keys near their end are kept if there are no others, and no search follows at once") {
    life = std::chrono::minutes(4);
    CHECK(signs() == 0);
    fails = true;
    CHECK(signs() == 0);
    CHECK(signs() == 0);
    CHECK(searches == 1);
  }
  SECTION("without keys the search's failure is returned") {
    fails = true;
    CHECK(signs() == EIO);
    fails = false;
    CHECK(signs() == 0);
  }
}

TEST_CASE("texts are found in XML", "[core][remote]") {
  const std::string xml =
      "<?xml version=\"1.0\"?><L xmlns=\"u\"><KeyCount>2</KeyCount><C><Key>a &amp; &lt;b&gt;</Key></C>"
      "<C><Key a=\"b\">&#233;&#x1F600;&unknown; &</Key></C></L>";
  const auto elements = xml_elements(xml, "C");
  REQUIRE(elements.size() == 2);
  CHECK(xml_value(elements[0], "Key") == "a & <b>");
  CHECK(xml_value(elements[1], "Key") == "\xC3\xA9\xF0\x9F\x98\x80&unknown; &");
  CHECK(xml_value("<K>&#x20AC;&#8364;&#65;</K>", "K") ==
        "\xE2\x82\xAC\xE2\x82\xAC"
        "A");
  CHECK(xml_value(xml, "None").empty());
  CHECK(xml_value("<Key>cut", "Key").empty());
  CHECK(xml_value("</Key><Key>", "Key").empty());
}

TEST_CASE("of the objects below a prefix, the one is chosen that a library would load", "[core][remote]") {
  const auto chosen = [](const std::string& prefix, const std::vector<std::string>& keys) {
    const ModelChoice choice = choose_model_file(prefix, keys);
    return choice.chosen.empty() ? std::to_string(choice.several.size()) : choice.chosen;
  };
  CHECK(chosen("m/", {"m/a.safetensors", "m/model.safetensors"}) == "m/model.safetensors");
  CHECK(chosen("m/", {"m/x-1.safetensors", "m/x-2.safetensors", "m/model.safetensors.index.json"}) ==
        "m/model.safetensors.index.json");
  CHECK(chosen("m/", {"m/a.safetensors", "m/config.json"}) == "m/a.safetensors");
  CHECK(chosen("m/", {"m/a.safetensors", "m/b.safetensors"}) == "2");
  CHECK(chosen("m/", {"m/d/a.safetensors", "a.safetensors"}) == "0");
  CHECK(chosen("", {"a.safetensors"}) == "a.safetensors");
}
