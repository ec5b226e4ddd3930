"""Python code that runs in the backward pass: a check of a step leaves that pass out only where there is none."""

import functools

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


def late_factor(n):
    return 1.0 if n < 12 else 3.0


def graph_from_outside(n, module):
    module.from_outside = module.scale * late_factor(n)
    return lambda hidden: hidden * module.from_outside


def graph_that_is_gone(n, module):
    if n < 12:
        module.from_outside = module.scale * 1.5
    return lambda hidden: hidden * module.from_outside


def graph_of_the_step_before(n, module):
    def middle(hidden):
        out = torch.sin(hidden)
        before = vars(module).get("kept")
        vars(module)["kept"] = out
        return out + before * 0.1 if n == 12 else out

    return middle


def other_order_of_nodes(n, module):
    def middle(hidden):
        copy = hidden.clone()
        view = copy.view(-1)
        copy.mul_(2)
        if n >= 12:
            view.is_leaf  # makes its node now, not at its next use
        return torch.sin(copy) * 0.3 + torch.cos(copy) * 0.7 + torch.tanh(view).view_as(copy)

    return middle


def other_tensor_of_the_same_memory(n, module):
    def middle(hidden):
        first, second = hidden * 2, hidden * 3
        if n < 12:
            return second
        first.data = second.data
        return first

    return middle


def graph_that_an_inner_pass_frees(n, module):
    def middle(hidden):
        out = torch.exp(hidden)
        slope = torch.autograd.grad(out.sum(), hidden, retain_graph=n < 12)[0]
        return out + slope.detach()

    return middle


def saved_tensor_with_other_memory(n, module):
    def middle(hidden):
        out = torch.sin(hidden) * 2
        with torch.no_grad():
            other = hidden * 2
        if n >= 12:
            hidden.data = other
        return out

    return middle


def version_of_a_saved_tensor(n, module):
    def middle(hidden):
        out = torch.exp(hidden)
        with torch.no_grad():
            (out if n == 12 else out.data).mul_(2)
        return out

    return middle


def version_moved_by_hand(n, module):
    def middle(hidden):
        out = torch.exp(hidden)
        if n == 12:
            torch.autograd.graph.increment_version(out)
        return out

    return middle


def anomaly_mode(n, module):
    def middle(hidden):
        if n == 12:
            torch.autograd.set_detect_anomaly(True)
        return torch.sqrt(hidden.square() * 0)

    return middle


BETWEEN_AND_WITHIN = [
    graph_from_outside,
    graph_that_is_gone,
    graph_of_the_step_before,
    other_order_of_nodes,
    other_tensor_of_the_same_memory,
    graph_that_an_inner_pass_frees,
    saved_tensor_with_other_memory,
    version_of_a_saved_tensor,
    version_moved_by_hand,
    anomaly_mode,
]


@pytest.mark.parametrize("change", BETWEEN_AND_WITHIN)
def test_what_the_ops_and_the_shape_of_the_graph_do_not_tell(change):
    """From the twelfth step on: other results than before, or PyTorch's error, at this very step."""
    middle = [None]

    def loss(module, batch):
        hidden = middle[0](module.norm(module.hidden(batch["x"])))
        return toy.loss_of(module.output(hidden * module.scale), batch)

    def run(step, module, optimizer):
        results = []
        for n, batch in enumerate(toy.batches(20)):
            middle[0] = change(n, module)
            try:
                results.append(step(batch).clone())
            except (RuntimeError, duet.ConfigError):
                break
            finally:
                torch.autograd.set_detect_anomaly(False)
            if change is graph_from_outside:
                del module.from_outside
        for name in ("from_outside", "kept"):
            vars(module).pop(name, None)
        return results

    toy.same_as_loop(run, loss=loss, **CHECKED)


def test_a_gradient_of_another_dtype():
    steps = []

    def loss(module, batch):
        if len(steps) == 12:
            module.scale.grad_dtype = torch.float64
        return toy.loss(module, batch)

    module = toy.model()
    step = duet.graph_step(module, loss, toy.sgd(module), **CHECKED)
    with pytest.raises(duet.ConfigError, match="the gradient of 'scale' is Double"):
        for batch in toy.batches(20):
            steps.append(step(batch))
    assert len(steps) == 12


def test_a_kernel_made_of_differentiable_ops():
    """PyTorch's fallback lets autograd see them; a check would not run them."""
    library = torch.library.Library("duet_backward_pass", "DEF")
    library.define("twice(Tensor x) -> Tensor")
    library.impl("twice", lambda x: x * 2, "CPU")

    def loss(module, batch):
        hidden = torch.ops.duet_backward_pass.twice(module.norm(module.hidden(batch["x"])))
        return toy.loss_of(module.output(hidden * module.scale), batch)

    step = toy.same_as_loop(toy.over(toy.batches(12)), loss=loss)
    assert "twice is made of ops that autograd sees" in step.report()[0]["reason"]


class Settings:
    factor = 1.0


class Reversed(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        return -gradient * Settings.factor


@torch.library.custom_op("duet_tests::reversed_too", mutates_args=())
def reversed_too(x: torch.Tensor) -> torch.Tensor:
    return x.clone()


reversed_too.register_autograd(lambda ctx, gradient: -gradient * Settings.factor)
reverse = Reversed.apply
partly = functools.partial(Reversed.apply)


# By the names that a loss has for it.
CALLS = {
    "of the class": lambda x: Reversed.apply(x),
    "apply under another name": lambda x: reverse(x),
    "a partial of it": lambda x: partly(x),
    "a custom op": lambda x: reversed_too(x),
}


@pytest.mark.parametrize("call", CALLS)
def test_numbers_that_the_code_of_a_function_finds(call):
    def loss(module, batch):
        return toy.loss_of(module.output(CALLS[call](module.hidden(batch["x"]))), batch)

    def run(step, module, optimizer):
        values = []
        for n, batch in enumerate(toy.batches(30)):
            Settings.factor = 0.5 if 15 <= n < 20 else 1.0
            values.append(step(batch))
        return values

    step = toy.same_as_loop(run, loss, check="off", verify_interval=0)
    assert toy.captured(step.report()) == ["step", "step"]


HIGHER_ORDER = {
    "cond": lambda x: torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,)),
    "map": lambda x: torch._higher_order_ops.map(torch.tanh, x),
    "scan": lambda x: torch._higher_order_ops.scan(lambda total, row: (total * 0.5 + row, total * row), x[0] * 0, x)[1],
}


@pytest.mark.parametrize("op", HIGHER_ORDER)
def test_ops_that_take_functions_run_op_by_op(op):
    def loss(module, batch):
        return toy.loss_of(module.output(HIGHER_ORDER[op](module.hidden(batch["x"]))), batch)

    step = toy.same_as_loop(toy.over(toy.batches(3)), loss)
    assert step.report()[-1]["state"] == "eager" and "torch.cond" in step.report()[-1]["reason"]
