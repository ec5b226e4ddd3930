"""mnist_pytorch.py with its step recorded and replayed by duet: the same weights, bit for bit."""

import argparse
import gzip
import time

import numpy as np
import torch
import duet
import torch.nn.functional as F
from torch import nn, optim
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import DataLoader, TensorDataset


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 32, 3)
        self.conv2 = nn.Conv2d(32, 64, 3)
        self.dropout1 = nn.Dropout(0.25)
        self.dropout2 = nn.Dropout(0.5)
        self.fc1 = nn.Linear(9216, 128)
        self.fc2 = nn.Linear(128, 10)

    def forward(self, x):
        x = F.relu(self.conv1(x))
        x = F.relu(self.conv2(x))
        x = self.dropout1(F.max_pool2d(x, 2))
        x = self.dropout2(F.relu(self.fc1(torch.flatten(x, 1))))
        return F.log_softmax(self.fc2(x), dim=1)


def read_idx(path, header, shape):
    with gzip.open(path) as file:
        return torch.from_numpy(np.frombuffer(file.read(), np.uint8, offset=header).reshape(shape).copy())


def fashion_mnist(folder, part):
    images = read_idx(f"{folder}/{part}-images-idx3-ubyte.gz", 16, (-1, 1, 28, 28)).float() / 255
    return TensorDataset((images - 0.2860) / 0.3530, read_idx(f"{folder}/{part}-labels-idx1-ubyte.gz", 8, -1).long())


def train(model, loader, step, limit):
    model.train()
    for index, (data, target) in enumerate(loader):
        if index == limit:
            break
        loss = step((data, target))
        if index % 100 == 0:
            print(f"batch {index}  loss {loss.item():.6f}")


def test(model, loader):
    model.eval()
    with torch.no_grad():
        correct = sum((model(data).argmax(1) == target).sum().item() for data, target in loader)
    print(f"accuracy {correct / len(loader.dataset):.4f}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", default="/usr/share/datasets/fashion-mnist")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--limit", type=int, default=-1, help="batches per epoch; -1: all")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--save", help="file for the weights")
    args = parser.parse_args()
    torch.manual_seed(1)
    torch.set_num_threads(args.threads)
    train_loader = DataLoader(fashion_mnist(args.data, "train"), batch_size=64, shuffle=True)
    test_loader = DataLoader(fashion_mnist(args.data, "t10k"), batch_size=1000)
    model = Net()
    optimizer = optim.Adadelta(model.parameters(), lr=1.0)
    step = duet.graph_step(model, lambda model, batch: F.nll_loss(model(batch[0]), batch[1]), optimizer)
    scheduler = StepLR(optimizer, step_size=1, gamma=0.7)
    for epoch in range(args.epochs):
        begin = time.perf_counter()
        train(model, train_loader, step, args.limit)
        print(f"epoch {epoch}  {time.perf_counter() - begin:.2f} s")
        test(model, test_loader)
        scheduler.step()
    if args.save:
        torch.save(model.state_dict(), args.save)


if __name__ == "__main__":
    main()
