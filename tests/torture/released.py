"""R17: checkpoints of every format that was ever written, which tests/checkpoint/released keeps, load bit for bit."""

import json
import shutil

from torture import HERE


def check(torture, folder):
    kept = torture.folder / folder.name
    shutil.copytree(folder, kept)
    expected = json.loads((kept / "expected.json").read_text())
    torture.good("inspect", kept / "run")
    for name in ("model", "ema"):
        file = torture.folder / f"{name}.safetensors"
        torture.good("export", kept / "run", file, "--weights", name)
        torture.require(list(tensors(file)) == expected[name], f"other bits in the weights {name}")
    # There is nothing left to do: what it ends with is what it loaded, optimizer and all.
    torture.good("train", kept / "run.yaml", f"work_dir={kept / 'run'}", f"data.train.path={kept / 'data.safetensors'}",
                 "--resume", "auto", "--json", "end.json")
    found = json.loads((torture.folder / "end.json").read_text())
    for key in ("weights_hash", "steps"):
        torture.require(found[key] == expected[key], f"{key} is {found[key]}, expected {expected[key]}")


def tensors(path):
    """Name and bits of each."""
    content = path.read_bytes()
    size = int.from_bytes(content[:8], "little")
    header = json.loads(content[8:8 + size])
    for name in sorted(header):
        if name != "__metadata__":
            begin, end = (8 + size + at for at in header[name]["data_offsets"])
            yield [name, content[begin:end].hex()]


def run(torture):
    folders = sorted((HERE.parent / "checkpoint" / "released").glob("format_*"))
    torture.require(folders, "tests/checkpoint/released holds no checkpoint")
    for folder in folders:
        torture.case = folder.name
        check(torture, folder)
    return f"{len(folders)}/{len(folders)} formats load bit for bit: {', '.join(folder.name for folder in folders)}"
