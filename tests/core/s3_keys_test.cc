// core/remote/aws_settings.h, s3_credentials.h, credential_process.h: settings and keys of a user of S3.
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/remote/aws_settings.h"
#include "core/remote/credential_process.h"
#include "core/remote/http_connection.h"
#include "core/remote/s3_credentials.h"
#include "tests/support/catch.h"
#include "tests/support/plain.h"
#include "tests/support/temporary_directory.h"

using namespace stfs;
using namespace stfs::test;

namespace {

constexpr S3Time kSomeTime = std::chrono::sys_days(std::chrono::year(2013) / 5 / 24);

/// Sets variables of the environment until the end. All others that AWS's tools know are removed.
class Environment {
 public:
  explicit Environment(const std::map<std::string, std::string>& set) {
    for (const char* name : {"AWS_ACCESS_KEY_ID",
                             "AWS_SECRET_ACCESS_KEY",
                             "AWS_SESSION_TOKEN",
                             "AWS_PROFILE",
                             "AWS_DEFAULT_PROFILE",
                             "AWS_REGION",
                             "AWS_DEFAULT_REGION",
                             "AWS_ENDPOINT_URL",
                             "AWS_ENDPOINT_URL_S3",
                             "AWS_ENDPOINT_URL_STS",
                             "AWS_CA_BUNDLE",
                             "AWS_CONFIG_FILE",
                             "AWS_SHARED_CREDENTIALS_FILE",
                             "AWS_WEB_IDENTITY_TOKEN_FILE",
                             "AWS_ROLE_ARN",
                             "AWS_ROLE_SESSION_NAME",
                             "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
                             "AWS_CONTAINER_CREDENTIALS_FULL_URI",
                             "AWS_CONTAINER_AUTHORIZATION_TOKEN",
                             "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE",
                             "AWS_EC2_METADATA_DISABLED",
                             "AWS_EC2_METADATA_SERVICE_ENDPOINT",
                             "HOME"}) {
      const char* value = std::getenv(name);
      before_[name] = value == nullptr ? std::nullopt : std::optional<std::string>(value);
      ::unsetenv(name);
    }
    ::setenv("HOME", "/nonexistent", 1);
    for (const auto& [name, value] : set) ::setenv(name.c_str(), value.c_str(), 1);
  }
  ~Environment() {
    for (const auto& [name, value] : before_) {
      value ? ::setenv(name.c_str(), value->c_str(), 1) : ::unsetenv(name.c_str());
    }
  }
  Environment(const Environment&) = delete;
  Environment& operator=(const Environment&) = delete;

 private:
  std::map<std::string, std::optional<std::string>> before_;
};

AwsSettings with_profile(std::map<std::string, std::string> values) {
  AwsSettings settings;
  settings.profile = "p";
  settings.values = std::move(values);
  return settings;
}

/// "ACCESS SOURCE", or the errno.
std::string found_with(const AwsSettings& settings) {
  const auto found = find_s3_credentials(settings);
  return found ? found->keys.access_key + " " + found->source : std::to_string(found.error().errno_value);
}

}  // namespace

TEST_CASE("profiles are read as the tools of AWS do", "[core][remote]") {
  const std::string text =
      "# a comment\nlost = 1\n[default]\nregion=eu-west-1 # here\naws_access_key_id = A;B\n"
      "s3 =\n  addressing_style = path\n[profile  dev ]\nregion = x\n[profile \"two words\"]\nregion = y\n"
      "[sso-session s]\nregion = z\n[dev]\nregion = w\r\n";
  const AwsProfiles config = read_aws_profiles(text, true);
  CHECK(config.size() == 3);
  const AwsProfiles indented =
      read_aws_profiles("[a]\n  x = 1\n  s3 =\n    x = 2\n  y = 3\n\n[b]\n\tx = 4\n", false);
  CHECK(indented.at("a") == std::map<std::string, std::string>{{"x", "1"}, {"s3", ""}, {"y", "3"}});
  CHECK(indented.at("b").at("x") == "4");
  CHECK(config.at("default").at("region") == "eu-west-1");
  CHECK(config.at("default").at("aws_access_key_id") == "A;B");
  CHECK_FALSE(config.at("default").contains("addressing_style"));
  CHECK(config.at("dev").at("region") == "x");
  CHECK(config.at("two words").at("region") == "y");
  const AwsProfiles credentials = read_aws_profiles(text, false);
  CHECK(credentials.at("dev").at("region") == "w");
  CHECK(credentials.contains("sso-session s"));
}

TEST_CASE("variables win over the profile", "[core][remote]") {
  const TemporaryDirectory directory;
  const std::string config =
      directory.write("config", "[profile p]\nregion = r1\nendpoint_url = https://e1/\nca_bundle = /ca\n");
  const std::string keys =
      directory.write("credentials", "[p]\naws_access_key_id = A\naws_secret_access_key = S\n");
  std::map<std::string, std::string> set = {
      {"AWS_PROFILE", "p"}, {"AWS_CONFIG_FILE", config}, {"AWS_SHARED_CREDENTIALS_FILE", keys}};
  {
    const Environment environment(set);
    const AwsSettings settings = read_aws_settings().value();
    CHECK(settings.region == "r1");
    CHECK(settings.endpoint == "https://e1");
    CHECK(settings.certificates == "/ca");
    CHECK(settings.keys.access_key.empty());
    CHECK(found_with(settings) == "A profile p");
    CHECK(settings.metadata_endpoint == "http://169.254.169.254");
  }
  set.merge(std::map<std::string, std::string>{{"AWS_DEFAULT_REGION", "r2"},
                                               {"AWS_ENDPOINT_URL", "https://e2"},
                                               {"AWS_ACCESS_KEY_ID", "E"},
                                               {"AWS_SECRET_ACCESS_KEY", "S"},
                                               {"AWS_EC2_METADATA_DISABLED", "true"}});
  {
    const Environment environment(set);
    const AwsSettings settings = read_aws_settings().value();
    CHECK(settings.region == "r2");
    CHECK(settings.endpoint == "https://e2");
    CHECK(found_with(settings) == "E AWS_ACCESS_KEY_ID");
    CHECK(settings.metadata_endpoint.empty());
  }
  set.merge(std::map<std::string, std::string>{{"AWS_REGION", "r3"}, {"AWS_ENDPOINT_URL_S3", "https://e3"}});
  {
    const Environment environment(set);
    CHECK(read_aws_settings().value().region == "r3");
    CHECK(read_aws_settings().value().endpoint == "https://e3");
  }
  for (const auto& [name, value] :
       {std::pair("AWS_PROFILE", "none"), std::pair("AWS_ENDPOINT_URL_S3", "store:1"),
        std::pair("AWS_ENDPOINT_URL_S3", "https://me:secret@store")}) {
    set[name] = value;
    const Environment environment(set);
    const auto refused = read_aws_settings();
    CHECK(errno_of(refused) == EINVAL);
    CHECK_FALSE(contains(refused.error().message, "secret"));
    set[name] = name == std::string("AWS_PROFILE") ? "p" : "https://e3";
  }
}

TEST_CASE("a profile that others may write leads nothing elsewhere", "[core][remote]") {
  const TemporaryDirectory directory;
  const auto refused_with = [&](const std::string& text, std::map<std::string, std::string> set) {
    set["AWS_CONFIG_FILE"] = directory.write("config", "[default]\n" + text);
    std::filesystem::permissions(set["AWS_CONFIG_FILE"], std::filesystem::perms(0666));
    const Environment environment(set);
    const auto settings = read_aws_settings();
    return settings ? std::string("nothing") : settings.error().message;
  };
  const std::string endpoint = "endpoint_url = https://evil\n";
  const std::string token = "web_identity_token_file = /home/u/.ssh/id_rsa\nrole_arn = r\n";
  const std::pair<std::string, std::string> access = {"AWS_ACCESS_KEY_ID", "A"};
  const std::pair<std::string, std::string> secret = {"AWS_SECRET_ACCESS_KEY", "S"};
  CHECK(contains(refused_with(endpoint, {access, secret}), "profile default: its endpoint_url is not used"));
  CHECK(contains(refused_with(endpoint, {}), "endpoint_url is not used"));
  CHECK(contains(refused_with("ca_bundle = /tmp/evil.pem\n", {}), "ca_bundle is not used"));
  CHECK(contains(refused_with(token, {}), "web_identity_token_file is not used"));
  CHECK(refused_with(token, {access, secret}) == "nothing");
  CHECK(refused_with("region = r-1\n", {access, secret}) == "nothing");
  CHECK(refused_with(endpoint, {access, secret, {"AWS_ENDPOINT_URL", "https://mine"}}) == "nothing");
  CHECK(refused_with("ca_bundle = /x\n", {{"AWS_CA_BUNDLE", "/mine"}}) == "nothing");
  SECTION("the token of the user is not sent to an endpoint of the profile") {
    std::map<std::string, std::string> set = {{"AWS_WEB_IDENTITY_TOKEN_FILE", "/token"},
                                              {"AWS_ROLE_ARN", "r"},
                                              {"AWS_ENDPOINT_URL_S3", "https://mine"}};
    CHECK(contains(refused_with(endpoint, set), "endpoint_url is not used"));
    set["AWS_ENDPOINT_URL_STS"] = "https://mine";
    CHECK(refused_with(endpoint + token, set) == "nothing");
  }
}

TEST_CASE("half of a pair of keys is refused", "[core][remote]") {
  {
    const Environment environment(
        std::map<std::string, std::string>{{"AWS_ACCESS_KEY_ID", "A"}, {"AWS_SESSION_TOKEN", "secret"}});
    const auto refused = read_aws_settings();
    CHECK(errno_of(refused) == EINVAL);
    CHECK(contains(refused.error().message, "AWS_SECRET_ACCESS_KEY is not"));
    CHECK_FALSE(contains(refused.error().message, "secret"));
  }
  {
    const Environment environment(
        std::map<std::string, std::string>{{"AWS_SECRET_ACCESS_KEY", "S"}, {"AWS_SESSION_TOKEN", "T"}});
    CHECK(read_aws_settings().value().keys == S3Keys{});
  }
  CHECK(found_with(with_profile({{"aws_access_key_id", "A"}})) == std::to_string(EINVAL));
}

TEST_CASE("a region is a word", "[core][remote]") {
  for (const char* region : {"evil.example/", "a.b", "a b"}) {
    const Environment environment(std::map<std::string, std::string>{{"AWS_REGION", region}});
    CHECK(errno_of(read_aws_settings()) == EINVAL);
  }
  const Environment environment(std::map<std::string, std::string>{{"AWS_REGION", "us-gov-west-1"}});
  CHECK(read_aws_settings().value().region == "us-gov-west-1");
}

TEST_CASE("the services of a cloud are near, unless there is no libcurl", "[core][remote]") {
  const bool has_libcurl = errno_of(check_url("https://host/x")) != ENOSYS;
  for (const char* url : {"http://169.254.169.254/latest", "http://127.0.0.1:1/x", "http://localhost"})
    CHECK(is_near(url) == has_libcurl);
  CHECK(is_loopback("http://[::1]/") == has_libcurl);
  CHECK(has_same_origin("http://h/a", "http://h:80/b") == has_libcurl);
  CHECK(redirected("http://h/a", "/b").has_value() == has_libcurl);
  CHECK_FALSE(is_near("http://host/169.254.169.254"));
  CHECK_FALSE(is_near("no address"));
}

TEST_CASE("without a home directory no file of the working directory is read", "[core][remote]") {
  const TemporaryDirectory directory;
  std::filesystem::create_directory(directory / ".aws");
  directory.write(".aws/config", "[default]\nregion = r1\n");
  const std::filesystem::path before = std::filesystem::current_path();
  std::filesystem::current_path(directory.path());
  for (const char* home : {"", ".", directory.path().c_str()}) {
    const Environment environment(std::map<std::string, std::string>{{"HOME", home}});
    CHECK(read_aws_settings().value().region == (*home == '/' ? "r1" : "us-east-1"));
  }
  std::filesystem::current_path(before);
}

TEST_CASE("credentials come from the first source that has some", "[core][remote]") {
  std::map<std::string, std::string> all = {
      {"aws_access_key_id", "A"},
      {"aws_secret_access_key", "S"},
      {"credential_process", R"(printf '{"Version": 1, "AccessKeyId": "P", "SecretAccessKey": "S"}')"},
      {"sso_session", "s"}};
  AwsSettings settings = with_profile(all);
  settings.keys = {"E", "S", ""};
  CHECK(found_with(settings) == "E AWS_ACCESS_KEY_ID");
  settings.keys = {};
  CHECK(found_with(settings) == "A profile p");
  settings.values.erase("aws_access_key_id");
  CHECK(found_with(settings) == "P profile p");
  settings.values.erase("credential_process");
  CHECK(found_with(settings) == std::to_string(EACCES));
  CHECK(contains(find_s3_credentials(settings).error().message, "aws configure export-credentials"));
  settings.values = {{"role_arn", "r"}, {"source_profile", "q"}};
  CHECK(contains(find_s3_credentials(settings).error().message, "role_arn is not read"));
  settings.values.clear();
  CHECK(found_with(settings) == " ");
  settings.keys = {"A B", "S", ""};
  CHECK(found_with(settings) == std::to_string(EINVAL));
}

TEST_CASE("a program that gives credentials is run without a shell, and its output is in no message",
          "[core][remote]") {
  using Words = std::vector<std::string>;
  CHECK(command_words("a 'b c' \"d \\\" $e\" f\\ g ''") == Words{"a", "b c", "d \" $e", "f g", ""});
  CHECK_FALSE(command_words("a 'b"));
  CHECK(command_words("  ")->empty());
  const std::chrono::seconds patience{60};
  CHECK(output_of({"printf", "%s", "$HOME;ls"}, patience).value() == "$HOME;ls");
  CHECK(errno_of(output_of({"/nonexistent/program"}, patience)) == ENOENT);
  const auto failed = output_of({"sh", "-c", "echo secret; exit 3"}, patience);
  CHECK(errno_of(failed) == EACCES);
  CHECK_FALSE(contains(failed.error().message, "secret"));
  CHECK(errno_of(output_of({"sleep", "600"}, std::chrono::milliseconds(1))) == ETIMEDOUT);
  CHECK(errno_of(output_of({"yes"}, patience)) == EFBIG);
  CHECK(errno_of(output_of({"sh", "-c", "exec >&-; exec sleep 600"}, std::chrono::milliseconds(300))) ==
        ETIMEDOUT);
  AwsSettings settings = with_profile({{"credential_process", "echo secret"}});
  const auto wrong = find_s3_credentials(settings);
  CHECK(errno_of(wrong) == EACCES);
  CHECK_FALSE(contains(wrong.error().message, "secret"));
  settings.is_own_config = false;
  CHECK(contains(find_s3_credentials(settings).error().message, "others may write the file"));
}

TEST_CASE("credentials in JSON may have an end", "[core][remote]") {
  const auto found = credentials_of_json(
      R"({"Version": 1, "AccessKeyId": "A", "SecretAccessKey": "S", "SessionToken": "T", "Expiration": "2013-05-24T00:00:00Z"})",
      "x");
  CHECK(found->keys == S3Keys{"A", "S", "T"});
  CHECK(found->expires == kSomeTime);
  CHECK(credentials_of_json(R"({"AccessKeyId": "A", "SecretAccessKey": "S", "Token": "T"})", "x")
            ->keys.session_token == "T");
  for (const char* json :
       {"", "[]", "{", R"({"AccessKeyId": "A"})", R"({"AccessKeyId": 1, "SecretAccessKey": ""})"})
    CHECK(errno_of(credentials_of_json(json, "x")) == EACCES);
  CHECK(parse_iso_time("2013-05-24T02:30:00.123+02:30") == kSomeTime);
  CHECK(parse_iso_time("2013-05-23T19:00:00-05:00") == kSomeTime);
  for (const char* text : {"", "2013", "2013-05-24T00:00:00 later"}) CHECK_FALSE(parse_iso_time(text));
}
