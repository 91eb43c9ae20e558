#include "tests/support/disk_crash.h"

#include <algorithm>
#include <cstring>
#include <set>
#include <string>
#include <string_view>

namespace stfs::test {
namespace {

enum class Policy : std::uint8_t { Oldest, Newest, AsItComes, OneNew, OneOld, Torn, Stale };
constexpr std::size_t kPolicies = 7;

void drop_nameless(DiskImage& image) {
  std::vector<bool> is_named(image.inodes() + 1, false);
  for (const DiskName& name : image.names()) {
    if (name.path.now()) is_named[name.inode] = true;
  }
  for (InodeNumber inode = 1; inode <= image.inodes(); ++inode) {
    if (!is_named[inode]) image.drop(inode);
  }
}

/// Drops the bytes after the end of the file: they read as zeros once the file grows again.
void cut(DiskInode& file) {
  const std::uint64_t size_bytes = file.size_bytes.now();
  const std::size_t rest = size_bytes % kDiskBlockBytes;
  file.blocks.resize((size_bytes + kDiskBlockBytes - 1) / kDiskBlockBytes);
  if (rest == 0 || !file.blocks.back().now()) return;
  auto last = std::make_shared<DiskBlock>(*file.blocks.back().now());
  std::fill(last->begin() + static_cast<std::ptrdiff_t>(rest), last->end(), std::byte{0});
  file.blocks.back() = Unsettled<DiskBlockPointer>(std::move(last));
}

DiskBlockPointer torn(const Unsettled<DiskBlockPointer>& block, Choices& choices) {
  auto mix = std::make_shared<DiskBlock>();
  for (std::size_t at = 0; at < kDiskBlockBytes; at += kSectorBytes) {
    const DiskBlockPointer& from = block.version(choices.below(block.versions()));
    if (from) std::memcpy(mix->data() + at, from->data() + at, kSectorBytes);
  }
  return mix;
}

/// Old bytes of the disk in a new block that was allocated but never written.
DiskBlockPointer stale(const DiskImage& image, Choices& choices) {
  for (int tries = 0; tries < 4; ++tries) {
    const DiskInode& file = image.at(1 + choices.below(image.inodes()));
    if (!file.blocks.empty()) return file.blocks[choices.below(file.blocks.size())].now();
  }
  return {};
}

/// Applies one policy to things of one kind, in their order.
class Picker {
 public:
  Picker(Policy policy, std::size_t unsettled_things, Choices& choices)
      : policy_(policy),
        choices_(choices),
        odd_one_(choices.below(std::max<std::size_t>(1, unsettled_things))) {}

  /// Picks a version of the next thing, which has more than one.
  std::size_t pick(std::size_t versions) {
    const bool is_odd = count_++ == odd_one_;
    switch (policy_) {
      case Policy::Oldest: return 0;
      case Policy::Newest: return versions - 1;
      case Policy::OneNew: return is_odd ? versions - 1 : 0;
      case Policy::OneOld: return is_odd ? choices_.below(versions - 1) : versions - 1;
      case Policy::AsItComes:
      case Policy::Torn:
      case Policy::Stale: break;
    }
    return choices_.below(versions);
  }
  [[nodiscard]] Policy policy() const { return policy_; }

 private:
  Policy policy_;
  Choices& choices_;
  std::size_t odd_one_;
  std::size_t count_ = 0;
};

std::size_t unsettled_blocks(const DiskImage& image) {
  std::size_t count = 0;
  for (InodeNumber inode = 1; inode <= image.inodes(); ++inode) {
    for (const auto& block : image.at(inode).blocks) count += block.versions() > 1;
  }
  return count;
}

std::size_t unsettled_names(const DiskImage& image) {
  return static_cast<std::size_t>(
      std::ranges::count_if(image.names(), [](const DiskName& name) { return name.path.versions() > 1; }));
}

bool is_settled(const DiskInode& file) {
  return file.size_bytes.versions() == 1 &&
         std::ranges::all_of(file.blocks, [](const auto& block) { return block.versions() == 1; });
}

DiskBlockPointer settle_block(const Unsettled<DiskBlockPointer>& block, Picker& picker,
                              const DiskImage& before, Choices& choices) {
  if (picker.policy() == Policy::Torn && choices.one_in(2)) return torn(block, choices);
  const std::size_t version = picker.pick(block.versions());
  if (picker.policy() == Policy::Stale && version == 0 && !block.version(0)) return stale(before, choices);
  return block.version(version);
}

/// Settles every block and the size of a file. `before` is the image before the crash.
void settle_file(DiskInode& file, const DiskImage& before, Picker& data, Picker& sizes, Choices& choices) {
  for (auto& block : file.blocks) {
    if (block.versions() == 1) continue;
    block = Unsettled<DiskBlockPointer>(settle_block(block, data, before, choices));
  }
  if (file.size_bytes.versions() == 1) return;
  file.size_bytes = Unsettled<std::uint64_t>(file.size_bytes.version(sizes.pick(file.size_bytes.versions())));
  cut(file);
}

/// Settles the names. When one entry takes another entry's name, both change in one step.
void settle_names(DiskImage& image, Picker& picker) {
  std::vector<DiskName>& names = image.change_names();
  std::vector<std::size_t> picked(names.size(), 0);
  for (std::size_t at = 0; at < names.size(); ++at) {
    if (names[at].path.versions() > 1) picked[at] = picker.pick(names[at].path.versions());
  }
  for (std::size_t at = names.size(); at-- > 0;) {
    DiskName& name = names[at];
    if (name.taken_by != 0) {
      const std::size_t gone = name.path.versions() - 1;
      const bool is_gone = picked[name.taken_by] >= name.taken_at;
      picked[at] = is_gone ? gone : std::min(picked[at], gone - 1);
      name.taken_by = 0;
    }
  }
  std::set<std::string_view> taken;
  for (std::size_t at = names.size(); at-- > 0;) {
    const auto path = names[at].path.version(picked[at]);
    // Two entries with one path: the name was removed and then given to the younger entry.
    const bool is_there = path && taken.insert(*path).second;
    names[at].path = Unsettled(is_there ? path : nullptr);
  }
}

/// Drops the names in directories that the crash has lost.
void drop_lost_directories(DiskImage& image, const DiskImage& before) {
  std::vector<std::string> lost;
  for (std::size_t at = 0; at < before.names().size(); ++at) {
    const DiskName& name = before.names()[at];
    if (!before.at(name.inode).is_directory || image.names()[at].path.now()) continue;
    for (std::size_t version = 0; version < name.path.versions(); ++version) {
      if (const auto& path = name.path.version(version)) lost.push_back(*path + "/");
    }
  }
  for (DiskName& name : image.change_names()) {
    const auto& path = name.path.now();
    const auto is_above = [&](const std::string& directory) { return path->starts_with(directory); };
    if (path && std::ranges::any_of(lost, is_above)) name.path = {};
  }
}

DiskImage settle(const DiskImage& before, Picker data, Picker sizes, Picker names, Choices& choices) {
  DiskImage after = before;
  settle_names(after, names);
  drop_lost_directories(after, before);
  drop_nameless(after);
  for (InodeNumber inode = 1; inode <= after.inodes(); ++inode) {
    if (!is_settled(after.at(inode))) settle_file(after.change(inode), before, data, sizes, choices);
  }
  std::erase_if(after.change_names(), [](const DiskName& name) { return !name.path.now(); });
  return after;
}

}  // namespace

DiskImage after_power_loss(const DiskImage& image, Choices& choices) {
  const auto picker = [&] {
    // This policy has no odd thing. The number 0 keeps its choice from being one more decision.
    return Picker(Policy::AsItComes, 0, choices);
  };
  return settle(image, picker(), picker(), picker(), choices);
}

DiskImage after_random_power_loss(const DiskImage& image, Choices& choices, bool has_stale_blocks) {
  const auto policy = [&](std::size_t count) { return static_cast<Policy>(choices.below(count)); };
  static_assert(static_cast<std::size_t>(Policy::Stale) == kPolicies - 1);
  Picker data(policy(has_stale_blocks ? kPolicies : kPolicies - 1), unsettled_blocks(image), choices);
  Picker sizes(policy(3), 0, choices);
  Picker names(policy(5), unsettled_names(image), choices);
  return settle(image, data, sizes, names, choices);
}

DiskImage after_host_crash(const DiskImage& image, const std::vector<InodeNumber>& written, Choices& choices,
                           bool has_stale_blocks) {
  const auto policy = [&](std::size_t count) { return static_cast<Policy>(choices.below(count)); };
  std::size_t blocks = 0;
  for (const InodeNumber inode : written) {
    for (const auto& block : image.at(inode).blocks) blocks += block.versions() > 1;
  }
  Picker data(policy(has_stale_blocks ? kPolicies : kPolicies - 1), blocks, choices);
  Picker sizes(policy(3), 0, choices);
  DiskImage after = image;
  for (const InodeNumber inode : written) {
    if (!is_settled(after.at(inode))) settle_file(after.change(inode), image, data, sizes, choices);
  }
  return after;
}

DiskImage after_kill(const DiskImage& image) {
  DiskImage after = image;
  std::vector<bool> may_be_named(image.inodes() + 1, false);
  for (const DiskName& name : image.names()) {
    // A removed name that is not settled may come back, with its file, when the power fails later.
    for (std::size_t at = 0; at < name.path.versions(); ++at) {
      if (name.path.version(at)) may_be_named[name.inode] = true;
    }
  }
  for (InodeNumber inode = 1; inode <= image.inodes(); ++inode) {
    if (!may_be_named[inode]) after.drop(inode);
  }
  return after;
}

}  // namespace stfs::test
