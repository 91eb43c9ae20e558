#include "tests/simulation/programs.h"

#include <algorithm>

namespace stfs::test {
namespace {

constexpr std::uint32_t kUsers[] = {0, 1, 2, 3, 1};  // one for each place

}  // namespace

void Programs::fill() {
  while (places_.size() < std::size(kUsers)) places_.emplace_back();
  for (Place& place : places_) {
    if (!place) start(place);
  }
}

void Programs::start(Place& place) {
  const pid_t id = ++last_id_;
  table_[id] = {};
  const auto at = static_cast<std::size_t>(&place - places_.data());
  place = std::make_unique<Program>(kernel_.start(id, are_several_ ? kUsers[at] : 0));
}

void Programs::fork(const Program& parent, Place& child) {
  const pid_t id = ++last_id_;
  table_[id] = {};
  child = std::make_unique<Program>(kernel_.fork(parent, id));
}

void Programs::end(Place& place, Ending ending) {
  const pid_t id = place->id;
  table_[id].ending = ending;
  place->is_busy = true;
  kernel_.end(*place);
  table_.erase(id);
  place.reset();
}

void Programs::end_all() {
  const auto is_there = [](const Place& place) { return place != nullptr; };
  for (auto at = std::ranges::find_if(places_, is_there); at != places_.end();
       at = std::ranges::find_if(places_, is_there)) {
    end(*at, Ending::Closes);
  }
}

void Programs::drop_all() {
  for (Place& place : places_) {
    if (!place) continue;
    kernel_.end(*place);
    table_.erase(place->id);
    place.reset();
  }
}

Programs::Place& Programs::place_of(const Program& program) {
  return *std::ranges::find_if(places_, [&](const Place& place) { return place.get() == &program; });
}

Program* Programs::pick(std::uint32_t number) {
  for (std::size_t tries = 0; tries < places_.size(); ++tries) {
    Program* program = places_[(number + tries) % places_.size()].get();
    if (program != nullptr && !program->is_busy) return program;
  }
  return nullptr;
}

std::optional<std::size_t> Programs::pick_descriptor(const Program& program, std::uint32_t number) {
  std::vector<std::size_t> open;
  for (std::size_t at = 0; at < program.descriptors.size(); ++at) {
    if (program.descriptors[at]) open.push_back(at);
  }
  return open.empty() ? std::nullopt : std::optional(open[number % open.size()]);
}

}  // namespace stfs::test
