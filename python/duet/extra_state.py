"""What modules have beside tensors that a resume needs: get_extra_state(), and random generators."""

import types
import warnings

import torch

from . import generators
from .trainers import Hook

_KINDS = (torch.Tensor, bool, int, float, str)


def extra_state(model):
    """The hooks that keep it in a trainer's checkpoints: one, or none."""
    own = {
        f"{name}._extra_state".lstrip("."): module
        for name, module in model.named_modules()
        if type(module).get_extra_state is not torch.nn.Module.get_extra_state
    }
    hooks = [ExtraState(own)] if own else []
    return [*hooks, Generators(model)] if generators_of(model) else hooks


def generators_of(model):
    """Those of Python, NumPy and torch that its modules hold."""
    passed_over = (torch.Tensor, torch.nn.Module, types.FunctionType, str, int, float)
    held = [value for module in model.modules() for name, value in vars(module).items() if name[0] != "_" and not isinstance(value, passed_over)]
    return generators.own(types.SimpleNamespace(**{str(n): value for n, value in enumerate(held)}))


class ExtraState(Hook):
    name = "extra_state"

    def __init__(self, modules):
        self.modules = modules

    def before_run(self, run):
        pass  # a hook has a point

    def state_dict(self):
        state = {}
        for name, module in self.modules.items():
            extra = module.get_extra_state()
            parts = {f"{name}.{key}": value for key, value in extra.items()} if isinstance(extra, dict) else {name: extra}
            if all(isinstance(value, _KINDS) for value in parts.values()):
                state.update(parts)
            else:
                warnings.warn(f"'{name}' is not in checkpoints: expected a tensor, number or text, or a dict of these, from get_extra_state()")
        return state

    def load_state_dict(self, state):
        for name, module in self.modules.items():
            parts = {key.removeprefix(f"{name}."): value for key, value in state.items() if key.startswith(f"{name}.")}
            if name in state or parts:
                module.set_extra_state(state[name] if name in state else parts)


class Generators(Hook):
    name = "generators"

    def __init__(self, model):
        self.model = model

    def before_run(self, run):
        pass

    def state_dict(self):
        return {"states": generators.states(generators_of(self.model))}

    def load_state_dict(self, state):
        if "states" in state:
            generators.restore(generators_of(self.model), state["states"], "the model")
