# stfs.torch returns and raises what safetensors.torch does, with whichever PyTorch a Python here has.
import subprocess
from pathlib import Path

import pytest
import safetensors

PROGRAM = Path(__file__).with_name("torch_reference.py")


@pytest.fixture(scope="module")
def both(torch_python, tmp_path_factory):
    """Runs a function of torch_reference.py. The reference library is this Python's, and nothing else of its packages."""
    python, environment = torch_python
    packages = tmp_path_factory.mktemp("packages")
    (packages / "safetensors").symlink_to(Path(safetensors.__file__).parent)
    environment = {**environment, "PYTHONPATH": f"{environment['PYTHONPATH']}:{packages}"}
    probe = subprocess.run([python, "-c", "import safetensors.torch"], env=environment, capture_output=True, text=True, timeout=120)
    if probe.returncode:
        pytest.skip("no Python here has torch and can load the safetensors library")

    def run(name):
        done = subprocess.run([python, PROGRAM, name], env=environment, capture_output=True, text=True, timeout=300)
        assert (done.returncode, done.stdout) == (0, "same"), done.stdout + done.stderr
    return run


def test_tensors_are_the_same_whichever_call_returns_them(both):
    both("reading")


def test_tensors_at_odd_addresses_are_the_same(both):
    both("odd_addresses")


def test_devices_are_taken_and_refused_as_there(both):
    both("devices")


def test_a_write_to_a_loaded_tensor_changes_no_file(both):
    both("writing_into_loaded_tensors")


def test_files_are_equal_byte_for_byte(both):
    both("saving")


def test_shared_sparse_and_strided_tensors_are_refused_as_there(both):
    both("refusals")


def test_conjugates_and_negatives_are_saved_as_they_look(both):
    both("views_with_pending_signs")


def test_modules_with_tied_tensors_are_saved_and_loaded_as_there(both):
    both("models")


def test_pairs_of_four_bits_are_the_same(both):
    both("pairs_of_four_bits")


def test_a_tensor_of_stfs_becomes_one_of_pytorch_with_its_own_type(both):
    both("tensors_of_stfs")
