#include "fs/write/writers.h"

#include <algorithm>

#include "fs/base/process.h"

namespace stfs {

bool Writers::Writer::is(Owner owner, pid_t of_process) const {
  if (process != 0 && of_process != 0) return process == of_process;
  return owner != 0 && caller.owner == owner;
}

void Writers::note(Caller caller) {
  if (!caller.is_named()) return note_unnamed();
  const auto is_same = [&](const Writer& writer) {
    return writer.caller.owner == caller.owner && writer.caller.thread == caller.thread;
  };
  if (std::ranges::any_of(known_, is_same)) return;
  known_.push_back({.caller = caller, .process = process_of(caller.thread)});
}

void Writers::clear() {
  known_.clear();
  has_unnamed_ = false;
}

bool Writers::contains(Owner owner, pid_t process) const {
  return std::ranges::any_of(known_, [&](const Writer& writer) { return writer.is(owner, process); });
}

bool Writers::others_live(Owner owner, pid_t process) const {
  return std::ranges::any_of(known_, [&](const Writer& writer) {
    return !writer.is(owner, process) && (writer.process == 0 || is_alive(writer.process));
  });
}

bool Writers::is_any_killed() const {
  return std::ranges::any_of(known_, [](const Writer& writer) {
    return writer.process != 0 && ending_of(writer.process) != Ending::Closes;
  });
}

}  // namespace stfs
