// core/remote/hub.h, http_answer.h, retries.h: names of the Hugging Face Hub, and pauses, without a server.
#include "core/remote/hub.h"

#include <chrono>
#include <memory>
#include <string>

#include "core/remote/digest.h"
#include "core/remote/http_answer.h"
#include "core/remote/hub_companions.h"
#include "core/remote/retries.h"
#include "tests/support/catch.h"
#include "tests/support/plain.h"
#include "tests/support/skip.h"

using namespace stfs;
using namespace stfs::test;
using std::chrono::milliseconds;
using std::chrono::seconds;

namespace {

/// "MODEL REVISION FILE", or the errno.
std::string parsed(const std::string& address) {
  const auto name = hub_name_of(address);
  if (!name) return std::to_string(name.error().errno_value);
  return *name ? (*name)->model + ' ' + (*name)->revision + ' ' + (*name)->file : "none";
}

HubModel model_with(std::initializer_list<const char*> files) {
  HubModel model{.model = "org/model",
                 .commit = std::string(40, 'a'),
                 .endpoint = "https://hub",
                 .root = "https://hub/org/model/resolve/c/",
                 .authorization = "Bearer x"};
  for (const char* file : files) model.files[file] = {std::string(64, 'd'), 9};
  return model;
}

std::string chosen(const HubModel& model, const std::string& file = "") {
  const auto found = choose_hub_file(model, {.model = model.model, .file = file});
  return found ? *found : std::to_string(found.error().errno_value);
}

}  // namespace

TEST_CASE("a name of the Hub has a model, a revision and a file", "[core][remote]") {
  CHECK(parsed("hf://org/model") == "org/model main ");
  CHECK(parsed("hf://org/model/") == "org/model main ");
  CHECK(parsed("hf://org/model@v1") == "org/model v1 ");
  CHECK(parsed("hf://org/model@v1/a/b.safetensors") == "org/model v1 a/b.safetensors");
  CHECK(parsed("hf://org/model/a@b.safetensors") == "org/model main a@b.safetensors");
  CHECK(parsed("hf://org/model@refs/pr/12") == "org/model refs/pr/12 ");
  CHECK(parsed("hf://org/model@refs/pr/12/x") == "org/model refs/pr/12 x");
  CHECK(parsed("hf://org/model@refs%2Fpr%2f12/x") == "org/model refs/pr/12 x");
  CHECK(parsed("hf://Org-1/mo.del_2/x%20y") == "Org-1/mo.del_2 main x%20y");
  for (const char* address : {"hf://", "hf://org", "hf://org/", "hf:///model", "hf://./model", "hf://org/..",
                              "hf://org/model@", "hf://org/model//x", "hf://org/model/../x",
                              "hf://org/model@../x", "hf://o rg/model", "hf://org/mo?del"})
    CHECK(parsed(address) == std::to_string(EINVAL));
}

TEST_CASE("an address of the Hub's pages is a name", "[core][remote]") {
  CHECK(parsed("https://huggingface.co/org/model/resolve/main/a.safetensors") ==
        "org/model main a.safetensors");
  CHECK(parsed("https://huggingface.co/org/model/blob/v1/d/a%20b.safetensors?x") ==
        "org/model v1 d/a b.safetensors");
  for (const char* address :
       {"https://huggingface.co/org/model", "https://huggingface.co/org/model/tree/main/a",
        "https://huggingface.co/org/model/resolve/main",
        "https://huggingface.co.evil/org/model/resolve/main/a",
        "http://huggingface.co/org/model/resolve/main/a", "https://host/org/model/resolve/main/a"})
    CHECK(parsed(address) == "none");
}

TEST_CASE("of the files of a model, the one is chosen that a library would load", "[core][remote]") {
  CHECK(chosen(model_with({"model.safetensors", "model.safetensors.index.json", "a.safetensors"})) ==
        "model.safetensors");
  CHECK(chosen(model_with({"model-1.safetensors", "model-2.safetensors", "model.safetensors.index.json"})) ==
        "model.safetensors.index.json");
  CHECK(chosen(model_with({"a.safetensors", "b.safetensors", "x.safetensors.index.json"})) ==
        "x.safetensors.index.json");
  CHECK(chosen(model_with({"a.safetensors", "d/model.safetensors"})) == "a.safetensors");
  CHECK(chosen(model_with({"a.safetensors", "d/model.safetensors"}), "d") == "d/model.safetensors");
  CHECK(chosen(model_with({"d/diffusion_pytorch_model.safetensors", "d/x.safetensors"}), "d") ==
        "d/diffusion_pytorch_model.safetensors");
  CHECK(chosen(model_with({"a.safetensors", "b.safetensors"}), "b.safetensors") == "b.safetensors");
  CHECK(chosen(model_with({"a.safetensors", "b.safetensors"})) == std::to_string(EINVAL));
  CHECK(chosen(model_with({"d/a.safetensors"})) == std::to_string(EINVAL));
  CHECK(chosen(model_with({"config.json"})) == std::to_string(ENOENT));
  CHECK(chosen(model_with({"a.safetensors"}), "b") == std::to_string(ENOENT));
  CHECK(chosen(model_with({"ab/a.safetensors"}), "a") == std::to_string(ENOENT));
}

TEST_CASE("the address of a file of the Hub is escaped, with its digest and its size", "[core][remote]") {
  const RemoteAddress address = model_with({"d/a b+c%é.safetensors"}).address_of("d/a b+c%é.safetensors");
  CHECK(address.url == "https://hub/org/model/resolve/c/d/a%20b%2Bc%25%C3%A9.safetensors");
  CHECK(address.authorization == "Bearer x");
  REQUIRE(address.listed);
  CHECK(address.listed->digest == std::string(64, 'd'));
  CHECK(address.listed->size_bytes == 9);
}

TEST_CASE("a server names the pause before the next request", "[core][remote]") {
  const auto pause_of = [](long status, const char* retry_after, const char* rate_limit) {
    HttpAnswer answer;
    answer.status = status;
    answer.retry_after = retry_after;
    answer.rate_limit = rate_limit;
    return asked_pause(answer);
  };
  CHECK(pause_of(503, "7", "") == seconds(7));
  CHECK(pause_of(429, "", "\"resolvers\";r=0;t=55") == seconds(56));
  CHECK(pause_of(429, "7", "\"resolvers\";r=0;t=55") == seconds(7));
  CHECK(pause_of(200, "", "\"resolvers\";r=9;t=55") == seconds(0));
  CHECK(pause_of(429, "", "\"resolvers\";r=0;t=5;w=9") == seconds(6));
  CHECK(pause_of(429, "", ";t=") == seconds(1));
  CHECK(pause_of(429, "soon", "") == seconds(0));
  CHECK(pause_of(429, "99999999999999999999", "") == seconds(0));
  CHECK(pause_of(503, "3601", "") == seconds(3600));
}

TEST_CASE("a request is sent again until its time is over", "[core][remote]") {
  const RetryRules rules{.patience = milliseconds(1000),
                         .patience_offline = milliseconds(500),
                         .first_pause = milliseconds(1),
                         .longest_pause = milliseconds(400)};
  const Retries::IsEnding goes_on = [] { return false; };
  const Error failure{ErrorCode::System, EIO, "why"};
  SECTION("the last failure is returned, with the time") {
    Retries retries(rules, goes_on);
    Result<void> last;
    while ((last = retries.wait(failure, milliseconds(0)))) continue;
    CHECK(last.error().message == "why, for 1 s");
  }
  SECTION("a pause that the server asks for is not cut short") {
    Retries retries(rules, goes_on);
    CHECK(errno_of(retries.wait(failure, seconds(2))) == EIO);
  }
  SECTION("without a network the time is shorter, and begins with the first such failure") {
    Retries retries(rules, goes_on);
    const Error offline{ErrorCode::System, ENETUNREACH, "no network"};
    REQUIRE(retries.wait(failure, milliseconds(0)));
    CHECK(retries.wait(offline, milliseconds(0)));
    const auto refused = retries.wait(offline, milliseconds(600));
    REQUIRE_FALSE(refused);
    CHECK(refused.error().message == "no network");
  }
  SECTION("a read that ends waits no longer") {
    const Retries::IsEnding ends = [] { return true; };
    Retries retries(rules, ends);
    CHECK(errno_of(retries.wait(failure, milliseconds(0))) == ECANCELED);
  }
}

TEST_CASE("files are compared with the digests that git and Git LFS give them", "[core][remote]") {
  const auto of = [](std::string_view text, std::string_view digest) {
    return check_digest(bytes_of(text), digest);
  };
  const std::string sha256 = "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824";
  const std::string git = "b6fc4c620b67d95f953a5c1c1230aaab5db5a1b0";
  if (errno_of(of("hello", sha256)) == ENOSYS) return note_skip("there is no libcrypto");
  CHECK(of("hello", sha256));
  CHECK(of("hello", git));
  CHECK(of("", "e69de29bb2d1d6434b8b29ae775ad8c2e48c5391"));
  CHECK(errno_of(of("hello!", sha256)) == ESTALE);
  CHECK(errno_of(of("hello!", git)) == ESTALE);
  auto pieces = Digest::begin(Digest::Kind::Sha256).value();
  pieces.update(bytes_of("hel"));
  pieces.update(bytes_of("lo"));
  CHECK(pieces.finish() == sha256);
}

TEST_CASE("the files beside a model have a limit together", "[core][remote]") {
  HubModel model = model_with({"model.safetensors"});
  model.is_offline = true;
  const auto add = [&](const std::string& name, std::uint64_t size_mib, std::size_t digits = 64) {
    model.files[name] = {std::string(digits, 'd'), size_mib << 20U};
  };
  for (const char* name : {"a.json", "b.json", "c.json", "d.json", "e.json", "f.json", "g.json"})
    add(name, 64);
  add("h.json", 50);
  add("i.json", 50);
  add("j.json", 14);
  add("k.json", 65);
  add("l.json", 17, 40);
  const auto companions = std::make_shared<HubCompanions>(std::make_shared<const HubModel>(model), "");
  // Offline, a file that the folder has is an error, and a file that is left out is not looked for.
  for (const char* name : {"a.json", "g.json", "h.json", "j.json"}) CHECK_FALSE(companions->fetch(name));
  for (const char* name : {"i.json", "k.json", "l.json", "model.safetensors"}) CHECK(companions->fetch(name));
}
