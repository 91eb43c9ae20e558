"""The steps of a weight sync that mutants.py removes, one at a time: rows as in mutant_table.py, of tools/sync too."""

from mutant import Mutant

# Not in the table, since it takes the explorer minutes to find two crashes in a row that show them:
#  - that an index that is withdrawn is gone for good before its shards go;
#  - that the step of a switch is sure before the files of the model before go.

PULLS = ("pulls",)

SYNC_MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        "an index of a version is named before its shards are sure",
        "  }\n  if (auto ok = storage_->sync_directory(own_.path); !ok) return ok;\n",
        "  }\n",
        PULLS,
        scenario="chain",
    ),
    Mutant(
        "a version that is published already is not made sure of",
        "    for (const OpenDirectory* named : {&own_, &published_}) {\n"
        "      if (auto ok = storage_->sync_directory(named->path); !ok) return ok;\n    }\n",
        "",
        PULLS,
        scenario="chain",
    ),
    Mutant(
        "the directories of a first state are not synced",
        "    for (const std::filesystem::path& above : {directory, directory / \"..\"}) {\n",
        "    for (const std::filesystem::path& above : {directory}) {\n",
        PULLS,
        scenario="chain",
    ),
    Mutant(
        "a switch that is undone counts as one that was taken",
        "    if (auto noted = write_note(storage, place, files, false); !noted) return noted;\n",
        "",
        PULLS,
        scenario="full version of other tensors",
    ),
    Mutant(
        "a switch is not noted before its files are made",
        "    if (auto noted = note_switch(storage_, state_.place(), plan_.files); !noted) return noted;\n",
        "",
        PULLS,
        scenario="full version of other tensors",
    ),
    Mutant(
        "the new files of a switch are not sure before its step",
        "  if (auto synced = sync_all(storage, place); !synced) return synced;\n"
        "  if (auto noted = write_note(storage, place, files, true); !noted) return noted;\n",
        "  if (auto noted = write_note(storage, place, files, true); !noted) return noted;\n",
        PULLS,
        scenario="full version of other tensors",
    ),
    Mutant(
        "the state is written before the tensors",
        "    auto committed = transaction_.commit(",
        "    if (auto early = state_.write(version_.version(), durability); !early) return early;\n"
        "    auto committed = transaction_.commit(",
        PULLS,
        scenario="chain",
    ),
    Mutant(
        "a state that was renamed is not made sure of",
        "    auto synced = storage.sync_directory(place.directory.path);\n",
        "    Result<void> synced;\n",
        PULLS,
        scenario="chain",
    ),
    Mutant(
        "a new file has its name before its bytes",
        "    if (auto ok = told(file_->sync_all(), \"sync\"); !ok) return ok;\n",
        "",
        PULLS,
        scenario="chain",
    ),
    Mutant(
        "the directory of a new file is not synced",
        "  if (ok && durability == Durability::Power) ok = storage_->sync_directory(directory_of(path_));\n",
        "",
        PULLS,
        scenario="chain",
    ),
)
