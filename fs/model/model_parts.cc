// Makes the parts, and answers what several of them ask.
#include "fs/model/model_parts.h"

#include <fcntl.h>
#include <fmt/format.h>

#include <algorithm>

#include "core/format/json_string.h"
#include "fs/base/process.h"

namespace stfs {

ModelParts::ModelParts(std::unique_ptr<Model> its_model, const FilesystemOptions& its_options)
    : model(std::move(its_model)),
      options(its_options),
      activity(options.activity ? options.activity : std::make_shared<Activity>()),
      tree(model, options.layout),
      states(model, options.least_generation),
      permissions(model, {.is_read_only = options.is_read_only || model->access() == Access::ReadOnly,
                          .uid = options.uid,
                          .gid = options.gid}),
      reader(model, states, options.fails_on_change),
      views(model, tree, reader, *activity, options.user_limits),
      pretrained(model->path(), model->delta_paths(), [this] { return views.present(Views::kArchive); }),
      transactions(
          model, tree,
          [this](TensorId tensor) -> Result<TensorVersion> {
            const std::uint64_t generation = states.of(tensor).noted;
            auto sum = reader.checksum(tensor);
            if (!sum) return pass_on(std::move(sum));
            return TensorVersion{generation, std::move(*sum)};
          },
          options.user_limits),
      hidden(views, transactions),
      committers(*model, options.commit.durability),
      scratch(scratch_directory_of(*model)),
      may_be_cached(model->ids().end()),
      may_be_known(model->ids().end()),
      lookups(model->ids().end()),
      next_id(model->ids().end()) {
  if (model->access() == Access::ReadOnly) options.is_read_only = true;
}

void ModelParts::grow(std::uint32_t end_of_ids) {
  may_be_cached.grow(end_of_ids);
  may_be_known.grow(end_of_ids);
  lookups.grow(end_of_ids);
  views.grow(end_of_ids);
}

Directory& ModelParts::directory_of(Ino ino) {
  if (ino == kHiddenIno) return hidden;
  if (TransactionDirectory::owns(ino)) return transactions;
  if (Views::owns(ino)) return views;
  if (PretrainedDirectory::owns(ino)) return pretrained;
  return tree;
}

Node ModelParts::resolve(Ino of_mount) {
  const Ino ino = InodeSpace::local(of_mount);
  const Node node = directory_of(ino).node(ino);
  if (node.exists()) return node;
  const auto draft = drafts.find(ino);
  if (!draft) return node;
  return {.ino = ino, .kind = Node::Kind::Draft, .tensor = draft->content->tensor()};
}

std::optional<std::pair<TensorId, TensorId>> ModelParts::ids_of_shard(std::uint32_t shard) const {
  const Model& present = *model;
  const std::uint32_t begin = present.first_tensor(shard);
  const std::uint32_t end = present.first_tensor(shard + 1);
  if (begin == end) return std::nullopt;
  TensorId first = present.ids().of(begin);
  TensorId last = first;
  for (std::uint32_t position = begin; position < end; ++position) {
    first = std::min(first, present.ids().of(position));
    last = std::max(last, present.ids().of(position));
  }
  return std::pair(first, last);
}

Stale ModelParts::stale_shard(std::uint32_t shard, Stale::What what) const {
  const auto tensors = ids_of_shard(shard);
  if (!tensors) return {};
  return stale(InodeTable::ino_of_tensor(tensors->first), InodeTable::ino_of_tensor(tensors->second), what);
}

std::shared_ptr<PendingContent> ModelParts::shared_content(const Node& node) const {
  if (transactions.is_transaction(node.ino)) return transactions.content(node.ino);
  if (auto draft = drafts.find(node.ino)) return draft->content;
  return open_files.shared_content(node.ino);
}

std::string ModelParts::label_of(const PendingContent& content) const {
  if (content.made() == nullptr) return reader.label_of(content.tensor());
  return fmt::format("{}: {}", model->path().string(), content.made()->label());
}

Archive& ModelParts::archive_for_new() const {
  // New tensors go to the last shard (core/model/model_edit.h). A refusal comes from the edit.
  std::size_t last = model->shards().size() - 1;
  while (last > 0 && !model->shards()[last].archive) --last;
  return model->archive(static_cast<std::uint32_t>(last));
}

TensorId ModelParts::give_id() {
  const std::uint32_t number = next_id++;
  grow(number + 1);
  return TensorId{number};
}

Result<void> ModelParts::check_writable() const {
  if (options.is_read_only) return fail(ErrorCode::ReadOnly, EROFS, "mounted read-only");
  if (is_refused || reader.is_any_broken())
    return fail(ErrorCode::ArchiveChanged, ESTALE, "another program has changed the model");
  return {};
}

Result<void> ModelParts::check_editable() const {
  if (!options.is_read_only && !options.allows_edits) {
    return fail(ErrorCode::InvalidArgument, EPERM,
                "tensors can't be made, deleted, renamed or retyped: mounted with edit=off");
  }
  return check_writable();
}

std::vector<Stale> ModelParts::stale_views(const Stale& tensors_stale) {
  const Ino first = InodeTable::ino_of_tensor(TensorId{});
  const Ino first_stale = InodeSpace::local(tensors_stale.first);
  const Ino last_stale = InodeSpace::local(tensors_stale.last);
  const std::uint32_t ids = model->ids().end();
  if (tensors_stale.what == Stale::What::Nothing || ids == 0) return {};
  if (last_stale < first || first_stale >= first + ids) return {};
  if (reader.is_any_broken()) views.note_broken();
  const TensorId first_tensor = InodeTable::tensor(std::max(first_stale, first));
  const TensorId last_tensor = InodeTable::tensor(std::min(last_stale, first + ids - 1));
  std::vector<Stale> found = views.stale(first_tensor, last_tensor);
  for (Stale& view : found) view = stale(view.first, view.last, view.what);
  for (const Ino file : transactions.take_cached(first_tensor, last_tensor))
    found.push_back(stale(file, Stale::What::Content));
  return found;
}

OpenFile* ModelParts::add_open(Ino ino, int flags, pid_t opener, FileKind kind,
                               std::shared_ptr<PendingContent> content) {
  auto file = std::make_unique<OpenFile>();
  file->ino = ino;
  file->opener = opener;
  file->opener_process = process_of(opener);
  file->kind = kind;
  file->appends = (flags & O_APPEND) != 0;
  file->is_synchronous = (flags & O_DSYNC) != 0;  // O_SYNC contains it
  file->content = std::move(content);
  return open_files.add(std::move(file));
}

Result<std::string> ModelParts::name_in(Ino directory, std::string_view file_name) const {
  auto name = tree.name_in(directory, file_name);
  return name ? Result<std::string>(std::move(*name)) : no_tensor_named(file_name);
}

tl::unexpected<Error> ModelParts::no_tensor_named(std::string_view file_name) const {
  // mv(1) takes EINVAL for a directory that is moved into itself, and says so.
  return fail(ErrorCode::InvalidArgument, EILSEQ,
              fmt::format("{}: no tensor's file can have this name: {}", in_quotes(file_name),
                          options.layout == Layout::Tree && file_name.find('.') != std::string_view::npos
                              ? "with layout=tree a dot stands between two directories"
                              : "a % is written as %25, and needs two digits otherwise"));
}

}  // namespace stfs
