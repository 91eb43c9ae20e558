"""Each step of the protocol, done in another way, must be noticed by the explorer (mutants.py). A seventh of them each
day: a week sees all, and so does a run with --long."""

import pytest

import mutants
import share_of_day
from mutant import Mutant
from protocol_mutants import MUTANTS


@pytest.fixture(scope="module")
def workshop() -> mutants.Workshop:
    shop = mutants.Workshop(mutants.BUILD, mutants.BUILD / "mutants")
    shop.prepare()
    return shop


@pytest.mark.parametrize("mutant", share_of_day.todays(MUTANTS, lambda one: one.name), ids=lambda one: one.name)
def test_mutant_is_caught(workshop: mutants.Workshop, mutant: Mutant):
    print(workshop.try_mutant(mutant))


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda one: one.name)
def test_text_is_there(mutant: Mutant):
    mutant.apply(mutants.ROOT)


def test_names_tell_mutants_apart():
    names = [mutant.name for mutant in MUTANTS]
    assert len(names) == len(set(names))
