// Runs the operations of a plan one by one, with the operations in their course.
#include "tests/simulation/simulation.h"

#include <fmt/format.h>

#include <exception>
#include <iostream>
#include <ostream>

#include "tests/simulation/clock.h"
#include "tests/simulation/descriptor_deeds.h"
#include "tests/simulation/machine.h"
#include "tests/simulation/mount_deeds.h"
#include "tests/simulation/mount_log.h"
#include "tests/simulation/path_deeds.h"
#include "tests/simulation/stranger_deeds.h"
#include "tests/simulation/transaction_deeds.h"

namespace stfs::test {
namespace {

constexpr unsigned kMostWaits = 10'000;

class Simulation final : public Interceptor {
 public:
  Simulation(const Plan& plan, SimulationCounts& counts, std::ostream* trace)
      : plan_(plan),
        counts_(counts),
        trace_(trace),
        clock_([this] { meanwhile(true); }, [this] { tell_standstill(); }),
        machine_(plan.seed, counts, *this, [this] { return wait(); }),
        situation_(machine_.situation()),
        path_(machine_),
        descriptor_(machine_),
        transaction_(machine_),
        of_mount_(machine_),
        stranger_(machine_) {
    machine_.kernel().trace_to(trace_);
  }

  std::string run() {
    const Truth& truth = machine_.truth();
    try {
      machine_.begin();
      for (const Operation& operation : plan_.operations) {
        do_one(operation);
        if (!truth.wrong().empty()) return truth.wrong();
      }
      machine_.end();
    } catch (const std::exception& exception) {
      return exception.what();
    }
    counts_.requests += machine_.kernel().requests();
    counts_.commits += truth.commits_done();
    return truth.wrong();
  }

 private:
  void do_one(const Operation& operation) {
    if (trace_ != nullptr) *trace_ << text_of(operation) << '\n';
    now_ = &operation;
    situation_.fault = 0;
    calls_ = calls_that_fail_ = 0;
    situation_.depth = 1;
    perform(operation);
    situation_.depth = 0;
    now_ = nullptr;
    if (!machine_.is_mounted()) {
      if (trace_ != nullptr) *trace_ << "    the mount has gone\n";
      machine_.mount_again();
    }
  }

  Verdict before(const SeamCall& call) override {
    // The result of another program's write is unknown while a commit copies blocks from its journal, and
    // until the status call behind the copy.
    const bool is_write =
        (call.role == FileRole::Archive && (call.kind == FileCall::Write || call.kind == FileCall::Clone)) ||
        (call.role == FileRole::Journal && call.kind == FileCall::Read);
    call_ = &call;
    is_blind_ = is_write || (was_write_ && call.role == FileRole::Archive && call.kind == FileCall::Status);
    was_write_ = is_write;
    meanwhile(false);
    is_blind_ = false;
    call_ = nullptr;
    return fault_of(call);
  }

  /// Returns the result of this call, which may be the operation's fault.
  Verdict fault_of(const SeamCall& call) {
    if (situation_.depth != 1 || now_ == nullptr || !now_->fault || !machine_.is_mounted()) return {};
    if (!can_fail(call.kind) || !machine_.truth().takes_faults()) return {};
    const Operation::Fault& fault = *now_->fault;
    if (calls_that_fail_++ != fault.at) return {};
    if (trace_ != nullptr)
      *trace_ << fmt::format("    {} of {} fails\n", name_of(call.kind), name_of(call.role));
    ++counts_.faults;
    const int error = call.kind == FileCall::Read ? EIO : fault.errno_value;
    situation_.fault = error;
    machine_.truth().note_fault(call, error);
    const bool is_cut = fault.cuts_short && call.kind == FileCall::Write;
    return {.kind = is_cut ? Verdict::Kind::CutShort : Verdict::Kind::Fail, .errno_value = error};
  }

  static bool can_fail(FileCall kind) {
    switch (kind) {
      case FileCall::CreateUnnamed:
      case FileCall::Publish:
      case FileCall::Remove:
      case FileCall::SyncDirectory:
      case FileCall::Read:
      case FileCall::Write:
      case FileCall::Clone:
      case FileCall::Reserve:
      case FileCall::Sync:
      case FileCall::SetOwner:
      case FileCall::Resize:
      case FileCall::Punch:
      case FileCall::Create:
      case FileCall::Rename:
      case FileCall::SetMode: return true;
      default: return false;
    }
  }

  /// Runs the operations that are planned for this call or wait.
  /// @param may_wait  they can't wait for a lock, except for the locks of the content that is being written.
  void meanwhile(bool may_wait) {
    if (situation_.depth != 1 || now_ == nullptr || !machine_.is_mounted()) return;
    const std::uint32_t at = calls_++;
    for (const auto& [when, operation] : now_->meanwhile) {
      if (when != at || !machine_.is_mounted() || !may_come(operation.deed, may_wait)) continue;
      if (trace_ != nullptr) tell_meanwhile(at, operation);
      const Target target = machine_.truth().noted_target();
      situation_.depth = 2;
      perform(operation);
      situation_.depth = 1;
      machine_.truth().note_target(target);
    }
  }

  void tell_meanwhile(std::uint32_t at, const Operation& operation) {
    const std::string where =
        call_ == nullptr ? std::string("waiting")
                         : fmt::format("before {} of {}", name_of(call_->kind), name_of(call_->role));
    *trace_ << fmt::format("    meanwhile ({}, {}) {}\n", at, where, name_of(operation.deed));
  }

  [[nodiscard]] bool may_come(Deed deed, bool may_wait) const {
    switch (deed) {
      // The first writer opens the archive for all writers. The others wait for that.
      case Deed::Open:
      case Deed::Write: return may_wait || machine_.has_opened_for_writing();
      case Deed::Put: return !is_blind_;
      // These operations wait for a commit.
      case Deed::Close:
      case Deed::Sync:
      case Deed::Kill:
      case Deed::WriteBack:
      case Deed::Release:
      case Deed::Invalidate:
      case Deed::Look: return may_wait;
      default: return true;
    }
  }

  /// Lets other operations run while this one waits for a reply.
  bool wait() {
    if (++waits_ > kMostWaits) return false;
    const unsigned depth = situation_.depth;
    meanwhile(true);
    situation_.depth = depth;
    if (machine_.is_mounted() && machine_.mount().invalidate()) waits_ = 0;
    return true;
  }

  void tell_standstill() {
    std::cerr << "in the operation: " << (now_ == nullptr ? "" : text_of(*now_)) << "\n"
              << replay_hint() << std::endl;
  }

  void perform(const Operation& operation) {
    ++counts_.operations;
    waits_ = 0;
    const auto [a, b, c, d] = operation.numbers;
    switch (operation.deed) {
      case Deed::ReadPath: return path_.read_path(a, b, c);
      case Deed::ReadView: return path_.read_view(a, b, c);
      case Deed::Stat: return path_.stat(a, b);
      case Deed::List: return path_.list(a, b);
      case Deed::Checksum: return path_.checksum(a, b);
      case Deed::Open: return path_.open(a, b, c);
      case Deed::WriteWhole: return path_.write_whole(a, b, c, d);
      case Deed::ResizePath: return path_.resize_path(a, b, c);
      case Deed::Read: return descriptor_.read(a, b, c, d);
      case Deed::Write: return descriptor_.write(a, b, c, d);
      case Deed::Close: return descriptor_.close(a, b);
      case Deed::Sync: return descriptor_.sync(a, b);
      case Deed::Resize: return descriptor_.resize(a, b, c);
      case Deed::Duplicate: return descriptor_.duplicate(a, b);
      case Deed::Map: return descriptor_.map(a, b);
      case Deed::Store: return descriptor_.store(a, b, c, d);
      case Deed::Unmap: return descriptor_.unmap(a, b);
      case Deed::Fork: return descriptor_.fork(a, b);
      case Deed::Exit: return descriptor_.end_one(a, Ending::Closes);
      case Deed::Kill: return descriptor_.end_one(a, Ending::Killed);
      case Deed::Begin: return transaction_.begin(a, b);
      case Deed::Commit: return transaction_.commit(a, b);
      case Deed::Abandon: return transaction_.abandon(a, b);
      case Deed::WriteBack: return of_mount_.write_back(a);
      case Deed::Reclaim: return machine_.kernel().reclaim(a);
      case Deed::Release: return of_mount_.release(a);
      case Deed::Invalidate: return of_mount_.invalidate(a);
      case Deed::Look: return of_mount_.look();
      case Deed::Tidy: return of_mount_.tidy();
      case Deed::Remount:
        if (situation_.depth == 1) machine_.remount();
        return;
      case Deed::KillMount: return machine_.kill_mount();
      case Deed::LosePower: situation_.has_lost_power = true; return machine_.kill_mount();
      case Deed::Put: return stranger_.put(a, b, c, d);
      case Deed::ForeignWrite: return stranger_.foreign_write(a, b, c);
      case Deed::Replace: return stranger_.replace();
      case Deed::ChangeAccess: return stranger_.change_access();
    }
  }

  const Plan& plan_;
  SimulationCounts& counts_;
  std::ostream* const trace_;
  SimulatedClock clock_;
  Machine machine_;
  Situation& situation_;
  PathDeeds path_;
  DescriptorDeeds descriptor_;
  TransactionDeeds transaction_;
  MountDeeds of_mount_;
  StrangerDeeds stranger_;
  const SeamCall* call_ = nullptr;  // the call that comes next
  bool was_write_ = false;          // the last call
  bool is_blind_ = false;
  const Operation* now_ = nullptr;
  std::uint32_t calls_ = 0;
  std::uint32_t calls_that_fail_ = 0;  // or could have failed
  unsigned waits_ = 0;
};

}  // namespace

std::string simulate(const Plan& plan, SimulationCounts& counts, std::ostream* trace) {
  show_log(trace);
  std::string wrong = Simulation(plan, counts, trace).run();
  show_log(nullptr);
  return wrong;
}

}  // namespace stfs::test
