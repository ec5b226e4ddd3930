"""Loops that could fool a recorded step."""

import random

import numpy as np
import pytest
import torch

import duet
import toy


def both(make_optimizer, run, steps=None):
    """Runs run(step, module, optimizer) with duet's step and with the loop's own; the ends must be the same."""
    ends = []
    for kind in ("duet", "loop"):
        module = toy.model()
        optimizer = make_optimizer(module)
        if kind == "duet":
            step = duet.graph_step(module, toy.loss, optimizer)
        else:

            def step(batch, module=module, optimizer=optimizer):
                return toy.loop_step(module, toy.loss, optimizer, batch)

        torch.manual_seed(3)
        run(step, module, optimizer)
        ends.append((module.state_dict(), optimizer.state_dict()))
    toy.assert_same_bits(*ends)


def adam(module):
    return torch.optim.Adam(module.parameters(), lr=1e-2)


def momentum(module):
    return torch.optim.SGD(module.parameters(), lr=1e-2, momentum=0.9)


def own_step(step, module, optimizer):
    """A step of the loop itself, whatever `step` is."""
    return lambda batch: toy.loop_step(module, toy.loss, optimizer, batch)


@pytest.mark.parametrize("make", [adam, momentum, lambda m: torch.optim.RMSprop(m.parameters(), momentum=0.9)])
@pytest.mark.parametrize("pattern", ["osssss", "sosososs", "ssssooss"])
def test_steps_of_the_loop_and_of_duet_take_turns(make, pattern):
    def run(step, module, optimizer):
        plain = own_step(step, module, optimizer)
        for kind, batch in zip(pattern, toy.batches(len(pattern))):
            (plain if kind == "o" else step)(batch)

    both(make, run)


@pytest.mark.parametrize("make", [adam, momentum])
def test_state_that_is_cleared_replaced_or_loaded_often_counts(make):
    def run(step, module, optimizer):
        data = toy.batches(4)
        for batch in data:
            step(batch)
        optimizer.state.clear()
        for batch in data:
            step(batch)
        saved = toy.twin(optimizer.state_dict())
        for _ in range(4):
            step(data[0])
            optimizer.load_state_dict(toy.twin(saved))
        step(data[1])
        first = next(iter(module.parameters()))
        for name, value in list(optimizer.state[first].items()):
            optimizer.state[first][name] = torch.zeros_like(value) if value.dim() else value
        step(data[2])
        del optimizer.state[first]
        step(data[3])

    both(make, run)


def test_two_steps_share_an_optimizer():
    def other_loss(model, batch):
        return model(batch["x"]).square().mean()

    ends = []
    for kind in ("duet", "loop"):
        module = toy.model()
        optimizer = adam(module)
        losses = (toy.loss, other_loss)
        if kind == "duet":
            steps = [duet.graph_step(module, loss, optimizer) for loss in losses]
        else:
            steps = [lambda batch, loss=loss: toy.loop_step(module, loss, optimizer, batch) for loss in losses]
        torch.manual_seed(3)
        for i, batch in enumerate(toy.batches(20)):
            steps[i % 2](batch)
        ends.append((module.state_dict(), optimizer.state_dict()))
    toy.assert_same_bits(*ends)


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


@pytest.mark.parametrize(
    "make",
    [
        lambda m: torch.optim.Adam(m.parameters(), weight_decay=0.1, decoupled_weight_decay=True),
        lambda m: torch.optim.Adam(m.parameters(), lr=torch.tensor(1e-3)),
        lambda m: torch.optim.RMSprop([{"params": m.hidden.parameters()}, {"params": [*m.norm.parameters(), m.scale, *m.output.parameters()], "momentum": 0.9}]),
        lambda m: torch.optim.SGD([{"params": m.hidden.parameters(), "nesterov": True, "momentum": 0.9}, {"params": [*m.norm.parameters(), m.scale, *m.output.parameters()]}], lr=0.1),
    ],
)  # fmt: skip
def test_odd_ways_to_set_an_optimizer(make):
    both(make, lambda step, module, optimizer: [step(batch) for batch in toy.batches(12)])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
@pytest.mark.parametrize("kind", ["SGD", "Adam", "AdamW", "RMSprop"])
def test_other_dtypes(dtype, kind):
    ends = []
    for name in ("duet", "loop"):
        torch.manual_seed(0)
        module = torch.nn.Linear(8, 3).to(dtype)
        options = {"momentum": 0.9} if kind in ("SGD", "RMSprop") else {}
        optimizer = getattr(torch.optim, kind)(module.parameters(), lr=1e-2, weight_decay=1e-2, **options)

        def loss(model, batch):
            return model(batch["x"].to(dtype)).square().mean()

        step = duet.graph_step(module, loss, optimizer)
        for batch in toy.batches(12):
            step(batch) if name == "duet" else toy.loop_step(module, loss, optimizer, batch)
        ends.append(module.state_dict())
    toy.assert_same_bits(*ends)


def test_settings_around_the_step_are_part_of_its_signature():
    def run(step, module, optimizer):
        for i, batch in enumerate(toy.batches(24)):
            if i % 6 < 3:
                with torch.autocast("cpu", dtype=torch.bfloat16):
                    step(batch)
            else:
                step(batch)

    both(adam, run)


def test_replays_do_not_run_the_loss_function():
    module = toy.model()
    calls = []

    def loss(model, batch):
        calls.append(1)
        return toy.loss(model, batch)

    step = duet.graph_step(module, loss, adam(module), check="off")
    for batch in toy.batches(100):
        step(batch)
    assert len(calls) < 20, len(calls)
    assert not step.explain(batch).text().count("somebody keeps")
    report = step.report()[0]
    assert report["replays"] - len(calls) <= report["unchecked"] >= report["unchecked_in_a_row"] > 20, report
    assert f"{report['unchecked']} replays did not run their host code" in report["host_code"], report


def test_code_that_throws_between_steps_is_not_checked():
    module = toy.model()
    fails = []

    def loss(model, batch):
        if fails:
            raise ValueError("at the end of the data")
        return toy.loss(model, batch)

    for check, unchecked in (("off", True), ("every", False)):
        step = duet.graph_step(module, loss, adam(module), check=check)
        for batch in toy.batches(20):
            step(batch)
        fails.append(1)
        step.set_mode("eager")
        fails.clear()
        assert (step.report()[0]["unchecked"] > 0) == unchecked, step.report()


class Counting(toy.Net):
    """Host code that leaves something behind, though no op shows it."""

    def __init__(self, kind):
        super().__init__()
        self.kind, self.calls = kind, 0

    def forward(self, x):
        if self.kind == "attribute":
            self.calls += 1
        elif self.kind == "random":
            random.random()
        elif self.kind == "numpy":
            np.random.rand()
        return super().forward(x)


@pytest.mark.parametrize("kind", ["attribute", "random", "numpy"])
def test_what_host_code_counts_and_draws_goes_on_as_in_the_loop(kind):
    random.seed(1)
    np.random.seed(1)
    module = Counting(kind)
    step = duet.graph_step(module, toy.loss, adam(module), check="off")
    for batch in toy.batches(100):
        step(batch)
    assert toy.captured(step.report()) == ["step"], step.report()
    left = module.calls, random.random(), np.random.rand()
    random.seed(1)
    np.random.seed(1)
    module = Counting(kind)
    for batch in toy.batches(100):
        toy.loop_step(module, toy.loss, adam(module), batch)
    assert left == (module.calls, random.random(), np.random.rand())


def test_numbers_that_the_loop_sets_on_the_model_are_part_of_the_signature():
    class Scaled(toy.Net):
        factor = 1.0

        def forward(self, x):
            return super().forward(x) * self.factor

    states = []
    for kind in ("duet", "loop"):
        torch.manual_seed(0)
        module = Scaled()
        optimizer = adam(module)
        step = duet.graph_step(module, toy.loss, optimizer, check="off")
        torch.manual_seed(3)
        for i, batch in enumerate(toy.batches(60)):
            module.factor = 1.0 + i // 20
            module.drop.p = 0.1 * (i // 30)
            step(batch) if kind == "duet" else toy.loop_step(module, toy.loss, optimizer, batch)
        states.append(module.state_dict())
    toy.assert_same_bits(*states)


def test_gradients_are_there_between_steps():
    gradients = []

    def run(step, module, optimizer):
        kept = []
        for batch in toy.batches(8):
            step(batch)
            kept.append([parameter.grad for parameter in module.parameters()])
        gradients.append([[g.clone() for g in one] for one in kept])

    both(adam, run)
    toy.assert_same_bits(*gradients)


def test_a_batch_that_holds_itself_and_one_step_at_a_time():
    module = toy.model()
    step = duet.graph_step(module, toy.loss, adam(module))
    batch = toy.batches(1)[0]
    loop = {**batch}
    loop["again"] = loop
    with pytest.raises(RecursionError):
        step(loop)

    def nested(model, batch):
        again(batch)
        return toy.loss(model, batch)

    again = duet.graph_step(module, nested, adam(module))
    with pytest.raises(duet.ConfigError, match="runs already"):
        again(batch)
    step(batch)
