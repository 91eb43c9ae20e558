// Models for the tests of stfs diff and of deltas.
#pragma once

#include <cstring>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/support/archive_bytes.h"
#include "tests/support/catch.h"
#include "tests/support/temporary_directory.h"
#include "tests/support/tool_run.h"

namespace stfs::test {

struct DiffTensor {
  std::string name;
  std::string dtype;
  std::string shape;
  std::string bytes;
};

inline std::string diff_archive(const std::vector<DiffTensor>& tensors, const std::string& metadata = "") {
  std::string header = "{";
  std::string data;
  if (!metadata.empty()) header += "\"__metadata__\":" + metadata + ",";
  for (const DiffTensor& tensor : tensors) {
    header += "\"" + tensor.name + R"(":{"dtype":")" + tensor.dtype + R"(","shape":)" + tensor.shape +
              R"(,"data_offsets":[)" + std::to_string(data.size()) + "," +
              std::to_string(data.size() + tensor.bytes.size()) + "]},";
    data += tensor.bytes;
  }
  header.back() = '}';
  return archive_bytes(header, data);
}

inline std::string floats_of(const std::vector<float>& values) {
  std::string bytes(values.size() * sizeof(float), '\0');
  std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

/// Two models that differ in every way.
struct DiffModels {
  TemporaryDirectory directory;
  std::string a =
      directory.write("a.safetensors", diff_archive({{"w", "F32", "[2,2]", floats_of({1, 2, 0, 4})},
                                                     {"same", "BF16", "[2]", "abcd"},
                                                     {"retyped", "F16", "[2]", "abcd"},
                                                     {"reshaped", "U8", "[2,2]", "abcd"},
                                                     {"both", "U8", "[2]", "ab"},
                                                     {"old", "I64", "[]", "12345678"}},
                                                    R"({"format":"pt","step":"12","same":"x"})"));
  std::string b = directory.write(
      "b.safetensors",
      diff_archive(
          {{"new", "F32", "[1]", "1234"},
           {"both", "I8", "[1,2]", "ab"},
           {"reshaped", "U8", "[4]", "abcd"},
           {"retyped", "BF16", "[2]", "abcd"},
           {"same", "BF16", "[2]", "abcd"},
           {"w", "F32", "[2,2]", floats_of({1, 4, 0, 4})}},
          R"({"same":"x","format":"np","note":"a long note that does not fit into the table of the verb"})"));
};

inline nlohmann::json diff_json(const tools::Arguments& arguments, int code) {
  tools::Arguments all = {"--json"};
  all.insert(all.end(), arguments.begin(), arguments.end());
  const auto run = run_verb(tools::diff, all);
  CHECK(run.code == code);
  return nlohmann::json::parse(run.out);
}

}  // namespace stfs::test
