"""Each step of the protocol, taken out of the code, must fail a test (mutants.py). A fourteenth of them each day: two
weeks see all, and so does a run with --long."""

import pytest

import mutants
import share_of_day
from mutant import Mutant
from mutants import MUTANTS

SHARES = 1 if share_of_day.SHARES == 1 else 14
TODAYS = MUTANTS[share_of_day.DAY % SHARES :: SHARES]
LEFT_OUT = pytest.param(
    None,
    id="others",
    marks=pytest.mark.skip(
        reason=f"{len(MUTANTS) - len(TODAYS)} of {len(MUTANTS)} mutants, which run on another day; all of them with "
        "--long, or with python3 tests/crash/mutants.py"
    ),
)


@pytest.fixture(scope="module")
def workshop() -> mutants.Workshop:
    shop = mutants.Workshop(mutants.BUILD, mutants.BUILD / "mutants")
    shop.prepare()
    return shop


@pytest.mark.parametrize(
    "mutant", [*TODAYS, *([LEFT_OUT] if SHARES > 1 else [])], ids=lambda mutant: mutant.name
)
def test_mutant_is_caught(workshop: mutants.Workshop, mutant: Mutant):
    print(workshop.try_mutant(mutant))


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_text_is_there(mutant: Mutant):
    mutant.apply(mutants.ROOT)


def test_names_tell_mutants_apart():
    names = [mutant.name for mutant in MUTANTS]
    assert len(names) == len(set(names))
