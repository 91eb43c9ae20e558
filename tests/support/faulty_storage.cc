// Counting, failing, passing on.
#include "tests/support/faulty_storage.h"

#include <utility>

namespace stfs::test {
namespace {

enum class Role : std::uint8_t { Archive, Staging };

class FaultyFile final : public File {
 public:
  FaultyFile(std::unique_ptr<File> file, Role role, std::shared_ptr<FaultPlan> plan)
      : file_(std::move(file)), role_(role), plan_(std::move(plan)) {}

  Result<void> read(std::span<std::byte> to, std::uint64_t offset) const override {
    if (auto ok = plan_->before(FileCall::Read, subject()); !ok) return ok;
    return file_->read(to, offset);
  }

  Result<void> write(std::span<const std::byte> from, std::uint64_t offset) override {
    auto ok = plan_->before(FileCall::Write, subject());
    if (!ok && !plan_->tears_writes()) return ok;
    if (role_ == Role::Archive) plan_->note_archive_touched();
    if (ok) return file_->write(from, offset);
    if (auto torn = file_->write(from.first(from.size() / 2), offset); !torn) return torn;
    return ok;
  }

  Result<void> reserve(ByteRange range) override {
    if (auto ok = plan_->before(FileCall::Reserve, subject()); !ok) return ok;
    return file_->reserve(range);
  }

  Result<void> sync() override {
    if (auto ok = plan_->before(FileCall::Sync, subject()); !ok) return ok;
    return file_->sync();
  }

  Result<FileStatus> status() const override {
    if (auto ok = plan_->before(FileCall::Status, subject()); !ok) return pass_on(std::move(ok));
    return file_->status();
  }

  int descriptor() const override { return file_->descriptor(); }

 private:
  [[nodiscard]] std::string subject() const {
    return role_ == Role::Archive ? "faulty archive" : "faulty staging file";
  }

  std::unique_ptr<File> file_;
  Role role_;
  std::shared_ptr<FaultPlan> plan_;
};

Result<std::unique_ptr<File>> made_faulty(Result<std::unique_ptr<File>> file, Role role,
                                          const std::shared_ptr<FaultPlan>& plan) {
  if (!file) return file;
  return std::make_unique<FaultyFile>(std::move(*file), role, plan);
}

}  // namespace

void FaultPlan::restart(unsigned nth, int errno_value) {
  nth_ = nth;
  errno_value_ = errno_value;
  calls_ = matching_calls_ = 0;
  failed_kind_ = -1;
  has_touched_archive_ = false;
}

void FaultPlan::fail_call(unsigned nth, int errno_value) {
  kind_.reset();
  restart(nth, errno_value);
}

void FaultPlan::fail_call(FileCall kind, unsigned nth, int errno_value) {
  kind_ = kind;
  restart(nth, errno_value);
}

std::optional<FileCall> FaultPlan::failed() const {
  const int kind = failed_kind_;
  if (kind < 0) return std::nullopt;
  return static_cast<FileCall>(kind);
}

Result<void> FaultPlan::before(FileCall kind, const std::string& subject) {
  ++calls_;
  if (kind_ && *kind_ != kind) return {};
  if (++matching_calls_ != nth_) return {};
  failed_kind_ = static_cast<int>(kind);
  return fail_system(errno_value_, subject, "injected fault");
}

Result<std::unique_ptr<File>> FaultyStorage::open(const std::filesystem::path& path, Access access) {
  if (auto ok = plan_->before(FileCall::Open, path.string()); !ok) return pass_on(std::move(ok));
  return made_faulty(system_storage().open(path, access), Role::Archive, plan_);
}

Result<std::unique_ptr<File>> FaultyStorage::create_unnamed(const std::filesystem::path& directory) {
  if (auto ok = plan_->before(FileCall::CreateUnnamed, directory.string()); !ok)
    return pass_on(std::move(ok));
  return made_faulty(system_storage().create_unnamed(directory), Role::Staging, plan_);
}

Result<FileStatus> FaultyStorage::status(const std::filesystem::path& path) {
  if (auto ok = plan_->before(FileCall::PathStatus, path.string()); !ok) return pass_on(std::move(ok));
  return system_storage().status(path);
}

}  // namespace stfs::test
