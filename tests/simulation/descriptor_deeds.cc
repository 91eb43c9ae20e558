#include "tests/simulation/descriptor_deeds.h"

#include <fcntl.h>

#include <algorithm>
#include <utility>

namespace stfs::test {

void DescriptorDeeds::read(std::uint32_t a, std::uint32_t b, std::uint32_t c, std::uint32_t d) {
  const auto chosen = choose(a, b);
  if (!chosen || (chosen->file->flags & O_ACCMODE) == O_WRONLY) return;
  const Busy busy(*chosen->program);
  const std::uint64_t size = chosen->target.edition->committed.at(chosen->target.tensor).size();
  const std::uint64_t offset = c % size;
  read_and_check(*chosen->program, chosen->file, offset, 1 + d % size);
}

void DescriptorDeeds::write(std::uint32_t a, std::uint32_t b, std::uint32_t c, std::uint32_t d) {
  const auto chosen = choose(a, b);
  if (!chosen || (chosen->file->flags & O_ACCMODE) == O_RDONLY) return;
  if (now_.depth > 1 && (chosen->file->flags & O_DSYNC) != 0) return;
  const Busy busy(*chosen->program);
  const std::uint64_t size = chosen->target.edition->committed.at(chosen->target.tensor).size();
  const std::uint64_t offset = c % size;
  // Sometimes the write goes past the end.
  const std::uint64_t most = d % 29 == 0 ? size : size - offset;
  const Buffer bytes = machine_.archive().fresh(1 + d / 29 % most);
  kernel_.write(*chosen->program, chosen->file, offset, bytes);
}

void DescriptorDeeds::close(std::uint32_t a, std::uint32_t b) {
  auto chosen = choose(a, b);
  if (!chosen) return;
  const Busy busy(*chosen->program);
  chosen->file.reset();
  kernel_.close(*chosen->program, chosen->descriptor);
}

void DescriptorDeeds::sync(std::uint32_t a, std::uint32_t b) {
  const auto chosen = choose(a, b);
  if (!chosen) return;
  const Busy busy(*chosen->program);
  kernel_.sync(*chosen->program, chosen->file);
}

void DescriptorDeeds::resize(std::uint32_t a, std::uint32_t b, std::uint32_t c) {
  const auto chosen = choose(a, b);
  if (!chosen || (chosen->file->flags & O_ACCMODE) == O_RDONLY) return;
  const Busy busy(*chosen->program);
  const std::uint64_t size = chosen->target.edition->committed.at(chosen->target.tensor).size();
  const std::uint64_t sizes[] = {size, 0, size / 2, size, size + 1};
  kernel_.resize(*chosen->program, chosen->file, sizes[c % std::size(sizes)]);
}

void DescriptorDeeds::duplicate(std::uint32_t a, std::uint32_t b) {
  const auto chosen = choose(a, b);
  if (chosen) chosen->program->descriptors.push_back(chosen->file);
}

void DescriptorDeeds::map(std::uint32_t a, std::uint32_t b) {
  const auto chosen = choose(a, b);
  if (chosen) kernel_.map(*chosen->program, chosen->file);
}

void DescriptorDeeds::store(std::uint32_t a, std::uint32_t b, std::uint32_t c, std::uint32_t d) {
  Program* program = programs_.pick(a);
  if (program == nullptr || program->mappings.empty()) return;
  const DescriptionPointer file = program->mappings[b % program->mappings.size()];
  if (is_busy(truth_.target_of(*file))) return;
  const Busy busy(*program);
  const std::uint64_t size = kernel_.size_bytes(file->node);
  if (size == 0) return;
  const std::uint64_t offset = c % size;
  // The kernel reads the page first.
  const auto before = std::exchange(now_.reading, truth_.target_of(*file));
  kernel_.store(*program, file, offset,
                machine_.archive().fresh(1 + d % std::min<std::uint64_t>(size - offset, 300)));
  now_.reading = before;
}

void DescriptorDeeds::unmap(std::uint32_t a, std::uint32_t b) {
  Program* program = programs_.pick(a);
  if (program == nullptr || program->mappings.empty()) return;
  const Busy busy(*program);
  kernel_.unmap(*program, b % program->mappings.size());
}

void DescriptorDeeds::fork(std::uint32_t a, std::uint32_t b) {
  Program* program = programs_.pick(a);
  auto& place = programs_.place(b);
  if (program == nullptr || place.get() == program || (place && place->is_busy)) return;
  // The parent does nothing else at this time, and does not end.
  const Busy busy(*program);
  if (place) {
    if (now_.depth > 1) return;
    programs_.end(place, Ending::Closes);
    if (place) return;
  }
  programs_.fork(*program, place);
}

void DescriptorDeeds::end_one(std::uint32_t a, Ending ending) {
  Program* program = programs_.pick(a);
  if (program == nullptr) return;
  for (const auto& file : program->descriptors) {
    if (file && is_busy(truth_.target_of(*file))) return;
  }
  for (const auto& file : program->mappings) {
    if (is_busy(truth_.target_of(*file))) return;
  }
  auto& place = programs_.place_of(*program);
  programs_.end(place, ending);
  programs_.start(place);
}

}  // namespace stfs::test
