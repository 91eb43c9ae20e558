// Files that are no tensors yet, and the forms of removed tensors.
#include "fs/write/drafts.h"

#include "tests/support/catch.h"

using namespace stfs;

TEST_CASE("the forms of the tensors that were removed last are kept, and no more", "[fs][drafts]") {
  Drafts drafts;
  const auto name = [](std::size_t number) { return "tensor " + std::to_string(number); };
  const auto note = [&](std::size_t number, Dtype dtype) {
    drafts.note_vacated(name(number), {.dtype = dtype, .shape = {number}});
  };
  for (std::size_t number = 0; number < Drafts::kMostVacated; ++number) note(number, Dtype::F32);
  CHECK(drafts.vacated(name(1))->shape == std::vector<std::uint64_t>{1});
  note(0, Dtype::I8);  // it was removed again: it is the newest
  note(Drafts::kMostVacated, Dtype::F32);
  CHECK(drafts.vacated(name(0))->dtype == Dtype::I8);
  CHECK_FALSE(drafts.vacated(name(1)));
  CHECK(drafts.vacated(name(2)));
  CHECK(drafts.vacated(name(Drafts::kMostVacated)));
  for (int more = 0; more < 3; ++more) note(2, Dtype::F32);
  CHECK(drafts.vacated(name(3)));
}

TEST_CASE("no form is kept of many dimensions or under a long name", "[fs][drafts]") {
  Drafts drafts;
  const std::string longest(1024, 'n');
  drafts.note_vacated("as many", {.dtype = Dtype::U8, .shape = std::vector<std::uint64_t>(64, 1)});
  drafts.note_vacated("one more", {.dtype = Dtype::U8, .shape = std::vector<std::uint64_t>(65, 1)});
  drafts.note_vacated(longest, {.dtype = Dtype::U8, .shape = {}});
  drafts.note_vacated(longest + "n", {.dtype = Dtype::U8, .shape = {}});
  CHECK(drafts.vacated("as many"));
  CHECK_FALSE(drafts.vacated("one more"));
  CHECK(drafts.vacated(longest));
  CHECK_FALSE(drafts.vacated(longest + "n"));
}

TEST_CASE("a page of a directory's drafts begins at a number, and has no more than it asks for",
          "[fs][drafts]") {
  Drafts drafts;
  for (Ino ino = 10; ino < 20; ++ino)
    REQUIRE(drafts.add({.ino = ino, .directory = 1 + ino % 2, .file_name = std::to_string(ino)}));
  const auto numbers = [&](Ino first, std::size_t most) {
    std::vector<Ino> found;
    for (const auto& draft : drafts.in(1, first, most)) found.push_back(draft.ino);
    return found;
  };
  CHECK(numbers(0, 100) == std::vector<Ino>{10, 12, 14, 16, 18});
  CHECK(numbers(12, 2) == std::vector<Ino>{12, 14});
  CHECK(numbers(13, 1) == std::vector<Ino>{14});
  CHECK(numbers(19, 100).empty());
  CHECK(numbers(0, 0).empty());
  drafts.unlink(14);  // it has no name any more
  drafts.remove(10);
  CHECK(numbers(0, 100) == std::vector<Ino>{12, 16, 18});
}
