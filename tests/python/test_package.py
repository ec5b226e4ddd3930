"""What comes with the package: types, the check of torch's version, notebooks."""

import ast
import json
import pathlib
import subprocess
import sys

import pytest

import duet

ROOT = pathlib.Path(__file__).parents[2]


def python(*arguments):
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True)


def test_the_stubs_are_those_of_the_module():
    done = python(ROOT / "python" / "binding" / "make_stubs.py", "--check")
    assert done.returncode == 0, done.stderr


def test_another_torch_is_an_error_that_says_what_to_do(tmp_path):
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("")
    (tmp_path / "torch" / "version.py").write_text("__version__ = '2.99.0+cpu'\n")
    for use in ("import duet", "import _duet_torch; _duet_torch.main()"):
        done = python("-c", f"import sys; sys.path.insert(0, {str(tmp_path)!r}); {use}")
        assert done.returncode != 0
        assert "built for torch " + duet.built_for_torch in done.stderr and "torch 2.99.0+cpu is installed" in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(path.name for path in (ROOT / "examples" / "python").glob("*.ipynb")))
def test_notebooks_are_well_formed_and_run(name):
    notebook = json.loads((ROOT / "examples" / "python" / name).read_text())
    assert notebook["nbformat"] == 4
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            ast.parse("".join(cell["source"]))
            assert cell["outputs"] == []
    library = {"lightning_module.ipynb": "lightning", "hugging_face.ipynb": "transformers"}[name]
    pytest.importorskip(library)
    code = "\n".join("".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code")
    done = python("-c", code)
    assert done.returncode == 0, done.stderr


def test_what_a_name_would_do_to_a_terminal_is_escaped_in_errors(tmp_path):
    path = tmp_path / "weights\x1b[2J\n.safetensors"
    path.write_bytes(b"none")
    with pytest.raises(duet.Error) as found:
        duet.read_weights(str(path))
    assert "\x1b" not in str(found.value) and "weights\\x1b[2J" in str(found.value)
