// Tests which close commits, and that incomplete content is not committed.
#include <thread>

#include "tests/fs/descriptor.h"
#include "tests/support/captured_stderr.h"
#include "tests/support/catch.h"
#include "tests/support/child_process.h"

using namespace stfs;
using namespace stfs::test;

TEST_CASE_METHOD(Mounted,
                 "content of the wrong size fails the close with EINVAL and the log says what was due",
                 "[fs][filesystem][close]") {
  for (const int access : {O_WRONLY, O_RDWR}) {
    Descriptor writer(mount, "first", access | O_TRUNC);
    REQUIRE(writer.write("short", 0));
    const auto closed = writer.close();
    REQUIRE_FALSE(closed);
    CHECK(closed.error().errno_value == EINVAL);
    CHECK(closed.error().code == ErrorCode::WrongSize);
    CHECK(mount.stored("first") == kOld);
    CHECK(mount.read("first") == kOld);
    CHECK(mount->attributes(mount.ino("first"))->st_size == 16);
    Descriptor empty(mount, "first", access | O_TRUNC);
    CHECK(errno_of(empty.close()) == EINVAL);
    CHECK(mount.stored("first") == kOld);
  }
  CHECK(captured.contains("tensor \"first\": dropped: 5 bytes were written, U8 [16] needs 16"));
}

TEST_CASE_METHOD(Mounted, "a close of what was not written commits nothing", "[fs][filesystem][close]") {
  const std::uint64_t generation = mount.generation("first");
  for (const int access : {O_WRONLY, O_RDWR}) {
    Descriptor writer(mount, "first", access);
    REQUIRE(writer.resize(16));  // its own size: nothing has changed
    CHECK(writer.close()->what == Stale::What::Nothing);
  }
  CHECK(mount.generation("first") == generation);
}

TEST_CASE_METHOD(Mounted, "a close by somebody who wrote nothing commits nothing of what others write",
                 "[fs][filesystem][close]") {
  const Process child{.owner = 2, .pid = ::getpid()};
  for (const int access : {O_WRONLY, O_RDWR}) {
    Descriptor writer(mount, "first", access);
    REQUIRE(writer.write("half", 0));
    CHECK(writer.flush(child)->what == Stale::What::Nothing);
    CHECK(mount.stored("first") == kOld);
    REQUIRE(writer.write(kNew, 0));
    REQUIRE(writer.close());
    CHECK(mount.stored("first") == kNew);
    Descriptor restore(mount, "first", O_WRONLY);
    REQUIRE(restore.write(kOld, 0));
    REQUIRE(restore.close());
  }
}

TEST_CASE_METHOD(Mounted, "any of several writers commits with its close", "[fs][filesystem][close]") {
  const Process child{.owner = 2, .pid = ::getpid()};
  Descriptor writer(mount, "first", O_WRONLY);
  REQUIRE(writer.write("01", 0, this_process().owner));
  REQUIRE(writer.write("23", 2, child.owner));
  CHECK(writer.flush(child)->what == Stale::What::Attributes);
  CHECK(mount.stored("first") == "0123AAAAAAAAAAAA");
}

TEST_CASE_METHOD(Mounted, "a commit forgets who wrote: the next round has its own writers",
                 "[fs][filesystem][close]") {
  const Process child{.owner = 2, .pid = ::getpid()};
  Descriptor writer(mount, "first", O_WRONLY);
  REQUIRE(writer.write("1", 0, child.owner));
  REQUIRE(writer.flush(child));
  REQUIRE(writer.write("2", 1));
  CHECK(writer.flush(child)->what == Stale::What::Nothing);
  CHECK(mount.stored("first") == "1AAAAAAAAAAAAAAA");
}

TEST_CASE_METHOD(Mounted, "writes whose owner the kernel does not tell commit with any close",
                 "[fs][filesystem][close]") {
  Descriptor writer(mount, "first", O_RDWR);
  REQUIRE(writer.write("cached", 0, 0));
  CHECK(writer.flush({.owner = 7, .pid = ::getpid()})->what == Stale::What::Attributes);
  CHECK(mount.stored("first") == "cachedAAAAAAAAAA");
}

TEST_CASE("a part written by a child of the opener is completed by the next one", "[fs][filesystem][close]") {
  // { head -c 10 A; cat B; } > T
  const DrivenFilesystem mount;
  const ChildProcess shell(ChildProcess::Fate::Lives);
  const Process opener{.owner = 1, .pid = shell.pid()};
  const Process head{.owner = 2, .pid = ::getpid()};
  const Process cat{.owner = 3, .pid = ::getpid()};
  Descriptor descriptor(mount, "first", O_WRONLY | O_TRUNC, opener);
  REQUIRE(descriptor.write(kNew.substr(0, 10), 0, head.owner));
  CHECK(descriptor.flush(head)->what == Stale::What::Nothing);
  CHECK(mount.stored("first") == kOld);
  REQUIRE(descriptor.write(kNew.substr(10), 10, cat.owner));
  CHECK(descriptor.flush(cat)->what == Stale::What::Attributes);
  CHECK(mount.stored("first") == kNew);
  CHECK(descriptor.flush(opener)->what == Stale::What::Nothing);
}

TEST_CASE_METHOD(Mounted, "an opener that closes what was never completed is told",
                 "[fs][filesystem][close]") {
  const ChildProcess shell(ChildProcess::Fate::Lives);
  const Process opener{.owner = 1, .pid = shell.pid()};
  const Process head{.owner = 2, .pid = ::getpid()};
  Descriptor descriptor(mount, "first", O_WRONLY | O_TRUNC, opener);
  REQUIRE(descriptor.write("short", 0, head.owner));
  CHECK(descriptor.flush(head));
  CHECK(errno_of(descriptor.flush(opener)) == EINVAL);
  descriptor.release();
  CHECK(mount.stored("first") == kOld);
}

TEST_CASE_METHOD(Mounted, "once the opener has closed, or is gone, the writer itself is told",
                 "[fs][filesystem][close]") {
  ChildProcess shell(ChildProcess::Fate::Lives);
  const Process opener{.owner = 1, .pid = shell.pid()};
  const Process writer{.owner = 2, .pid = ::getpid()};
  Descriptor descriptor(mount, "first", O_WRONLY | O_TRUNC, opener);
  REQUIRE(descriptor.write("short", 0, writer.owner));
  SECTION("closed") {
    CHECK(errno_of(descriptor.flush(opener)) == EINVAL);
  }
  SECTION("gone") {
    shell.end();
  }
  CHECK(errno_of(descriptor.flush(writer)) == EINVAL);
}

TEST_CASE_METHOD(Mounted, "a writer that a signal kills is rolled back, and stays so",
                 "[fs][filesystem][close]") {
  const ChildProcess killed(ChildProcess::Fate::IsKilled);
  const Process victim{.owner = 5, .pid = killed.pid()};
  for (const int access : {O_WRONLY, O_RDWR}) {
    Descriptor writer(mount, "first", access, victim);
    REQUIRE(writer.write("half of it", 0));
    const auto flushed = writer.flush();
    REQUIRE(flushed);
    CHECK(flushed->what == (access == O_RDWR ? Stale::What::Content : Stale::What::Nothing));
    CHECK(mount.stored("first") == kOld);
    CHECK(mount.read("first") == kOld);
    CHECK(errno_of(writer.write("more", 0)) == EIO);
    CHECK(errno_of(writer.flush(this_process())) == EIO);
    CHECK(errno_of(writer.sync()) == EIO);
    CHECK(writer.release().what == Stale::What::Nothing);
    CHECK(mount.stored("first") == kOld);
  }
  CHECK(captured.contains("was killed by a signal before it closed"));
}

TEST_CASE_METHOD(Mounted, "a killed process that wrote nothing rolls nobody back",
                 "[fs][filesystem][close]") {
  const ChildProcess killed(ChildProcess::Fate::IsKilled);
  Descriptor writer(mount, "first", O_WRONLY);
  REQUIRE(writer.write(kNew, 0));
  CHECK(writer.flush({.owner = 5, .pid = killed.pid()})->what == Stale::What::Nothing);
  REQUIRE(writer.close());
  CHECK(mount.stored("first") == kNew);
}

TEST_CASE_METHOD(Mounted, "a failure is every shared descriptor's, and ends with the last of them",
                 "[fs][filesystem][close]") {
  {
    Descriptor one(mount, "first", O_RDWR);
    Descriptor other(mount, "first", O_RDWR, {.owner = 2, .pid = ::getpid()});
    REQUIRE(other.write("other", 0));
    CHECK(errno_of(one.write("x", 16)) == EFBIG);
    CHECK(errno_of(one.close()) == EINVAL);
    CHECK(errno_of(other.close()) == EINVAL);
    CHECK(mount.stored("first") == kOld);
  }
  Descriptor fresh(mount, "first", O_RDWR);
  REQUIRE(fresh.write(kNew, 0));
  REQUIRE(fresh.close());
  CHECK(mount.stored("first") == kNew);
}

TEST_CASE_METHOD(Mounted, "an isolated writer is not touched by another's failure",
                 "[fs][filesystem][close]") {
  Descriptor failing(mount, "first", O_RDWR);
  Descriptor writer(mount, "first", O_WRONLY);
  CHECK(errno_of(failing.write("x", 16)) == EFBIG);
  REQUIRE(writer.write(kNew, 0));
  REQUIRE(writer.close());
  CHECK(mount.stored("first") == kNew);
}

TEST_CASE_METHOD(Mounted, "what is released without a close is committed when whole, dropped when cut",
                 "[fs][filesystem][close]") {
  Descriptor isolated(mount, "first", O_WRONLY);
  REQUIRE(isolated.write(kNew, 0));
  CHECK(isolated.release().what == Stale::What::Attributes);
  CHECK(mount.stored("first") == kNew);
  CHECK_FALSE(captured.contains("dropped"));

  Descriptor cut(mount, "first", O_RDWR | O_TRUNC);
  REQUIRE(cut.write("short", 0));
  CHECK(cut.release().what == Stale::What::Content);
  CHECK(mount.stored("first") == kNew);
  CHECK(captured.contains("tensor \"first\": dropped: 5 bytes were written"));
  Descriptor restore(mount, "first", O_WRONLY);
  REQUIRE(restore.write(kOld, 0));
  REQUIRE(restore.close());

  Descriptor shared(mount, "first", O_RDWR);
  REQUIRE(shared.write(kNew, 0));
  CHECK(shared.release().what == Stale::What::Attributes);
  CHECK(mount.stored("first") == kNew);
}

TEST_CASE_METHOD(Mounted, "what is pending lives as long as one of the descriptors that share it",
                 "[fs][filesystem][close]") {
  Descriptor one(mount, "first", O_RDWR);
  Descriptor other(mount, "first", O_RDWR);
  REQUIRE(one.write("1", 0));
  CHECK(one.release().what == Stale::What::Nothing);
  CHECK(mount.read("first") == "1AAAAAAAAAAAAAAA");
  CHECK(mount.stored("first") == kOld);
  CHECK(other.release().what == Stale::What::Attributes);
  CHECK(mount.stored("first") == "1AAAAAAAAAAAAAAA");
}

TEST_CASE("the end of the mount drops what is pending and says so, once for each",
          "[fs][filesystem][close]") {
  const DrivenFilesystem mount;
  Descriptor clean(mount, "second", O_RDWR);
  Descriptor isolated(mount, "first", O_WRONLY);
  Descriptor shared(mount, "first", O_RDWR);
  Descriptor sharing(mount, "first", O_RDWR);
  REQUIRE(isolated.write(kNew, 0));
  REQUIRE(shared.write("x", 0));
  const CapturedStderr captured;
  mount->end();
  const std::string text = captured.text();
  CHECK(std::count(text.begin(), text.end(), '\n') == 2);
  CHECK(captured.contains("tensor \"first\": dropped"));
  CHECK(mount.read("first") == kOld);
  mount->end();
  CHECK(captured.text() == text);
  CHECK(shared.release().what == Stale::What::Nothing);
  CHECK(mount.stored("first") == kOld);
}

TEST_CASE_METHOD(Mounted, "a close by somebody who wrote nothing fails nothing of what others are writing",
                 "[fs][filesystem][close]") {
  Descriptor writer(mount, "first", O_RDWR | O_TRUNC);
  REQUIRE(writer.write(kNew.substr(0, 8), 0));
  Descriptor onlooker(mount, "first", O_RDWR, {.owner = 2, .pid = ::getpid()});
  CHECK(onlooker.close());
  CHECK(writer.write(kNew.substr(8), 8));
  CHECK(writer.close());
  CHECK(mount.stored("first") == kNew);
}

TEST_CASE_METHOD(Mounted, "a descriptor opened after a refused close does not inherit the failure",
                 "[fs][filesystem][close]") {
  Descriptor failing(mount, "first", O_RDWR);
  CHECK(errno_of(failing.write("x", 16)) == EFBIG);
  CHECK(errno_of(failing.flush()) == EINVAL);
  Descriptor fresh(mount, "first", O_RDWR);  // the kernel's RELEASE of the old one comes late
  CHECK(fresh.write(kNew, 0));
  CHECK(fresh.close());
  CHECK(mount.stored("first") == kNew);
}

// ---- cached writes: the kernel names the thread, and no owner ----

namespace {

Caller cached_by(const ChildProcess& process) {
  return {0, process.pid()};
}

}  // namespace

TEST_CASE_METHOD(Mounted, "after a cached write neither a child nor a bystander commits by closing",
                 "[fs][filesystem][close]") {
  const ChildProcess child(ChildProcess::Fate::Lives);
  Descriptor writer(mount, "first", O_RDWR);
  REQUIRE(writer.write("half", 0, {0, ::getpid()}));
  CHECK(writer.flush({.owner = 2, .pid = child.pid()})->what == Stale::What::Nothing);
  Descriptor bystander(mount, "first", O_RDWR, {.owner = 2, .pid = child.pid()});
  CHECK(bystander.close()->what == Stale::What::Nothing);
  CHECK(mount.stored("first") == kOld);
  REQUIRE(writer.write(kNew, 0, {0, ::getpid()}));
  CHECK(writer.close()->what == Stale::What::Attributes);
  CHECK(mount.stored("first") == kNew);
}

TEST_CASE_METHOD(Mounted,
                 "after a cached write the death of a child drops nothing, the writer's own drops all",
                 "[fs][filesystem][close]") {
  const ChildProcess killed(ChildProcess::Fate::IsKilled);
  const Process victim{.owner = 2, .pid = killed.pid()};
  {
    Descriptor writer(mount, "first", O_RDWR);
    REQUIRE(writer.write(kNew, 0, {0, ::getpid()}));
    CHECK(writer.flush(victim)->what == Stale::What::Nothing);
    REQUIRE(writer.close());
    CHECK(mount.stored("first") == kNew);
  }
  Descriptor writer(mount, "first", O_RDWR);
  REQUIRE(writer.write(kOld, 0, cached_by(killed)));
  REQUIRE(writer.flush(victim));
  CHECK(errno_of(writer.close()) == EIO);
  CHECK(mount.stored("first") == kNew);
}

TEST_CASE_METHOD(Mounted, "bytes of a mapping outlive a killed child, and a killed bystander",
                 "[fs][filesystem][close]") {
  const ChildProcess killed(ChildProcess::Fate::IsKilled);
  const Process victim{.owner = 2, .pid = killed.pid()};
  Descriptor mapper(mount, "first", O_RDWR);
  Descriptor bystander(mount, "first", O_RDWR, victim);
  REQUIRE(mount->write_back(mount.ino("first"), bytes_of(kNew), 0));
  CHECK(mapper.flush(victim)->what == Stale::What::Nothing);
  CHECK(bystander.close()->what == Stale::What::Nothing);
  CHECK(mount.read("first") == kNew);
}

TEST_CASE_METHOD(Mounted,
                 "bytes of a mapping are dropped with the only process that has the tensor open for writing",
                 "[fs][filesystem][close]") {
  const ChildProcess killed(ChildProcess::Fate::IsKilled);
  Descriptor mapper(mount, "first", O_RDWR, {.owner = 2, .pid = killed.pid()});
  REQUIRE(mount->write_back(mount.ino("first"), bytes_of(kNew), 0));
  REQUIRE(mapper.close());
  CHECK(mount.stored("first") == kOld);
  CHECK(mount.read("first") == kOld);
}

TEST_CASE_METHOD(Mounted,
                 "bytes of a mapping are committed when it goes, although others have the tensor open",
                 "[fs][filesystem][close]") {
  Descriptor mapper(mount, "first", O_RDWR);
  Descriptor other(mount, "first", O_RDWR, {.owner = 2, .pid = 1});
  REQUIRE(mapper.flush());
  REQUIRE(mount->write_back(mount.ino("first"), bytes_of(kNew), 0));
  CHECK(mapper.release().what == Stale::What::Attributes);
  CHECK(mount.stored("first") == kNew);
}

TEST_CASE_METHOD(Mounted, "an opener that wrote nothing does not commit what another process is writing",
                 "[fs][filesystem][close]") {
  ChildProcess child(ChildProcess::Fate::Lives);
  Descriptor descriptor(mount, "first", O_WRONLY);
  REQUIRE(descriptor.write("half", 0, cached_by(child)));
  SECTION("which lives") {
    CHECK(descriptor.flush()->what == Stale::What::Nothing);
    CHECK(mount.stored("first") == kOld);
  }
  SECTION("which has gone without a close: through a slot of an io_uring") {
    child.end();
    CHECK(descriptor.flush()->what == Stale::What::Attributes);
  }
}

TEST_CASE_METHOD(Mounted, "what a thread wrote is its process's", "[fs][filesystem][close]") {
  Descriptor descriptor(mount, "first", O_RDWR);
  std::thread([&] { CHECK(descriptor.write(kNew, 0, {0, ::gettid()})); }).join();
  CHECK(descriptor.close()->what == Stale::What::Attributes);
  CHECK(mount.stored("first") == kNew);
}

// ---- times ----

TEST_CASE_METHOD(Mounted,
                 "a time that is set after the last write outlives the commit, an earlier one does not",
                 "[fs][filesystem][close]") {
  const Ino ino = mount.ino("first");
  for (const int access : {O_WRONLY, O_RDWR}) {
    Descriptor writer(mount, "first", access);
    REQUIRE(writer.write(kNew, 0));
    mount->set_mtime(ino, {1000, 5});
    REQUIRE(writer.close());
    CHECK(mount->attributes(ino)->st_mtim.tv_sec == 1000);
    CHECK(mount->attributes(ino)->st_mtim.tv_nsec == 5);
    Descriptor later(mount, "first", access);
    mount->set_mtime(ino, {1000, 5});
    REQUIRE(later.write(kNew, 0));
    REQUIRE(later.close());
    CHECK(mount->attributes(ino)->st_mtim.tv_sec > 1'000'000'000);
  }
}
