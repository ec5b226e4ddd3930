"""Trains on data of one's own from a config alone: pictures in folders, masks, tables, arrays, also with channels last.

usage: own_data.py PROGRAM
"""

import json
import random
import re
import struct

from file_bytes import npy, picture
from program import Program, run_checks


class TrainProgram(Program):
    def __init__(self, path, folder):
        super().__init__(path, folder)
        numbers = random.Random(1)
        for make in (pictures, masks, tables, arrays, brightness):
            make(self.write, numbers)

    def last_validation(self, work_dir):
        return self.records(work_dir, "val")[-1]

    def trains_alike(self, config):
        """In both modes; the last validation of graph mode."""
        self.run("compare", config, "--steps", "25")
        self.run("train", config, "mode=graph", f"work_dir=runs/{config}/graph")
        return self.last_validation(f"runs/{config}/graph")


# A config that trains `model` for so long, and says how well.
CONFIG = """
model: {type: %s}
data:
  train: {%s}
  val: {%s}
trainer: {%s}
optim_wrapper: {optimizer: {type: AdamW, lr: %s}}
evaluator: [{type: %s}]
"""


def pictures(write, numbers):
    """Stripes across, stripes down, noise; of two sizes."""
    for kind in ("across", "down", "noise"):
        for i in range(40):
            width, height = (20, 18) if i % 2 else (16, 16)
            period, values = numbers.choice((3, 4)), []
            for y in range(height):
                for x in range(width):
                    level = {"across": (y // period) % 2, "down": (x // period) % 2, "noise": numbers.random()}[kind]
                    values += [int(40 + 160 * level), int(60 + 120 * level), numbers.randrange(30)]
            write(f"pictures/{kind}/{i:02}.png", picture(width, height, bytes(values)))
    crop = "{type: Crop, size: 16, padding: 1}, {type: RandomFlip}, {type: ColorJitter, brightness: 0.1}, {type: Normalize}"
    write("pictures.yaml", CONFIG % (
        "SmallCnn, num_classes: 3, in_channels: 3, image_size: 16, channels: [8, 8]",
        f"type: ImageFolder, root: pictures, split: train, batch_size: 16, shuffle: true, num_workers: 2, transforms: [{crop}]",
        "type: ImageFolder, root: pictures, split: val, batch_size: 16, transforms: [{type: Resize, size: 16}, {type: Normalize}]",
        "max_epochs: 8", 0.01, "Accuracy}, {type: ConfusionMatrix, num_classes: 3}, {type: F1, num_classes: 3, average: [none]")
        + "default_hooks: {checkpoint: {save_best: f1_noise}}\n")


SEGMENTATION = "EncoderDecoder, num_classes: 3, in_channels: 3, channels: [8, 16], depths: [1, 1], decoder_channels: 8"


def masks(write, numbers):
    """A bright square on dark ground, class 1; its left third is class 2. As files, as arrays."""
    images, labels = bytearray(), bytearray()
    for i in range(40):
        x0, y0, side = numbers.randrange(2, 12), numbers.randrange(2, 12), numbers.randrange(9, 15)
        image, mask = [], []
        for y in range(32):
            for x in range(32):
                inside = x0 <= x < x0 + side and y0 <= y < y0 + side
                left = inside and x < x0 + side // 3
                image += [200, 40, 40] if left else [220, 220, 220] if inside else [20, 20, 30]
                mask.append(2 if left else 1 if inside else 0)
        write(f"scenes/{i:02}.png", picture(32, 32, bytes(image)))
        write(f"labels/{i:02}.png", picture(32, 32, bytes(mask), 0))
        images += bytes(image)
        labels += bytes(mask)
    data = "type: ImageFolder, root: scenes, masks: labels, batch_size: 8, split: "
    write("masks.yaml", CONFIG % (
        SEGMENTATION, data + "train, shuffle: true, transforms: [{type: RandomFlip}, {type: RandomRotation, degrees: 5}]", data + "val",
        "max_steps: 240, val_interval: 120", 0.01, "IoUMetric, num_classes: 3"))
    write("pictures.npy", npy("|u1", (40, 32, 32, 3), bytes(images)))
    write("masks.npy", npy("|u1", (40, 32, 32), bytes(labels)))
    data = ("type: Npy, arrays: {pixels: pictures.npy, mask: masks.npy}, rename: {pixels: image, mask: target}, cast: {target: int64}, "
            "batch_size: 8, transforms: [{type: ChannelsFirst}")
    write("squares.yaml", CONFIG % (
        SEGMENTATION, data + ", {type: RandomFlip}, {type: Crop, size: 32, padding: 2}], shuffle: true", data + "]",
        "max_epochs: 48, val_interval: 240", 0.01, "IoUMetric, num_classes: 3"))


def tables(write, numbers):
    rows = []
    for _ in range(300):
        a, b, c = numbers.gauss(50, 10), numbers.gauss(0, 0.1), numbers.choice(("red", "green", "blue"))
        price = 3 * a - 200 * b + {"red": 0, "green": 20, "blue": -20}[c] + numbers.gauss(0, 1)
        rows.append((a, b, c, price, "dear" if price > 150 else "cheap"))
    text = "a,b,colour,price,kind\n" + "".join(f"{a:.5f},{b:.5f},{c},{p:.5f},{k}\n" for a, b, c, p, k in rows)
    write("table.csv", text)
    for name, target, model, metric in (("regression", "price", "num_classes: 1, loss: mse", "R2Score"),
                                        ("classification", "kind", "num_classes: 2", "Accuracy")):
        data = f"type: Csv, path: table.csv, target: {target}, features: [a, b, colour], split: "
        write(f"{name}.yaml", CONFIG % (f"Mlp, in_features: 5, hidden: [16], {model}", data + "train, batch_size: 16, shuffle: true",
                                        data + "val, batch_size: 64", "max_epochs: 60, val_interval: 20, val_by_epoch: true", 0.02, metric))


SMALL_CNN = "SmallCnn, num_classes: 2, image_size: 8, channels: [4]"


def arrays(write, numbers):
    labels = [numbers.randrange(2) for _ in range(64)]
    pixels = bytes(numbers.randrange(100) + 120 * label for label in labels for _ in range(64))
    write("x.npy", npy("|u1", (64, 1, 8, 8), pixels))
    write("y.npy", npy("<i4", (64,), struct.pack("<64i", *labels)))
    data = "type: Npy, arrays: {pixels: x.npy, y: y.npy}, rename: {pixels: image, y: target}, cast: {target: int64}, batch_size: 16"
    write("arrays.yaml", CONFIG % (SMALL_CNN, data + ", shuffle: true", data, "max_epochs: 10", 0.02, "Accuracy"))
    # The same as [N, H, W].
    write("grey.npy", npy("|u1", (64, 8, 8), pixels))
    write("w.npy", npy("<f4", (64,), struct.pack("<64f", *(1.0 - label for label in labels))))  # one class is left out
    data = "type: Npy, arrays: {image: grey.npy, target: y.npy}, cast: {target: int64}, batch_size: 16, transforms: [{type: ChannelsFirst}]"
    write("grey.yaml", CONFIG % (SMALL_CNN, data + ", shuffle: true", data, "max_epochs: 10", 0.02, "Accuracy"))


def brightness(write, numbers):
    """Pictures whose brightness is a number to predict."""
    rows = []
    for i in range(80):
        level = numbers.randrange(200)
        write(f"levels/{i:02}.png", picture(4, 4, bytes(level + numbers.randrange(9) for _ in range(48))))
        rows.append(f"{i:02}.png,{level / 100 - 1}\n")
    write("levels.csv", "image,target\n" + "".join(rows))
    data = "type: ImageFolder, root: levels, manifest: levels.csv, task: regression, batch_size: 16, split: "
    write("levels.yaml", CONFIG % ("Mlp, in_features: 48, hidden: [16], num_classes: 1, loss: mse", data + "train", data + "val",
                                   "max_epochs: 20", 0.01, "R2Score"))


def check_parts_and_samplers(program):
    """Datasets of datasets, samplers, frozen modules: in both modes."""
    arrays = "{type: Npy, arrays: {image: x.npy, target: y.npy}, cast: {target: int64}}"
    halves = [f"{{type: Subset, dataset: {arrays}, split: {split}, val_fraction: 0.5}}" for split in ("train", "val")]
    whole = f"{{type: Repeat, times: 2, dataset: {{type: Concat, datasets: [{', '.join(halves)}]}}}}"
    for sampler, steps in (("default", 8), ("{type: class_balanced}, samples_per_epoch: 48", 3),
                           ("weighted, class_weights: [1, 2]", 8), ("infinite", 20)):
        train = f"data.train={{type: Subset, dataset: {whole}, sampler: {sampler}, batch_size: 16, shuffle: true}}"
        limit = "trainer={max_steps: 20}" if sampler == "infinite" else "trainer={max_epochs: 1}"
        name = f"runs/{len(sampler)}"
        program.run("compare", "arrays.yaml", "--steps", "10", train, limit, "work_dir=runs/c")
        text = program.run("train", "arrays.yaml", "mode=graph", f"work_dir={name}", train, limit, "freeze=conv1")
        assert f"finished after {steps} steps" in text and "36  frozen" in text, text


def predictions(program, config, *arguments):
    program.run("predict", config, "custom_hooks=[{type: PredictionWriterHook, format: jsonl}]", "--output", "out", *arguments)
    return [json.loads(line) for line in (program.folder / "out/predictions.jsonl").read_text().splitlines()]


def check_new_pictures(program):
    """Pictures without class folders are predicted under the names of the classes trained on, whatever became of the folders."""
    run, folder = "work_dir=runs/pictures.yaml/graph", program.folder
    for kind in ("across", "down", "noise"):
        for i in range(4):
            program.write(f"new/{kind}{i}.png", (folder / f"pictures/{kind}/{i:02}.png").read_bytes())
    new = "data.predict={type: ImageFolder, root: new, transforms: [{type: Resize, size: 16}, {type: Normalize}]}"
    lines = predictions(program, "pictures.yaml", run, new)
    right = [line for line in lines if line["name"].startswith(line["class_name"])]
    assert len(lines) == 12 and len(right) >= 10, lines
    assert all(("across", "down", "noise")[line["class"]] == line["class_name"] for line in lines), lines
    assert all(1 / 3 < line["probability"] <= 1 for line in lines), lines
    text = program.run("eval", "pictures.yaml", run, "data.val={type: ImageFolder, root: new}", code=3)
    assert "has no folders, expected one for each class" in text, text
    text = program.run("train", "pictures.yaml", "work_dir=runs/w", "data.train.root=new", code=3)
    assert "has no folders, expected one for each class" in text, text
    # The folder of a class has gone: its number stays its own, in training data and in those of a test.
    (folder / "pictures/across").rename(folder / "across")
    assert predictions(program, "pictures.yaml", run, new) == lines
    test = "data.val={type: ImageFolder, root: pictures, transforms: [{type: Resize, size: 16}, {type: Normalize}]}"
    metrics = program.json("eval", "pictures.yaml", run, test)["metrics"]
    assert metrics["accuracy"] >= 0.9 and metrics["f1_noise"] > 0.8 and metrics["f1_across"] in (None, 0, "nan"), metrics
    text = program.run("train", "pictures.yaml", "--resume", "runs/pictures.yaml/graph", "work_dir=runs/w",
                       "default_hooks.checkpoint.save_best=accuracy", code=2)
    assert "found the classes down, noise, expected across, down, noise, which the checkpoint was trained with" in text, text
    resume = ("train", "pictures.yaml", "--resume", "runs/pictures.yaml/graph", "work_dir=runs/w")
    (folder / "across").rename(folder / "pictures/across")
    program.run(*resume)
    # Another one has come: what the errors advise works.
    program.write("pictures/zigzag/0.png", (folder / "pictures/noise/00.png").read_bytes())
    text = program.run("predict", "pictures.yaml", run, new, code=3)
    assert "found the class 'zigzag'" in text and "the trained classes: across, down, noise; move it away" in text, text
    text = program.run(*resume, code=2)
    assert "or train anew on what there is, from the weights by load_from" in text, text
    program.run("train", "pictures.yaml", "work_dir=runs/v", "model.num_classes=4", "trainer.max_epochs=1",
                "evaluator=[{type: Accuracy}]", "default_hooks.checkpoint.save_best=auto",
                "load_from={path: runs/pictures.yaml/graph, strict: false}")
    (folder / "pictures/zigzag").rename(folder / "zigzag")
    program.run(*resume)
    text = program.run("eval", "pictures.yaml", run, "data.train.classes=[down, across, noise]", code=2)
    assert "which the checkpoint was trained with; make them these (classes: [across, down, noise]" in text, text


def check_class_names(program):
    """Metrics, logs and reports call classes as the data does."""
    run = program.folder / "runs/pictures.yaml/graph"
    assert "f1_noise" in program.last_validation("runs/pictures.yaml/graph")
    log = (run / "log.jsonl").read_text()
    assert "target \\\\ predicted  across  down  noise" in log, log[-2000:]
    config = (run / "config.yaml").read_text()
    assert "classes: [across, down, noise]" in config and "class_names: [across, down, noise]" in config, config
    program.run("report", run, "--output", "page.html")
    page = (program.folder / "page.html").read_text()
    assert "target \\\\ predicted  across  down  noise" in page


def check_tables(program):
    """Rows without a target are predicted; several targets; numbers that are categories."""
    folder, run = program.folder, "work_dir=runs/classification.yaml/graph"
    rows = (folder / "table.csv").read_text().splitlines()[1:41]
    program.write("new.csv", "colour,b,a,seen\n" + "".join("{2},{1},{0},today\n".format(*row.split(",")) for row in rows))
    for target in ("", "target: kind, "):
        lines = predictions(program, "classification.yaml", run, "data.predict={type: Csv, %spath: new.csv}" % target)
        right = [line["class_name"] == row.split(",")[4] for line, row in zip(lines, rows)]
        assert len(lines) == 40 and sum(right) >= 36 and "probability" in lines[0], lines
    lines = predictions(program, "regression.yaml", "work_dir=runs/regression.yaml/graph", "data.predict={type: Csv, path: new.csv}")
    assert abs(lines[0]["value"] - float(rows[0].split(",")[3])) < 30 and "probability" not in lines[0], lines[0]
    assert "no column 'kind'" in program.run("eval", "classification.yaml", run, "data.val={type: Csv, path: new.csv}", code=3)
    text = program.run("train", "classification.yaml", "work_dir=runs/w", "data.train.path=new.csv", code=3)
    assert "no column 'kind'" in text, text
    program.write("codes.csv", "zip,x,low,high\n" + "".join(f"{i % 3 * 100},{i % 7},{i % 3},{i % 3 + i % 7}\n" for i in range(63)))
    program.write("several.yaml", CONFIG % (
        "Mlp, in_features: 4, hidden: [16], num_classes: 2, loss: mse",
        "type: Csv, path: codes.csv, target: [low, high], categorical: [zip], split: train, batch_size: 16, shuffle: true",
        "type: Csv, path: codes.csv, split: val, batch_size: 64", "max_epochs: 80", 0.02, "R2Score"))
    result = program.trains_alike("several.yaml")
    assert result["r2"] >= 0.98, result
    program.write("others.csv", "zip,x,low,high\n200,1,1,1\n300,1,1,1\n")
    text = program.run("eval", "several.yaml", "work_dir=runs/several.yaml/graph", "data.val={type: Csv, path: others.csv}", code=3)
    assert "others.csv:3: column 'zip': found '300', expected one of the training rows' values" in text, text


# A config, the exit code, what is said, and the values that are wrong with it: what shows only where the parts of a run meet.
MISTAKES = [
    ("arrays", 2, "unknown key 'drawn' in data.train.sampler", "data.train.sampler={type: weighted, drawn: 3}"),
    ("pictures", 2, "did you mean 'f1_noise'", "default_hooks.checkpoint={save_best: f1_nose}"),
    ("pictures", 3, r"pictures.yaml:\d+: data.train: .*root is 'nowhere'", "data.train.root=nowhere"),
    ("masks", 2, r"expected at least 2 \(0 is the background\)", "model.num_classes=1"),
    ("masks", 3, r"holds class 2, expected 0 to 1 \(ground, tree\)", "data.train.classes=[ground, tree]",
     "data.val.classes=[ground, tree]"),
    ("masks", 2, "found the classes b, c, a, expected a, b, c", "data.train.classes=[a, b, c]", "data.val.classes=[b, c, a]"),
    ("levels", 2, "model.loss is mse, of numbers, but the targets of data.train are classes.*task: regression",
     "data.train.task=classification", "data.val.task=classification"),
    ("levels", 2, "num_classes is 1, of which the loss cross_entropy learns nothing", "model.loss=cross_entropy"),
    ("arrays", 2, "did you mean 'conv1'", "freeze=conf1"),
    ("grey", 2, "ChannelsFirst", "data.train.transforms=[]"),
    ("grey", 3, "rename: {<one of these>: image}", "data.train.arrays={pixels: x.npy, target: y.npy}", "data.train.transforms=[]"),
    ("grey", 2, "cast: {target: int64}", "data.train.cast={target: float64}"),
]


def check_mistakes(program):
    for config, code, expected, *overrides in MISTAKES:
        text = program.run("train", f"{config}.yaml", "work_dir=runs/wrong", *overrides, code=code)
        assert re.search(expected, text, re.DOTALL), (overrides, text)


# What the last validation must reach.
LEARNT = {"pictures": ("accuracy", 0.9), "masks": ("mIoU", 0.7), "regression": ("r2", 0.98), "classification": ("accuracy", 0.9),
          "levels": ("r2", 0.9), "arrays": ("accuracy", 0.95), "squares": ("mIoU", 0.7), "grey": ("accuracy", 0.95)}


def check_learning(program):
    for config, (metric, least) in LEARNT.items():
        result = program.trains_alike(f"{config}.yaml")
        assert result[metric] >= least, (config, result)


if __name__ == "__main__":
    run_checks(TrainProgram, check_learning, check_class_names, check_mistakes, check_new_pictures, check_tables, check_parts_and_samplers)
