"""What torch.amp.GradScaler does with planted infinities, for grad_scaler_test.cpp; make_references.py writes it down."""

import torch

SHAPES = [(4, 3), (7,), (2, 2), (1,), (5,)]
STEPS, GROWTH_INTERVAL = 60, 5
INFINITE = {7: 1, 8: 4, 23: 0, 40: 2}  # step: parameter whose gradient has an inf


def table(shape, first, step, modulus, offset, divisor):
    count = torch.Size(shape).numel()
    values = [((first + step * k) % modulus - offset) / divisor for k in range(count)]
    return torch.tensor(values, dtype=torch.float32).reshape(shape)


def optimizers(groups):
    return {
        "AdamW": lambda: torch.optim.AdamW(groups, lr=0.01, weight_decay=0.1, fused=True),
        "SGD": lambda: torch.optim.SGD(groups, lr=0.01, momentum=0.9, fused=True),
        "RMSprop": lambda: torch.optim.RMSprop(groups, lr=0.01, foreach=False),
    }


def run(name, group_count):
    weights = [table(shape, 5 * i, 3, 13, 6, 16).requires_grad_() for i, shape in enumerate(SHAPES)]
    groups = [{"params": weights[g::group_count], "lr": 0.01 * (g + 1)} for g in range(group_count)]
    optimizer = optimizers(groups)[name]()
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=GROWTH_INTERVAL)
    scales = []
    for step in range(STEPS):
        optimizer.zero_grad()
        loss = 0
        for i, weight in enumerate(weights):
            slope = table(weight.shape, 31 * step + 17 * i, 7, 23, 11, 8)
            if INFINITE.get(step) == i:
                slope.view(-1)[-1] = float("inf")
            loss = loss + (weight * slope).sum()
        scales.append(scaler.get_scale())
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    return scales, torch.cat([weight.detach().reshape(-1) for weight in weights])


def references():
    """KIND_GROUPS.scales: the scale of each step; KIND_GROUPS.weights: the weights at the end."""
    for name in ("AdamW", "SGD", "RMSprop"):
        for group_count in (1, 2, 5):
            scales, values = run(name, group_count)
            yield f"{name}_{group_count}.scales", torch.tensor(scales, dtype=torch.float64)
            yield f"{name}_{group_count}.weights", values
