#!/usr/bin/env python3
"""Weights that a run starts from: every file that holds them is taken, every wrong one is refused with a message that helps.

usage: bad_checkpoints.py PROGRAM [--only TEXT]

Refused means exit code 4 (2 where the config is at fault), with file, entry or key named and no stack trace.
"""

import argparse
import json
import os
import pathlib
import shutil
import struct
import sys
import tempfile
import zipfile

import bad_input_cases as cases
from bad_input import TEXT, Checks
from bad_input_cases import CHECKPOINT, CONFIG, DIVERGED

MLP = "model={type: Mlp}"  # without buffers: a run with a learning rate of zero leaves all of it as it was
PT_FILES = pathlib.Path(__file__).resolve().parent.parent / "io" / "pt_files"


def make_good(checks):
    """Runs whose weights the others start from."""
    checks.check(0, r"4 steps", "train", "base.yaml", "work_dir=good")
    checks.check(0, r"4 steps", "train", "base.yaml", "work_dir=mlp", MLP, "--json", "mlp.json")
    checks.check(0, r"4 steps", "train", "base.yaml", "work_dir=average", MLP, "custom_hooks=[{type: EMAHook}]")
    for file in ("good.pt", "good.safetensors"):
        checks.check(0, rf"wrote 8 tensors .* to {file}", "export", "good/checkpoints", file)
    for file in ("mlp.pt", "mlp.pth", "mlp.safetensors"):
        checks.check(0, rf"wrote 4 tensors .* to {file}", "export", "mlp/checkpoints", file)
    checks.check(0, r"wrote 4 tensors", "export", "average/checkpoints", "average.pt", "--weights", "ema", "--json", "ema.json")
    exported = json.loads((checks.folder / "ema.json").read_text())
    checks.require(exported["weights"] == "ema" and exported["tensors"][0] == {
        "name": "head.bias", "dtype": "Float", "shape": [10]} and exported["tied"] == {}, f"export --json: {exported}")
    for file in ("tied.pt", "tied.safetensors"):  # a tensor with two names is one tensor
        checks.check(0, rf"wrote 2 tensors under 3 names \(.* to {file}", "export", PT_FILES / "tied.pt", file, "--json", "tied.json")
        exported = json.loads((checks.folder / "tied.json").read_text())
        checks.require([tensor["name"] for tensor in exported["tensors"]] == ["bias", "embedding"] and
                       exported["tied"] == {"head": "embedding"}, f"export --json: {exported}")


def starting(path, *arguments):
    """A run of one step that changes no weight."""
    number = starting.count = getattr(starting, "count", 0) + 1
    return ("train", "base.yaml", f"work_dir=runs/{number}", "trainer.max_steps=1", "optim_wrapper.optimizer.lr=0",
            "--load-from", path, *arguments)


def check_good(checks):
    expected = json.loads((checks.folder / "mlp.json").read_text())["weights_hash"]
    loaded = r"loaded weights from '[^']*': 4 of 4 tensors\n"
    paths = ("mlp/checkpoints", "mlp/checkpoints/step-4", "mlp/checkpoints/step-4/model.safetensors", "mlp.pt", "mlp.pth",
             "mlp.safetensors")
    for i, path in enumerate(paths):
        checks.check(0, loaded, *starting(path, MLP, "--json", f"start{i}.json"))
        found = json.loads((checks.folder / f"start{i}.json").read_text())
        checks.require(found["weights_hash"] == expected and found["steps"] == 1, f"{path}: other weights, or steps counted on")
    # The average, by either way
    hashes = []
    for i, source in enumerate(("load_from={path: average/checkpoints, which: ema}", "load_from=average.pt")):
        checks.check(0, loaded, *starting("")[:-2], source, MLP, "--json", f"average{i}.json")
        hashes.append(json.loads((checks.folder / f"average{i}.json").read_text())["weights_hash"])
    checks.require(hashes[0] == hashes[1] != expected, f"the average: {hashes}")
    # In graph mode too, and an average that a hook keeps begins with what was loaded
    checks.check(0, loaded, *starting("mlp.pt", MLP, "--mode", "graph", "--json", "graph.json"))
    found = json.loads((checks.folder / "graph.json").read_text())["weights_hash"]
    checks.require(found == expected, "graph mode starts from other weights")
    checks.check(0, loaded, *starting("mlp.pt", MLP, "custom_hooks=[{type: EMAHook}]", "work_dir=average_of_loaded"))
    checks.check(0, r"wrote 4 tensors", "export", "average_of_loaded/checkpoints", "again.pt", "--weights", "ema")
    checks.require((checks.folder / "again.pt").read_bytes() == (checks.folder / "mlp.pt").read_bytes(),
                   "an average of loaded weights that did not change is not these weights")
    # What fits, with a report
    checks.later(0, r"6 of 8 tensors\n  of another shape or type, not loaded: head\.weight .*, head\.bias \(Float\[10\] there, "
                    r"Float\[5\] in the model\)", *starting("good.pt", "data={}", "model.num_classes=5",
                                                        "data.train={type: FashionMnist, images: data/images, labels: data/five}",
                                                        "evaluator=[]"))
    # A resumed run goes on where it was.
    checks.check(0, r"loaded weights", "train", "base.yaml", "work_dir=again", "--resume", "auto", "--load-from", "good.pt")
    checks.check(0, r"resumed from '[^']*step-4'.*load_from is not used, .*'good\.pt'", "train", "base.yaml", "work_dir=again",
                 "trainer.max_steps=6", "--resume", "auto", "--load-from", "good.pt")


def repack(source, target, changed):
    """The .pt file with other contents, CRCs right."""
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(target, "w") as new:
        for item in old.infolist():
            content = old.read(item)
            new.writestr(zipfile.ZipInfo(item.filename), changed.get(item.filename.split("/", 1)[1], lambda x: x)(content))


def flipped(content, at):
    return content[:at] + bytes([content[at] ^ 16]) + content[at + 1:]


def safetensors(header, data):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def damaged_files(folder):
    """name -> (content, what the message says)."""
    whole = (folder / "good.pt").read_bytes()
    with zipfile.ZipFile(folder / "good.pt") as archive:
        place = {item.filename: item.header_offset for item in archive.infolist()}
    tensors = (folder / "good.safetensors").read_bytes()
    four = {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}
    return {
        "empty.pt": (b"", "it is empty"),
        "text.pt": (b"these are no weights\n", "does not begin as a ZIP"),
        "picture.pth": (b"\x89PNG\r\n\x1a\n" + bytes(100), "does not begin as a ZIP"),
        "cut_early.pt": (whole[:len(whole) // 10], "no ZIP directory at its end"),
        "cut_half.pt": (whole[:len(whole) // 2], "no ZIP directory at its end"),
        "cut_late.pt": (whole[:-1], "no ZIP directory at its end"),
        "flipped_tensor.pt": (flipped(whole, (place["archive/data/2"] + 127) // 64 * 64 + 3), r"entry 'archive/data/2' changed.*CRC"),
        "flipped_pickle.pt": (flipped(whole, 64 + 30), r"entry 'archive/data\.pkl' changed.*CRC"),
        "flipped_name.pt": (flipped(whole, whole.rindex(b"archive/data/1") + 13), r"(data/1|data/!)"),
        "flipped_end.pt": (flipped(whole, len(whole) - 4), "ZIP directory"),
        "zeros.pt": (whole[:64] + bytes(4096) + whole[64 + 4096:], "(CRC|ZIP)"),
        "safetensors_inside.pt": (tensors, r"give it the name \*\.safetensors"),
        "empty.safetensors": (b"", "has 0 bytes"),
        "cut.safetensors": (tensors[:-10], "(data bytes|beyond)"),
        "cut_header.safetensors": (tensors[:50], "header"),
        "long.safetensors": (tensors + b"x", "data bytes but the file has"),
        "pt_inside.safetensors": (whole, "header"),
        "hole.safetensors": (safetensors({"a": four, "b": {**four, "data_offsets": [20, 36]}}, bytes(36)), "'b'"),
        "overlap.safetensors": (safetensors({"a": four, "b": {**four, "data_offsets": [8, 24]}}, bytes(24)), "'b'"),
        "twice.safetensors": (safetensors(b'{"a":{"dtype":"F32","shape":[4],"data_offsets":[0,16]},"a":{"dtype":"F32",'
                                          b'"shape":[4],"data_offsets":[0,16]}}', bytes(16)), "'a'"),
        "dtype.safetensors": (safetensors({"a": {**four, "dtype": "F8_E4M3"}}, bytes(16)), "F8_E4M3"),
        "shape.safetensors": (safetensors({"a": {**four, "shape": [5]}}, bytes(16)), "'a'"),
        "huge_header.safetensors": (struct.pack("<Q", 1 << 40) + b"{}", "100 MB"),
        "no_json.safetensors": (safetensors(b"{'a': 1}", b""), "(JSON|header)"),
        "integers.safetensors": (safetensors({"norm1.bias": {"dtype": "I32", "shape": [4], "data_offsets": [0, 16]}}, bytes(16)),
                                 r"none of them fits .*norm1\.bias \(Int\[4\] there, Float\[4\] in the model\)"),
        "other_names.safetensors": (safetensors({"stem.bias": four}, bytes(16)),
                                    r"missing there: conv1\.weight, .*unknown to the model: stem\.bias.*set prefix or revise_keys"),
    }


def check_files(checks):
    for name, (content, pattern) in damaged_files(checks.folder).items():
        (checks.folder / name).write_bytes(content)
        checks.later(CHECKPOINT, rf"{name}.*{pattern}", *starting(name))
        if not name.startswith(("integers", "other_names")):  # these are wrong for a model alone
            checks.later(CHECKPOINT, rf"{name}.*{pattern}", "export", name, "out.pt")
    for name, pattern in (
            ("forbidden.pt", r"asks for 'posix\.system'.*nothing of it was run.*torch\.save\(model\.state_dict"),
            ("legacy.pt", r"before PyTorch 1\.6.*save it again"), ("script.pt", r"TorchScript program.*type: torchscript"),
            ("complex.pt", r"ComplexFloatStorage.*view_as_real"), ("sparse.pt", "_rebuild_sparse_tensor"),
            ("uint16.pt", "_rebuild_tensor_v3"), ("list.pt", "no dictionary of tensors"), ("compressed.pt", "compressed"),
            ("big_endian.pt", "big-endian"), ("no_pickle.pt", r"without the entry data\.pkl"),
            ("numpy_beside.pt", "'score' is something that only Python can hold"),
            ("wrapped.pt", r"none of them fits.*unknown to the model: bias, weight")):
        shutil.copy(PT_FILES / name, checks.folder / name)
        checks.later(CHECKPOINT, rf"{name}.*{pattern}", *starting(name))
    # Pickles with right CRCs
    rules = {
        "shape.pt": (lambda text: text.replace(b"K\x04", b"K\x05"), r"(does not fit into its storage|expected 5 elements)"),
        "opcode.pt": (lambda text: text[:2] + b"\xfe" + text[2:], "opcode 254"),
        "short.pt": (lambda text: text[:-20], "ends in the middle"),
        "deep.pt": (lambda text: b"\x80\x02}X\1\0\0\0a" + b"]" * 5000 + b"a" * 4999 + b"s.", "nested too deeply"),
    }
    for name, (change, pattern) in rules.items():
        repack(checks.folder / "good.pt", checks.folder / name, {"data.pkl": change})
        checks.later(CHECKPOINT, rf"{name}.*{pattern}", *starting(name))
    repack(checks.folder / "good.pt", checks.folder / "short_storage.pt", {"data/1": lambda content: content[:-4]})
    checks.later(CHECKPOINT, r"short_storage\.pt.*'archive/data/1' has \d+ bytes, expected", *starting("short_storage.pt"))
    checks.wait()


def check_paths(checks):
    for name in ("nowhere.pt", "nowhere.safetensors", "nowhere/step-4", "good.pt/inside"):
        checks.later(CHECKPOINT, rf"'{name}': .*name a checkpoint folder, a safetensors file or a file of torch\.save", *starting(name))
    (checks.folder / "nothing").mkdir()
    for name in ("nothing", "data"):
        checks.later(CHECKPOINT, rf"'{name}' holds neither manifest\.json nor folders step-N", *starting(name))
    checks.later(CHECKPOINT, r"not a regular file.*'/dev/null'", *starting("/dev/null"))
    if os.geteuid() == 0:
        print("skipped: files without the right to read (this is root)")
        return
    (checks.folder / "locked.pt").write_bytes(b"PK\3\4")
    (checks.folder / "locked.pt").chmod(0)
    checks.later(CHECKPOINT, r"locked\.pt.*Permission denied", *starting("locked.pt"))
    shutil.copytree(checks.folder / "good" / "checkpoints" / "step-4", checks.folder / "locked" / "step-4")
    (checks.folder / "locked" / "step-4").chmod(0)
    checks.later(CHECKPOINT, r"step-4.*Permission denied", *starting("locked/step-4"))


def check_folders(checks):
    good = checks.folder / "good" / "checkpoints" / "step-4"

    def copy(name):
        shutil.copytree(good, checks.folder / name / "step-4")
        return checks.folder / name / "step-4"

    path = copy("no_manifest")
    (path / "manifest.json").unlink()
    checks.later(CHECKPOINT, r"'no_manifest/step-4' holds neither manifest\.json", *starting("no_manifest/step-4"))
    path = copy("flipped")
    content = (path / "model.safetensors").read_bytes()
    (path / "model.safetensors").write_bytes(flipped(content, len(content) - 5))
    pattern = r"model\.safetensors': tensor 'model\.[\w.]+' changed after it was saved"
    checks.later(CHECKPOINT, pattern, *starting("flipped/step-4"))
    checks.later(CHECKPOINT, pattern + r".*none of the 1 checkpoints", *starting("flipped"))
    checks.later(CHECKPOINT, pattern, "export", "flipped/step-4", "out.pt")
    # Single files carry no hash of ours: a weight in them may be wrong unseen, its header may not.
    path = copy("swapped")
    shutil.copy(good.parent / "step-2" / "model.safetensors", path / "model.safetensors")
    checks.later(CHECKPOINT, r"model\.safetensors'.*changed after it was saved", *starting("swapped/step-4"))
    path = copy("no_model")
    (path / "model.safetensors").unlink()
    checks.later(CHECKPOINT, r"model\.safetensors.*No such file", *starting("no_model/step-4"))
    checks.wait()


def check_choices(checks):
    strict = "load_from={path: %s, strict: true}"

    def start():  # a work_dir for each: several run at once
        return starting("")[:-2]

    checks.check(0, r"8 of 8 tensors", *start(), strict % "good.pt")
    content = (checks.folder / "mlp.safetensors").read_bytes()
    (checks.folder / "nan.safetensors").write_bytes(content[:-4] + b"\x00\x00\xc0\x7f")
    checks.later(DIVERGED, r"warning \[load_from\] 'nan\.safetensors': found NaN in the weight '[\w.]+', expected",
                 *starting("nan.safetensors", MLP))
    other = r"do not fit the model exactly: 2 of 8 tensors.*conv1\.weight \(Float\[4, 1, 3, 3\] there, Float\[8, 1, 3, 3\] in the model\)"
    checks.later(CHECKPOINT, other, *start(), strict % "good.pt", "model.channels=[8]")
    checks.later(CHECKPOINT, r"none of them fits the model.*missing there: tokens\.weight.*unknown to the model: conv1\.weight",
                 *starting("good.pt", "model={type: Gpt, n_layer: 1, n_head: 1, n_embd: 8, context: 8}", "evaluator=null", TEXT % ""))
    checks.later(CHECKPOINT, r"'swa', expected 'model' or one of its averages: 'ema'", *start(),
                 "load_from={path: average/checkpoints, which: swa}")
    checks.later(CHECKPOINT, r"'ema', expected 'model' or one of its averages: none", "export", "good/checkpoints", "x.pt",
                 "--weights", "ema")
    checks.later(CHECKPOINT, r"key 'ema', expected 'model' or one of: none", *start(), "load_from={path: good.pt, which: ema}")
    checks.later(CHECKPOINT, r"one set of weights, expected one called 'ema'", *start(),
                 "load_from={path: good.safetensors, which: ema}")
    checks.later(CHECKPOINT, r"no name begins with 'backbone\.', expected one of: 'conv1', 'head', 'norm1'", *start(),
                 "load_from={path: good.pt, prefix: backbone}")
    checks.later(CHECKPOINT, r"both become 'x\.", *start(), "load_from={path: good.pt, revise_keys: {'^\\w+': x}}")
    checks.later(CONFIG, r"revise_keys has '\(', expected a regular expression", *start(),
                 "load_from={path: good.pt, revise_keys: {'(': x}}")
    checks.later(CONFIG, r"load_from\.revise_keys .*expected a map", *start(), "load_from={path: good.pt, revise_keys: [a, b]}")
    checks.later(CONFIG, r"unknown key 'strikt' in load_from; .*did you mean 'strict'", *start(),
                 "load_from={path: good.pt, strikt: true}")
    checks.later(CONFIG, r"load_from\.path", *start(), "load_from={strict: true}")
    checks.later(CONFIG, r"load_from .*names no file", *start(), "load_from=''")
    checks.later(CONFIG, r"load_from is a list", *start(), "load_from=[good.pt]")
    checks.later(CONFIG, r"'out\.h5', expected one that ends with \.safetensors, \.pt", "export", "good.pt", "out.h5")
    checks.later(CHECKPOINT, r"nowhere/out\.pt.*No such file", "export", "good.pt", "nowhere/out.pt")
    checks.later(CHECKPOINT, r"cannot rename.*folder\.pt", "export", "good.pt", "folder.pt")
    checks.wait()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("--only", default="", help="only the cases whose arguments contain this")
    options = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        cases.write_data(folder / "data")
        (folder / "data" / "five").write_bytes(cases.idx(8, [64], bytes(i % 5 for i in range(64))))
        (folder / "base.yaml").write_text(cases.BASE, encoding="utf-8")
        (folder / "folder.pt" / "inside").mkdir(parents=True)
        checks = Checks(os.path.abspath(options.program), folder, options.only)
        make_good(checks)
        check_good(checks)
        check_files(checks)
        check_paths(checks)
        check_folders(checks)
        check_choices(checks)
    for failure in checks.failures:
        print(f"FAILED: {failure}\n")
    if checks.failures:
        sys.exit(f"{len(checks.failures)} of {checks.count} checks failed")
    print(f"{checks.count} checks passed")


if __name__ == "__main__":
    main()
