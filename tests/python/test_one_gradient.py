"""What a user sees as `.grad` is what is clipped, checked and stepped with, however it lies in memory."""

import pytest
import torch
from torch import nn

import duet
import toy


class Depthwise(nn.Module):
    """Channels-last activations: the gradients of 1x1 kernels and depthwise ones come with strides of their own."""

    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(3, 8, 1)
        self.deep = nn.Conv2d(8, 8, 3, groups=8)
        self.last = nn.Linear(8, 4)

    def forward(self, x):
        x = torch.tanh(self.first(x.to(memory_format=torch.channels_last)))
        return self.last(self.deep(x).mean((2, 3)))


def with_gradients(change):
    """A model whose gradients are what `change` makes of them; `laid_out`: in the layout of the parameters."""

    def make(laid_out=False):
        model = Depthwise()
        for parameter in model.parameters():

            def set_gradient(p):
                p.grad = torch.empty_like(p).copy_(change(p.grad)) if laid_out else change(p.grad)

            parameter.register_post_accumulate_grad_hook(set_gradient)
        return model

    return make


def reversed_strides(gradient):
    dims = list(range(gradient.dim()))[::-1]
    return gradient.permute(dims).contiguous().permute(dims)


def with_gaps(gradient):
    return torch.stack([gradient, gradient], -1)[..., 0]


def one_number(gradient):
    return gradient.mean().expand_as(gradient)


LAYOUTS = {
    "depthwise": lambda laid_out=False: Depthwise(),
    "channels last": lambda laid_out=False: Depthwise().to(memory_format=torch.channels_last),
    "reversed strides": with_gradients(reversed_strides),
    "gaps": with_gradients(with_gaps),
    "expanded": with_gradients(one_number),
}
CLIPS = {
    "none": (None, {}),
    "norm": (lambda p: nn.utils.clip_grad_norm_(p, 1e-3), {"clip_grad_norm": 1e-3}),
    "1-norm": (lambda p: nn.utils.clip_grad_norm_(p, 1e-3, 1), {"clip_grad": duet.ClipNorm(max_norm=1e-3, norm_type=1)}),
    "value": (lambda p: nn.utils.clip_grad_value_(p, 1e-4), {"clip_grad_value": 1e-4}),
}
OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=10, momentum=0.9, weight_decay=1e-2),
    "sgd fused": lambda p: torch.optim.SGD(p, lr=10, momentum=0.9, fused=True),
    "adam": lambda p: torch.optim.Adam(p, lr=1e-2, amsgrad=True),
    "adamw fused": lambda p: torch.optim.AdamW(p, lr=1e-2, eps=1e-4, fused=True),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=1e-2, centered=True, momentum=0.5),
    "adagrad fused": lambda p: torch.optim.Adagrad(p, lr=1e-2, fused=True),
    "nadam": lambda p: torch.optim.NAdam(p, lr=1e-2),
}


def batches(count):
    return [{"x": b["x"].view(4, 3, 6, 6), "y": b["y"]} for b in toy.batches(count, size=4, inputs=108, classes=4)]


def model_of(layout, laid_out=False):
    torch.manual_seed(0)
    return LAYOUTS[layout](laid_out)


# One step is the code of both modes: op by op, a fused optimizer and another one will do.
@pytest.mark.parametrize("mode, name", [*(("graph", name) for name in OPTIMIZERS), ("eager", "adam"), ("eager", "adamw fused")])
@pytest.mark.parametrize("clip", CLIPS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_step_has_the_bits_of_the_loop(layout, clip, name, mode):
    fused = "fused" in name  # PyTorch's read such memory in its own order, whatever the strides
    if layout == "expanded" and clip != "none" and not fused:
        pytest.skip("PyTorch's clipping cannot write it")
    ours, theirs = model_of(layout), model_of(layout, laid_out=fused)
    optimizers = [OPTIMIZERS[name](m.parameters()) for m in (ours, theirs)]
    clip_them, options = CLIPS[clip]
    step = duet.graph_step(ours, toy.loss, optimizers[0], mode=mode, **options)
    for batch in batches(8):
        toy.assert_same_bits(step(batch), toy.loop_step(theirs, toy.loss, optimizers[1], batch, clip_them))
        toy.assert_same_bits([p.grad for p in ours.parameters()], [p.grad for p in theirs.parameters()])
        toy.assert_same_bits(ours.state_dict(), theirs.state_dict())
    if mode == "graph" and layout in ("depthwise", "channels last") and name != "nadam":  # which reads back
        assert toy.captured(step.report()) == ["step"], step.report()
