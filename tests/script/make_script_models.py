"""Writes two TorchScript models, the data of 20 steps for each, and the losses that PyTorch's Python gets on them.

    python make_script_models.py FOLDER

For each NAME: FOLDER/NAME.pt (torch.jit.save) and FOLDER/NAME.safetensors with
    input.K, target.K    batch of step K
    seed                 of the default generator, set right before the first step
    loss.module          losses of the nn.Module that the script was made from
    loss.script          losses of NAME.pt, loaded back, under the executor's default settings
    loss.bf16            losses of NAME.pt under bf16 autocast, without the executor's rewrites, which cast at other places; absent
                         where this CPU has no such kernel
    weight.NAME          parameters and buffers of the nn.Module after the last step, in float32
Besides FOLDER/forks.pt and FOLDER/autocast.pt, which take x [N, 4] and have no data.

Needs nothing but torch. One thread, since sums depend on how they are split.
"""

import copy
import os
import pathlib
import sys
import warnings

import torch
from torch import nn
from torch.nn import functional

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "support"))
from safetensors_file import write_safetensors

STEPS = 20
SEED = 1234


def conv3x3(inputs, outputs, stride=1):
    return nn.Conv2d(inputs, outputs, kernel_size=3, stride=stride, padding=1, bias=False)


class BasicBlock(nn.Module):
    def __init__(self, inputs, outputs, stride=1):
        super().__init__()
        self.conv1 = conv3x3(inputs, outputs, stride)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = conv3x3(outputs, outputs)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.downsample = None
        if stride != 1 or inputs != outputs:
            self.downsample = nn.Sequential(
                nn.Conv2d(inputs, outputs, kernel_size=1, stride=stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x):
        identity = x
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        if self.downsample is not None:
            identity = self.downsample(x)
        out += identity
        return self.relu(out)


class ResNet(nn.Module):
    """Built and named as those of torchvision, with two blocks."""

    def __init__(self, num_classes):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 16, kernel_size=7, stride=2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(16)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(kernel_size=3, stride=2, padding=1)
        self.layer1 = nn.Sequential(BasicBlock(16, 16))
        self.layer2 = nn.Sequential(BasicBlock(16, 32, 2))
        self.avgpool = nn.AdaptiveAvgPool2d((1, 1))
        self.fc = nn.Linear(32, num_classes)

    def forward(self, x):
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        return self.fc(torch.flatten(self.avgpool(self.layer2(self.layer1(x))), 1))


class Attention(nn.Module):
    def __init__(self, width, heads, dropout):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.dropout = dropout

    def forward(self, x):
        batch, tokens, width = x.shape
        qkv = self.qkv(x).view(batch, tokens, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        q, k, v = qkv[0], qkv[1], qkv[2]
        weights = self.dropout(torch.softmax(q @ k.transpose(-2, -1) * (width // self.heads) ** -0.5, dim=-1))
        return self.out((weights @ v).transpose(1, 2).reshape(batch, tokens, width))


class Layer(nn.Module):
    def __init__(self, width, heads, dropout):
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attention = Attention(width, heads, dropout)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), dropout, nn.Linear(4 * width, width), dropout)

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class Vit(nn.Module):
    """`dropout` scripted keeps its `training` flag in a traced model; a plain nn.Dropout would be frozen as it is."""

    def __init__(self, num_classes, width=64, layers=2, heads=4, patch=8, side=32):
        super().__init__()
        dropout = torch.jit.script(nn.Dropout(0.1))
        self.patches = nn.Conv2d(3, width, kernel_size=patch, stride=patch)
        self.cls = nn.Parameter(torch.zeros(1, 1, width))
        self.position = nn.Parameter(0.02 * torch.randn(1, (side // patch) ** 2 + 1, width))
        self.dropout = dropout
        self.layers = nn.Sequential(*[Layer(width, heads, dropout) for _ in range(layers)])
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, num_classes)

    def forward(self, x):
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls.expand(x.shape[0], -1, -1), x], dim=1) + self.position
        return self.head(self.norm(self.layers(self.dropout(x)))[:, 0])


class Forks(nn.Module):
    """Branches that a TorchScript interpreter may run in any order, and that draw random numbers."""

    def __init__(self):
        super().__init__()
        self.left = nn.Linear(4, 3)
        self.right = nn.Linear(4, 3)

    def forward(self, x):
        left = torch.jit.fork(functional.dropout, self.left(x), 0.5)
        right = torch.jit.fork(functional.dropout, self.right(x), 0.5)
        return torch.jit.wait(left) - torch.jit.wait(right)


class Autocast(nn.Module):
    """Asks for bf16 itself."""

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 3)

    def forward(self, x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = self.fc(x)
        return y.float()


def train(model, batches, bf16=False):
    """Losses of one step per batch."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.01, fused=True)
    losses = []
    torch.manual_seed(SEED)
    model.train()
    for inputs, target in batches:
        optimizer.zero_grad()
        # As duet does it: every use of a weight is cast by itself, and the gradients of all add up in float32.
        with torch.autocast("cpu", torch.bfloat16, enabled=bf16, cache_enabled=False):
            loss = functional.cross_entropy(model(inputs), target)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return torch.tensor(losses, dtype=torch.float64)


def make(folder, name, model, shape, classes, trace):
    batches = [(torch.randn(shape), torch.randint(classes, shape[:1])) for _ in range(STEPS)]
    model.train()
    original = copy.deepcopy(model)  # before tracing, which runs the model
    if trace:
        script = torch.jit.trace(model, torch.randn(shape), check_trace=False)  # dropout: no two runs are alike
    else:
        script = torch.jit.script(model)
    path = os.path.join(folder, name + ".pt")
    torch.jit.save(script, path)

    tensors = {"loss.module": train(original, batches), "loss.script": train(torch.jit.load(path), batches)}
    with torch.jit.optimized_execution(False):
        try:
            tensors["loss.bf16"] = train(torch.jit.load(path), batches, bf16=True)
        except RuntimeError as error:
            if "could not create a primitive" not in str(error):
                raise
    tensors["seed"] = torch.tensor(SEED)
    for key, value in [*original.named_parameters(), *original.named_buffers()]:
        tensors["weight." + key] = value
    for index, (inputs, target) in enumerate(batches):
        tensors[f"input.{index}"] = inputs
        tensors[f"target.{index}"] = target
    write_safetensors(os.path.join(folder, name + ".safetensors"), tensors)
    print(f"{name}: loss {tensors['loss.module'][0]:.4f} -> {tensors['loss.module'][-1]:.4f}")


def main():
    warnings.filterwarnings("ignore", category=DeprecationWarning)  # of TorchScript as such
    folder = sys.argv[1]
    os.makedirs(folder, exist_ok=True)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    make(folder, "resnet", ResNet(10), (4, 3, 32, 32), 10, trace=False)
    make(folder, "vit", Vit(10), (4, 3, 32, 32), 10, trace=True)
    torch.jit.save(torch.jit.script(Forks()), os.path.join(folder, "forks.pt"))
    torch.jit.save(torch.jit.script(Autocast()), os.path.join(folder, "autocast.pt"))


if __name__ == "__main__":
    main()
