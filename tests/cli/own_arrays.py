"""Trains on arrays whose channels come last or are missing, with masks, and by weights of samples, from a config.

usage: own_arrays.py PROGRAM
"""

import pathlib
import random
import struct
import sys
import tempfile

import own_data


def squares(folder, numbers):
    """A bright square on dark ground, which the mask calls 1: pictures uint8 [N, H, W, 3], masks uint8 [N, H, W]."""
    count, side = 32, 16
    pictures, masks = bytearray(), bytearray()
    for _ in range(count):
        x0, y0, size = numbers.randrange(8), numbers.randrange(10), numbers.randrange(4, 7)
        for y in range(side):
            for x in range(side):
                inside = x0 <= x < x0 + size and y0 <= y < y0 + size
                pictures += bytes([220, 200, 210] if inside else [20, 30, 25])
                masks.append(int(inside))
    own_data.write(folder, "pictures.npy", own_data.npy("|u1", (count, side, side, 3), bytes(pictures)))
    own_data.write(folder, "masks.npy", own_data.npy("|u1", (count, side, side), bytes(masks)))
    data = "type: Npy, arrays: {pixels: pictures.npy, mask: masks.npy}, rename: {pixels: image, mask: target}, cast: {target: int64}, batch_size: 8"
    own_data.write(folder, "squares.yaml", f"""
model: {{type: UNet, num_classes: 2, in_channels: 3, channels: [8, 16]}}
data:
  train:
    {{{data}, shuffle: true, transforms: [{{type: ChannelsFirst}}, {{type: RandomFlip}}, {{type: Crop, size: 16, padding: 2}}]}}
  val: {{{data}, transforms: [{{type: ChannelsFirst}}]}}
trainer: {{max_epochs: 20, val_interval: 20}}
optim_wrapper: {{optimizer: {{type: AdamW, lr: 0.01}}}}
evaluator: [{{type: IoUMetric, num_classes: 2}}]
""")


def grey_pictures(folder, numbers):
    """[N, H, W], told apart by their brightness; weights that leave one class out."""
    labels = [numbers.randrange(2) for _ in range(64)]
    pixels = bytes(numbers.randrange(100) + 120 * label for label in labels for _ in range(64))
    own_data.write(folder, "x.npy", own_data.npy("|u1", (64, 8, 8), pixels))
    own_data.write(folder, "y.npy", own_data.npy("<i4", (64,), struct.pack("<64i", *labels)))
    own_data.write(folder, "w.npy", own_data.npy("<f4", (64,), struct.pack("<64f", *(1.0 - label for label in labels))))
    own_data.write(folder, "grey.yaml", """
model: {type: SmallCnn, num_classes: 2, image_size: 8, channels: [4]}
data:
  train: {type: Npy, arrays: {image: x.npy, target: y.npy}, cast: {target: int64}, batch_size: 16, shuffle: true, transforms: [{type: ChannelsFirst}]}
  val: {type: Npy, arrays: {image: x.npy, target: y.npy}, cast: {target: int64}, transforms: [{type: ChannelsFirst}]}
trainer: {max_epochs: 10}
optim_wrapper: {optimizer: {type: AdamW, lr: 0.02}}
evaluator: [{type: Accuracy}]
""")


def check_weights(program):
    program.run("train", "grey.yaml", "data.train.sampler=weighted", "data.train.sample_weights=w.npy", "work_dir=runs/weighted")
    accuracy, share = program.last_validation("runs/weighted")["accuracy"], 1 - sum(
        struct.unpack("<64i", (program.folder / "y.npy").read_bytes()[-256:])) / 64
    assert abs(accuracy - share) < 1e-6, "nothing but class 0 was seen, so all is called that"


def check_mistakes(program):
    for config, code, expected, *overrides in (
            ("grey.yaml", 2, "ChannelsFirst", "data.train.transforms=[]"),
            ("grey.yaml", 2, "image uint8 [8, 8]", "data.train.transforms=[{type: RandomFlip, chance: 0}]"),
            ("squares.yaml", 2, "channels come last", "data.train.transforms=[{type: RandomFlip, chance: 0}]"),
            ("grey.yaml", 3, "rename: {<one of these>: image}", "data.train.arrays={pixels: x.npy, target: y.npy}",
             "data.train.transforms=[]"),
            ("grey.yaml", 2, "cast: {target: int64}", "data.train.cast={target: float64}"),
            ("grey.yaml", 2, "sample_weights", "data.train.sampler=weighted"),
            ("grey.yaml", 2, "expected [64]", "data.train.sampler=weighted", "data.train.sample_weights=x.npy")):
        text = program.run("train", config, "work_dir=runs/wrong", *overrides, code=code)
        assert expected in text, (overrides, text)
    text = program.run("help", "data.train.rename") + program.run("help", "ChannelsFirst")
    assert "done first" in text and "channels" in text, text


def main():
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        program = own_data.TrainProgram(sys.argv[1], folder)
        numbers = random.Random(2)
        squares(folder, numbers)
        grey_pictures(folder, numbers)
        result = program.trains_alike("squares.yaml")
        assert result["mIoU"] >= 0.8, result
        result = program.trains_alike("grey.yaml")
        assert result["accuracy"] >= 0.95, result
        check_weights(program)
        check_mistakes(program)
    print("own arrays train alike in both modes")


if __name__ == "__main__":
    main()
