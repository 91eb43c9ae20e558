// An idle mount moves tensors into the gaps that its edits have left. Readers notice nothing.
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <fstream>
#include <functional>
#include <map>
#include <random>
#include <string>
#include <thread>

#include "tests/fs/descriptor.h"
#include "tests/fs/edited.h"
#include "tests/fs/stored_tensors.h"
#include "tests/support/catch.h"
#include "tests/support/intercepted_storage.h"

using namespace stfs;
using namespace stfs::test;

namespace {

using Contents = std::map<std::string, std::string>;

/// Calls a function before each call of the storage. The function's own calls do not call it again.
class Watched final : public Interceptor {
 public:
  Verdict before(const SeamCall& call) override {
    if (std::this_thread::get_id() != thread_ || is_inside_ || !look) return {};
    is_inside_ = true;
    look(call);
    is_inside_ = false;
    return {};
  }
  std::function<void(const SeamCall&)> look;

 private:
  const std::thread::id thread_ = std::this_thread::get_id();
  bool is_inside_ = false;
};

MountedModelOptions closing_gaps() {
  MountedModelOptions options;
  options.closes_gaps = true;
  return options;
}

Tensors of(const Contents& contents) {
  return {contents.begin(), contents.end()};
}

Contents lettered(const std::vector<std::size_t>& sizes) {
  Contents contents;
  for (std::size_t at = 0; at < sizes.size(); ++at) {
    const char letter = static_cast<char>('a' + at);
    contents.emplace(std::string(1, letter), std::string(sizes[at], letter));
  }
  return contents;
}

bool has_filler(const DrivenFilesystem& mount) {
  return !Archive::open(mount.path(), Access::ReadOnly).value()->version()->header->content.fillers.empty();
}

void remove(const DrivenFilesystem& mount, Contents& contents, const std::string& name) {
  REQUIRE(mount->remove_file(kRootIno, name));
  contents.erase(name);
}

/// Returns the content of each tensor, by the inode numbers that the files had at the beginning.
struct Readers {
  Readers(const DrivenFilesystem& its_mount, const Contents& contents) : mount(its_mount) {
    for (const auto& [name, bytes] : contents) inos[name] = mount.ino(name);
  }
  [[nodiscard]] Contents read() const {
    Contents found;
    for (const auto& [name, ino] : inos) found[name] = read_ino(mount, ino);
    return found;
  }
  const DrivenFilesystem& mount;
  std::map<std::string, Ino> inos;
};

/// Returns true if a thread waits for something.
bool is_asleep(pid_t thread) {
  std::ifstream stat("/proc/self/task/" + std::to_string(thread) + "/stat");
  const std::string line((std::istreambuf_iterator<char>(stat)), {});
  return line.find(") S ") != std::string::npos;
}

}  // namespace

TEST_CASE("an idle mount closes the gaps that its edits have left", "[fs][gaps]") {
  Contents contents = lettered({30'000, 30'000, 7'001, 5'000, 30'000});
  const DrivenFilesystem mount(of(contents), closing_gaps());
  remove(mount, contents, "b");
  mount->close_gaps();
  CHECK(has_filler(mount));  // calls from before the edit may still read it
  mount->tidy();
  const Readers readers(mount, contents);
  mount->close_gaps();
  CHECK(stored_tensors(mount) == contents);
  CHECK_FALSE(has_filler(mount));
  CHECK(readers.read() == contents);
  for (const auto& [name, ino] : readers.inos) CHECK(mount.ino(name) == ino);
  // Later edits continue from there.
  REQUIRE(mount->rename(kRootIno, "a", kRootIno, "z"));
  mount->close_gaps();
  CHECK(mount.read("z") == std::string(30'000, 'a'));
}

TEST_CASE("readers get the right bytes at every moment of the move", "[fs][gaps]") {
  Watched watched;
  InterceptedStorage storage(system_storage(), watched);
  // The gaps are filled from the end, from behind, through the journal, and by the header's padding.
  const auto [sizes, gone] = GENERATE(table<std::vector<std::size_t>, std::string>({
      {{30'000, 30'000, 7'001, 5'000, 30'000}, "b"},
      {{9'000, 8'192, 50'000, 40'000, 8'192}, "a"},
      {{5'001, 3'000, 60'000, 70'003, 1}, "b"},
      {{16, 300'000, 16, 100, 200'000, 7}, "ae"},
      {{100, 5, 3'000, 20'000, 90'000, 8}, "bd"},
  }));
  Contents contents = lettered(sizes);
  const DrivenFilesystem mount(of(contents), closing_gaps(), storage);
  for (const char name : gone) remove(mount, contents, std::string(1, name));
  mount->tidy();
  const Readers readers(mount, contents);
  const Ino whole = mount.ino("archive.safetensors", mount.ino(".safetensors"));
  const std::string whole_before = read_ino(mount, whole);
  int looks = 0;
  watched.look = [&](const SeamCall& call) {
    INFO("before " << name_of(call.kind) << " of the " << name_of(call.role));
    CHECK(readers.read() == contents);
    ++looks;
  };
  mount->close_gaps();
  watched.look = nullptr;
  CHECK(looks > 20);
  CHECK(readers.read() == contents);
  CHECK(stored_tensors(mount) == contents);
  CHECK_FALSE(has_filler(mount));
  CHECK(read_ino(mount, whole) == whole_before);  // a program has opened it before the move
}

TEST_CASE("the bytes of a deleted tensor stay as long as a program has it open", "[fs][gaps]") {
  Contents contents = lettered({30'000, 30'000, 30'000});
  const DrivenFilesystem mount(of(contents), closing_gaps());
  const Ino gone = mount.ino("a");
  mount->note_lookup(gone);
  remove(mount, contents, "a");
  mount->tidy();
  mount->close_gaps();
  CHECK(has_filler(mount));
  CHECK(read_ino(mount, gone) == std::string(30'000, 'a'));
  mount->forget(gone, 1);
  mount->tidy();
  mount->close_gaps();
  CHECK_FALSE(has_filler(mount));
  CHECK(stored_tensors(mount) == contents);
}

TEST_CASE("a tensor that a program writes stays in its place until the close", "[fs][gaps]") {
  Contents contents = lettered({30'000, 30'000, 30'000});
  const DrivenFilesystem mount(of(contents), closing_gaps());
  remove(mount, contents, "a");
  mount->tidy();
  Descriptor first(mount, "b", O_WRONLY);
  Descriptor last(mount, "c", O_WRONLY);
  REQUIRE(first.write(kNew, 0));
  REQUIRE(last.write(kNew, 0));
  mount->close_gaps();
  CHECK(has_filler(mount));
  CHECK(errno_of(first.close()) == 0);
  CHECK(errno_of(last.close()) == 0);
  for (const char* const name : {"b", "c"}) contents[name].replace(0, kNew.size(), kNew);
  mount->close_gaps();
  CHECK_FALSE(has_filler(mount));
  CHECK(stored_tensors(mount) == contents);
}

TEST_CASE("an edit does not wait for gaps that are being closed", "[fs][gaps]") {
  Watched watched;
  InterceptedStorage storage(system_storage(), watched);
  Contents contents = lettered({300'000, 300'000, 300'000});
  const DrivenFilesystem mount(of(contents), closing_gaps(), storage);
  make_room(mount);
  remove(mount, contents, "b");
  mount->tidy();
  std::atomic<pid_t> editor = 0;
  std::thread edits;
  watched.look = [&](const SeamCall& call) {
    const bool is_copy = call.kind == FileCall::Write || call.kind == FileCall::Clone;
    if (call.role != FileRole::Archive || !is_copy || edits.joinable()) return;
    edits = std::thread([&] {
      editor = static_cast<pid_t>(::syscall(SYS_gettid));
      CHECK(mount->rename(kRootIno, "a", kRootIno, "renamed"));
    });
    while (editor == 0 || !is_asleep(editor)) std::this_thread::yield();
  };
  mount->close_gaps();
  watched.look = nullptr;
  REQUIRE(edits.joinable());
  edits.join();
  CHECK(has_filler(mount));  // the compaction has given up
  contents.emplace("renamed", contents["a"]);
  contents.erase("a");
  CHECK(stored_tensors(mount) == contents);
  mount->close_gaps();
  CHECK(stored_tensors(mount) == contents);
}

TEST_CASE("nothing moves with compact=off, nor while another process reads the archive", "[fs][gaps]") {
  const bool is_on = GENERATE(true, false);
  MountedModelOptions options;
  options.closes_gaps = is_on;
  Contents contents = lettered({30'000, 30'000, 30'000});
  const DrivenFilesystem mount(of(contents), options);
  make_room(mount);
  auto reader = is_on ? Archive::open(mount.path(), Access::ReadOnly).value() : nullptr;
  remove(mount, contents, "a");
  mount->tidy();
  mount->close_gaps();
  CHECK(has_filler(mount));
  reader.reset();
  mount->close_gaps();
  CHECK(has_filler(mount) == !is_on);
}

TEST_CASE("random edits and moves leave what the edits say", "[fs][gaps]") {
  const unsigned seed = GENERATE(range(0U, 12U));
  INFO("seed " << seed);
  std::minstd_rand random(seed);
  Watched watched;
  InterceptedStorage storage(system_storage(), watched);
  std::vector<std::size_t> sizes(12);
  for (std::size_t& size : sizes) size = random() % 3 == 0 ? random() % 40 : random() % 60'000;
  Contents contents = lettered(sizes);
  const DrivenFilesystem mount(of(contents), closing_gaps(), storage);
  while (contents.size() > 2) {
    const auto chosen = std::next(contents.begin(), static_cast<long>(random() % contents.size()));
    const std::string name = chosen->first;
    if (random() % 2 == 0) {
      remove(mount, contents, name);
    } else {
      Descriptor writer(mount, name, O_WRONLY);
      std::string& bytes = chosen->second;
      const std::string part(bytes.size() / 2, static_cast<char>('A' + random() % 26));
      REQUIRE(writer.write(part, bytes.size() / 3));
      bytes.replace(bytes.size() / 3, part.size(), part);
      REQUIRE(errno_of(writer.close()) == 0);
    }
    if (random() % 3 == 0) continue;
    mount->tidy();
    const Readers readers(mount, contents);
    watched.look = [&](const SeamCall&) {
      if (random() % 4 == 0) CHECK(readers.read() == contents);
    };
    mount->close_gaps();
    watched.look = nullptr;
    REQUIRE(stored_tensors(mount) == contents);
  }
}
