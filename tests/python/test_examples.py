"""The scripts in examples/python: few changed lines, the same weights."""

import difflib
import gzip
import pathlib
import subprocess
import sys

import pytest
import torch

import toy

EXAMPLES = pathlib.Path(__file__).parents[2] / "examples" / "python"


def write_mnist(folder):
    """A few pictures in the files that the script reads."""
    for part, count in (("train", 640), ("t10k", 16)):
        for kind, header, values in (("images-idx3", 16, count * 784), ("labels-idx1", 8, count)):
            numbers = torch.randint(10, (values,), dtype=torch.uint8).numpy().tobytes()
            (folder / f"{part}-{kind}-ubyte.gz").write_bytes(gzip.compress(bytes(header) + numbers, 1))


@pytest.mark.slow
@pytest.mark.parametrize("name, data", [("mnist", None), ("word_lm", EXAMPLES.parents[1] / "LICENSE")])
def test_a_script_of_pytorch_needs_five_lines_and_ends_with_the_same_weights(name, data, tmp_path):
    old, new = ((EXAMPLES / f"{name}_{kind}.py").read_text().splitlines() for kind in ("pytorch", "duet"))
    changed = [line for line in difflib.ndiff(old, new) if line.startswith("+ ") and not line.startswith('+ """')]
    assert len(changed) <= 5, changed
    if data is None:
        write_mnist(tmp_path)
    weights = []
    for kind in ("pytorch", "duet"):
        line = [sys.executable, EXAMPLES / f"{name}_{kind}.py", "--data", data or tmp_path, "--epochs", "2"]
        done = subprocess.run([*line, "--save", tmp_path / kind], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        weights.append(torch.load(tmp_path / kind, weights_only=True))
    toy.assert_same_bits(*weights)
