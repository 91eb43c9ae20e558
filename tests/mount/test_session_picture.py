"""The picture of README.md shows the output that the programs print today."""

import os
import subprocess

import mounted
import pytest

pytestmark = pytest.mark.once


def test_the_picture_is_drawn_from_a_session(tmp_path):
    environment = {**os.environ, "PATH": f"{mounted.BUILD}:{os.environ['PATH']}", "TMPDIR": str(tmp_path)}
    drawn = tmp_path / "session.svg"
    subprocess.run([mounted.REPOSITORY / "packaging" / "draw_session", drawn], env=environment, check=True,
                   timeout=60 * mounted.PATIENCE)
    shown = mounted.REPOSITORY / "packaging" / "doc" / "session.svg"
    assert drawn.read_text() == shown.read_text(), "packaging/draw_session draws the picture again"
