#include "fs/write/staged_bytes.h"

#include <random>

#include "core/model/model.h"
#include "tests/fs/driven_filesystem.h"
#include "tests/support/catch.h"
#include "tests/support/open_descriptors.h"
#include "tests/support/plain.h"

using namespace stfs;
using namespace stfs::test;

namespace {

struct Staged {
  DrivenFilesystem mount;
  std::unique_ptr<Model> model = Model::open(mount.path(), {.access = Access::ReadWrite}).value();
  std::shared_ptr<StagingFile> file = std::make_shared<StagingFile>(model->archive(0));
};

std::string all_of(const StagedBytes& bytes) {
  std::string text(static_cast<std::size_t>(bytes.size_bytes()), '?');
  REQUIRE(bytes.read(std::as_writable_bytes(std::span(text)), 0));
  return text;
}

}  // namespace

TEST_CASE_METHOD(Staged, "staged bytes of several tensors in one file are as each was written",
                 "[fs][staged_bytes]") {
  constexpr std::uint64_t kMost = 300'000;
  std::mt19937 random(7);
  const auto below = [&](std::uint64_t bound) { return random() % bound; };
  std::vector<std::unique_ptr<StagedBytes>> all;
  std::vector<std::string> due(3);
  for (std::size_t at = 0; at < due.size(); ++at) all.push_back(std::make_unique<StagedBytes>(file));
  for (int step = 0; step < 600; ++step) {
    const std::size_t at = below(all.size());
    std::string& text = due[at];
    if (below(4) == 0) {
      text.resize(below(2) == 0 ? below(kMost) : below(text.size() + 1), '\0');
      all[at]->resize(text.size());
    } else {
      const std::string piece(1 + below(40'000), static_cast<char>('a' + below(26)));
      const std::uint64_t offset = below(kMost);
      if (text.size() < offset + piece.size()) text.resize(offset + piece.size(), '\0');
      text.replace(offset, piece.size(), piece);
      REQUIRE(all[at]->write(bytes_of(piece), offset));
    }
    REQUIRE(all[at]->size_bytes() == text.size());
    if (step % 10 == 0) REQUIRE(all_of(*all[at]) == text);
  }
  for (std::size_t at = 0; at < due.size(); ++at) CHECK(all_of(*all[at]) == due[at]);
  StagedBytes copy(file);
  REQUIRE(all[0]->copy_to(copy, 0));
  CHECK(all_of(copy) == due[0]);
}

TEST_CASE_METHOD(Staged, "staged bytes end at the largest file, and zeros take no space",
                 "[fs][staged_bytes]") {
  StagedBytes bytes(file);
  CHECK(errno_of(bytes.write(bytes_of("x"), kMostFileBytes)) == EFBIG);
  CHECK(errno_of(bytes.write(bytes_of("x"), UINT64_MAX)) == EFBIG);
  bytes.resize(kMostFileBytes);
  std::string end(8, '?');
  CHECK(bytes.read(std::as_writable_bytes(std::span(end)), kMostFileBytes - 8));
  CHECK(end == std::string(8, '\0'));
}

TEST_CASE_METHOD(Staged, "many staged tensors need one descriptor", "[fs][staged_bytes]") {
  const std::size_t before = open_descriptors();
  std::vector<std::unique_ptr<StagedBytes>> all;
  for (int at = 0; at < 5000; ++at) {
    all.push_back(std::make_unique<StagedBytes>(file));
    REQUIRE(all.back()->write(bytes_of("bytes"), 0));
  }
  CHECK(open_descriptors() == before + 1);
}
