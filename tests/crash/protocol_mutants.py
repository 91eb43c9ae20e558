"""The steps of the protocol that mutants.py changes, one at a time, in ways that no operator of tests/mutation knows:
another order, other bytes, a lock that is taken too early or not at all.

Each mutant is a table's row: a name, the text that must be in core or tools/sync exactly once, and what takes its place.
A row whose text is no longer there fails: the table has to follow the code.
"""

from mutant import Mutant

# The explorer and tests/mutation notice none of these, because a second line of defence hides each:
#  - that the archive's locks are held until its journal is void (journal.h, invariant 5, proves it);
#  - the hash of a journal's head: a wrong field of the head differs from the record, or the record's hash fails;
#  - the difference between a journal in use and a journal of a dead owner: the locks on its ranges also stop recovery;
#  - the choice between two sound lanes: the later commit was not promised while the earlier lane is there;
#  - the order of journals in recovery: the removal of a retired journal's name is durable, so no two name one block;
#  - the sync of other programs' bytes around a patch before its commit point (tests/core/patch_commit_test.cc tests it):
#    a loss of power is judged by commits, and this loss is between two commits;
#  - that a patch names its whole blocks for others: its owner, or the process that recovers it, has locked them;
#  - one of these two alone: recovery locks the ranges that it writes, and a committer waits for a held journal of its
#    ranges. The holder of a journal, its owner or a recovery, has also locked the journal's ranges.
# The explorer needs minutes to find two crashes in a row that show these:
#  - the index of a withdrawn published version is removed durably before its shards are removed;
#  - the record of a switch's step is durable before the files of the old model are removed.

MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        "the old blocks that lie in a journal are not compared",
        ": hash_blocks(journal, {range.old_offset, compared.size_bytes});",
        ": hash_blocks(archive, compared);",
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
        "a journal whose sync failed is used again",
        "  Error& why = spoiled_.emplace();",
        "  Error why;",
        ("faults",),
    ),
    Mutant(
        "nobody waits for a lane journal that names his blocks",
        "obstacle = found.is_lane_journal ? Obstacle::Unsettled : Obstacle::Recovery;",
        "obstacle = found.is_lane_journal ? Obstacle::None : Obstacle::Recovery;",
        ("hosts",),
        scenario="kept journals, different bytes",
    ),
    Mutant(
        "patches take no locks before they read",
        "    auto locks = lock_for_commit(archive_, ranges, options);",
        "    auto locks = lock_for_commit(archive_, {}, options);",
        ("hosts",),
        scenario="different bytes",
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
        "                                    *part.index, RightOf::Process, part.durability()));\n    part.index.reset();\n  }\n",
        ("groups",),
    ),
    Mutant(
        "the new file gets a name that recovery does not know",
        "  staged += kStagedSuffix;\n  RETURN_IF_ERROR(storage.publish(*content.file, staged)",
        "  staged += \".new\";\n  RETURN_IF_ERROR(storage.publish(*content.file, staged)",
        ("edits",),
    ),
    Mutant(
        "a journal without its group_record is committed",
        "case ENOENT: return GroupVerdict{};",
        "case ENOENT: return GroupVerdict{GroupState::Committed};",
        ("groups",),
    ),
    Mutant(
        "each piece of a long range holds the bytes of its first",
        ".journal_offset = range.journal_offset + done,",
        ".journal_offset = range.journal_offset,",
        ("crashes", "random"),
    ),
    Mutant(
        "each piece of a long range goes to where the first one does",
        "{range.archive.offset + done, std::min(",
        "{range.archive.offset, std::min(",
        ("crashes", "random"),
    ),
    Mutant(
        "locks are released before the archive's sync, and nobody waits for a journal in use",
        "    archive.overlay().end_applied(&part.journal().file());\n  });\n  auto settled =",
        "    archive.overlay().end_applied(&part.journal().file());\n  });\n  part.locks.release();\n  auto settled =",
        ("hosts",),
        more=(
            (
                "if (*obstacle == Obstacle::None) return locks;",
                "if (*obstacle == Obstacle::None || *obstacle == Obstacle::Recovery) return locks;",
            ),
        ),
        scenario="different bytes, and an archive that is slow to sync",
    ),
    Mutant(
        "the owner does not lock his journal",
        "auto conflict = made.file->try_lock(kOwnerByte, LockKind::Exclusive);",
        "Result<std::optional<LockConflict>> conflict;",
        ("hosts",),
        scenario="kept journals, different bytes",
    ),
    Mutant(
        "recovery locks no ranges, and a journal that it holds is nothing to wait for",
        "obstacle = found.is_lane_journal ? Obstacle::Unsettled : Obstacle::Recovery;",
        "obstacle = found.is_lane_journal ? Obstacle::Unsettled : Obstacle::None;",
        ("hosts",),
        scenario="few tensors, with kills and readers",
        more=(
            (
                "auto locks = found.record.after\n                   ? ArchiveLocks::for_edit(archive, archive_path, time_left(wait_until))\n                   : ArchiveLocks::for_patch(archive, archive_path, std::move(ranges), time_left(wait_until));",
                "Result<bool> locks = true;",
            ),
        ),
    ),
    Mutant(
        "recovery applies a journal that has gone meanwhile",
        "if (!is_there || !*is_there) return is_there;\n  if (is_group_record_name",
        "if (!is_there) return is_there;\n  if (is_group_record_name",
        ("hosts",),
        scenario="without unnamed files",
        # Each check alone is enough, because a journal is made void before it is removed.
        more=(("return !*taken_back || found.report.state == JournalState::Unfinished;", "return true;"),),
    ),
    Mutant(
        "locks are not rounded out to blocks",
        "const std::uint64_t end = kLockBase + round_up_to_block(range.end());",
        "const std::uint64_t end = kLockBase + range.end();",
        ("hosts",),
        scenario="different bytes",
        # Neighbours conflict even if only one of the two ends is rounded.
        more=(("std::max<std::uint64_t>(round_down_to_block(range.offset), 1)", "std::max<std::uint64_t>(range.offset, 1)"),),
    ),
    Mutant(
        "what a compaction has copied is not on the disk before the header names it",
        "return archive.sync();\n}\n\nResult<CommitPlan> CommitProtocol::plan",
        "return {};\n}\n\nResult<CommitPlan> CommitProtocol::plan",
        ("edits",),
        # The seal syncs the bytes of other programs in an archive that was just opened, and these bytes with them.
        more=(("RETURN_IF_ERROR(archive.sync_what_others_wrote());", ""),),
    ),
    Mutant(
        "an edit of another shard does not wait for who replaces the index",
        "const auto [holder, is_new] = transactions_.try_emplace(first, model_->archive(first));",
        "const auto holder = transactions_.begin();\n  const bool is_new = false;",
        ("edit-hosts",),
        scenario="shards, two hosts that crash",
    ),
    Mutant(
        "part of a transaction that was never committed stays once the archive was edited",
        "const auto in_vain = waits_in_vain(archive, found);",
        "const std::optional<GroupVerdict> in_vain;",
        ("edit-hosts",),
        scenario="shards",
    ),
    Mutant(
        "whether an edit hides the header is asked when the header may have come back",
        "const bool is_hidden = !loaded && is_being_edited();\n    if (locks) locks->release();",
        "if (locks) locks->release();\n    const bool is_hidden = !loaded && is_being_edited();",
        ("edit-hosts",),
        seed=16_800,
        scenario="one archive, users of a group",
    ),
    Mutant(
        "space that is given back has bytes that count",
        "add_free_parts(*version, placed.file_range, reserved.holes_);",
        "if (placed.file_range.offset < end) reserved.holes_.push_back(placed.file_range);",
        ("edits",),
    ),
    Mutant(
        "the state is written before the tensors",
        "    auto committed = transaction_.commit(",
        "    RETURN_IF_ERROR(state_.write(version_.version(), durability));\n"
        "    auto committed = transaction_.commit(",
        ("pulls",),
        scenario="chain",
    ),
)
