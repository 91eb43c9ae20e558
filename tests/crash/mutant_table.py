"""The steps of the protocol that mutants.py removes, one at a time.

Each mutant is a table's row: a name, the text that must be in the core exactly once, and what takes its place. A row
whose text is no longer there fails: the table has to follow the code.
"""

from mutant import Mutant

# Not in the table, since a second line of defence hides each of them:
#  - that the archive's locks are held until its journal is void (journal.h, invariant 5, proves it);
#  - the hash of a journal's head: what it covers is compared with the record, or makes the record's hash fail;
#  - that a journal in use is told from one whose owner has died: the locks on its ranges keep recovery out as well;
#  - which of two sound lanes counts: the later one was not promised to anybody while the earlier one is there;
#  - the order of journals in recovery: since a retired one's name is gone for good, no two of them name one block;
#  - that what others wrote around a patch is synced before its commit point (tests/core/patch_commit_test.cc has it): a
#    loss of power is judged by commits, and this one falls between two of them;
#  - that a patch names its whole blocks for others: its owner, or who recovers it, has locked them;
#  - one of these two alone: recovery locks the ranges that it writes, and a committer waits for a journal of his ranges
#    that somebody holds. Whoever holds one, its owner or a recovery, has locked its ranges, too.

CORE_MUTANTS: tuple[Mutant, ...] = (
    # --- the order of the steps ------------------------------------------------------------------------
    Mutant(
        "the journal is not synced before it is named",
        "const auto sync = [this] { return file_->sync(); };",
        "const auto sync = [] { return Result<void>{}; };",
        ("crashes",),
    ),
    Mutant(
        "the directory is not synced after the journal was named",
        "if (done && durability == Durability::Power) done = storage_.sync_directory(directory);",
        "",
        ("crashes",),
    ),
    Mutant(
        "the archive is not synced before the journal is retired",
        "if (auto synced = archive.sync(); !synced) return synced;\n    }\n    if (part.index)",
        "}\n    if (part.index)",
        ("crashes",),
    ),
    Mutant(
        "recovery does not sync the archive before it removes the journal",
        "if (auto synced = archive.sync(); !synced) return synced;\n  if (found.record.index",
        "if (found.record.index",
        ("crashes",),
    ),
    Mutant(
        "recovery does not sync the directory before it applies a journal",
        "  if (auto synced = storage.sync_directory(archive_path.parent_path()); !synced) return synced;\n",
        "",
        ("crashes",),
    ),
    Mutant(
        "the journal is not retired",
        "return part.journal().retire(part.durability());",
        "return Result<void>{};",
        ("crashes",),
    ),
    Mutant(
        "the first block is not filled with the archive's bytes",
        "fill(begin, piece.offset, staging);",
        "",
        ("crashes",),
    ),
    Mutant(
        "the last block is not filled with the archive's bytes",
        "fill(piece.end(), std::min(end, next), staging);",
        "",
        ("crashes",),
    ),
    Mutant(
        "two stages in one block are not put together",
        "if (!is_in_place) {",
        "if (false) {",
        ("journals",),
    ),
    # --- what is checked -------------------------------------------------------------------------------
    Mutant(
        "the sizes are not checked",
        "if (auto sizes = transaction.check_sizes(); !sizes) return sizes;",
        "",
        ("crashes",),
    ),
    Mutant(
        "the archive is not checked again before the commit",
        "if (auto same = check_archive(archive, *part.options); !same) return same;",
        "",
        ("journals",),
    ),
    Mutant(
        "another file at the path is not noticed",
        "if (change->is_replaced) {",
        "if (false) {",
        ("journals",),
    ),
    Mutant(
        "another header is not noticed",
        "if (change->is_broken) {",
        "if (false) {",
        ("journals",),
    ),
    Mutant(
        "another size is not noticed",
        "if (change->size_bytes != archive.stamp().size_bytes) {",
        "if (false) {",
        ("journals",),
    ),
    Mutant(
        "the hash of the record is not checked",
        "if (XXH3_64bits_digest(hashing.get()) != head.record_hash) {",
        "if (false) {",
        ("journals",),
    ),
    Mutant(
        "the hashes of the new blocks are not checked",
        "if (*hashes != range.new_hashes) {",
        "if (false) {",
        ("journals",),
    ),
    Mutant(
        "the old blocks that lie in a journal are not compared",
        ": hash_blocks(journal, {range.old_offset, compared.size_bytes});",
        ": hash_blocks(archive, compared);",
        ("journals",),
    ),
    Mutant(
        "a journal's archive is not checked",
        "if (kinship_of(found.record, archive.stamp) == Kinship::Other) {",
        "if (false) {",
        ("journals",),
    ),
    Mutant(
        "a journal's inode is not checked",
        "inode == other.inode && ",
        "",
        ("journals",),
    ),
    Mutant(
        "a journal's birth time is not checked",
        " && birth_ns == other.birth_ns;",
        ";",
        ("journals",),
    ),
    Mutant(
        "the hash of a journal's header is not checked",
        "header_hash == other.header_hash;",
        "true;",
        ("journals",),
    ),
    Mutant(
        "insisting applies a journal over bytes that it does not know",
        "is_due = is_alone && *known && check_new_blocks(*found.file, found.record);",
        "is_due = check_new_blocks(*found.file, found.record).has_value();",
        ("journals",),
    ),
    Mutant(
        "ranges of a record may pass the archive's end",
        "if (in_archive->end() > size_after) return false;",
        "",
        ("journals",),
    ),
    Mutant(
        "a damaged journal does not stop commits",
        "if (found.report.blocks_commits) {",
        "if (false) {",
        ("journals",),
    ),
    Mutant(
        "a large commit goes on when a sync has failed in a commit beside it",
        "recovery writes it again.\n  return archive.check_writable();",
        "recovery writes it again.\n  return {};",
        ("faults",),
        scenario="beside one of many ranges that is applied",
    ),
    Mutant(
        "a journal that cannot be read counts as damaged",
        "if (!record && record.error().code != ErrorCode::InvalidArgument) return pass_on(std::move(record));",
        "",
        ("faults",),
    ),
    Mutant(
        "a journal that was taken back counts as damaged",
        "if (*taken_back) {\n    set(found",
        "if (false) {\n    set(found",
        ("faults",),
    ),
    # --- whose journal it is, where little tells ----------------------------------------------------------
    Mutant(
        "without birth times any journal of this name counts",
        "if (*blocks == KnownBlocks::Other) return Use::Refuse;",
        "",
        ("journals",),
    ),
    Mutant(
        "a commit with durability=process does not tell its boot",
        "record.boot = durability == Durability::Process ? storage_.boot() : Boot{};",
        "record.boot = Boot{};",
        ("edges",),
        scenario="durabilities: both",
    ),
    Mutant(
        "a new journal is for its maker only",
        "const auto own = access ? give_access(storage, *made.file, *access) : made.file->status();",
        "const auto own = made.file->status();",
        ("edges",),
        scenario="users: root and a group",
    ),
    Mutant(
        "a journal that can't be read is passed over",
        "case EPERM: break;",
        "case EPERM: return false;",
        ("journals",),
    ),
    Mutant(
        "a look takes the journal's lock for a moment",
        "auto in_use = found.file->is_locked_by_other(kOwnerByte, LockKind::Shared);",
        "auto taken = found.file->try_lock(kOwnerByte, found.is_read_only ? LockKind::Shared : LockKind::Exclusive);\n"
        "    Result<bool> in_use(taken && *taken);\n"
        "    if (!*in_use) found.file->unlock(kOwnerByte);",
        ("edges",),
        scenario="looks: readers beside a committed journal",
    ),
    Mutant(
        "a journal that vanishes during a scan is an error",
        "if (!is_there && says_gone(is_there.error())) {",
        "if (false) {",
        ("edges",),
        scenario="looks: what is removed is not there",
    ),
    Mutant(
        "a reader goes on where a look has failed",
        "    if (!not_shown) return pass_on(std::move(not_shown));\n",
        "    if (!not_shown) return {};\n",
        ("edges",),
        scenario="looks: some fail, readers beside a committed journal",
    ),
    Mutant(
        "an archive with several names is written",
        "if (change->links > 1) {",
        "if (false) {",
        ("edges",),
        scenario="names: two",
    ),
    Mutant(
        "what a living owner wrote is applied without a second look",
        "if (!*is_there || found.report.state != JournalState::Committed) return {};",
        "if (!*is_there) return {};",
        ("edges",),
        scenario="groups",
    ),
    # --- failures --------------------------------------------------------------------------------------
    Mutant(
        "commits go on after a failed sync of the archive",
        "if (auto writable = archive.check_writable(); !writable) return writable;",
        "",
        ("faults",),
    ),
    Mutant(
        "a journal whose sync failed is used again",
        "  Error& why = spoiled_.emplace();",
        "  Error why;",
        ("faults",),
    ),
    Mutant(
        "a journal that could not be committed is not taken back",
        "const bool is_void = make_void(*file_, kHead).has_value();",
        "const bool is_void = true;",
        ("faults",),
    ),
    Mutant(
        "reads do not come from the journal after a failed apply",
        "archive.overlay().add({transaction.journal_->give_up(), std::move(part.plan).take_operations(), after});",
        "static_cast<void>(after);",
        ("faults",),
    ),
    Mutant(
        "readers do not see a committed journal that is not applied",
        "overlay_.set_pending(std::move(found->shown));",
        "",
        ("crashes",),
    ),
    # --- lane journals ------------------------------------------------------------------------------
    Mutant(
        "a journal is retired with its record",
        "  if (auto gone = make_void(*file_, kHead, durability); !gone) return gone;",
        "",
        ("crashes",),
        scenario="kept: a large one between",
    ),
    Mutant(
        "recovery removes a journal with its record",
        "  if (auto gone = make_void(*found.file, heads_of(found)); !gone) return gone;\n  found.report",
        "  found.report",
        ("hosts",),
        scenario="kept journals, few tensors, with kills and readers",
    ),
    Mutant(
        "what is void is not made so on stable storage",
        "  return done && durability == Durability::Power ? journal.sync() : done;",
        "  return done;",
        ("hosts",),
        scenario="kept journals, two writers of one tensor, killed in syncs",
    ),
    Mutant(
        "a commit through a lane journal is not synced",
        "  if (done && durability == Durability::Power) done = file_->sync();",
        "",
        ("crashes",),
    ),
    Mutant(
        "a lane journal is not synced before it is named",
        "  if (auto synced = made->file->sync(); !synced) return synced;",
        "",
        ("crashes", "random"),
    ),
    Mutant(
        "the directory is not synced after a lane journal was named",
        "  if (auto synced = storage_.sync_directory(path_.parent_path()); !synced) {",
        "  if (Result<void> synced; !synced) {",
        ("crashes", "random"),
    ),
    Mutant(
        "the same lane is used again and again",
        "  lane_ = (lane_ + 1) % kLanes;",
        "",
        ("crashes",),
    ),
    Mutant(
        "the hashes of a lane's blocks are not checked",
        "  if (agrees) return LaneVerdict::Sound;",
        "  return LaneVerdict::Sound;",
        ("crashes",),
    ),
    Mutant(
        "a lane that was never committed counts as damaged",
        "if (*hashes != range.old_hashes) return LaneVerdict::Damaged;",
        "return LaneVerdict::Damaged;",
        ("crashes",),
    ),
    Mutant(
        "what others wrote under a lane journal's commit may be lost with the power",
        "goes_through_lanes || part.plan.after() || part.transaction->patches_ ||",
        "part.plan.after() || part.transaction->patches_ ||",
        ("edges",),
        scenario="durabilities: both, kept journals",
    ),
    Mutant(
        "what others wrote under a commit may be lost with the power where there are no birth times",
        "part.transaction->patches_ ||\n                                part.plan.before().birth_ns == 0;",
        "part.transaction->patches_;",
        ("edges",),
        scenario="strangers: without birth times",
    ),
    Mutant(
        "a large commit leaves the lane journal's record",
        "    if (auto settled = lane_journal->settle(durability); !settled) return settled;",
        "",
        ("crashes", "random"),
    ),
    Mutant(
        "a lane journal is removed with its record",
        "  if (auto settled = settle(durability); !settled) return settled;\n  auto removed",
        "  auto removed",
        ("hosts",),
        scenario="kept journals, two writers of two tensors",
    ),
    Mutant(
        "recovery leaves the other lane's record",
        "    if (auto alone = void_other_lanes(*found.file, found.record); !alone) return alone;",
        "",
        ("choices",),
        scenario="kept: overlapping sets",
    ),
    Mutant(
        "nobody waits for a lane journal that names his blocks",
        "obstacle = found.is_lane_journal ? Obstacle::Unsettled : Obstacle::Recovery;",
        "obstacle = found.is_lane_journal ? Obstacle::None : Obstacle::Recovery;",
        ("hosts",),
        scenario="kept journals, different bytes",
    ),
    Mutant(
        "what the owner of a lane journal has made void is relied on before it is so on the disk",
        "if (auto synced = found.file->sync(); !synced && !says_gone(synced.error())) {",
        "if (Result<void> synced; !synced) {",
        ("hosts",),
        scenario="kept journals, two writers of one tensor, and a slow disk",
    ),
    Mutant(
        "a dead owner's void journal is removed as it is",
        "      if (auto gone = make_void(*found.file, heads_of(found)); !gone) return gone;\n    }",
        "    }",
        ("hosts",),
        scenario="kept journals, two writers of one tensor, killed in syncs",
    ),
    Mutant(
        "a dead owner's void journal is nothing to recover before a commit",
        "!found.is_in_use && (found.is_void || found.report.state == JournalState::Committed);",
        "!found.is_in_use && found.report.state == JournalState::Committed;",
        ("hosts",),
        scenario="kept journals, two writers of one tensor, killed in syncs",
    ),
    # --- patches by bytes ------------------------------------------------------------------------------
    Mutant(
        "patches take no locks before they read",
        "    auto locks = lock_for_commit(archive_, ranges, options);",
        "    auto locks = lock_for_commit(archive_, {}, options);",
        ("hosts",),
        scenario="different bytes",
    ),
    Mutant(
        "the hash of a patch is not checked",
        "if (XXH3_64bits(region.data(), region.size()) != range.patch_hash) {",
        "if (false) {",
        ("journals",),
    ),
    Mutant(
        "a patch in half a block is not told from somebody else's bytes",
        "    patch->apply(bytes, part.range.offset);\n    (hash()",
        "    (hash()",
        ("crashes",),
        scenario="patched: without birth times",
    ),
    Mutant(
        "readers do not see a patch that is not applied",
        "      patch->apply(place, part.offset);",
        "",
        ("crashes",),
    ),
    Mutant(
        "a patch skips the bytes behind its first run",
        "    if (!is_first && round_down_to_block(begin) > end_block) {",
        "    if (!is_first && round_down_to_block(begin) > end_block) {\n      return finish();",
        ("crashes",),
    ),
    Mutant(
        "a group's sync state is replaced before its commit point",
        "  part.index = transaction.index_;\n",
        "  part.index = transaction.index_;\n  if (part.index && !transaction.edit_) {\n"
        "    static_cast<void>(replace_index(archive.storage(),\n"
        "                                    archive.real_path().parent_path() / \"x.stj.\", part.journal().file(),\n"
        "                                    *part.index, part.durability()));\n    part.index.reset();\n  }\n",
        ("groups",),
    ),
    Mutant(
        "recovery leaves the sync state as it was",
        "  if (found.record.index) {\n    auto replaced",
        "  if (found.record.after && found.record.index) {\n    auto replaced",
        ("groups",),
    ),
    # --- a new file in the archive's place --------------------------------------------------------------
    Mutant(
        "the new file is not synced before it takes the archive's name",
        "if (auto synced = content.file->sync_all(); !synced) return synced;",
        "",
        ("edits",),
    ),
    Mutant(
        "the directory is not synced after a new file took the archive's name",
        "if (done && syncs) done = storage.sync_directory(directory->path);",
        "static_cast<void>(syncs);",
        ("edits",),
    ),
    Mutant(
        "the new file gets a name that recovery does not know",
        "  staged += kStagedSuffix;\n  if (auto named = storage.publish(*content.file, staged)",
        "  staged += \".new\";\n  if (auto named = storage.publish(*content.file, staged)",
        ("edits",),
    ),
)
