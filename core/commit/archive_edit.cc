// Keeps tensors that stay in place, puts new tensors into fillers or at the end, and makes room for the
// header last.
#include "core/commit/archive_edit.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "core/commit/edit_space.h"
#include "core/format/json_string.h"

namespace stfs {
namespace {

/// Returns the first place at or behind the offset where the elements are aligned. A larger alignment would
/// leave more fillers.
std::uint64_t place_from(std::uint64_t offset, Dtype dtype) {
  const std::uint64_t alignment = std::max<std::uint64_t>(bits_of(dtype) / 8, 1);
  return (offset + alignment - 1) / alignment * alignment;
}

struct Item {
  std::uint32_t tensor = 0;
  ByteRange range;  // absolute
  std::optional<std::uint64_t> moved_from{};
  bool is_new = false;
};

class Layout {
 public:
  Layout(const ArchiveVersion& version, const ArchiveEdit& edit, bool is_read_elsewhere)
      : version_(version),
        edit_(edit),
        is_read_elsewhere_(is_read_elsewhere),
        data_at_(version.data_offset()) {}

  Result<EditLayout> make() {
    RETURN_IF_ERROR(sort_tensors());
    for (const std::uint32_t tensor : new_) {
      RETURN_IF_ERROR(place(tensor));
    }
    auto header = format();
    RETURN_IF_ERROR(header);
    // To make room changes offsets, and so slightly changes the header's size. The room covers that.
    const std::uint64_t least_bytes = kHeaderLengthBytes + header->json.size();
    if (edit_.makes_room || least_bytes > data_at_) {
      RETURN_IF_ERROR(make_room(least_bytes));
      header = format();
      RETURN_IF_ERROR(header);
    }
    return finish(std::move(*header));
  }

 private:
  /// Splits the edit's tensors with bytes into tensors that stay and new tensors.
  Result<void> sort_tensors() {
    for (std::uint32_t at = 0; at < edit_.tensors.size(); ++at) {
      const EditedTensor& tensor = edit_.tensors[at];
      if (tensor.name.starts_with(kFillerPrefix)) {
        return fail(ErrorCode::InvalidArgument, EINVAL,
                    fmt::format("tensor {}: names that begin with {} are reserved", in_quotes(tensor.name),
                                kFillerPrefix));
      }
      auto size_bytes = data_size_bytes(tensor.dtype, tensor.shape);
      if (!size_bytes) {
        return tl::unexpected(std::move(size_bytes).error().within("tensor " + in_quotes(tensor.name)));
      }
      if (tensor.from) {
        const ByteRange there = version_.file_range(*tensor.from);
        if (there.size_bytes != *size_bytes) {
          return fail(
              ErrorCode::WrongSize, EINVAL,
              fmt::format("tensor {}: {} {} needs {} bytes, its data has {}", in_quotes(tensor.name),
                          name_of(tensor.dtype), shape_text(tensor.shape), *size_bytes, there.size_bytes));
        }
        if (!there.empty()) items_.push_back({.tensor = at, .range = there});
      } else if (*size_bytes > 0) {
        new_.push_back(at);
      }
    }
    std::ranges::sort(items_, {}, [](const Item& item) { return item.range.offset; });
    const auto twice = std::ranges::adjacent_find(
        items_, [](const Item& a, const Item& b) { return a.range.offset == b.range.offset; });
    if (twice != items_.end()) {
      return fail(ErrorCode::InvalidArgument, EINVAL,
                  fmt::format("tensor {}: its data is taken over twice",
                              in_quotes(edit_.tensors[twice->tensor].name)));
    }
    find_kept();
    end_ = version_.stamp.size_bytes;
    if (is_read_elsewhere_) return {};
    for (const ByteRange filler : version_.header->content.fillers)
      add_free_parts(version_.file_range(filler), holes_);
    // The unused tail is cut off.
    end_ = items_.empty() ? data_at_ : items_.back().range.end();
    if (!kept_.empty()) end_ = std::max(end_, kept_.back().end());
    std::erase_if(holes_, [this](ByteRange hole) { return hole.end() > end_; });
    return {};
  }

  /// Lists bytes without a tensor that stay as they are. Ranges that touch are merged.
  void find_kept() {
    std::vector<ByteRange> all = edit_.kept;
    if (edit_.keeps_deleted) {
      std::vector<bool> stays(version_.tensors().size());
      for (const EditedTensor& tensor : edit_.tensors) {
        if (tensor.from) stays[*version_.ids.position(*tensor.from)] = true;
      }
      for (std::uint32_t at = 0; at < stays.size(); ++at) {
        if (!stays[at]) all.push_back(version_.file_range(version_.tensors()[at].data));
      }
    }
    std::erase_if(all, [](ByteRange range) { return range.empty(); });
    std::ranges::sort(all, {}, &ByteRange::offset);
    for (const ByteRange range : all) {
      if (kept_.empty() || range.offset > kept_.back().end()) {
        kept_.push_back(range);
      } else {
        kept_.back().size_bytes = std::max(kept_.back().end(), range.end()) - kept_.back().offset;
      }
    }
  }

  /// Appends the parts of a range that are not kept.
  void add_free_parts(ByteRange range, std::vector<ByteRange>& to) const {
    std::uint64_t begin = range.offset;
    const auto add_up_to = [&](std::uint64_t end) {
      if (begin < end) to.push_back({begin, end - begin});
    };
    for (const ByteRange kept : kept_) {
      if (kept.end() <= begin) continue;
      if (kept.offset >= range.end()) break;
      add_up_to(kept.offset);
      begin = kept.end();
    }
    add_up_to(range.end());
  }

  /// Finds a place for a new tensor.
  Result<void> place(std::uint32_t tensor) {
    const std::uint64_t size_bytes =
        *data_size_bytes(edit_.tensors[tensor].dtype, edit_.tensors[tensor].shape);
    auto best = holes_.end();
    for (auto hole = holes_.begin(); hole != holes_.end(); ++hole) {
      const std::uint64_t begin = place_from(hole->offset, edit_.tensors[tensor].dtype);
      if (begin > hole->end() || hole->end() - begin < size_bytes) continue;
      if (best == holes_.end() || hole->size_bytes < best->size_bytes) best = hole;
    }
    if (best != holes_.end()) {
      const ByteRange range = {place_from(best->offset, edit_.tensors[tensor].dtype), size_bytes};
      const ByteRange behind = {range.end(), best->end() - range.end()};
      *best = behind;
      add({.tensor = tensor, .range = range, .is_new = true});
      return {};
    }
    return append({.tensor = tensor, .range = {0, size_bytes}, .is_new = true});
  }

  Result<void> append(Item item) {
    const std::uint64_t begin = place_from(end_, edit_.tensors[item.tensor].dtype);
    const auto range = ByteRange::checked(begin, item.range.size_bytes);
    if (begin < end_ || !range) {
      return fail(ErrorCode::ValidationOverflow, EFBIG, "the archive would end after byte 2^64-1");
    }
    item.range = *range;
    end_ = range->end();
    add(item);
    return {};
  }

  void add(const Item& item) {
    items_.insert(std::ranges::upper_bound(items_, item.range.offset, {},
                                           [](const Item& other) { return other.range.offset; }),
                  item);
  }

  /// Moves the first tensors to the end, until the header has at least this many bytes and some more.
  Result<void> make_room(std::uint64_t least_bytes) {
    const auto roomy = data_offset_with_room(least_bytes, kHeaderRoomBytes);
    RETURN_IF_ERROR(roomy);
    const std::uint64_t data_at = *roomy;
    if (is_read_elsewhere_) {
      return fail(ErrorCode::Busy, EBUSY,
                  "the header has no room for this edit, and the first tensors can't be moved out of its way "
                  "while another process, or a mount, has the archive open: make the edit through the one "
                  "mount that has it open, or end the others first");
    }
    if (!kept_.empty() && kept_.front().offset < data_at) {
      return fail(
          ErrorCode::Busy, EBUSY,
          "the header has no room for this edit: a program still has a deleted tensor open whose bytes "
          "lie behind it");
    }
    // New tensors behind the old end must follow the moved tensors: a gap there would make the archive longer
    // without bytes, which recovery refuses.
    const auto goes = [&](const Item& item) {
      return item.range.offset < data_at || (item.is_new && item.range.offset >= version_.stamp.size_bytes);
    };
    std::vector<Item> moved;
    std::ranges::copy_if(items_, std::back_inserter(moved), goes);
    std::erase_if(items_, goes);
    end_ = items_.empty() ? data_at : std::max(items_.back().range.end(), data_at);
    if (!kept_.empty()) end_ = std::max(end_, kept_.back().end());
    data_at_ = data_at;
    for (Item item : moved) {
      if (!item.is_new) item.moved_from = item.range.offset;
      RETURN_IF_ERROR(append(item));
    }
    return {};
  }

  /// Returns the header for the present places.
  [[nodiscard]] Result<FormattedHeader> format() const {
    std::vector<TensorAt> placed;
    placed.reserve(items_.size());
    for (const Item& item : items_) placed.push_back({item.tensor, item.range});
    return format_edit_header(edit_, placed, data_at_, end_);
  }

  [[nodiscard]] EditLayout finish(FormattedHeader header) const {
    EditLayout layout;
    layout.size_bytes = std::max(end_, data_at_);
    layout.set_header(std::move(header), data_at_);
    for (const Item& item : items_) {
      if (item.is_new || item.moved_from) {
        layout.placed.push_back({item.tensor, item.range, item.moved_from});
        layout.needs_all_readers_out |= item.moved_from || item.range.offset < version_.stamp.size_bytes;
      }
    }
    if (!is_read_elsewhere_) {
      for (const ByteRange filler : layout.fillers) add_free_parts(filler, layout.given_back);
    }
    layout.needs_all_readers_out |= !layout.given_back.empty();
    layout.needs_all_readers_out |= layout.size_bytes < version_.stamp.size_bytes;
    for (const ByteRange filler : layout.fillers) layout.freed_bytes += filler.size_bytes;
    if (layout.size_bytes < version_.stamp.size_bytes) {
      layout.freed_bytes += version_.stamp.size_bytes - layout.size_bytes;
    }
    return layout;
  }

  const ArchiveVersion& version_;
  const ArchiveEdit& edit_;
  const bool is_read_elsewhere_;
  std::uint64_t data_at_;
  std::uint64_t end_ = 0;           // of the archive so far
  std::vector<Item> items_;         // tensors with bytes that have a place, ascending
  std::vector<std::uint32_t> new_;  // positions in the edit
  std::vector<ByteRange> kept_;     // bytes without a tensor that stay as they are; ascending, disjoint
  std::vector<ByteRange> holes_;    // parts of fillers that new tensors may use, absolute
};

}  // namespace

void EditLayout::set_header(FormattedHeader formatted, std::uint64_t data_at) {
  header = pad_header(std::move(formatted.json), data_at);
  content =
      ArchiveHeader::of(std::move(formatted.content), std::string_view(header).substr(kHeaderLengthBytes));
  for (const ByteRange filler : content->content.fillers)
    fillers.push_back({data_at + filler.offset, filler.size_bytes});
}

ArchiveEdit edit_of(const ArchiveVersion& version) {
  ArchiveEdit edit;
  edit.metadata = version.metadata();
  const TensorIndex& tensors = version.tensors();
  edit.tensors.reserve(tensors.size());
  for (std::uint32_t at = 0; at < tensors.size(); ++at) {
    const Tensor tensor = tensors[at];
    edit.tensors.push_back(
        {.name = tensor.name, .dtype = tensor.dtype, .shape = tensor.shape, .from = version.ids.of(at)});
  }
  return edit;
}

Result<EditLayout> lay_out(const ArchiveVersion& version, const ArchiveEdit& edit, bool is_read_elsewhere) {
  return guard_memory([&] { return Layout(version, edit, is_read_elsewhere).make(); });
}

}  // namespace stfs
