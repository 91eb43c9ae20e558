// Modes and owners: each tensor shows the mode and owner of its shard, and changes are noticed.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <string>
#include <tuple>
#include <vector>

#include "fs/base/requester.h"
#include "fs/model/mount_root.h"
#include "tests/fs/driven_model.h"
#include "tests/fs/transacted.h"
#include "tests/support/captured_stderr.h"
#include "tests/support/catch.h"

using namespace stfs;
using namespace stfs::test;

namespace {

constexpr mode_t kNineBits = 0777;
constexpr uid_t kVisitor = 54321;

MountedModelOptions shared_with_others() {
  MountedModelOptions options;
  options.is_shared = true;
  return options;
}

struct TwoShards {
  explicit TwoShards(const MountedModelOptions& options = shared_with_others()) : model(options) {}
  /// Changes the mode of the shard `one` (0) or `two` (1). The mount notices the change.
  void change_mode(std::uint32_t shard, mode_t mode) const {
    const auto path = model.directory().path() / (shard == 0 ? "one.safetensors" : "two.safetensors");
    if (::chmod(path.c_str(), mode) != 0) throw std::runtime_error("chmod");
    changes.push_back(model->check_for_change(shard));
  }
  [[nodiscard]] mode_t mode(std::string_view name, Ino parent = kRootIno) const {
    return model->attributes(model.ino(name, parent))->st_mode & kNineBits;
  }

  CapturedStderr captured;
  DrivenModel model;
  mutable std::vector<ForeignChanges::Change> changes;
};

}  // namespace

TEST_CASE("each tensor shows its own shard's mode, each view its tensor's", "[fs][filesystem][permissions]") {
  const TwoShards t;
  t.change_mode(0, 0600);
  t.change_mode(1, 0644);
  CHECK(t.mode("b") == 0600);
  CHECK(t.mode("c") == 0644);
  CHECK(t.mode("b.npy", t.model.ino("npy", kViews)) == 0600);
  CHECK(t.mode("c.npy", t.model.ino("npy", kViews)) == 0644);
  CHECK(t.mode("c[0:2]", t.model.ino("slice", kViews)) == 0444);
  CHECK(t.mode("b[0:2]", t.model.ino("slice", kViews)) == 0400);
  CHECK(t.mode("archive.safetensors", kViews) == 0600);
  // Only a user who may write every shard may write a checkpoint here.
  t.change_mode(1, 0666);
  CHECK((t.model->attributes(kViews)->st_mode & 0222) == 0200);
  t.change_mode(1, 0644);
  for (const auto* name : {"header.json", "metadata.json", "stats.json"}) {
    INFO(name);
    CHECK(t.mode(name, kViews) == 0400);
  }
  // A user who may read one tensor may enter the directories above it.
  CHECK((t.model->attributes(kRootIno)->st_mode & kNineBits) == 0755);
  CHECK(t.mode(".safetensors") == 0755);
}

TEST_CASE("a change of the mode is noticed and told, as one of attributes", "[fs][filesystem][permissions]") {
  const TwoShards t;
  t.change_mode(0, 0644);
  t.change_mode(1, 0644);
  std::vector<Stale> told;
  t.model->tell_stale_to([&](Stale stale) { told.push_back(stale); });
  t.changes.clear();
  const Ino of_b = t.model.ino("b.npy", t.model.ino("npy", kViews));
  const Ino of_c = t.model.ino("c.npy", t.model.ino("npy", kViews));
  for (const Ino ino : {of_b, of_c}) t.model->note_told(ino);
  const std::uint64_t before = MountedModel::changes();
  t.change_mode(1, 0600);
  CHECK(t.mode("c") == 0600);
  CHECK(t.mode("b") == 0644);
  CHECK(t.changes.back().has_new_permissions);
  CHECK(t.changes.back().stale.what == Stale::What::Nothing);  // the bytes stay cached
  CHECK(MountedModel::changes() > before);
  const auto was_told = [&](Ino ino) {
    return std::ranges::any_of(told, [&](const Stale& stale) {
      return stale.first <= ino && ino <= stale.last && stale.what == Stale::What::Attributes;
    });
  };
  for (const Ino ino :
       {t.model.ino("c"), of_c, Ino{kRootIno}, Ino{Views::kArchive}, Ino{Views::kNpy}, kViews, kTransactions})
    CHECK(was_told(ino));
  CHECK_FALSE(was_told(t.model.ino("b")));
  CHECK_FALSE(was_told(of_b));
  told.clear();
  t.change_mode(1, 0600);
  CHECK(told.empty());
}

TEST_CASE("a look at the modes of all shards finds each change, once", "[fs][filesystem][permissions]") {
  const TwoShards t;
  t.change_mode(0, 0644);
  t.change_mode(1, 0644);
  CHECK_FALSE(t.model->check_permissions());
  const auto set_mode = [&](const char* shard, mode_t mode) {
    REQUIRE(::chmod((t.model.directory().path() / shard).c_str(), mode) == 0);
  };
  set_mode("one.safetensors", 0600);
  set_mode("two.safetensors", 0640);
  CHECK(t.model->check_permissions());
  CHECK(t.mode("b") == 0600);
  CHECK(t.mode("c") == 0640);
  CHECK_FALSE(t.model->check_permissions());
  set_mode("one.safetensors", 0644);
  CHECK(t.model->check_permissions());
  set_mode("two.safetensors", 0644);
  CHECK(t.model->check_permissions());
  CHECK(t.mode("c") == 0644);
}

TEST_CASE("uid, gid, umask and ro hold for every shard", "[fs][filesystem][permissions]") {
  MountedModelOptions options = shared_with_others();
  options.uid = 1234;
  options.gid = 4321;
  options.umask = 0007;
  const TwoShards t(options);
  t.change_mode(0, 0660);
  t.change_mode(1, 0666);
  CHECK(t.mode("b") == 0660);
  CHECK(t.mode("c") == 0660);
  const auto shown = t.model->attributes(t.model.ino("c"));
  CHECK((shown->st_uid == 1234 && shown->st_gid == 4321));
  options.is_read_only = true;
  const TwoShards read_only(options);
  read_only.change_mode(0, 0660);
  CHECK(read_only.mode("b") == 0440);
}

TEST_CASE("metadata of the whole model is shown to those who may read all of it",
          "[fs][filesystem][permissions]") {
  const auto metadata = [](const TwoShards& t) {
    return errno_of(t.model->extended_attribute(kRootIno, "user.safetensors.metadata.format"));
  };
  const TwoShards t;
  t.change_mode(0, 0640);
  t.change_mode(1, 0640);
  CHECK(metadata(t) == 0);
  t.change_mode(1, 0600);
  CHECK(metadata(t) == EACCES);
  CHECK(errno_of(t.model->extended_attribute(kRootIno, "user.safetensors.tensors")) == 0);
  const TwoShards own(MountedModelOptions{});
  own.change_mode(1, 0600);
  CHECK(metadata(own) == 0);
}

TEST_CASE("keys of the metadata are listed to those who may read all of it",
          "[fs][filesystem][permissions]") {
  const auto lists = [](const TwoShards& t, const Maker& caller) {
    const auto names = t.model->list_extended_attributes(kRootIno, caller).value();
    return std::ranges::find(names, "user.safetensors.metadata.format") != names.end();
  };
  const uid_t other = ::geteuid() + 1;
  const Maker visitor{.uid = other, .gid = ::getegid() + 1};
  const Maker member{.uid = other, .gid = ::getegid() + 1, .other_groups = {::getegid()}};
  const Maker owner{.uid = ::geteuid(), .gid = ::getegid()};
  const TwoShards t;
  for (const auto& [mode, to_visitor, to_member] :
       {std::tuple{0644, true, true}, {0640, false, true}, {0600, false, false}, {0604, true, false}}) {
    t.change_mode(0, static_cast<mode_t>(mode));
    t.change_mode(1, static_cast<mode_t>(mode));
    CAPTURE(mode);
    CHECK(lists(t, visitor) == to_visitor);
    CHECK(lists(t, member) == to_member);
    CHECK(lists(t, owner));
    CHECK(lists(t, {}));  // root
  }
  const TwoShards own{MountedModelOptions{}};
  own.change_mode(0, 0600);
  CHECK(lists(own, visitor));  // the kernel denies access to other users
}

TEST_CASE("the present archive decides about edits, whatever the kernel has checked",
          "[fs][filesystem][permissions]") {
  const auto edits = [](const TwoShards& t) {
    const auto set = [&](Ino ino, const std::string& key) {
      return errno_of(t.model->set_extended_attribute(ino, "user.safetensors." + key, "I8"));
    };
    const Ino npy = t.model.ino("npy", kViews);
    return std::vector<int>{
        set(kRootIno, "metadata.x"),
        set(t.model.ino("b"), "dtype"),
        errno_of(t.model->remove_file(kRootIno, "b")),
        errno_of(t.model->rename(kRootIno, "c", kRootIno, "b")),
        errno_of(t.model->make_directory(kRootIno, "new", {.uid = kVisitor})),
        errno_of(t.model->remove_directory(kRootIno, "new")),
        errno_of(t.model->create(kRootIno, "new", O_WRONLY, 1)),
        errno_of(t.model->create(npy, "new.npy", O_WRONLY, 1)),
        errno_of(t.model->create(kViews, ".tmp1", O_WRONLY, 1)),
        errno_of(t.model->make_directory(kTransactions, "T", {.uid = kVisitor})),
        errno_of(t.model->extended_attribute(kRootIno, "user.safetensors.metadata.n")),
        errno_of(t.model->extended_attribute(kRootIno, "user.safetensors.tensors")),
    };
  };
  const auto all_refuse = [&](const TwoShards& t) {
    return std::ranges::all_of(edits(t), [](int why) { return why == EACCES; });
  };
  const gid_t group = ::getegid();
  const Requester stranger(kVisitor, 1);
  const TwoShards t;
  t.change_mode(0, 0660);
  t.change_mode(1, 0660);
  CHECK(all_refuse(t));
  {
    const Requester of_others(kVisitor, 1, [&] { return Maker{kVisitor, group + 1, {group + 2}}; });
    CHECK(all_refuse(t));
  }
  {
    const Requester member(kVisitor, 1, [&] { return Maker{kVisitor, group + 1, {group + 2, group}}; });
    const auto got = edits(t);
    CHECK(std::ranges::count(got, EACCES) == 0);
  }
  const TwoShards own(MountedModelOptions{});
  own.change_mode(0, 0600);
  CHECK_FALSE(all_refuse(own));  // the kernel denies access to other users
}

TEST_CASE("a checkpoint takes the right to write every shard", "[fs][filesystem][permissions][checkpoint]") {
  const TwoShards t;
  t.change_mode(0, 0600);
  t.change_mode(1, 0666);
  const Ino pretrained = t.model.ino("pretrained", kViews);
  const auto made = t.model->create(pretrained, ".tmp1", O_WRONLY, 1);
  const auto index = t.model->create(kViews, "m.safetensors.index.json", O_WRONLY, 1);
  REQUIRE(made);
  REQUIRE(index);
  CHECK((made->status.st_mode & kNineBits) == 0600);
  CHECK((index->status.st_mode & kNineBits) == 0600);
  const Ino archive = t.model.ino("archive.safetensors", kViews);
  const auto errors = [&] {
    return std::vector<int>{
        errno_of(t.model->create(pretrained, "model-00001-of-00001.safetensors", O_WRONLY, 1)),
        errno_of(t.model->create(pretrained, "model.safetensors.index.json", O_WRONLY, 1)),
        errno_of(t.model->create(pretrained, ".tmp2", O_WRONLY, 1)),
        errno_of(t.model->open(made->status.st_ino, O_WRONLY, 1)),
        errno_of(t.model->open(index->status.st_ino, O_WRONLY, 1)),
        errno_of(t.model->open(archive, O_WRONLY, 1)),
        errno_of(t.model->rename(pretrained, ".tmp1", pretrained, "model.safetensors")),
        errno_of(t.model->rename(pretrained, ".tmp1", pretrained, ".tmp3")),
        errno_of(t.model->remove_file(pretrained, ".tmp1")),
    };
  };
  {
    const Requester stranger(kVisitor, 1);
    CHECK(errors() == std::vector<int>(9, EACCES));
  }
  t.change_mode(0, 0666);
  const Requester stranger(kVisitor, 1);
  CHECK(std::ranges::count(errors(), EACCES) == 0);
}

TEST_CASE("a scratch file has the rights that all shards give", "[fs][filesystem][permissions][scratch]") {
  const TwoShards t;
  t.change_mode(0, 0600);
  t.change_mode(1, 0666);
  const auto made = t.model->create(kRootIno, "new", O_WRONLY, 1, 0666);
  REQUIRE(made);
  CHECK((made->status.st_mode & kNineBits) == 0600);
  t.model->release(made->file);
  CHECK(t.mode("new") == 0600);
}

TEST_CASE("where others may enter, a transaction is its maker's alone", "[fs][filesystem][permissions]") {
  const TwoShards t;
  const auto made = t.model->make_directory(kTransactions, "T", {.uid = 77, .gid = 88});
  REQUIRE(made);
  CHECK(made->st_mode == (S_IFDIR | 0700));
  CHECK((made->st_uid == 77 && made->st_gid == 88));
  CHECK((t.model->attributes(kTransactions)->st_mode & S_ISVTX) != 0);
  CHECK((t.model->attributes(kCommitted)->st_mode & S_ISVTX) != 0);
  CHECK((t.model->attributes(kViews)->st_mode & S_ISVTX) == 0);
  CHECK((t.model->attributes(t.model.ino("b", made->st_ino))->st_mode & kNineBits) == t.mode("b"));
  const TwoShards own(MountedModelOptions{});
  CHECK(own.model->make_directory(kTransactions, "T", {.uid = 77, .gid = 88})->st_uid == ::getuid());
}

TEST_CASE("the root of several models is open to whoever may read one of them",
          "[fs][filesystem][permissions]") {
  TwoShards first;
  TwoShards second;
  for (const std::uint32_t shard : {0U, 1U}) {
    first.change_mode(shard, 0600);
    second.change_mode(shard, 0604);
  }
  std::vector<MountRoot::Member> members;
  members.push_back({.name = "one", .path = first.model.directory().path(), .mounted = first.model.take()});
  members.push_back({.name = "two", .path = second.model.directory().path(), .mounted = second.model.take()});
  const MountRoot mount_root(std::move(members));
  CHECK((mount_root.attributes(kRootIno)->st_mode & kNineBits) == 0505);
  CHECK((mount_root.lookup(kRootIno, "one")->st_mode & kNineBits) == 0700);
}
