// One user can't fill a mount's memory for all users: each user has a limit, and other users have theirs.
#include "fs/base/user_counts.h"

#include <memory>
#include <string>
#include <vector>

#include "fs/base/requester.h"
#include "tests/fs/transacted.h"
#include "tests/support/catch.h"
#include "tests/support/few_descriptors.h"

using namespace stfs;
using namespace stfs::test;

namespace {

constexpr uid_t kHoarder = 1000;
constexpr uid_t kNeighbour = 1001;

MountedModelOptions few() {
  MountedModelOptions options;
  options.user_limits = {.transactions = 3,
                         .staged = 4,
                         .metadata_bytes = 1000,
                         .scratch_files = 3,
                         .drafts = 3,
                         .draft_bytes = 1000,
                         .slices = 3,
                         .texts = 3};
  return options;
}

/// A mount in which each user may have three of each.
struct Limited {
  int begin_as(uid_t user, const std::string& name) const {
    return errno_of(t.mount->make_directory(kTransactions, name, {.uid = user, .gid = user}));
  }
  int look_up_as(uid_t user, Ino directory, const std::string& name) const {
    const Requester requester(user, 1);
    return errno_of(t.mount->lookup(directory, name));
  }
  int make_as(uid_t user, Ino directory, const std::string& name) const {
    const Requester requester(user, 1);
    auto made = t.mount->create(directory, name, O_WRONLY, 0666, ::getpid());
    if (!made) return made.error().errno_value;
    REQUIRE(t.mount->flush(*made->file, 1, ::getpid()));
    t.mount->release(made->file);
    return 0;
  }
  int set(Ino file, const std::string& key, const std::string& value) const {
    return errno_of(t.mount->set_extended_attribute(file, "user.safetensors." + key, value));
  }

  Transacted t{few()};
};

constexpr std::size_t kMostDescriptors = 100;  // of a user, where a process may open 400

/// Writers that stay open. Each has bytes that are not committed.
struct Writing {
  int write_as(uid_t user, Ino directory, const std::string& name) {
    const Requester requester(user, 1);
    auto writer = std::make_unique<Member>(t.mount, directory, name);
    const int told = writer->write("x", 0);
    if (told == 0) open.push_back(std::move(writer));
    return told;
  }
  void fill(uid_t user) {
    while (open.size() < kMostDescriptors) REQUIRE(write_as(user, kRootIno, "first") == 0);
  }
  Ino make_as(uid_t user, const std::string& name) const {
    const Requester requester(user, 1);
    const auto made = t.mount->create(kRootIno, name, O_WRONLY, 0666, ::getpid());
    REQUIRE(made);
    t.mount->release(made->file);
    return made->status.st_ino;
  }

  const FewDescriptors few{4 * kMostDescriptors};
  Transacted t;
  std::vector<std::unique_ptr<Member>> open;
};

}  // namespace

TEST_CASE("shares of users are counted until their last copy goes", "[fs][user_counts]") {
  auto counts = std::make_unique<UserCounts>("things", 2);
  auto first = counts->take(kHoarder);
  auto second = counts->take(kHoarder);
  REQUIRE(second);
  const auto third = counts->take(kHoarder);
  REQUIRE_FALSE(third);
  CHECK(third.error().errno_value == EDQUOT);
  CHECK(third.error().message ==
        "user 1000 has 2 things, and one user may have no more: close or remove some");
  CHECK(counts->take(kNeighbour));
  CHECK(counts->count(kNeighbour) == 0);
  auto copy = *second;
  second = tl::unexpected(third.error());
  CHECK(counts->count(kHoarder) == 2);
  copy.reset();
  CHECK(counts->count(kHoarder) == 1);
  CHECK(counts->take(kHoarder));
  counts.reset();
  *first = nullptr;  // ends after the counts
}

TEST_CASE("all models of a mount count the same kind of objects together", "[fs][user_counts]") {
  UserCounts one("files", 2);
  UserCounts other("files", 2);
  UserCounts things("things", 2);
  const auto first = one.take(kHoarder);
  const auto second = other.take(kHoarder);
  CHECK(second);
  CHECK_FALSE(one.take(kHoarder));
  CHECK_FALSE(other.take(kHoarder));
  CHECK(things.take(kHoarder));
  CHECK(other.take(kNeighbour));
}

TEST_CASE("a share of nothing may end last", "[fs][user_counts]") {
  UserCounts counts("pieces", 2);
  auto nothing = counts.take_within(2, kHoarder, 0);
  auto one = counts.take(kHoarder);
  REQUIRE(nothing);
  REQUIRE(one);
  one->reset();
  CHECK(counts.count(kHoarder) == 0);
  nothing->reset();
  CHECK(counts.take(kHoarder));
}

TEST_CASE("a thread without a request works for this process's user", "[fs][user_counts]") {
  CHECK(requesting_user() == ::geteuid());
  const Requester kernel(std::nullopt, 0);
  CHECK(requesting_user() == ::geteuid());
  const Requester user(kHoarder, 1);
  CHECK(requesting_user() == kHoarder);
}

TEST_CASE_METHOD(Limited, "open transactions are limited per user",
                 "[fs][user_counts][transaction_directory]") {
  for (const char* name : {"a", "b", "c"}) CHECK(begin_as(kHoarder, name) == 0);
  CHECK(begin_as(kHoarder, "d") == EDQUOT);
  CHECK(begin_as(kNeighbour, "d") == 0);
  CHECK(t.commit("a") == 0);
  CHECK(begin_as(kHoarder, "e") == 0);
  CHECK(begin_as(kHoarder, "f") == EDQUOT);
  REQUIRE(t.mount->remove_directory(kTransactions, "b"));
  CHECK(begin_as(kHoarder, "f") == 0);
}

TEST_CASE_METHOD(Limited, "what is staged is limited per user, over all transactions",
                 "[fs][user_counts][transaction_directory]") {
  REQUIRE(begin_as(kHoarder, "a") == 0);
  REQUIRE(begin_as(kHoarder, "b") == 0);
  REQUIRE(begin_as(kNeighbour, "c") == 0);
  const Ino a = t.mount.ino("a", kTransactions);
  const Ino b = t.mount.ino("b", kTransactions);
  const Ino c = t.mount.ino("c", kTransactions);
  CHECK(t.stage(a, "first") == 0);
  CHECK(set(a, "metadata.one", "1") == 0);
  CHECK(make_as(kHoarder, b, "new") == 0);
  CHECK(t.mount->remove_file(b, "second"));
  // The limit is reached for every kind of change.
  CHECK(set(a, "metadata.two", "2") == EDQUOT);
  CHECK(make_as(kHoarder, a, "other") == EDQUOT);
  CHECK(errno_of(t.mount->remove_file(a, "second")) == EDQUOT);
  CHECK(errno_of(t.mount->rename(a, "second", a, "third")) == EDQUOT);
  CHECK(errno_of(t.mount->open(t.mount.ino("second", a), O_WRONLY, ::getpid())) == EDQUOT);
  CHECK(set(t.mount.ino("second", a), "dtype", "I8") == EDQUOT);
  CHECK(t.list(a) == std::vector<std::string>{"first"});
  // A tensor that is staged already can be written again, and another user can stage.
  CHECK(t.stage(a, "first") == 0);
  CHECK(t.stage(c, "first") == 0);
  CHECK(set(c, "metadata.two", "2") == 0);
  CHECK(t.commit("a") == 0);
  CHECK(make_as(kHoarder, b, "other") == 0);
}

TEST_CASE_METHOD(Limited, "the bytes of staged metadata are limited per user", "[fs][user_counts]") {
  REQUIRE(begin_as(kHoarder, "a") == 0);
  REQUIRE(begin_as(kNeighbour, "b") == 0);
  const Ino a = t.mount.ino("a", kTransactions);
  CHECK(set(a, "metadata.k", std::string(900, 'x')) == 0);
  CHECK(set(a, "metadata.l", std::string(100, 'x')) == EDQUOT);
  CHECK(set(a, "metadata.l", std::string(99, 'x')) == EDQUOT);  // with both keys, 1001 bytes
  CHECK(set(a, "metadata.l", std::string(98, 'x')) == 0);
  CHECK(set(t.mount.ino("b", kTransactions), "metadata.l", std::string(100, 'x')) == 0);
  CHECK(t.mount->extended_attribute(a, "user.safetensors.metadata.k")->size() == 900);
  CHECK(errno_of(t.mount->set_extended_attribute(a, "user.safetensors.metadata.k", std::nullopt)) == 0);
  CHECK(set(a, "metadata.l", std::string(900, 'x')) == 0);
}

TEST_CASE_METHOD(Limited, "slices, figures and logs that stay open are limited per user",
                 "[fs][user_counts][views]") {
  const Ino slices = t.mount.ino("slice", kViews);
  for (const char* name : {"first[0:1]", "first[0:2]", "first[0:3]"})
    CHECK(look_up_as(kHoarder, slices, name) == 0);
  CHECK(look_up_as(kHoarder, slices, "first[0:4]") == EDQUOT);
  CHECK(look_up_as(kHoarder, slices, "first[0:1]") == 0);
  CHECK(look_up_as(kNeighbour, slices, "first[0:4]") == 0);
  const Ino first = t.mount.ino("first[0:1]", slices);
  t.mount->forget(first, 3);
  CHECK(look_up_as(kHoarder, slices, "first[0:5]") == 0);
  for (const char* text : {"log", "stats.json"}) {
    for (int number = 0; number < 3; ++number) CHECK(look_up_as(kHoarder, kViews, text) == 0);
    CHECK(look_up_as(kHoarder, kViews, text) == EDQUOT);
    CHECK(look_up_as(kNeighbour, kViews, text) == 0);
  }
}

TEST_CASE_METHOD(Limited, "scratch files are limited per user", "[fs][user_counts][scratch]") {
  for (const char* name : {"a", "b", "c"}) CHECK(make_as(kHoarder, kRootIno, name) == 0);
  CHECK(make_as(kHoarder, kRootIno, "d") == EDQUOT);
  CHECK(make_as(kNeighbour, kRootIno, "d") == 0);
  REQUIRE(t.mount->remove_file(kRootIno, "b"));
  CHECK(make_as(kHoarder, kRootIno, "e") == 0);
  CHECK(make_as(kHoarder, kRootIno, "f") == EDQUOT);
}

TEST_CASE_METHOD(Limited, "checkpoints that wait for their name are limited per user",
                 "[fs][user_counts][checkpoint]") {
  const std::string empty = archive_of({});
  const auto save_as = [&](uid_t user, const std::string& name) {
    const Requester requester(user, 1);
    const auto made = t.mount->create(kViews, name, O_WRONLY, ::getpid());
    if (!made) return made.error().errno_value;
    REQUIRE(t.mount->write(*made->file, bytes_of(empty), 0, 1));
    const int closed = errno_of(t.mount->flush(*made->file, 1, ::getpid()));
    t.mount->release(made->file);
    return closed;
  };
  for (const char* name : {".tmp1", ".tmp2", "model-00001-of-00002.safetensors"})
    CHECK(save_as(kHoarder, name) == 0);
  CHECK(save_as(kHoarder, ".tmp3") == EDQUOT);
  CHECK(save_as(kHoarder, "model.safetensors.index.json") == EDQUOT);
  CHECK(save_as(kNeighbour, ".tmp3") == 0);
  REQUIRE(t.mount->remove_file(kViews, ".tmp1"));
  CHECK(save_as(kHoarder, ".tmp4") == 0);
  CHECK(save_as(kHoarder, ".tmp5") == EDQUOT);
  REQUIRE(t.mount->rename(kViews, ".tmp2", kViews, "archive.safetensors"));
  CHECK(save_as(kHoarder, ".tmp5") == 0);
}

TEST_CASE_METHOD(Limited, "NumPy files that are open for writing are limited per user",
                 "[fs][user_counts][new_tensor]") {
  const Ino npy = t.mount.ino("npy", kViews);
  const Requester requester(kHoarder, 1);
  std::vector<OpenFile*> open;
  for (const char* name : {"a.npy", "b.npy"})
    open.push_back(t.mount->create(npy, name, O_WRONLY, ::getpid()).value().file);
  open.push_back(t.mount->open(t.mount.ino("first.npy", npy), O_WRONLY, ::getpid()).value());
  CHECK(errno_of(t.mount->create(npy, "c.npy", O_WRONLY, ::getpid())) == EDQUOT);
  CHECK(errno_of(t.mount->open(t.mount.ino("second.npy", npy), O_WRONLY, ::getpid())) == EDQUOT);
  // Another descriptor of the same file takes nothing.
  open.push_back(t.mount->open(t.mount.ino("first.npy", npy), O_WRONLY, ::getpid()).value());
  {
    const Requester neighbour(kNeighbour, 1);
    open.push_back(t.mount->create(npy, "d.npy", O_WRONLY, ::getpid()).value().file);
  }
  for (OpenFile* const file : open) t.mount->release(file);
  CHECK(t.mount->create(npy, "c.npy", O_WRONLY, ::getpid()));
}

TEST_CASE_METHOD(Limited, "headers and indexes of checkpoints are limited per user",
                 "[fs][user_counts][checkpoint]") {
  const std::string length({'\x20', '\x03', 0, 0, 0, 0, 0, 0});  // 800 bytes
  const auto make_as = [&](uid_t user, const std::string& name) {
    const Requester requester(user, 1);
    return t.mount->create(kViews, name, O_WRONLY, ::getpid()).value().file;
  };
  const auto write_as = [&](uid_t user, OpenFile& file) {
    const Requester requester(user, 1);
    return errno_of(t.mount->write(file, bytes_of(length), 0, 1));
  };
  OpenFile* const first = make_as(kHoarder, ".tmp1");
  OpenFile* const second = make_as(kHoarder, ".tmp2");
  OpenFile* const third = make_as(kHoarder, "x.safetensors.index.json");
  OpenFile* const other = make_as(kNeighbour, "y.safetensors.index.json");
  CHECK(write_as(kHoarder, *first) == 0);
  CHECK(write_as(kHoarder, *second) == 0);
  CHECK(write_as(kHoarder, *third) == EDQUOT);
  CHECK(errno_of(t.mount->resize(*other, 3 << 20, {})) == EDQUOT);  // one step of a mebibyte fits
  REQUIRE(t.mount->remove_file(kViews, ".tmp1"));
  REQUIRE(t.mount->remove_file(kViews, ".tmp2"));
  t.mount->release(first);  // an open file counts as a file even if its name was removed
  OpenFile* const fourth = make_as(kHoarder, "z.safetensors.index.json");
  CHECK(write_as(kHoarder, *fourth) == 0);
  for (OpenFile* const file : {second, third, fourth, other}) t.mount->release(file);
}

TEST_CASE_METHOD(Writing, "what a user writes holds a part of the process's descriptors",
                 "[fs][user_counts][open_file]") {
  fill(kHoarder);
  CHECK(write_as(kHoarder, kRootIno, "second") == EDQUOT);
  CHECK(write_as(kNeighbour, kRootIno, "second") == 0);
  CHECK(write_as(::geteuid(), kRootIno, "second") == 0);
  open.erase(open.begin());
  CHECK(write_as(kHoarder, kRootIno, "second") == 0);
  CHECK(write_as(kHoarder, kRootIno, "second") == EDQUOT);
}

TEST_CASE_METHOD(Writing, "transactions and scratch files take of the same descriptors",
                 "[fs][user_counts][transaction_directory][scratch]") {
  fill(kHoarder);
  const Ino directory = t.begin();
  CHECK(write_as(kHoarder, directory, "first") == EDQUOT);
  const Ino scratch = make_as(kHoarder, "scratch");
  {
    const Requester mallory(kHoarder, 1);
    CHECK(errno_of(t.mount->open(scratch, O_WRONLY, ::getpid())) == EDQUOT);
  }
  open.resize(kMostDescriptors - 2);
  // A transaction needs one file descriptor, however many tensors it stages.
  const Ino other = t.begin("other");
  CHECK(write_as(kHoarder, other, "first") == 0);
  CHECK(write_as(kHoarder, other, "second") == 0);
  CHECK(write_as(kHoarder, kRootIno, "scratch") == 0);
  CHECK(write_as(kHoarder, kRootIno, "second") == EDQUOT);
}

TEST_CASE_METHOD(Writing, "pages that the kernel writes count for the user who has opened the file",
                 "[fs][user_counts][open_file]") {
  fill(kHoarder);
  const Requester mallory(kHoarder, 1);
  Member writer(t.mount, kRootIno, "second", O_RDWR);
  const Requester kernel(std::nullopt, 0);
  CHECK(writer.write("x", 0) == EDQUOT);
}
