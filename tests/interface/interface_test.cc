// Runs the C program of c_program.h on archives that are built here.
#include <cstdint>
#include <cstring>
#include <string>

#include "tests/interface/c_program.h"
#include "tests/support/archive_bytes.h"
#include "tests/support/catch.h"
#include "tests/support/planted_journal.h"
#include "tests/support/temporary_directory.h"
#include "tests/support/text_archive.h"

using namespace stfs;

namespace {

constexpr std::uint64_t kBigBytes = 256 * 256 * 4;

/// The archive that c_program.h describes. "big" begins at a page.
struct Archive {
  Archive() {
    const std::string end = std::to_string(16 + kBigBytes);
    std::string text = R"({"__metadata__":{"a":"b"},"m":{"dtype":"U8","shape":[3,4],"data_offsets":[0,12]},)"
                       R"("four":{"dtype":"F4","shape":[2,4],"data_offsets":[12,16]},)"
                       R"("big":{"dtype":"F32","shape":[256,256],"data_offsets":[16,)" +
                       end + R"(]},"empty":{"dtype":"I64","shape":[0,2],"data_offsets":[)" + end + "," + end +
                       "]}}";
    text.resize(4096 - 8 - 16, ' ');  // for the header's length and the bytes before "big"
    std::string data;
    for (int row = 0; row < 3; ++row) {
      for (int column = 0; column < 4; ++column) data += static_cast<char>(10 * row + column);
    }
    data += "\x10\x32\x54\x76";
    for (int at = 0; at < 256 * 256; ++at) {
      const auto value = static_cast<float>(at);
      char bytes[sizeof value];
      std::memcpy(bytes, &value, sizeof value);
      data.append(bytes, sizeof bytes);
    }
    path = directory.write("model.safetensors", test::archive_bytes(text, data));
  }

  test::TemporaryDirectory directory;
  std::string path;
};

void expect_success(const char* (*program)(const char* path)) {
  const Archive archive;
  const char* wrong = program(archive.path.c_str());
  INFO((wrong == nullptr ? "nothing is wrong" : wrong));
  CHECK(wrong == nullptr);
}

}  // namespace

TEST_CASE("interface describes a model", "[interface]") {
  expect_success(describes_a_model);
}

TEST_CASE("interface points into the map", "[interface]") {
  expect_success(points_into_the_map);
}

TEST_CASE("interface slices by strides, and slices slices", "[interface]") {
  expect_success(reads_slices);
}

TEST_CASE("interface keeps a tensor's data when its model is closed and its file is gone", "[interface]") {
  expect_success(keeps_a_tensor_when_its_model_is_closed);
}

TEST_CASE("interface keeps what is written to a tensor from the archive", "[interface]") {
  const auto program = GENERATE(keeps_what_is_written_to_itself, forgives_writes);
  const Archive archive;
  const std::string before = test::content_of(archive.path);
  const char* wrong = program(archive.path.c_str());
  INFO((wrong == nullptr ? "nothing is wrong" : wrong));
  CHECK(wrong == nullptr);
  CHECK(test::content_of(archive.path) == before);
}

TEST_CASE("interface reads where no map is wanted", "[interface]") {
  expect_success(reads_where_no_map_is_wanted);
}

TEST_CASE("interface serves many threads", "[interface]") {
  expect_success(works_on_many_threads);
}

TEST_CASE("interface tells errors", "[interface]") {
  expect_success(tells_errors);
}

TEST_CASE("interface notices a changed index", "[interface]") {
  const test::TemporaryDirectory directory;
  directory.write("1.safetensors", test::archive_of({{"a", "ab"}}));
  const std::string index =
      directory.write("model.safetensors.index.json", R"({"weight_map":{"a":"1.safetensors"}})");
  const char* wrong = notices_a_changed_index(index.c_str());
  INFO((wrong == nullptr ? "nothing is wrong" : wrong));
  CHECK(wrong == nullptr);
}

TEST_CASE("interface knows older and newer structures", "[interface]") {
  expect_success(knows_older_and_newer_structures);
}

TEST_CASE("interface gives EIO for what an archive has lost", "[interface]") {
  expect_success(survives_a_cut);
}

TEST_CASE("interface uploads to the CPU", "[interface]") {
  expect_success(uploads_to_the_cpu);
}

TEST_CASE("interface tells what is wrong with an upload", "[interface]") {
  expect_success(tells_what_is_wrong_with_an_upload);
}

TEST_CASE("interface lists devices", "[interface]") {
  expect_success(lists_devices);
}

TEST_CASE("interface edits a model", "[interface]") {
  expect_success(edits_a_model);
}

TEST_CASE("interface keeps tensors that were taken before an edit", "[interface]") {
  expect_success(keeps_tensors_of_before_an_edit);
}

TEST_CASE("interface opens a model that has not changed only once", "[interface]") {
  expect_success(opens_an_unchanged_model_once);
}

TEST_CASE("interface tells what is wrong with an edit, and changes nothing", "[interface]") {
  const Archive archive;
  const std::string before = test::content_of(archive.path);
  const char* wrong = tells_what_is_wrong_with_an_edit(archive.path.c_str());
  INFO((wrong == nullptr ? "nothing is wrong" : wrong));
  CHECK(wrong == nullptr);
  CHECK(test::content_of(archive.path) == before);
}

TEST_CASE("interface writes new archives, whole or not at all", "[interface]") {
  expect_success(writes_new_archives);
}

TEST_CASE("interface tells what is wrong with a new archive", "[interface]") {
  expect_success(tells_what_is_wrong_with_a_new_archive);
}

TEST_CASE("interface compares models", "[interface]") {
  expect_success(compares_models);
}

TEST_CASE("interface publishes and pulls weights", "[interface]") {
  expect_success(publishes_and_pulls);
}

TEST_CASE("interface reads what a journal holds for the archive", "[interface]") {
  const Archive archive;
  test::plant_journal(archive.path, 4096, std::string(4096, 'J'));
  const char* wrong = reads_out_of_a_journal(archive.path.c_str());
  INFO((wrong == nullptr ? "nothing is wrong" : wrong));
  CHECK(wrong == nullptr);
}
