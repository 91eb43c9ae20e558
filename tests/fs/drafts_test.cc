// The files that are no tensors yet, and the forms of tensors that were removed.
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
