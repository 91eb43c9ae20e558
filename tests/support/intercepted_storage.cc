#include "tests/support/intercepted_storage.h"

#include <array>

#include "tests/support/allocation_faults.h"
#include "tests/support/lossy.h"

namespace stfs::test {
namespace {

FileRole role_of(const std::filesystem::path& path) {
  return path.filename().native().find(".stj.") == std::string::npos ? FileRole::Archive : FileRole::Journal;
}

tl::unexpected<Error> injected(const Verdict& verdict, SeamCall call) {
  const NoAllocationFaults pause;
  return fail_system(verdict.errno_value, "injected fault",
                     std::string(name_of(call.kind)) + " of the " + std::string(name_of(call.role)));
}

/// Asks the interceptor about a call. The caller returns failure() if the call is to fail, and implements a
/// Lie.
class Question {
 public:
  Question(Interceptor& interceptor, FileCall kind, FileRole role, std::uint64_t size_bytes = 0)
      : call_{kind, role, size_bytes} {
    const NoAllocationFaults pause;
    verdict_ = interceptor.before(call_);
  }
  [[nodiscard]] bool passes() const { return verdict_.kind == Verdict::Kind::Pass; }
  [[nodiscard]] bool is_lie() const { return verdict_.kind == Verdict::Kind::Lie; }
  [[nodiscard]] bool is_cut_short() const { return verdict_.kind == Verdict::Kind::CutShort; }
  [[nodiscard]] tl::unexpected<Error> failure() const { return injected(verdict_, call_); }

 private:
  SeamCall call_;
  Verdict verdict_;
};

class InterceptedFile final : public File {
 public:
  InterceptedFile(std::unique_ptr<File> inner, FileRole role, Interceptor& interceptor)
      : inner_(std::move(inner)), role_(role), interceptor_(interceptor) {}

  Result<void> read(std::span<std::byte> to, std::uint64_t offset) const override {
    const Question question = ask(FileCall::Read);
    if (question.passes()) return inner_->read(to, offset);
    if (!question.is_cut_short()) return question.failure();
    if (auto half = inner_->read(to.first(to.size() / 2), offset); !half) return half;
    return fail(ErrorCode::ArchiveCut, EIO, "injected end of the file");
  }
  Result<void> write(std::span<const std::byte> from, std::uint64_t offset) override {
    const Question question = ask(FileCall::Write, from.size());
    if (question.passes()) return inner_->write(from, offset);
    if (question.is_lie()) return {};
    if (question.is_cut_short()) {
      if (auto half = inner_->write(from.first(from.size() / 2), offset); !half) return half;
    }
    return question.failure();
  }
  Result<void> clone_from(const File& source, std::uint64_t source_offset, ByteRange range) override {
    const Question question = ask(FileCall::Clone);
    if (question.is_lie()) return {};
    if (!question.passes()) return question.failure();
    const auto* wrapped = dynamic_cast<const InterceptedFile*>(&source);
    return inner_->clone_from(wrapped != nullptr ? *wrapped->inner_ : source, source_offset, range);
  }
  Result<void> reserve(ByteRange range) override {
    const Question question = ask(FileCall::Reserve, range.size_bytes);
    if (question.is_lie()) return {};
    return question.passes() ? inner_->reserve(range) : question.failure();
  }
  Result<void> reserve_size(std::uint64_t size_bytes) override {
    const Question question = ask(FileCall::Reserve, size_bytes);
    if (question.is_lie()) return {};
    return question.passes() ? inner_->reserve_size(size_bytes) : question.failure();
  }
  Result<void> sync() override { return sync_as(&File::sync); }
  Result<void> sync_all() override { return sync_as(&File::sync_all); }
  Result<void> finish_writeback(ByteRange range) override {
    const Question question = ask(FileCall::Sync);
    if (question.is_lie()) return {};
    return question.passes() ? inner_->finish_writeback(range) : question.failure();
  }
  Result<void> resize(std::uint64_t size_bytes) override {
    const Question question = ask(FileCall::Resize);
    if (question.is_lie()) return {};
    return question.passes() ? inner_->resize(size_bytes) : question.failure();
  }
  Result<void> punch(ByteRange range) override {
    const Question question = ask(FileCall::Punch);
    if (question.is_lie()) return {};
    return question.passes() ? inner_->punch(range) : question.failure();
  }
  Result<FileStatus> status() const override {
    const Question question = ask(FileCall::Status);
    if (!question.passes()) return question.failure();
    return inner_->status();
  }
  Result<std::optional<LockConflict>> try_lock(ByteRange range, LockKind kind) override {
    const Question question = ask(FileCall::Lock);
    if (question.is_lie()) return std::optional<LockConflict>();
    if (!question.passes()) return question.failure();
    return inner_->try_lock(range, kind);
  }
  void unlock(ByteRange range) override {
    if (!ask(FileCall::Unlock).is_lie()) inner_->unlock(range);
  }
  Result<bool> is_locked_by_other(ByteRange range, LockKind kind) const override {
    const Question question = ask(FileCall::TestLock);
    if (question.is_lie()) return false;
    if (!question.passes()) return question.failure();
    return inner_->is_locked_by_other(range, kind);
  }
  Result<void> set_owner(std::uint32_t uid, std::uint32_t gid) override {
    const Question question = ask(FileCall::SetOwner);
    if (question.is_lie()) return {};
    return question.passes() ? inner_->set_owner(uid, gid) : question.failure();
  }
  Result<void> set_mode(std::uint32_t permissions) override {
    const Question question = ask(FileCall::SetMode);
    if (question.is_lie()) return {};
    return question.passes() ? inner_->set_mode(permissions) : question.failure();
  }
  std::optional<pid_t> lock_holder(ByteRange range) const override { return inner_->lock_holder(range); }
  void prefetch(ByteRange range) const override { inner_->prefetch(range); }
  std::uint64_t filesystem_type() const override { return inner_->filesystem_type(); }
  bool is_served() const override { return inner_->is_served(); }
  // The kernel knows the size without a call to the store, so this cannot fail.
  Result<std::uint64_t> known_size_bytes() const override { return inner_->known_size_bytes(); }
  std::uint64_t most_range_bytes() const override { return inner_->most_range_bytes(); }
  bool has_staged_name() const override { return inner_->has_staged_name(); }
  int descriptor() const override { return inner_->descriptor(); }

  [[nodiscard]] File& inner() const { return *inner_; }
  [[nodiscard]] FileRole role() const { return role_; }

 private:
  [[nodiscard]] Question ask(FileCall kind, std::uint64_t size_bytes = 0) const {
    return {interceptor_, kind, role_, size_bytes};
  }

  Result<void> sync_as(Result<void> (File::*way)()) {
    const Question question = ask(FileCall::Sync);
    if (question.passes()) return (inner_.get()->*way)();
    if (question.is_lie()) return {};
    if (auto* lossy = dynamic_cast<LossyFile*>(inner_.get()); lossy != nullptr) lossy->fail_sync();
    return question.failure();
  }

  std::unique_ptr<File> inner_;
  FileRole role_;
  Interceptor& interceptor_;
};

Result<std::unique_ptr<File>> wrapped(Result<std::unique_ptr<File>> file, FileRole role,
                                      Interceptor& interceptor) {
  if (!file) return file;
  const NoAllocationFaults pause;
  return std::make_unique<InterceptedFile>(std::move(*file), role, interceptor);
}

}  // namespace

std::string_view name_of(FileCall kind) {
  constexpr std::array<std::string_view, 25> kNames = {"open",
                                                       "create",
                                                       "status of the path",
                                                       "publish",
                                                       "remove",
                                                       "sync of the directory",
                                                       "list",
                                                       "read",
                                                       "write",
                                                       "clone",
                                                       "reserve",
                                                       "sync",
                                                       "status",
                                                       "lock",
                                                       "unlock",
                                                       "test of a lock",
                                                       "change of owner",
                                                       "change of mode",
                                                       "resize",
                                                       "punch",
                                                       "create by name",
                                                       "rename",
                                                       "make a directory",
                                                       "remove a directory"};
  return kNames[static_cast<std::size_t>(kind)];
}

std::string_view name_of(FileRole role) {
  constexpr std::array<std::string_view, 3> kNames = {"archive", "journal", "directory"};
  return kNames[static_cast<std::size_t>(role)];
}

Result<std::unique_ptr<File>> InterceptedStorage::open(const std::filesystem::path& path, Access access) {
  const Question question(interceptor_, FileCall::Open, role_of(path));
  if (!question.passes()) return question.failure();
  return wrapped(inner_.open(path, access), role_of(path), interceptor_);
}

Result<std::unique_ptr<File>> InterceptedStorage::open_no_link(const std::filesystem::path& path,
                                                               Access access) {
  const Question question(interceptor_, FileCall::Open, role_of(path));
  if (!question.passes()) return question.failure();
  return wrapped(inner_.open_no_link(path, access), role_of(path), interceptor_);
}

Result<std::unique_ptr<File>> InterceptedStorage::open_again(const File& file,
                                                             const std::filesystem::path& path,
                                                             Access access) {
  const Question question(interceptor_, FileCall::Open, role_of(path));
  if (!question.passes()) return question.failure();
  return wrapped(inner_.open_again(file, path, access), role_of(path), interceptor_);
}

Result<std::unique_ptr<File>> InterceptedStorage::create_unnamed(const std::filesystem::path& fallback) {
  const Question question(interceptor_, FileCall::CreateUnnamed, FileRole::Journal);
  if (!question.passes()) return question.failure();
  return wrapped(inner_.create_unnamed(fallback), FileRole::Journal, interceptor_);
}

Result<void> InterceptedStorage::publish(File& file, const std::filesystem::path& path) {
  const Question question(interceptor_, FileCall::Publish, FileRole::Journal);
  if (question.is_lie()) return {};
  if (!question.passes()) return question.failure();
  auto* wrapped_file = dynamic_cast<InterceptedFile*>(&file);
  return inner_.publish(wrapped_file != nullptr ? wrapped_file->inner() : file, path);
}

Result<void> InterceptedStorage::remove(const std::filesystem::path& path) {
  const Question question(interceptor_, FileCall::Remove, role_of(path));
  if (question.is_lie()) return {};
  return question.passes() ? inner_.remove(path) : question.failure();
}

Result<std::unique_ptr<File>> InterceptedStorage::create(const std::filesystem::path& path, mode_t mode) {
  const Question question(interceptor_, FileCall::Create, role_of(path));
  if (!question.passes()) return question.failure();
  return wrapped(inner_.create(path, mode), role_of(path), interceptor_);
}

Result<void> InterceptedStorage::rename(const std::filesystem::path& from, const std::filesystem::path& to,
                                        bool replaces) {
  const Question question(interceptor_, FileCall::Rename, role_of(to));
  if (question.is_lie()) return {};
  return question.passes() ? inner_.rename(from, to, replaces) : question.failure();
}

Result<void> InterceptedStorage::copy_attributes(const std::filesystem::path& from, File& to) {
  const Question question(interceptor_, FileCall::SetMode, role_of(from));
  if (question.is_lie()) return {};
  if (!question.passes()) return question.failure();
  auto* wrapped_file = dynamic_cast<InterceptedFile*>(&to);
  return inner_.copy_attributes(from, wrapped_file != nullptr ? wrapped_file->inner() : to);
}

Result<void> InterceptedStorage::copy_attributes(const File& from, File& to) {
  const auto* wrapped_from = dynamic_cast<const InterceptedFile*>(&from);
  const FileRole role = wrapped_from != nullptr ? wrapped_from->role() : FileRole::Archive;
  const Question question(interceptor_, FileCall::SetMode, role);
  if (question.is_lie()) return {};
  if (!question.passes()) return question.failure();
  auto* wrapped_file = dynamic_cast<InterceptedFile*>(&to);
  return inner_.copy_attributes(wrapped_from != nullptr ? wrapped_from->inner() : from,
                                wrapped_file != nullptr ? wrapped_file->inner() : to);
}

Result<bool> InterceptedStorage::make_directory(const std::filesystem::path& path) {
  const Question question(interceptor_, FileCall::MakeDirectory, FileRole::Directory);
  if (!question.passes()) return question.failure();
  return inner_.make_directory(path);
}

Result<void> InterceptedStorage::remove_directory(const std::filesystem::path& path) {
  const Question question(interceptor_, FileCall::RemoveDirectory, FileRole::Directory);
  if (question.is_lie()) return {};
  return question.passes() ? inner_.remove_directory(path) : question.failure();
}

Result<void> InterceptedStorage::sync_directory(const std::filesystem::path& directory) {
  const Question question(interceptor_, FileCall::SyncDirectory, FileRole::Directory);
  if (question.passes()) return inner_.sync_directory(directory);
  if (question.is_lie()) return {};
  return question.failure();
}

Result<std::vector<std::string>> InterceptedStorage::list(const std::filesystem::path& directory,
                                                          const std::string& prefix) {
  const Question question(interceptor_, FileCall::List, FileRole::Directory);
  if (!question.passes()) return question.failure();
  return inner_.list(directory, prefix);
}

Result<FileStatus> InterceptedStorage::status(const std::filesystem::path& path) {
  const Question question(interceptor_, FileCall::PathStatus, role_of(path));
  if (!question.passes()) return question.failure();
  return inner_.status(path);
}

Result<FileStatus> InterceptedStorage::status_of_name(const std::filesystem::path& path) {
  const Question question(interceptor_, FileCall::PathStatus, role_of(path));
  if (!question.passes()) return question.failure();
  return inner_.status_of_name(path);
}

}  // namespace stfs::test
