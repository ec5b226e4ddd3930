"""Where torch.optim.LBFGS goes on two functions whose gradients are written out, so that lbfgs_test.cpp can evaluate them
by the same operations; make_references.py writes it down.
"""

import torch
from torch.optim import lbfgs

STEPS = 6
CASES = {
    "plain": dict(),
    "short": dict(lr=0.3, max_iter=4),
    "few_evaluations": dict(max_iter=10, max_eval=3),
    "tolerances": dict(tolerance_grad=0.1, tolerance_change=0.01),
    "line_search": dict(line_search_fn="strong_wolfe"),
    "line_search_short": dict(lr=0.3, max_iter=3, history_size=2, line_search_fn="strong_wolfe"),
    "line_search_from_far": dict(lr=50.0, max_iter=4, line_search_fn="strong_wolfe"),
    "line_search_few_evaluations": dict(max_iter=10, max_eval=4, line_search_fn="strong_wolfe"),
}
# Without a line search L-BFGS diverges on Rosenbrock's function.
FUNCTIONS = {"quadratic": list(CASES), "rosenbrock": [name for name in CASES if "line_search" in name]}


def quadratic(x):
    """Loss and gradient of sum(d * (x - m)^2) / 2 + (sum(x))^2 / 20 over ten numbers."""
    i = torch.arange(10, dtype=x.dtype)
    d = (i + 1) / 4
    r = x - (i - 4) / 8
    total = x.sum()
    return (d * r * r).sum() / 2 + total * total / 20, d * r + total / 10


def rosenbrock(x):
    """Loss and gradient of sum((1 - a)^2 + 100 (b - a^2)^2) over neighbours a, b of ten numbers."""
    a, b = x[:-1], x[1:]
    u, v = 1 - a, b - a * a
    gradient = torch.zeros_like(x)
    gradient[:-1] += -2 * u - 400 * a * v
    gradient[1:] += 200 * v
    return (u * u + 100 * v * v).sum(), gradient


cubic_interpolate = lbfgs._cubic_interpolate


def interpolate_in_double(*numbers, bounds=None):
    """torch interpolates in tensors of the parameters' type, duet in doubles: alike but for float32, where the rounding of the
    step grows in Rosenbrock's valley until there is nothing left to compare. So both do it in doubles."""
    numbers = [torch.as_tensor(number, dtype=torch.float64) for number in numbers]
    return float(cubic_interpolate(*numbers, bounds=bounds))


lbfgs._cubic_interpolate = interpolate_in_double


def trajectory(function, options, dtype):
    start = ((torch.arange(10, dtype=dtype) * 7) % 11 - 5) / 8
    parameters = [start[:6].reshape(2, 3).clone(), start[6:].clone()]
    for parameter in parameters:
        parameter.requires_grad_(True)
    optimizer = torch.optim.LBFGS(parameters, **options)

    def closure():
        loss, gradient = function(torch.cat([parameter.detach().flatten() for parameter in parameters]))
        parameters[0].grad, parameters[1].grad = gradient[:6].reshape(2, 3).clone(), gradient[6:].clone()
        return loss

    rows = []
    for _ in range(STEPS):
        loss = float(optimizer.step(closure))
        rows.append([loss] + torch.cat([parameter.detach().flatten() for parameter in parameters]).tolist())
    return rows, optimizer.state[parameters[0]]


def references():
    """CASE.steps: {loss before, ten weights after} of each step; CASE.n_iter and CASE.func_evals."""
    for function, cases in FUNCTIONS.items():
        for name in cases:
            for dtype, suffix in ((torch.float64, "float64"), (torch.float32, "float32")):
                rows, state = trajectory(globals()[function], CASES[name], dtype)
                case = f"{function}_{name}_{suffix}"
                yield f"{case}.steps", torch.tensor(rows, dtype=torch.float64)
                for count in ("n_iter", "func_evals"):
                    yield f"{case}.{count}", torch.tensor(state[count])


def cases():
    """Function, case, options."""
    for function, names in FUNCTIONS.items():
        for name in names:
            yield {"function": function, "case": name, "type": "LBFGS", "options": CASES[name]}
