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

    def forward(self, inputs, target=None):
        logits = self.layers(inputs)
        return logits if target is None else F.cross_entropy(logits, target)


class Layer(nn.Module):
    """Norms come first (GPT, ViT), or last and with dropout (BERT)."""

    def __init__(self, width, norm_first, causal=False, gelu="none", heads=4):
        super().__init__()
        self.heads, self.norm_first, self.causal, self.gelu = heads, norm_first, causal, gelu
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.norm1 = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)
        self.norm2 = nn.LayerNorm(width)

    def attention(self, x):
        samples, length, width = x.shape
        q, k, v = (part.view(samples, length, self.heads, width // self.heads).transpose(1, 2)
                   for part in self.qkv(x).split(width, 2))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        return self.out(mixed.transpose(1, 2).reshape(samples, length, width))

    def mlp(self, x):
        return self.down(F.gelu(self.up(x), approximate=self.gelu))

    def forward(self, x):
        if self.norm_first:
            x = x + self.attention(self.norm1(x))
            return x + self.mlp(self.norm2(x))
        x = self.norm1(x + F.dropout(self.attention(x), 0.1, self.training))
        return self.norm2(x + F.dropout(self.mlp(x), 0.1, self.training))


class Gpt(nn.Module):
    def __init__(self, context, width, layers, vocabulary=65, heads=4):
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(context, width)
        self.blocks = nn.Sequential(*[Layer(width, True, causal=True, gelu="tanh", heads=heads) for _ in range(layers)])
        self.norm = nn.LayerNorm(width)
        for embedding in (self.tokens, self.positions):
            nn.init.normal_(embedding.weight, std=0.02)

    def forward(self, inputs, target=None):
        places = torch.arange(inputs.shape[1], device=inputs.device)
        x = self.blocks(self.tokens(inputs) + self.positions(places))
        logits = F.linear(self.norm(x), self.tokens.weight)
        return logits if target is None else F.cross_entropy(logits.flatten(0, 1), target.flatten())


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


class Lstm(nn.Module):
    def __init__(self, width, vocabulary=65):
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.lstm = nn.LSTM(width, width, batch_first=True)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, inputs, target):
        return F.cross_entropy(self.head(self.lstm(self.tokens(inputs))[0]).flatten(0, 1), target.flatten())


class Vit(nn.Module):
    def __init__(self, width, layers, patch=4, patches=64):
        super().__init__()
        self.patches = nn.Conv2d(3, width, patch, stride=patch)
        self.cls = nn.Parameter(torch.zeros(1, 1, width))
        self.positions = nn.Parameter(0.02 * torch.randn(1, patches + 1, width))
        self.layers = nn.Sequential(*[Layer(width, norm_first=True) for _ in range(layers)])
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, 10)

    def forward(self, inputs, target):
        x = self.patches(inputs).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls.expand(len(x), -1, -1), x], 1) + self.positions
        return F.cross_entropy(self.head(self.norm(self.layers(x))[:, 0]), target)


class Bert(nn.Module):
    def __init__(self, width, layers, vocabulary=1000, context=64):
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(context, width)
        self.norm = nn.LayerNorm(width)
        self.layers = nn.Sequential(*[Layer(width, norm_first=False) for _ in range(layers)])
        self.head = nn.Linear(width, vocabulary)

    def forward(self, inputs, target):
        places = torch.arange(inputs.shape[1], device=inputs.device)
        x = self.norm(self.tokens(inputs) + self.positions(places))
        logits = self.head(self.layers(F.dropout(x, 0.1, self.training)))
        return F.cross_entropy(logits.flatten(0, 1), target.flatten())


def conv(inputs, outputs, kernel, stride=1):
    return nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, bias=False)


class Residual(nn.Module):
    def __init__(self, inputs, outputs, stride):
        super().__init__()
        self.conv1, self.norm1 = conv(inputs, outputs, 3, stride), nn.BatchNorm2d(outputs)
        self.conv2, self.norm2 = conv(outputs, outputs, 3), nn.BatchNorm2d(outputs)
        self.short = stride > 1
        if self.short:
            self.conv3, self.norm3 = conv(inputs, outputs, 1, stride), nn.BatchNorm2d(outputs)

    def forward(self, x):
        y = self.norm2(self.conv2(F.relu(self.norm1(self.conv1(x)))))
        return F.relu(y + (self.norm3(self.conv3(x)) if self.short else x))


class ResNet18(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.norm = conv(3, 64, 7, 2), nn.BatchNorm2d(64)
        widths = [64, 64, 64, 128, 128, 256, 256, 512, 512]
        self.blocks = nn.Sequential(*[Residual(a, b, b // a) for a, b in zip(widths, widths[1:])])
        self.head = nn.Linear(512, 10)

    def forward(self, inputs, target):
        x = F.max_pool2d(F.relu(self.norm(self.conv(inputs))), 3, 2, 1)
        return F.cross_entropy(self.head(self.blocks(x).mean((2, 3))), target)


class Twice(nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.conv1, self.norm1 = conv(inputs, outputs, 3), nn.BatchNorm2d(outputs)
        self.conv2, self.norm2 = conv(outputs, outputs, 3), nn.BatchNorm2d(outputs)

    def forward(self, x):
        return F.relu(self.norm2(self.conv2(F.relu(self.norm1(self.conv1(x))))))


class UNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.down1, self.down2, self.middle = Twice(1, 16), Twice(16, 32), Twice(32, 64)
        self.up2, self.join2 = nn.ConvTranspose2d(64, 32, 2, 2), Twice(64, 32)
        self.up1, self.join1 = nn.ConvTranspose2d(32, 16, 2, 2), Twice(32, 16)
        self.head = nn.Conv2d(16, 10, 1)

    def forward(self, inputs, target):
        one = self.down1(inputs)
        two = self.down2(F.max_pool2d(one, 2))
        x = self.up2(self.middle(F.max_pool2d(two, 2)))
        x = self.up1(self.join2(torch.cat([two, x], 1)))
        return F.cross_entropy(self.head(self.join1(torch.cat([one, x], 1))), target)


def images(batch, *shape):
    return torch.randn(batch, *shape), torch.randint(10, (batch,))


def characters(batch, length, vocabulary=65):
    return torch.randint(vocabulary, (batch, length)), torch.randint(vocabulary, (batch, length))


# name -> (module, one batch); of "..., forward" the forward pass alone is measured, without gradients
CASES = {
    "MLP 64-64-10, batch 8": lambda: (Mlp([64, 64, 10]), images(8, 64)),
    "MLP 784-128-128-10, batch 64": lambda: (Mlp([784, 128, 128, 10]), images(64, 784)),
    "GPT d64 L2, 1x32": lambda: (Gpt(context=32, width=64, layers=2), characters(1, 32)),
    "GPT d64 L2, 8x32": lambda: (Gpt(context=32, width=64, layers=2), characters(8, 32)),
    "GPT d128 L4, 16x64": lambda: (Gpt(context=64, width=128, layers=4), characters(16, 64)),
    "CNN 28x28, batch 64": lambda: (SmallCnn(), images(64, 1, 28, 28)),
    "LSTM h64, 8x32": lambda: (Lstm(64), characters(8, 32)),
    "ViT d64 L2, 16x32x32": lambda: (Vit(64, layers=2), images(16, 3, 32, 32)),
    "BERT d128 L2, 8x64": lambda: (Bert(128, layers=2), characters(8, 64, 1000)),
    "ResNet-18, 16x32x32": lambda: (ResNet18(), images(16, 3, 32, 32)),
    "U-Net, 8x64x64": lambda: (UNet(), (torch.randn(8, 1, 64, 64), torch.randint(10, (8, 64, 64)))),
    "GPT d64 L2, 8x32, forward": lambda: (Gpt(context=32, width=64, layers=2), characters(8, 32)),
    "MLP 64-64-10, batch 1, forward": lambda: (Mlp([64, 64, 10]), images(1, 64)),
}
