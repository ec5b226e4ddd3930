"""Python code that runs in the backward pass: a check of a step leaves that pass out only where there is none."""

import pytest
import torch
from torch.utils.checkpoint import checkpoint

import duet
import toy

CHECKED = {"check": "every", "verify_interval": 0}


class Code:
    """What runs in the backward pass. From its twelfth run on it does something else."""

    def __init__(self):
        self.runs = 0

    def factor(self):
        self.runs += 1
        return 1.0 if self.runs < 12 else 2.0

    def scaled(self, gradient):
        return gradient * self.factor()

    def scale_gradient_of(self, parameter):
        parameter.grad.mul_(self.factor())


def scaling_function(code):
    class Scaling(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, gradient):
            return code.scaled(gradient)

    return Scaling.apply


def with_saved_tensors_hooks(code, hidden):
    with torch.autograd.graph.saved_tensors_hooks(lambda saved: saved, code.scaled):
        return torch.tanh(hidden)


def with_hooks_on_a_saved_tensor(code, hidden):
    out = torch.tanh(hidden)
    out.grad_fn._raw_saved_result.register_hooks(lambda saved: saved, code.scaled)
    return out


def with_checkpointing(code, hidden):
    return checkpoint(lambda x: torch.tanh(x) * code.factor(), hidden, use_reentrant=False)


def with_reentrant_checkpointing(code, hidden):
    return checkpoint(lambda x: torch.tanh(x) * code.factor(), hidden, use_reentrant=True)


def with_hook(code, hidden):
    out = hidden * 2
    out.register_hook(code.scaled)
    return out


def with_hook_on_a_node(code, hidden):
    out = hidden * 2
    out.grad_fn.register_hook(lambda gradients, _: (code.scaled(gradients[0]), *gradients[1:]))
    return out


def with_hook_before_a_node(code, hidden):
    out = hidden * 2
    out.grad_fn.register_prehook(lambda gradients: (code.scaled(gradients[0]),))
    return out


def with_hook_on_several(code, hidden):
    out = hidden * 2
    torch.autograd.graph.register_multi_grad_hook([out], lambda gradients: code.factor())
    return out


OF_A_STEP = [
    lambda code, hidden: scaling_function(code)(hidden),
    with_saved_tensors_hooks,
    with_hooks_on_a_saved_tensor,
    with_checkpointing,
    with_reentrant_checkpointing,
    with_hook,
    with_hook_on_a_node,
    with_hook_before_a_node,
    with_hook_on_several,
]


def runs_of(make_loss, set_up=lambda code, module: None):
    """How often the code ran, in PyTorch's loop and in duet's step, which give the same."""
    codes = []

    def run(step, module, optimizer):
        codes.append(code := Code())
        set_up(code, module)
        step_loss[0] = make_loss(code)
        return [step(batch) for batch in toy.batches(20)]

    step_loss = [None]
    step = toy.same_as_loop(run, loss=lambda module, batch: step_loss[0](module, batch), **CHECKED)
    assert toy.replays(step.report()) > 0, step.report()
    return [code.runs for code in codes]


@pytest.mark.parametrize("middle", OF_A_STEP)
def test_code_of_the_step(middle):
    def make_loss(code):
        def loss(module, batch):
            hidden = middle(code, module.norm(module.hidden(batch["x"])))
            return toy.loss_of(module.output(hidden * module.scale), batch)

        return loss

    in_loop, in_duet = runs_of(make_loss)
    assert in_loop == in_duet > 0


OF_THE_MODEL = {
    "weight": lambda code, module: module.output.weight.register_hook(code.scaled),
    "after_a_gradient": lambda code, module: module.output.weight.register_post_accumulate_grad_hook(
        code.scale_gradient_of
    ),
    "module": lambda code, module: module.output.register_full_backward_hook(
        lambda _, inputs, outputs: (code.scaled(inputs[0]),)
    ),
    "before_module": lambda code, module: module.output.register_full_backward_pre_hook(
        lambda _, outputs: (code.scaled(outputs[0]),)
    ),
}


@pytest.mark.parametrize("hook", OF_THE_MODEL)
def test_hooks_of_the_model(hook):
    in_loop, in_duet = runs_of(lambda code: toy.loss, OF_THE_MODEL[hook])
    assert in_loop == in_duet > 0


def test_a_model_without_such_code_goes_without_the_pass():
    passes = []

    def passes_so_far():
        value = torch.ones((), requires_grad=True) * 1
        value.register_hook(lambda _: passes.append(torch._C._current_graph_task_id()))
        value.backward()

    def run(step, module, optimizer):
        losses = []
        for batch in toy.batches(20):
            losses.append(step(batch))
            passes_so_far()
        return losses

    step = toy.same_as_loop(run, **CHECKED)
    assert step.report()[0]["checked"] == step.report()[0]["replays"] == 18
    assert passes[-1] - passes[-2] == 1
