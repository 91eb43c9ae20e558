#include "tests/crash/workload.h"

#include <algorithm>
#include <array>
#include <deque>
#include <stdexcept>
#include <utility>

#include "tests/support/allocation_faults.h"
#include "tests/support/archive_bytes.h"
#include "tests/support/choices.h"

namespace stfs::test {
namespace {

constexpr std::uint64_t kBlock = kDiskBlockBytes;
constexpr std::uint64_t kDataOffset = 1600;  // the header shares its block with the first tensors

std::vector<Workload> make_workloads() {
  std::vector<Workload> list;
  const auto add = [&](std::string_view name, std::vector<Step> steps, DiskOptions disk = {},
                       Durability durability = Durability::Power) {
    list.push_back({name, &small_archive(), std::move(steps), disk, durability});
  };
  const DiskOptions without_unnamed{.has_unnamed = false};
  add("four bytes", {{.pieces = {{"four_bytes"}}}});
  add("one block", {{.pieces = {{"block"}}}});
  add("unaligned", {{.pieces = {{"unaligned"}}}});
  add("several blocks", {{.pieces = {{"several_blocks"}}}});
  add("end of the file", {{.pieces = {{"end"}}}});
  add("beside the header", {{.pieces = {{"beside_the_header"}}}});
  add("neighbours in one block", {{.pieces = {{"left"}, {"right"}}}});
  add("far apart", {{.pieces = {{"four_bytes"}, {"block"}, {"end"}}}});
  add("everything", {{.pieces = {{"four_bytes"},
                                 {"beside_the_header"},
                                 {"unaligned"},
                                 {"block"},
                                 {"several_blocks"},
                                 {"left"},
                                 {"right"},
                                 {"across"},
                                 {"end"}}}});
  add("parts of tensors",
      {{.pieces = {
            {"several_blocks", 5000, 100}, {"across", 1, 1}, {"left", 1499, 1}, {"unaligned", 4990, 10}}}});
  add("one after the other", {{.pieces = {{"left"}}}, {.pieces = {{"right"}}}});
  add("far from each other",
      {{.pieces = {{"block"}}}, {.pieces = {{"end"}}}, {.pieces = {{"across", 5000}}}});
  add("the same twice", {{.pieces = {{"block"}}}, {.pieces = {{"block"}}}});
  add("overlapping sets",
      {{.pieces = {{"block"}, {"left"}}}, {.pieces = {{"block"}, {"end"}}}, {.pieces = {{"left"}, {"end"}}}});
  add("reopened between",
      {{.pieces = {{"block"}, {"end"}}}, {.pieces = {{"block"}, {"left"}}, .reopens = true}});
  add("wrong size first", {{.pieces = {{"several_blocks"}, {"end"}}, .tries_wrong_size = true}});
  add("records of many ranges",
      {{.pieces = {{"several_blocks"}, {"across"}, {"end"}}}, {.pieces = {{"several_blocks"}}}},
      {.most_range_bytes = kBlock});
  add("without unnamed files", {{.pieces = {{"block"}, {"left"}}}, {.pieces = {{"block"}, {"end"}}}},
      without_unnamed);
  add("without birth times", {{.pieces = {{"unaligned"}, {"end"}}}}, {.has_birth_times = false});
  add("killed only", {{.pieces = {{"unaligned"}, {"end"}}}, {.pieces = {{"unaligned"}}}}, {},
      Durability::Process);
  add("killed only, without unnamed files", {{.pieces = {{"unaligned"}, {"end"}}}, {.pieces = {{"end"}}}},
      without_unnamed, Durability::Process);
  const DiskOptions with_clone{.has_clone = true};
  add("cloned", {{.pieces = {{"large"}, {"left"}, {"end"}}}}, with_clone);
  list.back().archive = &large_archive();
  add("cloned, neighbours", {{.pieces = {{"left"}, {"unaligned"}, {"across"}, {"several_blocks", 5000}}}},
      with_clone);
  add("cloned, over what was staged",
      {{.pieces = {{"several_blocks", 6000, 8000}, {"several_blocks", 0, 13'000}}}}, with_clone);
  add("cloned twice",
      {{.pieces = {{"across"}}}, {.pieces = {{"across"}, {"several_blocks"}}, .reopens = true}}, with_clone);
  add("cloned, wrong size first", {{.pieces = {{"several_blocks"}, {"end"}}, .tries_wrong_size = true}},
      with_clone);
  add("cloned, killed only", {{.pieces = {{"several_blocks"}}}}, with_clone, Durability::Process);
  add("too large for one write", {{.pieces = {{"large", 100}, {"right"}}}});
  list.back().archive = &large_archive();

  const auto keep = [&](std::string_view name, std::vector<Step> steps, DiskOptions disk = {},
                        Durability durability = Durability::Power) {
    add(name, std::move(steps), disk, durability);
    list.back().keeps_journal = true;
  };
  keep("kept: the same four times",
       {{.pieces = {{"block"}}}, {.pieces = {{"block"}}}, {.pieces = {{"block"}}}, {.pieces = {{"block"}}}});
  keep("kept: neighbours", {{.pieces = {{"left"}}}, {.pieces = {{"right"}}}, {.pieces = {{"across", 1, 1}}}});
  keep(
      "kept: overlapping sets",
      {{.pieces = {{"block"}, {"left"}}}, {.pieces = {{"block"}, {"end"}}}, {.pieces = {{"left"}, {"end"}}}});
  keep("kept: settled between",
       {{.pieces = {{"block"}}, .settles = true}, {.pieces = {{"block"}, {"end"}}}, {.pieces = {{"end"}}}});
  keep("kept: beside the header",
       {{.pieces = {{"beside_the_header"}}}, {.pieces = {{"four_bytes"}}}, {.pieces = {{"unaligned"}}}});
  keep("kept: wrong size first",
       {{.pieces = {{"block"}}}, {.pieces = {{"several_blocks"}, {"end"}}, .tries_wrong_size = true}});
  keep("kept: reopened", {{.pieces = {{"block"}}}, {.pieces = {{"block"}}, .reopens = true}});
  keep("kept: a lane full",
       {{.pieces = {{"large"}}}, {.pieces = {{"large"}}}, {.pieces = {{"block"}}}, {.pieces = {{"large"}}}});
  list.back().archive = &lane_archive();
  keep("kept: without unnamed files", {{.pieces = {{"block"}}}, {.pieces = {{"block"}, {"end"}}}},
       without_unnamed);
  keep("kept: killed only",
       {{.pieces = {{"unaligned"}}}, {.pieces = {{"unaligned"}}, .settles = true}, {.pieces = {{"end"}}}}, {},
       Durability::Process);
  keep("kept: a large one between",
       {{.pieces = {{"left"}}}, {.pieces = {{"large"}, {"left"}}}, {.pieces = {{"left"}}}});
  list.back().archive = &large_archive();
  const auto patch = [&](std::string_view name, std::vector<Step> steps, DiskOptions disk = {},
                         Durability durability = Durability::Power) {
    for (Step& step : steps) step.is_patch = true;
    add(name, std::move(steps), disk, durability);
  };
  patch("patched: four bytes", {{.pieces = {{"four_bytes"}}}});
  patch("patched: neighbours in one block", {{.pieces = {{"left"}, {"right"}}}});
  patch("patched: everything", {{.pieces = {{"four_bytes"},
                                            {"beside_the_header", 10, 3},
                                            {"unaligned"},
                                            {"block", 4000, 96},
                                            {"several_blocks", 1, 1},
                                            {"left"},
                                            {"right", 1999, 1},
                                            {"across"},
                                            {"end"}}}});
  patch("patched: bytes far apart",
        {{.pieces = {{"several_blocks", 0, 1}, {"several_blocks", 5000, 2}, {"several_blocks", 16'383, 1}}},
         {.pieces = {{"several_blocks", 0, 3}, {"across", 8192, 7}}}});
  patch("patched: nothing new", {{.pieces = {{"left", 0, 1}}}, {.pieces = {{"empty"}}}});
  patch("patched: without birth times", {{.pieces = {{"unaligned"}, {"end", 3, 4}}}},
        {.has_birth_times = false});
  patch("patched: without unnamed files", {{.pieces = {{"block", 1, 2}}}, {.pieces = {{"end"}}}},
        without_unnamed);
  patch("patched: killed only", {{.pieces = {{"unaligned"}, {"end"}}}, {.pieces = {{"unaligned", 7, 7}}}}, {},
        Durability::Process);
  patch("patched: cloned", {{.pieces = {{"large", 3, 100'000}, {"left"}}}, {.pieces = {{"large"}}}},
        with_clone);
  list.back().archive = &large_archive();
  keep("kept: a patch between", {{.pieces = {{"block"}}},
                                 {.pieces = {{"block", 9, 9}, {"end"}}, .is_patch = true},
                                 {.pieces = {{"block"}, {"left"}}}});
  for (const Lent when : {Lent::WhileHashed, Lent::WhileSynced, Lent::WhileApplied}) {
    static constexpr std::array<std::string_view, 3> kNames = {"hashed", "synced", "applied"};
    const auto named = [&](std::string_view name) {
      static std::deque<std::string> names;
      return std::string_view(
          names.emplace_back(std::string(name) + kNames[static_cast<std::size_t>(when)].data()));
    };
    const Step many{
        .pieces = {{"several_blocks"}, {"across"}, {"end"}}, .beside = {{"block"}}, .beside_when = when};
    const Step large{.pieces = {{"left"}, {"large"}, {"end"}}, .beside = {{"block"}}, .beside_when = when};
    const Step block{.pieces = {{"block"}}};
    add(named("beside one that is "), {many});
    add(named("beside one of many ranges that is "), {block, many, many}, {.most_range_bytes = kBlock});
    // Without birth times, a torn tail of less than a sector looks like another archive's.
    const Step without_tail{
        .pieces = {{"several_blocks"}, {"unaligned"}}, .beside = {{"block"}}, .beside_when = when};
    add(named("without birth times, beside one that is "), {without_tail}, {.has_birth_times = false});
    add(named("without unnamed files, beside one that is "), {many}, without_unnamed);
    add(named("cloned, beside one that is "), {block, large}, with_clone);
    list.back().archive = &large_archive();
    keep(named("kept: beside one that is "), {block, large, block});
    list.back().archive = &large_archive();
    if (when == Lent::WhileSynced) continue;
    add(named("killed only, beside one that is "), {block, many}, {}, Durability::Process);
    keep(named("kept: killed only, beside one that is "), {block, large, block}, {}, Durability::Process);
    list.back().archive = &large_archive();
  }
  add("by the owner", {{.pieces = {{"unaligned"}, {"end"}}}, {.pieces = {{"end"}}}});
  list.back().writer = people()[1];
  add("by a member of the group", {{.pieces = {{"unaligned"}, {"end"}}}, {.pieces = {{"end"}}}});
  list.back().writer = people()[2];
  keep("kept: by a member of the group", {{.pieces = {{"block"}}}, {.pieces = {{"block"}, {"end"}}}});
  list.back().writer = people()[2];
  return list;
}

/// Sometimes adds a commit inside of the step's commit, of a tensor that shares no block with the step. Adds
/// none to patches, to steps of kept journals, or if there is no such tensor.
void add_beside(Step& step, bool keeps_journal, Choices& choices) {
  if (step.is_patch || keeps_journal || !choices.one_in(2)) return;
  const auto blocks_of = [](std::string_view name) {
    const TestTensor& tensor = small_archive()[name];
    const std::uint64_t begin = tensor.offset / kBlock * kBlock;
    return ByteRange{begin, (tensor.offset + tensor.size_bytes + kBlock - 1) / kBlock * kBlock - begin};
  };
  for (const std::string_view name : {"block", "several_blocks", "end", "unaligned"}) {
    const bool is_free = std::ranges::none_of(
        step.pieces, [&](const Piece& piece) { return blocks_of(piece.tensor).overlaps(blocks_of(name)); });
    if (!is_free) continue;
    step.beside = {{name}};
    step.beside_when = static_cast<Lent>(choices.below(3));
    return;
  }
}

}  // namespace

// The sizes are chosen for the places where the tensors begin and end, as their names say.
TestArchive::TestArchive(std::uint64_t large_bytes)
    : tensors_({
          {"four_bytes", 0, 4},
          {"beside_the_header", 0, 1000},
          {"unaligned", 0, 5000},
          {"filler", 0, 0},  // up to the next block
          {"block", 0, kBlock},
          {"several_blocks", 0, 4 * kBlock},
          {"left", 0, 1500},
          {"right", 0, 2000},
          {"large", 0, large_bytes},
          {"across", 0, 3 * kBlock + 77},
          {"empty", 0, 0},
          {"end", 0, 700},
      }) {
  std::uint64_t offset = kDataOffset;
  std::string header = "{";
  for (TestTensor& tensor : tensors_) {
    tensor.offset = offset;
    if (tensor.name == "filler") tensor.size_bytes = (kBlock - offset % kBlock) % kBlock;
    offset += tensor.size_bytes;
    header += "\"" + std::string(tensor.name) + "\":{\"dtype\":\"U8\",\"shape\":[" +
              std::to_string(tensor.size_bytes) + "],\"data_offsets\":[" +
              std::to_string(tensor.offset - kDataOffset) + "," + std::to_string(offset - kDataOffset) +
              "]},";
  }
  header.back() = '}';
  header.resize(kDataOffset - 8, ' ');
  std::string data(offset - kDataOffset, '\0');
  RandomChoices random(1);
  for (char& byte : data) byte = static_cast<char>(random.below(256));
  const std::string bytes = archive_bytes(header, data);
  const auto span = std::as_bytes(std::span(bytes));
  content_.assign(span.begin(), span.end());
}

std::uint32_t TestArchive::position(std::string_view name) const {
  const auto found = std::ranges::find(tensors_, name, &TestTensor::name);
  if (found == tensors_.end()) throw std::logic_error("no such tensor: " + std::string(name));
  return static_cast<std::uint32_t>(found - tensors_.begin());
}

const TestArchive& small_archive() {
  static const TestArchive archive(10);
  return archive;
}

const TestArchive& lane_archive() {
  static const TestArchive archive(15 * kBlock + 496);  // begins 3500 bytes into its first block
  return archive;
}

const TestArchive& large_archive() {
  static const TestArchive archive((std::uint64_t{1} << 20U) + 3 * kBlock + 5);
  return archive;
}

const std::vector<Workload>& workloads() {
  static const std::vector<Workload> list = make_workloads();
  return list;
}

const Workload& workload(std::string_view name) {
  const auto found = std::ranges::find(workloads(), name, &Workload::name);
  if (found == workloads().end()) throw std::logic_error("no such workload: " + std::string(name));
  return *found;
}

Workload random_workload(std::uint64_t seed) {
  RandomChoices random(seed);
  Workload workload{.name = "random", .archive = &small_archive(), .steps = {}, .disk = {}};
  workload.disk.has_unnamed = !random.one_in(4);
  workload.disk.has_birth_times = !random.one_in(4);
  if (seed % 2 == 0) workload.disk.most_range_bytes = kBlock * (1 + seed / 2 % 3);
  workload.keeps_journal = random.one_in(2);
  workload.writer = people()[random.below(people().size())];
  workload.disk.has_clone = random.one_in(3);
  for (std::size_t steps = 1 + random.below(3); steps > 0; --steps) {
    Step step{.pieces = {},
              .tries_wrong_size = random.one_in(8),
              .reopens = random.one_in(4),
              .settles = random.one_in(4),
              .is_patch = random.one_in(3)};
    if (step.is_patch) step.tries_wrong_size = false;
    for (std::size_t pieces = 1 + random.below(6); pieces > 0; --pieces) {
      const auto& tensors = small_archive().tensors();
      const TestTensor& tensor = tensors[random.below(tensors.size())];
      // The tensor that is cut to the wrong size must not be empty.
      if (tensor.size_bytes < 2) continue;
      const std::uint64_t offset = random.one_in(3) ? 0 : random.below(tensor.size_bytes);
      const std::uint64_t most = tensor.size_bytes - offset;
      step.pieces.push_back({tensor.name, offset, random.one_in(3) ? most : 1 + random.below(most)});
    }
    // Cut bytes read as zeros unless they are written again, so the first piece begins at 0.
    if (step.pieces.empty()) continue;
    step.pieces.front().offset = 0;
    // The last piece is written before the commit that must fail, so it must not write the whole tensor
    // again.
    if (step.pieces.back().tensor == step.pieces.front().tensor) step.tries_wrong_size = false;
    if (step.tries_wrong_size) step.pieces.front().size_bytes.reset();
    add_beside(step, workload.keeps_journal, random);
    workload.steps.push_back(std::move(step));
  }
  return workload;
}

Content piece_bytes(const TestArchive& archive, const Piece& piece, std::uint64_t step) {
  const NoAllocationFaults pause;
  const TestTensor& tensor = archive[piece.tensor];
  RandomChoices random(tensor.offset * 1000 + piece.offset * 7 + step + 2);
  Content bytes(piece.size_bytes.value_or(tensor.size_bytes - piece.offset));
  // The bytes only have to differ in each sector between any two steps.
  constexpr std::uint64_t kOdd = 0x9e3779b97f4a7c15U;
  std::uint64_t number = random.next();
  for (std::span<std::byte> left = bytes; !left.empty(); number += kOdd) {
    const std::size_t size = std::min(sizeof number, left.size());
    std::memcpy(left.data(), &number, size);
    left = left.subspan(size);
  }
  return bytes;
}

Content content_after(const TestArchive& archive, const Content& before, const Step& step,
                      std::uint64_t number) {
  Content after = before;
  for (const Piece& piece : step.pieces) {
    const Content bytes = piece_bytes(archive, piece, number);
    std::memcpy(after.data() + archive[piece.tensor].offset + piece.offset, bytes.data(), bytes.size());
  }
  return after;
}

std::vector<Content> contents_of(const Workload& workload) {
  std::vector<Content> contents = {workload.archive->content()};
  const auto add = [&](const Step& step, std::uint64_t number) {
    if (!step.pieces.empty())
      contents.push_back(content_after(*workload.archive, contents.back(), step, number));
  };
  for (std::size_t number = 0; number < workload.steps.size(); ++number) {
    const Step& step = workload.steps[number];
    if (step.beside_when != Lent::WhileApplied) add(beside_of(step), number + kBeside);
    add(step, number);
    if (step.beside_when == Lent::WhileApplied) add(beside_of(step), number + kBeside);
  }
  return contents;
}

Step beside_of(const Step& step) {
  return {.pieces = step.beside};
}

Result<void> Writer::open() {
  if (archive_) return {};
  auto archive = Archive::open(path_, Access::ReadWrite, storage_);
  if (!archive) return pass_on(std::move(archive));
  archive_ = std::move(*archive);
  return keeps_journal_ ? archive_->lane_journal().prepare() : Result<void>{};
}

void Writer::close() {
  if (archive_) static_cast<void>(archive_->lane_journal().retire(options_.durability));
  archive_.reset();
}

Result<void> Writer::settle() {
  return archive_ ? archive_->lane_journal().settle(options_.durability) : Result<void>{};
}

Result<void> Writer::stage(Transaction& transaction, std::span<const Piece> pieces, std::uint64_t number) {
  for (const Piece& piece : pieces) {
    auto staging = transaction.stage(TensorId{layout_.position(piece.tensor)});
    if (!staging) return pass_on(std::move(staging));
    const Content bytes = piece_bytes(layout_, piece, number);
    // In two writes, as programs do.
    const auto half = std::span(bytes).first(bytes.size() / 2);
    const auto rest = std::span(bytes).subspan(half.size());
    if (auto written = (*staging)->write(half, piece.offset); !written) return written;
    if (auto written = (*staging)->write(rest, piece.offset + half.size()); !written) return written;
  }
  return {};
}

Result<void> stage_patches(Transaction& transaction, const Archive& archive, const TestArchive& layout,
                           std::span<const Piece> pieces, std::uint64_t number,
                           const CommitOptions& options) {
  const auto tensors = [&] {
    const NoAllocationFaults pause;
    std::vector<TensorId> list;
    for (const Piece& piece : pieces) {
      const TensorId tensor{layout.position(piece.tensor)};
      if (std::ranges::find(list, tensor) == list.end()) list.push_back(tensor);
    }
    return list;
  }();
  if (auto begun = transaction.begin_patches(tensors, options); !begun) return begun;
  Transaction::Patches patches;
  for (const TensorId tensor : tensors) {
    const TestTensor& there = layout.tensors()[static_cast<std::uint32_t>(tensor)];
    std::optional<NoAllocationFaults> pause(std::in_place);
    Content before(there.size_bytes);
    if (auto read = archive.read_through(before, there.offset); !read) return read;
    Content after = before;
    for (const Piece& piece : pieces) {
      if (piece.tensor != there.name) continue;
      std::ranges::copy(piece_bytes(layout, piece, number),
                        after.begin() + static_cast<std::ptrdiff_t>(piece.offset));
    }
    pause.reset();
    if (auto patched = transaction.patch(there.offset, before, after, patches); !patched) return patched;
  }
  return transaction.keep_patches(patches);
}

Result<void> Writer::patch(const Step& step, std::uint64_t number, unsigned retries) {
  for (;; --retries) {
    Transaction transaction(*archive_);
    auto done = stage_patches(transaction, *archive_, layout_, step.pieces, number, options_);
    if (done) done = transaction.commit(options_, [this](TensorId) -> ReaderWriterLock& { return readers_; });
    if (done && step.settles) static_cast<void>(settle());
    if (done || retries == 0) return done;
  }
}

void Writer::let_in(CommitOptions& options, const Step& step, std::uint64_t number_beside) {
  const NoAllocationFaults pause;
  options.lend_turn = [&, number_beside, has_run = false](const std::function<void()>& work) mutable {
    const Lent now = !archive_->overlay().is_empty() ? Lent::WhileApplied
                     : work                          ? Lent::WhileSynced
                                                     : Lent::WhileHashed;
    const bool runs = now == step.beside_when && !std::exchange(has_run, has_run || now == step.beside_when);
    if (runs) {
      const std::uint64_t number = notes_.begins ? notes_.begins() : number_beside;
      const auto done = guard_memory([&] { return run_beside(step, number); });
      if (notes_.ends) notes_.ends(done);
    }
    if (work) work();
    return runs;
  };
}

Result<void> Writer::run_beside(const Step& step, std::uint64_t number) {
  Transaction transaction(*archive_);
  if (auto staged = stage(transaction, step.beside, number); !staged) return staged;
  CommitOptions options = options_;
  options.is_beside = true;
  return transaction.commit(options, [this](TensorId) -> ReaderWriterLock& { return readers_beside_; });
}

Result<void> Writer::run(const Step& step, std::uint64_t number, unsigned retries) {
  if (step.reopens) close();
  if (auto opened = open(); !opened) return opened;
  if (step.is_patch) return patch(step, number, retries);
  Transaction transaction(*archive_);
  const auto lock_of = [this](TensorId) -> ReaderWriterLock& { return readers_; };
  if (step.tries_wrong_size) {
    auto staging = transaction.stage(TensorId{layout_.position(step.pieces.front().tensor)});
    if (!staging) return pass_on(std::move(staging));
    if (auto cut = (*staging)->resize(1); !cut) return cut;
    if (auto other = stage(transaction, std::span(step.pieces).last(1), number); !other) return other;
    auto refused = transaction.commit(options_, lock_of);
    if (refused) return fail(ErrorCode::InvalidArgument, EINVAL, "a commit of the wrong size was taken");
    if (refused.error().code != ErrorCode::WrongSize) return refused;
  }
  if (auto staged = stage(transaction, step.pieces, number); !staged) return staged;
  CommitOptions options = options_;
  if (!step.beside.empty()) let_in(options, step, number + kBeside);
  for (;; --retries) {
    auto committed = transaction.commit(options, lock_of);
    if (committed && step.settles) static_cast<void>(settle());  // after a failure, recovery settles
    if (committed || retries == 0) return committed;
  }
}

const std::vector<DiskUser>& people() {
  static const std::vector<DiskUser> list = {
      {}, {.uid = 1000, .gid = 100, .groups = {200}}, {.uid = 1001, .gid = 101, .groups = {200}}};
  return list;
}

void put_archive(DiskModel& disk, const TestArchive& archive) {
  disk.put(kArchivePath, archive.content(), {.uid = 1000, .gid = 200, .permissions = 0660});
}

CommitOptions commit_options(Durability durability) {
  CommitOptions options;
  options.durability = durability;
  // No patience: there is no other process, or a scheduler decides when to retry.
  options.lock_patience = std::chrono::milliseconds(0);
  return options;
}

}  // namespace stfs::test
