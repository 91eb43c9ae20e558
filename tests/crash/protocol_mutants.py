"""The steps of the protocol that mutants.py changes, one at a time, in ways that no operator of tests/mutation knows:
another order, other bytes, a lock that is taken too early or not at all.

Each mutant is a table's row: a name, the text that must be in core or tools/sync exactly once, and what takes its place.
A row whose text is no longer there fails: the table has to follow the code.
"""

from mutant import Mutant

# A second line of defence hides each of these, from the explorer as from tests/mutation:
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
# It takes the explorer minutes to find two crashes in a row that show these:
#  - that an index of a published version that is withdrawn is gone for good before its shards go;
#  - that the step of a switch is sure before the files of the model before go.

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
        "  staged += kStagedSuffix;\n  if (auto named = storage.publish(*content.file, staged)",
        "  staged += \".new\";\n  if (auto named = storage.publish(*content.file, staged)",
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
        # Either look alone is enough: what has gone was made void before.
        more=(("return !*taken_back || found.report.state == JournalState::Unfinished;", "return true;"),),
    ),
    Mutant(
        "locks are not rounded out to blocks",
        "const std::uint64_t end = kLockBase + round_up_to_block(range.end());",
        "const std::uint64_t end = kLockBase + range.end();",
        ("hosts",),
        scenario="different bytes",
        # Either end alone is enough for neighbours to meet.
        more=(("std::max<std::uint64_t>(round_down_to_block(range.offset), 1)", "std::max<std::uint64_t>(range.offset, 1)"),),
    ),
    Mutant(
        "what a compaction has copied is not on the disk before the header names it",
        "return archive.sync();\n}\n\nResult<CommitPlan> CommitProtocol::plan",
        "return {};\n}\n\nResult<CommitPlan> CommitProtocol::plan",
        ("edits",),
        # The seal syncs what others wrote into an archive that was just opened, and so these bytes as well.
        more=(("if (auto synced = archive.sync_what_others_wrote(); !synced) return synced;", ""),),
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
        "    if (auto early = state_.write(version_.version(), durability); !early) return early;\n"
        "    auto committed = transaction_.commit(",
        ("pulls",),
        scenario="chain",
    ),
)
