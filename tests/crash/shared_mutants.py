"""The steps that several archives, several hosts and edits need, which mutants.py removes; rows as in mutant_table.py."""

from mutant import Mutant

SHARED_MUTANTS: tuple[Mutant, ...] = (
    # --- several archives ------------------------------------------------------------------------------
    Mutant(
        "the group_record is not synced before it is named",
        "return durability == Durability::Power ? made_.file->sync() : Result<void>{};",
        "return {};",
        ("groups",),
    ),
    Mutant(
        "the directory is not synced after the group_record was named",
        "auto done = storage_->sync_directory(directory);\n  if (done) return done;",
        "Result<void> done;\n  if (done) return done;",
        ("groups",),
    ),
    Mutant(
        "a journal without its group_record is committed",
        "case ENOENT: return GroupVerdict{};",
        "case ENOENT: return GroupVerdict{GroupState::Committed};",
        ("groups",),
    ),
    Mutant(
        "the group_record goes before the last of its journals",
        "if (*others) return {};",
        "",
        ("groups",),
    ),
    Mutant(
        "a group's journals do not name their group_record",
        "seal(*part, group_record ? group_record->name() : \"\");",
        "seal(*part, \"\");",
        ("groups",),
    ),
    Mutant(
        "a group_record that a loss of power has emptied is damaged",
        "if (text->empty() || text->front() == '\\0') return std::optional<GroupContent>();",
        "if (text->starts_with('\\0')) return nothing;",
        ("edges",),
    ),
    # --- records of many ranges ------------------------------------------------------------------------
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
        "of a long range only the first piece is named",
        "done < range.archive.size_bytes; done += most_bytes",
        "done < 1; done += most_bytes",
        ("crashes", "random"),
    ),
    # --- several hosts ---------------------------------------------------------------------------------
    Mutant(
        "no locks are taken",
        "if (options.uses_locks && !is_locked) {",
        "if (false) {",
        ("hosts",),
        scenario="different bytes",
    ),
    Mutant(
        "nothing is recovered before a commit",
        "if (*obstacle == Obstacle::None) return locks;",
        "return locks;",
        ("hosts",),
        scenario="few tensors, with kills and readers",
    ),
    Mutant(
        "recovery takes a journal that somebody holds",
        "if (is_there && *is_there && *is_used) {",
        "if (false) {",
        ("hosts",),
        scenario="few tensors, with kills and readers",
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
                "auto locks = found.record.after\n                   ? ArchiveLocks::for_edit(archive, archive_path, kLockPatience)\n                   : ArchiveLocks::for_patch(archive, archive_path, std::move(ranges), kLockPatience);",
                "Result<bool> locks = true;",
            ),
        ),
    ),
    Mutant(
        "recovery applies a journal that has gone meanwhile",
        "if (!is_there || !*is_there) return is_there;\n  auto taken_back",
        "if (!is_there) return is_there;\n  auto taken_back",
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
    # --- edits of the structure ------------------------------------------------------------------------
    Mutant(
        "an edit does not hide the header before it writes",
        "if (auto hidden = archive.write(kNoHeaderLength, 0); !hidden) return hidden;",
        "",
        ("edits",),
    ),
    Mutant(
        "an edit writes before the hidden header is on the disk",
        "if (auto synced = archive.sync(); !synced) return synced;\n\n  const JournalRange& front",
        "const JournalRange& front",
        ("edits",),
    ),
    Mutant(
        "an edit shows the header before the rest is on the disk",
        "if (auto synced = archive.sync(); !synced) return synced;\n\n  return archive.write(length, 0);",
        "return archive.write(length, 0);",
        ("edits",),
    ),
    Mutant(
        "an edit writes the length with the rest",
        "std::ranges::copy(kNoHeaderLength, first.begin());",
        "",
        ("edits",),
    ),
    Mutant(
        "an edit leaves the size as it was",
        "if (*size_bytes != after.size_bytes) {",
        "if (false) {",
        ("edits",),
    ),
    Mutant(
        "an edit is as durable as a patch may be",
        "return plan.after() ? Durability::Power : archive().durability(options->durability);",
        "return archive().durability(options->durability);",
        ("edits",),
    ),
    Mutant(
        "an edit that was begun counts as written for another archive",
        "if (!record.after) return record.archive.compare(now);",
        "return record.archive.compare(now);",
        ("edits",),
    ),
    Mutant(
        "a hidden header is not known as the old one",
        "if (before.hash() == old_hash) return BlockState::Old;",
        "",
        ("edits",),
    ),
    Mutant(
        "blocks behind the old end are compared",
        "if (!record.after || range.end() <= record.archive.size_bytes) return range;",
        "return range;",
        ("edits",),
    ),
    Mutant(
        "what an edit moves is not copied",
        "for (const Move& move : moves) planner.move(move);",
        "",
        ("edits",),
    ),
    Mutant(
        "a new tensor takes the place of one that stays",
        "if (begin > hole->end() || hole->end() - begin < size_bytes) continue;",
        "if (begin > hole->end()) continue;",
        ("edits",),
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
        "a compaction copies over tensors that the header still names",
        "if (to >= block.range.offset || to + block.range.size_bytes > gap.end) break;",
        "if (to >= block.range.offset) break;",
        ("edits",),
    ),
    Mutant(
        "a compaction names the new places before the bytes are there",
        "if (auto copied = copy_before(part, *layout); !copied) return copied;",
        "",
        ("edits",),
    ),
    Mutant(
        "an edit of another shard does not wait for who replaces the index",
        "const auto [holder, is_new] = transactions_.try_emplace(first, model_->archive(first));",
        "const auto holder = transactions_.begin();\n  const bool is_new = false;",
        ("edit-hosts",),
        scenario="shards, two hosts that crash",
    ),
    Mutant(
        "an opening of a model looks only at the shards that the index names",
        "(*model)->remove_left_journals();",
        "static_cast<void>(model);",
        ("edit-hosts",),
        scenario="shards, kept journals",
    ),
    Mutant(
        "a reader takes the old index beside shards of a committed edit",
        "if (*pending) index = model->open_named_shards(**pending, options);",
        "",
        ("edit-hosts",),
        scenario="shards",
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
        scenario="one archive, users of a group",
    ),
    Mutant(
        "space that is given back has bytes that count",
        "add_free_parts(*version, placed.file_range, reserved.holes_);",
        "if (placed.file_range.offset < end) reserved.holes_.push_back(placed.file_range);",
        ("edits",),
    ),
)
