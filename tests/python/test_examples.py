"""The scripts in examples/python: few changed lines, the same weights."""

import difflib
import pathlib
import subprocess
import sys

import pytest
import torch

import toy

EXAMPLES = pathlib.Path(__file__).parents[2] / "examples" / "python"


def run(script, *arguments):
    done = subprocess.run([sys.executable, EXAMPLES / script, *arguments], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(
    "name, arguments",
    [("mnist", ["--limit", "6"]), ("word_lm", ["--data", str(EXAMPLES.parents[1] / "LICENSE"), "--epochs", "2"])],
)
def test_a_script_of_pytorch_needs_five_lines_and_ends_with_the_same_weights(name, arguments, tmp_path):
    if name == "mnist" and not pathlib.Path("/usr/share/datasets/fashion-mnist").is_dir():
        pytest.skip("Debian's dataset-fashion-mnist is not installed")
    old, new = ((EXAMPLES / f"{name}_{kind}.py").read_text().splitlines() for kind in ("pytorch", "duet"))
    changed = [line for line in difflib.ndiff(old, new) if line.startswith("+ ") and not line.startswith('+ """')]
    assert len(changed) <= 5, changed
    weights = []
    for kind in ("pytorch", "duet"):
        run(f"{name}_{kind}.py", *arguments, "--save", tmp_path / kind)
        weights.append(torch.load(tmp_path / kind, weights_only=True))
    toy.assert_same_bits(*weights)
