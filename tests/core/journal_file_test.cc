// core/journal/journal_file.h: in a directory that others may write, the archive's name proves nothing about
// the open archive.
#include "core/journal/journal_file.h"

#include <sys/stat.h>
#include <unistd.h>

#include <memory>
#include <string>

#include "core/commit/archive_replacement.h"
#include "core/commit/transaction.h"
#include "tests/core/exchanged_name.h"
#include "tests/support/catch.h"
#include "tests/support/gone_archive.h"
#include "tests/support/intercepted_storage.h"
#include "tests/support/plain.h"
#include "tests/support/temporary_directory.h"
#include "tests/support/text_archive.h"

using namespace stfs;
using namespace stfs::test;

namespace {

/// Records the permissions of each new journal file when it gets its first bytes.
class NotingStorage final : private Interceptor, public InterceptedStorage {
 public:
  NotingStorage() : InterceptedStorage(system_storage(), static_cast<Interceptor&>(*this)) {}
  Result<std::unique_ptr<File>> create_unnamed(const std::filesystem::path& fallback) override {
    auto made = InterceptedStorage::create_unnamed(fallback);
    made_ = made ? made->get() : nullptr;
    return made;
  }
  int written = 0;
  bool are_all_private = true;

 private:
  Verdict before(const SeamCall& call) override {
    if (call.role != FileRole::Journal || call.kind != FileCall::Write || made_ == nullptr) return {};
    struct stat st {};
    ++written;
    if (::fstat(made_->descriptor(), &st) != 0 || st.st_uid != ::geteuid() || (st.st_mode & 07777U) != 0600)
      are_all_private = false;
    return {};
  }
  const File* made_ = nullptr;
};

/// An archive of this user alone, which is open.
struct OpenedArchive {
  TemporaryDirectory directory;
  std::string path = private_file("m.safetensors", archive_of({{"t", std::string(9000, 't')}}));
  NotingStorage storage;
  std::unique_ptr<Archive> archive = Archive::open(path, Access::ReadWrite, storage).value();

 private:
  [[nodiscard]] std::string private_file(const char* name, const std::string& bytes) const {
    std::string made = directory.write(name, bytes);
    REQUIRE(::chmod(made.c_str(), 0600) == 0);
    return made;
  }
};

}  // namespace

TEST_CASE_METHOD(OpenedArchive, "a journal has the access of the open archive, whatever file has its name",
                 "[core][journal_file]") {
  const ExchangedName exchanged(path);
  const auto made = create_journal_file(system_storage(), path, archive->file()).value();
  const FileStatus status = made.file->status().value();
  CHECK((status.mode & 07777U) == 0600);
  CHECK(status.uid == ::geteuid());
  CHECK(made.path.parent_path() == directory.path());
}

TEST_CASE("a journal of an archive that is gone is its maker's alone", "[core][journal_file]") {
  const TemporaryDirectory directory;
  const auto made = create_journal_file(system_storage(), directory / "m", gone_archive()).value();
  CHECK((made.file->status().value().mode & 07777U) == 0600);
}

TEST_CASE_METHOD(OpenedArchive, "staged bytes are for those who may read the open archive",
                 "[core][journal_file]") {
  Transaction transaction(*archive);
  const TensorId tensor = archive->version()->ids.of(0);
  {
    const ExchangedName exchanged(path);
    REQUIRE((*transaction.stage(tensor))->write(bytes_of(std::string(9000, 'n')), 0));
  }
  ReaderWriterLock lock;
  REQUIRE(transaction.commit({}, [&](TensorId) -> ReaderWriterLock& { return lock; }));
  CHECK(storage.written > 0);
  CHECK(storage.are_all_private);
  CHECK(content_of(path).ends_with("nnn"));
}

TEST_CASE_METHOD(OpenedArchive, "the bytes of an edit are for those who may read the open archive",
                 "[core][journal_file]") {
  Transaction transaction(*archive);
  const ExchangedName exchanged(path);
  const auto begun = transaction.edit(edit_of(*archive->version()), false);
  REQUIRE(begun);
  CHECK(storage.written > 0);
  CHECK(storage.are_all_private);
}

TEST_CASE_METHOD(OpenedArchive, "a new file for an archive's place has the access of the open archive",
                 "[core][journal_file]") {
  const ExchangedName exchanged(path);
  const auto made = begin_replacement(*archive, 4096);
  REQUIRE(made);
  const FileStatus status = made->file->status().value();
  CHECK((status.mode & 07777U) == 0600);
  CHECK(status.uid == ::geteuid());
}

TEST_CASE_METHOD(OpenedArchive, "a transaction of an archive that was exchanged is not committed",
                 "[core][journal_file]") {
  Transaction transaction(*archive);
  const ExchangedName exchanged(path);
  REQUIRE((*transaction.stage(archive->version()->ids.of(0)))->write(bytes_of(std::string(9000, 'n')), 0));
  ReaderWriterLock lock;
  CHECK(errno_of(transaction.commit({}, [&](TensorId) -> ReaderWriterLock& { return lock; })) == ESTALE);
  CHECK(content_of(path).ends_with("ttt"));
}
