// fs/write/pending_file.h: one life cycle for bytes of each kind, and a patch that becomes a new tensor.
#include "fs/write/pending_file.h"

#include <mutex>

#include "fs/base/requester.h"
#include "fs/write/checkpoint_index.h"
#include "tests/support/catch.h"
#include "tests/support/plain.h"
#include "tests/support/temporary_directory.h"
#include "tests/support/text_archive.h"

using namespace stfs;
using namespace stfs::test;

namespace {

constexpr std::string_view kPatchedTensor = "old bytes";

struct PatchedModel {
  PatchedModel()
      : path(directory.write("m.safetensors", archive_of({{"w", std::string(kPatchedTensor)}}))),
        snapshots(std::make_unique<Snapshot>(
            std::make_shared<Model>(Archive::open(path, Access::ReadWrite).value()), Layout::Flat)),
        tensor(*snapshots->model->find("w")) {}
  [[nodiscard]] std::unique_ptr<PendingFile> patched(
      std::shared_ptr<TransactionGroup> group = nullptr) const {
    return std::make_unique<PendingFile>(tensor,
                                         std::make_unique<TensorPatch>(snapshots, tensor, std::move(group)));
  }
  [[nodiscard]] std::unique_ptr<NewTensor> made() const {
    return std::make_unique<NewTensor>("w", false, snapshots->model->archive(0));
  }

  TemporaryDirectory directory;
  std::string path;
  Snapshots snapshots;
  TensorId tensor;
};

std::string pending_text(const PendingFile& file) {
  std::string text(static_cast<std::size_t>(file.size_bytes()), '\0');
  const auto read_old = [](std::span<std::byte> to, std::uint64_t at) -> Result<void> {
    std::ranges::copy(bytes_of(kPatchedTensor).subspan(static_cast<std::size_t>(at), to.size()), to.begin());
    return {};
  };
  return file.read(std::as_writable_bytes(std::span(text)), 0, read_old) ? text : "unreadable";
}

std::unique_ptr<PendingFile> pending_kind(const PatchedModel& at, int kind, UserCounts& counts) {
  if (kind == 0) return at.patched();
  if (kind == 1) return std::make_unique<PendingFile>(at.tensor, at.made());
  return std::make_unique<PendingFile>(at.tensor, std::make_unique<CheckpointIndex>(counts));
}

}  // namespace

TEST_CASE("a pending file is clean, dirty after a write, and clean after a commit or a drop",
          "[fs][pending_file]") {
  const PatchedModel at;
  UserCounts counts("bytes", 1 << 30);
  const auto file = pending_kind(at, GENERATE(0, 1, 2), counts);
  const std::scoped_lock lock(file->mutex);
  CHECK_FALSE(file->is_dirty());
  CHECK_FALSE(file->has_bytes());
  file->note_write(Caller(7, 1));
  REQUIRE(file->write(bytes_of("new"), 0));
  file->was_refused = true;
  CHECK(file->is_dirty());
  CHECK(file->has_bytes());
  CHECK(pending_text(*file).starts_with("new"));
  if (GENERATE(true, false)) {
    file->note_committed();
  } else {
    file->drop();
  }
  CHECK_FALSE(file->is_dirty());
  CHECK_FALSE(file->has_bytes());
  CHECK_FALSE(file->was_refused);
  CHECK(file->writers.empty());
  CHECK(file->shown_size_bytes() == file->size_bytes());
}

TEST_CASE("bytes of a failed file are dropped, and the writer may begin again", "[fs][pending_file]") {
  const PatchedModel at;
  UserCounts counts("bytes", 1 << 30);
  const auto file = pending_kind(at, GENERATE(0, 1, 2), counts);
  const std::scoped_lock lock(file->mutex);
  REQUIRE(file->write(bytes_of("new"), 0));
  file->fail({ErrorCode::InvalidArgument, EIO, "killed"});
  CHECK_FALSE(file->is_dirty());
  CHECK(file->has_failed);
  CHECK(file->failure->message == "killed");
  file->retry();
  CHECK_FALSE(file->has_failed);
  CHECK_FALSE(file->failure);
}

TEST_CASE("each kind of bytes is found as itself only", "[fs][pending_file]") {
  const PatchedModel at;
  UserCounts counts("bytes", 1 << 30);
  const int kind = GENERATE(0, 1, 2);
  const auto file = pending_kind(at, kind, counts);
  CHECK((file->patch() != nullptr) == (kind == 0));
  CHECK((file->new_tensor() != nullptr) == (kind == 1));
  CHECK((file->checkpoint_index() != nullptr) == (kind == 2));
  CHECK(file->checkpoint() == nullptr);
}

TEST_CASE("bytes of a new file that was deleted are not dirty", "[fs][pending_file]") {
  const PatchedModel at;
  PendingFile file(at.tensor, at.made());
  const std::scoped_lock lock(file.mutex);
  REQUIRE(file.write(bytes_of("new"), 0));
  CHECK(file.is_dirty());
  file.is_unlinked = true;
  CHECK_FALSE(file.is_dirty());
}

TEST_CASE("a patch has the tensor's size until it is cut, and must get it back", "[fs][pending_file]") {
  const PatchedModel at;
  const auto file = at.patched();
  const std::scoped_lock lock(file->mutex);
  CHECK(file->size_bytes() == kPatchedTensor.size());
  CHECK(file->shown_size_bytes() == kPatchedTensor.size());
  CHECK(pending_text(*file) == kPatchedTensor);
  REQUIRE(file->resize(3));
  CHECK(file->size_bytes() == 3);
  CHECK(file->mapped_bytes() == kPatchedTensor.size());
  const auto cut = file->check();
  REQUIRE_FALSE(cut);
  CHECK(cut.error().errno_value == EINVAL);
  CHECK(cut.error().message == "3 bytes were written, U8 [9] needs 9");
  REQUIRE(file->write(bytes_of("bytes!"), 3));
  CHECK(file->is_whole());
  CHECK(pending_text(*file) == "oldbytes!");
}

TEST_CASE("a patch that gets another form is a new tensor, under the same lock and failure",
          "[fs][pending_file]") {
  const PatchedModel at;
  const auto file = at.patched();
  const std::scoped_lock lock(file->mutex);
  REQUIRE(file->resize(0));
  const TensorPatch* const before = file->patch();
  file->remake(at.made());
  CHECK(file->patch() == nullptr);
  REQUIRE(file->new_tensor() != nullptr);
  CHECK_FALSE(file->is_dirty());
  CHECK(file->shown_size_bytes() == kPatchedTensor.size());  // until the first write
  CHECK(before->staged() == nullptr);  // threads without the lock may still see the patch
  REQUIRE(file->write(bytes_of("other bytes"), 0));
  CHECK(pending_text(*file) == "other bytes");
  CHECK(file->mapped_bytes() == 11);
}

TEST_CASE("while a group commits, its files show the archive's bytes", "[fs][pending_file]") {
  const PatchedModel at;
  const auto file = at.patched(std::make_shared<TransactionGroup>(*at.snapshots->model));
  const std::scoped_lock lock(file->mutex);
  REQUIRE(file->write(bytes_of("new"), 0));
  REQUIRE(file->resize(5));
  file->park();
  CHECK(pending_text(*file) == kPatchedTensor);
  CHECK(file->shown_size_bytes() == kPatchedTensor.size());
  file->unpark();
  CHECK(pending_text(*file) == "new b");
  CHECK(file->shown_size_bytes() == 5);
}

TEST_CASE("a dropped patch leaves its group", "[fs][pending_file]") {
  const PatchedModel at;
  const auto group = std::make_shared<TransactionGroup>(*at.snapshots->model);
  const auto file = at.patched(group);
  const std::scoped_lock lock(file->mutex);
  REQUIRE(file->write(bytes_of("new"), 0));
  CHECK_FALSE(group->is_empty());
  file->drop();
  CHECK(group->is_empty());
  CHECK(pending_text(*file) == kPatchedTensor);
}

TEST_CASE("an index of a checkpoint that was emptied counts its bytes from the first one on",
          "[fs][pending_file]") {
  constexpr std::uint64_t kStepBytes = 1 << 20;
  constexpr uid_t kUser = 12345;
  const Requester requester(kUser, 1);
  UserCounts counts("bytes", 10 * kStepBytes);
  const auto index = std::make_unique<CheckpointIndex>(counts);
  PendingBytes& bytes = *index;
  REQUIRE(bytes.resize(1));
  REQUIRE(bytes.resize(0));
  CHECK(counts.count(kUser) == 0);
  REQUIRE(bytes.resize(kStepBytes));
  CHECK(counts.count(kUser) == kStepBytes);
  REQUIRE(bytes.resize(kStepBytes + 1));
  CHECK(counts.count(kUser) == 2 * kStepBytes);
}
