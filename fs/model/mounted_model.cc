#include "fs/model/mounted_model.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>

#include "core/format/json_string.h"
#include "fs/base/process.h"
#include "fs/base/requester.h"
#include "fs/tree/names.h"

namespace stfs {

MountedModel::MountedModel(std::unique_ptr<Archive> archive, const MountedModelOptions& options)
    : MountedModel(std::make_unique<Model>(std::move(archive)), options) {}

MountedModel::MountedModel(std::unique_ptr<Model> opened, const MountedModelOptions& options)
    : snapshots_(std::make_unique<Snapshot>(std::move(opened), options.layout)),
      options_(options),
      activity_(options.activity ? options.activity : std::make_shared<Activity>()),
      tree_(snapshots_, options.layout),
      states_(snapshots_, options.least_generation),
      permissions_(snapshots_, {.is_read_only = options.is_read_only || model().access() == Access::ReadOnly,
                                .uid = options.uid,
                                .gid = options.gid}),
      reader_(snapshots_, states_, options.fails_on_change),
      views_(snapshots_, tree_.unserved(), reader_, *activity_, options.user_limits),
      pretrained_(model().path(), model().delta_paths(), [this] { return views_.present(Views::kArchive); }),
      transactions_(
          snapshots_,
          [this](TensorId tensor) -> Result<TensorVersion> {
            const std::uint64_t generation = states_.of(tensor).noted;
            auto sum = reader_.checksum(tensor);
            RETURN_IF_ERROR(sum);
            return TensorVersion{generation, std::move(*sum)};
          },
          options.user_limits),
      hidden_(views_, transactions_),
      committers_(model(), options.commit.durability),
      scratch_(scratch_directory_of(model())),
      may_be_cached_(model().ids().end()),
      may_be_known_(model().ids().end()),
      lookups_(model().ids().end()),
      next_id_(model().ids().end()) {
  if (model().access() == Access::ReadOnly) options_.is_read_only = true;
  begin_scratch();
  structure_.log_found_gaps();
}

void MountedModel::grow(std::uint32_t end_of_ids) const {
  may_be_cached_.grow(end_of_ids);
  may_be_known_.grow(end_of_ids);
  lookups_.grow(end_of_ids);
  views_.grow(end_of_ids);
}

Directory& MountedModel::directory_of(Ino ino) const {
  if (ino == kHiddenIno) return hidden_;
  if (TransactionDirectory::owns(ino)) return transactions_;
  if (Views::owns(ino)) return views_;
  if (PretrainedDirectory::owns(ino)) return pretrained_;
  return tree_;
}

Node MountedModel::node_of(Ino of_mount) const {
  const Ino ino = InodeSpace::local(of_mount);
  const Node node = directory_of(ino).node(ino);
  if (node.exists()) return node;
  const auto draft = drafts_.find(ino);
  if (!draft) return node;
  return {.ino = ino, .kind = Node::Kind::Draft, .tensor = draft->content->tensor()};
}

std::optional<std::pair<TensorId, TensorId>> MountedModel::ids_of_shard(std::uint32_t shard) const {
  const Model& present = model();
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

Stale MountedModel::stale_shard(std::uint32_t shard, Stale::What what) const {
  const auto tensors = ids_of_shard(shard);
  if (!tensors) return {};
  return stale(InodeTable::ino_of_tensor(tensors->first), InodeTable::ino_of_tensor(tensors->second), what);
}

std::shared_ptr<PendingFile> MountedModel::shared_content(const Node& node) const {
  if (transactions_.is_transaction(node.ino)) return transactions_.content(node.ino);
  if (auto draft = drafts_.find(node.ino)) return draft->content;
  return open_files_.shared_content(node.ino);
}

std::string MountedModel::label_of(const PendingFile& content) const {
  const auto& path =
      content.patch() != nullptr ? model().archive_of(content.tensor()).path() : model().path();
  return fmt::format("{}: {}", path.string(), content.label());
}

Archive& MountedModel::archive_for_new() const {
  // New tensors go to the last shard (core/model/model_edit.h). A refusal comes from the edit.
  std::size_t last = model().shards().size() - 1;
  while (last > 0 && !model().shards()[last].archive) --last;
  return model().archive(static_cast<std::uint32_t>(last));
}

TensorId MountedModel::give_id() const {
  const std::uint32_t number = next_id_++;
  grow(number + 1);
  return TensorId{number};
}

Result<void> MountedModel::check_writable() const {
  if (options_.is_read_only) return fail(ErrorCode::ReadOnly, EROFS, "mounted read-only");
  if (is_refused_ || reader_.is_any_broken())
    return fail(ErrorCode::ArchiveChanged, ESTALE, "another program has changed the model");
  return {};
}

Result<void> MountedModel::check_editable() const {
  if (!options_.is_read_only && !options_.allows_edits) {
    return fail(ErrorCode::InvalidArgument, EPERM,
                "tensors can't be made, deleted, renamed or retyped: mounted with edit=off");
  }
  return check_writable();
}

Permissions MountedModel::rights_to_all() const {
  Permissions all = permissions_.of_all();
  all.mode &= ~options_.umask;
  return all;
}

Result<void> MountedModel::check_caller(const Node& node, mode_t right) const {
  const Requester* const requester = options_.is_shared ? Requester::present() : nullptr;
  if (requester == nullptr || node.is_of_source()) return {};
  const auto shown = status_of(node);
  RETURN_IF_ERROR(shown);
  constexpr mode_t kPermissions = 0777;
  const Permissions given{shown->st_mode & kPermissions, shown->st_uid, shown->st_gid};
  if (requester->caller().has(right, given)) return {};
  return refuse_change(EACCES, right == S_IWOTH ? "the user may not write it" : "the user may not read it");
}

Result<void> MountedModel::check_caller_writes_all() const {
  const Requester* const requester = options_.is_shared ? Requester::present() : nullptr;
  if (requester == nullptr || requester->caller().has(S_IWOTH, rights_to_all())) return {};
  return refuse_change(EACCES, "a checkpoint needs the right to write every shard");
}

std::vector<Stale> MountedModel::stale_views(const Stale& tensors_stale) {
  const Ino first = InodeTable::ino_of_tensor(TensorId{});
  const Ino first_stale = InodeSpace::local(tensors_stale.first);
  const Ino last_stale = InodeSpace::local(tensors_stale.last);
  const std::uint32_t ids = model().ids().end();
  if (tensors_stale.what == Stale::What::Nothing || ids == 0) return {};
  if (last_stale < first || first_stale >= first + ids) return {};
  if (reader_.is_any_broken()) views_.note_broken();
  const TensorId first_tensor = InodeTable::tensor(std::max(first_stale, first));
  const TensorId last_tensor = InodeTable::tensor(std::min(last_stale, first + ids - 1));
  std::vector<Stale> found = views_.stale(first_tensor, last_tensor);
  for (Stale& view : found) view = stale(view.first, view.last, view.what);
  for (const Ino file : transactions_.take_cached(first_tensor, last_tensor))
    found.push_back(stale(file, Stale::What::Content));
  return found;
}

OpenFile* MountedModel::add_open(Ino ino, int flags, pid_t opener, FileKind kind,
                                 std::shared_ptr<PendingFile> content) {
  auto file = std::make_unique<OpenFile>();
  file->ino = ino;
  file->opener = opener;
  file->opener_process = process_of(opener);
  file->kind = kind;
  file->appends = (flags & O_APPEND) != 0;
  file->is_synchronous = (flags & O_DSYNC) != 0;  // O_SYNC contains it
  file->content = std::move(content);
  return open_files_.add(std::move(file));
}

Result<std::string> MountedModel::name_in(Ino directory, std::string_view file_name) const {
  auto name = tree_.name_in(directory, file_name);
  return name ? Result<std::string>(std::move(*name)) : no_tensor_named(file_name);
}

tl::unexpected<Error> MountedModel::no_tensor_named(std::string_view file_name) const {
  // mv(1) takes EINVAL for a directory that is moved into itself, and says so.
  return fail(ErrorCode::InvalidArgument, EILSEQ,
              fmt::format("{}: no tensor's file can have this name: {}", in_quotes(file_name),
                          options_.layout == Layout::Tree && file_name.find('.') != std::string_view::npos
                              ? "with layout=tree a dot stands between two directories"
                              : "a % is written as %25, and needs two digits otherwise"));
}

std::string MountedModel::path_in_tree(Ino ino) const {
  const InodeTable& table = tree_.table();
  if (ino == kRootIno || !table.exists(ino)) return "";
  std::string path(table.file_name(ino));
  for (ino = table.parent(ino); ino != kRootIno; ino = table.parent(ino))
    path = fmt::format("{}/{}", table.file_name(ino), path);
  return path;
}

std::string MountedModel::path_in_transactions(const Node& node) const {
  std::string path = "transactions";
  if (const auto transaction = transactions_.transaction_name(node.ino))
    path += fmt::format("/{}", *transaction);
  return node.is_directory() ? path : fmt::format("{}/{}", path, transactions_.name(node.ino));
}

std::string MountedModel::path_below_hidden(const Node& node) const {
  if (PretrainedDirectory::owns(node.ino)) return std::string(PretrainedDirectory::kEntry.name);
  if (Views::owns(node.ino)) return views_.path(node.ino);
  if (node.ino == TransactionDirectory::kTransactions) return "transactions";
  if (node.ino == TransactionDirectory::kCommitted) return "committed";
  return TransactionDirectory::is_in_transaction(node.ino) ? path_in_transactions(node) : "";
}

std::string MountedModel::path_of(Ino of_mount) const {
  const Node node = node_of(of_mount);
  // Some files that are not tensors yet have numbers of transactions.
  if (const auto draft = node.kind == Node::Kind::Draft ? drafts_.find(node.ino) : std::nullopt) {
    return draft->directory == kRootIno ? draft->file_name
                                        : fmt::format("{}/{}", path_of(draft->directory), draft->file_name);
  }
  if (node.ino == kHiddenIno) return std::string(kViewsDirectory);
  if (node.ino > kHiddenIno || Views::owns(node.ino))
    return fmt::format("{}/{}", kViewsDirectory, path_below_hidden(node));
  return path_in_tree(node.ino);
}

std::string MountedModel::label_of(Ino ino, std::string_view name) const {
  const std::string model = this->model().path().string();
  std::string path = path_of(ino);
  if (!name.empty()) path = path.empty() ? std::string(name) : fmt::format("{}/{}", path, name);
  return path.empty() ? model : fmt::format("{}: {}", model, path);
}

}  // namespace stfs
