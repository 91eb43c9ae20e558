# Fixtures of tests with an unprivileged user who may write the directory of other users' archives (attacker.py).
import attacker as attack
import pytest


@pytest.fixture(params=["disk", "tmpfs"])
def kind(request):
    return request.param


@pytest.fixture(params=[0, attack.ALICE], ids=["root", "alice"])
def scene(request, kind):
    """An archive of root or of another user. Its tools run as its owner."""
    yield from attack.scene_in(kind, request.param)


@pytest.fixture
def mallory():
    attacker = attack.Attacker()
    yield attacker
    attacker.stop()
