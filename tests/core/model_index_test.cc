// core/model/model_index.h
#include "core/model/model_index.h"

#include <ctime>
#include <string>
#include <vector>

#include "support/catch.h"

using namespace stfs;

namespace {

ModelIndex parsed(std::string_view json) {
  auto index = parse_model_index(json);
  INFO("index: " << json.substr(0, 300));
  if (!index) FAIL(index.error().message);
  return std::move(*index);
}

Error error_of_index(std::string_view json) {
  const auto index = parse_model_index(json);
  INFO("index: " << json.substr(0, 300));
  REQUIRE(!index);
  CHECK(index.error().errno_value == EINVAL);
  CHECK(index.error().message.size() < 500);
  return index.error();
}

std::string index_failure(std::string_view json) {
  return error_of_index(json).message;
}

std::string weight_map(const std::string& entries) {
  return R"({"weight_map":{)" + entries + "}}";
}

/// Returns the part of the message that describes this shard, without its begin. `shard` is written as in a
/// JSON string.
std::string shard_failure(const std::string& shard) {
  const std::string message = index_failure(weight_map("\"a\":\"" + shard + "\""));
  const std::string due = "byte 19: the name of this shard ";
  REQUIRE(message.substr(0, due.size()) == due);
  return message.substr(due.size());
}

std::string total_size(const std::string& value) {
  return R"({"metadata":{"total_size":)" + value + R"(},"weight_map":{}})";
}

}  // namespace

TEST_CASE("a model index says which shard holds which tensor", "[core][model_index]") {
  const ModelIndex index = parsed(R"({
    "metadata": {"total_size": 1234567890123, "total_parameters": 17, "more": {"x": [1, "}"]}},
    "weight_map": {
      "b.weight": "model-00002-of-00002.safetensors",
      "a.weight": "model-00001-of-00002.safetensors",
      "a.bias": "model-00002-of-00002.safetensors"
    }
  })");
  REQUIRE(index.size() == 3);
  CHECK(index.shards() ==
        std::vector<std::string>{"model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"});
  CHECK(index[0].tensor == "a.bias");
  CHECK(index[0].shard == 1);
  CHECK(index[1].tensor == "a.weight");
  CHECK(index[1].shard == 0);
  CHECK(index[2].tensor == "b.weight");
  CHECK(index.find("b.weight") == 1U);
  CHECK(index.find("a.weight") == 0U);
  for (const char* missing : {"", "a", "a.weigh", "a.weights", "z"}) CHECK(!index.find(missing));
}

TEST_CASE("an index may be empty, and its keys may come in any order", "[core][model_index]") {
  const ModelIndex index = parsed(R"( { "weight_map" : { } } )");
  CHECK(index.size() == 0);
  CHECK(index.shards().empty());
  CHECK(!index.find(""));
  CHECK(parsed(R"({"weight_map":{"a":"s.safetensors"},"metadata":{"total_size":5}})").size() == 1);
}

TEST_CASE("keys that nobody knows are let through, twice too", "[core][model_index]") {
  const ModelIndex index = parsed(R"({"x":[{"weight_map":1},[],"]\"}",-1.5e3,null,true],"x":{},"y":"\\",
      "weight_map":{"a":"s.safetensors"},"metadata":{"weight_map":{"b":7},"format":"pt","format":{}}, "z" : 0 })");
  CHECK(index.size() == 1);
  CHECK(index.find("a") == 0U);
}

TEST_CASE("null stands for what is missing", "[core][model_index]") {
  CHECK(parsed(R"({"metadata":null,"weight_map":{}})").size() == 0);
  CHECK(parsed(total_size("null")).size() == 0);
}

TEST_CASE("total_size may be anything: nothing reads it", "[core][model_index]") {
  // transformers writes a float if a tensor is boolean.
  for (const char* number : {"0", "18446744073709551615", "13476839424.0", "1e3", "13476839424.5", "-1",
                             "1e400", "-0.5", "\"5\"", "[5]", "true", "{}"}) {
    CAPTURE(number);
    CHECK(parsed(total_size(number)).size() == 0);
  }
}

TEST_CASE("names of tensors are any text", "[core][model_index]") {
  const ModelIndex index = parsed(weight_map(
      R"("":"s.safetensors","../x":"s.safetensors","\u0000\"\\\n":"s.safetensors","\ud83d\ude00é":"s.safetensors")"));
  REQUIRE(index.size() == 4);
  CHECK(index[0].tensor.empty());
  CHECK(index.find(std::string_view("\0\"\\\n", 4)) == 0U);
  CHECK(index.find("../x") == 0U);
  CHECK(index.find("\xf0\x9f\x98\x80\xc3\xa9") == 0U);
  CHECK(parsed(weight_map(R"("a":"\u0073.safetensors","b":"s.safetensors")")).shards() ==
        std::vector<std::string>{"s.safetensors"});
}

TEST_CASE("a shard is a file in the index's own directory", "[core][model_index]") {
  const std::string way_out = "leads out of the directory of the index";
  for (const char* shard : {"../s.safetensors", "/s.safetensors", "/etc/passwd", "x/../s.safetensors", "/",
                            "..//../s.safetensors", "x/.."}) {
    CHECK(shard_failure(shard) == way_out);
  }
  CHECK(shard_failure("./../s.safetensors") == way_out);
  for (const char* shard : {"x/s.safetensors", "x/./s.safetensors", "..x/s.safetensors"}) {
    CHECK(shard_failure(shard) == "lies in a sub-folder: all shards must lie beside the index");
  }
  CHECK(shard_failure("\\u002e\\u002e\\u002fs.safetensors") == way_out);
  CHECK(shard_failure("\\/s.safetensors") == way_out);
  CHECK(shard_failure("s\\u0000.safetensors") == "holds a control character");
  CHECK(shard_failure("\\u001b]0;.safetensors") == "holds a control character");
  CHECK(shard_failure("\\ns\x7f.safetensors").ends_with("holds a control character"));
  for (const char* shard : {"", ".", "..", "s", "s.bin", "s.safetensors ", "s.SAFETENSORS", "safetensors",
                            "s.safetensors.index.json"}) {
    CHECK(shard_failure(shard) == "does not end in .safetensors");
  }
  const std::string longest = std::string(243, 's') + ".safetensors";
  CHECK(parsed(weight_map("\"a\":\"" + longest + "\"")).shards() == std::vector{longest});
  CHECK(shard_failure("s" + longest).ends_with("is longer than a file name can be"));
  // The names of later shards are also checked.
  CHECK(index_failure(weight_map(R"("a":"s.safetensors","b":"s.safetensors","c":"../s.safetensors")"))
            .starts_with("byte 59: "));
  CHECK(parsed(weight_map(R"("a":"..s.safetensors","b":" .safetensors","c":"s\\t.safetensors")")).size() ==
        3);
}

TEST_CASE("what is given twice is refused with both places", "[core][model_index]") {
  const Error twins =
      error_of_index(weight_map(R"("b":"s.safetensors","a":"s.safetensors","b":"t.safetensors")"));
  CHECK(twins.code == ErrorCode::DuplicateKey);
  CHECK(twins.message == "byte 55: this tensor is given twice, first at byte 15");
  std::string many;
  for (int i = 0; i < 1000; ++i) many += R"("b":"s.safetensors",)";
  CHECK(index_failure(weight_map(many + R"("a":"s.safetensors")")) ==
        "byte 35: this tensor is given twice, first at byte 15");
  CHECK(index_failure(weight_map(R"("a":"s.safetensors","\u0061":"s.safetensors")")) ==
        "byte 35: this tensor is given twice, first at byte 15");
  CHECK(error_of_index(R"({"weight_map":{},"weight_map":{}})").code == ErrorCode::DuplicateKey);
  CHECK(index_failure(R"({"weight_map":{},"weight_map":{}})") == "byte 17: weight_map is given twice");
  CHECK(index_failure(R"({"metadata":{},"metadata":null,"weight_map":{}})") ==
        "byte 15: metadata is given twice");
  CHECK(index_failure(R"({"metadata":{"total_size":1,"total_size":1},"weight_map":{}})") ==
        "byte 28: metadata.total_size is given twice");
}

TEST_CASE("./ before the name of a shard is ignored", "[core][model_index]") {
  const ModelIndex index =
      parsed(weight_map(R"("a":"./s.safetensors","b":"s.safetensors","c":"././t.safetensors")"));
  CHECK(index.shards() == std::vector<std::string>{"s.safetensors", "t.safetensors"});
  CHECK(index.find("a") == index.find("b"));
}

TEST_CASE("values of the wrong type are refused with their place", "[core][model_index]") {
  for (const char* root : {"[]", "null", "7", "\"weight_map\"", "true"}) {
    CHECK(index_failure(root) == "byte 0: the index is not a JSON object");
  }
  CHECK(index_failure(" {}") == "byte 0: the index has no weight_map");
  CHECK(index_failure(R"({"metadata":{"weight_map":{}}})") == "byte 0: the index has no weight_map");
  CHECK(index_failure(R"({"weight_map":[]})") == "byte 14: weight_map is not an object of file names");
  CHECK(index_failure(R"({"weight_map":null})") == "byte 14: weight_map is not an object of file names");
  CHECK(index_failure(R"({"metadata":[],"weight_map":{}})") == "byte 12: metadata is not an object");
  for (const char* value : {"1", "null", "{}", "[\"s.safetensors\"]", "false"}) {
    CHECK(index_failure(weight_map("\"a\": " + std::string(value))) ==
          "byte 20: the shard of this tensor is not a string");
  }
}

TEST_CASE("what is not JSON is refused with its place", "[core][model_index]") {
  CHECK(index_failure("") == "byte 0: not JSON: the text ends, expected a value");
  CHECK(index_failure(R"({"weight_map":{}} x)").starts_with("byte 18: not JSON: more text after the end"));
  CHECK(index_failure(std::string(R"({"weight_map":{}})") + '\0').starts_with("byte 17: not JSON"));
  CHECK(index_failure(R"({"weight_map":{"a":"s.safetensors",}})").starts_with("byte 35: not JSON"));
  CHECK(index_failure("{\"weight_map\":{\"\xff\":\"s.safetensors\"}}") == "byte 16: not UTF-8");
  CHECK(index_failure("\xEF\xBB\xBF{\"weight_map\":{}}").starts_with("byte 0: not JSON"));
  CHECK(index_failure(R"({"weight_map":{"\ud800":"s.safetensors"}})").starts_with("byte 16: not JSON"));
}

TEST_CASE("deep nesting, long strings and very many shards are survived", "[core][model_index]") {
  for (const std::size_t levels : {200U, 1'000'000U}) {
    const std::string deep = std::string(levels, '[') + std::string(levels, ']');
    CHECK(index_failure("{\"x\":" + deep + ",\"weight_map\":{}}").find("nested too deeply") !=
          std::string::npos);
  }
  const std::string unclosed = "{\"weight_map\":" + std::string(1'000'000, '{');
  CHECK(index_failure(unclosed).starts_with("byte 15: not JSON"));
  const std::string huge(10'000'000, 'x');
  CHECK(shard_failure(huge + ".safetensors").find("is longer than") != std::string::npos);
  CHECK(shard_failure(huge).find("does not end") != std::string::npos);
  CHECK(parsed(weight_map("\"" + huge + "\":\"s.safetensors\"")).find(huge) == 0U);
  CHECK(parsed("{\"" + huge + "\":\"" + huge + "\",\"weight_map\":{}}").size() == 0);
  CHECK(index_failure("{\"" + huge).starts_with("byte 1: not JSON"));
  std::string backslashes;
  for (int i = 0; i < 1'000'000; ++i) backslashes += "\\\\";
  CHECK(parsed(weight_map("\"" + backslashes + "\":\"s.safetensors\""))[0].tensor.size() == 1'000'000);
  CHECK(parsed(std::string(10'000'000, ' ') + weight_map("")).size() == 0);
  std::string shards;
  for (std::uint32_t i = 0; i <= kMaxShards; ++i) {
    shards += (i == 0 ? "\"" : ",\"") + std::to_string(i) + "\":\"" + std::to_string(i) + ".safetensors\"";
  }
  CHECK(index_failure(weight_map(shards)).ends_with("the name of this shard exceeds the limit of shards"));
  CHECK(index_failure(std::string(kMaxModelIndexBytes + 1, ' ')) ==
        "byte 0: an index of 268435457 bytes, at most 268435456 are allowed");
}

TEST_CASE("indexing ten times as many tensors takes about ten times as long", "[core][model_index]") {
  const auto model_of = [](int tensors) {
    std::string entries;
    for (int i = 0; i < tensors; ++i) {
      entries += (i == 0 ? "\"" : ",\"") + std::string("model.layers.") + std::to_string(i) +
                 ".weight\":\"a" + std::to_string(i % 163) + ".safetensors\"";
    }
    return weight_map(entries);
  };
  // The times are processor times, and are compared with each other: a sanitizer or a busy machine slows down
  // both.
  const auto seconds = [](const std::string& json) {
    const std::clock_t start = std::clock();
    parsed(json);
    return static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
  };
  const std::string small = model_of(9'000);
  const std::string large = model_of(90'000);
  const double of_small = seconds(small);
  CHECK(seconds(large) < 40 * of_small);  // 100 times as long were it quadratic
}

TEST_CASE("92,000 tensors in 163 shards are indexed", "[core][model_index]") {
  std::string entries;
  const auto name = [](int i) {
    return "model.layers." + std::to_string(i / 1500) + ".mlp.experts." + std::to_string(i % 1500 / 6) +
           ".down_proj." + std::to_string(i % 6) + ".weight_scale_inv";
  };
  const auto shard = [](int i) { return "model-" + std::to_string(10000 + i) + "-of-00163.safetensors"; };
  for (int i = 0; i < 92'000; ++i) {
    entries += (i == 0 ? "\"" : ",\n    \"") + name(i) + "\": \"" + shard(i % 163) + "\"";
  }
  const ModelIndex index = parsed(weight_map(entries));
  CHECK(index.size() == 92'000);
  CHECK(index.shards().size() == 163);
  for (int i = 0; i < 92'000; ++i) {
    const auto found = index.find(name(i));
    REQUIRE(found);
    REQUIRE(index.shards()[*found] == shard(i % 163));
  }
}
