# Written by python/binding/make_stubs.py.
import collections.abc
import typing

import torch

__version__: str
built_for_torch: str

class Error(Exception):
    """Every error that duet throws on purpose."""
    ...

class ConfigError(Error, ValueError):
    """An option or a call that cannot work: change the set-up."""
    ...

class StepError(ConfigError, RuntimeError):
    """The model or its loss failed on a batch: shapes, dtypes or values that do not fit each other."""
    ...

class DataError(Error, ValueError):
    """A file or a batch that cannot be used: change the data."""
    ...

class CheckpointError(Error, RuntimeError):
    """A checkpoint that cannot be written, is damaged, or belongs to another model."""
    ...

class SaveRefused(CheckpointError):
    """A hook found that the state is not worth saving."""
    ...

class PeerError(Error, RuntimeError):
    """Another process of the group is lost, has failed, or does not answer."""
    ...

class GraphError(Error, RuntimeError):
    """A step that cannot be captured, or whose replay stopped being the same as its eager run."""
    ...

class NonFiniteError(Error, ArithmeticError):
    """The loss or a gradient became infinite or NaN, and the run was told to end then."""
    ...

class SGD:
    """The optimizer of that name, as in torch.optim if it is there, stepped inside the captured step.

SGD(lr=0.001, weight_decay=0.0, momentum=0.0, maximize=False, dampening=0.0, nesterov=False)

lr: learning rate (a number >= 0)
weight_decay: share of a weight taken off per lr (a number >= 0)
momentum: share of the last step that is kept (a number >= 0)
maximize: climbs instead of descends (True or False)
dampening: share of the gradient that momentum leaves out (a number in [0, 1])
nesterov: looks ahead along the momentum (True or False)"""
    lr: float
    weight_decay: float
    momentum: float
    maximize: bool
    dampening: float
    nesterov: bool
    def __init__(self, *, lr: float = ..., weight_decay: float = ..., momentum: float = ..., maximize: bool = ..., dampening: float = ..., nesterov: bool = ...) -> None: ...

class Adam:
    """The optimizer of that name, as in torch.optim if it is there, stepped inside the captured step.

Adam(lr=0.001, weight_decay=0.0, betas=[0.9, 0.999], eps=1e-08, maximize=False, amsgrad=False)

lr: learning rate (a number >= 0)
weight_decay: share of a weight taken off per lr (a number >= 0)
betas: shares kept of the averages of the gradient and of its square (a number in [0, 1))
eps: added to the denominator (a number >= 0)
maximize: climbs instead of descends (True or False)
amsgrad: divides by the largest average so far (True or False)"""
    lr: float
    weight_decay: float
    betas: list[float]
    eps: float
    maximize: bool
    amsgrad: bool
    def __init__(self, *, lr: float = ..., weight_decay: float = ..., betas: list[float] = ..., eps: float = ..., maximize: bool = ..., amsgrad: bool = ...) -> None: ...

class AdamW:
    """The optimizer of that name, as in torch.optim if it is there, stepped inside the captured step.

AdamW(lr=0.001, weight_decay=0.01, betas=[0.9, 0.999], eps=1e-08, maximize=False, amsgrad=False)

lr: learning rate (a number >= 0)
weight_decay: share of a weight taken off per lr (a number >= 0)
betas: shares kept of the averages of the gradient and of its square (a number in [0, 1))
eps: added to the denominator (a number >= 0)
maximize: climbs instead of descends (True or False)
amsgrad: divides by the largest average so far (True or False)"""
    lr: float
    weight_decay: float
    betas: list[float]
    eps: float
    maximize: bool
    amsgrad: bool
    def __init__(self, *, lr: float = ..., weight_decay: float = ..., betas: list[float] = ..., eps: float = ..., maximize: bool = ..., amsgrad: bool = ...) -> None: ...

class Adagrad:
    """The optimizer of that name, as in torch.optim if it is there, stepped inside the captured step.

Adagrad(lr=0.01, weight_decay=0.0, eps=1e-10, maximize=False, lr_decay=0.0, initial_accumulator_value=0.0)

lr: learning rate (a number >= 0)
weight_decay: share of a weight taken off per lr (a number >= 0)
eps: added to the denominator (a number >= 0)
maximize: climbs instead of descends (True or False)
lr_decay: lr falls as 1 / (1 + steps * lr_decay) (a number >= 0)
initial_accumulator_value: start of the sums of squares (a number >= 0)"""
    lr: float
    weight_decay: float
    eps: float
    maximize: bool
    lr_decay: float
    initial_accumulator_value: float
    def __init__(self, *, lr: float = ..., weight_decay: float = ..., eps: float = ..., maximize: bool = ..., lr_decay: float = ..., initial_accumulator_value: float = ...) -> None: ...

class RMSprop:
    """The optimizer of that name, as in torch.optim if it is there, stepped inside the captured step.

RMSprop(lr=0.01, weight_decay=0.0, momentum=0.0, eps=1e-08, maximize=False, alpha=0.99, centered=False)

lr: learning rate (a number >= 0)
weight_decay: share of a weight taken off per lr (a number >= 0)
momentum: share of the last step that is kept (a number >= 0)
eps: added to the denominator (a number >= 0)
maximize: climbs instead of descends (True or False)
alpha: share kept of the average of squares (a number in [0, 1))
centered: divides by the standard deviation of the gradient (True or False)"""
    lr: float
    weight_decay: float
    momentum: float
    eps: float
    maximize: bool
    alpha: float
    centered: bool
    def __init__(self, *, lr: float = ..., weight_decay: float = ..., momentum: float = ..., eps: float = ..., maximize: bool = ..., alpha: float = ..., centered: bool = ...) -> None: ...

class NAdam:
    """The optimizer of that name, as in torch.optim if it is there, stepped inside the captured step.

NAdam(lr=0.002, weight_decay=0.0, betas=[0.9, 0.999], eps=1e-08, maximize=False, decoupled_weight_decay=False, momentum_decay=0.004)

lr: learning rate (a number >= 0)
weight_decay: share of a weight taken off per lr (a number >= 0)
betas: shares kept of the averages of the gradient and of its square (a number in [0, 1))
eps: added to the denominator (a number >= 0)
maximize: climbs instead of descends (True or False)
decoupled_weight_decay: decays weights as AdamW does, not through the gradient (True or False)
momentum_decay: how fast momentum nears beta1 (a number >= 0)"""
    lr: float
    weight_decay: float
    betas: list[float]
    eps: float
    maximize: bool
    decoupled_weight_decay: bool
    momentum_decay: float
    def __init__(self, *, lr: float = ..., weight_decay: float = ..., betas: list[float] = ..., eps: float = ..., maximize: bool = ..., decoupled_weight_decay: bool = ..., momentum_decay: float = ...) -> None: ...

class RAdam:
    """The optimizer of that name, as in torch.optim if it is there, stepped inside the captured step.

RAdam(lr=0.001, weight_decay=0.0, betas=[0.9, 0.999], eps=1e-08, maximize=False, decoupled_weight_decay=False)

lr: learning rate (a number >= 0)
weight_decay: share of a weight taken off per lr (a number >= 0)
betas: shares kept of the averages of the gradient and of its square (a number in [0, 1))
eps: added to the denominator (a number >= 0)
maximize: climbs instead of descends (True or False)
decoupled_weight_decay: decays weights as AdamW does, not through the gradient (True or False)"""
    lr: float
    weight_decay: float
    betas: list[float]
    eps: float
    maximize: bool
    decoupled_weight_decay: bool
    def __init__(self, *, lr: float = ..., weight_decay: float = ..., betas: list[float] = ..., eps: float = ..., maximize: bool = ..., decoupled_weight_decay: bool = ...) -> None: ...

class Lion:
    """The optimizer of that name, as in torch.optim if it is there, stepped inside the captured step.

Lion(lr=0.0001, weight_decay=0.0, betas=[0.9, 0.99], maximize=False)

lr: learning rate (a number >= 0)
weight_decay: share of a weight taken off per lr (a number >= 0)
betas: shares kept of the averages of the gradient and of its square (a number in [0, 1))
maximize: climbs instead of descends (True or False)"""
    lr: float
    weight_decay: float
    betas: list[float]
    maximize: bool
    def __init__(self, *, lr: float = ..., weight_decay: float = ..., betas: list[float] = ..., maximize: bool = ...) -> None: ...

class Muon:
    """The optimizer of that name, as in torch.optim if it is there, stepped inside the captured step.

Muon(lr=0.001, weight_decay=0.1, momentum=0.95, betas=[0.9, 0.999], eps=1e-07, maximize=False, nesterov=True, ns_steps=5, ns_coefficients=[3.4445, -4.775, 2.0315], adjust_lr_fn='original')

lr: learning rate (a number >= 0)
weight_decay: share of a weight taken off per lr (a number >= 0)
momentum: share of the last step that is kept (a number >= 0)
betas: shares kept of the averages of the gradient and of its square (a number in [0, 1))
eps: added to the denominator (a number >= 0)
maximize: climbs instead of descends (True or False)
nesterov: looks ahead along the momentum (True or False)
ns_steps: Newton-Schulz iterations (an integer from 1 to 100)
ns_coefficients: coefficients of the Newton-Schulz polynomial (a number)
adjust_lr_fn: how lr follows a matrix's shape (original, match_rms_adamw)"""
    lr: float
    weight_decay: float
    momentum: float
    betas: list[float]
    eps: float
    maximize: bool
    nesterov: bool
    ns_steps: int
    ns_coefficients: list[float]
    adjust_lr_fn: str
    def __init__(self, *, lr: float = ..., weight_decay: float = ..., momentum: float = ..., betas: list[float] = ..., eps: float = ..., maximize: bool = ..., nesterov: bool = ..., ns_steps: int = ..., ns_coefficients: list[float] = ..., adjust_lr_fn: str = ...) -> None: ...

class Adadelta:
    """The optimizer of that name, as in torch.optim if it is there, stepped inside the captured step.

Adadelta(lr=1.0, weight_decay=0.0, eps=1e-06, maximize=False, rho=0.9)

lr: learning rate (a number >= 0)
weight_decay: share of a weight taken off per lr (a number >= 0)
eps: added to the denominator (a number >= 0)
maximize: climbs instead of descends (True or False)
rho: share kept of the averages of squares (a number in [0, 1])"""
    lr: float
    weight_decay: float
    eps: float
    maximize: bool
    rho: float
    def __init__(self, *, lr: float = ..., weight_decay: float = ..., eps: float = ..., maximize: bool = ..., rho: float = ...) -> None: ...

class Adafactor:
    """The optimizer of that name, as in torch.optim if it is there, stepped inside the captured step.

Adafactor(lr=0.01, weight_decay=0.0, maximize=False, beta2_decay=-0.8, eps1=None, eps2=0.001, d=1.0)

lr: learning rate (a number >= 0)
weight_decay: share of a weight taken off per lr (a number >= 0)
maximize: climbs instead of descends (True or False)
beta2_decay: the averages of squares take in steps^beta2_decay of a new square (a number <= 0)
eps1: least root of an average of squares; none: the epsilon of the dtype (a number >= 0)
eps2: least root mean square of a parameter that scales its steps (a number >= 0)
d: largest root mean square of an update (a number >= 1)"""
    lr: float
    weight_decay: float
    maximize: bool
    beta2_decay: float
    eps1: typing.Any
    eps2: float
    d: float
    def __init__(self, *, lr: float = ..., weight_decay: float = ..., maximize: bool = ..., beta2_decay: float = ..., eps1: typing.Any = ..., eps2: float = ..., d: float = ...) -> None: ...

class Adamax:
    """The optimizer of that name, as in torch.optim if it is there, stepped inside the captured step.

Adamax(lr=0.002, weight_decay=0.0, betas=[0.9, 0.999], eps=1e-08, maximize=False)

lr: learning rate (a number >= 0)
weight_decay: share of a weight taken off per lr (a number >= 0)
betas: shares kept of the averages of the gradient and of its square (a number in [0, 1))
eps: added to the denominator (a number >= 0)
maximize: climbs instead of descends (True or False)"""
    lr: float
    weight_decay: float
    betas: list[float]
    eps: float
    maximize: bool
    def __init__(self, *, lr: float = ..., weight_decay: float = ..., betas: list[float] = ..., eps: float = ..., maximize: bool = ...) -> None: ...

class ASGD:
    """The optimizer of that name, as in torch.optim if it is there, stepped inside the captured step.

ASGD(lr=0.01, weight_decay=0.0, maximize=False, lambd=0.0001, alpha=0.75, t0=1000000.0)

lr: learning rate (a number >= 0)
weight_decay: share of a weight taken off per lr (a number >= 0)
maximize: climbs instead of descends (True or False)
lambd: share of a weight taken off per rate, and how fast the rate falls (a number >= 0)
alpha: the rate falls as lr / (1 + lambd * lr * steps)^alpha (a number >= 0)
t0: steps after which weights are averaged (state: ax) (a number >= 0)"""
    lr: float
    weight_decay: float
    maximize: bool
    lambd: float
    alpha: float
    t0: float
    def __init__(self, *, lr: float = ..., weight_decay: float = ..., maximize: bool = ..., lambd: float = ..., alpha: float = ..., t0: float = ...) -> None: ...

class Rprop:
    """The optimizer of that name, as in torch.optim if it is there, stepped inside the captured step.

Rprop(lr=0.01, maximize=False, etas=[0.5, 1.2], step_sizes=[1e-06, 50.0])

lr: learning rate (a number >= 0)
maximize: climbs instead of descends (True or False)
etas: factors of a step size: where the gradient's sign changed, and where it did not (a number)
step_sizes: the least and the largest step size (a number >= 0)"""
    lr: float
    maximize: bool
    etas: list[float]
    step_sizes: list[float]
    def __init__(self, *, lr: float = ..., maximize: bool = ..., etas: list[float] = ..., step_sizes: list[float] = ...) -> None: ...

class SparseAdam:
    """The optimizer of that name, as in torch.optim if it is there, stepped inside the captured step.

SparseAdam(lr=0.001, betas=[0.9, 0.999], eps=1e-08, maximize=False)

lr: learning rate (a number >= 0)
betas: shares kept of the averages of the gradient and of its square (a number in [0, 1))
eps: added to the denominator (a number >= 0)
maximize: climbs instead of descends (True or False)"""
    lr: float
    betas: list[float]
    eps: float
    maximize: bool
    def __init__(self, *, lr: float = ..., betas: list[float] = ..., eps: float = ..., maximize: bool = ...) -> None: ...

class LBFGS:
    """The optimizer of that name, as in torch.optim if it is there, stepped inside the captured step.

LBFGS(lr=1.0, max_iter=20, max_eval=None, tolerance_grad=1e-07, tolerance_change=1e-09, history_size=100, line_search_fn='none')

lr: learning rate (a number >= 0)
max_iter: iterations per step (an integer >= 1)
max_eval: evaluations of the loss per step, which a line search may go beyond; none: max_iter * 5 / 4 (an integer >= 1)
tolerance_grad: largest gradient that ends a step (a number >= 0)
tolerance_change: least change that goes on (a number >= 0)
history_size: corrections kept (an integer >= 1)
line_search_fn: how far to go along a direction (none, strong_wolfe)"""
    lr: float
    max_iter: int
    max_eval: typing.Any
    tolerance_grad: float
    tolerance_change: float
    history_size: int
    line_search_fn: str
    def __init__(self, *, lr: float = ..., max_iter: int = ..., max_eval: typing.Any = ..., tolerance_grad: float = ..., tolerance_change: float = ..., history_size: int = ..., line_search_fn: str = ...) -> None: ...

class Constant:
    """A schedule of one hyper-parameter over steps [begin, end), as mmengine's.

Constant(param_name='lr', begin=0, end=-1, by_epoch=False, convert_to_iter_based=False, factor=1.0)

param_name: the number that it drives (a text)
begin: first step that it governs (an integer >= 0)
end: one past its last step; -1: the end of the run (an integer >= -1)
by_epoch: counts epochs, not steps (True or False)
convert_to_iter_based: epochs become steps, so that the value changes within them (True or False)
factor: factor of the value (a number >= 0)"""
    param_name: str
    begin: int
    end: int
    by_epoch: bool
    convert_to_iter_based: bool
    factor: float
    def __init__(self, *, param_name: str = ..., begin: int = ..., end: int = ..., by_epoch: bool = ..., convert_to_iter_based: bool = ..., factor: float = ...) -> None: ...

class Linear:
    """A schedule of one hyper-parameter over steps [begin, end), as mmengine's.

Linear(param_name='lr', begin=0, end=-1, by_epoch=False, convert_to_iter_based=False, start_factor=0.001, end_factor=1.0)

param_name: the number that it drives (a text)
begin: first step that it governs (an integer >= 0)
end: one past its last step; -1: the end of the run (an integer >= -1)
by_epoch: counts epochs, not steps (True or False)
convert_to_iter_based: epochs become steps, so that the value changes within them (True or False)
start_factor: factor at begin (a number >= 0)
end_factor: factor at the last step (a number >= 0)"""
    param_name: str
    begin: int
    end: int
    by_epoch: bool
    convert_to_iter_based: bool
    start_factor: float
    end_factor: float
    def __init__(self, *, param_name: str = ..., begin: int = ..., end: int = ..., by_epoch: bool = ..., convert_to_iter_based: bool = ..., start_factor: float = ..., end_factor: float = ...) -> None: ...

class Polynomial:
    """A schedule of one hyper-parameter over steps [begin, end), as mmengine's.

Polynomial(param_name='lr', begin=0, end=-1, by_epoch=False, convert_to_iter_based=False, power=1.0, eta_min_ratio=None, eta_min=0.0)

param_name: the number that it drives (a text)
begin: first step that it governs (an integer >= 0)
end: one past its last step; -1: the end of the run (an integer >= -1)
by_epoch: counts epochs, not steps (True or False)
convert_to_iter_based: epochs become steps, so that the value changes within them (True or False)
power: exponent of what is left (a number > 0)
eta_min_ratio: lowest value as a share of the initial one (a number in [0, 1])
eta_min: lowest value (a number >= 0)"""
    param_name: str
    begin: int
    end: int
    by_epoch: bool
    convert_to_iter_based: bool
    power: float
    eta_min_ratio: typing.Any
    eta_min: float
    def __init__(self, *, param_name: str = ..., begin: int = ..., end: int = ..., by_epoch: bool = ..., convert_to_iter_based: bool = ..., power: float = ..., eta_min_ratio: typing.Any = ..., eta_min: float = ...) -> None: ...

class Step:
    """A schedule of one hyper-parameter over steps [begin, end), as mmengine's.

Step(param_name='lr', begin=0, end=-1, by_epoch=False, convert_to_iter_based=False, step_size=0, gamma=0.1)

param_name: the number that it drives (a text)
begin: first step that it governs (an integer >= 0)
end: one past its last step; -1: the end of the run (an integer >= -1)
by_epoch: counts epochs, not steps (True or False)
convert_to_iter_based: epochs become steps, so that the value changes within them (True or False)
step_size: steps between decays (at least 1 step)
gamma: factor of one decay (a number > 0)"""
    param_name: str
    begin: int
    end: int
    by_epoch: bool
    convert_to_iter_based: bool
    step_size: int
    gamma: float
    def __init__(self, *, param_name: str = ..., begin: int = ..., end: int = ..., by_epoch: bool = ..., convert_to_iter_based: bool = ..., step_size: int = ..., gamma: float = ...) -> None: ...

class MultiStep:
    """A schedule of one hyper-parameter over steps [begin, end), as mmengine's.

MultiStep(param_name='lr', begin=0, end=-1, by_epoch=False, convert_to_iter_based=False, milestones=[], gamma=0.1)

param_name: the number that it drives (a text)
begin: first step that it governs (an integer >= 0)
end: one past its last step; -1: the end of the run (an integer >= -1)
by_epoch: counts epochs, not steps (True or False)
convert_to_iter_based: epochs become steps, so that the value changes within them (True or False)
milestones: steps after begin at which it decays, ascending (an integer)
gamma: factor of one decay (a number > 0)"""
    param_name: str
    begin: int
    end: int
    by_epoch: bool
    convert_to_iter_based: bool
    milestones: list[typing.Any]
    gamma: float
    def __init__(self, *, param_name: str = ..., begin: int = ..., end: int = ..., by_epoch: bool = ..., convert_to_iter_based: bool = ..., milestones: list[typing.Any] = ..., gamma: float = ...) -> None: ...

class Exponential:
    """A schedule of one hyper-parameter over steps [begin, end), as mmengine's.

Exponential(param_name='lr', begin=0, end=-1, by_epoch=False, convert_to_iter_based=False, gamma=0.1)

param_name: the number that it drives (a text)
begin: first step that it governs (an integer >= 0)
end: one past its last step; -1: the end of the run (an integer >= -1)
by_epoch: counts epochs, not steps (True or False)
convert_to_iter_based: epochs become steps, so that the value changes within them (True or False)
gamma: factor of one decay (a number > 0)"""
    param_name: str
    begin: int
    end: int
    by_epoch: bool
    convert_to_iter_based: bool
    gamma: float
    def __init__(self, *, param_name: str = ..., begin: int = ..., end: int = ..., by_epoch: bool = ..., convert_to_iter_based: bool = ..., gamma: float = ...) -> None: ...

class Cosine:
    """A schedule of one hyper-parameter over steps [begin, end), as mmengine's.

Cosine(param_name='lr', begin=0, end=-1, by_epoch=False, convert_to_iter_based=False, T_max=0, eta_min_ratio=None, eta_min=0.0)

param_name: the number that it drives (a text)
begin: first step that it governs (an integer >= 0)
end: one past its last step; -1: the end of the run (an integer >= -1)
by_epoch: counts epochs, not steps (True or False)
convert_to_iter_based: epochs become steps, so that the value changes within them (True or False)
T_max: half a period; 0: the whole interval (an integer >= 0)
eta_min_ratio: lowest value as a share of the initial one (a number in [0, 1])
eta_min: lowest value (a number >= 0)"""
    param_name: str
    begin: int
    end: int
    by_epoch: bool
    convert_to_iter_based: bool
    T_max: int
    eta_min_ratio: typing.Any
    eta_min: float
    def __init__(self, *, param_name: str = ..., begin: int = ..., end: int = ..., by_epoch: bool = ..., convert_to_iter_based: bool = ..., T_max: int = ..., eta_min_ratio: typing.Any = ..., eta_min: float = ...) -> None: ...

class CosineRestart:
    """A schedule of one hyper-parameter over steps [begin, end), as mmengine's.

CosineRestart(param_name='lr', begin=0, end=-1, by_epoch=False, convert_to_iter_based=False, periods=[], restart_weights=[], eta_min_ratio=None, eta_min=0.0)

param_name: the number that it drives (a text)
begin: first step that it governs (an integer >= 0)
end: one past its last step; -1: the end of the run (an integer >= -1)
by_epoch: counts epochs, not steps (True or False)
convert_to_iter_based: epochs become steps, so that the value changes within them (True or False)
periods: lengths of the periods in steps (an integer)
restart_weights: factor of the value at each period's start; empty: 1 (a number > 0)
eta_min_ratio: lowest value as a share of the initial one (a number in [0, 1])
eta_min: lowest value (a number >= 0)"""
    param_name: str
    begin: int
    end: int
    by_epoch: bool
    convert_to_iter_based: bool
    periods: list[typing.Any]
    restart_weights: list[typing.Any]
    eta_min_ratio: typing.Any
    eta_min: float
    def __init__(self, *, param_name: str = ..., begin: int = ..., end: int = ..., by_epoch: bool = ..., convert_to_iter_based: bool = ..., periods: list[typing.Any] = ..., restart_weights: list[typing.Any] = ..., eta_min_ratio: typing.Any = ..., eta_min: float = ...) -> None: ...

class OneCycle:
    """A schedule of one hyper-parameter over steps [begin, end), as mmengine's.

OneCycle(param_name='lr', begin=0, end=-1, by_epoch=False, convert_to_iter_based=False, eta_max=0.0, total_steps=0, pct_start=0.3, anneal_strategy='cos', div_factor=25.0, final_div_factor=10000.0, three_phase=False, cycle_momentum=False, base_momentum=0.85, max_momentum=0.95)

param_name: the number that it drives (a text)
begin: first step that it governs (an integer >= 0)
end: one past its last step; -1: the end of the run (an integer >= -1)
by_epoch: counts epochs, not steps (True or False)
convert_to_iter_based: epochs become steps, so that the value changes within them (True or False)
eta_max: peak; 0: the initial value (a number >= 0)
total_steps: length of the cycle; 0: the whole interval (an integer >= 0)
pct_start: share of the cycle that rises (a number in [0, 1])
anneal_strategy: shape of rise and fall (cos, linear)
div_factor: peak / first value (a number > 0)
final_div_factor: first value / last value (a number > 0)
three_phase: down as fast as up, then to the end (True or False)
cycle_momentum: also drives momentum, which is low where the rate is high (True or False)
base_momentum: lowest momentum (a number in [0, 1))
max_momentum: highest momentum (a number in [0, 1))"""
    param_name: str
    begin: int
    end: int
    by_epoch: bool
    convert_to_iter_based: bool
    eta_max: float
    total_steps: int
    pct_start: float
    anneal_strategy: str
    div_factor: float
    final_div_factor: float
    three_phase: bool
    cycle_momentum: bool
    base_momentum: float
    max_momentum: float
    def __init__(self, *, param_name: str = ..., begin: int = ..., end: int = ..., by_epoch: bool = ..., convert_to_iter_based: bool = ..., eta_max: float = ..., total_steps: int = ..., pct_start: float = ..., anneal_strategy: str = ..., div_factor: float = ..., final_div_factor: float = ..., three_phase: bool = ..., cycle_momentum: bool = ..., base_momentum: float = ..., max_momentum: float = ...) -> None: ...

class WSD:
    """A schedule of one hyper-parameter over steps [begin, end), as mmengine's.

WSD(param_name='lr', begin=0, end=-1, by_epoch=False, convert_to_iter_based=False, warmup_steps=0, warmup_ratio=0.0, decay_steps=0, decay_ratio=0.0, decay_type='linear', eta_min_ratio=None, eta_min=0.0)

param_name: the number that it drives (a text)
begin: first step that it governs (an integer >= 0)
end: one past its last step; -1: the end of the run (an integer >= -1)
by_epoch: counts epochs, not steps (True or False)
convert_to_iter_based: epochs become steps, so that the value changes within them (True or False)
warmup_steps: steps that it rises (an integer >= 0)
warmup_ratio: share of the interval in which it rises (a number in [0, 1])
decay_steps: steps that it falls (an integer >= 0)
decay_ratio: share of the interval in which it falls (a number in [0, 1])
decay_type: shape of the fall (linear, sqrt, cosine)
eta_min_ratio: lowest value as a share of the initial one (a number in [0, 1])
eta_min: lowest value (a number >= 0)"""
    param_name: str
    begin: int
    end: int
    by_epoch: bool
    convert_to_iter_based: bool
    warmup_steps: int
    warmup_ratio: float
    decay_steps: int
    decay_ratio: float
    decay_type: str
    eta_min_ratio: typing.Any
    eta_min: float
    def __init__(self, *, param_name: str = ..., begin: int = ..., end: int = ..., by_epoch: bool = ..., convert_to_iter_based: bool = ..., warmup_steps: int = ..., warmup_ratio: float = ..., decay_steps: int = ..., decay_ratio: float = ..., decay_type: str = ..., eta_min_ratio: typing.Any = ..., eta_min: float = ...) -> None: ...

class ReduceOnPlateau:
    """A schedule of one hyper-parameter over steps [begin, end), as mmengine's.

ReduceOnPlateau(param_name='lr', begin=0, end=-1, by_epoch=False, convert_to_iter_based=False, monitor='loss', rule='', factor=0.1, patience=10, threshold=0.0001, threshold_rule='rel', cooldown=0, min_value=0.0, eps=1e-08)

param_name: the number that it drives (a text)
begin: first step that it governs (an integer >= 0)
end: one past its last step; -1: the end of the run (an integer >= -1)
by_epoch: counts epochs, not steps (True or False)
convert_to_iter_based: epochs become steps, so that the value changes within them (True or False)
monitor: the metric that is watched (a text)
rule: what is better; by default less, needed where the metric's name says greater (less, greater)
factor: factor of one reduction (a number in (0, 1))
patience: validations without improvement that are let pass (an integer >= 0)
threshold: least improvement that counts (a number >= 0)
threshold_rule: relative to the best value, or absolute (rel, abs)
cooldown: validations after a reduction that do not count (an integer >= 0)
min_value: never reduced below (a number >= 0)
eps: smaller reductions are left out (a number >= 0)"""
    param_name: str
    begin: int
    end: int
    by_epoch: bool
    convert_to_iter_based: bool
    monitor: str
    rule: str
    factor: float
    patience: int
    threshold: float
    threshold_rule: str
    cooldown: int
    min_value: float
    eps: float
    def __init__(self, *, param_name: str = ..., begin: int = ..., end: int = ..., by_epoch: bool = ..., convert_to_iter_based: bool = ..., monitor: str = ..., rule: str = ..., factor: float = ..., patience: int = ..., threshold: float = ..., threshold_rule: str = ..., cooldown: int = ..., min_value: float = ..., eps: float = ...) -> None: ...

class ClipNorm:
    """Scales all gradients so that their norm is at most max_norm.

ClipNorm(max_norm=1.0, norm_type=2.0)

max_norm: largest global norm of all gradients (a number > 0)
norm_type: which norm: the p of the p-norm (a number >= 1 or inf)"""
    max_norm: float
    norm_type: float
    def __init__(self, *, max_norm: float = ..., norm_type: float = ...) -> None: ...

class ClipValue:
    """Clamps every element of the gradients.

ClipValue(clip_value=0.0)

clip_value: largest magnitude of a gradient's element (a number > 0)"""
    clip_value: float
    def __init__(self, *, clip_value: float = ...) -> None: ...

class ClipAdaptive:
    """Adaptive clipping of NFNets, unit by unit.

ClipAdaptive(clip_factor=0.01, eps=0.001, exclude=[])

clip_factor: largest norm of a unit's gradient, in norms of its weights (a number > 0)
eps: least norm that a unit's weights count with (a number > 0)
exclude: parameters and modules that are not clipped, with * for any text (a list of texts)"""
    clip_factor: float
    eps: float
    exclude: list[typing.Any]
    def __init__(self, *, clip_factor: float = ..., eps: float = ..., exclude: list[typing.Any] = ...) -> None: ...

class LossScale:
    """Scaling of the loss for float16, as torch.amp.GradScaler's.

LossScale(init_scale=65536.0, growth_factor=2.0, backoff_factor=0.5, growth_interval=2000)

init_scale: scale of the loss at the start (a float32 number > 0)
growth_factor: factor of the scale after growth_interval finite steps (a number > 1)
backoff_factor: factor of the scale after a step with inf or NaN (a number in (0, 1))
growth_interval: finite steps after which the scale grows (an integer >= 1)"""
    init_scale: float
    growth_factor: float
    backoff_factor: float
    growth_interval: int
    def __init__(self, *, init_scale: float = ..., growth_factor: float = ..., backoff_factor: float = ..., growth_interval: int = ...) -> None: ...

class Ranks:
    """The processes that train one model together; hold it as long as their trainers."""
    def __init__(*args, **kwargs) -> typing.Any: ...
    @property
    def rank(self) -> int: ...
    @property
    def world_size(self) -> int: ...
    def barrier(self) -> None: ...

def current_ranks() -> Ranks:
    """Those that init_distributed() connected, as long as somebody holds them; else a world of one."""

def init_distributed(group: object = None, device: str = 'auto') -> Ranks:
    """Connects to the other processes that torchrun, SLURM or MPI has started; a single process gets a world of one. Trainers made while the result is held sum their gradients. `group`: a process group of torch.distributed with a backend for the CPU; without it the default one if it is initialized, else a connection of duet's own, whose errors name a rank that is lost."""

class Progress:
    """Where a run stands and how far it shall go. Counts finished steps."""
    def __init__(*args, **kwargs) -> typing.Any: ...
    @property
    def step(self) -> int:
        """of the whole run"""
    @property
    def max_steps(self) -> int:
        """0: no limit by steps"""
    @property
    def epoch(self) -> int:
        """that runs now, from 0"""
    @property
    def max_epochs(self) -> int:
        """0: no limit by epochs"""
    @property
    def steps_per_epoch(self) -> int:
        """0: unknown"""
    @property
    def step_in_epoch(self) -> int: ...
    @property
    def epoch_seconds(self) -> float:
        """that the last epoch took, by the timer; 0: unknown"""

class Run:
    """What a hook sees of a run, lent to it for one call."""
    def __init__(*args, **kwargs) -> typing.Any: ...
    @property
    def progress(self) -> Progress: ...
    @property
    def mode(self) -> str:
        """'eager' or 'graph'"""
    @property
    def work_dir(self) -> str:
        """empty: nothing is written"""
    @property
    def is_main(self) -> bool:
        """whether this is rank 0"""
    @property
    def loss(self) -> torch.Tensor:
        """0-dim tensor of this step"""
    @property
    def results(self) -> dict:
        """what the loss function logs of this step, 0-dim tensors by name"""
    @property
    def weight(self) -> float:
        """of this step's batches"""
    @property
    def parameters(self) -> dict:
        """that the step trains, by name"""
    @property
    def batches(self) -> list:
        """the micro-batches of this step"""
    @property
    def step_outputs(self) -> list:
        """what the model gave for each micro-batch of this step, for a hook with wants_outputs = True"""
    @property
    def kind(self) -> str:
        """what the run is: 'training', or 'validation', 'test' or 'prediction' on its own"""
    @property
    def batch(self) -> object:
        """of an evaluation; None elsewhere"""
    @property
    def outputs(self) -> dict:
        """of an evaluation's batch"""
    @property
    def dataset(self) -> str:
        """that an evaluation's batch is of; empty if it has no name"""
    @property
    def metrics(self) -> dict[str, float]: ...
    @property
    def saved_checkpoint(self) -> str:
        """the path of the last checkpoint that is complete: after_save_checkpoint"""
    @property
    def log_line(self) -> tuple[str, dict[str, float]]:
        """('train', 'epoch', 'val' or 'test', its numbers by name): on_log"""
    @property
    def stop_reason(self) -> str: ...
    @property
    def outcome(self) -> str:
        """'running', or how the run ended: 'finished', 'stopped', 'interrupted', 'diverged' or 'failed'"""
    @property
    def error(self) -> str: ...
    def set_metric(self, name: str, value: typing.SupportsFloat) -> None:
        """A result of the evaluation, as those of metrics: at after_val_epoch."""
    def gather(self, value: object) -> list:
        """What each rank gives, by rank: objects that pickle takes. All ranks call it."""
    def log(self, name: str, value: typing.SupportsFloat | torch.Tensor) -> None:
        """A value of this step: a number or a 0-dim tensor."""
    def log_text(self, name: str, text: str) -> None: ...
    def log_image(self, name: str, pixels: torch.Tensor) -> None:
        """uint8 [height, width, 3] RGB on the CPU."""
    def request_stop(self, reason: str) -> None:
        """Ends training after this step."""
    def stop_diverged(self, reason: str) -> None:
        """As request_stop(), for a run that has diverged: no success."""
    def interrupt(self, reason: str) -> None:
        """Ends training after this step; it shall go on later."""
    def set_mode(self, mode: str) -> None:
        """How the steps to come are run: 'eager' or 'graph'."""
    def get(self, name: str, group: typing.SupportsInt = 0) -> float:
        """A hyper-parameter: 'lr', 'weight_decay', 'beta1', ..."""
    def set(self, name: str, value: typing.SupportsFloat, group: typing.SupportsInt = 0) -> None:
        """Takes effect at the next step, in both modes."""

class StepView:
    """What Hook.in_step sees."""
    def __init__(*args, **kwargs) -> typing.Any: ...
    @property
    def parameters(self) -> dict: ...
    @property
    def loss(self) -> torch.Tensor: ...
    @property
    def applied(self) -> torch.Tensor:
        """steps applied so far, int64 [1] on the device"""

class CheckpointHook:
    """Saves the whole state under <work_dir>/checkpoints.

CheckpointHook(interval=500, interval_time=0.0, save_begin=0, max_keep=-1, save_last=True, rule='', save_best=[], save_top_k=1, best_weights_only=False, async_=True, verify_interval=0, published_keys=[], out_dir='')

interval: steps between saves; 0: only at the end (an integer >= 0)
interval_time: time between saves, counted from the last one; 0: they go by steps alone (a number >= 0)
save_begin: step before which nothing is saved, and from which the interval counts (an integer >= 0)
max_keep: checkpoints that are kept, the best one apart, and never fewer than 2; -1: all (at least 1, or -1 to keep all)
save_last: saves when training ends or is stopped (True or False)
rule: what is better; by default the metric's name says it (greater, less)
save_best: metric to keep the best of (a list of texts)
save_top_k: how many of the best are kept by each metric (an integer >= 1)
best_weights_only: the best ones are files of the evaluated weights alone (True or False)
async_: writes while training goes on; takes the memory of a copy on the host (True or False)
verify_interval: saves up to the next one that is read back from the disk and compared; 0: none is (an integer >= 0)
published_keys: what of the state goes to files of its own when the run ends (a list of texts)
out_dir: folder for the checkpoints, in one named as work_dir; empty: they lie in work_dir (a text)"""
    interval: int
    interval_time: float
    save_begin: int
    max_keep: int
    save_last: bool
    rule: str
    save_best: list[typing.Any]
    save_top_k: int
    best_weights_only: bool
    async_: bool
    verify_interval: int
    published_keys: list[typing.Any]
    out_dir: str
    def __init__(self, *, interval: int = ..., interval_time: float = ..., save_begin: int = ..., max_keep: int = ..., save_last: bool = ..., rule: str = ..., save_best: list[typing.Any] = ..., save_top_k: int = ..., best_weights_only: bool = ..., async_: bool = ..., verify_interval: int = ..., published_keys: list[typing.Any] = ..., out_dir: str = ...) -> None: ...

class EarlyStoppingHook:
    """Ends training when a metric no longer improves.

EarlyStoppingHook(monitor='', rule='', min_delta=0.0, patience=5, strict=True, check_finite=True, stopping_threshold=None, divergence_threshold=None)

monitor: metric that is watched (a text)
rule: what is better; by default the metric's name says it (greater, less)
min_delta: least improvement that counts (a finite number >= 0, whichever is better)
patience: validations without improvement that end training (an integer >= 1)
strict: a validation without the metric is an error (True or False)
check_finite: NaN or infinity ends training (True or False)
stopping_threshold: a better value ends training (a number or inf)
divergence_threshold: a worse value ends training (a number or inf)"""
    monitor: str
    rule: str
    min_delta: float
    patience: int
    strict: bool
    check_finite: bool
    stopping_threshold: typing.Any
    divergence_threshold: typing.Any
    def __init__(self, *, monitor: str = ..., rule: str = ..., min_delta: float = ..., patience: int = ..., strict: bool = ..., check_finite: bool = ..., stopping_threshold: typing.Any = ..., divergence_threshold: typing.Any = ...) -> None: ...

class EMAHook:
    """Keeps an average of the weights, updated inside the step.

EMAHook(ema_type='ExponentialMovingAverage', momentum=0.0002, half_life=0.0, gamma=100, interval=1, update_buffers=False, evaluate_on_ema=True, begin_iter=0, begin_epoch=0, name='ema')

ema_type: how weights are averaged (a text)
momentum: how much the new value counts, in (0, 1] (a number)
half_life: steps after which a weight counts half; 0: momentum counts (a number)
gamma: of MomentumAnnealingEMA: momentum is at least gamma / (gamma + steps) (an integer)
interval: steps between averagings (an integer)
update_buffers: averages floating-point buffers too (True or False)
evaluate_on_ema: validation, test and prediction use the average (True or False)
begin_iter: applied step that averaging begins with (an integer >= 0)
begin_epoch: epoch that averaging begins with, the first being 1 (an integer >= 0)
name: name of the state in a checkpoint; default ema, further ones ema_2, ... (a text)"""
    ema_type: str
    momentum: float
    half_life: float
    gamma: int
    interval: int
    update_buffers: bool
    evaluate_on_ema: bool
    begin_iter: int
    begin_epoch: int
    name: str
    def __init__(self, *, ema_type: str = ..., momentum: float = ..., half_life: float = ..., gamma: int = ..., interval: int = ..., update_buffers: bool = ..., evaluate_on_ema: bool = ..., begin_iter: int = ..., begin_epoch: int = ..., name: str = ...) -> None: ...

class EmptyCacheHook:
    """Gives cached memory back to the device.

EmptyCacheHook(before_epoch=False, after_epoch=True, after_iter=False)

before_epoch: before each epoch and pass (True or False)
after_epoch: after each epoch and pass (True or False)
after_iter: after each step and batch, which costs a wait for the device (True or False)"""
    before_epoch: bool
    after_epoch: bool
    after_iter: bool
    def __init__(self, *, before_epoch: bool = ..., after_epoch: bool = ..., after_iter: bool = ...) -> None: ...

class HistogramHook:
    """Logs how values of parameters and gradients are spread.

HistogramHook(interval=500, patterns=[], weights=True, gradients=True, bins=30)

interval: steps from one to the next; each waits for the device (an integer >= 1)
patterns: names of parameters or modules, * stands for any text; empty: all (a list of texts)
weights: of the parameters after the step (True or False)
gradients: of the gradients as the optimizer was given them, clipped (True or False)
bins: of a histogram (an integer from 1 to 1000)"""
    interval: int
    patterns: list[typing.Any]
    weights: bool
    gradients: bool
    bins: int
    def __init__(self, *, interval: int = ..., patterns: list[typing.Any] = ..., weights: bool = ..., gradients: bool = ..., bins: int = ...) -> None: ...

class LoggerHook:
    """Lines on the terminal and in JSONL.

LoggerHook(interval=50, by_epoch=False, ignore_last=True, log_metric_by_epoch=False, window_size=10, mean_pattern='loss(?!_scale)|time|grad_norm', file='', progress=True, model_summary=True)

interval: steps between lines; each reads the device once (an integer >= 1)
by_epoch: the interval counts from the beginning of each epoch (True or False)
ignore_last: by_epoch: no line for the rest of an epoch that has had one (True or False)
log_metric_by_epoch: results of evaluations lie at their epoch, not at their step (True or False)
window_size: steps that smoothed numbers are the mean of (an integer >= 1)
mean_pattern: regular expression of the names that are smoothed (a text)
file: file of the sink jsonl; default <work_dir>/log.jsonl (a text)
progress: a progress bar between lines (True or False)
model_summary: the model's parts and sizes when training starts (True or False)"""
    interval: int
    by_epoch: bool
    ignore_last: bool
    log_metric_by_epoch: bool
    window_size: int
    mean_pattern: str
    file: str
    progress: bool
    model_summary: bool
    def __init__(self, *, interval: int = ..., by_epoch: bool = ..., ignore_last: bool = ..., log_metric_by_epoch: bool = ..., window_size: int = ..., mean_pattern: str = ..., file: str = ..., progress: bool = ..., model_summary: bool = ...) -> None: ...

class NaNGuardHook:
    """Watches that loss and gradient norm stay finite.

NaNGuardHook(interval=50, action='raise', max_rollbacks=3, trace=False, max_consecutive_skips=100, min_loss_scale=0.0001, spike_threshold=0.0, spike_window=100, spike_action='warn')

interval: steps between two looks (an integer >= 1)
action: what a loss that is not finite leads to (raise, stop, warn, rollback)
max_rollbacks: rollbacks of a run; the next one raises (an integer >= 1)
trace: look at every step, run one that is not finite again and name op, module and samples (True or False)
max_consecutive_skips: steps in a row that may be skipped before `action`; 0: any number (an integer >= 0)
min_loss_scale: the least loss scale; below it `action`; 0: any (a number >= 0)
spike_threshold: the highest modified z-score of a loss against those before it; 0: any (a number >= 0)
spike_window: losses that a loss is compared with (an integer from 10 to 1e+05)
spike_action: what a loss above spike_threshold leads to (raise, stop, warn, rollback)"""
    interval: int
    action: str
    max_rollbacks: int
    trace: bool
    max_consecutive_skips: int
    min_loss_scale: float
    spike_threshold: float
    spike_window: int
    spike_action: str
    def __init__(self, *, interval: int = ..., action: str = ..., max_rollbacks: int = ..., trace: bool = ..., max_consecutive_skips: int = ..., min_loss_scale: float = ..., spike_threshold: float = ..., spike_window: int = ..., spike_action: str = ...) -> None: ...

class PreciseBNHook:
    """Recomputes the running statistics of batch norm before each validation; the next step goes on with training's own."""
    def __init__(self, data: object, *, num_iter: typing.SupportsInt = 200) -> None:
        """data: batches of the training data, from a loader of its own; on several ranks each has its own part. num_iter: how many of them the statistics are taken over."""

class PredictionWriterHook:
    """Writes what the model predicts.

PredictionWriterHook(folder='', format='safetensors', per_batch=False, keys=[], with_inputs=False, class_key='prediction')

folder: where files go; default <work_dir>/predictions (a text)
format: tensors, a line of class or numbers per sample, or both (safetensors, jsonl, both)
per_batch: a file for each batch, not one for the pass (True or False)
keys: outputs to write; empty: all (a list of texts)
with_inputs: the tensors of the batch too (True or False)
class_key: jsonl: the output [samples, classes] whose largest element is the class, or [samples, values] (a text)"""
    folder: str
    format: str
    per_batch: bool
    keys: list[typing.Any]
    with_inputs: bool
    class_key: str
    def __init__(self, *, folder: str = ..., format: str = ..., per_batch: bool = ..., keys: list[typing.Any] = ..., with_inputs: bool = ..., class_key: str = ...) -> None: ...

class ProfilerHook:
    """Writes traces of some steps.

ProfilerHook(skip_first=0, wait=1, warmup=1, active=3, repeat=1, record_shapes=False, profile_memory=False, with_stack=False, with_flops=False, cuda=True, nvtx=False, folder='')

skip_first: steps before the first cycle (an integer >= 0)
wait: steps of a cycle that nothing is done in (an integer >= 0)
warmup: steps with the tracer on and its results dropped (an integer >= 0)
active: steps in the trace (an integer >= 1)
repeat: cycles; 0: until training ends (an integer >= 0)
record_shapes: shapes of operator inputs (True or False)
profile_memory: allocations (True or False)
with_stack: TorchScript's source lines (True or False)
with_flops: counts the operations of matrix products and convolutions, for the log (True or False)
cuda: kernels and copies, if training runs on a GPU (True or False)
nvtx: ranges for Nsight, in the whole run (True or False)
folder: where traces go; default <work_dir>/trace (a text)"""
    skip_first: int
    wait: int
    warmup: int
    active: int
    repeat: int
    record_shapes: bool
    profile_memory: bool
    with_stack: bool
    with_flops: bool
    cuda: bool
    nvtx: bool
    folder: str
    def __init__(self, *, skip_first: int = ..., wait: int = ..., warmup: int = ..., active: int = ..., repeat: int = ..., record_shapes: bool = ..., profile_memory: bool = ..., with_stack: bool = ..., with_flops: bool = ..., cuda: bool = ..., nvtx: bool = ..., folder: str = ...) -> None: ...

class ThroughputHook:
    """Tokens per second, FLOPs per step, MFU.

ThroughputHook(peak_flops=0.0)

peak_flops: operations per second that one device can do; 0: measured (a number >= 0)"""
    peak_flops: float
    def __init__(self, *, peak_flops: float = ...) -> None: ...

class VisualizationHook:
    """Draws predictions.

VisualizationHook(draw=False, interval=50, max_samples=0, show=False, wait_time=0.0, alpha=0.6, palette=[], ignore_index=255, zoom=0, image='image', target='target', prediction='prediction')

draw: without it nothing happens (True or False)
interval: batches of a pass from one that is drawn to the next (an integer >= 1)
max_samples: samples of such a batch; 0: all (0 (all) or a number of samples)
show: opens each picture with the desktop's viewer (xdg-open) (True or False)
wait_time: seconds that the pass waits after each picture that is shown (a number >= 0)
alpha: weight of the colours over the image (a number in [0, 1])
palette: "#rrggbb" of class 0, 1, ... (a list of texts)
ignore_index: class that is painted white (an integer)
zoom: pixels for one of the image; 0: by its size (0 (chosen by size) to 64)
image: tensor of the batch (a text)
target: tensor of the batch (a text)
prediction: tensor of the outputs (a text)"""
    draw: bool
    interval: int
    max_samples: int
    show: bool
    wait_time: float
    alpha: float
    palette: list[typing.Any]
    ignore_index: int
    zoom: int
    image: str
    target: str
    prediction: str
    def __init__(self, *, draw: bool = ..., interval: int = ..., max_samples: int = ..., show: bool = ..., wait_time: float = ..., alpha: float = ..., palette: list[typing.Any] = ..., ignore_index: int = ..., zoom: int = ..., image: str = ..., target: str = ..., prediction: str = ...) -> None: ...

class StopSignalHook:
    """Interrupts training when SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2 or SIGXCPU asks for it."""
    def __init__(self) -> None: ...

class SyncBuffersHook:
    """Makes the buffers of the model the same on every rank."""
    def __init__(self) -> None: ...

class Accuracy:
    """Share of samples whose target is among the k largest scores.

Accuracy(topk=[1], ignore_index=-100, target='target', prediction='prediction')

topk: right if the target is among the k largest scores (an integer >= 1)
ignore_index: targets of this number do not count (an integer)
target: tensor of the batch: class numbers (a text)
prediction: tensor of the outputs: scores (a text)"""
    topk: list[int]
    ignore_index: int
    target: str
    prediction: str
    def __init__(self, *, topk: list[int] = ..., ignore_index: int = ..., target: str = ..., prediction: str = ...) -> None: ...

class ConfusionMatrix:
    """Which classes are taken for which.

ConfusionMatrix(num_classes=0, class_names=[], ignore_index=-100, target='target', prediction='prediction', normalize='none', flatten=False)

num_classes: how many classes there are (an integer)
class_names: for tables and results per class; empty: 0, 1, ... (a list of texts)
ignore_index: targets of this number do not count (an integer)
target: tensor of the batch: class numbers (a text)
prediction: tensor of the outputs: scores (a text)
normalize: shares of each target, of each prediction, or of all; none: counts (none, true, pred, all)
flatten: also reports each cell (True or False)"""
    num_classes: int
    class_names: list[typing.Any]
    ignore_index: int
    target: str
    prediction: str
    normalize: str
    flatten: bool
    def __init__(self, *, num_classes: int = ..., class_names: list[typing.Any] = ..., ignore_index: int = ..., target: str = ..., prediction: str = ..., normalize: str = ..., flatten: bool = ...) -> None: ...

class F1:
    """F1 of samples that belong to one class each.

F1(num_classes=0, class_names=[], ignore_index=-100, target='target', prediction='prediction', average=['macro'])

num_classes: how many classes there are (an integer)
class_names: for tables and results per class; empty: 0, 1, ... (a list of texts)
ignore_index: targets of this number do not count (an integer)
target: tensor of the batch: class numbers (a text)
prediction: tensor of the outputs: scores (a text)
average: over the classes; none: one value per class (macro, micro, weighted, none)"""
    num_classes: int
    class_names: list[typing.Any]
    ignore_index: int
    target: str
    prediction: str
    average: list[str]
    def __init__(self, *, num_classes: int = ..., class_names: list[typing.Any] = ..., ignore_index: int = ..., target: str = ..., prediction: str = ..., average: list[str] = ...) -> None: ...

class IoUMetric:
    """mmsegmentation's IoUMetric, in [0, 1].

IoUMetric(num_classes=0, class_names=[], ignore_index=255, target='target', prediction='prediction', iou_metrics=['mIoU'], nan_to_num=None, beta=1.0, per_class=False)

num_classes: how many classes there are (an integer)
class_names: for tables and results per class; empty: 0, 1, ... (a list of texts)
ignore_index: targets of this number do not count (an integer)
target: tensor of the batch: class numbers (a text)
prediction: tensor of the outputs: scores (a text)
iou_metrics: what is reported (mIoU, mDice, mFscore)
nan_to_num: takes the place of NaN; nothing: means leave NaN out (a number or inf)
beta: weight of the recall in mFscore (a number > 0)
per_class: also the values of each class (True or False)"""
    num_classes: int
    class_names: list[typing.Any]
    ignore_index: int
    target: str
    prediction: str
    iou_metrics: list[str]
    nan_to_num: typing.Any
    beta: float
    per_class: bool
    def __init__(self, *, num_classes: int = ..., class_names: list[typing.Any] = ..., ignore_index: int = ..., target: str = ..., prediction: str = ..., iou_metrics: list[str] = ..., nan_to_num: typing.Any = ..., beta: float = ..., per_class: bool = ...) -> None: ...

class MeanSquaredError:
    """Mean of the squared errors: 'mse'.

MeanSquaredError(target='target', prediction='prediction')

target: tensor of the batch that holds the true numbers (a text)
prediction: output that holds the predicted numbers (a text)"""
    target: str
    prediction: str
    def __init__(self, *, target: str = ..., prediction: str = ...) -> None: ...

class MeanAbsoluteError:
    """Mean of the absolute errors: 'mae'.

MeanAbsoluteError(target='target', prediction='prediction')

target: tensor of the batch that holds the true numbers (a text)
prediction: output that holds the predicted numbers (a text)"""
    target: str
    prediction: str
    def __init__(self, *, target: str = ..., prediction: str = ...) -> None: ...

class R2Score:
    """The share of the targets' variance explained: 'r2'.

R2Score(target='target', prediction='prediction')

target: tensor of the batch that holds the true numbers (a text)
prediction: output that holds the predicted numbers (a text)"""
    target: str
    prediction: str
    def __init__(self, *, target: str = ..., prediction: str = ...) -> None: ...

class Auroc:
    """Area under the ROC curve: 'auroc'.

Auroc(num_classes=1, target='target', prediction='prediction')

num_classes: classes of the scores; 1: one score, of class 1 against 0 (an integer >= 1)
target: tensor of the batch: class numbers [N], or 0 and 1 of each class [N, classes] (a text)
prediction: output that holds the scores [N, classes] (a text)"""
    num_classes: int
    target: str
    prediction: str
    def __init__(self, *, num_classes: int = ..., target: str = ..., prediction: str = ...) -> None: ...

class AveragePrecision:
    """Average precision, of several classes the mean: 'map'.

AveragePrecision(num_classes=1, target='target', prediction='prediction')

num_classes: classes of the scores; 1: one score, of class 1 against 0 (an integer >= 1)
target: tensor of the batch: class numbers [N], or 0 and 1 of each class [N, classes] (a text)
prediction: output that holds the scores [N, classes] (a text)"""
    num_classes: int
    target: str
    prediction: str
    def __init__(self, *, num_classes: int = ..., target: str = ..., prediction: str = ...) -> None: ...

class CalibrationError:
    """Expected calibration error: 'calibration_error'.

CalibrationError(bins=15, target='target', prediction='prediction')

bins: bins of confidence, of equal width (an integer from 1 to 10000)
target: tensor of the batch: class numbers [N] (a text)
prediction: output that holds the scores [N, classes] (a text)"""
    bins: int
    target: str
    prediction: str
    def __init__(self, *, bins: int = ..., target: str = ..., prediction: str = ...) -> None: ...

class Perplexity:
    """exp of the mean of the output `loss`.

Perplexity(loss='loss')

loss: the output that holds the mean negative log-likelihood (a text)"""
    loss: str
    def __init__(self, *, loss: str = ...) -> None: ...

class MeanLoss:
    """Mean of 'loss', weighted by the batches' weights."""
    def __init__(self) -> None: ...

class Obstacle:
    """Something that keeps a step from being captured."""
    def __init__(*args, **kwargs) -> typing.Any: ...
    @property
    def op(self) -> str: ...
    @property
    def what(self) -> str: ...
    @property
    def where(self) -> str: ...
    @property
    def source(self) -> str: ...
    @property
    def way_out(self) -> str: ...
    @property
    def times(self) -> int: ...

class StepExplanation:
    """What graph mode makes of a step, found out without training."""
    def __init__(*args, **kwargs) -> typing.Any: ...
    @property
    def captured(self) -> bool: ...
    @property
    def reason(self) -> str: ...
    @property
    def obstacles(self) -> list[Obstacle]: ...
    @property
    def changes(self) -> str: ...
    @property
    def bytes(self) -> int: ...
    @property
    def replay_us(self) -> float: ...
    @property
    def eager_us(self) -> float: ...
    def text(self) -> str: ...

class LrCurve:
    """The loss over the learning rate, as find_lr() gives it."""
    def __init__(*args, **kwargs) -> typing.Any: ...
    @property
    def lr(self) -> list[float]: ...
    @property
    def loss(self) -> list[float]:
        """a running mean, bias-corrected"""
    @property
    def steepest(self) -> float | None:
        """where it falls most, as Lightning suggests; None: too few points"""
    @property
    def valley(self) -> float | None:
        """in its longest fall, as fastai suggests; None: too few points"""

class BaseTrainer:
    """The loop around the steps, the same in both modes."""
    def __init__(self, mode: str, model: object, **kwargs) -> None: ...
    def fit(self, train_loader: object, val_loader: object = None) -> None:
        """Trains to max_steps or max_epochs, from where this trainer stands. A loader is anything that can be iterated over once per epoch. val_loader may be a dict of loaders: one validation in turn, with results '<name>/<metric>'."""
    def step(self, batch: object) -> torch.Tensor:
        """One step in a loop of your own. Returns the loss, a 0-dim tensor that is yours."""
    def step_many(self, batches: object, count: typing.SupportsInt) -> int:
        """Up to count steps on what an iterator gives from where it stands (or an iterable from its beginning), accumulate micro-batches each: as if step() were called with them. Returns how many were made: fewer where the batches end, and after one in which a hook asks to stop. result is of the last one."""
    def step_accumulated(self, micro_batches: collections.abc.Sequence) -> torch.Tensor:
        """One step over several micro-batches: the weighted mean of their gradients."""
    def finish(self) -> None:
        """Closes the run that step() opened."""
    def set_mode(self, mode: str) -> None:
        """How the steps to come are run, 'eager' or 'graph': the same bits either way."""
    def add_metric(self, metric: object, prefix: str = '') -> None: ...
    def add_hook(self, hook: object, priority: typing.SupportsInt | None = None) -> None: ...
    def hooks(self) -> list[str]:
        """Names of the hooks, in calling order."""
    def get(self, name: str, group: typing.SupportsInt = 0) -> float:
        """A hyper-parameter: 'lr', 'weight_decay', 'beta1', ..."""
    def set(self, name: str, value: typing.SupportsFloat, group: typing.SupportsInt = 0) -> None:
        """Takes effect at the next step, in both modes."""
    def validate(self, loader: object) -> dict[str, float]:
        """The metrics over the loader's batches, or over each of a dict of loaders."""
    def test(self, loader: object) -> dict[str, float]:
        """The metrics over the loader's batches, or over each of a dict of loaders."""
    def predict(self, batch: object) -> dict:
        """The model's outputs for one batch by name, predict(batch)['prediction'], without gradients, by the weights as they are now."""
    def predict_all(self, loader: object) -> list:
        """The outputs of every batch, as dicts."""
    def find_lr(self, loader: object, min_lr: typing.SupportsFloat = 1e-08, max_lr: typing.SupportsFloat = 1.0, num_training: typing.SupportsInt = 100, early_stop_threshold: typing.SupportsFloat = 4.0) -> LrCurve:
        """The loss while the learning rate rises exponentially from min_lr to max_lr in num_training steps, or to where it is early_stop_threshold times its least (0: never). Weights, optimizer, torch's default generators and counters are afterwards what they were."""
    def explain(self, batch: object) -> StepExplanation:
        """What graph mode would make of a step with this batch; nothing is trained."""
    def report(self) -> list:
        """One dict per signature of the step: state, reason, replays, ..., and what was not checked (host_code)."""
    def save(self, folder: str) -> str:
        """Saves everything as <folder>/step-<step> and returns that path."""
    def load(self, path: str) -> None:
        """Goes on from a checkpoint, or from the newest good one in a folder of them."""
    def load_weights(self, path: str, strict: bool = True) -> str:
        """Weights alone, from a checkpoint, a safetensors file or a file of torch.save."""
    def weights(self) -> dict:
        """Parameters and buffers, shared; no buffer that is not persistent, as in the model's state_dict()."""
    def state_dict(self) -> dict:
        """All that a bit-exact resume needs, flat. Its tensors are the live ones: clone what you keep."""
    def load_state_dict(self, state: dict) -> None: ...
    @property
    def model(self) -> object: ...
    @property
    def result(self) -> dict:
        """loss and logged values of the latest step, 0-dim tensors"""
    @property
    def mode(self) -> str: ...
    @property
    def progress(self) -> Progress: ...
    @property
    def finished(self) -> bool: ...
    @property
    def stop_reason(self) -> str: ...
    @property
    def outcome(self) -> str:
        """how the last run ended: 'finished', 'stopped', 'interrupted', 'diverged' or 'failed'; 'none' before one"""

class GraphStep:
    """The step of an existing loop: call it with a batch."""
    def __init__(self, model: object, loss: object, optimizer: object, clip: object, mode: str, **kwargs) -> None: ...
    def __call__(self, batch: object) -> torch.Tensor:
        """One step; returns the loss, a 0-dim tensor that is yours."""
    def explain(self, batch: object) -> StepExplanation:
        """What graph mode makes of a step; nothing is trained."""
    def report(self) -> list:
        """One dict per signature of the step: state, reason, replays, ..., and what was not checked (host_code)."""
    def set_mode(self, mode: str) -> None:
        """'eager' or 'graph': the same bits either way."""
    @property
    def mode(self) -> str: ...
    @property
    def log(self) -> dict:
        """what the loss function gave beside the loss, at the latest step"""

def seed_all(seed: typing.SupportsInt) -> None:
    """Seeds the default generators, as torch.manual_seed does."""

def set_log_level(level: str) -> None:
    """'debug', 'info', 'warning' or 'error': what duet writes to stderr."""

def read_weights(path: str) -> dict:
    """Weights of a checkpoint, a safetensors file or a file of torch.save, by name."""

def write_weights(path: str, weights: dict) -> None:
    """Writes a *.safetensors or *.pt file."""
