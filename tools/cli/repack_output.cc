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
        mode_(strictest(common_mode(model), output.most)),
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
      RETURN_IF_ERROR(write(file));
    }
    // Another program may have changed a file during the command: the bytes that were read may be old in part
    // and new in part.
    const std::string during = fmt::format("the command: {} was not written", plan_.out.native());
    RETURN_IF_ERROR(check_unchanged(model_, during));
    if (auto done = finish(); !done) {
      take_back();
      return pass_on(std::move(done));
    }
    return overflows_;
  }

  /// Returns the path of an output, through the open directory: another user may give the directory's path to
  /// another directory.
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
    RETURN_IF_ERROR(writer);
    for (const RepackedTensor& tensor : tensors) {
      RETURN_IF_ERROR(copy(tensor, *writer));
    }
    // A settled archive needs no descriptor: there may be thousands.
    RETURN_IF_ERROR(writer->settle());
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
      RETURN_IF_ERROR(scales);
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
      RETURN_IF_ERROR(piece);
      const auto bytes = conversion ? conversion->convert(done, *piece) : *piece;
      RETURN_IF_ERROR(to.append(bytes));
      work_.advance(bytes.size());
      done += size_bytes;
    }
    if (conversion) overflows_ += conversion->overflows();
    return {};
  }

  /// Returns the elements of a tensor of scales.
  Result<std::vector<float>> numbers_of(std::uint32_t position) {
    const Tensor source = model_.tensors()[position];
    const auto bytes = model_.archive_of(position).read(model_.file_range(position), scratch_);
    RETURN_IF_ERROR(bytes);
    std::vector<float> numbers(static_cast<std::size_t>(element_count(source.shape)));
    RETURN_IF_ERROR(convert_to_float32(source.dtype, *bytes, numbers));
    return numbers;
  }

  Result<void> finish() {
    for (; finished_ < writers_.size(); ++finished_) {
      RETURN_IF_ERROR(writers_[finished_].finish());
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
    RETURN_IF_ERROR(file);
    const std::string bytes = std::move(text).str();
    RETURN_IF_ERROR(file->append(std::as_bytes(std::span(bytes))));
    return file->finish();
  }

  /// Removes the archives that have their names already, unless they may have replaced other files.
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
