// The root of a directory of models: finds, makes, moves and deletes models and what lies beside them.
//
// Requests that change the root run while the kernel holds its lock. So nothing here waits for a notification
// to the kernel: callers tell the kernel what is outdated after their reply.
#include <fcntl.h>
#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <utility>

#include "core/model/model_directory.h"
#include "fs/base/log.h"
#include "fs/base/user_counts.h"
#include "fs/model/forest.h"
#include "fs/model/listed_archive.h"
#include "fs/tree/names.h"

namespace stfs {
namespace {

/// The model's directory is not what can be moved or deleted.
tl::unexpected<Error> is_a_models_directory(std::string_view name) {
  return fail(ErrorCode::InvalidArgument, EPERM,
              fmt::format("{} shows a model: move or delete its file, {}{}", name, name, kArchiveSuffix));
}

std::string model_name_of(std::string_view file_name) {
  return file_name_of(file_name.substr(0, file_name.size() - kArchiveSuffix.size()));
}

Outdated outdated_in_root(const std::string& file_name) {
  return {.stale = {}, .entries = {{kRootIno, model_name_of(file_name)}, {kRootIno, file_name}}};
}

}  // namespace

void Forest::show_source(std::unique_ptr<SourceDirectory> source, OpenerOf opener_of) {
  source_ = std::move(source);
  opener_of_ = std::move(opener_of);
  source_->leave_out([this](std::string_view name) {
    const auto hides_it = tree_named(name);
    return shown_tree_of_file(name) != nullptr || (hides_it != nullptr && is_shown(*hides_it));
  });
}

bool Forest::is_shown(const Tree& tree) const {
  const std::shared_lock lock(mutex_);
  return tree.current != kNone;
}

std::shared_ptr<Forest::Tree> Forest::tree_of_file(std::string_view file_name) const {
  const std::shared_lock lock(mutex_);
  const auto found = by_file_.find(std::string(file_name));
  return found == by_file_.end() ? nullptr : found->second;
}

std::shared_ptr<Forest::Tree> Forest::tree_named(std::string_view name) const {
  const std::shared_lock lock(mutex_);
  std::shared_ptr<Tree> found;
  for (const auto& tree : trees_) {
    if (tree->name != name) continue;
    if (tree->current != kNone) return tree;
    if (!found) found = tree;
  }
  return found;
}

std::shared_ptr<Forest::Tree> Forest::shown_tree_of_file(std::string_view file_name) const {
  if (!SourceDirectory::is_archive_name(file_name)) return nullptr;
  const auto tree = tree_of_file(file_name);
  return tree != nullptr && is_shown(*tree) ? tree : nullptr;
}

bool Forest::reads_source(Ino parent, std::string_view name) const {
  if (!source_ || parent != kRootIno) return false;
  const auto tree = tree_named(name);
  return tree == nullptr || !is_shown(*tree);
}

Result<struct stat> Forest::find_in_root(std::string_view name) const {
  const auto shown = [](const Pin& member, Ino ino) {
    auto status = member->attributes(ino);
    if (status) member.note_lookup(status->st_ino);
    return status;
  };
  if (const auto tree = tree_named(name)) {
    std::optional<Error> why;
    {
      const std::shared_lock lock(mutex_);
      why = tree->why_absent;
    }
    // A refused model is shown. Its own file system refuses each look-up in it.
    if (const Pin member = pin_current(*tree)) return shown(member, kRootIno);
    if (why && why->code != ErrorCode::NotFound) return fail(why->code, EIO, why->message);
  }
  if (!source_) return fail(ErrorCode::NotFound, ENOENT, "no such model");
  if (const auto tree = shown_tree_of_file(name)) {
    if (const Pin member = pin_current(*tree)) {
      const auto whole = member->lookup(space_of(member.number()).in_mount(kHiddenIno), Views::kArchiveName);
      if (whole) member.note_lookup(whole->st_ino);
      return whole;
    }
  }
  return find_in_source(kRootIno, name);
}

Result<struct stat> Forest::find_in_source(Ino parent, std::string_view name) const {
  const auto shows = parent == kRootIno ? shows_entries() : Result<bool>(true);
  if (!shows) return tl::unexpected(shows.error());
  const auto ino = source_->find(parent, name, *shows);
  if (!ino) return tl::unexpected(ino.error());
  auto status = source_->attributes(*ino);
  if (status) source_->note_lookup(*ino);
  return status;
}

Result<void> Forest::check_model_name(std::string_view file_name) const {
  const std::string name = model_name_of(file_name);
  const auto same = tree_named(name);
  const bool is_other = same != nullptr && same->path.filename().native() != file_name;
  if (is_other && is_shown(*same)) {
    return fail(
        ErrorCode::System, EEXIST,
        fmt::format("its model would be shown as {}, and so is that of {}", name, same->path.string()));
  }
  if (same != nullptr) return {};
  const std::shared_lock lock(mutex_);
  const auto is_in_use = [](const auto& tree) { return !is_free(*tree); };
  if (static_cast<std::size_t>(std::ranges::count_if(trees_, is_in_use)) < kMostMembers) return {};
  return fail(ErrorCode::InvalidArgument, ENOSPC,
              fmt::format("at most {} models are mounted together", kMostMembers));
}

Result<UserCounts::Share> Forest::share_of_owner(const std::filesystem::path& archive) {
  const auto owner = source_ ? source_->owner_of(archive.filename()) : std::nullopt;
  if (!owner || is_unlimited(*owner)) return UserCounts::Share();
  if (headers_.count(*owner) >= UserLimits().header_bytes)
    return over_user_limit(*owner, UserLimits().header_bytes, "bytes in headers of models", "delete some");
  return models_.take(*owner);
}

UserCounts::Share Forest::with_header(UserCounts::Share share, const std::filesystem::path& archive,
                                      const Model& model) {
  const auto owner = source_ ? source_->owner_of(archive.filename()) : std::nullopt;
  if (!owner || is_unlimited(*owner)) return share;
  auto header = headers_.take(*owner, header_bytes_of(model));
  // Over the limit: another thread has just opened a model of this user. The next one is refused.
  if (!header) return share;
  return std::make_shared<std::pair<UserCounts::Share, UserCounts::Share>>(std::move(share),
                                                                           std::move(*header));
}

Result<void> Forest::check_new_model(std::string_view file_name) const {
  if (auto place = source_->check_place(); !place) return place;
  const std::string name = model_name_of(file_name);
  if (source_->find(kRootIno, name)) {
    return fail(ErrorCode::System, EEXIST,
                fmt::format("its model would be shown as {}, and something else has this name", name));
  }
  if (const uid_t user = requesting_user(); !is_unlimited(user) && tree_of_file(file_name) == nullptr) {
    // It is taken when the model is shown.
    constexpr std::string_view kAdvice = "delete some, or close their files";
    if (models_.count(user) >= UserLimits().models)
      return over_user_limit(user, UserLimits().models, "models and open versions of them", kAdvice);
  }
  return check_model_name(file_name);
}

Result<Outdated> Forest::show_model(const std::string& file_name) {
  for (;;) {
    std::shared_ptr<Tree> tree = tree_of_file(file_name);
    auto share = share_of_owner(file_name);
    if (!share) return pass_on(std::move(share));
    if (tree == nullptr) {
      if (auto checked = check_model_name(file_name); !checked) return pass_on(std::move(checked));
      tree = std::make_shared<Tree>();
      tree->name = model_name_of(file_name);
      tree->path = source_->path() / file_name;
      tree->open = opener_of_(tree->path);
      tree->activity = std::make_shared<Activity>();
    }
    const Pin old = pin_current(*tree);
    const auto number = open_next(*tree, old, std::move(*share));
    if (!number) return tl::unexpected(number.error());
    const Pin present = editions_.pin(*number);
    const auto is_shown = show_opened(tree, old, *number);
    if (!is_shown) return tl::unexpected(is_shown.error());
    if (!*is_shown) continue;  // the name may lead to another archive now
    has_new_files_ = true;
    log::info("{}: {} model, {} tensors", present->model().path().string(), old ? "replaced" : "new",
              present->model().tensors().size());
    return outdated_in_root(file_name);
  }
}

Result<bool> Forest::show_opened(const std::shared_ptr<Tree>& tree, const Pin& old, Number opened) {
  const std::scoped_lock showing(showing_mutex_);
  const std::string file_name = tree->path.filename().string();
  const auto known = tree_of_file(file_name);
  // The name was free before the opening.
  const auto checked = known == nullptr ? check_model_name(file_name) : Result<void>();
  const Number replaced = old ? old.number() : kNone;
  bool is_shown = false;
  if (checked && (known == nullptr || known == tree)) {
    const std::scoped_lock lock(mutex_);
    is_shown = tree->current == replaced;
    if (is_shown) {
      tree->current = opened;
      tree->why_absent.reset();
    }
  }
  if (!is_shown) {
    editions_.let_go(opened, 1);
    return checked ? Result<bool>(false) : tl::unexpected(checked.error());
  }
  tree->activity->set_problem("");
  if (old) {
    tree->activity->note_replacement();
    editions_.let_go(replaced, 1);
  }
  if (known == nullptr) add(tree);
  return true;
}

std::unique_lock<std::mutex> Forest::turn_to_open(uid_t owner) {
  std::unique_lock showing(showing_mutex_);
  std::mutex& turn = opening_[owner];
  showing.unlock();
  return std::unique_lock(turn);
}

Outdated Forest::retire(Tree& tree) {
  Number gone = kNone;
  {
    const std::scoped_lock lock(mutex_);
    gone = std::exchange(tree.current, kNone);
    tree.why_absent = Error{ErrorCode::NotFound, ENOENT, "the model was deleted or renamed"};
  }
  if (gone != kNone) editions_.let_go(gone, 1);
  has_new_files_ = true;
  return outdated_in_root(tree.path.filename().string());
}

bool Forest::is_of_model(Ino parent, std::string_view name) const {
  if (parent != kRootIno) return false;
  const auto tree = tree_named(name);
  return (tree != nullptr && is_shown(*tree)) || SourceDirectory::is_archive_name(name);
}

Forest::Served Forest::served(const Pin& model, Ino ino) const {
  if (model) return {model->served_files(), model->node_of(ino)};
  return {source_->files(), source_->node(ino)};
}

bool Forest::is_source_changed(const Pin& model, Ino ino) const {
  return model ? model->is_source_changed(ino) : serves(ino) && source_->is_changed(ino);
}

Result<Forest::Created> Forest::create(Ino parent, std::string_view name, int flags, mode_t mode,
                                       const Maker& maker, pid_t opener) {
  if (!source_) return not_among_models();
  if (is_of_model(parent, name)) {
    if (shown_tree_of_file(name) != nullptr || !SourceDirectory::is_archive_name(name))
      return fail(ErrorCode::System, EEXIST, "the model exists");
    if (auto checked = check_new_model(name); !checked) return pass_on(std::move(checked));
    return source_->create(name, flags, mode, maker, opener);
  }
  ServedFiles& files = source_->files();
  auto made = files.create(source_->node(parent), name, mode, maker);
  if (!made && made.error().errno_value == EEXIST && (flags & O_EXCL) == 0) {
    made = source_->find(parent, name);
    if (made) {
      if (auto opened = files.open(source_->node(*made), flags); !opened) return pass_on(std::move(opened));
    }
  }
  if (!made) return tl::unexpected(made.error());
  auto status = source_->attributes(*made);
  return status ? Result<Created>(Created{*status}) : pass_on(std::move(status));
}

Result<struct stat> Forest::make_directory(Ino parent, std::string_view name, mode_t mode,
                                           const Maker& maker) {
  if (!source_) return not_among_models();
  if (is_of_model(parent, name) && !SourceDirectory::is_archive_name(name))
    return fail(ErrorCode::System, EEXIST, "the model exists");
  if (is_of_model(parent, name))
    return fail(ErrorCode::InvalidArgument, EPERM, "a directory can't have the name of an archive");
  const auto made = source_->files().make_directory(source_->node(parent), name, mode, maker);
  return made ? source_->attributes(*made) : tl::unexpected(made.error());
}

Result<void> Forest::remove_directory(Ino parent, std::string_view name) {
  if (!source_) return not_among_models();
  const auto tree = parent == kRootIno ? tree_named(name) : nullptr;
  if (tree != nullptr && is_shown(*tree)) return is_a_models_directory(name);
  return source_->files().remove_directory(source_->node(parent), name);
}

Result<Outdated> Forest::remove(Ino parent, std::string_view name) {
  if (!source_) return not_among_models();
  if (!is_of_model(parent, name)) {
    auto removed = source_->files().remove(source_->node(parent), name);
    return removed ? Result<Outdated>(Outdated{}) : pass_on(std::move(removed));
  }
  if (!SourceDirectory::is_archive_name(name)) return is_a_models_directory(name);
  if (const auto made = source_->arriving(name)) {
    made->drop({ErrorCode::NotFound, ESTALE, "it was deleted before it was whole"});
    source_->end_arriving(*made);
    return Outdated{};
  }
  const auto tree = shown_tree_of_file(name);
  if (tree != nullptr) {
    if (const Pin member = pin_current(*tree)) member->tidy();  // a journal may be kept for the next commit
  }
  if (auto removed = source_->remove(name); !removed) return pass_on(std::move(removed));
  if (tree == nullptr) return Outdated{};
  log::info("{}: deleted", tree->path.string());
  auto outdated = retire(*tree);
  if (auto synced = source_->sync_names(); !synced) return pass_on(std::move(synced));
  return outdated;
}

Result<Outdated> Forest::rename_in_source(Ino parent, const std::string& name, Ino new_parent,
                                          const std::string& new_name, unsigned flags) {
  const bool is_of_models = is_of_model(parent, name) || is_of_model(new_parent, new_name);
  if (is_of_models && parent == new_parent) return rename_in_root(name, new_name, flags);
  // mv(1) copies then.
  if (is_of_models)
    return fail(ErrorCode::InvalidArgument, EXDEV, "models lie in the root: copy the archive instead");
  auto renamed =
      source_->files().rename(source_->node(parent), name, source_->node(new_parent), new_name, flags);
  return renamed ? Result<Outdated>(Outdated{}) : pass_on(std::move(renamed));
}

Result<Outdated> Forest::rename_in_root(const std::string& name, const std::string& new_name,
                                        unsigned flags) {
  for (const std::string& one : {name, new_name}) {
    const auto tree = tree_named(one);
    if (tree != nullptr && is_shown(*tree)) return is_a_models_directory(one);
  }
  const bool becomes_model = SourceDirectory::is_archive_name(new_name);
  if (source_->arriving(new_name)) return fail(ErrorCode::Busy, EBUSY, "another program is making this file");
  if (becomes_model) {
    if (auto checked = check_new_model(new_name); !checked) return pass_on(std::move(checked));
  }
  if ((flags & RENAME_NOREPLACE) != 0 &&
      (shown_tree_of_file(new_name) != nullptr || source_->find(kRootIno, new_name)))
    return fail(ErrorCode::System, EEXIST, "the new name exists");
  if (const auto made = source_->arriving(name)) return rename_arriving(made, name, new_name);

  const auto from = shown_tree_of_file(name);
  if (becomes_model && from == nullptr) {
    if (auto settled = source_->settle_archive(name); !settled) return pass_on(std::move(settled));
  }
  for (const auto& tree : {from, shown_tree_of_file(new_name)}) {
    if (tree == nullptr) continue;
    if (const Pin member = pin_current(*tree)) member->tidy();  // a journal may be kept for the next commit
  }
  if (auto renamed = source_->rename(name, new_name, flags); !renamed) return pass_on(std::move(renamed));
  Outdated outdated;
  if (from != nullptr) outdated = retire(*from);
  if (becomes_model) {
    auto shown = show_model(new_name);
    if (!shown) return pass_on(std::move(shown));
    std::ranges::move(shown->entries, std::back_inserter(outdated.entries));
  }
  if (becomes_model || from != nullptr) {
    if (auto synced = source_->sync_names(); !synced) return pass_on(std::move(synced));
  }
  return outdated;
}

Result<Outdated> Forest::rename_arriving(const std::shared_ptr<MadeFile>& made, const std::string& name,
                                         const std::string& new_name) {
  if (!SourceDirectory::is_archive_name(new_name)) {
    return fail(ErrorCode::InvalidArgument, EPERM,
                fmt::format("an archive keeps a name that ends with {} until it is whole", kArchiveSuffix));
  }
  const auto turn = made->turn();
  const bool replaces = shown_tree_of_file(new_name) != nullptr || source_->find(kRootIno, new_name);
  source_->rename_arriving(name, new_name, replaces ? std::optional(requesting_user()) : std::nullopt);
  // A program that renames before it closes goes on with the name.
  return made->is_due() ? name_archive(*made, true) : Result<Outdated>(Outdated{});
}

Result<Outdated> Forest::name_archive(MadeFile& made, bool holds_root) {
  const std::string file_name = made.path().filename().string();
  if (auto named = source_->give_name(made); !named) {
    source_->end_arriving(made);
    return pass_on(std::move(named));
  }
  const auto saved = made.status();
  std::unique_lock<std::mutex> turn;
  if (!holds_root) turn = turn_to_open(saved ? saved->st_uid : requesting_user());
  auto shown = show_model(file_name);
  source_->end_arriving(made);
  if (shown) return shown;
  // The archive is saved. A check for changes may still show it.
  log::error("{}: saved, but can't be shown: {}", made.path().string(), shown.error().message);
  return outdated_in_root(file_name);
}

bool Forest::is_archive_in_root(const Pin& model, Ino ino) const {
  return source_ && model && !is_read_only_ && Views::is_archive(InodeSpace::local(ino));
}

Result<void> Forest::change_archive(const Pin& model, const ServedFiles::Change& change) {
  if (!is_current(model.number()))
    return fail(ErrorCode::ArchiveChanged, ESTALE, "the model has been replaced");
  auto changed =
      source_->change(model->model().path().filename().string(), model->model().front().identity(), change);
  // The next request sees it. A watch would notice only after a while.
  if (changed) static_cast<void>(model->check_for_change());
  return changed;
}

Result<OpenFile*> Forest::open_made(Ino ino, int flags) const {
  return source_->open(ino, flags);
}

std::shared_ptr<MadeFile> Forest::made(Ino ino) const {
  return is_made(ino) ? source_->file(ino) : nullptr;
}

Result<void> Forest::write_made(OpenFile& file, std::span<const std::byte> from, std::uint64_t offset,
                                Caller caller) {
  const auto made = source_->file(file.ino);
  file.is_untouched = false;
  auto written = made->write(from, offset, caller);
  if (!written && made->has_failed()) source_->end_arriving(*made);
  return written;
}

Result<void> Forest::resize_made(OpenFile& file, std::uint64_t size_bytes, Caller caller) {
  const auto made = source_->file(file.ino);
  file.is_untouched = false;
  auto resized = made->resize(size_bytes, caller);
  if (!resized && made->has_failed()) source_->end_arriving(*made);
  return resized;
}

Result<Outdated> Forest::flush_made(OpenFile& file, Owner owner, pid_t closer) {
  const auto made = source_->file(file.ino);
  const auto turn = made->turn();
  const auto is_due = made->close(file, owner, closer);
  if (!is_due) {
    source_->end_arriving(*made);
    return tl::unexpected(is_due.error());
  }
  return *is_due ? name_archive(*made) : Result<Outdated>(Outdated{});
}

Outdated Forest::release_made(OpenFile* file) {
  const auto made = source_->release(file);
  if (!made) return {};
  const auto turn = made->turn();
  Outdated outdated;
  if (made->end()) {
    if (auto named = name_archive(*made)) outdated = std::move(*named);
  }
  source_->end_arriving(*made);
  return outdated;
}

Forest::Change Forest::check_directory() {
  Change change;
  NameSet<std::string> unshown;
  const auto place = source_->check_place();
  const bool is_elsewhere = !place && place.error().errno_value != ENOENT;
  if (!std::exchange(is_elsewhere_, is_elsewhere) && is_elsewhere) log::warning("{}", place.error().message);
  if (!place) {
    // No event tells that the directory is back, that another one has got its path, or that a file's mode
    // has changed.
    change.is_due_again = true;
    return change;
  }
  const auto found = source_->list_models();
  for (const std::string& file_name : found ? found->archives : std::vector<std::string>()) {
    const auto tree = tree_of_file(file_name);
    // The check of the file itself goes on with a model that is known, unless a program has deleted it here.
    if (tree != nullptr && is_shown(*tree)) continue;
    if (source_->arriving(file_name)) continue;
    // An archive that another program is still writing is looked at again when the program closes it.
    const auto hides = check_hides_nothing(source_->path() / file_name, model_name_of(file_name));
    const auto shown = hides ? show_model(file_name) : tl::unexpected(hides.error());
    if (!shown) {
      const Error& why = shown.error();
      change.is_due_again = change.is_due_again || why.code == ErrorCode::Busy;
      if (!hides || why.errno_value == EDQUOT || why.errno_value == EXDEV) {
        unshown.insert(file_name);
        if (!unshown_.contains(file_name)) log::warning("{}: not shown: {}", file_name, why.message);
      }
      continue;
    }
    for (const auto& [root, name] : shown->entries) change.entries.push_back(name);
  }
  unshown_ = std::move(unshown);
  change.is_reopened = has_new_files_.exchange(false);
  return change;
}

}  // namespace stfs
