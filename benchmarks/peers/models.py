"""The models of benchmarks/cases.cpp, layer by layer, in PyTorch's Python: forward(inputs, target) gives the loss."""

import torch
from torch import nn
from torch.nn import functional as F


class Mlp(nn.Module):
    def __init__(self, sizes):
        super().__init__()
        layers = []
        for inputs, outputs in zip(sizes, sizes[1:]):
            layers += [nn.Linear(inputs, outputs), nn.ReLU()]
        self.layers = nn.Sequential(*layers[:-1])

    def forward(self, inputs, target):
        return F.cross_entropy(self.layers(inputs), target)


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def attention(self, x):
        samples, length, width = x.shape
        q, k, v = (part.view(samples, length, self.heads, width // self.heads).transpose(1, 2)
                   for part in self.qkv(x).split(width, 2))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(mixed.transpose(1, 2).reshape(samples, length, width))

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))


class Gpt(nn.Module):
    def __init__(self, context, width, layers, vocabulary=65, heads=4):
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(context, width)
        self.blocks = nn.Sequential(*[Block(width, heads) for _ in range(layers)])
        self.norm = nn.LayerNorm(width)
        for embedding in (self.tokens, self.positions):
            nn.init.normal_(embedding.weight, std=0.02)

    def forward(self, inputs, target):
        places = torch.arange(inputs.shape[1], device=inputs.device)
        x = self.blocks(self.tokens(inputs) + self.positions(places))
        logits = F.linear(self.norm(x), self.tokens.weight)
        return F.cross_entropy(logits.flatten(0, 1), target.flatten())


class SmallCnn(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 16, 3, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(16)
        self.conv2 = nn.Conv2d(16, 32, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(32)
        self.dropout = nn.Dropout(0.1)
        self.head = nn.Linear(32 * 7 * 7, 10)

    def forward(self, inputs, target):
        x = F.max_pool2d(F.relu(self.norm1(self.conv1(inputs))), 2)
        x = F.max_pool2d(F.relu(self.norm2(self.conv2(x))), 2)
        return F.cross_entropy(self.head(self.dropout(x.flatten(1))), target)


def images(batch, *shape):
    return torch.randn(batch, *shape), torch.randint(10, (batch,))


def characters(batch, length):
    return torch.randint(65, (batch, length)), torch.randint(65, (batch, length))


# name -> (module, one batch)
CASES = {
    "MLP 64-64-10, batch 8": lambda: (Mlp([64, 64, 10]), images(8, 64)),
    "MLP 784-128-128-10, batch 64": lambda: (Mlp([784, 128, 128, 10]), images(64, 784)),
    "GPT d64 L2, 1x32": lambda: (Gpt(context=32, width=64, layers=2), characters(1, 32)),
    "GPT d64 L2, 8x32": lambda: (Gpt(context=32, width=64, layers=2), characters(8, 32)),
    "GPT d128 L4, 16x64": lambda: (Gpt(context=64, width=128, layers=4), characters(16, 64)),
    "CNN 28x28, batch 64": lambda: (SmallCnn(), images(64, 1, 28, 28)),
}
