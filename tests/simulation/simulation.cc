// Operations become system calls, and what comes of them is compared with the truth.
#include "tests/simulation/simulation.h"

#include <fcntl.h>
#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <exception>
#include <iostream>
#include <memory>
#include <optional>
#include <ostream>
#include <set>
#include <sstream>
#include <utility>

#include "core/checksum.h"
#include "core/transaction.h"
#include "tests/simulation/clock.h"
#include "tests/simulation/mount_log.h"
#include "tests/simulation/mounted_archive.h"
#include "tests/simulation/truth.h"
#include "tests/support/disk_crash.h"
#include "tests/support/text_archive.h"

namespace stfs::test {
namespace {

const std::string kPath = "/models/model.safetensors";
const std::string kDirectory = "/models";
constexpr std::size_t kMostPrograms = 5;
constexpr std::string_view kNames[] = {"a", "b", "c", "d"};
constexpr std::string_view kTransactions[] = {"T0", "T1"};
constexpr unsigned kMostWaits = 10'000;
constexpr std::string_view kTransactionsPath = ".safetensors/transactions/";

std::string hint;

class Simulation final : public Interceptor {
 public:
  Simulation(const Plan& plan, SimulationCounts& counts, std::ostream* trace)
      : plan_(plan),
        counts_(counts),
        trace_(trace),
        choices_(plan.seed),
        clock_([this] { meanwhile(true); }, [this] { tell_standstill(); }),
        truth_(processes_, [this] { return stored(); }),
        kernel_(truth_, [this] { return wait(); }) {}

  ~Simulation() override {
    mount_.reset();
    for (auto& program : programs_) program.reset();
    show_processes(nullptr);
  }

  std::string run() {
    MountedArchive::begin_ids();
    show_processes(&processes_);
    kernel_.trace_to(trace_);
    try {
      begin();
      for (const Operation& operation : plan_.operations) {
        do_one(operation);
        if (!truth_.wrong().empty()) return truth_.wrong();
      }
      end();
    } catch (const std::exception& exception) {
      return exception.what();
    }
    counts_.requests += kernel_.requests();
    counts_.commits += truth_.commits_done();
    return truth_.wrong();
  }

 private:
  // ---- the archive and the mount ----

  Contents draw_contents() {
    Contents contents;
    const std::uint64_t sizes[] = {16, 5'000, 3 * kPageBytes + 100, 9'000};
    const std::size_t turn = choices_.below(3) == 0 ? 1 : 0;  // other sizes, sometimes
    for (std::size_t at = 0; at < std::size(kNames); ++at)
      contents[std::string(kNames[at])] = fresh(sizes[(at + turn) % std::size(sizes)]);
    return contents;
  }

  Buffer fresh(std::uint64_t size_bytes) {
    Buffer bytes(size_bytes);
    RandomChoices random(++written_);
    for (std::uint64_t at = 0; at < size_bytes; at += 8) {
      const std::uint64_t word = random.next();
      std::memcpy(bytes.data() + at, &word, std::min<std::uint64_t>(8, size_bytes - at));
    }
    return bytes;
  }

  Buffer archive_bytes_of(const Contents& contents) {
    Tensors tensors;
    for (const auto& [name, content] : contents)
      tensors.emplace_back(
          name, std::string(reinterpret_cast<const char*>(content.data()), content.size()));  // NOLINT
    const std::string bytes = archive_of(tensors);
    std::uint64_t at = bytes.size();
    for (const auto& [name, content] : contents) at -= content.size();
    places_.clear();
    for (const auto& [name, content] : contents) {
      places_[name] = {at, content.size()};
      at += content.size();
    }
    const auto all = std::as_bytes(std::span(bytes));
    return {all.begin(), all.end()};
  }

  /// What lies in the file, whatever journals say.
  Contents stored() {
    const DiskImage image = disk_->image();
    const InodeNumber inode = image.inode_at(kPath);
    Contents contents;
    for (const auto& [name, place] : places_) {
      Buffer& content = contents[name];
      content.resize(place.size_bytes);
      truth_.expect(image.read(inode, place.offset, content), "the archive was cut");
    }
    return contents;
  }

  void begin() {
    options_.has_clone = choices_.one_in(2);
    options_.has_unnamed = !choices_.one_in(4);
    if (choices_.one_in(2)) options_.most_range_bytes = kDiskBlockBytes;
    disk_ = std::make_unique<DiskModel>(options_);
    Contents contents = draw_contents();
    disk_->put(kPath, archive_bytes_of(contents));
    truth_.begin(std::move(contents));
    mount();
  }

  void mount() {
    ++counts_.mounts;
    generations_.clear();
    is_noticed_ = true;
    was_replaced_ = false;
    commits_before_ = truth_.commits_done();
    mount_ = std::make_unique<MountedArchive>(*disk_, kernel_, *this, kPath);
    while (programs_.size() < kMostPrograms) programs_.emplace_back();
    for (auto& program : programs_) {
      if (!program) start(program);
    }
  }

  void start(std::unique_ptr<Program>& place) {
    const pid_t id = ++last_process_;
    processes_[id] = {};
    place = std::make_unique<Program>(kernel_.start(id, 0));
  }

  /// All programs exit.
  void end_programs() {
    const auto is_there = [](const auto& program) { return program != nullptr; };
    // One may have a child meanwhile.
    for (auto at = std::ranges::find_if(programs_, is_there); at != programs_.end();
         at = std::ranges::find_if(programs_, is_there)) {
      end_program(*at, Ending::Closes);
    }
  }

  void end_program(std::unique_ptr<Program>& program, Ending ending) {
    const pid_t id = program->id;
    processes_[id].ending = ending;
    program->is_busy = true;
    kernel_.end(*program);
    processes_.erase(id);
    program.reset();
  }

  void end() {
    unmount();
    if (!truth_.wrong().empty()) return;
    truth_.expect(!disk_->has_locks_held(), "a lock is held after everybody has gone");
    const auto anybody = disk_->start_process();
    for (const std::string& name : anybody->list(kDirectory, ".").value_or(std::vector<std::string>()))
      truth_.expect(may_be_foreign_, "LEFT BEHIND: " + name);
  }

  void unmount() {
    end_programs();
    calm_down();
    if (mount_->is_dead()) return;
    mount_.reset();
    if (!truth_.wrong().empty()) return;
    truth_.lose_mount();
    truth_.adopt(stored());
  }

  /// Until nothing is under way.
  void calm_down() {
    while (kernel_.release_one() || mount_->invalidate()) {
    }
  }

  /// After KillMount and LosePower.
  void mount_again() {
    for (auto& program : programs_) {
      if (!program) continue;
      kernel_.end(*program);
      processes_.erase(program->id);
      program.reset();
    }
    mount_.reset();
    const DiskImage image = after_kill(disk_->image());
    if (has_lost_power_) ++counts_.power_losses;
    const DiskImage left =
        has_lost_power_ ? after_random_power_loss(image, choices_, options_.has_stale_blocks) : image;
    has_lost_power_ = false;
    disk_ = std::make_unique<DiskModel>(options_, left);
    mount();
    truth_.adopt(stored());
  }

  // ---- one after the other, and in between ----

  void do_one(const Operation& operation) {
    if (trace_ != nullptr) *trace_ << text_of(operation) << '\n';
    now_ = &operation;
    calls_ = 0;
    depth_ = 1;
    perform(operation, true);
    depth_ = 0;
    now_ = nullptr;
    if (mount_->is_dead()) {
      if (trace_ != nullptr) *trace_ << "    the mount has gone\n";
      mount_again();
    }
  }

  Verdict before(const SeamCall& call) override {
    // Nobody can tell what others write while a commit copies blocks out of its journal, and up to the look
    // behind.
    const bool is_write =
        (call.role == FileRole::Archive && (call.kind == FileCall::Write || call.kind == FileCall::Clone)) ||
        (call.role == FileRole::Journal && call.kind == FileCall::Read);
    call_ = &call;
    is_blind_ = is_write || (was_write_ && call.role == FileRole::Archive && call.kind == FileCall::Status);
    was_write_ = is_write;
    meanwhile(false);
    is_blind_ = false;
    call_ = nullptr;
    return {};
  }

  /// The operations that come now.
  /// @param may_wait  no lock is held that they could wait for, but those of what is written.
  void meanwhile(bool may_wait) {
    if (depth_ != 1 || now_ == nullptr || mount_ == nullptr || mount_->is_dead()) return;
    const std::uint32_t at = calls_++;
    for (const auto& [when, operation] : now_->meanwhile) {
      if (when != at || mount_->is_dead() || !may_come(operation.deed, may_wait)) continue;
      if (trace_ != nullptr) tell_meanwhile(at, operation);
      const Target target = truth_.noted_target();
      depth_ = 2;
      perform(operation, may_wait);
      depth_ = 1;
      truth_.note_target(target);
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
      // The first writer opens the archive for all of them, who wait.
      case Deed::Open:
      case Deed::Write: return may_wait || (truth_.commits_done() > commits_before_ && !was_replaced_);
      case Deed::Put: return !is_blind_;
      // These wait for a commit.
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

  /// Who waits for an answer lets others go on.
  bool wait() {
    if (++waits_ > kMostWaits) return false;
    const unsigned depth = depth_;
    meanwhile(true);
    depth_ = depth;
    if (mount_ == nullptr || mount_->is_dead()) return true;
    if (mount_->invalidate()) waits_ = 0;
    return true;
  }

  void tell_standstill() {
    std::cerr << "in the operation: " << (now_ == nullptr ? "" : text_of(*now_)) << "\n" << hint << std::endl;
  }

  void perform(const Operation& operation, bool may_wait) {
    ++counts_.operations;
    waits_ = 0;
    const auto [a, b, c, d] = operation.numbers;
    switch (operation.deed) {
      case Deed::ReadPath: return read_path(a, b, c);
      case Deed::ReadView: return read_view(a, b, c);
      case Deed::Stat: return stat(a, b);
      case Deed::List: return list(a, b);
      case Deed::Checksum: return checksum(a, b);
      case Deed::Open: return open(a, b, c);
      case Deed::WriteWhole: return write_whole(a, b, c, d);
      case Deed::ResizePath: return resize_path(a, b, c);
      case Deed::Read: return read(a, b, c, d);
      case Deed::Write: return write(a, b, c, d);
      case Deed::Close: return close(a, b);
      case Deed::Sync: return sync(a, b);
      case Deed::Resize: return resize(a, b, c);
      case Deed::Duplicate: return duplicate(a, b);
      case Deed::Map: return map(a, b);
      case Deed::Store: return store(a, b, c, d);
      case Deed::Unmap: return unmap(a, b);
      case Deed::Fork: return fork(a, b);
      case Deed::Exit: return end_one(a, Ending::Closes);
      case Deed::Kill: return end_one(a, Ending::Killed);
      case Deed::Begin: return begin_transaction(a, b);
      case Deed::Commit: return commit_transaction(a, b);
      case Deed::Abandon: return abandon_transaction(a, b);
      case Deed::WriteBack: return write_back(a);
      case Deed::Reclaim: return kernel_.reclaim(a);
      case Deed::Release: return release(a);
      case Deed::Invalidate: return invalidate(a);
      case Deed::Look: return look();
      case Deed::Tidy: return tidy(may_wait);
      case Deed::Remount: return remount();
      case Deed::KillMount: return kill_mount();
      case Deed::LosePower: has_lost_power_ = true; return kill_mount();
      case Deed::Put: return put(a, b, c);
      case Deed::ForeignWrite: return foreign_write(a, b, c);
      case Deed::Replace: return replace();
    }
  }

  // ---- what there is to choose from ----

  Program* pick(std::uint32_t number) {
    for (std::size_t tries = 0; tries < programs_.size(); ++tries) {
      Program* program = programs_[(number + tries) % programs_.size()].get();
      if (program != nullptr && !program->is_busy) return program;
    }
    return nullptr;
  }

  static std::optional<std::size_t> pick_descriptor(const Program& program, std::uint32_t number) {
    std::vector<std::size_t> open;
    for (std::size_t at = 0; at < program.descriptors.size(); ++at) {
      if (program.descriptors[at]) open.push_back(at);
    }
    return open.empty() ? std::nullopt : std::optional(open[number % open.size()]);
  }

  Target pick_target(std::uint32_t number) {
    Target target{.edition = truth_.edition(),
                  .tensor = std::string(kNames[number % std::size(kNames)]),
                  .transaction = {}};
    const std::uint32_t where = number / 4 % 4;
    if (where < std::size(kTransactions) && truth_.has_transaction(std::string(kTransactions[where]))) {
      target.transaction = kTransactions[where];
      target.begun = truth_.begun(target.transaction);
    }
    return target;
  }

  static std::string path_of(const Target& target) {
    if (target.transaction.empty()) return target.tensor;
    return std::string(kTransactionsPath) + target.transaction + "/" + target.tensor;
  }

  /// Others would wait for who is at it.
  [[nodiscard]] bool is_busy(const Target& target) const {
    return truth_.is_busy(target) || (reading_ && reading_->tensor == target.tensor) ||
           (reading_ && !target.transaction.empty() && reading_->transaction == target.transaction) ||
           (!target.transaction.empty() && target.transaction == committing_);
  }

  /// While a program is in a system call, nobody else uses it.
  class Busy {
   public:
    explicit Busy(Program& program) : program_(program) { program_.is_busy = true; }
    ~Busy() { program_.is_busy = false; }
    Busy(const Busy&) = delete;
    Busy& operator=(const Busy&) = delete;

   private:
    Program& program_;
  };

  // ---- programs ----

  void expect(bool holds, const std::string& what) {
    if (!kernel_.is_aborted()) truth_.expect(holds, what);
  }

  /// The whole file, by its path.
  void read_path(std::uint32_t a, std::uint32_t b, std::uint32_t c) {
    Program* program = pick(a);
    const Target target = pick_target(b);
    if (program == nullptr || is_busy(target) || truth_.is_turning()) return;
    const Busy busy(*program);
    truth_.note_target(target);
    const auto opened = kernel_.open(*program, path_of(target), O_RDONLY);
    expect(opened.error == 0, fmt::format("open of {} gives {}", path_of(target), opened.error));
    if (opened.error != 0) return;
    const DescriptionPointer file = program->descriptors[opened.value];
    const std::uint64_t size = target.edition->committed.at(target.tensor).size();
    const std::uint64_t offset = c % 3 == 0 ? c / 3 % size : 0;
    read_and_check(*program, file, offset, size);
    if (c % 5 != 0) kernel_.close(*program, opened.value);
  }

  void read_and_check(Program& program, const DescriptionPointer& file, std::uint64_t offset,
                      std::uint64_t size) {
    const Target target = truth_.target_of(*file);
    if (is_busy(target) || kernel_.is_dirty(file->node, 0, ~0ULL >> 1U)) return;
    // An append to what was cut makes the kernel believe in more, until it looks.
    const std::uint64_t all = target.edition->committed.at(target.tensor).size();
    size = std::min(size, all - std::min(all, offset));
    const auto before = std::exchange(reading_, target);
    const auto got = kernel_.read(program, file, offset, size);
    reading_ = before;
    expect(got.error == 0 || truth_.has_ended(target), fmt::format("a read gives {}", got.error));
    if (kernel_.is_aborted() || got.error != 0) return;
    ++counts_.checks;
    truth_.check_read(target, offset, got.value);
  }

  void read_view(std::uint32_t a, std::uint32_t b, std::uint32_t c) {
    Program* program = pick(a);
    const Target target{
        .edition = truth_.edition(), .tensor = std::string(kNames[b % std::size(kNames)]), .transaction = {}};
    if (program == nullptr || is_busy(target) || truth_.is_turning()) return;
    const Busy busy(*program);
    const std::uint64_t size = target.edition->committed.at(target.tensor).size();
    const std::uint64_t part = 1 + c / 3 % size;
    const bool is_slice = c % 3 == 1;
    const std::string path = c % 3 == 0 ? ".safetensors/npy/" + target.tensor + ".npy"
                             : is_slice ? fmt::format(".safetensors/slice/{}[0:{}]", target.tensor, part)
                                        : ".safetensors/archive.safetensors";
    truth_.note_target(target);
    const auto opened = kernel_.open(*program, path, O_RDONLY);
    expect(opened.error == 0, fmt::format("open of {} gives {}", path, opened.error));
    if (opened.error != 0) return;
    const DescriptionPointer file = program->descriptors[opened.value];
    const std::uint64_t all = kernel_.size_bytes(file->node);
    const std::uint64_t wanted = is_slice ? part : size;
    // Bytes stand at the end, but for those of the tensors behind it.
    std::uint64_t begin = all - wanted;
    if (c % 3 == 2) {
      for (const auto& [name, content] : target.edition->committed) {
        if (name > target.tensor) begin -= content.size();
      }
    }
    const auto got = kernel_.read(*program, file, begin, wanted);
    expect(got.error == 0, fmt::format("a read of {} gives {}", path, got.error));
    if (!kernel_.is_aborted() && got.error == 0) {
      ++counts_.checks;
      expect(got.value.size() == wanted,
             fmt::format("{} has {} bytes in place of {}", path, got.value.size(), wanted));
      truth_.check_view(target, 0, got.value, begin % kPageBytes);
    }
    kernel_.close(*program, opened.value);
  }

  void stat(std::uint32_t a, std::uint32_t b) {
    Program* program = pick(a);
    const Target target = pick_target(b);
    if (program == nullptr || is_busy(target) || truth_.is_turning()) return;
    const Busy busy(*program);
    const auto got = kernel_.stat(*program, path_of(target));
    expect(got.error == 0, fmt::format("stat gives {}", got.error));
    if (kernel_.is_aborted() || got.error != 0) return;
    if (truth_.is_doubtful(target)) return;
    const auto size = truth_.size_of(target);
    expect(got.value.size == size,
           fmt::format("{} has a size of {} in place of {}", path_of(target), got.value.size, size));
  }

  void list(std::uint32_t a, std::uint32_t b) {
    Program* program = pick(a);
    if (program == nullptr || truth_.is_turning()) return;
    const Busy busy(*program);
    const bool is_root = b % 2 == 0;
    const auto got = kernel_.list(*program, is_root ? "" : ".safetensors/transactions");
    expect(got.error == 0, fmt::format("a listing gives {}", got.error));
    if (kernel_.is_aborted() || got.error != 0) return;
    std::set<std::string> names(got.value.begin(), got.value.end());
    expect(names.size() == got.value.size(), "a listing has a name twice");
    std::set<std::string> due = {".", ".."};
    if (is_root) {
      for (const std::string_view name : kNames) due.emplace(name);
    } else {
      for (const std::string_view name : kTransactions) {
        if (name == committing_)
          names.erase(committing_);
        else if (truth_.has_transaction(std::string(name)))
          due.emplace(name);
      }
    }
    expect(names == due, "a listing has other names");
  }

  void checksum(std::uint32_t a, std::uint32_t b) {
    Program* program = pick(a);
    const Target target{
        .edition = truth_.edition(), .tensor = std::string(kNames[b % std::size(kNames)]), .transaction = {}};
    if (program == nullptr || is_busy(target) || truth_.is_turning()) return;
    const Busy busy(*program);
    const auto generation = kernel_.attribute(*program, target.tensor, "user.safetensors.generation");
    expect(generation.error == 0, fmt::format("a generation gives {}", generation.error));
    if (generation.error == 0) {
      std::uint64_t& last = generations_[target.tensor];
      const std::uint64_t now = std::stoull(generation.value);
      expect(now >= last, "a generation shrinks");
      last = now;
    }
    if (depth_ > 1) return;  // changes may come in between
    const Buffer content = target.edition->committed.at(target.tensor);
    const auto got = kernel_.attribute(*program, target.tensor, "user.safetensors.checksum");
    expect(got.error == 0, fmt::format("a checksum gives {}", got.error));
    if (got.error != 0 || content != truth_.edition()->committed.at(target.tensor)) return;
    Checksum sum;
    sum.update(content);
    expect(got.value == "xxh128:" + sum.hex(), "a checksum is that of other bytes: tensor " + target.tensor);
  }

  void open(std::uint32_t a, std::uint32_t b, std::uint32_t c) {
    Program* program = pick(a);
    const Target target = pick_target(b);
    if (program == nullptr || is_busy(target) || truth_.is_turning()) return;
    const Busy busy(*program);
    static constexpr int kFlags[] = {
        O_RDONLY, O_WRONLY, O_RDWR, O_RDWR, O_WRONLY | O_TRUNC, O_WRONLY | O_APPEND, O_WRONLY | O_DSYNC};
    const int flags = kFlags[c % std::size(kFlags)];
    if ((flags & O_APPEND) != 0 && !target.transaction.empty()) return;
    truth_.note_target(target);
    const auto opened = kernel_.open(*program, path_of(target), flags);
    expect(opened.error == 0, fmt::format("open of {} gives {}", path_of(target), opened.error));
  }

  /// cp, in pieces.
  void write_whole(std::uint32_t a, std::uint32_t b, std::uint32_t c, std::uint32_t d) {
    Program* program = pick(a);
    const Target target = pick_target(b);
    if (program == nullptr || is_busy(target) || truth_.is_turning()) return;
    const Busy busy(*program);
    truth_.note_target(target);
    const auto opened = kernel_.open(*program, path_of(target), c % 2 == 0 ? O_WRONLY | O_TRUNC : O_WRONLY);
    expect(opened.error == 0, fmt::format("open of {} gives {}", path_of(target), opened.error));
    if (opened.error != 0) return;
    const DescriptionPointer file = program->descriptors[opened.value];
    const Buffer bytes = fresh(target.edition->committed.at(target.tensor).size());
    const std::uint64_t piece = 1 + d % (d % 3 == 0 ? 3 * kPageBytes : bytes.size());
    const std::uint64_t least = std::max<std::uint64_t>(piece, bytes.size() / 8 + 1);
    for (std::uint64_t at = 0; at < bytes.size(); at += least) {
      kernel_.write(*program, file, at,
                    std::span(bytes).subspan(at, std::min<std::uint64_t>(least, bytes.size() - at)));
    }
    kernel_.close(*program, opened.value);
  }

  void resize_path(std::uint32_t a, std::uint32_t b, std::uint32_t c) {
    Program* program = pick(a);
    const Target target = pick_target(b);
    if (program == nullptr || is_busy(target) || truth_.is_turning()) return;
    const Busy busy(*program);
    const std::uint64_t size = target.edition->committed.at(target.tensor).size();
    truth_.note_target(target);
    const std::uint64_t sizes[] = {size, 0, size + 1, size / 2};
    kernel_.resize_path(*program, path_of(target), sizes[c % std::size(sizes)]);
  }

  struct Chosen {
    Program* program = nullptr;
    std::size_t descriptor = 0;
    DescriptionPointer file{};
    Target target{};
  };
  /// A descriptor that nobody is at.
  std::optional<Chosen> choose(std::uint32_t a, std::uint32_t b) {
    Program* program = pick(a);
    if (program == nullptr) return std::nullopt;
    const auto at = pick_descriptor(*program, b);
    if (!at) return std::nullopt;
    Chosen chosen{.program = program, .descriptor = *at, .file = program->descriptors[*at]};
    chosen.target = truth_.target_of(*chosen.file);
    if (is_busy(chosen.target)) return std::nullopt;
    return chosen;
  }

  void read(std::uint32_t a, std::uint32_t b, std::uint32_t c, std::uint32_t d) {
    const auto chosen = choose(a, b);
    if (!chosen || (chosen->file->flags & O_ACCMODE) == O_WRONLY) return;
    const Busy busy(*chosen->program);
    const std::uint64_t size = chosen->target.edition->committed.at(chosen->target.tensor).size();
    const std::uint64_t offset = c % size;
    read_and_check(*chosen->program, chosen->file, offset, 1 + d % size);
  }

  void write(std::uint32_t a, std::uint32_t b, std::uint32_t c, std::uint32_t d) {
    const auto chosen = choose(a, b);
    if (!chosen || (chosen->file->flags & O_ACCMODE) == O_RDONLY) return;
    if (depth_ > 1 && (chosen->file->flags & O_DSYNC) != 0) return;
    const Busy busy(*chosen->program);
    const std::uint64_t size = chosen->target.edition->committed.at(chosen->target.tensor).size();
    const std::uint64_t offset = c % size;
    // Past the end, once in a while.
    const std::uint64_t most = d % 29 == 0 ? size : size - offset;
    const Buffer bytes = fresh(1 + d / 29 % most);
    kernel_.write(*chosen->program, chosen->file, offset, bytes);
  }

  void close(std::uint32_t a, std::uint32_t b) {
    auto chosen = choose(a, b);
    if (!chosen) return;
    const Busy busy(*chosen->program);
    chosen->file.reset();
    kernel_.close(*chosen->program, chosen->descriptor);
  }

  void sync(std::uint32_t a, std::uint32_t b) {
    const auto chosen = choose(a, b);
    if (!chosen) return;
    const Busy busy(*chosen->program);
    kernel_.sync(*chosen->program, chosen->file);
  }

  void resize(std::uint32_t a, std::uint32_t b, std::uint32_t c) {
    const auto chosen = choose(a, b);
    if (!chosen || (chosen->file->flags & O_ACCMODE) == O_RDONLY) return;
    const Busy busy(*chosen->program);
    const std::uint64_t size = chosen->target.edition->committed.at(chosen->target.tensor).size();
    const std::uint64_t sizes[] = {size, 0, size / 2, size, size + 1};
    kernel_.resize(*chosen->program, chosen->file, sizes[c % std::size(sizes)]);
  }

  void duplicate(std::uint32_t a, std::uint32_t b) {
    const auto chosen = choose(a, b);
    if (chosen) chosen->program->descriptors.push_back(chosen->file);
  }

  void map(std::uint32_t a, std::uint32_t b) {
    const auto chosen = choose(a, b);
    if (chosen) kernel_.map(*chosen->program, chosen->file);
  }

  void store(std::uint32_t a, std::uint32_t b, std::uint32_t c, std::uint32_t d) {
    Program* program = pick(a);
    if (program == nullptr || program->mappings.empty()) return;
    const DescriptionPointer file = program->mappings[b % program->mappings.size()];
    if (is_busy(truth_.target_of(*file))) return;
    const Busy busy(*program);
    const std::uint64_t size = kernel_.size_bytes(file->node);
    if (size == 0) return;
    const std::uint64_t offset = c % size;
    // The page is read first.
    const auto before = std::exchange(reading_, truth_.target_of(*file));
    kernel_.store(*program, file, offset, fresh(1 + d % std::min<std::uint64_t>(size - offset, 300)));
    reading_ = before;
  }

  void unmap(std::uint32_t a, std::uint32_t b) {
    Program* program = pick(a);
    if (program == nullptr || program->mappings.empty()) return;
    const Busy busy(*program);
    kernel_.unmap(*program, b % program->mappings.size());
  }

  void fork(std::uint32_t a, std::uint32_t b) {
    Program* program = pick(a);
    auto& place = programs_[b % programs_.size()];
    if (program == nullptr || place.get() == program || (place && place->is_busy)) return;
    // It does nothing else meanwhile, and does not end.
    const Busy busy(*program);
    if (place) {
      if (depth_ > 1) return;
      end_program(place, Ending::Closes);
      if (place) return;
    }
    const pid_t id = ++last_process_;
    processes_[id] = {};
    place = std::make_unique<Program>(kernel_.fork(*program, id));
  }

  void end_one(std::uint32_t a, Ending ending) {
    Program* program = pick(a);
    if (program == nullptr) return;
    for (auto& place : programs_) {
      if (place.get() != program) continue;
      for (const auto& file : place->descriptors) {
        if (file && is_busy(truth_.target_of(*file))) return;
      }
      for (const auto& file : place->mappings) {
        if (is_busy(truth_.target_of(*file))) return;
      }
      end_program(place, ending);
      start(place);
      return;
    }
  }

  // ---- transactions ----

  void begin_transaction(std::uint32_t a, std::uint32_t b) {
    Program* program = pick(a);
    if (program == nullptr || truth_.is_turning()) return;
    const Busy busy(*program);
    const std::string name(kTransactions[b % std::size(kTransactions)]);
    if (name == committing_) return;
    const bool is_there = truth_.has_transaction(name);
    const int error = kernel_.make_directory(*program, std::string(kTransactionsPath) + name);
    expect(error == (is_there ? EEXIST : 0), fmt::format("mkdir gives {}", error));
    if (error == 0) truth_.make_transaction(name);
  }

  void commit_transaction(std::uint32_t a, std::uint32_t b) {
    Program* program = pick(a);
    const std::string name(kTransactions[b % std::size(kTransactions)]);
    if (program == nullptr || truth_.is_turning() || !truth_.has_transaction(name)) return;
    const Busy busy(*program);
    while (kernel_.release_one()) {  // who waits for them waits for two seconds
    }
    if (kernel_.is_aborted()) return;
    truth_.commits(name);
    committing_ = name;
    const int error =
        kernel_.rename(*program, std::string(kTransactionsPath) + name, ".safetensors/committed/" + name);
    committing_.clear();
    if (!kernel_.is_aborted()) truth_.committed(name, error);
  }

  void abandon_transaction(std::uint32_t a, std::uint32_t b) {
    Program* program = pick(a);
    const std::string name(kTransactions[b % std::size(kTransactions)]);
    if (program == nullptr || truth_.is_turning() || !truth_.has_transaction(name)) return;
    const Busy busy(*program);
    while (kernel_.release_one()) {
    }
    if (kernel_.is_aborted()) return;
    const std::string path = std::string(kTransactionsPath) + name;
    const auto staged = kernel_.list(*program, path);
    for (const std::string& tensor : staged.value) {
      if (tensor == "." || tensor == ".." || kernel_.is_aborted()) continue;
      const int error = kernel_.unlink(*program, path + "/" + tensor);
      if (!kernel_.is_aborted()) truth_.unstage(name, tensor, error);
    }
    if (kernel_.is_aborted()) return;
    const int error = kernel_.remove_directory(*program, path);
    expect(error == (truth_.is_empty(name) ? 0 : ENOTEMPTY), fmt::format("rmdir gives {}", error));
    if (error == 0) truth_.remove_transaction(name);
  }

  // ---- the kernel and the mount ----

  void write_back(std::uint32_t a) {
    if (depth_ == 1) kernel_.write_back_some(a);
  }

  void release(std::uint32_t a) {
    if (depth_ > 1) return;
    for (std::uint32_t some = 1 + a % 3; some-- > 0 && kernel_.release_one();) {
    }
  }

  void invalidate(std::uint32_t a) {
    for (std::uint32_t some = a % 2 == 0 ? 1 + a / 2 % 3 : ~0U; some-- > 0 && mount_->invalidate();) {
    }
    settle();
  }

  void settle() {
    if (depth_ > 1 || !is_noticed_ || kernel_.is_aborted()) return;
    while (mount_->invalidate()) {
    }
    truth_.settle();
  }

  void look() {
    if (depth_ > 1) return;
    is_noticed_ = true;  // unless something changes meanwhile
    const bool is_done = mount_->look();
    is_noticed_ = is_noticed_ && is_done;
  }

  void tidy(bool) {
    if (depth_ == 1) mount_->tidy();
  }

  void kill_mount() {
    // Nobody touches a journal of an archive that has gone.
    may_be_foreign_ = may_be_foreign_ || was_replaced_;
    truth_.lose_mount();
    mount_->kill();
  }

  void remount() {
    if (depth_ > 1) return;
    unmount();
    if (mount_ == nullptr && truth_.wrong().empty()) mount();
  }

  // ---- others ----

  static Result<void> commit_to(Archive& archive, const std::string& tensor, std::uint64_t offset,
                                const Buffer& bytes) {
    Transaction transaction(archive);
    auto stage = transaction.stage(*archive.tensors().find(tensor));
    if (!stage) return pass_on(std::move(stage));
    if (auto written = (*stage)->write(bytes, offset); !written) return written;
    CommitOptions options;
    options.lock_patience = std::chrono::milliseconds(0);
    ReaderWriterLock readers;
    return transaction.commit(options, [&](std::uint32_t) -> ReaderWriterLock& { return readers; });
  }

  /// Another program commits to a tensor, or a part of it.
  void put(std::uint32_t a, std::uint32_t b, std::uint32_t c) {
    const std::string tensor(kNames[a % std::size(kNames)]);
    const auto process = disk_->start_process();
    auto archive = Archive::open(kPath, Access::ReadWrite, *process, Io::Pread);
    expect(archive.has_value(),
           "another program can't open the archive" + (archive ? "" : ": " + archive.error().message));
    if (!archive) return;
    const std::uint64_t size = truth_.edition()->committed.at(tensor).size();
    const std::uint64_t offset = b % size;
    const Buffer bytes = fresh(1 + c % (size - offset));
    auto done = commit_to(**archive, tensor, offset, bytes);
    // The journal that a mount keeps for its next small commit is settled when it has nothing to do.
    if (!done && done.error().errno_value == EBUSY && depth_ == 1) {
      mount_->tidy();
      if (kernel_.is_aborted()) return;
      done = commit_to(**archive, tensor, offset, bytes);
    }
    const bool is_refused =
        !done && depth_ > 1 && (done.error().errno_value == EBUSY || done.error().errno_value == ESTALE);
    expect(done || is_refused, "another program can't commit" + (done ? "" : ": " + done.error().message));
    if (!done) return;
    is_noticed_ = false;
    truth_.change(tensor, offset, bytes);
    if (reading_ && reading_->tensor == tensor) truth_.doubt(*reading_);  // a page may be half of each
  }

  /// dd, when no journal is kept: nobody can tell then what of it was there before.
  void foreign_write(std::uint32_t a, std::uint32_t b, std::uint32_t c) {
    if (depth_ > 1 || kernel_.is_aborted()) return;
    mount_->tidy();
    if (kernel_.is_aborted()) return;
    const std::string tensor(kNames[a % std::size(kNames)]);
    const std::uint64_t size = truth_.edition()->committed.at(tensor).size();
    const std::uint64_t offset = b % size;
    const Buffer bytes = fresh(1 + c % (size - offset));
    const auto process = disk_->start_process();
    auto file = process->open(kPath, Access::ReadWrite);
    const bool is_done = file && (*file)->write(bytes, places_.at(tensor).offset + offset) && (*file)->sync();
    expect(is_done, "another program can't write");
    is_noticed_ = false;
    truth_.change(tensor, offset, bytes);
  }

  void replace() {
    if (depth_ > 1) return;
    if (truth_.is_turning()) return;
    Contents contents = draw_contents();
    disk_->replace(kPath, archive_bytes_of(contents));
    is_noticed_ = false;
    was_replaced_ = true;
    truth_.replace(std::move(contents));
  }

  const Plan& plan_;
  SimulationCounts& counts_;
  std::ostream* const trace_;
  RandomChoices choices_;
  SimulatedClock clock_;
  DiskOptions options_;
  std::unique_ptr<DiskModel> disk_;
  std::map<std::string, ByteRange> places_;  // of the tensors in the archive
  ProcessTable processes_;
  Truth truth_;
  Kernel kernel_;
  std::unique_ptr<MountedArchive> mount_;
  std::vector<std::unique_ptr<Program>> programs_;
  std::map<std::string, std::uint64_t> generations_;
  pid_t last_process_ = 100;
  std::uint64_t written_ = 0;
  bool is_noticed_ = true;     // the mount has looked at all changes
  bool was_replaced_ = false;  // since it was mounted
  bool may_be_foreign_ = false;
  bool has_lost_power_ = false;
  const SeamCall* call_ = nullptr;  // that is about to be done
  bool was_write_ = false;          // the call before
  bool is_blind_ = false;
  std::optional<Target> reading_;
  std::string committing_;  // a transaction
  const Operation* now_ = nullptr;
  std::uint32_t calls_ = 0;
  std::uint64_t commits_before_ = 0;  // it was mounted
  unsigned depth_ = 0;
  unsigned waits_ = 0;
};

}  // namespace

std::string simulate(const Plan& plan, SimulationCounts& counts, std::ostream* trace) {
  show_log(trace);
  std::string wrong = Simulation(plan, counts, trace).run();
  show_log(nullptr);
  return wrong;
}

Plan shrink(Plan plan) {
  const auto is_wrong = [](const Plan& part) {
    SimulationCounts counts;
    return !simulate(part, counts).empty();
  };
  // Shorter and shorter runs of operations are left out, as long as it stays wrong.
  for (std::size_t run = plan.operations.size() / 2; run > 0; run /= 2) {
    for (std::size_t at = 0; at + run <= plan.operations.size();) {
      Plan part = plan;
      const auto begin = part.operations.begin() + static_cast<std::ptrdiff_t>(at);
      part.operations.erase(begin, begin + static_cast<std::ptrdiff_t>(run));
      if (is_wrong(part)) {
        plan = std::move(part);
      } else {
        at += run;
      }
    }
  }
  for (std::size_t at = 0; at < plan.operations.size(); ++at) {
    for (std::size_t other = 0; other < plan.operations[at].meanwhile.size();) {
      Plan part = plan;
      auto& meanwhile = part.operations[at].meanwhile;
      meanwhile.erase(meanwhile.begin() + static_cast<std::ptrdiff_t>(other));
      if (is_wrong(part)) {
        plan = std::move(part);
      } else {
        ++other;
      }
    }
  }
  return plan;
}

const std::string& replay_hint() {
  return hint;
}

std::string simulate_seed(std::uint64_t seed, std::size_t operations, SimulationCounts& counts) {
  const Plan plan = random_plan(seed, operations);
  hint = fmt::format("replay: simulate --seed {} --operations {}", seed, operations);
  const std::string wrong = simulate(plan, counts);
  if (wrong.empty()) return {};
  const Plan shortest = shrink(plan);
  SimulationCounts ignored;
  std::ostringstream trace;
  const std::string of_shortest = simulate(shortest, ignored, &trace);
  std::string text = fmt::format("seed {}: {}\n{}\nthe shortest sequence, {} operations: {}\n{}", seed, wrong,
                                 hint, shortest.operations.size(), of_shortest, trace.str());
  return text;
}

}  // namespace stfs::test
