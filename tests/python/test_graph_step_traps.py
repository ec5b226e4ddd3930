"""Loops that could fool a recorded step."""

import functools
import random

import numpy as np
import pytest
import torch

import duet
import toy


def momentum(module):
    return torch.optim.SGD(module.parameters(), lr=1e-2, momentum=0.9)


def rmsprop(module):
    return torch.optim.RMSprop(module.parameters(), momentum=0.9)


@pytest.mark.parametrize("make", [toy.adam, momentum, rmsprop])
@pytest.mark.parametrize("pattern", ["osssss", "sosososs", "ssssooss", "oooooossssssoooo"])
def test_steps_of_the_loop_and_of_duet_take_turns(make, pattern):
    def run(step, module, optimizer):
        own = functools.partial(toy.loop_step, module, toy.loss, optimizer)
        return [(own if kind == "o" else step)(batch) for kind, batch in zip(pattern, toy.batches(len(pattern)))]

    toy.same_as_loop(run, optimizer=make)


@pytest.mark.parametrize("make", [toy.adam, momentum])
def test_state_that_is_cleared_replaced_or_loaded_often_counts(make):
    def run(step, module, optimizer):
        data = toy.batches(4)
        for batch in data:
            step(batch)
        optimizer.state.clear()
        for batch in data:
            step(batch)
        saved = {name: tensor.clone() for name, tensor in module.state_dict().items()}, optimizer.state_dict()
        for _ in range(4):
            step(data[0])
            module.load_state_dict(saved[0])
            optimizer.load_state_dict(saved[1])
        step(data[1])
        first = next(iter(module.parameters()))
        for name, value in list(optimizer.state[first].items()):
            optimizer.state[first][name] = torch.zeros_like(value) if value.dim() else value
        step(data[2])
        del optimizer.state[first]
        step(data[3])
        hidden, output = module.hidden.bias, module.scale  # of one shape
        states = optimizer.state
        states[hidden], states[output] = states[output], states[hidden]
        step(data[3])
        state = optimizer.state_dict()
        a, b = (index for index, parameter in enumerate(optimizer.param_groups[0]["params"]) if parameter is hidden or parameter is output)
        state["state"][a], state["state"][b] = state["state"][b], state["state"][a]
        optimizer.load_state_dict(state)
        step(data[3])

    toy.same_as_loop(run, optimizer=make)


STATES = {
    "another dtype": (lambda state, other: {"exp_avg": state["exp_avg"].double()}, r"has 'exp_avg' as cpu Double.*, expected cpu Float"),
    "another shape": (lambda state, other: {"exp_avg": state["exp_avg"][:1]}, r"as cpu Float\[1\], expected cpu Float\[16\]"),
    "another device": (lambda state, other: {"exp_avg": state["exp_avg"].to("meta")}, "as meta"),
    "no tensor": (lambda state, other: {"step": 3}, "has 'step' as int"),
    "nothing": (lambda state, other: {"exp_avg": None}, "but no 'exp_avg'"),
    "of two parameters": (lambda state, other: {"exp_avg": other["exp_avg"]}, "memory of 'exp_avg' of 'scale' as 'exp_avg' of 'hidden.bias'"),
    "view of another": (lambda state, other: {"exp_avg": other["exp_avg"].view(-1)}, "memory of 'exp_avg'"),
}


@pytest.mark.parametrize("name", STATES)
def test_state_that_cannot_be_the_parameters_is_an_error(name):
    change, message = STATES[name]
    module = toy.model()
    optimizer = toy.adam(module)
    step = duet.graph_step(module, toy.loss, optimizer)
    step(toy.batches(1)[0])
    state, other = optimizer.state[module.hidden.bias], optimizer.state[module.scale]
    kept, before = dict(state), {key: value.clone() for key, value in other.items()}
    state.update(change(state, other))
    other["step"] = other["step"].clone()  # a change that would be taken
    with pytest.raises(duet.ConfigError, match=message):
        step(toy.batches(1)[0])
    toy.assert_same_bits(other, before)
    state.update(kept)
    step(toy.batches(1)[0])


def test_a_count_of_another_shape_is_taken():
    def run(step, module, optimizer):
        data = toy.batches(3)
        step(data[0])
        state = optimizer.state[module.scale]
        state["step"] = state["step"].view(1)
        step(data[1])
        step(data[2])
        state["step"] = state["step"].view(())

    toy.same_as_loop(run, optimizer=toy.adam)


def test_two_steps_share_an_optimizer():
    def other_loss(model, batch):
        return model(batch["x"]).square().mean()

    def run(step, module, optimizer):
        if isinstance(step, functools.partial):
            other = functools.partial(toy.loop_step, module, other_loss, optimizer)
        else:
            other = duet.graph_step(module, other_loss, optimizer)
        return [(other if i % 2 else step)(batch) for i, batch in enumerate(toy.batches(20))]

    toy.same_as_loop(run)


@pytest.mark.parametrize("change", ["amsgrad", "maximize", "hook", "group", "decoupled_weight_decay"])
def test_an_optimizer_that_is_another_now_is_an_error(change):
    module = toy.model()
    optimizer = torch.optim.AdamW(module.parameters())
    step = duet.graph_step(module, toy.loss, optimizer)
    batch = toy.batches(1)[0]
    step(batch)
    group = optimizer.param_groups[0]
    if change == "hook":
        optimizer.register_step_post_hook(lambda *_: None)
    elif change == "group":
        optimizer.param_groups.append({**group, "params": [group["params"].pop()]})
    else:
        group[change] = not group[change]
    with pytest.raises(duet.ConfigError, match="make a new one"):
        step(batch)


def two_groups(module, of_hidden, of_rest):
    rest = [*module.norm.parameters(), module.scale, *module.output.parameters()]
    return [{"params": module.hidden.parameters(), **of_hidden}, {"params": rest, **of_rest}]


@pytest.mark.parametrize(
    "make",
    [
        lambda m: torch.optim.Adam(m.parameters(), weight_decay=0.1, decoupled_weight_decay=True),
        lambda m: torch.optim.Adam(m.parameters(), lr=torch.tensor(1e-3)),
        lambda m: torch.optim.RMSprop(two_groups(m, {}, {"momentum": 0.9})),
        lambda m: torch.optim.SGD(two_groups(m, {"nesterov": True, "momentum": 0.9}, {}), lr=0.1),
    ],
)
def test_odd_ways_to_set_an_optimizer(make):
    toy.same_as_loop(toy.over(toy.batches(12)), optimizer=make)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
@pytest.mark.parametrize("kind", ["SGD", "Adam", "AdamW", "RMSprop"])
def test_other_dtypes(dtype, kind):
    options = {"momentum": 0.9} if kind in ("SGD", "RMSprop") else {}
    toy.same_as_loop(
        toy.over(toy.batches(12)),
        lambda model, batch: model(batch["x"].to(dtype)).square().mean(),
        lambda: torch.nn.Linear(8, 3).to(dtype),
        lambda m: getattr(torch.optim, kind)(m.parameters(), lr=1e-2, weight_decay=1e-2, **options),
    )


class Counting(toy.Net):
    """Host code that leaves something behind, though no op shows it."""

    calls = 0

    def forward(self, x):
        getattr(self, self.kind)()
        return super().forward(x)

    def attribute(self):
        self.calls += 1

    def random(self):
        random.random()

    def numpy(self):
        np.random.rand()


@pytest.mark.parametrize("kind", ["attribute", "random", "numpy"])
def test_what_host_code_counts_and_draws_goes_on_as_in_the_loop(kind):
    def run(step, module, optimizer):
        module.kind = kind
        random.seed(1)
        np.random.seed(1)
        for batch in toy.batches(60):
            step(batch)
        return module.calls, random.random(), np.random.rand()

    step = toy.same_as_loop(run, make=Counting, check="off")
    assert toy.captured(step.report()) == ["step"], step.report()


def test_gradients_are_there_between_steps():
    def run(step, module, optimizer):
        kept = []
        for batch in toy.batches(8):
            step(batch)
            kept.append([parameter.grad for parameter in module.parameters()])
        return kept

    toy.same_as_loop(run)


def test_an_op_that_takes_lists_of_lists_runs_op_by_op():
    library = torch.library.Library("duet_test", "DEF")
    library.define("sum_of_lists(Tensor[][] lists, Tensor factor) -> Tensor")
    library.impl("sum_of_lists", lambda lists, factor: sum(tensor.sum() for one in lists for tensor in one) * factor, "CPU")

    def loss(model, batch):
        x = batch["x"]
        return toy.loss(model, batch) * torch.ops.duet_test.sum_of_lists([[x, x * 2]], x.mean())

    step = toy.same_as_loop(toy.over(toy.batches(6)), loss, **toy.UNCHECKED)
    assert "lists of lists of tensors" in step.report()[0]["reason"]


def test_a_batch_that_holds_itself_and_one_step_at_a_time():
    module = toy.model()
    step = duet.graph_step(module, toy.loss, toy.adam(module))
    batch = toy.batches(1)[0]
    loop = {**batch}
    loop["again"] = loop
    with pytest.raises(RecursionError):
        step(loop)

    def nested(model, batch):
        again(batch)
        return toy.loss(model, batch)

    again = duet.graph_step(module, nested, toy.adam(module))
    with pytest.raises(duet.ConfigError, match="runs already"):
        again(batch)
    step(batch)
