#!/usr/bin/env python3
"""Opens what the test program duet_sinks_tests wrote with TensorBoard and with wandb's reader of its run files, which check every
record's CRC, and compares it with what was logged.

usage: read_logs.py FOLDER        exit status 77 where the packages are missing
"""

import importlib
import importlib.util
import io
import json
import pathlib
import sys
import types


def need(*packages):
    missing = [name for name in packages if importlib.util.find_spec(name) is None]
    if missing:
        print(f"skipped: this Python has no {', '.join(missing)}; scripts/test installs them into .venv")
        sys.exit(77)


need("tensorboard", "google.protobuf" if importlib.util.find_spec("google") else "google", "numpy", "PIL", "wandb")

import numpy  # noqa: E402
import PIL.Image  # noqa: E402
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator  # noqa: E402


def load_wandb():
    """wandb's reader and messages. Its package as a whole wants twenty others that they do not use."""
    folder = pathlib.Path(importlib.util.find_spec("wandb").submodule_search_locations[0])
    for name in ("wandb", "wandb.sdk", "wandb.sdk.internal", "wandb.proto"):
        package = types.ModuleType(name)
        package.__path__ = [str(folder.joinpath(*name.split(".")[1:]))]
        sys.modules[name] = package
    sys.modules["wandb"]._assert_is_internal_process = True
    datastore = importlib.import_module("wandb.sdk.internal.datastore")
    return datastore.DataStore, importlib.import_module("wandb.proto.wandb_internal_pb2").Record


DataStore, Record = load_wandb()


def check(what, found, expected):
    if found != expected:
        sys.exit(f"{what}: found {found!r}, expected {expected!r}")


def bits(value):
    """A float as text, so that NaN equals NaN and 0 differs from -0."""
    return float(value).hex()


def expected_in(folder):
    return json.loads((folder / "expected.json").read_text())


# TensorBoard


def accumulated(folder):
    accumulator = EventAccumulator(str(folder), size_guidance={"scalars": 0, "tensors": 0, "images": 0, "histograms": 0})
    return accumulator.Reload()


def check_scalars(accumulator, expected):
    check("tags of scalars", set(accumulator.Tags()["scalars"]), set(expected))
    for tag, values in expected.items():
        found = [(e.step, e.wall_time, bits(e.value)) for e in accumulator.Scalars(tag)]
        with numpy.errstate(over="ignore"):
            check(tag, found, [(step, time, bits(numpy.float32(float.fromhex(value)))) for step, time, value in values])


def check_texts(accumulator, expected):
    check("tags of texts", set(accumulator.Tags()["tensors"]), set(expected))
    for tag, values in expected.items():
        check(f"plugin of {tag}", accumulator.SummaryMetadata(tag).plugin_data.plugin_name, "text")
        found = [[e.step, e.tensor_proto.string_val[0].decode()] for e in accumulator.Tensors(tag)]
        check(tag, found, values)


def check_image(accumulator, expected):
    check("tags of images", accumulator.Tags()["images"], [expected["name"]])
    (event,) = accumulator.Images(expected["name"])
    picture = PIL.Image.open(io.BytesIO(event.encoded_image_string))
    pixels = numpy.asarray(picture)
    check("mode of the image", picture.mode, "RGB")
    check("step of the image", event.step, expected["step"])
    check("shape of the image", [event.height, event.width, 3], expected["shape"])
    check("pixels of the image", pixels.tolist(), numpy.reshape(expected["pixels"], expected["shape"]).tolist())


def check_histograms(accumulator, expected):
    check("tags of histograms", set(accumulator.Tags()["histograms"]), set(expected))
    for tag, values in expected.items():
        (event,) = accumulator.Histograms(tag)
        made = event.histogram_value
        found = [event.step, made.min, made.max, made.num, made.sum, made.sum_squares, list(made.bucket_limit), list(made.bucket)]
        check(tag, found, values)


def event_files(folder):
    return sorted(folder.glob("events.out.tfevents.*"))


def check_tensorboard(root):
    run = root / "tensorboard"
    expected = expected_in(run)
    check("files of a run that went on", len(event_files(run)), 2)
    accumulator = accumulated(run)
    check("version", accumulator.file_version, 2.0)
    check_scalars(accumulator, expected["scalars"])
    check_texts(accumulator, expected["texts"])
    check_image(accumulator, expected["image"])
    check_histograms(accumulator, expected["histograms"])
    check_scalars(accumulated(root / "tensorboard_random"), expected_in(root / "tensorboard_random")["scalars"])


# wandb


def records(path):
    store = DataStore()
    store.open_for_scan(str(path))
    try:
        while (data := store.scan_data()) is not None:
            record = Record()
            record.ParseFromString(data)
            yield record
    finally:
        store.close()


def values_of(items):
    return {item.key: json.loads(item.value_json) for item in items}


def read_run(path):
    run = {"config": {}, "rows": [], "summary": {}, "lines": [], "exit_code": None, "runtime": None}
    for number, record in enumerate(records(path), 1):
        check("number of a record", record.num, number)
        kind = record.WhichOneof("record_type")
        check("first record", (number == 1) == (kind == "header"), True)
        if kind == "run":
            run.update(id=record.run.run_id, project=record.run.project, name=record.run.display_name)
            run.update(start=record.run.start_time.seconds)
            run["config"].update(values_of(record.run.config.update))
        elif kind == "config":
            run["config"].update(values_of(record.config.update))
        elif kind == "history":
            run["rows"].append(values_of(record.history.item))
            check("step of a row", record.history.step.num, run["rows"][-1]["_step"])
        elif kind == "summary":
            run["summary"].update(values_of(record.summary.update))
        elif kind == "output_raw":
            run["lines"].append(record.output_raw.line)
        elif kind == "exit":
            run.update(exit_code=record.exit.exit_code, runtime=record.exit.runtime)
        else:
            check("kind of a record", kind, "header")
    return run


def check_row(found, expected):
    for stamp in ("_timestamp", "_runtime"):
        check(f"{stamp} of a row", isinstance(found.pop(stamp), (int, float)), True)
    check("step", found.pop("_step"), expected.pop("_step"))
    check("row", {k: bits(v) for k, v in found.items()}, {k: bits(float.fromhex(v)) for k, v in expected.items()})


def check_run(found, expected):
    for key in expected.keys() - {"rows", "summary"}:
        check(f"{key} of the run", found[key], expected[key])
    for name, value in expected.get("summary", {}).items():
        check(f"{name} in the summary", found["summary"][name], value)
    check("number of rows", len(found["rows"]), len(expected["rows"]))
    for row, wanted in zip(found["rows"], expected["rows"]):
        check_row(row, wanted)


def run_files(folder):
    return sorted(folder.glob("offline-run-*/run-*.wandb"))


def check_wandb(root):
    for name in ("wandb", "wandb_random"):
        # A second run of the same second has a longer name, not always a later one.
        runs = sorted(map(read_run, run_files(root / name)), key=lambda run: run["start"])
        expected = expected_in(root / name)["runs"]
        expected = [{**run, "exit_code": 0} if run["exit_code"] is None else run for run in expected]
        check("number of runs", len(runs), len(expected))
        check("ids of runs", len({run["id"] for run in runs}), 1)
        for found, wanted in zip(runs, expected):
            check_run(found, wanted)


def main():
    root = pathlib.Path(sys.argv[1])
    check_tensorboard(root)
    check_wandb(root)
    print("TensorBoard and wandb read what was logged")


if __name__ == "__main__":
    main()
