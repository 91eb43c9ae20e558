"""Each step of the protocol, taken out of the code, must fail a test (mutants.py)."""

import os
from pathlib import Path

import pytest

import mutants
from mutant import Mutant
from mutant_table import MUTANTS

BUILD = Path(os.environ.get("STFS_BUILD_DIR", mutants.ROOT / "build" / "release")).resolve()


@pytest.fixture(scope="module")
def workshop() -> mutants.Workshop:
    shop = mutants.Workshop(BUILD / "mutants")
    shop.prepare()
    return shop


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_mutant_is_caught(workshop: mutants.Workshop, mutant: Mutant):
    print(workshop.try_mutant(mutant))


def test_names_tell_mutants_apart():
    names = [mutant.name for mutant in MUTANTS]
    assert len(names) == len(set(names))
