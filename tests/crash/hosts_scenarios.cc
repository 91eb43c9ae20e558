#include <algorithm>
#include <cerrno>
#include <iterator>
#include <stdexcept>
#include <string_view>

#include "tests/crash/cast.h"
#include "tests/crash/hosts_run.h"

namespace stfs::test {
namespace {

constexpr std::string_view kOtherName = "/models/other.safetensors";

/// Adds after each scenario the same one with kept journals.
struct Kept {
  std::string_view name;
  std::size_t commits;
  std::size_t slots;
};
constexpr Kept kKept[] = {{"users: root and a group", 5, 4},
                          {"devices: two hosts without birth times", 5, 4},
                          {"boots: three", 4, 4},
                          {"durabilities: both", 5, 2},
                          {"durabilities: both, without birth times", 5, 2},
                          {"names: two", 5, 2},
                          {"looks: some fail", 5, 4}};

std::vector<HostsScenario> with_kept_journals(const std::vector<HostsScenario>& plain) {
  std::vector<HostsScenario> all;
  for (const HostsScenario& scenario : plain) {
    all.push_back(scenario);
    const auto* kept = std::ranges::find(kKept, scenario.name, &Kept::name);
    if (kept == std::end(kKept)) continue;
    all.push_back(scenario);
    all.back().name += ", kept journals";
    all.back().commits = kept->commits;
    all.back().slots = kept->slots;
    all.back().keeps_journal = true;
  }
  if (all.size() != plain.size() + std::size(kKept))
    throw std::logic_error("a name in kKept is no scenario's");
  return all;
}

}  // namespace

const std::vector<HostsScenario>& hosts_scenarios() {
  static const std::vector<HostsScenario> list = {
      {.name = "different bytes", .each_its_own = true},
      {.name = "different bytes, with kills", .each_its_own = true, .kills_one_in = 60},
      {.name = "the same tensor", .slots = 1},
      {.name = "the same tensor, with kills", .slots = 1, .kills_one_in = 40},
      {.name = "different bytes, and an archive that is slow to sync",
       .each_its_own = true,
       .kills_one_in = 60,
       .snapshots_one_in = 20,
       .dawdles_at_end = true},
      {.name = "all tensors"},
      {.name = "all tensors, with kills", .commits = 5, .kills_one_in = 60},
      {.name = "few tensors, with kills and readers",
       .readers = 2,
       .commits = 5,
       .slots = 4,
       .kills_one_in = 80},
      {.name = "many writers", .writers = 6, .commits = 2, .kills_one_in = 200},
      {.name = "kept journals, different bytes", .commits = 5, .each_its_own = true, .keeps_journal = true},
      {.name = "kept journals, the same tensor",
       .commits = 5,
       .slots = 1,
       .snapshots_one_in = 8,
       .keeps_journal = true},
      {.name = "kept journals, two writers of two tensors",
       .writers = 2,
       .commits = 8,
       .slots = 2,
       .snapshots_one_in = 4,
       .keeps_journal = true},
      {.name = "kept journals, two writers of one tensor, and a slow disk",
       .writers = 2,
       .commits = 6,
       .slots = 1,
       .snapshots_one_in = 4,
       .keeps_journal = true,
       .dawdles = true},
      {.name = "kept journals, two writers of one tensor, killed in syncs",
       .writers = 2,
       .commits = 6,
       .slots = 1,
       .kills_one_in = 8,
       .dies_in_syncs = true,
       .snapshots_one_in = 4,
       .keeps_journal = true,
       .dawdles = true},
      {.name = "kept journals, the same tensor, with kills",
       .commits = 5,
       .slots = 1,
       .kills_one_in = 40,
       .keeps_journal = true},
      {.name = "kept journals, few tensors, with kills and readers",
       .readers = 2,
       .commits = 6,
       .slots = 4,
       .kills_one_in = 80,
       .keeps_journal = true},
      {.name = "without unnamed files", .commits = 4, .kills_one_in = 60, .disk = {.has_unnamed = false}},
  };
  return list;
}

const std::vector<HostsScenario>& edge_scenarios() {
  static const std::vector<HostsScenario> list = with_kept_journals({
      {.name = "users: root and the owner", .kills_one_in = 60, .users = {kRoot, kAlice}, .archive = kHers},
      {.name = "users: root and a group",
       .kills_one_in = 60,
       .users = {kRoot, kAlice, kBob},
       .archive = kOfAnotherUser,
       .disk = kGroupDirectory},
      {.name = "users: everybody, without unnamed files",
       .kills_one_in = 60,
       .users = {kRoot, kAlice, kBob, kCarol},
       .archive = kEverybodys,
       .disk = {.has_unnamed = false}},
      {.name = "users: one who may only read",
       .writers = 0,
       .readers = 2,
       .begins_with_journal = true,
       .users = {kRoot, kAlice, kBob},
       .onlookers = {kCarol},
       .archive = kReadable},
      {.name = "devices: two hosts without birth times",
       .kills_one_in = 60,
       .mounts = {kOneHost, kOtherHost}},
      {.name = "devices: a server and a host without birth times",
       .kills_one_in = 60,
       .mounts = {kServer, kOneHost},
       // A host with birth times accepts a journal without one only in a directory of the archive's writers.
       .disk = {.directory = {.permissions = 0755}}},
      {.name = "devices: other numbers at each boot, without birth times",
       .kills_one_in = 60,
       .boots = 2,
       .mounts = {kOneHost}},
      {.name = "boots: three", .kills_one_in = 60, .boots = 3},
      // Unsynced blocks with stale bytes look like damage, and damage blocks commits.
      {.name = "durabilities: both",
       .slots = 4,
       .kills_one_in = 60,
       .snapshots_one_in = 20,
       .durabilities = {Durability::Power, Durability::Process},
       .disk = {.has_stale_blocks = false}},
      {.name = "durabilities: process, kept journals",
       .commits = 5,
       .slots = 2,
       .kills_one_in = 60,
       .snapshots_one_in = 20,
       .keeps_journal = true,
       .durabilities = {Durability::Process},
       .disk = {.has_stale_blocks = false}},
      {.name = "durabilities: both, without birth times",
       .slots = 4,
       .kills_one_in = 60,
       .snapshots_one_in = 20,
       .mounts = {kOneHost},
       .durabilities = {Durability::Power, Durability::Process},
       .disk = {.has_stale_blocks = false}},
      {.name = "strangers: without birth times",
       .writers = 1,
       .commits = 6,
       .slots = 4,
       .kills_one_in = 60,
       .snapshots_one_in = 10,
       .has_stranger = true,
       .mounts = {kOneHost}},
      {.name = "strangers: kept journals",
       .writers = 1,
       .commits = 10,
       .slots = 4,
       .kills_one_in = 60,
       .snapshots_one_in = 10,
       .keeps_journal = true,
       .has_stranger = true},
      {.name = "durabilities: both, three boots, without unnamed files",
       .slots = 4,
       .kills_one_in = 60,
       .snapshots_one_in = 20,
       .boots = 3,
       .durabilities = {Durability::Power, Durability::Process},
       .disk = {.has_stale_blocks = false, .has_unnamed = false}},
      {.name = "names: two", .kills_one_in = 60, .are_refused = true, .paths = {kArchivePath, kOtherName}},
      {.name = "looks: readers beside a committed journal",
       .writers = 0,
       .readers = 4,
       .begins_with_journal = true},
      {.name = "looks: openers beside a committed journal",
       .writers = 0,
       .openers = 4,
       .commits = 2,
       .begins_with_journal = true},
      {.name = "looks: some fail, readers beside a committed journal",
       .writers = 0,
       .readers = 3,
       .begins_with_journal = true,
       .fails_one_in = 10},
      {.name = "looks: some fail, openers beside a committed journal",
       .writers = 0,
       .openers = 3,
       .begins_with_journal = true,
       .fails_one_in = 10},
      {.name = "looks: some fail", .kills_one_in = 80, .fails_one_in = 60},
      {.name = "looks: what is removed is not there",
       .commits = 5,
       .kills_one_in = 80,
       .mounts = {kOneHost, kOtherHost},
       .disk = {.removed_errno = ENOENT}},
      {.name = "looks: what is removed is stale, kept journals",
       .commits = 5,
       .slots = 4,
       .kills_one_in = 80,
       .keeps_journal = true,
       .mounts = {kServer},
       .disk = {.removed_errno = ESTALE}},
  });
  return list;
}

}  // namespace stfs::test
