"""The model of 09_exported: `model.py export FILE` writes it for C++, `model.py test FILE` tests what came back."""

import gzip
import pathlib
import sys

import torch
from torch import nn

DATA = pathlib.Path("/usr/share/datasets/fashion-mnist")


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.AdaptiveAvgPool2d(4))
        self.head = nn.Sequential(nn.Flatten(), nn.Dropout(0.2), nn.Linear(512, 10))

    def forward(self, image):
        return self.head(self.features(image))


def export(path):
    torch.manual_seed(0)
    batch = torch.export.Dim("batch", min=2, max=1024)
    program = torch.export.export(Net().train(), (torch.zeros(8, 1, 28, 28),), dynamic_shapes={"image": {0: batch}})
    torch.export.save(program, path)


def read(name, offset):
    with gzip.open(DATA / f"{name}-ubyte.gz") as file:
        return torch.frombuffer(bytearray(file.read()[offset:]), dtype=torch.uint8)


def test(path):
    model = Net()
    model.load_state_dict(torch.export.load(path).state_dict)
    images = (read("t10k-images-idx3", 16).view(-1, 1, 28, 28)[:2000] / 255 - 0.2860) / 0.3530  # as the training has them
    with torch.no_grad():
        found = model.eval()(images).argmax(1)
    print(f"accuracy {(found == read('t10k-labels-idx1', 8)[:2000]).float().mean():.4f}")


if __name__ == "__main__":
    {"export": export, "test": test}[sys.argv[1]](sys.argv[2])
