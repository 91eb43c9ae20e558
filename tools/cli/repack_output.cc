// Copies tensor by tensor, in pieces, so that memory does not grow with the model.
#include "tools/cli/repack_output.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <optional>
#include <sstream>
#include <string>
#include <utility>

#include "core/base/absolute_path.h"
#include "core/model/common_mode.h"
#include "core/storage/open_directory.h"
#include "core/tensor/float_conversion.h"
#include "tools/cli/piece_conversion.h"
#include "tools/cli/progress.h"
#include "tools/compare/changed_files.h"
#include "tools/text/json_document.h"

namespace stfs::tools {
namespace {

constexpr std::uint64_t kPieceBytes = 4U << 20U;

class Repack {
 public:
  Repack(const Model& model, const RepackPlan& plan, const RepackOutput& output, Streams& streams)
      : model_(model),
        plan_(plan),
        output_(output),
        mode_(common_mode(model)),
        piece_bytes_(whole_pieces(std::max(kPieceBytes, output.threads * kPartBytes))),
        work_(watch_on(streams)) {}

  Result<std::uint64_t> run() {
    work_.begin(plan_.data_bytes);
    const std::filesystem::path above = directory_of(plan_.out);
    auto directory = open_directory(system_storage(), above, LastLink::Followed);
    if (!directory) return fail_system(directory.error().errno_value, plan_.out.native(), "create");
    directory_ = std::move(*directory);
    auto done = run_in_directory();
    return done ? done : tl::unexpected(directory_.with_shown_paths(std::move(done).error(), above));
  }

 private:
  Result<std::uint64_t> run_in_directory() {
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

  /// The path of an output, through the open directory: another user may give its path to another one.
  [[nodiscard]] std::filesystem::path reached(const std::filesystem::path& output) const {
    return directory_.file(output.filename());
  }

  Result<void> write(const RepackedFile& file) {
    const auto tensors = std::span(plan_.tensors).subspan(file.first, file.count);
    std::vector<TensorSpec> specs;
    specs.reserve(tensors.size());
    for (const RepackedTensor& tensor : tensors) {
      const Tensor source = model_.tensors()[tensor.source];
      specs.push_back({std::string(source.name), tensor.dtype, {source.shape.begin(), source.shape.end()}});
    }
    auto writer = ArchiveWriter::create(
        reached(file.path), specs, plan_.metadata, output_.is_replacing,
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
    const Tensor source = model_.tensors()[tensor.source];
    const ArchiveReader& archive = model_.archive_of(tensor.source);
    const ByteRange whole = model_.file_range(tensor.source);
    const auto how = plan_.scales.find(tensor.source);
    std::optional<PieceConversion> conversion;
    if (how != plan_.scales.end()) {
      auto scales = numbers_of(how->second.tensor);
      if (!scales) return pass_on(std::move(scales));
      conversion.emplace(source, tensor.dtype, how->second.blocks, std::move(*scales), output_.threads);
    } else if (source.dtype != tensor.dtype) {
      conversion.emplace(source, tensor.dtype, std::vector<std::uint64_t>(), std::vector<float>(),
                         output_.threads);
    }
    for (std::uint64_t done = 0; done < whole.size_bytes;) {
      if (!work_.goes_on()) {
        return fail(ErrorCode::System, EINTR, plan_.out.native() + ": interrupted, nothing is left");
      }
      const std::uint64_t size_bytes = std::min(piece_bytes_, whole.size_bytes - done);
      const auto piece = archive.read({whole.offset + done, size_bytes}, scratch_);
      if (!piece) return tl::unexpected(piece.error());
      const auto bytes = conversion ? conversion->convert(done, *piece) : *piece;
      if (auto appended = to.append(bytes); !appended) return appended;
      work_.advance(bytes.size());
      done += size_bytes;
    }
    if (conversion) overflows_ += conversion->overflows();
    return {};
  }

  /// The elements of a tensor of scales.
  Result<std::vector<float>> numbers_of(std::uint32_t position) {
    const Tensor source = model_.tensors()[position];
    const auto bytes = model_.archive_of(position).read(model_.file_range(position), scratch_);
    if (!bytes) return tl::unexpected(bytes.error());
    std::vector<float> numbers(static_cast<std::size_t>(element_count(source.shape)));
    if (auto done = convert_to_float32(source.dtype, *bytes, numbers); !done) return pass_on(std::move(done));
    return numbers;
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
    auto file = NewFile::create(reached(plan_.out), output_.is_replacing, mode_);
    if (!file) return pass_on(std::move(file));
    const std::string bytes = std::move(text).str();
    if (auto done = file->append(std::as_bytes(std::span(bytes))); !done) return done;
    return file->finish();
  }

  /// Removes the archives that have their names already, where these names were free.
  void take_back() const {
    if (output_.is_replacing) return;
    for (std::size_t at = 0; at < finished_; ++at) {
      static_cast<void>(system_storage().remove(reached(plan_.files[at].path)));
    }
  }

  const Model& model_;
  const RepackPlan& plan_;
  const RepackOutput& output_;
  const NewFileMode mode_;
  const std::uint64_t piece_bytes_;
  Work work_;
  OpenDirectory directory_;             // of the outputs
  std::vector<ArchiveWriter> writers_;  // settled
  std::size_t finished_ = 0;            // the number of archives that have their names
  std::uint64_t overflows_ = 0;
  std::vector<std::byte> scratch_;
};

}  // namespace

Result<std::uint64_t> write_repacked(const Model& model, const RepackPlan& plan, const RepackOutput& output,
                                     Streams& streams) {
  return Repack(model, plan, output, streams).run();
}

}  // namespace stfs::tools
