// Generations of an archive that changes: each one is a committed state, shares the unchanged tensors and
// uploads the others.
#include "tools/serve/generation_maker.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <thread>

#include "core/journal/file_lock.h"
#include "core/storage/system_file.h"
#include "tests/support/faulty_backend.h"
#include "tests/support/planted_journal.h"
#include "tests/support/upload_model.h"

using namespace stfs;
using namespace stfs::serve;

namespace {

constexpr std::uint64_t kTensorBytes = 5000;

/// Twenty tensors of U8, a server's view of them, and devices that fail as they are told to.
struct Served {
  Served() {
    std::vector<TensorSpec> specs;
    for (int at = 10; at < 30; ++at) specs.push_back({"t" + std::to_string(at), Dtype::U8, {kTensorBytes}});
    model.write(specs);
    options.open_backend = [this](const device::Device& device) -> Result<std::shared_ptr<device::Backend>> {
      if (on_open) on_open();
      return std::make_shared<test::FaultyBackend>(device, faults, is_host);
    };
    data_at = std::filesystem::file_size(model.path) - 20 * kTensorBytes;
  }

  /// Makes a generation, and waits while the archive was just changed.
  Result<Generation> make(const Generation* before) {
    GenerationMaker maker(test::request_for(model.path), options);
    for (;;) {
      auto made = maker.make(*work, before);
      if (made || made.error().errno_value != EAGAIN) return made;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }
  Generation made(const Generation* before = nullptr) {
    auto generation = make(before);
    INFO((generation ? std::string() : generation.error().message));
    REQUIRE(generation);
    check(*generation);
    return std::move(*generation);
  }

  /// Another program writes a tensor, without locks.
  void change(int tensor, char byte) {
    std::fstream file(model.path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(static_cast<std::streamoff>(data_at + static_cast<std::uint64_t>(tensor - 10) * kTensorBytes));
    const std::string bytes(kTensorBytes, byte);
    file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
    model.tensors["t" + std::to_string(tensor)] = bytes;
  }

  void write_state(const std::string& text) {
    std::filesystem::create_directory(model.directory / ".weight_sync");
    std::ofstream(model.directory / ".weight_sync/state.json") << text;
  }
  /// As `stfs apply` does: the bytes, then the state.
  void apply(const Generation& before, const std::string& version, const std::vector<int>& tensors,
             char byte) {
    for (const int tensor : tensors) change(tensor, byte);
    tell(before, version, tensors);
  }
  void tell(const Generation& before, const std::string& version, const std::vector<int>& tensors) {
    std::string names;
    for (const int tensor : tensors)
      names += (names.empty() ? "\"t" : ",\"t") + std::to_string(tensor) + "\"";
    write_state("{\"version\":\"" + version + "\",\"changed_since\":\"" + before.states[0].version +
                "\",\"changed\":[" + names + "],\"changed_from\":" + from(before) + "}");
  }

  static std::string from(const Generation& before) {
    return "{\"m.safetensors\":\"" + before.states[0].stamps.at(0) + "\"}";
  }

  static std::string content(const Generation& generation, std::size_t at) {
    const ServedPlace& place = generation.layout.places[at];
    const auto bytes = generation.layout.arenas[place.arena].arena->host_bytes().subspan(
        place.place.offset, place.place.size_bytes);
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }
  /// Whether the generation holds the archive's present bytes.
  void check(const Generation& generation) const {
    REQUIRE(generation.plan.tensors.size() == generation.layout.places.size());
    for (std::size_t at = 0; at < generation.plan.tensors.size(); ++at) {
      if (content(generation, at) != model.tensors.at(generation.plan.tensors[at].name))
        FAIL(generation.plan.tensors[at].name << " differs");
    }
  }

  test::UploadModel model;
  std::uint64_t data_at = 0;
  std::shared_ptr<test::DeviceFaults> faults = std::make_shared<test::DeviceFaults>();
  bool is_host = true;
  std::function<void()> on_open;  // runs whenever the device is opened
  upload::UploadOptions options;
  std::optional<Work> work{std::in_place};
};

}  // namespace

TEST_CASE_METHOD(Served, "without a sync state the changed tensors are found by comparing",
                 "[tools][serve]") {
  is_host = GENERATE(true, false);
  const Generation first = made();
  CHECK(first.changed_tensors == 20);
  CHECK(first.report.read_bytes == 20 * kTensorBytes);
  REQUIRE(GenerationMaker::check(first));
  change(14, 'x');
  CHECK(GenerationMaker::check(first).error().errno_value == ESTALE);
  const Generation second = made(&first);
  CHECK(second.number == 2);
  CHECK(second.changed_tensors == 1);
  CHECK(second.report.read_bytes == kTensorBytes);
  CHECK(second.layout.own_bytes(2) == kTensorBytes);
  CHECK(second.layout.places[4].changed_in == 2);
  CHECK(second.layout.places[5].changed_in == 1);
  CHECK((faults->digests > 0) == !is_host);
  // The first generation is unchanged.
  CHECK(content(first, 4) != content(second, 4));
}

TEST_CASE_METHOD(Served, "a version that names its tensors is uploaded without comparing", "[tools][serve]") {
  is_host = false;  // comparing computes digests
  write_state("{\"version\": \"000001\"}");
  const Generation first = made();
  CHECK(version_text(first.states) == "000001");
  apply(first, "000002", {12, 29}, 'x');
  const Generation second = made(&first);
  CHECK(version_text(second.states) == "000002");
  CHECK(second.changed_tensors == 2);
  CHECK(second.report.read_bytes == 2 * kTensorBytes);
  CHECK(faults->digests == 0);
  // A version that changes no byte is a generation too.
  write_state("{\"version\": \"000003\"}");
  CHECK(GenerationMaker::check(second).error().errno_value == ESTALE);
  const Generation third = made(&second);
  CHECK(version_text(third.states) == "000003");
  CHECK(third.changed_tensors == 0);
  CHECK(faults->digests == 0);
}

TEST_CASE_METHOD(Served, "names are not trusted if another program has written too", "[tools][serve]") {
  is_host = false;
  write_state("{\"version\": \"000001\"}");
  const Generation first = made();
  SECTION("before the version") {
    change(20, 'p');
    made(&first);  // waits until that is settled
    const Generation between = made(&first);
    apply(between, "000002", {12}, 'x');
    tell(between, "000002", {12});
    CHECK(made(&first).changed_tensors == 2);
  }
  SECTION("after the version") {
    apply(first, "000002", {12}, 'x');
    std::this_thread::sleep_for(std::chrono::milliseconds(30));
    change(20, 'p');
    CHECK(made(&first).changed_tensors == 2);
  }
  SECTION("the version follows another one") {
    change(20, 'p');
    apply(first, "000003", {12}, 'x');
    write_state(
        "{\"version\":\"000003\",\"changed_since\":\"000002\",\"changed\":[\"t12\"],\"changed_from\":" +
        from(first) + "}");
    CHECK(made(&first).changed_tensors == 2);
  }
  SECTION("the state has no stamp, or is damaged") {
    change(20, 'p');
    write_state(GENERATE("{\"version\":\"000002\",\"changed_since\":\"000001\",\"changed\":[]}",
                         "{\"version\":\"000002\",\"changed_since\":1}", "{\"version\":", "[]", ""));
    CHECK(made(&first).changed_tensors == 1);
  }
  CHECK(faults->digests > 0);
}

TEST_CASE_METHOD(Served, "another structure or another file is uploaded whole", "[tools][serve]") {
  const Generation first = made();
  SECTION("the file is replaced by a copy") {
    std::filesystem::copy_file(model.path, model.path + ".new");
    std::filesystem::rename(model.path + ".new", model.path);
  }
  SECTION("the header changes in its place") {
    std::fstream file(model.path, std::ios::in | std::ios::out | std::ios::binary);
    std::string head(data_at, '\0');
    file.read(head.data(), static_cast<std::streamsize>(head.size()));
    head.replace(head.find("t10"), 3, "T10");
    file.seekp(0);
    file.write(head.data(), static_cast<std::streamsize>(head.size()));
    file.close();
    model.tensors["T10"] = model.tensors["t10"];
  }
  const Generation second = made(&first);
  CHECK(second.changed_tensors == 20);
  CHECK(second.layout.own_bytes(2) == second.layout.size_bytes());
}

TEST_CASE_METHOD(Served, "nothing is read while another process writes", "[tools][serve]") {
  const Generation first = made();
  GenerationMaker maker(test::request_for(model.path), options);
  change(14, 'x');
  std::this_thread::sleep_for(std::chrono::milliseconds(30));
  SECTION("a commit holds its locks") {
    // The kernel keeps these locks for an open file, so a second open file of this process conflicts with
    // them.
    auto file = system_storage().open(model.path, Access::ReadWrite).value();
    auto locks = ArchiveLocks::for_patch(*file, model.path, {{data_at, 10}}, std::chrono::milliseconds(0));
    REQUIRE(locks);
    CHECK(maker.make(*work, &first).error().errno_value == EAGAIN);
    CHECK(maker.make(*work, nullptr).error().errno_value == EAGAIN);
    locks->release();
  }
  SECTION("a receiver of weight sync holds its lock") {
    write_state("{\"version\": \"000001\"}");
    const UniqueFd lock(::open((model.directory / ".weight_sync/lock").c_str(), O_RDWR | O_CREAT, 0666));
    REQUIRE(::flock(lock.get(), LOCK_EX) == 0);
    CHECK(maker.make(*work, &first).error().errno_value == EAGAIN);
    CHECK(maker.make(*work, nullptr).error().errno_value == EAGAIN);
    REQUIRE(::flock(lock.get(), LOCK_UN) == 0);
  }
  SECTION("the file's time is the present time") {
    const timespec now[2] = {{0, UTIME_OMIT}, {0, UTIME_NOW}};
    // The present lasts one tick of the kernel's clock. A busy machine can let it pass before the maker
    // looks.
    bool is_refused = false;
    for (int tries = 0; tries < 1000 && !is_refused; ++tries) {
      REQUIRE(::utimensat(AT_FDCWD, model.path.c_str(), now, 0) == 0);
      const auto made_now = maker.make(*work, &first);
      is_refused = !made_now && made_now.error().errno_value == EAGAIN;
    }
    CHECK(is_refused);
  }
  CHECK(made(&first).changed_tensors == 1);
}

TEST_CASE_METHOD(Served, "a commit whose process has died is part of the next generation, whole",
                 "[tools][serve]") {
  const Generation first = made();
  // The process has already lost its locks on the archive, but still holds its journal.
  constexpr std::uint64_t kAt = 4096;
  const std::string bytes(4096, 'j');
  auto journal = test::plant_living_journal(model.path, kAt, bytes);
  GenerationMaker maker(test::request_for(model.path), options);
  CHECK(maker.make(*work, nullptr).error().errno_value == EAGAIN);
  change(29, 'x');
  std::this_thread::sleep_for(std::chrono::milliseconds(30));
  CHECK(maker.make(*work, &first).error().errno_value == EAGAIN);
  const upload::Plan opened = upload::make_plan(test::request_for(model.path)).value();
  CHECK(check_shown(opened));
  journal.reset();
  // A plan that was opened before the commit does not show it.
  CHECK(check_shown(opened).error().errno_value == EAGAIN);
  for (std::uint64_t at = kAt; at < kAt + bytes.size(); ++at) {
    const std::uint64_t in_data = at - data_at;
    model.tensors["t" + std::to_string(10 + in_data / kTensorBytes)][in_data % kTensorBytes] = 'j';
  }
  CHECK(made(&first).changed_tensors == 3);
  made();
}

TEST_CASE_METHOD(Served, "a dead commit that has not reached its archive is part of the next generation, too",
                 "[tools][serve]") {
  write_state("{\"version\": \"000001\"}");
  const Generation first = made();
  // One archive of a group can be written to, and the other not: its file is as it was.
  test::plant_journal(model.path, 4096, std::string(4096, 'j'));
  if (GENERATE(false, true)) {
    tell(first, "000002", {29});
    change(29, 'x');
  }
  const bool is_named = model.tensors["t29"] == std::string(kTensorBytes, 'x');
  for (std::uint64_t at = 4096; at < 8192; ++at) {
    const std::uint64_t in_data = at - data_at;
    model.tensors["t" + std::to_string(10 + in_data / kTensorBytes)][in_data % kTensorBytes] = 'j';
  }
  const Generation second = made(&first);
  CHECK(second.changed_tensors == (is_named ? 3 : 2));
  // Recovery writes the bytes that the generation already has.
  REQUIRE(Archive::open(model.path, Access::ReadWrite));
  CHECK(made(&second).changed_tensors == 0);
}

TEST_CASE_METHOD(Served, "a change while a generation is made discards it", "[tools][serve]") {
  is_host = false;
  write_state("{\"version\": \"000001\"}");
  const Generation first = made();
  const int arenas = faults->arenas;
  change(14, 'x');
  std::this_thread::sleep_for(std::chrono::milliseconds(30));
  // The device is opened for the comparison, and again for the upload.
  const int at = GENERATE(1, 2);
  const bool is_state = GENERATE(false, true);
  on_open = [&, opened = 0]() mutable {
    if (++opened != at) return;
    if (is_state) {
      write_state("{\"version\": \"000007\"}");
    } else {
      change(20, 'y');
    }
  };
  CHECK(make(&first).error().errno_value == ESTALE);
  CHECK(faults->arenas == arenas);
  on_open = {};
  const Generation second = made(&first);
  CHECK(version_text(second.states) == (is_state ? "000007" : "000001"));
  CHECK(second.changed_tensors == (is_state ? 1 : 2));
}

TEST_CASE_METHOD(Served, "a failure of any call keeps nothing, and the next try succeeds", "[tools][serve]") {
  is_host = false;
  const Generation first = made();
  const int arenas = faults->arenas;
  change(14, 'x');
  change(16, 'x');
  std::this_thread::sleep_for(std::chrono::milliseconds(30));
  const auto fails = [&](int errno_value) {
    const auto failed = make(&first);
    REQUIRE_FALSE(failed);
    CHECK(failed.error().errno_value == errno_value);
    CHECK(faults->arenas == arenas);
  };
  faults->digests_until_failure = 3;
  fails(EIO);
  faults->digests_until_failure = -1;
  faults->copies_until_failure = 0;
  fails(EIO);
  faults->copies_until_failure = -1;
  for (int at = 0;; ++at) {
    faults->marks_until_failure = at;
    const auto late = make(&first);
    faults->marks_until_failure = -1;
    if (late) break;
    CHECK(late.error().errno_value == EIO);
    CHECK(faults->arenas == arenas);
  }
  faults->fails_queues = true;
  fails(EIO);
  faults->fails_queues = false;
  faults->fails_staging = true;
  fails(ENOMEM);
  faults->fails_staging = false;
  faults->free_bytes = 100;
  fails(ENOMEM);
  faults->free_bytes = ~std::uint64_t{0};
  work->stop();
  fails(ECANCELED);
  work.emplace();
  CHECK(made(&first).changed_tensors == 2);
}
