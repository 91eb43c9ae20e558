// Copies tensor by tensor, in pieces, so that memory does not grow with the model.
#include "tools/cli/repack_output.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <sstream>
#include <string>
#include <system_error>
#include <utility>

#include "core/base/parallel.h"
#include "tools/cli/interrupt.h"
#include "tools/cli/progress.h"
#include "tools/compare/changed_files.h"
#include "tools/device/conversion.h"
#include "tools/target/common_mode.h"
#include "tools/text/json_document.h"

namespace stfs::tools {
namespace {

constexpr std::uint64_t kPieceBytes = 4U << 20U;
constexpr std::uint64_t kThreadPieceBytes = 1U << 20U;  // takes milliseconds, so it is worth a thread

struct Converted {
  Dtype from_dtype;
  std::span<const std::byte> from;
  Dtype to_dtype;
  std::span<std::byte> to;
};

/// Calls convert_elements() on several threads, each with a part of the elements.
std::uint64_t convert_by_threads(const Converted& all, std::uint64_t threads) {
  const std::uint64_t from_bytes = bits_of(all.from_dtype) / 8;
  const std::uint64_t to_bytes = bits_of(all.to_dtype) / 8;
  const std::uint64_t elements = all.from.size() / from_bytes;
  const std::uint64_t part = std::max(elements / threads + 1, kThreadPieceBytes / from_bytes);
  std::atomic<std::uint64_t> overflows = 0;
  const auto convert = [&](std::size_t at, unsigned) -> Result<void> {
    const std::uint64_t first = at * part;
    const std::uint64_t count = std::min(part, elements - first);
    overflows +=
        upload::convert_elements(all.from_dtype, all.from.subspan(first * from_bytes, count * from_bytes),
                                 all.to_dtype, all.to.subspan(first * to_bytes, count * to_bytes));
    return {};
  };
  // No conversion fails.
  static_cast<void>(run_parallel(static_cast<std::size_t>((elements + part - 1) / part),
                                 static_cast<unsigned>(threads), convert));
  return overflows;
}

class Repack {
 public:
  Repack(const Model& model, const RepackPlan& plan, const RepackOutput& output, Streams& streams)
      : model_(model),
        plan_(plan),
        output_(output),
        mode_(common_mode(model)),
        piece_bytes_(std::max(kPieceBytes, output.threads * kThreadPieceBytes)),
        progress_(streams, plan.data_bytes) {}

  Result<std::uint64_t> run() {
    for (const RepackedFile& file : plan_.files) {
      if (auto done = write(file); !done) return pass_on(std::move(done));
    }
    // What was read of a file that somebody else has changed meanwhile may be old in part and new in part.
    const std::string during = fmt::format("the command: {} was not written", plan_.out.native());
    if (auto done = check_unchanged(model_, during); !done) return pass_on(std::move(done));
    if (auto done = finish(); !done) {
      take_back();
      return pass_on(std::move(done));
    }
    return overflows_;
  }

 private:
  Result<void> write(const RepackedFile& file) {
    const auto tensors = std::span(plan_.tensors).subspan(file.first, file.count);
    std::vector<TensorSpec> specs;
    specs.reserve(tensors.size());
    for (const RepackedTensor& tensor : tensors) {
      const Tensor source = model_.tensors()[tensor.source];
      specs.push_back({std::string(source.name), tensor.dtype, {source.shape.begin(), source.shape.end()}});
    }
    auto writer = ArchiveWriter::create(
        file.path, specs, plan_.metadata, output_.is_replacing,
        {.alignment = output_.alignment, .slack_bytes = output_.slack_bytes, .mode = mode_});
    if (!writer) return pass_on(std::move(writer));
    for (const RepackedTensor& tensor : tensors) {
      if (auto done = copy(tensor, *writer); !done) return done;
    }
    // A settled archive takes no descriptor: there may be thousands.
    if (auto settled = writer->settle(); !settled) return settled;
    writers_.push_back(std::move(*writer));
    return {};
  }

  Result<void> copy(const RepackedTensor& tensor, ArchiveWriter& to) {
    const Dtype dtype = model_.tensors()[tensor.source].dtype;
    const ArchiveReader& archive = model_.archive_of(tensor.source);
    const ByteRange whole = model_.file_range(tensor.source);
    for (std::uint64_t done = 0; done < whole.size_bytes;) {
      if (interrupted()) {
        return fail(ErrorCode::System, EINTR, plan_.out.native() + ": interrupted, nothing is left");
      }
      const std::uint64_t size_bytes = std::min(piece_bytes_, whole.size_bytes - done);
      const auto piece = archive.read({whole.offset + done, size_bytes}, scratch_);
      if (!piece) return tl::unexpected(piece.error());
      const auto bytes = dtype == tensor.dtype ? *piece : convert(dtype, *piece, tensor.dtype);
      if (auto appended = to.append(bytes); !appended) return appended;
      progress_.advance(bytes.size());
      done += size_bytes;
    }
    return {};
  }

  /// The dtypes have whole bytes, so a piece has whole elements: piece_bytes_ is a multiple of their sizes.
  std::span<const std::byte> convert(Dtype from_dtype, std::span<const std::byte> from, Dtype to_dtype) {
    converted_.resize(from.size() * 8 / bits_of(from_dtype) * bits_of(to_dtype) / 8);
    overflows_ += convert_by_threads({from_dtype, from, to_dtype, converted_}, output_.threads);
    return converted_;
  }

  Result<void> finish() {
    for (; finished_ < writers_.size(); ++finished_) {
      if (auto done = writers_[finished_].finish(); !done) return done;
    }
    return plan_.has_index ? write_index() : Result<void>();
  }

  Result<void> write_index() {
    Json names = Json::object();
    for (const RepackedFile& file : plan_.files) {
      const std::string name = file.path.filename();
      for (std::size_t at = file.first; at < file.first + file.count; ++at) {
        names[std::string(model_.tensors()[plan_.tensors[at].source].name)] = name;
      }
    }
    Json document;
    document["metadata"]["total_size"] = plan_.data_bytes;
    document["weight_map"] = std::move(names);
    std::ostringstream text;
    write_json(document, text);
    auto file = NewFile::create(plan_.out, output_.is_replacing, mode_);
    if (!file) return pass_on(std::move(file));
    const std::string bytes = std::move(text).str();
    if (auto done = file->append(std::as_bytes(std::span(bytes))); !done) return done;
    return file->finish();
  }

  /// Removes the archives that have their names already, where these names were free.
  void take_back() const {
    if (output_.is_replacing) return;
    for (std::size_t at = 0; at < finished_; ++at) {
      std::error_code ignored;
      std::filesystem::remove(plan_.files[at].path, ignored);
    }
  }

  const Model& model_;
  const RepackPlan& plan_;
  const RepackOutput& output_;
  const mode_t mode_;
  const std::uint64_t piece_bytes_;
  Progress progress_;
  std::vector<ArchiveWriter> writers_;  // settled
  std::size_t finished_ = 0;            // the number of archives that have their names
  std::uint64_t overflows_ = 0;
  std::vector<std::byte> scratch_;
  std::vector<std::byte> converted_;
};

}  // namespace

Result<std::uint64_t> write_repacked(const Model& model, const RepackPlan& plan, const RepackOutput& output,
                                     Streams& streams) {
  return Repack(model, plan, output, streams).run();
}

}  // namespace stfs::tools
