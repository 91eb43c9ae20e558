// Edits while other threads look up, read, list and write: each call sees one version of the model.
#include <fmt/format.h>

#include <atomic>
#include <mutex>
#include <random>
#include <string>
#include <thread>

#include "tests/fs/driven_filesystem.h"
#include "tests/fs/stored_tensors.h"
#include "tests/support/catch.h"

using namespace stfs;
using namespace stfs::test;

namespace {

constexpr int kTensors = 12;
constexpr std::size_t kBytes = 9000;

/// Returns tensors in which all bytes are the same character.
Tensors uniform_tensors() {
  Tensors tensors;
  for (int at = 0; at < kTensors; ++at) {
    tensors.emplace_back("t" + std::to_string(at), std::string(kBytes, static_cast<char>('a' + at)));
  }
  return tensors;
}

bool has_one_letter(std::string_view bytes) {
  return bytes.find_first_not_of(bytes.empty() ? '\0' : bytes.front()) == std::string_view::npos;
}

/// Keeps the first fault. Any thread may call.
class Faults {
 public:
  template <typename T>
  void check(const Result<T>& result, std::string_view what) {
    if (!result) note(fmt::format("{}: {}", what, result.error().message));
  }
  void note(std::string fault) {
    const std::scoped_lock lock(mutex_);
    if (first_.empty()) first_ = std::move(fault);
  }
  [[nodiscard]] std::string first() const {
    const std::scoped_lock lock(mutex_);
    return first_;
  }

 private:
  mutable std::mutex mutex_;
  std::string first_;
};

/// Looks a name up and reads the file, as the kernel does for a program.
void read_whole(MountedModel& filesystem, Ino parent, std::string_view name, std::size_t head,
                Faults& faults) {
  const auto pin = filesystem.pin();
  const auto found = filesystem.lookup(parent, name);
  if (!found && found.error().errno_value == ENOENT) return;
  faults.check(found, "look-up");
  if (!found) return;
  const Ino ino = found->st_ino;
  filesystem.note_lookup(ino);
  const auto bytes = filesystem.read(ino, head, 1 << 20);
  // The file may have been deleted before note_lookup(). Then the kernel looks the name up again.
  const auto present = filesystem.lookup(parent, name);
  if (bytes || (present && present->st_ino == ino)) faults.check(bytes, "read");
  if (bytes && !has_one_letter(text_of(bytes->copy().value()))) faults.note(fmt::format("{} is a mix", name));
  if (bytes) faults.check(filesystem.attributes(ino), "attributes");
  filesystem.forget(ino, 1);
}

}  // namespace

TEST_CASE("readers see whole tensors while others are deleted, renamed, made and retyped", "[fs][edit]") {
  const DrivenFilesystem mount(uniform_tensors());
  MountedModel& filesystem = *mount;
  const Ino npy = mount.ino("npy", mount.ino(".safetensors"));
  std::atomic<bool> is_over = false;
  Faults faults;
  std::vector<std::thread> readers;
  for (unsigned seed = 0; seed < 3; ++seed) {
    readers.emplace_back([&, seed] {
      std::minstd_rand random(seed);
      while (!is_over) {
        const std::string name = "t" + std::to_string(random() % (2 * kTensors));
        read_whole(filesystem, kRootIno, name, 0, faults);
        read_whole(filesystem, npy, name + ".npy", 128, faults);  // behind the NumPy header
        const auto pin = filesystem.pin();
        for (const Ino directory : {Ino{kRootIno}, npy}) {
          faults.check(filesystem.read_directory(directory, 0,
                                                 [](std::string_view, Ino, std::uint64_t) { return true; }),
                       "listing");
        }
        static_cast<void>(filesystem.statistics());
      }
    });
  }
  readers.emplace_back([&] {
    while (!is_over) filesystem.tidy();
  });

  std::minstd_rand random(7);
  int done = 0;
  for (int step = 0; step < 120; ++step) {
    const std::string one = "t" + std::to_string(random() % (2 * kTensors));
    const std::string other = "t" + std::to_string(random() % (2 * kTensors));
    const auto pin = filesystem.pin();
    switch (random() % 4) {
      case 0: done += filesystem.remove_file(kRootIno, one).has_value() ? 1 : 0; break;
      case 1: done += filesystem.rename(kRootIno, one, kRootIno, other).has_value() ? 1 : 0; break;
      case 2: {
        const auto found = filesystem.lookup(kRootIno, one);
        const char* const shape = random() % 2 == 0 ? "[90,100]" : "[9000]";
        if (found && filesystem.set_extended_attribute(found->st_ino, "user.safetensors.shape", shape))
          ++done;
        break;
      }
      default: {
        if (filesystem.lookup(kRootIno, one)) break;
        const auto made = filesystem.create(kRootIno, one, O_WRONLY, ::getpid()).value();
        const std::string bytes(kBytes, static_cast<char>('A' + step % 26));
        faults.check(filesystem.write(*made.file, bytes_of(bytes), 0, Caller(1, ::getpid())), "write");
        const std::string shape = "[" + std::to_string(kBytes) + "]";
        for (const auto& [key, value] : {std::pair("dtype", std::string("U8")), std::pair("shape", shape)}) {
          const std::string attribute = std::string("user.safetensors.") + key;
          faults.check(filesystem.set_extended_attribute(made.status.st_ino, attribute, value), attribute);
        }
        faults.check(filesystem.flush(*made.file, 1, ::getpid()), "close");
        filesystem.release(made.file);
        ++done;
      }
    }
  }
  is_over = true;
  for (std::thread& reader : readers) reader.join();
  CHECK(faults.first() == "");
  CHECK(done > 30);
  for (const auto& [name, bytes] : stored_tensors(mount)) {
    CHECK(bytes.size() == kBytes);
    CHECK(has_one_letter(bytes));
  }
  filesystem.tidy();
  CHECK(filesystem.model().removed().empty());
}

TEST_CASE("a file that shows the whole model is there for whoever has just looked it up", "[fs][edit]") {
  const DrivenFilesystem mount(uniform_tensors());
  MountedModel& filesystem = *mount;
  const Ino views = mount.ino(".safetensors");
  std::atomic<bool> is_over = false;
  std::atomic<int> looks = 0;
  Faults faults;
  std::vector<std::thread> readers;
  for (const std::string_view name : {"archive.safetensors", "header.json", "metadata.json"}) {
    readers.emplace_back([&, name] {
      for (; !is_over; ++looks) {
        const auto pin = filesystem.pin();
        const auto found = filesystem.lookup(views, name);
        faults.check(found, fmt::format("look-up of {}", name));
        if (!found) return;
        faults.check(filesystem.attributes(found->st_ino), fmt::format("attributes of {}", name));
        filesystem.forget(found->st_ino, 1);
      }
    });
  }
  const auto edit = [&](int step) {
    const auto pin = filesystem.pin();
    const std::string value = std::to_string(step);
    faults.check(filesystem.set_extended_attribute(kRootIno, "user.safetensors.metadata.k", value), "edit");
  };
  for (int step = 0; step < 300 || looks < 300; ++step) edit(step);
  is_over = true;
  for (std::thread& reader : readers) reader.join();
  CHECK(faults.first() == "");
}
