"""The steps of fs/ that mutants.py removes, one at a time; rows as in mutant_table.py. Here fs_tests notices."""

from mutant import Mutant

FILESYSTEM_MUTANTS: tuple[Mutant, ...] = (
    # --- who decides -----------------------------------------------------------------------------------
    Mutant(
        "who has written nothing commits by closing",
        "} else if (is_opener && is_touched) {",
        "} else {",
        tests="[close]",
    ),
    Mutant(
        "a killed writer's bytes are committed",
        "facts.ending = ending_of(closer);",
        "facts.ending = Ending::Closes;",
        tests="[close]",
    ),
    Mutant(
        "a writer that /proc hides is told that its bytes are there",
        "    {any,            any,               Ending::Hidden, any,    any,                CloseDecision::Doubt},\n",
        "",
        tests="[close]",
    ),
    Mutant(
        "what /proc hides has closed",
        "  if (status.empty() && says_hidden(errno) && is_alive(thread)) return Ending::Hidden;\n",
        "",
        tests="[process]",
    ),
    Mutant(
        "a thread that /proc hides is a process of its own",
        "  if (text.empty() && says_hidden(errno) && is_alive(thread)) return find_process_of(thread);\n",
        "",
        tests="[process]",
    ),
    Mutant(
        "a writer who has died is waited for",
        "(writer.process == 0 || is_alive(writer.process));",
        "true;",
        tests="[writers],[close]",
    ),
    # --- writes ----------------------------------------------------------------------------------------
    Mutant(
        "a refused write leaves the content good",
        "  content.fail(std::move(why));\n  why = *content.failure;\n  why.errno_value = errno_value;\n",
        "  why.errno_value = errno_value;\n",
        tests="[write],[close]",
    ),
    Mutant(
        "a write that is synchronous is not committed",
        "if (!file.is_synchronous || file.kind != FileKind::Isolated || !content.is_whole()) return Stale{};",
        "return Stale{};",
        tests="[write]",
    ),
    Mutant(
        "an append goes to where the kernel says",
        "  if (file.appends) offset = content.size_bytes();\n",
        "",
        tests="[write]",
    ),
    Mutant(
        "what comes back behind the tensor's end is staged",
        "std::min<std::uint64_t>(from.size(), end - offset)",
        "from.size()",
        tests="[write]",
    ),
    Mutant(
        "a view can be opened for writing",
        "  if (!tensor || !Views::is_npy(node.ino) || !parts_.options.allows_edits)",
        "  if (!tensor)",
        tests="[views],[write]",
    ),
    Mutant(
        "a broken archive takes writes",
        "  if (parts_.reader.is_broken(parts_.model->place(node.tensor).shard))",
        "if (false)",
        tests="[change]",
    ),
    Mutant(
        "writers side by side do not wait at one place",
        "!is_held_ && waiting_ == 0 && beside_count_ < kMostBeside && is_free();",
        "!is_held_ && waiting_ == 0 && beside_count_ < kMostBeside;",
        tests="[content_lock]",
    ),
    # --- what others are shown -------------------------------------------------------------------------
    Mutant(
        "a commit raises no generation",
        "  state.generation = state.noted = next_generation(mtime_ns);\n",
        "",
        tests="[attributes]",
    ),
    Mutant(
        "a foreign change counts as none for checksums and conflicts",
        "  of_shards_[shard] = {.generation = next, .noted = next, .mtime",
        "  of_shards_[shard] = {.generation = next, .noted = of_shards_[shard].noted, .mtime",
        tests="[change],[attributes]",
    ),
    Mutant(
        "a tensor that we have changed keeps its generation when somebody else changes the archive",
        "return !model_->has(changed.first) || model_->place(changed.first).shard == shard;",
        "return !model_->has(changed.first);",
        tests="[attributes],[change]",
    ),
    Mutant(
        "the kernel keeps the pages of a tensor that was committed",
        "return parts_.stale(file.ino, is_in_cache ? Stale::What::Content : Stale::What::Attributes);",
        "return parts_.stale(file.ino, Stale::What::Attributes);",
        tests="[cached],[write]",
    ),
    Mutant(
        "the kernel keeps the pages of a commit that failed behind its commit point",
        "  if (!committed)\n    parts_.forget(parts_.stale(InodeTable::ino_of_tensor(content.tensor()), Stale::What::Content));\n",
        "",
        tests="[journal],[cached]",
    ),
    Mutant(
        "a checksum goes on over a change",
        "    if (content_state(tensor) != state) return std::optional<std::string>();\n",
        "",
        tests="[attributes]",
    ),
    Mutant(
        "a checksum that is known counts for other bytes",
        "known->second.state == state) return",
        "true) return",
        tests="[attributes],[change]",
    ),
    # --- transactions ----------------------------------------------------------------------------------
    Mutant(
        "nobody looks for a conflict",
        "if (now->generation == base.generation || now->checksum == base.checksum) continue;",
        "continue;",
        tests="[transaction_directory]",
    ),
    Mutant(
        "a transaction is committed with a tensor open",
        "      if (staged.writers == 0) continue;\n      return refuse(EBUSY,",
        "      continue;\n      return refuse(EBUSY,",
        tests="[transaction_directory]",
    ),
    Mutant(
        "a transaction's edit does not look for patches of others",
        "  return check_versions_();\n",
        "  return {};\n",
        tests="[transaction_edit]",
    ),
    Mutant(
        "keys of metadata are listed to everybody",
        "    if (!may_read_metadata(caller)) return std::move(listed).names();\n",
        "",
        tests="[permissions]",
    ),
    Mutant(
        "a new tensor of a transaction replaces one that came since",
        "    if (is_free) continue;\n",
        "    continue;\n",
        tests="[transaction_edit]",
    ),
    Mutant(
        "rm in a transaction takes nothing back",
        "  if (!staged.is_listed()) {\n    staged.fate",
        "  {\n    staged.fate",
        tests="[transaction_edit]",
    ),
    Mutant(
        "what a tensor of a transaction has replaced does not come back",
        "  if (staged.replaces) tensors_.erase(*std::exchange(staged.replaces, std::nullopt));\n",
        "  staged.replaces.reset();\n",
        tests="[transaction_edit]",
    ),
    Mutant(
        "a tensor that takes the place of another one goes to the last shard",
        "} else if (!new_names_.contains(entry.base_name)) {",
        "} else {",
        tests="[transaction_edit]",
    ),
    Mutant(
        "whoever has a transaction may delete tensors in it",
        "  if (!maker || maker->has(S_IWOTH, parts_.permissions.of_all())) return {};\n",
        "  return {};\n",
        tests="[transaction_edit]",
    ),
    Mutant(
        "a tensor leaves its place, and nobody gives back the space",
        "        left_shards_.insert(before.place(tensor).shard);\n",
        "        continue;\n",
        tests="[transaction_edit]",
    ),
    Mutant(
        "a NumPy file of a transaction changes bytes that are staged already",
        "  if (bytes_.use_count() == 1) return {};\n",
        "  if (bytes_) return {};\n",
        tests="[transaction_npy]",
    ),
    Mutant(
        "a transaction is committed without a NumPy file whose writer was killed",
        "      staged_.stage_npy_failure(*file);\n",
        "      {}\n",
        tests="[transaction_npy]",
    ),
    Mutant(
        "a transaction is committed while a NumPy file is open",
        "!parts_.drafts.wait_for_ends_in(parts_.transactions.npy_directory(*transaction))",
        "false",
        tests="[transaction_npy]",
    ),
    Mutant(
        "a NumPy file of a transaction replaces what another program has written since",
        "      staged.base = std::move(npy.base);\n",
        "      staged.base = version_of_(id).value();\n",
        tests="[transaction_npy]",
    ),
    # --- beside the requests ---------------------------------------------------------------------------
    Mutant(
        "the janitor tidies between two commits",
        "} while (has_more_ && !is_stopping_ && clock_.now() < latest);",
        "} while (false);",
        tests="[janitor]",
    ),
    Mutant(
        "while commits come the janitor never tidies",
        "} while (has_more_ && !is_stopping_ && clock_.now() < latest);",
        "} while (has_more_ && !is_stopping_);",
        tests="[janitor]",
    ),
    Mutant(
        "the janitor tidies when it is stopped",
        "    if (is_stopping_) return;\n    is_due_ = false;\n",
        "    if (is_stopping_) return tidy_();\n    is_due_ = false;\n",
        tests="[janitor]",
    ),
    Mutant(
        "a mount reads ahead as other file systems",
        "setting << kReadaheadKib;",
        ";",
        tests="[mount_point]",
    ),
    Mutant(
        "a directory shows any number of archives",
        "if (archives.size() <= Forest::kMostAtFirst) return archives;",
        "return archives;",
        tests="[source]",
    ),
    Mutant(
        "a number of a directory stands for its path alone",
        "if (S_ISDIR(status.st_mode) && files_.top().is_private()) return {path};",
        "if (S_ISDIR(status.st_mode)) return {path};",
        tests="[served_files]",
    ),
    Mutant(
        "a save that ends replaces an archive that the sticky bit keeps",
        "if (const auto replacer = made.replacer()) {",
        "if (const auto replacer = std::optional<uid_t>()) {",
        tests="[forest]",
    ),
    # --- new models ------------------------------------------------------------------------------------
    Mutant(
        "an archive of which nothing has come gets its name",
        "if (whole && !writers_.is_any_killed()) return true;",
        "return true;",
        tests="[forest]",
    ),
    Mutant(
        "any file becomes a model by its rename",
        "    if (auto settled = source_->settle_archive(name); !settled) return pass_on(std::move(settled));\n",
        "",
        tests="[forest]",
    ),
    Mutant(
        "a file that has become a model takes more bytes",
        "  files_.seal(name);\n  tree_.keep_open(std::string(new_name));\n",
        "  tree_.keep_open(std::string(new_name));\n",
        tests="[forest]",
    ),
    Mutant(
        "a shared mount shows the names of a directory to those who may not list it",
        "if (!own || !source_->is_shared()) return own.has_value();",
        "if (!own || own) return own.has_value();",
        tests="[forest]",
    ),
    Mutant(
        "a read-only mount changes the files beside its models",
        "  if (options_.is_read_only) return fail(ErrorCode::ReadOnly, EROFS, \"mounted read-only\");\n  return {};\n",
        "  return {};\n",
        tests="[forest]",
    ),
    Mutant(
        "a link to a directory above makes an endless tree",
        "if (S_ISDIR(next->status.st_mode) && passed.contains(",
        "if (S_ISLNK(next->status.st_mode) && passed.contains(",
        tests="[pretrained]",
    ),
    Mutant(
        "bytes of one dtype go to a tensor that has got another one",
        "*known, [&](Staging& stage) { return made.copy_to(stage, *form); }, &*form);",
        "*known, [&](Staging& stage) { return made.copy_to(stage, *form); });",
        tests="[npy]",
    ),
    Mutant(
        "a part of a NumPy file goes to a tensor that has got another form",
        "if (!made.base() || made.base()->is_as(now)) return {};",
        "if (!made.base() || made.base()) return {};",
        tests="[npy]",
    ),
    Mutant(
        "an archive may arrive with a gap",
        "  if (offset != size_bytes_) {\n",
        "  if (offset < size_bytes_) {\n",
        tests="[stream]",
    ),
    # --- names -----------------------------------------------------------------------------------------
    Mutant(
        "a name is found in any directory",
        "if (there.parent == directory && there.file_name == file_name) return slot;",
        "if (there.file_name == file_name) return slot;",
        tests="[inode_table]",
    ),
    Mutant(
        "a name that no file can have is only not there",
        "if (!found && found.error().errno_value == ENOENT && name.size() > kMaxFileNameBytes)",
        "if (false)",
        tests="[forest]",
    ),
    Mutant(
        "a tensor takes the name of a directory",
        "find_in(parent, file_name); seed += '~') {",
        "false; seed += '~') {",
        tests="[inode_table]",
    ),
    Mutant(
        "a tensor's number is its position",
        "return ino_of_tensor(ids_.of(place - 1));",
        "return ino_of_tensor(TensorId{place - 1});",
        tests="[inode_table]",
    ),
    Mutant(
        "a queue of inotify that ran over tells of no file",
        "if ((event.mask & IN_Q_OVERFLOW) != 0) {\n        files = all();",
        "if ((event.mask & IN_Q_OVERFLOW) != 0) {\n        files.clear();",
        tests="[watcher]",
    ),
    # --- what caches are told ---------------------------------------------------------------------------
    Mutant(
        "an attribute is told before what is queued",
        "stale.first == stale.last && contents_.is_idle())",
        "stale.first == stale.last)",
        tests="[invalidator]",
    ),
    Mutant(
        "an open file of a transaction goes on with what was committed before",
        "  if (node.is_staged()) parts_.transactions.note_read(node.ino);\n",
        "",
        tests="[transaction_directory]",
    ),
    Mutant(
        "a killed writer's bytes stay in the pages of a transaction's file",
        "      return parts_.stale(file.ino, is_in_page_cache(file) ? Stale::What::Content : Stale::What::Nothing);\n",
        "      return parts_.stale(file.ino, file.kind == FileKind::Shared ? Stale::What::Content : Stale::What::Nothing);\n",
        tests="[transaction_directory]",
    ),
    # --- a store that fails ----------------------------------------------------------------------------
    Mutant(
        "a header that the store fails to read has changed",
        "  if (!json && json.error().code == ErrorCode::System) return tl::unexpected(json.error());\n",
        "",
        tests="[fault]",
    ),
    Mutant(
        "each failed look at an archive is logged",
        "if (!known.is_unknown.exchange(true)) log::error(",
        "known.is_unknown = true;\n    log::error(",
        tests="[fault]",
    ),
    Mutant(
        "a look that can't read the journals counts as done",
        "  if (!adopted) return unknown(adopted.error());\n",
        "",
        tests="[fault]",
    ),
    Mutant(
        "a directory of models shows the numbers of one model",
        "  model->number_in(space_of(model.number()));\n",
        "",
        tests="[forest]",
    ),
    Mutant(
        "what a commit has seen of others is looked at once more",
        "        const Stale found = note_touched(shard);\n",
        "        const Stale found = note_foreign_change(shard, false).stale;\n",
        tests="[fault]",
    ),
    Mutant(
        "an archive that could not be looked at waits for an event",
        "  change.is_due_again = change.is_due_again || found.is_unknown;\n",
        "",
        tests="[forest]",
    ),
    Mutant(
        "a replacement that could not be read waits for an event",
        "change.is_due_again = why.code == ErrorCode::System;",
        "change.is_due_again = why.errno_value == EIO;",
        tests="[forest]",
    ),
    # --- modes and owners ------------------------------------------------------------------------------
    Mutant(
        "the journal that is kept stays when the archive's mode changes",
        "  if (has_new_permissions) committer.retire_journal();\n",
        "",
        tests="[journal]",
    ),
    Mutant(
        "a new mode is not told of views",
        "    for (const Stale& view : parts_.views.told(tensors->first, tensors->second))\n      parts_.forget(parts_.stale(view.first, view.last, view.what));\n",
        "",
        tests="[permissions]",
    ),
    Mutant(
        "a tensor that was moved underneath is read where it was",
        "  return present && present->keeps(model.tensor(tensor).name, model.file_range(tensor));",
        "  return present != nullptr;",
        tests="[read]",
    ),
    Mutant(
        "a tensor whose place was lost is read again",
        "  present_[shard] = is_lost ? nullptr : std::move(present);",
        "  present_[shard] = std::move(present);",
        tests="[read]",
    ),
    Mutant(
        "an edit that has not ended takes every tensor away",
        "  if (change->is_being_edited) {",
        "  if (false) {",
        tests="[read]",
    ),
    Mutant(
        "open files of a changed header are not told of later changes",
        "      if (edition->is_at_path(shard))",
        "      if (false)",
        tests="[forest]",
    ),
    # --- commits of other processes --------------------------------------------------------------------
    Mutant(
        "nobody finishes the commit of a process that has died",
        "may_have_dead ? archive.finish_dead_commits() : Result<bool>(false);",
        "Result<bool>(false);",
        tests="[dead]",
    ),
    Mutant(
        "what another process has written so far counts as its whole commit",
        "  if (is_in_commit && !(change->is_broken && change->header)) {",
        "  if (false) {",
        tests="[dead]",
    ),
    Mutant(
        "a failed commit leaves the generations as they were",
        "    for (const std::uint32_t shard : shards) parts_.states.note_unsettled(shard);\n",
        "",
        tests="[fault]",
    ),
    Mutant(
        "a generation does not tell that another process is in a commit",
        "  if (turns_.is_unsettled(shard)) parts_.states.note_unsettled(shard);\n",
        "",
        tests="[dead]",
    ),
    # --- -o on_change=fail -----------------------------------------------------------------------------
    Mutant(
        "reads go on when another program has written to the archive",
        "  if (!is_changed_[shard] && archive.is_as_known()) return {};\n",
        "  return {};\n",
        tests="[on_change]",
    ),
    Mutant(
        "a time that is set back hides that reads have failed",
        "  static_cast<void>(note_changed(shard));\n",
        "",
        tests="[on_change]",
    ),
    Mutant(
        "a mount that fails on changes begins in the middle of a commit",
        "  if (auto settled = check_settled(model); !settled) return settled;\n",
        "",
        tests="[on_change]",
    ),
    # --- edits of other processes ----------------------------------------------------------------------
    Mutant(
        "an edit of another process ends the writing",
        "    if (done || done.error().code != ErrorCode::ArchiveChanged || is_over()) return done;\n",
        "    return done;\n",
        tests="[beside]",
    ),
    Mutant(
        "what another process has retyped is the same tensor",
        "if (same && has_form_of(before.tensors()[*same], tensor)) left.emplace(",
        "if (same) left.emplace(",
        tests="[beside]",
    ),
    Mutant(
        "a name that another process has changed is not looked up again",
        "is_outdated = *now != *found;",
        "is_outdated = false;",
        tests="[beside]",
    ),
    Mutant(
        "staged bytes do not follow their tensor to another place",
        "return stage != nullptr && stage->target() != parts_.model->file_range(content.tensor());",
        "return stage != nullptr && stage->target().size_bytes == 0;",
        tests="[beside]",
    ),
    # --- checkpoints that rewrite the archive ------------------------------------------------------------
    Mutant(
        "a rewriting save drops an open transaction",
        "  if (parts_.transactions.is_any_open()) return no(\"a transaction is open\");\n",
        "",
        tests="[checkpoint]",
    ),
    Mutant(
        "a rewriting save does not show the new archive",
        "Outdated shown = parts_.show_replacement();",
        "Outdated shown;",
        tests="[checkpoint]",
    ),
    Mutant(
        "a rewriting save overwrites a tensor that was changed meanwhile",
        "const auto check = [&] { return check_unchanged(saved); };\n    const auto options",
        "const auto check = [&] { return Result<void>(); };\n    const auto options",
        tests="[checkpoint]",
    ),
    Mutant(
        "the bytes that came before a rewriting are not brought over",
        "for (std::uint64_t done = 0; done < came.size_bytes; done += piece.size()) {",
        "for (std::uint64_t done = 0; done < came.size_bytes && piece.empty(); done += piece.size()) {",
        tests="[checkpoint]",
    ),
    # --- small commits beside a large one ----------------------------------------------------------------
    Mutant(
        "a large commit keeps its turn",
        "if (patch && patch->is_large()) {",
        "if (false) {",
        tests="[waiting]",
    ),
    Mutant(
        "a large commit lends its turn to commits of its own blocks",
        "return !lent_ || (admitted_ > 0 && !lent_->overlaps(blocks));",
        "return !lent_ || admitted_ > 0;",
        tests="[commit_turn]",
    ),
)
