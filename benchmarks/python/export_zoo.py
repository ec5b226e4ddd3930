"""Models beside zoo.py's for what else a graph of torch.export may hold: each op or form at least once.

A loss is zoo.py's, or "cross_entropy" (logits [N, C], or [N, T, C] with labels [N, T]), "mse" or "none" (in the model).
"""

import functools
import operator

import torch
from torch import nn
from torch.nn import functional as F

import zoo

N, T, C = 4, 16, 32


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.qkv, self.out = nn.LayerNorm(C), nn.Linear(C, 3 * C), nn.Linear(C, C)
        self.mlp = nn.Sequential(nn.LayerNorm(C), nn.Linear(C, 64), nn.GELU("tanh"), nn.Linear(64, C), nn.Dropout(0.1))

    def forward(self, x):
        q, k, v = (part.unflatten(-1, (4, 8)).transpose(1, 2) for part in self.qkv(self.norm(x)).chunk(3, -1))
        p = 0.1 if self.training else 0.0
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=p)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        return x + self.mlp(x)


class Decoder(nn.Module):
    """Tied weights, positions in a buffer that is not persistent."""

    def __init__(self):
        super().__init__()
        self.words, self.places = nn.Embedding(zoo.WORDS, C), nn.Embedding(64, C)
        self.blocks = nn.Sequential(Block(), Block())
        self.head = nn.Linear(C, zoo.WORDS, bias=False)
        self.head.weight = self.words.weight
        self.register_buffer("position", torch.arange(64), persistent=False)

    def forward(self, words):
        return self.head(self.blocks(self.words(words) + self.places(self.position[: words.shape[1]])))


class Tagger(nn.Module):
    """Two directions, projections; states made from the batch's size."""

    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(zoo.WORDS, C, padding_idx=0)
        self.cells = nn.LSTM(C, 16, 2, batch_first=True, bidirectional=True, proj_size=8, dropout=0.1)
        self.head = nn.Linear(16, zoo.WORDS)

    def forward(self, words):
        state = torch.zeros(4, words.shape[0], 8), torch.zeros(4, words.shape[0], 16)
        return self.head(self.cells(self.words(words), state)[0])


class Cells(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm, self.gru, self.head = nn.LSTMCell(C, C), nn.GRUCell(C, C), nn.Linear(C, zoo.CLASSES)

    def forward(self, x):
        h = c = g = x.new_zeros(x.shape[0], C)
        for one in x.unbind(1):
            h, c = self.lstm(one, (h, c))
            g = self.gru(h, g)
        return self.head(g)


class Autoencoder(nn.Module):
    """Transposed convolutions, norms of groups and instances, noise."""

    def __init__(self):
        super().__init__()
        self.down = nn.Sequential(nn.Conv2d(3, 16, 3, 2, 1), nn.GroupNorm(4, 16), nn.RReLU(), nn.Conv2d(16, 16, 3, 2, 1, groups=4), nn.InstanceNorm2d(16, affine=True, track_running_stats=True), nn.PReLU())
        self.up = nn.Sequential(nn.ConvTranspose2d(16, 16, 4, 2, 1, bias=False), nn.BatchNorm2d(16), nn.ELU(), nn.Dropout2d(0.1), nn.ConvTranspose2d(16, 3, 4, 2, 1, groups=1), nn.Tanh())

    def forward(self, image):
        code = self.down(image)
        return {"image": self.up(code + 0.1 * torch.randn_like(code)), "code": (code, code.mean())}


class Mixture(nn.Module):
    """Experts that are chosen without a shape that depends on values."""

    def __init__(self):
        super().__init__()
        self.gate = nn.Linear(C, 4)
        self.first, self.second = nn.Parameter(torch.randn(4, C, 64) * 0.1), nn.Parameter(torch.randn(4, 64, C) * 0.1)
        self.head = nn.Linear(C, zoo.CLASSES)

    def forward(self, x):
        weight, chosen = self.gate(x).softmax(-1).topk(2)
        share = torch.zeros(*x.shape[:2], 4).scatter(2, chosen, weight / weight.sum(-1, keepdim=True))
        hidden = F.silu(torch.einsum("ntc,ecd->ntde", x, self.first))
        return self.head(torch.einsum("ntde,edc,nte->nc", hidden, self.second, share) / T)


class Table(nn.Module):
    """Several inputs by keyword, bags of words, SELU's dropouts, a bilinear form."""

    def __init__(self):
        super().__init__()
        self.bag, self.field = nn.EmbeddingBag(zoo.WORDS, C, mode="sum"), nn.Embedding(10, C, max_norm=1.0)
        self.numbers = nn.Sequential(nn.BatchNorm1d(6), nn.Linear(6, C), nn.SELU(), nn.AlphaDropout(0.1), nn.FeatureAlphaDropout(0.1))
        self.pair, self.head = nn.Bilinear(C, C, C), nn.Linear(C, zoo.CLASSES)

    def forward(self, numbers, *, words, field=None):
        return self.head(self.pair(self.bag(words), self.field(field)) + self.numbers(numbers))


class Vae(nn.Module):
    """Its loss inside, with a second output; random numbers."""

    def __init__(self):
        super().__init__()
        self.encode, self.decode = nn.Linear(C, 16), nn.utils.parametrizations.weight_norm(nn.Linear(8, C))

    def forward(self, x, target):
        mean, log_variance = self.encode(x).chunk(2, -1)
        code = mean + torch.randn_like(mean) * (log_variance / 2).exp()
        kl = -0.5 * (1 + log_variance - mean**2 - log_variance.exp()).mean()
        return F.mse_loss(self.decode(code), target) + 0.1 * kl, {"kl": kl.detach()}


class Branch(nn.Module):
    """Higher-order ops: a branch, a region without gradients, one under autocast, one that is computed again."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = nn.Linear(C, C), nn.Linear(C, C), nn.Linear(C, zoo.CLASSES)
        self.register_buffer("mean", torch.zeros(C))

    def forward(self, x):
        with torch.no_grad():
            self.mean.lerp_(x.mean(0), 0.1)
        x = torch.cond(x.sum() > 0, lambda x: self.a(x).relu(), lambda x: self.b(x).tanh(), (x - self.mean,))
        with torch.autocast("cpu", torch.bfloat16):
            x = x + self.b(x)
        return torch.utils.checkpoint.checkpoint(self.c, x.float(), use_reentrant=False)


class Repeat(nn.Module):
    """A layer in a loop that the graph holds as one op."""

    def __init__(self, kind):
        super().__init__()
        self.kind, self.a, self.c = kind, nn.Linear(C, C), nn.Linear(C, zoo.CLASSES)

    def forward(self, x):
        if self.kind == "scan":
            step = lambda h, x: (torch.tanh(self.a(h) + x), h.clone())  # noqa: E731
            return self.c(torch._higher_order_ops.scan(step, x[:, 0] * 0, x, dim=1)[0])
        body = lambda i, x: (i + 1, torch.tanh(self.a(x)))  # noqa: E731
        return self.c(torch._higher_order_ops.while_loop(lambda i, x: i < 3, body, (torch.tensor(0), x.mean(1)))[1])


class Sizes(nn.Module):
    """Numbers made from the batch's size, constants, a norm of weights with state."""

    def __init__(self):
        super().__init__()
        self.a, self.c = nn.utils.parametrizations.spectral_norm(nn.Linear(C, C)), nn.Linear(2 * C, zoo.CLASSES)
        self.scale = torch.linspace(0.5, 1.5, C)  # neither a parameter nor a buffer

    def forward(self, x):
        n = x.shape[0]
        x = self.a(x * self.scale + torch.tensor([0.1, -0.1]).repeat(C // 2)) / max(n, 4) ** 0.5
        x = torch.cat([x, x.mean(0).expand(n, C) * (2 * n + 1) / (n % 3 + 1) + (n - 1) // 2], 1)
        return self.c(x.reshape(2 * n, C).view(n, -1)).masked_fill(torch.eye(n, zoo.CLASSES, dtype=torch.bool), 0.0)


class Masked(nn.Module):
    """A loss over chosen words: a shape that depends on values."""

    def __init__(self):
        super().__init__()
        self.words, self.head = nn.Embedding(zoo.WORDS, C), nn.Linear(C, zoo.WORDS)

    def forward(self, words, target):
        chosen = target % 3 != 0
        return F.cross_entropy(self.head(self.words(words))[chosen], target[chosen])


class Packed(nn.Module):
    def __init__(self):
        super().__init__()
        self.cells, self.head = nn.LSTM(C, C, batch_first=True), nn.Linear(C, zoo.CLASSES)

    def forward(self, x):
        lengths = torch.full((x.shape[0],), T - 2)
        return self.head(self.cells(nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True))[1][0][0])


class Translator(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.head = nn.Embedding(zoo.WORDS, C), nn.Linear(C, zoo.WORDS)
        self.both = nn.Transformer(C, 4, 1, 1, 64, 0.1, "gelu", batch_first=True, norm_first=True)

    def forward(self, source, sink):
        mask = nn.Transformer.generate_square_subsequent_mask(sink.shape[1])
        return self.head(self.both(self.words(source), self.words(sink), tgt_mask=mask, tgt_is_causal=True))


def points(*shape, classes=True):
    def make(generator):
        x = torch.randn(N, *shape, generator=generator)
        return x, torch.randint(zoo.CLASSES, (N,), generator=generator) if classes else x

    return make


def table(generator):
    words = torch.randint(zoo.WORDS, (N, 5), generator=generator)
    inputs = {"numbers": torch.randn(N, 6, generator=generator), "words": words, "field": words[:, 0] % 10}
    return inputs, torch.randint(zoo.CLASSES, (N,), generator=generator)


def translation(generator):
    words, target = zoo.words_in_order(generator)
    return {"source": target, "sink": words}, target


def squares(name, shape):
    """Batches of images under this name, and a target of this shape (None: the images)."""

    def make(generator):
        x = torch.randn(N, 3, 64, 64, generator=generator)
        return {name: x}, x if shape is None else torch.randn(N, *shape, generator=generator)

    return make


def labeled_pixels(generator):
    return torch.randn(N, 3, 64, 64, generator=generator), torch.randint(zoo.CLASSES, (N, 64, 64), generator=generator)


def vision(path, **values):
    def make():
        import torchvision

        return operator.attrgetter(path)(torchvision.models)(weights=None, **values)

    return make


def segmenter(name):
    return vision("segmentation." + name, weights_backbone=None, num_classes=zoo.CLASSES)


own = zoo.own
timm = functools.partial(zoo.timm_model, size=32, drop_rate=0.1)

MODELS = {
    "decoder with tied weights": own(Decoder, zoo.words_in_order, "cross_entropy"),
    "LSTM in two directions": own(Tagger, zoo.words_in_order, "cross_entropy"),
    "RNN": own(lambda: zoo.Recurrent("RNN"), zoo.words_in_order),
    "cells": own(Cells, points(6, C)),
    "autoencoder": own(Autoencoder, squares("image", None), "mse"),
    "mixture": own(Mixture, points(T, C)),
    "table": own(Table, table),
    "VAE": own(Vae, points(C, classes=False), "none"),
    "branch": own(Branch, points(C)),
    "loop": own(lambda: Repeat("while_loop"), points(T, C)),
    "scan": own(lambda: Repeat("scan"), points(T, C)),
    "sizes": own(Sizes, points(C)),
    "masked words": own(Masked, zoo.words_in_order, "none"),
    "packed LSTM": own(Packed, points(T, C)),
    "mean of all batches": own(lambda: nn.Sequential(nn.BatchNorm1d(C, momentum=None), nn.Linear(C, 5)), points(C)),
    "translator": own(Translator, translation, "cross_entropy"),
    "FPN": own(vision("detection.backbone_utils.resnet_fpn_backbone", backbone_name="resnet18", trainable_layers=5), squares("x", (256, 16, 16)), "mse"),
    "DeepLabV3": own(segmenter("deeplabv3_mobilenet_v3_large"), labeled_pixels),
    "LR-ASPP": own(segmenter("lraspp_mobilenet_v3_large"), labeled_pixels),
    "ConvNeXt (torchvision)": zoo.torchvision_model("convnext_tiny", size=32),
    "Swin (torchvision)": zoo.torchvision_model("swin_t", size=32),
    "GoogLeNet": zoo.torchvision_model("googlenet", aux_logits=False, init_weights=False),
    "MNASNet": zoo.torchvision_model("mnasnet0_5"),
    "ConvNeXt (timm)": timm("convnext_atto", drop_path_rate=0.2),
    "ViT (timm)": timm("vit_tiny_patch16_224", img_size=32, depth=2, drop_path_rate=0.2, attn_drop_rate=0.1, proj_drop_rate=0.1),
    "Swin (timm)": zoo.timm_model("swin_tiny_patch4_window7_224", size=56, img_size=56, drop_path_rate=0.2),
    "PoolFormer": timm("poolformer_s12", drop_path_rate=0.2),
    "GhostNet": timm("ghostnet_050"),
    "MobileViT": zoo.timm_model("mobilevit_xxs", size=64),
    "ResNeSt": zoo.timm_model("resnest14d"),
    "FNet": zoo.encoder("FNet"),
    "SqueezeBERT": zoo.encoder("SqueezeBert", embedding_size=32, q_groups=2, k_groups=2, v_groups=2, intermediate_groups=2, output_groups=2),
    "ConvBERT": zoo.encoder("ConvBert", embedding_size=32),
    "CTRL": zoo.hf("CTRLLMHeadModel", "CTRLConfig", zoo.text("text"), n_embd=32, n_layer=2, n_head=4, dff=64, vocab_size=zoo.WORDS, n_positions=64),
}
